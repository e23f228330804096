"""Initial weights that are chosen by validation ELBO after short trials: random restarts here, others in `geometry`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch

from vaescope.core import randomness
from vaescope.models import Member
from vaescope.models.networks import Params
from vaescope.training import MemberSpec, NoProgress, Progress, train
from vaescope.training.compilation import should_compile
from vaescope.training.step import Problem


@dataclass(frozen=True, eq=False)
class Trials:
    """Short trainings of one stack, before the training that they choose the weights for."""

    title: ClassVar[str] = "Start"
    problem: Problem
    progress: Progress = field(default_factory=NoProgress)

    def _trained(
        self, name: str, weights: Params, steps: int, specs: Sequence[MemberSpec] | None = None
    ) -> list[Member]:
        """Members that are trained from these weights for about so many steps, at their final precision."""
        problem, settings = self.problem, self.problem.settings
        epochs = math.ceil(self._at_most_half(steps) / self._epoch_steps)
        short = replace(
            settings,
            epochs=epochs,
            patience=epochs,
            decay="cosine",
            precision_hold=0,
            precision_warmup=0,
            compile=self._compile,
        )
        members = train(
            problem.model,
            problem.train_data,
            problem.validation_data,
            specs or problem.members,
            short,
            objective=problem.objective,
            progress=self.progress,
            initial=lambda: weights,
        )
        finished = [m.best_elbo for m in members if m.status == "finished"]
        result = f"ELBO {np.median(finished):.2f}" if finished else "diverged"
        self.progress.message(f"{self.title}: {name}: {result}.")
        return members

    @property
    def _compile(self) -> str:
        """Trials are compiled if the training that follows is, because they share what is compiled with it."""
        return "always" if should_compile(self.problem, self._epoch_steps) else "never"

    @property
    def _epoch_steps(self) -> int:
        samples = self.problem.train_data.shape[1]
        return samples // min(self.problem.settings.batch_size, samples)

    def _at_most_half(self, steps: int) -> int:
        return max(1, min(steps, self.problem.settings.epochs * self._epoch_steps // 2))

    def _weights_of(self, members: Sequence[Member]) -> Params:
        """Weights to go on from: without what was added after training."""
        names = self.problem.model.init([0])
        return {name: torch.cat([m.params[name] for m in members]) for name in names}


@dataclass(frozen=True, eq=False)
class RestartTrials(Trials):
    """Several random starts of every member, of which the better half goes on for twice as long, until one is left.

    Successive halving (Jamieson and Talwalkar 2016). Every round takes about half as long as the training that follows.
    """

    title: ClassVar[str] = "Restarts"
    restarts: int = 12

    def weights(self) -> Params:
        """Weights for every member: those of the restart that won."""
        own = [[replace(s, seed=seed) for seed in restart_seeds(s.seed, self.restarts)] for s in self.problem.members]
        weights: Params = self.problem.model.init([spec.seed for specs in own for spec in specs])
        total = self.problem.settings.epochs * self._epoch_steps
        while (count := len(own[0])) > 1:
            name = f"{count} random weights"
            members = self._trained(name, weights, total // (2 * count), [spec for specs in own for spec in specs])
            groups = [members[first : first + count] for first in range(0, len(members), count)]
            kept = [best_indices(group, (count + 1) // 2) for group in groups]
            own = [[specs[k] for k in chosen] for specs, chosen in zip(own, kept, strict=True)]
            weights = self._weights_of([group[k] for group, chosen in zip(groups, kept, strict=True) for k in chosen])
        return weights


def restart_seeds(seed: int, count: int) -> list[int]:
    """The seeds of the restarts of a member: its own, then others that depend on it and not on how many there are.

    >>> restart_seeds(3, 4)[:2] == restart_seeds(3, 2)
    True
    """
    others = torch.randint(2**31, (count,), generator=randomness.generator(seed, "restarts"))
    return [seed, *others[1:].tolist()]


def best_indices(members: Sequence[Member], count: int) -> list[int]:
    """The places of the members with the highest validation ELBO, best first; a member that diverged has none."""
    elbo = [-math.inf if math.isnan(m.best_elbo) else m.best_elbo for m in members]
    return sorted(range(len(members)), key=lambda k: -elbo[k])[:count]


def better_members(first: Sequence[Member], second: Sequence[Member]) -> list[Member]:
    """Of every member the one with the higher validation ELBO; a member that diverged has none."""
    return [pair[best_indices(pair, 1)[0]] for pair in zip(first, second, strict=True)]
