"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vaescope.core.checks import choice
from vaescope.core.errors import Advice, InputError

if TYPE_CHECKING:
    from vaescope.report.findings import Finding
    from vaescope.report.report import Report


def console() -> Console:
    return Console(highlight=False)


def table(*headings: str, title: str | None = None) -> Table:
    """A table without borders."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(heading)
    return made


def rows_table(rows: Sequence[Mapping[str, object]]) -> Table:
    """A table with a row per mapping, numbers with three digits."""
    made = table(*(rows[0] if rows else ()))
    for row in rows:
        made.add_row(*(_cell_text(value) for value in row.values()))
    return made


def _cell_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "–" if value is None else escape(str(value))


SHOWN = 20  # latents in the table, at most
COLOURS = {"error": "red", "warning": "yellow", "note": "blue"}


def check_page(html: Path | None, fail_on: str | None) -> None:
    """Refuse options that would fail after the work is done."""
    from vaescope.report.findings import SEVERITIES
    from vaescope.runs.files import check_writable

    if fail_on is not None:
        choice("--fail-on", fail_on, SEVERITIES)
    if html is not None and html.suffix == ".json":
        raise InputError(f"--html {html} is the file for the numbers; use another suffix, such as .html.")
    if html is not None:
        check_writable(html)
        check_writable(html.with_suffix(".json"))


def for_command(text: str) -> str:
    """The text with options of the command, if it names arguments."""
    return text.as_option if isinstance(text, Advice) else text


def print_finding(out: Console, finding: Finding) -> None:
    """Severity and title, then evidence and advice."""
    colour = COLOURS[finding.severity]
    out.print(f"[{colour}]{finding.severity}[/{colour}] {escape(f'{finding.title} ({finding.code})')}", soft_wrap=True)
    out.print(f"  {finding.evidence}\n  What to do: {for_command(finding.advice)}", markup=False, soft_wrap=True)
    if finding.line:
        code = "\n".join(f"    {line}" for line in finding.line.splitlines())
        out.print(code, markup=False, highlight=False, soft_wrap=True)  # wrapped code cannot be pasted


def print_findings(report: Report, facts: Sequence[str] = ()) -> None:
    """Findings, further facts, the table of latents, and skipped analyses."""
    out = console()
    for finding in report.findings:
        print_finding(out, finding)
    if not report.findings:
        out.print("No issues found.")
    if report.coverage():
        out.print(for_command(report.coverage()), markup=False, soft_wrap=True)
    for fact in facts:
        out.print(fact, markup=False)
    rows = report.summary()
    out.print(rows_table(rows[:SHOWN]))
    if len(rows) > SHOWN:
        out.print(f"... and {len(rows) - SHOWN} more latents")
    for what, why in report.skipped.items():
        out.print(f"skipped: {what} ({for_command(why)})", markup=False, soft_wrap=True)


def write_page(report: Report, html: Path | None) -> None:
    """Write the page and its numbers, and print where the page is."""
    if html is not None:
        report.to_json(html.with_suffix(".json"))
        console().print(str(report.to_html(html).resolve()), soft_wrap=True, markup=False)


def exit_code(worst: str | None, fail_on: str | None) -> int:
    """1 if the worst finding is at least as severe as `fail_on`."""
    from vaescope.report.findings import SEVERITIES

    if worst is None or fail_on is None:
        return 0
    return int(SEVERITIES.index(worst) >= SEVERITIES.index(fail_on))
