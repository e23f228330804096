"""Flows trained on the IMA-regularised likelihood beside VAEs, on the same mixings (Reizinger et al. 2022, L_IMA).

The flows are the explicit counterpart of what a VAE does implicitly. The unmixing g(x) = A x + MLP(x) has as many
outputs as inputs, and its Jacobian is computed along with it: log p and c_IMA of its inverse are exact at every step,
and nothing has to be inverted. log |det J| keeps g locally invertible: the objective is -inf where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import metrics, theory
from vaescope.core import randomness, validation
from vaescope.core.errors import InputError
from vaescope.data.mixings import Mixing, Moebius
from vaescope.distributions import Normal, Prior
from vaescope.models import Member
from vaescope.models.mlp import MLP, smooth_leaky_relu
from vaescope.models.networks import Params
from vaescope.report import figures
from vaescope.training import MemberSpec, Progress
from vaescope.training.compilation import compile_stacked, has_compiler, keep_freed_memory
from vaescope.training.loop import EpochMetrics
from vaescope.training.step import adam_, adam_scales
from vaescope_papers.claims import ClaimSpec, ClaimSpecs, members_converged
from vaescope_papers.criteria import Bound, PairedDifference, Pairs, RankCorrelation, at_least, at_most
from vaescope_papers.embrace_the_gap import EXPERIMENTS, PAPER
from vaescope_papers.embrace_the_gap.moebius_linear_map import PRECISION, mixing_of_contrast
from vaescope_papers.embrace_the_gap.shared import BOX, DIM, MoebiusExperiment, strips_figure
from vaescope_papers.experiment import Context, ReportFigure, ReportTable
from vaescope_papers.results import Diverged, Result, grouped, paired_differences
from vaescope_papers.statistics import median
from vaescope_papers.trained import FactorData, TrainedSettings


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


VAE_METHOD, FLOW = "vae", "flow"
MIXINGS = {0.0: "Möbius", 1.0: "Möbius and linear map"}  # by c_IMA: in the IMA class, and outside it


@dataclass(frozen=True)
class ImaFlowSettings(TrainedSettings):
    """Training of the VAEs, as in moebius-linear-map, and of the flows."""

    strengths: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0, 10.0)
    """λ of the flows."""
    flow_steps: int = 12_000
    flow_batch: int = 256


@dataclass(frozen=True)
class FlowCell:
    method: str
    """vae or flow."""
    contrast: float
    """c_IMA of the mixing."""
    strength: float
    """λ; 1 for a VAE, by Theorem 1."""
    seed: int


@dataclass(frozen=True)
class Likelihood:
    """What only a flow has."""

    log_likelihood: float
    """Of the test part, in nats per observation."""
    below_truth: float
    """The exact log-likelihood minus that of the flow, a KL divergence: negative only if the map is not injective."""
    folded: float
    """Share of test points at which the determinant has the rarer sign; 0 for an invertible map."""
    late_gain: float
    """Rise of the objective from the fourth to the last fifth of training."""


@dataclass(frozen=True)
class FlowMeasurement:
    """What is measured of a VAE or a flow."""

    mcc: float
    r2: float
    ima_contrast: float
    """Of the decoder: that of the VAE, or the inverse of the flow."""
    mixing_contrast: float
    rows_seen: tuple[float, ...]
    """Training rows after which recovery was recorded, repetitions included."""
    mcc_curve: tuple[float, ...]
    likelihood: Likelihood | None = None

    @property
    def rows_to_recover(self) -> float:
        """Rows after which the MCC stays above 95 % of its final value."""
        low = [rows for rows, mcc in zip(self.rows_seen, self.mcc_curve, strict=True) if not mcc >= 0.95 * self.mcc]
        later = [rows for rows in self.rows_seen if not low or rows > low[-1]]
        return later[0] if later else float("nan")


FlowResult = Result[FlowCell, FlowMeasurement]
Results = Sequence[FlowResult]
Value = Callable[[FlowMeasurement], float]


# claims ---------------------------------------------------------------------------------------


def _members(results: Results, method: str, strength: float, contrast: float) -> list[FlowResult]:
    """The members of one method, λ and mixing."""
    wanted = method, strength, contrast
    return [r for r in results if (r.cell.method, r.cell.strength, r.cell.contrast) == wanted]


def mcc_lead(other: tuple[str, float]) -> Callable[[Results, object], list[float]]:
    """MCC of flows with λ = 1 minus that of another method and λ, for every seed of the Möbius mixing."""
    return lambda results, _: paired_differences(
        _members(results, FLOW, 1.0, 0.0), _members(results, *other, 0.0), lambda m: m.mcc, lambda c: c.seed
    )


def likelihood_cost(contrast: float) -> Callable[[Results, object], list[float]]:
    """Log-likelihood with λ = 0 minus that with λ = 1, for every seed whose two flows are invertible.

    The likelihood of a map that folds is no density and can exceed the true one.
    """

    def measure(results: Results, _: object) -> list[float]:
        invertible = [r for r in results if _of_likelihood(lambda k: k.folded)(r.measured) == 0]
        free, regularised = (_members(invertible, FLOW, strength, contrast) for strength in (0.0, 1.0))
        return paired_differences(free, regularised, _of_likelihood(lambda k: k.log_likelihood), lambda c: c.seed)

    return measure


def _of_likelihood(value: Callable[[Likelihood], float]) -> Value:
    """A value that only flows have; NaN for a VAE."""
    return lambda m: float("nan") if m.likelihood is None else value(m.likelihood)


def flows_of(results: Results) -> list[FlowResult]:
    return [r for r in results if r.cell.method == FLOW]


def shortfall(result: FlowResult) -> float:
    """How many nats the objective of a flow is below that of the true unmixing; NaN for a VAE.

    The optimum is at least as high, so that this is a lower bound on how far training is from it.
    """
    m = result.measured
    if m.likelihood is None:
        return math.nan
    return m.likelihood.below_truth + result.cell.strength * (m.ima_contrast - m.mixing_contrast)


def flows_converged(*strengths: float, contrast: float) -> Callable[[Results, object], str | None]:
    """A condition for claims about optima: four fifths of the flows with these λ are near the true unmixing or above.

    Their step size decays, so that a flat objective at the end says nothing.
    """
    near = members_converged(shortfall=shortfall)

    def condition(results: Results, settings: object) -> str | None:
        return near([r for s in strengths for r in _members(results, FLOW, s, contrast)], settings)

    return condition


def folded_note(results: Results, _: object) -> str:
    """How many flows are left out of claims about likelihoods."""
    known = sorted((r for r in results if r.measured.likelihood is not None), key=lambda r: r.cell.strength)
    counts = {
        strength: (sum(_of_likelihood(lambda k: k.folded)(r.measured) > 0 for r in own), len(own))
        for strength, own in grouped(known, lambda r: r.cell.strength).items()
    }
    listed = ", ".join(f"{count} of {size} with λ = {s:g}" for s, (count, size) in counts.items() if count)
    return f"Flows that fold somewhere have no density and are left out: {listed}." if listed else ""


def below_truth_note(results: Results, _: object) -> str:
    """Whether the objective or its optimisation keeps flows with λ = 1 from the sources."""
    own = [r.measured for r in _members(results, FLOW, 1.0, 0.0)]
    lost = [m.likelihood.below_truth + m.ima_contrast - m.mixing_contrast for m in own if m.likelihood is not None]
    if not lost:
        return ""
    below = f"{min(lost):.2f} to {max(lost):.2f} nats below that of the true unmixing"
    reason = ": training, not the objective, keeps them from the sources" if min(lost) > 0 else ""
    return f"The objective of the flows is {below}{reason}."


def strengths_and_contrasts(results: Results, _: object) -> Pairs:
    flows = flows_of(results)
    return Pairs(
        [r.cell.strength for r in flows],
        [r.measured.ima_contrast for r in flows],
        units=[(r.cell.contrast, r.cell.seed) for r in flows],
    )


def best_strength_note(results: Results, _: object) -> str:
    """At which λ the sources are recovered best."""
    parts = []
    for contrast, name in MIXINGS.items():
        groups = grouped([r for r in flows_of(results) if r.cell.contrast == contrast], lambda r: r.cell.strength)
        if groups:
            scores = {strength: median([r.measured.mcc for r in own]) for strength, own in groups.items()}
            best = max(scores, key=lambda strength: scores[strength])
            parts.append(f"{name}: λ = {best:g} with a median MCC of {scores[best]:.2f}")
    return f"Best recovery by a flow: {'; '.join(parts)}." if parts else ""


# table and figures ----------------------------------------------------------------------------


def label(cell: FlowCell) -> str:
    return "VAE, γ² = 1e5" if cell.method == VAE_METHOD else f"flow, λ = {cell.strength:g}"


def methods_table(results: Results) -> ReportTable:
    rows = []
    for (contrast, name), own in grouped(results, lambda r: (r.cell.contrast, label(r.cell))).items():
        measured = [r.measured for r in own]
        known = [m.likelihood for m in measured if m.likelihood is not None]
        rows.append(
            {
                "mixing": MIXINGS[contrast],
                "method": name,
                "members": len(measured),
                "MCC": median([m.mcc for m in measured]),
                "linear R²": median([m.r2 for m in measured]),
                "c_IMA learned": median([m.ima_contrast for m in measured]),
                "rows to recover": median([m.rows_to_recover for m in measured]),
                "nats below the true log p": median([k.below_truth for k in known]) if known else "–",
                "folded": max(k.folded for k in known) if known else "–",
            }
        )
    caption = "Medians over seeds; rows until the MCC stays above 95 % of its final value, repetitions included"
    return ReportTable(caption, rows)


def strengths_figure(results: Results) -> ReportFigure:
    panels: tuple[tuple[str, str, str, Value], ...] = (
        ("Recovery of the sources", "MCC", "", lambda m: m.mcc),
        ("IMA contrast of the decoder", "nats", "y", lambda m: m.ima_contrast),
        ("Distance from the true density", "nats below log p", "", _of_likelihood(lambda k: k.below_truth)),
    )
    ordered = sorted(results, key=lambda r: (r.cell.method == VAE_METHOD, r.cell.strength))
    methods = {(r.cell.method, r.cell.strength): f"{r.cell.strength:g}" for r in ordered}
    groups = {
        mixing: {
            "VAE" if method == VAE_METHOD else strength: [
                r.measured for r in _members(results, method, value, contrast)
            ]
            for (method, value), strength in methods.items()
        }
        for contrast, mixing in MIXINGS.items()
    }
    drawn = strips_figure(panels, groups, x="λ of a flow, and the VAE")
    caption = (
        "Every dot is a seed, every bar a median. Left: recovery of the sources. Middle: contrast of the learned "
        "decoder. Right: KL divergence of the density of a flow from the true one; below zero the map folds and has no "
        "density. A VAE has no exact density."
    )
    return ReportFigure("ima_flow", drawn, caption)


def speed_figure(results: Results) -> ReportFigure:
    drawn, axes = figures.row_of_panels(len(MIXINGS), width=5.2)
    for axis, (contrast, mixing) in zip(axes, MIXINGS.items(), strict=True):
        groups = grouped([r for r in results if r.cell.contrast == contrast], lambda r: label(r.cell))
        for name, own in groups.items():
            rows = own[0].measured.rows_seen
            curves = [r.measured.mcc_curve for r in own if r.measured.rows_seen == rows]
            if rows:
                axis.plot(rows, np.median(np.array(curves), axis=0), linewidth=1.5, label=name)
        figures.format_axis(
            axis, title=mixing, x="training rows seen", y="MCC, median over seeds", log="x", legend=bool(groups)
        )
        axis.set_ylim(0, 1.02)
    return ReportFigure(
        "ima_flow_speed", drawn, "Recovery over training. Rows are counted with repetitions; a VAE raises γ² meanwhile."
    )


# experiment -----------------------------------------------------------------------------------


def late_gain(history: Sequence[float]) -> float:
    """How much the objective rose from the fourth to the last fifth of training, in nats."""
    fifth = max(1, len(history) // 5)
    return float(np.mean(history[-fifth:]) - np.mean(history[-2 * fifth : -fifth] or history[:1]))


def _watched(data: FactorData) -> tuple[torch.Tensor, torch.Tensor]:
    """The test rows by which recovery is recorded during training, and their sources."""
    return data.observations.test[:1000], data.test_factors[:1000]


def _mcc(codes: torch.Tensor, sources: torch.Tensor) -> float:
    return metrics.mcc(codes, sources).score if bool(codes.isfinite().all()) else float("nan")


class ImaFlowExperiment(MoebiusExperiment[ImaFlowSettings, FlowCell, FlowMeasurement]):
    info = EXPERIMENTS["ima-flow"]
    about = (
        "A near-deterministic VAE maximises log p(x) − c_IMA implicitly. Here a flow maximises log p(x) − λ c_IMA "
        "explicitly: an unmixing network whose Jacobian, and with it the likelihood and the contrast of its inverse, "
        "are exact at every step. Both are trained on the same draws of a Möbius transform, which is in the IMA class, "
        "and of a Möbius transform with a linear map behind it, together with a c_IMA of one nat. Does explicit "
        "regularisation recover what the VAE recovers, how fast, and at which λ? λ = 0 is maximum likelihood; λ = 1 is "
        "what Theorem 1 says the VAE does."
    )
    quick = ImaFlowSettings(
        seeds=2,
        samples=12_000,
        epochs=120,
        patience=120,
        strengths=(0.0, 0.1, 1.0, 10.0),
        flow_steps=3_000,
        flow_batch=128,
    ).annealed(3e-3, hold=1_500, warmup=6_000)
    laptop = ImaFlowSettings(seeds=5, samples=30_000, epochs=100, patience=100).annealed(
        3e-3, hold=4_000, warmup=16_000
    )
    paper = ImaFlowSettings(seeds=20, samples=60_000, epochs=100, patience=30, flow_steps=30_000)
    cell_type = FlowCell
    measured_type = FlowMeasurement
    claim_specs: ClaimSpecs[FlowResult, object] = (
        ClaimSpec(
            sentence="The sources of a mixing in the IMA class are recovered better with λ = 1 than by maximum "
            "likelihood.",
            source=f"{PAPER}, Theorem 1 and L_IMA; beyond the paper",
            measure=mcc_lead((FLOW, 0.0)),
            criterion=PairedDifference("MCC", "λ = 1", "λ = 0", 0.05, statistic="mean", over="mixings"),
            note=best_strength_note,
            requires=(flows_converged(0.0, 1.0, contrast=0.0),),
            robust_over=(0.0, 0.05, 0.1),
        ),
        ClaimSpec(
            sentence="At λ = 1 explicit regularisation recovers what the VAE recovers.",
            source=f"{PAPER}, Theorem 1 and L_IMA; beyond the paper",
            measure=mcc_lead((VAE_METHOD, 1.0)),
            criterion=Bound("MCC of the flow minus that of the VAE", at_least(-0.05), "mean", over="mixings"),
            note=below_truth_note,
            requires=(flows_converged(1.0, contrast=0.0),),
            robust_over=(-0.1, -0.05, 0.0),
        ),
        ClaimSpec(
            sentence="The larger λ, the more nearly orthogonal are the columns of the trained decoder.",
            source=f"{PAPER}, Theorem 1 and L_IMA; beyond the paper",
            measure=strengths_and_contrasts,
            criterion=RankCorrelation(sign=-1, over="mixings", within=True),
        ),
        ClaimSpec(
            sentence="For a mixing in the IMA class regularisation with λ = 1 costs no likelihood.",
            source=f"{PAPER}, Theorem 1 and L_IMA; beyond the paper: the truth has c_IMA = 0",
            measure=likelihood_cost(0.0),
            criterion=Bound(
                "nats of log-likelihood below λ = 0", at_most(0.1), "mean", over="mixings with invertible flows"
            ),
            note=folded_note,
            requires=(flows_converged(0.0, 1.0, contrast=0.0),),
            robust_over=(0.05, 0.1, 0.2),
        ),
        ClaimSpec(
            sentence="For a mixing outside the IMA class it does.",
            source=f"{PAPER}, Theorem 1 and L_IMA; beyond the paper",
            measure=likelihood_cost(1.0),
            criterion=PairedDifference("log-likelihood of invertible flows", "λ = 0", "λ = 1", 0.02, over="mixings"),
            note=folded_note,
            requires=(flows_converged(0.0, 1.0, contrast=1.0),),
            robust_over=(0.0, 0.02, 0.05),
        ),
    )

    def cells(self, settings: ImaFlowSettings) -> list[FlowCell]:
        seeds = range(settings.seeds)
        members = [FlowCell(VAE_METHOD, contrast, 1.0, seed) for contrast in MIXINGS for seed in seeds]
        flows = [
            FlowCell(FLOW, contrast, strength, seed)
            for contrast in MIXINGS
            for strength in settings.strengths
            for seed in seeds
        ]
        return members + flows

    def stack_key(self, cell: FlowCell) -> float:
        return cell.contrast

    def data_key(self, cell: FlowCell) -> tuple[float, int]:
        return cell.contrast, cell.seed

    def member(self, cell: FlowCell, data_index: int, settings: ImaFlowSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=PRECISION, data=data_index)

    def mixing(self, cell: FlowCell) -> Mixing:
        if cell.contrast == 0:
            return Moebius(DIM, seed=cell.seed, low=BOX.low, high=BOX.high)
        return mixing_of_contrast(cell.contrast, cell.seed)[0]

    def solve(
        self, cells: Sequence[FlowCell], settings: ImaFlowSettings, context: Context
    ) -> Iterator[Sequence[FlowResult | Diverged[FlowCell]]]:
        yield from super().solve([cell for cell in cells if cell.method == VAE_METHOD], settings, context)
        flows = [cell for cell in cells if cell.method == FLOW]
        for contrast in dict.fromkeys(cell.contrast for cell in flows):
            own = [cell for cell in flows if cell.contrast == contrast]
            context.progress.message(f"Training {len(own)} flows for {settings.flow_steps} steps.")
            yield self._flows(own, settings, context.progress)

    def epoch_metrics(self, data: Mapping[int, FactorData], settings: ImaFlowSettings) -> EpochMetrics:
        """Recovery after every epoch; NaN for a member that has just diverged."""

        def measure(epoch: int, member: Member) -> dict[str, float]:
            x, z = _watched(data[member.seed])
            return {"mcc": _mcc(member.encode(x)[0], z)}

        return measure

    def measure(self, cell: FlowCell, member: Member, data: FactorData, settings: ImaFlowSettings) -> FlowMeasurement:
        x, z = data.observations.test, data.test_factors
        mean, _ = member.encode(x)
        curve = tuple(member.history.get("mcc", ()))
        rows = len(data.observations.train)
        return FlowMeasurement(
            mcc=_mcc(mean, z),
            r2=metrics.linear_r2(mean, z).score,
            ima_contrast=float(theory.ima_contrast(member.decode, mean).mean()),
            mixing_contrast=float(theory.ima_contrast(self.mixing(cell), z).mean()),
            rows_seen=tuple(float(rows * (epoch + 1)) for epoch in range(len(curve))),
            mcc_curve=curve,
        )

    def _flows(self, cells: Sequence[FlowCell], settings: ImaFlowSettings, progress: Progress) -> list[FlowResult]:
        seeds = list(dict.fromkeys(cell.seed for cell in cells))
        data = {cell.seed: self.data(cell, settings) for cell in cells}
        curves: list[list[float]] = [[] for _ in cells]
        # recovery is recorded 20 times, evenly over training
        steps = [int(step) for step in np.linspace(0, settings.flow_steps, min(20, settings.flow_steps) + 1)[1:]]

        def watch(step: int, flows: Sequence[IMAFlow]) -> None:
            for cell, flow, curve in zip(cells, flows, curves, strict=True):
                x, z = _watched(data[cell.seed])
                curve.append(_mcc(flow.encode(x.float()), z))
            progress.epoch(steps.index(step) + 1, training=len(cells), finished=0, diverged=0, elbo=math.nan)

        progress.begin(len(cells), len(steps))
        flows = fit_ima_flows(
            torch.stack([data[seed].observations.train for seed in seeds]).float(),
            [FlowSpec(cell.seed, cell.strength, seeds.index(cell.seed)) for cell in cells],
            prior=BOX,
            settings=FlowSettings(settings.flow_steps, settings.flow_batch),
            watch=watch,
            watch_at=steps,
        )
        rows_seen = tuple(float(step * settings.flow_batch) for step in steps)
        return [
            Result(cell, self._measure_flow(cell, flow, data[cell.seed], rows_seen, tuple(curve)))
            for cell, flow, curve in zip(cells, flows, curves, strict=True)
        ]

    def _measure_flow(
        self, cell: FlowCell, flow: IMAFlow, data: FactorData, rows_seen: tuple[float, ...], curve: tuple[float, ...]
    ) -> FlowMeasurement:
        x, z = data.observations.test.float(), data.test_factors
        codes, terms, mixing = flow.encode(x), flow.terms(x), self.mixing(cell)
        exact = theory.log_marginal(mixing, data.observations.test, precision=1.0, prior=BOX, method="flow").value
        return FlowMeasurement(
            mcc=_mcc(codes, z),
            r2=metrics.linear_r2(codes, z).score,
            ima_contrast=float(terms.contrast.mean()),
            mixing_contrast=float(theory.ima_contrast(mixing, z).mean()),
            rows_seen=rows_seen,
            mcc_curve=curve,
            likelihood=Likelihood(
                log_likelihood=float(terms.log_likelihood.mean()),
                below_truth=float(exact.mean() - terms.log_likelihood.mean()),
                folded=flow.folded(x),
                late_gain=late_gain(flow.history),
            ),
        )

    def figures(self, results: Results, settings: ImaFlowSettings) -> list[ReportFigure]:
        return [strengths_figure(results), speed_figure(results)]

    def tables(self, results: Results, settings: ImaFlowSettings) -> list[ReportTable]:
        return [methods_table(results)]


EXPERIMENT = ImaFlowExperiment()
