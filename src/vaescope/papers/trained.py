"""Experiments whose cells are members of a stack: train (or load), then measure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.data.arrays import Split
from vaescope.models import VAE, Member
from vaescope.objectives import Objective, beta_elbo
from vaescope.papers.base import Context, Experiment, Settings
from vaescope.runs import Cell
from vaescope.runs.files import Row
from vaescope.runs.members import pending_stacks, save_members
from vaescope.training import MemberSpec, TrainSettings, train


@dataclass(frozen=True)
class TrainedSettings(Settings):
    """Sizes and training of a stack."""

    samples: int
    """Split 70 / 20 / 10 into training, validation and test."""
    epochs: int
    patience: int
    batch_size: int = 64
    learning_rate: float = 1e-3

    def training(self, device: str) -> TrainSettings:
        return TrainSettings(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            patience=self.patience,
            device=device,
        )


@dataclass(frozen=True, eq=False)
class SyntheticData:
    """Mixed sources, split, with the sources of the test part."""

    observations: Split
    test_sources: Float[Tensor, "T d"]


class TrainedExperiment(Experiment):
    """Cells with a `seed` and, if they differ, a `precision` and `beta`; one data set per seed."""

    kin: ClassVar[tuple[str, ...]] = ()
    """Experiments with the same members: what they have trained beside this one is taken over."""

    @abstractmethod
    def model(self, cell: Cell, settings: Any) -> VAE:
        """The architecture of a cell; cells of one stack share it."""

    def stack_key(self, cell: Cell) -> Any:
        """Cells with the same key are trained as one stack."""
        return None

    def objective(self, cell: Cell, samples: int) -> Objective:
        """What the stack of a cell is trained on, with so many training samples."""
        return beta_elbo

    def train_stack(
        self,
        model: VAE,
        data: Sequence[Split],
        specs: Sequence[MemberSpec],
        objective: Objective,
        settings: Any,
        context: Context,
    ) -> list[Member]:
        """Train the members of one stack on these data sets."""
        return train(
            model,
            torch.stack([s.train for s in data]).float(),
            torch.stack([s.validation for s in data]).float(),
            specs,
            settings.training(context.device),
            objective=objective,
            progress=context.monitor,
            checkpoints=context.run.checkpoint_store,
        )

    @abstractmethod
    def data(self, cell: Cell, settings: Any) -> SyntheticData:
        """The observations a cell trains on; cells of one seed share them."""

    @abstractmethod
    def measure(self, cell: Cell, member: Member, data: SyntheticData, settings: Any) -> Row:
        """The columns of a finished member."""

    def spec(self, cell: Cell, data: int, settings: Any) -> MemberSpec:
        return MemberSpec(
            seed=cell["seed"], precision=cell.get("precision", 1.0), beta=cell.get("beta", 1.0), data=data
        )

    def data_key(self, cell: Cell) -> Any:
        """Cells with the same key share one data set."""
        return cell["seed"]

    def solve(self, cells: Sequence[Cell], settings: Any, context: Context) -> Iterator[list[Row]]:
        for key in dict.fromkeys(self.stack_key(cell) for cell in cells):
            stack = [cell for cell in cells if self.stack_key(cell) == key]
            data = {self.data_key(cell): self.data(cell, settings) for cell in stack}
            self._train_missing(stack, data, settings, context)
            yield [cell | self._row(cell, data[self.data_key(cell)], settings, context) for cell in stack]

    def _row(self, cell: Cell, data: SyntheticData, settings: Any, context: Context) -> Row:
        params, summary = context.run.load_member(cell)
        if summary.status != "finished":
            return summary.to_dict()
        spec = self.spec(cell, 0, settings)
        model = self.model(cell, settings)
        member = Member.from_summary(model, params, summary, seed=spec.seed, beta=spec.beta)
        return summary.to_dict() | self.measure(cell, member, data, settings)

    def _train_missing(
        self, cells: Sequence[Cell], data: dict[Any, SyntheticData], settings: Any, context: Context
    ) -> None:
        for name in self.kin:
            context.run.import_members(cells, context.run.path.parent / name)
        model = self.model(cells[0], settings)
        for group in pending_stacks(context.run, model, cells):
            keys = list(dict.fromkeys(self.data_key(cell) for cell in group))
            specs = [self.spec(cell, keys.index(self.data_key(cell)), settings) for cell in group]
            splits = [data[key].observations for key in keys]
            objective = self.objective(group[0], len(splits[0].train))
            save_members(context.run, group, self.train_stack(model, splits, specs, objective, settings, context))
