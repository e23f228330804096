"""LaTeX in pages as MathML, which browsers draw without scripts or fonts."""

from __future__ import annotations

import re

from latex2mathml.converter import convert

CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
EQUATION = re.compile(r"\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+(?:\n[^$\n]+)?)\$", re.DOTALL)
UNSUPPORTED = {r"\tfrac": r"\frac", r"\lVert": r"\|", r"\rVert": r"\|"}


def to_mathml(latex: str, display: str) -> str:
    """One equation, on one line."""
    latex = " ".join(latex.split())
    for unknown, known in UNSUPPORTED.items():
        latex = latex.replace(unknown, known)
    return convert(latex, display=display)


def with_equations(markdown: str) -> str:
    """A page with `$…$` and `$$…$$` outside of code as MathML."""

    def replaced(found: re.Match[str]) -> str:
        if found["block"] is not None:
            return to_mathml(found["block"], "block")
        # a line that starts with <math> would be a paragraph of its own
        return f"<span>{to_mathml(found['inline'], 'inline')}</span>"

    parts = CODE.split(markdown)  # every other part is code
    return "".join(part if index % 2 else EQUATION.sub(replaced, part) for index, part in enumerate(parts))
