"""Training of flows on L_IMA, many strengths and seeds in one stack."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness, validation
from vaescope.distributions import Normal, Prior
from vaescope.errors import InputError
from vaescope.theory.ima_flow import IMAFlow, Unmixing, flow_terms
from vaescope.training.compilation import compile_stacked, has_compiler
from vaescope.training.memory import keep_freed_memory
from vaescope.training.step import adam_, adam_scales

DRAWN_STEPS = 100  # whose batches are drawn together
MAX_GRADIENT = 10.0  # nats per unit of the weights' norm
MIN_COMPILED_STEPS = 1_000  # compiling takes as long as a few hundred steps that are not compiled


@dataclass(frozen=True)
class FlowSpec:
    """One flow of a stack."""

    seed: int
    strength: float = 1.0
    """λ >= 0; 0 is maximum likelihood."""
    data: int = 0
    """Which data set it is trained on."""

    def __post_init__(self) -> None:
        validation.number("strength", self.strength, minimum=0.0)


@dataclass(frozen=True)
class FlowSettings:
    """Of Adam, with a cosine decay of its step size."""

    steps: int = 2000
    batch: int = 256
    learning_rate: float = 5e-3
    hidden: tuple[int, ...] = (30, 30)
    """Units of the hidden layers of the unmixing; none is a linear unmixing."""

    def __post_init__(self) -> None:
        validation.whole_number("steps", self.steps)
        validation.whole_number("batch", self.batch)
        validation.number("learning_rate", self.learning_rate, above=0.0)


Watch = Callable[[int, Sequence[IMAFlow]], None]


def fit_ima_flow(
    x: Float[Tensor, "N d"],
    *,
    strength: float = 1.0,
    prior: Prior | None = None,
    settings: FlowSettings | None = None,
    seed: int = 0,
) -> IMAFlow:
    """Maximise the mean of L_IMA over rows.

    Args:
        x: observations with as many columns as latents.
        strength: λ >= 0; 0 is maximum likelihood.
        prior: of the latents; N(0, I) by default.
        settings: of the optimisation.
        seed: of the first weights and of batches.
    """
    return fit_ima_flows(x.unsqueeze(0), [FlowSpec(seed, strength)], prior=prior, settings=settings)[0]


def fit_ima_flows(
    x: Float[Tensor, "D N d"],
    specs: Sequence[FlowSpec],
    *,
    prior: Prior | None = None,
    settings: FlowSettings | None = None,
    watch: Watch | None = None,
    watch_at: Sequence[int] = (),
) -> list[IMAFlow]:
    """Train a stack of flows; each one as if it were alone.

    Args:
        x: data sets of equal size.
        specs: one per flow.
        prior: of the latents; N(0, I) by default.
        settings: of the optimisation.
        watch: called with the number of steps done and the flows.
        watch_at: after which steps.
    """
    settings = FlowSettings() if settings is None else settings
    if x.ndim != 3 or not x.is_floating_point() or not bool(x.isfinite().all()):
        raise InputError(f"x must be finite floating-point data sets of shape (D, N, d), got {tuple(x.shape)}.")
    return _Stack(x, specs, Normal() if prior is None else prior, settings).run(watch, set(watch_at))


class _Stack:
    def __init__(self, x: Tensor, specs: Sequence[FlowSpec], prior: Prior, settings: FlowSettings) -> None:
        self.specs, self.prior, self.settings = specs, prior, settings
        self.unmixing = Unmixing(x.shape[2], settings.hidden)
        self.centres = x.mean(1)
        self.scales = (x - self.centres.unsqueeze(1)).square().mean((1, 2)).sqrt()
        self.rows = (x - self.centres.unsqueeze(1)) / self.scales[:, None, None]
        first = [self.unmixing.init(spec.seed) for spec in specs]
        self.params = {name: torch.stack([own[name] for own in first]).to(x) for name in first[0]}
        self.strengths = torch.tensor([spec.strength for spec in specs]).to(x).unsqueeze(1)
        self.data_sets = torch.tensor([spec.data for spec in specs]).unsqueeze(1)
        self.generators = [randomness.generator(spec.seed, "ima flow batches") for spec in specs]
        self.history: list[Tensor] = []

    def run(self, watch: Watch | None, watch_at: set[int]) -> list[IMAFlow]:
        steps = self.settings.steps
        step_ = _make_step(self.unmixing, self.prior)
        if steps >= MIN_COMPILED_STEPS and has_compiler():
            step_ = compile_stacked(step_)
        moments = tuple({name: torch.zeros_like(value) for name, value in self.params.items()} for _ in range(2))
        with keep_freed_memory():
            for step in range(steps):
                if step % DRAWN_STEPS == 0:
                    drawn = self._draw()
                rate = self.settings.learning_rate * (1 + math.cos(math.pi * step / steps)) / 2
                scales = adam_scales(step + 1, rate, self.rows.device).to(self.rows)
                x = self.rows[self.data_sets, drawn[:, step % DRAWN_STEPS]]
                self.history.append(step_(self.params, moments, scales, x, self.strengths))
                if watch is not None and step + 1 in watch_at:
                    watch(step + 1, self.flows())
        return self.flows()

    def _draw(self) -> Tensor:
        """Rows of the next batches of every flow, (E, DRAWN_STEPS, batch)."""
        shape = DRAWN_STEPS, min(self.settings.batch, self.rows.shape[1])
        return torch.stack([torch.randint(self.rows.shape[1], shape, generator=own) for own in self.generators])

    def flows(self) -> list[IMAFlow]:
        curves = torch.stack(self.history).mT.tolist()
        return [
            IMAFlow(
                self.unmixing,
                {name: value.detach()[index : index + 1].clone() for name, value in self.params.items()},
                self.prior,
                self.centres[spec.data],
                self.scales[spec.data],
                curves[index],
            )
            for index, spec in enumerate(self.specs)
        ]


def _make_step(unmixing: Unmixing, prior: Prior) -> Callable[..., Float[Tensor, " E"]]:
    """A function that updates weights and Adam's moments in place and returns each flow's objective."""

    def step(
        params: dict[str, Tensor],
        moments: tuple[dict[str, Tensor], dict[str, Tensor]],
        scales: Tensor,
        x: Float[Tensor, "E B d"],
        strengths: Float[Tensor, "E 1"],
    ) -> Float[Tensor, " E"]:
        def loss(params: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            objective = flow_terms(*unmixing(params, x), prior).regularised(strengths).mean(1)
            return -objective.sum(), objective  # a sum, so that no flow's gradient depends on how many there are

        gradients, objective = torch.func.grad(loss, has_aux=True)(params)
        adam_(params, _clip(gradients), moments, scales)
        return objective

    return step


def _clip(gradients: Mapping[str, Float[Tensor, "E ..."]]) -> dict[str, Tensor]:
    """Gradients of every flow with a norm of at most `MAX_GRADIENT`; zeros where they are not finite.

    Where the determinant of a Jacobian passes zero, log |det J| has gradients of any size.
    """
    norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
    scale = torch.where(norm.isfinite(), (MAX_GRADIENT / norm).clamp(max=1.0), 0.0)
    clipped = {}
    for name, gradient in gradients.items():
        own = scale.reshape(-1, *(1 for _ in gradient.shape[1:]))
        clipped[name] = torch.where(own > 0, gradient * own, 0.0)
    return clipped
