"""The training loop: all members of a stack at once, each with its own early stopping.

A member stops when its objective on the validation data (the ELBO if β = 1) has not improved for `patience` epochs at
its own precision; it keeps the weights of its best epoch. A member whose loss is no longer finite is marked as
diverged, with the step. Both leave the stack at the end of the epoch and then cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core.errors import InputError, RunError
from vaescope.data.dataset import ArrayRows, TrainingRows
from vaescope.models import VAE, Member, TrainingSummary
from vaescope.models.networks import Params
from vaescope.models.vae import CALIBRATION_ROWS
from vaescope.objectives.elbo import Objective, WithNetwork, beta_elbo
from vaescope.settings import TrainSettings
from vaescope.training.batches import Batches
from vaescope.training.checkpoint import Checkpoints, CheckpointStore, flatten, unflatten
from vaescope.training.compilation import ValidationSet, build_functions, keep_freed_memory, stated_precision
from vaescope.training.progress import LoggedProgress, NoProgress, Observer, Progress
from vaescope.training.schedules import kl_weights_at, learning_rate_at, precision_at
from vaescope.training.state import Record, StackState
from vaescope.training.step import MemberSpec, Problem, adam_scales

EpochMetrics = Callable[[int, Member], Mapping[str, float]]
Initial = Callable[[], Mapping[str, Tensor] | None]


def train(
    model: VAE,
    train_data: Float[Tensor, "D N n"] | TrainingRows,
    validation_data: Float[Tensor, "D M n"] | ArrayRows,
    members: Sequence[MemberSpec],
    settings: TrainSettings | None = None,
    *,
    objective: Objective = beta_elbo,
    progress: Progress | None = None,
    initial: Initial | None = None,
    epoch_metrics: EpochMetrics | None = None,
    observer: Observer | None = None,
    checkpoints: CheckpointStore | None = None,
) -> list[Member]:
    """Train one member per spec and return them in order, each with the weights of its best epoch.

    Args:
        model: the VAE.
        train_data: data sets; a member's spec says which one it uses. Rows hold x, then the auxiliary input. They may
            be bytes, or be streamed from a file.
        validation_data: for early stopping and the choice of the best epoch.
        members: one spec per member.
        settings: of the optimisation.
        objective: the loss of every member.
        progress: receives messages and the state after every epoch.
        initial: returns starting weights (first axis: members), or None for random ones. Called only when there is no
            checkpoint of this very run.
        epoch_metrics: called with the epoch and every active member after every epoch; its result joins the history.
        observer: looks at the members between steps, after its `begin` was called.
        checkpoints: stores the state of unfinished training. Training continues from it, replaces it from time to time
            and at the end; the caller clears it after saving the members.
    """
    settings = settings or TrainSettings()
    device = torch.device(settings.device)
    rows = ArrayRows(train_data) if isinstance(train_data, Tensor) else train_data
    validation = ArrayRows(validation_data) if isinstance(validation_data, Tensor) else validation_data
    problem = Problem(model, objective, rows.to(device), validation.to(device), members, settings)
    progress = LoggedProgress(progress or NoProgress())
    if model.networks.stackable or len(members) == 1:
        return _Run(problem, progress, initial, epoch_metrics, checkpoints, observer).run()
    once = cache(initial) if initial else None
    trained = []
    for index, spec in enumerate(members):
        own = _row_of(once, index) if once else None
        trained += _Run(
            replace(problem, members=[spec]), progress, own, epoch_metrics, checkpoints, observer, index
        ).run()
    return trained


def _row_of(initial: Initial, index: int) -> Initial:
    """The starting weights of one member."""

    def own() -> Params | None:
        weights = initial()
        return None if weights is None else {name: value[index : index + 1] for name, value in weights.items()}

    return own


class _Run:
    """One stack, from its first epoch or a checkpoint to its trained members."""

    def __init__(
        self,
        problem: Problem,
        progress: Progress,
        initial: Initial | None,
        epoch_metrics: EpochMetrics | None,
        store: CheckpointStore | None,
        observer: Observer | None = None,
        first: int = 0,
    ) -> None:
        self.observer, self.first = observer, first
        self.problem, self.progress, self.epoch_metrics = problem, progress, epoch_metrics
        self.batches = Batches(
            problem.train_data,
            members=[(spec.seed, spec.data) for spec in problem.members],
            batch_size=problem.settings.batch_size,
            latent_dim=problem.model.latent_dim,
            device=problem.device,
        )
        self.validation = ValidationSet(problem)
        objective = problem.objective
        self.objective_params: dict[str, Tensor] = {}
        if isinstance(objective, WithNetwork):
            self.objective_params = objective.init(problem.seeds)
        self.checkpoints = Checkpoints(store, problem, has_initial=initial is not None)
        self.state = self._restore() or self._start(initial)
        self.functions = build_functions(problem, self.batches, self.state, progress)

    def _start(self, initial: Initial | None) -> StackState:
        params = initial() if initial else None
        params = self.problem.model.init(self.problem.seeds) if params is None else params
        return StackState.initial({**params, **self.objective_params}, self.problem.members, self.problem.device)

    # epochs -----------------------------------------------------------------------------------

    def run(self) -> list[Member]:
        self.progress.begin(len(self.problem.members), self.problem.settings.epochs)
        with keep_freed_memory():
            while self.state.log.active:
                self._run_epoch()
                if self.state.log.active and self.checkpoints.due():
                    self._save()
        self._save()  # the caller has not stored the members yet
        return [self._trained(index) for index in range(len(self.problem.members))]

    def _run_epoch(self) -> None:
        losses, errors = self._train_epoch()
        if self.problem.model.noise == "optimal":
            self.state.tensors.precision = self.problem.model.current_precision(
                self.state.tensors.params, stated_precision(self.problem.model, self.state.tensors.precision), errors.mT
            )
        elbo, scores = self.validation.evaluate(self.functions, self.state).tolist()
        settings = self.problem.settings
        last = self.state.log.epochs_done + 1 == settings.epochs
        settled = [
            math.ceil(max(settings.precision_steps, record.spec.schedule.settled) / self.batches.steps)
            for record in self.state.active_records
        ]
        if self.problem.model.noise == "optimal" and not self.problem.model.keeps_floor:
            held = (self._training_precision() > 0).tolist()  # in the next epoch: patience does not count yet
            settled = [self.state.log.epochs_done + 1 if own else most for own, most in zip(held, settled, strict=True)]
        self.state.record_epoch(losses, elbo, scores, patience=settings.patience, settled=settled, last=last)
        self._record_metrics()
        if (staying := self.state.retire_stopped()) is not None:
            self.batches.select(staying)
            self.validation.select(staying)
        self._report()

    def _train_epoch(self) -> tuple[Float[Tensor, "S E"], Float[Tensor, "S E"]]:
        """Loss and squared error of every step and active member."""
        settings, log, tensors = self.problem.settings, self.state.log, self.state.tensors
        losses, errors, given = [], [], self._training_precision()
        schedules, constrained = self.state.schedules, self.problem.constrains_kl
        final_weights = kl_weights_at(None, schedules, tensors.beta, constrained=constrained)
        settled = max(schedule.settled for schedule in schedules)
        for x, noise in self.batches.epoch():
            log.steps_done += 1
            rate = learning_rate_at(log.steps_done, settings.epochs * self.batches.steps, settings)
            scales = adam_scales(log.steps_done, rate, self.problem.device)
            precision = precision_at(log.steps_done, given, settings)
            weights = final_weights
            if log.steps_done < settled:
                weights = kl_weights_at(log.steps_done, schedules, tensors.beta, constrained=constrained)
            loss, error = self.functions.step(tensors.params, tensors.moments, scales, x, noise, precision, weights)
            losses.append(loss)
            errors.append(error)
            self.progress.step(len(losses), self.batches.steps)
            if self.observer is not None and self.observer.due(log.steps_done):
                self._observe(error, precision, weights)
        return torch.stack(losses), torch.stack(errors)

    def _training_precision(self) -> Float[Tensor, " E"]:
        """γ² of every member, or its lower bound where γ² is optimal."""
        model, tensors, done = self.problem.model, self.state.tensors, self.state.log.epochs_done
        if model.noise != "optimal":
            return tensors.precision
        best = tensors.precision if done else torch.zeros_like(tensors.precision)
        return model.precision_floor(best, done=done / self.problem.settings.epochs)

    def _observe(
        self, error: Float[Tensor, " E"], precision: Float[Tensor, " E"], weights: Float[Tensor, E * k]
    ) -> None:
        """Show the active members, with their present precision and β, to the observer."""
        assert self.observer is not None
        model = self.problem.model
        used = model.current_precision(self.state.tensors.params, precision, error.unsqueeze(-1))
        beta = weights.reshape(len(error), -1)[:, 0]

        def members() -> dict[int, tuple[int, Member]]:
            found = {}
            for row, index in enumerate(self.state.log.active):
                record = self.state.log.records[index]
                params = {name: value[row : row + 1].detach() for name, value in self.state.tensors.params.items()}
                member = replace(self._member(record, params, float(used[row])), beta=float(beta[row]))
                found[self.first + index] = record.spec.data, member
            return found

        self.observer.update(self.state.log.steps_done, members)

    def _record_metrics(self) -> None:
        if self.epoch_metrics is None:
            return
        for row, record in enumerate(self.state.active_records):
            weights = {name: value[row : row + 1].detach() for name, value in self.state.tensors.params.items()}
            member = self._member(record, weights, float(self.state.tensors.precision[row]))
            for name, value in self.epoch_metrics(self.state.log.epochs_done, member).items():
                record.history.setdefault(name, []).append(value)

    def _report(self) -> None:
        records = self.state.log.records
        statuses = [record.status for record in records]
        values = torch.tensor([record.best_elbo for record in records if math.isfinite(record.best_elbo)])
        self.progress.epoch(
            self.state.log.epochs_done,
            training=statuses.count("training"),
            finished=statuses.count("finished"),
            diverged=statuses.count("diverged"),
            elbo=float(values.median()) if len(values) else math.nan,
        )

    # members ----------------------------------------------------------------------------------

    def _trained(self, index: int) -> Member:
        record = self.state.log.records[index]
        member = self._member(record, self.state.final[index], record.precision)
        summary = TrainingSummary(
            status=record.status,
            epochs=len(record.history["elbo"]),
            best_epoch=record.best_epoch,
            elbo=record.best_elbo if record.status == "finished" else None,
            used_precision=member.precision,
            diverged_at_step=record.diverged_at_step,
            converged=record.converged,
            precision_floor=self.problem.model.kept_floor,
        )
        return replace(member, training=summary, history=record.history)

    def _member(self, record: Record, weights: Params, precision: float) -> Member:
        """A member with these weights, without those of the objective."""
        model, spec = self.problem.model, record.spec
        own = {name: value for name, value in weights.items() if name not in self.objective_params}
        params = model.freeze_batch_norm(own, self.problem.train_data.sample(CALIBRATION_ROWS)[spec.data])
        if model.noise == "learned":
            precision = float(params["log_precision"].exp())
        params = {name: value.cpu() for name, value in params.items()}
        used = None if model.likelihood == "bernoulli" or model.learns_covariance else precision
        return Member(model, params, spec.seed, spec.beta, used)

    # checkpoints ------------------------------------------------------------------------------

    def _save(self) -> None:
        if self.checkpoints.store is None:
            return
        tensors, state = self.state.to_checkpoint()
        generators = flatten({"generators": self.batches.generator_states()})
        self.checkpoints.save(tensors | generators, state)

    def _restore(self) -> StackState | None:
        """The state of an earlier, interrupted call with the same arguments."""
        try:
            found = self.checkpoints.load()
            if found is None:
                return None
            state = StackState.from_checkpoint(*found, self.problem.device)
        except (InputError, RunError, KeyError, TypeError, ValueError):  # damaged, or of another version
            self.progress.message("The checkpoint cannot be read: training starts again.")
            return None
        self.batches.select(state.log.active)
        self.batches.set_generator_states(unflatten(found[0], "generators"))
        self.validation.select(state.log.active)
        self.progress.message(f"Resuming after epoch {state.log.epochs_done}.")
        return state
