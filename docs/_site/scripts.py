"""Tutorials: scripts with text in comments, run while the site is built; what they print and draw is on the page.

A line `# %% [markdown]` begins text, `# %%` begins code. `# needs: scvi, scanpy` in the first lines names libraries; where they
are missing, the page shows the code without its output.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import io
import os
import re
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

NEEDS = re.compile(r"^# needs: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    kind: str
    """`markdown` or `code`."""
    text: str


def read_cells(script: str) -> list[Cell]:
    """The cells of a script, in order."""
    parts = re.split(r"^# %%(.*)\n", NEEDS.sub("", script), flags=re.MULTILINE)
    cells = []
    for mark, body in zip(parts[1::2], parts[2::2], strict=True):
        if "markdown" in mark:
            cells.append(Cell("markdown", re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip()))
        else:
            cells.append(Cell("code", body.strip()))
    return cells


def missing_libraries(script: str) -> list[str]:
    """Libraries that a script names and that are not installed."""
    found = NEEDS.search(script)
    names = [name.strip() for name in found[1].split(",")] if found else []
    return [name for name in names if importlib.util.find_spec(name) is None]


def run_cells(script: str) -> list[tuple[Cell, str, list[str]]]:
    """Every cell, what it printed, and the figures (.svg) that it wrote. Runs in an empty folder."""
    names: dict[str, object] = {"__name__": "__main__"}
    done = []
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in read_cells(script):
                known = set(Path(folder).glob("*.svg"))
                printed = io.StringIO()
                if cell.kind == "code":
                    quiet = contextlib.redirect_stderr(io.StringIO())
                    with contextlib.redirect_stdout(printed), quiet, warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        exec(compile(cell.text, "tutorial", "exec"), names)
                drawn = [file.read_text() for file in sorted(set(Path(folder).glob("*.svg")) - known)]
                done.append((cell, printed.getvalue().rstrip(), drawn))
        finally:
            os.chdir(before)
    return done


def page(script: str) -> str:
    """The script as Markdown with output; without, to look at the text only, if DOCS_RUN=0 is in the environment."""
    if os.environ.get("DOCS_RUN") == "0":
        return _markdown([(cell, "", []) for cell in read_cells(script)])
    if missing := missing_libraries(script):
        note = f"*Shown without output: it needs {', '.join(missing)}, which this build did not have.*"
        cells = [(cell, "", []) for cell in read_cells(script)]
        return _markdown(cells) + f"\n\n{note}\n"
    return _markdown(run_cells(script))


def _markdown(cells: list[tuple[Cell, str, list[str]]]) -> str:
    parts = []
    for cell, printed, drawn in cells:
        parts.append(cell.text if cell.kind == "markdown" else f"```python\n{cell.text}\n```")
        if printed:
            parts.append(f'```text title="output"\n{printed}\n```')
        for svg in drawn:
            data = base64.b64encode(svg.encode()).decode()
            parts.append(f'<img alt="figure" src="data:image/svg+xml;base64,{data}">')
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(page(Path(sys.argv[1]).read_text()))
