"""Experiments whose cells are members of a stack: train or load them, then measure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Generic, Self, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core.errors import RunError
from vaescope.data.dataset import Split
from vaescope.models import VAE, Member
from vaescope.models.networks import Params
from vaescope.objectives import Objective, beta_elbo
from vaescope.runs.members import load_members, pending_stacks, save_members
from vaescope.runs.store import cell_key, part_folders
from vaescope.training import MemberSpec, Progress, TrainSettings, train
from vaescope.training.checkpoint import CheckpointStore
from vaescope.training.loop import EpochMetrics
from vaescope.training.progress import Observer
from vaescope_papers.experiment import Context, Experiment, Settings
from vaescope_papers.results import DIVERGED, Diverged, Result, SeedCell, cell_row


@dataclass(frozen=True)
class TrainedSettings(Settings):
    """Size of the data and training of a stack."""

    samples: int
    """Split 70 / 20 / 10 into training, validation and test."""
    epochs: int
    patience: int
    batch_size: int = 64
    learning_rate: float = 1e-3
    decay: str = "constant"
    """How the learning rate changes: constant, cosine, or restart: one cosine, then another."""
    precision_start: float | None = None
    """γ² at the beginning, for members with a higher one; None for a hundredth of their own."""
    precision_hold: int = 0
    """Steps for which γ² stays at its start."""
    precision_warmup: int = 0
    """Steps over which γ² then rises geometrically to its value."""

    def annealed(self, learning_rate: float, *, hold: int, warmup: int, start: float = 1e2) -> Self:
        """With a cosine decay, and a γ² that stays at `start` for `hold` steps and rises over `warmup` steps."""
        return replace(
            self,
            learning_rate=learning_rate,
            decay="cosine",
            precision_start=start,
            precision_hold=hold,
            precision_warmup=warmup,
        )

    def training(self, device: str) -> TrainSettings:
        return TrainSettings(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            patience=self.patience,
            decay=self.decay,
            precision_start=self.precision_start,
            precision_hold=self.precision_hold,
            precision_warmup=self.precision_warmup,
            device=device,
        )


@dataclass(frozen=True, eq=False)
class FactorData:
    """Observations, split, with the factors (or sources) of the test part."""

    observations: Split
    test_factors: Float[Tensor, "T k"]


@dataclass(frozen=True, eq=False)
class TrainingStack:
    """Everything that `train` is called with for one stack."""

    model: VAE
    train: Float[Tensor, "D N n"]
    validation: Float[Tensor, "D M n"]
    members: Sequence[MemberSpec]
    settings: TrainSettings
    objective: Objective
    progress: Progress
    checkpoints: CheckpointStore
    observer: Observer | None = None


def restart_gain(member: Member) -> float:
    """Nats of validation ELBO gained in the second half, after the learning rate was restarted; at least 0.

    A member whose second half is no better had converged by the first.
    """
    scores = member.history["elbo"]
    half = len(scores) // 2
    return max(0.0, max(scores[half:]) - max(scores[:half]))


S = TypeVar("S", bound=TrainedSettings)
C = TypeVar("C", bound=SeedCell)
M = TypeVar("M")


@dataclass(frozen=True, eq=False)
class TrainedCell(Generic[C]):
    """A finished member with its cell and its data."""

    cell: C
    member: Member
    data: FactorData


class TrainedExperiment(Experiment[S, C, M]):
    """One data set per seed, one stack for all cells, unless `data_key` and `stack_key` say otherwise."""

    shares_members_with: ClassVar[tuple[str, ...]] = ()
    """Experiments that train the same members: what they have in the same output folder is imported."""

    # what to train ----------------------------------------------------------------------------

    @abstractmethod
    def model(self, cell: C, settings: S) -> VAE:
        """The architecture of a cell; cells of one stack share it."""

    @abstractmethod
    def member(self, cell: C, data_index: int, settings: S) -> MemberSpec:
        """Seed, precision and β of a cell; `data_index` is the place of its data set in the stack."""

    @abstractmethod
    def data(self, cell: C, settings: S) -> FactorData:
        """The observations that a cell trains on."""

    @abstractmethod
    def measure(self, cell: C, member: Member, data: FactorData, settings: S) -> M:
        """What is measured of a finished member."""

    def measure_all(self, trained: Sequence[TrainedCell[C]], settings: S) -> list[M]:
        """What is measured of all finished members of a stack."""
        return [self.measure(own.cell, own.member, own.data, settings) for own in trained]

    def stack_key(self, cell: C) -> Hashable:
        """Cells with the same key are trained as one stack."""
        return None

    def training_of(self, cell: C, settings: S) -> S:
        """The settings that the stack of a cell is trained with."""
        return settings

    def data_key(self, cell: C) -> Hashable:
        """Cells with the same key share one data set."""
        return cell.seed

    def objective(self, cell: C, samples: int, settings: S) -> Objective:
        """What the stack of a cell is trained on, given the number of training samples."""
        return beta_elbo

    # hooks ------------------------------------------------------------------------------------

    def before_training(self, stack: TrainingStack, cells: Sequence[C], settings: S) -> Params | None:
        """Weights to start from (first axis: members); None for fresh ones. Not called when training is resumed.

        Args:
            stack: what is about to be trained.
            cells: of its members, in order.
            settings: of the experiment.
        """
        return None

    def epoch_metrics(self, data: Mapping[int, FactorData], settings: S) -> EpochMetrics | None:
        """What to record after every epoch; `data` are the data sets by seed."""
        return None

    # train and measure ------------------------------------------------------------------------

    def solve(
        self, cells: Sequence[C], settings: S, context: Context
    ) -> Iterator[Sequence[Result[C, M] | Diverged[C]]]:
        for key in dict.fromkeys(self.stack_key(cell) for cell in cells):
            stack = [cell for cell in cells if self.stack_key(cell) == key]
            data = {self.data_key(cell): self.data(cell, settings) for cell in stack}
            self._train_missing(stack, data, settings, context)
            rows, specs = [cell_row(cell) for cell in stack], [self.member(cell, 0, settings) for cell in stack]
            members = load_members(context.run, self.model(stack[0], settings), rows, specs)
            trained = [(cell, member, member.summary()) for cell, member in zip(stack, members, strict=True)]
            finished = [TrainedCell(c, m, data[self.data_key(c)]) for c, m, s in trained if s.status != DIVERGED]
            measured = iter(self.measure_all(finished, settings))
            yield [Diverged(c, s) if s.status == DIVERGED else Result(c, next(measured), s) for c, _, s in trained]

    def _train_missing(
        self, cells: Sequence[C], data: Mapping[Hashable, FactorData], settings: S, context: Context
    ) -> None:
        by_row = {tuple(cell_row(cell).items()): cell for cell in cells}
        rows = [cell_row(cell) for cell in cells]
        if context.out is not None:
            for name in self.shares_members_with:
                folder = context.out / name
                for source in (folder, *part_folders(folder)):
                    with suppress(RunError):  # it cannot be read, or was merged meanwhile: train these members here
                        context.run.import_members(rows, source)
        model = self.model(cells[0], settings)
        for group in pending_stacks(context.run, model, rows):
            own = [by_row[tuple(row.items())] for row in group]
            save_members(context.run, group, self._train(model, own, data, settings, context))

    def _train(
        self, model: VAE, cells: Sequence[C], data: Mapping[Hashable, FactorData], settings: S, context: Context
    ) -> list[Member]:
        keys = list(dict.fromkeys(self.data_key(cell) for cell in cells))
        splits = [data[key].observations for key in keys]
        stack = TrainingStack(
            model=model,
            train=torch.stack([split.train for split in splits]).float(),
            validation=torch.stack([split.validation for split in splits]).float(),
            members=[self.member(cell, keys.index(self.data_key(cell)), settings) for cell in cells],
            settings=self.training_of(cells[0], settings).training(context.device),
            objective=self.objective(cells[0], len(splits[0].train), settings),
            progress=context.progress,
            checkpoints=context.run.checkpoint_store,
            observer=context.observer,
        )
        if context.observer is not None:
            names = {index: cell_key(cell_row(cell)) for index, cell in enumerate(cells)}
            context.observer.begin(names, stack.train[:, :512], stack.validation[:, :512])  # rows that it may use
        by_seed = {spec.seed: data[self.data_key(cell)] for cell, spec in zip(cells, stack.members, strict=True)}
        return train_stack(
            stack,
            initial=partial(self.before_training, stack, cells, settings),
            epoch_metrics=self.epoch_metrics(by_seed, settings),
        )


def train_stack(
    stack: TrainingStack, *, initial: partial[Params | None] | None = None, epoch_metrics: EpochMetrics | None = None
) -> list[Member]:
    """Train one stack, from its checkpoint if it has one."""
    return train(
        stack.model,
        stack.train,
        stack.validation,
        stack.members,
        stack.settings,
        objective=stack.objective,
        progress=stack.progress,
        initial=initial,
        epoch_metrics=epoch_metrics,
        observer=stack.observer,
        checkpoints=stack.checkpoints,
    )
