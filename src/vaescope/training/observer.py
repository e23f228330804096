"""What may look at the members of a stack while they are trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from vaescope.models import Member


@runtime_checkable
class Observer(Protocol):
    """Sees the members of a stack between two steps; `vs.watch.WatchedMembers` is one."""

    def begin(
        self, names: Mapping[int, str], train: Float[Tensor, "D N r"], validation: Float[Tensor, "D M r"]
    ) -> None:
        """A stack begins.

        Args:
            names: of its members, by index.
            train: some of the training rows of every data set.
            validation: some of the validation rows.
        """
        ...

    def due(self, step: int) -> bool:
        """Whether to look after this step; called after every one.

        Args:
            step: steps done.
        """
        ...

    def update(self, step: int, members: Callable[[], Mapping[int, tuple[int, Member]]]) -> None:
        """Look at the members.

        Args:
            step: steps done.
            members: returns the active members with their data set, by index.
        """
        ...
