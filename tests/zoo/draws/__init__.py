"""Which models there are: a module per draw of data sets, the last of which is only scored."""

from __future__ import annotations

from tests.zoo.cases import Case
from tests.zoo.draws import fifth, first, fourth, second, seventh, sixth, third


def cases() -> list[Case]:
    """All models of the zoo."""
    return [case for draw in (first, second, third, fourth, fifth, sixth, seventh) for case in draw.cases()]
