"""Docstrings for the site: equations as MathML, doctests as code."""

from __future__ import annotations

import re

import griffe
from equations import to_mathml

EQUATION = re.compile(r"^\.\. math::[ \t]*(?P<first>[^\n]*)\n(?P<rest>(?:[ \t]+[^\n]*\n|\n(?=[ \t]))*)", re.MULTILINE)
DOCTEST = re.compile(r"^(?P<indent>[ ]*)>>> .*(?:\n(?P=indent)\S.*)*", re.MULTILINE)


def with_equations(text: str) -> str:
    """Directives `.. math::` as MathML, which browsers draw without scripts or fonts."""

    def mathml(found: re.Match[str]) -> str:
        latex = " ".join((found["first"] + " " + found["rest"]).split())
        return f"\n{to_mathml(latex, 'block')}\n\n"

    return EQUATION.sub(mathml, text + "\n").rstrip()


def with_code(text: str) -> str:
    """Doctests as fenced code."""

    def fenced(found: re.Match[str]) -> str:
        body = "\n".join(line.removeprefix(found["indent"]) for line in found[0].splitlines())
        return f"```pycon\n{body}\n```"

    return DOCTEST.sub(fenced, text)


class ReadableDocstrings(griffe.Extension):
    """Convert every docstring when it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_code(with_equations(obj.docstring.value))
