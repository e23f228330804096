"""The training loop: E members side by side, each stopping when it is done.

A member is finished when its objective on the validation data (the ELBO, unless β differs from one)
has not improved for `patience` epochs, and keeps its best weights. A member whose loss stops being
finite is marked diverged, with the step. Both leave the stack at the end of the epoch, and from
then on cost nothing.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.distributions.likelihoods import optimal_precision
from vaescope.errors import InputError
from vaescope.models import VAE, Member
from vaescope.objectives import Objective, WithNetwork, beta_elbo
from vaescope.training import checkpoint
from vaescope.training.batches import Batches
from vaescope.training.checkpoint import Keeper, fingerprint
from vaescope.training.progress import Monitor, Silent
from vaescope.training.settings import MemberSpec, TrainSettings
from vaescope.training.step import adam_scales, compiled, has_compiler, make_step, make_validation

Watch = Callable[[int, Member], Mapping[str, float]]
VALIDATION_ROWS = 256  # rows of the validation set per call: small enough to stay in the cache


@dataclass
class Record:
    """What is known of one member, whether it is still training or has left."""

    spec: MemberSpec
    status: str = "training"
    best_score: float = -math.inf
    best_elbo: float = -math.inf
    best_epoch: int = 0
    diverged_at_step: int | None = None
    history: dict[str, list[float]] = field(default_factory=lambda: {"loss": [], "elbo": []})


def train(
    model: VAE,
    train_data: Float[Tensor, "D N n"],
    validation_data: Float[Tensor, "D M n"],
    members: Sequence[MemberSpec],
    settings: TrainSettings | None = None,
    *,
    objective: Objective = beta_elbo,
    monitor: Monitor | None = None,
    params: dict[str, Tensor] | None = None,
    watch: Watch | None = None,
    keeper: Keeper | None = None,
) -> list[Member]:
    """Train one model per spec, all at once, and return them in order with their best weights.

    `params` continues from given weights (first axis: members) instead of fresh ones. `watch` is shown every
    member after every epoch, as it is then, and what it says of it goes into the member's history. `keeper`
    holds the state of an unfinished run: training goes on from it, writes it again now and then, and once more at the
    end; who keeps the members clears it then.
    """
    settings = settings or TrainSettings()
    _check(model, train_data, validation_data, members)
    monitor = monitor or Silent()
    if model.stacked or len(members) == 1:
        run = _Run(model, train_data, validation_data, members, settings, objective, monitor, params, watch, keeper)
        return run.to_the_end()
    trained = []  # one after another, where side by side gains nothing
    for place, spec in enumerate(members):
        own = None if params is None else {name: value[place : place + 1] for name, value in params.items()}
        run = _Run(model, train_data, validation_data, [spec], settings, objective, monitor, own, watch, keeper)
        trained += run.to_the_end()
    return trained


def _check(model: VAE, train_data: Tensor, validation_data: Tensor, members: Sequence[MemberSpec]) -> None:
    if not members:
        raise InputError("a stack needs at least one member, got none.")
    for name, data in (("training", train_data), ("validation", validation_data)):
        if data.ndim != 3 or data.shape[-1] != model.row_dim:
            behind = f" ({model.observed_dim} of x, then {model.auxiliary_dim} of u)" if model.conditional else ""
            raise InputError(
                f"{name} data must have shape (data sets, samples, {model.row_dim}{behind}), got {tuple(data.shape)}."
            )
    used = max(spec.data for spec in members)
    if used >= len(train_data):
        raise InputError(f"a member asks for data set {used}, but there are {len(train_data)}; count from 0.")


class _Run:
    """The state of one call to `train`: rows of every tensor are the members still training."""

    def __init__(
        self,
        model: VAE,
        train_data: Tensor,
        validation_data: Tensor,
        members: Sequence[MemberSpec],
        settings: TrainSettings,
        objective: Objective,
        monitor: Monitor,
        params: dict[str, Tensor] | None,
        watch: Watch | None,
        keeper: Keeper | None,
    ) -> None:
        self.model, self.settings, self.monitor, self.watch = model, settings, monitor, watch
        device = torch.device(settings.device)
        self.records = [Record(spec) for spec in members]
        self.rows = list(range(len(members)))  # which record each row of the tensors belongs to
        seeds = [spec.seed for spec in members]
        start = params if params is not None else model.init(seeds)
        self.own = set(start)  # names of the model's weights; an objective may have some beside them
        start = start | objective.init(seeds) if isinstance(objective, WithNetwork) else start
        self.params = {name: value.clone().to(device) for name, value in start.items()}
        self.moments = tuple({name: torch.zeros_like(p) for name, p in self.params.items()} for _ in range(2))
        self.best = {name: p.clone() for name, p in self.params.items()}
        self.kept: dict[int, dict[str, Tensor]] = {}
        self.device = device
        self.steps_done = 0
        self.precision = torch.tensor([spec.precision for spec in members], device=device)
        self.beta = torch.tensor([spec.beta for spec in members], device=device)
        self.batches = Batches(
            train_data.float().to(device),
            members=[(spec.seed, spec.data) for spec in members],
            batch_size=settings.batch_size,
            latent_dim=model.latent_dim,
        )
        self.validation_data = validation_data.float().to(device)
        self.validation_noise = self._draw_validation_noise(device)
        self.best_precision = self.precision.clone()
        self.epochs_done = 0
        self.keeper, self.kept_at, self.pause = keeper, time.monotonic(), 0.0
        self.belongs_to = (
            fingerprint(model, objective, self.batches.data, self.validation_data, members, settings) if keeper else ""
        )
        self._go_on()
        self.step, self.validation = self._functions(objective)

    def _draw_validation_noise(self, device: torch.device) -> Tensor:
        # drawn once: epochs are compared with the same noise
        shape = (self.validation_data.shape[1], self.model.latent_dim)
        generators = [randomness.generator(r.spec.seed, "validation") for r in self.records]
        return torch.stack([torch.randn(shape, generator=g) for g in generators]).to(device)

    # the loop ---------------------------------------------------------------------------------

    def to_the_end(self) -> list[Member]:
        self.monitor.begin(len(self.records), self.settings.epochs)
        for epoch in range(self.epochs_done + 1, self.settings.epochs + 1 if self.rows else 0):
            losses, errors = self._epoch()
            if self.model.noise == "optimal":
                self.precision = optimal_precision(errors.mean(0), self.model.observed_dim)
            self._note(epoch, losses, self._validate())
            self._show(epoch)
            self._let_go(last=epoch == self.settings.epochs)
            self.epochs_done = epoch
            self._report(epoch)
            if not self.rows:
                break
            self._checkpoint()
        self._checkpoint(last=True)
        return [self._member(index) for index in range(len(self.records))]

    def _epoch(self) -> tuple[Float[Tensor, "S E"], Float[Tensor, "S E"]]:
        losses, errors = [], []
        for x, noise in self.batches.epoch():
            self.steps_done += 1
            scales = adam_scales(self.steps_done, self.settings.learning_rate, self.device)
            warmth = self._warmth()
            precision = self.precision if warmth == 1 else self.precision * warmth
            loss, error = self.step(self.params, self.moments, scales, x, noise, precision, self.beta)
            losses.append(loss)
            errors.append(error)
        return torch.stack(losses), torch.stack(errors)

    def _warmth(self) -> float:
        """The share of γ² that counts at this step: from a hundredth to all of it over the warm-up."""
        steps = self.settings.precision_warmup
        return 1.0 if self.steps_done >= steps else 100.0 ** (self.steps_done / steps - 1)

    @torch.no_grad()
    def _validate(self) -> Float[Tensor, "2 E"]:
        """ELBO and objective of every member."""
        samples = self.validation_data.shape[1]
        total = torch.zeros(2, len(self.rows), device=self.device)
        data_of = torch.tensor([self.records[row].spec.data for row in self.rows])
        for first in range(0, samples, VALIDATION_ROWS):
            x = self.validation_data[:, first : first + VALIDATION_ROWS][data_of]
            noise = self.validation_noise[:, first : first + VALIDATION_ROWS].contiguous()
            # the last, shorter part runs uncompiled: it is not worth a compilation of its own
            evaluate = self.validation if x.shape[1] == VALIDATION_ROWS else self.eager_validation
            total += x.shape[1] * evaluate(self.params, x, noise, self.precision, self.beta)
        return total / samples

    def _note(self, epoch: int, losses: Tensor, validation: Float[Tensor, "2 E"]) -> None:
        """Write down what happened to every member in this epoch; keep weights that are its best."""
        finite = losses.isfinite()
        bad_step = torch.where(finite.all(0), -1, (~finite).int().argmax(0)).tolist()
        means = losses.mean(0).tolist()
        values, scores = validation.tolist()
        improved = []
        for row, index in enumerate(self.rows):
            record = self.records[index]
            record.history["loss"].append(means[row])
            record.history["elbo"].append(values[row])
            if bad_step[row] >= 0 or not math.isfinite(values[row]):
                offset = bad_step[row] if bad_step[row] >= 0 else len(losses) - 1
                record.status = "diverged"
                record.diverged_at_step = (epoch - 1) * len(losses) + offset + 1
            elif scores[row] > record.best_score:
                record.best_score, record.best_elbo, record.best_epoch = scores[row], values[row], epoch
                improved.append(row)
            elif epoch - record.best_epoch >= self.settings.patience:
                record.status = "finished"
        for name, value in self.params.items():
            self.best[name][improved] = value[improved]
        self.best_precision[improved] = self.precision[improved]

    def _let_go(self, *, last: bool) -> None:
        """Take finished and diverged members out of every tensor."""
        for index in self.rows:
            record = self.records[index]
            record.status = "finished" if last and record.status == "training" else record.status
        leaving = [row for row, index in enumerate(self.rows) if self.records[index].status != "training"]
        if not leaving:
            return
        for row in leaving:
            index = self.rows[row]
            self.kept[index] = {name: value[row : row + 1].clone() for name, value in self.best.items()}
            spec = self.records[index].spec
            self.records[index].spec = replace(spec, precision=float(self.best_precision[row]))
        self._keep([row for row in range(len(self.rows)) if row not in set(leaving)])

    def _keep(self, rows: list[int]) -> None:
        self.rows = [self.rows[row] for row in rows]
        for tensors in (self.params, *self.moments, self.best):
            for name in tensors:
                tensors[name] = tensors[name][rows]
        for name in ("precision", "beta", "best_precision", "validation_noise"):
            setattr(self, name, getattr(self, name)[rows])
        self.batches.select(rows)

    def _show(self, epoch: int) -> None:
        if self.watch is None:
            return
        for row, index in enumerate(self.rows):
            weights = {name: self.params[name][row : row + 1].detach().cpu() for name in self.own}
            spec = self.records[index].spec
            weights = dict(self.model.settle(weights, self.batches.data[spec.data].cpu()))
            member = Member(self.model, weights, spec.seed, spec.beta, float(self.precision[row]))
            for name, value in self.watch(epoch, member).items():
                self.records[index].history.setdefault(name, []).append(value)

    def _report(self, epoch: int) -> None:
        statuses = [record.status for record in self.records]
        values = torch.tensor([r.best_elbo for r in self.records if math.isfinite(r.best_elbo)])
        self.monitor.epoch(
            epoch,
            training=statuses.count("training"),
            finished=statuses.count("finished"),
            diverged=statuses.count("diverged"),
            elbo=float(values.median()) if len(values) else math.nan,
        )

    def _member(self, index: int) -> Member:
        record = self.records[index]
        weights = {name: value for name, value in self.kept[index].items() if name in self.own}
        params = self.model.settle(weights, self.batches.data[record.spec.data])
        precision: float | None = record.spec.precision
        if self.model.noise == "learned":
            precision = float(params["log_precision"].exp())
        return Member(
            model=self.model,
            params={name: value.cpu() for name, value in params.items()},
            seed=record.spec.seed,
            beta=record.spec.beta,
            precision=None if self.model.likelihood == "bernoulli" else precision,
            status=record.status,
            best_elbo=record.best_elbo,
            best_epoch=record.best_epoch,
            diverged_at_step=record.diverged_at_step,
            history=record.history,
        )

    # going on where it was --------------------------------------------------------------------

    def _checkpoint(self, *, last: bool = False) -> None:
        """Between two epochs, when the last time is long enough ago; and at the end, whatever happens to who keeps."""
        begin = time.monotonic()
        if self.keeper is None or not (last or begin - self.kept_at >= max(self.keeper.seconds, self.pause)):
            return
        tensors = checkpoint.flat(
            {
                "params": self.params,
                "first": self.moments[0],
                "second": self.moments[1],
                "best": self.best,
                "rest": {name: getattr(self, name) for name in ("precision", "beta", "best_precision")},
                "streams": checkpoint.streams(self.batches.generators),
            }
            | {f"kept {index}": weights for index, weights in self.kept.items()}
        )
        state = {
            "belongs_to": self.belongs_to,
            "epochs_done": self.epochs_done,
            "steps_done": self.steps_done,
            "rows": self.rows,
            "records": [asdict(record) for record in self.records],
        }
        self.keeper.save(tensors, json.dumps(state))
        self.kept_at = time.monotonic()
        self.pause = (self.kept_at - begin) / checkpoint.SHARE

    def _go_on(self) -> None:
        """From the state of an earlier call with the same members, data and settings, if there is one."""
        found = self.keeper.load() if self.keeper else None
        state = checkpoint.described(found[1]) if found else {}
        if found is None or state.get("belongs_to") != self.belongs_to:
            return
        tensors = found[0]
        self.records = [Record(**(record | {"spec": MemberSpec(**record["spec"])})) for record in state["records"]]
        self.validation_noise = self.validation_noise[state["rows"]]
        self.batches.select(state["rows"])
        self.rows = state["rows"]
        self.epochs_done, self.steps_done = state["epochs_done"], state["steps_done"]
        self.params, self.best = (
            {k: v.to(self.device) for k, v in checkpoint.group(tensors, g).items()} for g in ("params", "best")
        )
        self.moments = tuple(
            {k: v.to(self.device) for k, v in checkpoint.group(tensors, g).items()} for g in ("first", "second")
        )
        for name, value in checkpoint.group(tensors, "rest").items():
            setattr(self, name, value.to(self.device))
        for row, generator in enumerate(self.batches.generators):
            generator.set_state(checkpoint.group(tensors, "streams")[str(row)])
        gone = [index for index in range(len(self.records)) if index not in self.rows]
        self.kept = {index: checkpoint.group(tensors, f"kept {index}") for index in gone}
        self.monitor.say(f"Going on after epoch {self.epochs_done}.")

    # compiling --------------------------------------------------------------------------------

    def _functions(self, objective: Objective) -> tuple[Callable[..., Any], Callable[..., Any]]:
        autocast = self.device.type if self.settings.mixed_precision and self.device.type == "cuda" else None
        step = make_step(self.model, objective, accumulate=self.settings.accumulate, autocast=autocast)
        validation = make_validation(self.model, objective)
        self.eager_validation = validation
        if not self._compile_pays():
            return step, validation
        if not has_compiler():
            self.monitor.say("No C++ compiler found: training runs uncompiled, up to three times slower.")
            return step, validation
        fast = compiled(step), compiled(validation)
        if len(self.rows) < len(self.records):
            self._compile_as_at_first(*fast)
        return fast

    def _compile_as_at_first(self, step: Callable[..., Any], validation: Callable[..., Any]) -> None:
        """With as many members as the run began with: code for fewer could differ in the last bits of its sums."""
        members, device = len(self.records), self.device

        def many(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: torch.zeros(members, *t.shape[1:], device=device) for name, t in tensors.items()}

        width, latents = self.batches.data.shape[2], self.model.latent_dim
        own = torch.ones(members, device=device), torch.ones(members, device=device)
        x, noise = (torch.zeros(members, self.batches.batch_size, n, device=device) for n in (width, latents))
        scales = adam_scales(1, self.settings.learning_rate, device)
        step(many(self.best), (many(self.best), many(self.best)), scales, x, noise, *own)
        if self.validation_data.shape[1] >= VALIDATION_ROWS:
            x, noise = (torch.zeros(members, VALIDATION_ROWS, n, device=device) for n in (width, latents))
            with torch.no_grad():
                validation(many(self.best), x, noise, *own)

    def _compile_pays(self) -> bool:
        if self.settings.compile != "auto":
            return self.settings.compile == "always"
        # a compiled step saves about 2 ms of calls and 0.03 ms per member; compiling takes about 20 s
        steps = self.settings.epochs * self.batches.steps
        if not self.model.stacked:
            return steps > 3000  # compiling takes about 20 s, and saves a fifth of a step of 30 ms
        return steps * (2e-3 + 3e-5 * len(self.records)) > 20
