"""Flows trained on the IMA-regularised likelihood: the explicit counterpart of what a VAE does implicitly.

The unmixing g(x) = A x + MLP(x) has as many outputs as inputs, and its Jacobian is computed along with it. So log p and
c_IMA of its inverse are exact at every step, and nothing has to be inverted. log |det J| keeps g locally invertible:
the objective is -inf where it is not. Gresele et al. 2021; Reizinger et al. 2022, L_IMA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import randomness, validation
from vaescope.core.errors import InputError
from vaescope.distributions import Normal, Prior
from vaescope.models.mlp import MLP, smooth_leaky_relu
from vaescope.models.networks import Params
from vaescope.training.compilation import compile_stacked, has_compiler, keep_freed_memory
from vaescope.training.step import adam_, adam_scales


@dataclass(frozen=True)
class Unmixing:
    """x -> u of a stack of flows: a linear map plus an MLP. Holds sizes, not weights."""

    dim: int
    hidden: tuple[int, ...] = (30, 30)

    @property
    def network(self) -> MLP:
        return MLP("unmixing", (self.dim, *self.hidden, self.dim))

    def init(self, seed: int) -> dict[str, Tensor]:
        """First weights of one flow: a random rotation, and a small MLP."""
        generator = randomness.generator(seed, "ima flow")
        params = self.network.init(generator)
        last = f"unmixing.{self.network.layers - 1}.weight"
        params[last] = 0.3 * params[last]  # so that g begins nearly linear
        params["skip.weight"] = torch.linalg.qr(torch.randn(self.dim, self.dim, generator=generator)).Q
        return params

    def __call__(
        self, params: Params, x: Float[Tensor, "E B d"]
    ) -> tuple[Float[Tensor, "E B d"], Float[Tensor, "E B d d"]]:
        """u and ∂u/∂x: values and tangents pass every layer in one product."""
        members, batch, d = x.shape
        axes = torch.eye(d, dtype=x.dtype, device=x.device).repeat_interleave(batch, dim=1)
        first = torch.cat([x.mT, axes.expand(members, -1, -1)], dim=2)  # (E, d, B (1 + d)): x, then every direction
        h = first
        for layer in range(self.network.layers):
            h = torch.bmm(params[f"unmixing.{layer}.weight"], h)
            value, tangents = h[..., :batch] + params[f"unmixing.{layer}.bias"], h[..., batch:]
            if layer < self.network.layers - 1:
                slope = 0.2 + 0.8 * torch.sigmoid(value)
                tangents = (tangents.unflatten(2, (d, batch)) * slope.unsqueeze(2)).flatten(2)
                value = smooth_leaky_relu(value)
            h = torch.cat([value, tangents], dim=2)
        h = h + torch.bmm(params["skip.weight"], first)
        return h[..., :batch].mT, h[..., batch:].unflatten(2, (d, batch)).permute(0, 3, 1, 2)


def inverse_columns(J: Float[Tensor, "*B d d"]) -> tuple[Float[Tensor, "*B d"], Float[Tensor, "*B"]]:
    """log ‖columns of J⁻¹‖ and log |det J|; in closed form for three dimensions, where a factorisation is slow."""
    if J.shape[-1] != 3:
        inverse = torch.linalg.inv(J)
        return inverse.norm(dim=-2).log(), torch.linalg.slogdet(J).logabsdet
    rows = J.unbind(-2)
    crossed = [torch.linalg.cross(rows[(k + 1) % 3], rows[(k + 2) % 3], dim=-1) for k in range(3)]
    log_det = (rows[0] * crossed[0]).sum(-1).abs().log()
    return torch.stack([c.norm(dim=-1).log() for c in crossed], dim=-1) - log_det.unsqueeze(-1), log_det


@dataclass(frozen=True, eq=False)
class FlowTerms:
    """log p(x) by the change of variables, and c_IMA of the inverse of the unmixing, at each row."""

    log_likelihood: Float[Tensor, "*B"]
    contrast: Float[Tensor, "*B"]

    def regularised(self, strength: Float[Tensor, "*s"] | float) -> Float[Tensor, "*B"]:
        """log p - λ c_IMA, as `ima_likelihood`."""
        return self.log_likelihood - strength * self.contrast


def flow_terms(u: Float[Tensor, "*B d"], J: Float[Tensor, "*B d d"], prior: Prior) -> FlowTerms:
    """Both terms of L_IMA from g(x) and its Jacobian.

    In u, log p = log p(u) + log |det J_g| and c_IMA = Σ log ‖columns of J_g⁻¹‖ + log |det J_g|; a bounded prior changes
    both coordinates and columns by factors per latent, which leave c_IMA unchanged.
    """
    columns, log_det = inverse_columns(J)
    log_prior = (prior.log_density(prior.to_support(u)) + prior.log_derivative(u)).sum(-1)
    return FlowTerms(log_prior + log_det, columns.sum(-1) + log_det)


@dataclass(frozen=True, eq=False)
class IMAFlow:
    """A trained unmixing of observations (N, d), which are centred and scaled first."""

    unmixing: Unmixing
    params: Params
    """With a member axis of length one."""
    prior: Prior
    centre: Float[Tensor, " d"]
    scale: Float[Tensor, ""]
    """One for all columns: others would change which columns of the decoder are orthogonal."""
    history: list[float]
    """The objective after every step."""

    def _unmix(self, x: Float[Tensor, "N d"]) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d d"]]:
        with torch.no_grad():
            u, J = self.unmixing(self.params, ((x - self.centre) / self.scale).unsqueeze(0))
        return u[0], J[0] / self.scale

    def encode(self, x: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
        """The latents z = g(x)."""
        return self.prior.to_support(self._unmix(x)[0])

    def terms(self, x: Float[Tensor, "N d"]) -> FlowTerms:
        """log p(x) and c_IMA at every row."""
        return flow_terms(*self._unmix(x), self.prior)

    def folded(self, x: Float[Tensor, "N d"]) -> float:
        """The share of rows at which the determinant has the rarer sign: 0 for an invertible map."""
        positive = float((torch.linalg.slogdet(self._unmix(x)[1]).sign > 0).double().mean())
        return min(positive, 1 - positive)


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
        validation.integer("steps", self.steps)
        validation.integer("batch", self.batch)
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
    drawn_steps = 100  # whose batches are drawn together

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
        if steps >= 1_000 and has_compiler():  # compiling takes as long as a few hundred steps that are not compiled
            step_ = compile_stacked(step_)
        moments = tuple({name: torch.zeros_like(value) for name, value in self.params.items()} for _ in range(2))
        with keep_freed_memory():
            for step in range(steps):
                if step % self.drawn_steps == 0:
                    drawn = self._draw()
                rate = self.settings.learning_rate * (1 + math.cos(math.pi * step / steps)) / 2
                scales = adam_scales(step + 1, rate, self.rows.device).to(self.rows)
                x = self.rows[self.data_sets, drawn[:, step % self.drawn_steps]]
                self.history.append(step_(self.params, moments, scales, x, self.strengths))
                if watch is not None and step + 1 in watch_at:
                    watch(step + 1, self.flows())
        return self.flows()

    def _draw(self) -> Tensor:
        """Rows of the next batches of every flow, (E, drawn_steps, batch)."""
        shape = self.drawn_steps, min(self.settings.batch, self.rows.shape[1])
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


def _clip(gradients: Mapping[str, Float[Tensor, "E ..."]], *, largest: float = 10.0) -> dict[str, Tensor]:
    """Gradients of every flow with a norm of at most `largest`; zeros where they are not finite.

    Where the determinant of a Jacobian passes zero, log |det J| has gradients of any size.
    """
    norm = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
    scale = torch.where(norm.isfinite(), (largest / norm).clamp(max=1.0), 0.0)
    clipped = {}
    for name, gradient in gradients.items():
        own = scale.reshape(-1, *(1 for _ in gradient.shape[1:]))
        clipped[name] = torch.where(own > 0, gradient * own, 0.0)
    return clipped
