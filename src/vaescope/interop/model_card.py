"""A diagnosis as a section of a model card, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vaescope import __version__
from vaescope.diagnosis.page import VERDICTS, facts

if TYPE_CHECKING:
    from vaescope.diagnosis import Diagnosis


def model_card(diagnosis: Diagnosis) -> str:
    """What a reader of a model card should know: verdict, numbers, findings with advice, and what was not checked.

    Args:
        diagnosis: of the model that the card is about.

    >>> import torch, vaescope as vs
    >>> found = vs.diagnose(vs.adapters.from_arrays(torch.zeros(300, 2), torch.ones(300, 2)), progress=None)
    >>> print(model_card(found).splitlines()[0])
    ## Diagnosis
    """
    parts = [
        "## Diagnosis",
        f"{VERDICTS[diagnosis.worst]} ({diagnosis.samples} samples, vaescope {__version__})",
        _table(("measured", "value"), facts(diagnosis)),
    ]
    if diagnosis.findings:
        rows = [(f.severity, f"{f.title} {f.evidence}", f.advice) for f in diagnosis.findings]
        parts.append(_table(("severity", "finding", "what to do"), rows))
    if diagnosis.skipped:
        parts.append(
            "Not checked: " + "; ".join(f"{what} ({_cell(why)})" for what, why in diagnosis.skipped.items()) + "."
        )
    return "\n\n".join(parts) + "\n"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Text that ends no cell and is no HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
