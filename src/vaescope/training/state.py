"""The state of a stack in training: tensors of the active members, records and final weights of the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core.serialization import Plain, from_plain, plain_fields
from vaescope.models.member import has_converged
from vaescope.settings import KLSchedule
from vaescope.training.checkpoint import flatten, unflatten
from vaescope.training.step import MemberSpec

Weights = dict[str, Tensor]
Moments = tuple[Weights, Weights]


@dataclass
class Record:
    """What is known about one member, active or not."""

    spec: MemberSpec
    precision: float
    """γ² at the best epoch."""
    status: str = "training"
    best_score: float = -math.inf
    best_elbo: float = -math.inf
    best_epoch: int = 0
    diverged_at_step: int | None = None
    converged: bool | None = None
    scores: list[float] = field(default_factory=list)
    """Validation objective after every epoch, to be maximised; the ELBO if β = 1."""
    history: dict[str, list[float]] = field(default_factory=lambda: {"loss": [], "elbo": []})


@dataclass
class StackLog:
    """The part of the state that is plain data."""

    records: list[Record]
    active: list[int]
    """The record of every row of the tensors."""
    weight_names: list[str]
    """In order: a file may return them in another one."""
    epochs_done: int = 0
    steps_done: int = 0


@dataclass(frozen=True)
class CheckpointReader:
    """Reads weights from the tensors of a checkpoint, in their original order."""

    tensors: Mapping[str, Tensor]
    names: Sequence[str]
    device: torch.device

    def weights(self, group: str) -> Weights:
        found = unflatten(self.tensors, group)
        return {name: found[name].to(self.device) for name in self.names}


@dataclass
class MemberTensors:
    """Tensors of the active members; the first axis is the row."""

    params: Weights
    moments: Moments
    """First and second moments of the gradients (Adam)."""
    best: Weights
    """Weights of the best epoch."""
    precision: Float[Tensor, " E"]
    beta: Float[Tensor, " E"]
    best_precision: Float[Tensor, " E"]

    @classmethod
    def initial(
        cls, params: Mapping[str, Tensor], members: Sequence[MemberSpec], device: torch.device
    ) -> MemberTensors:
        weights = {name: value.clone().to(device) for name, value in params.items()}
        precision = torch.tensor([spec.precision for spec in members], device=device)
        return cls(
            params=weights,
            moments=(_zeros_like(weights), _zeros_like(weights)),
            best={name: p.clone() for name, p in weights.items()},
            precision=precision,
            beta=torch.tensor([spec.beta for spec in members], device=device),
            best_precision=precision.clone(),
        )

    def select(self, rows: list[int]) -> MemberTensors:
        """Only these rows."""
        return MemberTensors(
            params=_select(self.params, rows),
            moments=(_select(self.moments[0], rows), _select(self.moments[1], rows)),
            best=_select(self.best, rows),
            precision=self.precision[rows],
            beta=self.beta[rows],
            best_precision=self.best_precision[rows],
        )

    def keep_best(self, rows: list[int]) -> None:
        """Copy the current weights and precision of these rows to the best ones."""
        for name, value in self.params.items():
            self.best[name][rows] = value[rows]
        self.best_precision[rows] = self.precision[rows]

    def groups(self) -> dict[str, Weights]:
        """All tensors by group and name, for a checkpoint."""
        own = {"precision": self.precision, "beta": self.beta, "best_precision": self.best_precision}
        return {
            "params": self.params,
            "first moment": self.moments[0],
            "second moment": self.moments[1],
            "best": self.best,
            "members": own,
        }

    @classmethod
    def from_checkpoint(cls, read: CheckpointReader) -> MemberTensors:
        own = unflatten(read.tensors, "members")
        return cls(
            params=read.weights("params"),
            moments=(read.weights("first moment"), read.weights("second moment")),
            best=read.weights("best"),
            precision=own["precision"].to(read.device),
            beta=own["beta"].to(read.device),
            best_precision=own["best_precision"].to(read.device),
        )


@dataclass
class StackState:
    """A stack between two epochs."""

    log: StackLog
    tensors: MemberTensors
    final: dict[int, Weights]
    """Best weights of members that stopped, by the index of their record."""

    @classmethod
    def initial(cls, params: Mapping[str, Tensor], members: Sequence[MemberSpec], device: torch.device) -> StackState:
        """Before the first epoch."""
        records = [Record(spec, spec.precision) for spec in members]
        log = StackLog(records, list(range(len(members))), list(params))
        return cls(log, MemberTensors.initial(params, members, device), {})

    @property
    def active_records(self) -> list[Record]:
        """In the order of the rows."""
        return [self.log.records[index] for index in self.log.active]

    @property
    def schedules(self) -> list[KLSchedule]:
        """How the weight of the KL of every row changes."""
        return [record.spec.schedule for record in self.active_records]

    # epochs -----------------------------------------------------------------------------------

    def record_epoch(
        self,
        losses: Float[Tensor, "S E"],
        elbo: Sequence[float],
        scores: Sequence[float],
        *,
        patience: int,
        settled: Sequence[int],
        last: bool,
    ) -> None:
        """Add an epoch to every active record, keep weights that are the best so far, and mark who stops.

        Args:
            losses: of every step.
            elbo: validation ELBO of every row.
            scores: validation objective of every row, to be maximised.
            patience: epochs without a better score after which a member stops.
            settled: the epoch after which precision and KL weight of each row are final; patience counts from there.
            last: whether this is the last epoch.
        """
        epoch, steps = self.log.epochs_done + 1, len(losses)
        finite_steps = losses.isfinite().int().cumprod(0).sum(0).tolist()  # before the first loss that is not finite
        means = losses.mean(0).tolist()
        improved = []
        for row, record in enumerate(self.active_records):
            record.history["loss"].append(means[row])
            record.history["elbo"].append(elbo[row])
            record.scores.append(scores[row])
            if not (finite_steps[row] == steps and math.isfinite(elbo[row])):
                step = min(finite_steps[row] + 1, steps)  # a validation that is not finite counts as the last step
                record.status, record.diverged_at_step = "diverged", (epoch - 1) * steps + step
            elif scores[row] > record.best_score:
                record.best_score, record.best_elbo, record.best_epoch = scores[row], elbo[row], epoch
                improved.append(row)
            elif epoch - max(record.best_epoch, settled[row]) >= patience:
                record.status, record.converged = "finished", True
            if last and record.status == "training":
                record.status, record.converged = "finished", has_converged(record.scores[settled[row] :])
        self.tensors.keep_best(improved)
        self.log.epochs_done = epoch

    def retire_stopped(self) -> list[int] | None:
        """Move members that stopped out of the tensors; the rows that stay, or None if all do."""
        staying = [row for row, record in enumerate(self.active_records) if record.status == "training"]
        if len(staying) == len(self.log.active):
            return None
        for row, index in enumerate(self.log.active):
            if self.log.records[index].status != "training":
                self.final[index] = {name: value[row : row + 1].clone() for name, value in self.tensors.best.items()}
                self.log.records[index].precision = float(self.tensors.best_precision[row])
        self.log.active = [self.log.active[row] for row in staying]
        self.tensors = self.tensors.select(staying)
        return staying

    # checkpoints ------------------------------------------------------------------------------

    def to_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Plain]]:
        """Tensors by name, and plain data for JSON."""
        final = {f"final {index}": weights for index, weights in self.final.items()}
        return flatten(self.tensors.groups() | final), plain_fields(self.log)

    @classmethod
    def from_checkpoint(
        cls, tensors: Mapping[str, Tensor], data: Mapping[str, Plain], device: torch.device
    ) -> StackState:
        log = from_plain(StackLog, data, name="checkpoint")
        stopped = [index for index in range(len(log.records)) if index not in log.active]
        read = CheckpointReader(tensors, log.weight_names, device)
        final = {index: read.weights(f"final {index}") for index in stopped}
        return cls(log, MemberTensors.from_checkpoint(read), final)


def _zeros_like(weights: Weights) -> Weights:
    return {name: torch.zeros_like(value) for name, value in weights.items()}


def _select(weights: Weights, rows: list[int]) -> Weights:
    return {name: value[rows] for name, value in weights.items()}
