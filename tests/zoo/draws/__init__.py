"""Which models there are: by draws of data sets, the last of which is only scored."""

from __future__ import annotations

from tests.zoo.cases import Case
from tests.zoo.draws import first, fourth, later, second, third


def cases() -> list[Case]:
    """All models of the zoo."""
    return [case for draw in (first, second, third, fourth, later) for case in draw.cases()]
