"""Watch the members of a stack while `vs.fit`, a sweep or an experiment trains them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from jaxtyping import Float
from torch import Tensor

from vaescope.errors import InputError, RunError
from vaescope.models import Member
from vaescope.protocol import WrappedModel
from vaescope.training.observer import Observer
from vaescope.watch.clock import Clock
from vaescope.watch.watch import OVERHEAD, RowLogger, Watch

SAMPLES = 128
MAX_MEMBERS = 32  # of a stack that are watched


class _Latest(WrappedModel):
    """A member as it is now."""

    def __init__(self, member: Member) -> None:
        self.model = member


class WatchedMembers(Observer):
    """An observer of `vs.fit`: a `Watch` per member, all within one share of the training time.

    Args:
        logger: makes the logger of a member from its name, such as `vs.jobs.tracking.live_members(...)`.
        message: called with a line per finding.
        overhead: the share of time that all measurements together may take.

    >>> import torch, vaescope as vs
    >>> observer = WatchedMembers()
    >>> fitted = vs.fit(torch.randn(100, 3), latent_dim=2, epochs=2, observer=observer)
    >>> list(observer.watches)
    ['precision=1_beta=1_seed=0']
    """

    def __init__(
        self,
        logger: Callable[[str], RowLogger] | None = None,
        *,
        message: Callable[[str], object] | None = None,
        overhead: float = OVERHEAD,
    ) -> None:
        self.watches: dict[str, Watch] = {}
        self._logger, self._message = logger, message
        self._clock = Clock(None, overhead)
        self._latest: dict[str, _Latest] = {}
        self._names: Mapping[int, str] = {}

    def begin(
        self, names: Mapping[int, str], train: Float[Tensor, "D N r"], validation: Float[Tensor, "D M r"]
    ) -> None:
        self._names = dict(list(names.items())[:MAX_MEMBERS])
        self._train, self._validation = train, validation

    def due(self, step: int) -> bool:
        return self._clock.due(step)

    def update(self, step: int, members: Callable[[], Mapping[int, tuple[int, Member]]]) -> None:
        begin = time.perf_counter()
        for index, (data, member) in members().items():
            if index in self._names:
                self._update(self._names[index], step, data, member)
        self._clock.charge("row", time.perf_counter() - begin)

    def _update(self, name: str, step: int, data: int, member: Member) -> None:
        try:
            if name not in self.watches:
                self.watches[name] = self._watch(name, data, member)
            self._latest[name].model = member
            row = self.watches[name].update(step)
        except (InputError, RunError) as error:  # training goes on without it
            self._names = {index: other for index, other in self._names.items() if other != name}
            self._say(f"{name} is no longer watched: {error}")
            return
        for finding in () if row is None else row.findings:
            if finding.severity != "note":
                self._say(f"{name}, step {step}: {finding.title} {finding.evidence} {finding.advice}")

    def _say(self, line: str) -> None:
        if self._message is not None:
            self._message(line)

    def _watch(self, name: str, data: int, member: Member) -> Watch:
        latest = self._latest[name] = _Latest(member)
        x, auxiliary = member.split_auxiliary(self._train[data])
        held, held_auxiliary = member.split_auxiliary(self._validation[data])
        loggers = [] if self._logger is None else [self._logger(name)]
        return Watch(
            latest,
            x,
            every=1,
            validation=held,
            auxiliary=auxiliary,
            validation_auxiliary=held_auxiliary,
            loggers=loggers,
            show=False,
            samples=SAMPLES,
        )

    def close(self) -> None:
        """Close all loggers."""
        for watch in self.watches.values():
            watch.close()
