"""The expected curvature of the likelihood at the codes of a sample, with latents in units of their prior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.analysis.encoding import CODES, EncodedSample, declared_beta, differentiate, output_weights
from vaescope.analysis.models import RepairedModel
from vaescope.core import randomness
from vaescope.core.calls import call_user_function
from vaescope.core.errors import InputError
from vaescope.distributions import Laplace, Normal, Prior, Uniform
from vaescope.inference.geometry import cost_curvature, plane_costs
from vaescope.metrics.correlation import best_matching, held_out_r2, spearman_correlations
from vaescope.metrics.inputs import CodesAndFactors
from vaescope.protocol import LogLikelihood

DRAWS = 4  # of z per sample, mirrored


@dataclass(frozen=True, eq=False)
class Curvature:
    """Λ = -E_q ∇² log p(x|z) / β at each code, with latents in standard deviations of their prior."""

    latents: list[int]
    matrices: Float[Tensor, "P u u"]
    prior_variance: Float[Tensor, "P u"]
    """At each code: 1, unless the prior depends on an auxiliary input."""
    column_norms: Float[Tensor, "P u"]
    """How far the output moves per standard deviation of each latent, in units of the noise."""


def measure_curvature(sample: EncodedSample, used: list[int]) -> Curvature:
    """Curvature of the latents in use, at random codes.

    Gaussian and Bernoulli likelihoods: the Gauss-Newton matrix γ² JᵀWJ, averaged over draws of z from the posterior; an
    unknown precision is that which the widths of the posteriors imply. Other likelihoods: second derivatives.
    """
    codes, own = sample.random_subset(CODES), sample.model.log_likelihood
    codes, matrices = _gauss_newton(codes, used) if own is None else _second_derivatives(codes, used, own)
    variance = codes.prior_variance[:, used].double().cpu()
    scale = variance.mean(0).sqrt()
    found = matrices / declared_beta(sample.model) * scale[:, None] * scale
    return Curvature(used, found, variance / scale.square(), found.diagonal(dim1=1, dim2=2).sqrt())


def _at_rows(codes: EncodedSample, rows: np.ndarray) -> EncodedSample:
    """The samples of these rows of x, in this order."""
    place = {row: index for index, row in enumerate(codes.rows.tolist())}
    index = torch.tensor([place[row] for row in rows.tolist()])
    values = (codes.x, codes.mean, codes.variance, codes.prior_mean, codes.prior_variance)
    return EncodedSample(codes.model, rows, *(value[index] for value in values))


def _draws(codes: EncodedSample) -> list[Float[Tensor, "P d"]]:
    """Draws from the posteriors, each with its mirror image."""
    generator = randomness.generator(0, "identifiability")
    found = []
    for _ in range(DRAWS // 2):
        noise = torch.randn(codes.mean.shape, generator=generator, dtype=torch.float64).to(codes.mean)
        found += [codes.mean + sign * codes.variance.sqrt() * noise for sign in (1, -1)]
    return found


def _gauss_newton(codes: EncodedSample, used: list[int]) -> tuple[EncodedSample, Float[Tensor, "P u u"]]:
    grams = []
    for z in _draws(codes):
        found = differentiate(replace(codes, mean=z), used)
        count = len(found.columns)
        J = found.columns * output_weights(codes.model.likelihood, found.sample.decoded[:count].double())
        grams.append(J.mT @ J)
    gram = torch.stack(grams).mean(0)
    codes = _at_rows(codes, found.sample.rows[:count])
    return codes, _precision(codes, used, gram) * gram


def _precision(codes: EncodedSample, used: list[int], gram: Float[Tensor, "P u u"]) -> float:
    """γ²: declared, 1 under a Bernoulli likelihood, or what Eq. 12 implies from the widths of the posteriors."""
    if codes.model.likelihood == "bernoulli":
        return 1.0
    if codes.model.precision is not None:
        return codes.model.precision
    added = 1 / codes.variance[:, used].double() - 1 / codes.prior_variance[:, used].double()
    ratios = added / gram.diagonal(dim1=1, dim2=2)
    reliable = (added * codes.prior_variance[:, used].double() > 1) & ratios.isfinite()
    if not bool(reliable.any()):
        raise InputError("the precision of the decoder is not known, and posteriors are too wide to imply it.")
    return float(ratios[reliable].median()) * declared_beta(codes.model)


def _second_derivatives(
    codes: EncodedSample, used: list[int], log_p: LogLikelihood
) -> tuple[EncodedSample, Float[Tensor, "P u u"]]:
    total = torch.zeros(len(codes), len(used), len(used), dtype=torch.float64)
    for z in _draws(codes):
        with torch.enable_grad():
            point = z.detach().clone().requires_grad_()
            value = call_user_function("log_likelihood", log_p, codes.x.flatten(1), point)
            if not value.requires_grad:
                raise InputError("log_likelihood detaches its output from z.")
            (slope,) = torch.autograd.grad(value.sum(), point, create_graph=True)
            for row, k in enumerate(used):
                (second,) = torch.autograd.grad(slope[:, k].sum(), point, retain_graph=True, allow_unused=True)
                total[:, row] -= 0 if second is None else second[:, used].detach().double().cpu() / DRAWS
    return codes, _nearest_positive((total + total.mT) / 2)


def _nearest_positive(matrices: Float[Tensor, "P u u"]) -> Float[Tensor, "P u u"]:
    values, vectors = torch.linalg.eigh(matrices.nan_to_num(0.0, 0.0, 0.0))
    return (vectors * values.clamp(min=0).unsqueeze(1)) @ vectors.mT


SCALES = torch.linspace(-1.0, 1.0, 201, dtype=torch.float64)  # log of the scales that are tried


def own_prior(sample: EncodedSample) -> Prior:
    """The prior of the model itself, if it was replaced by a normal one."""
    model = sample.model
    if isinstance(model, RepairedModel) and model.normal_prior is not None:
        return model.model.prior
    return sample.prior


def prior_costs(prior: Prior, codes: Float[Tensor, "N 2"], angles: Float[Tensor, " A"]) -> Float[Tensor, " A"]:
    r"""ELBO lost through the prior by rotating two latents, in nats per sample.

    The decoder can undo any rotation, shift and scale of the latents, so each rotated latent is shifted and scaled to
    suit the prior best: h(θ) = Σ_k min_D -E[log p₀(D y_k) + log D]. A normal prior is invariant to rotations.

    Args:
        prior: of every latent.
        codes: posterior means of the two latents.
        angles: in radians.

    >>> corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> prior_costs(Uniform(0.0, 1.0), corners, torch.tensor([0.0, torch.pi / 4])).exp().round(decimals=3)
    tensor([1., 2.], dtype=torch.float64)
    """
    if isinstance(prior, Normal):
        return torch.zeros(len(angles), dtype=torch.float64)
    cos, sin = angles.double().cos()[:, None], angles.double().sin()[:, None]
    first, second = codes.double().cpu().unbind(1)
    misfit = _misfit(prior, cos * first + sin * second) + _misfit(prior, cos * second - sin * first)
    return misfit - _misfit(prior, first[None]) - _misfit(prior, second[None])


def _misfit(prior: Prior, y: Float[Tensor, "A N"]) -> Float[Tensor, " A"]:
    """min over shifts and scales of -E[log p₀ + log scale], up to a constant."""
    if isinstance(prior, Uniform):
        return (y.amax(1) - y.amin(1)).log()
    if isinstance(prior, Laplace):
        return (y - y.median(1, keepdim=True).values).abs().mean(1).log()
    mean, variance = (float(np.mean(np.asarray(value))) for value in prior.mean_and_variance())
    deviation = y.std(1, correction=0, keepdim=True)
    unit = (y - y.mean(1, keepdim=True)) / deviation
    fits = [prior.log_density(mean + variance**0.5 * scale.exp() * unit).mean(1) + scale for scale in SCALES]
    best: Tensor = torch.stack(fits).max(0).values
    return torch.where(best.isfinite(), deviation.squeeze(1).log() - best, torch.full_like(best, 1e3))


TOLERANCE = 0.01  # nats per sample up to which a rotation is free
RIGHT = math.acos(0.95) + 1e-6  # angle between axes whose correlation is 0.95
ANGLES = torch.linspace(-torch.pi / 4, torch.pi / 4, 61, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class PlaneCosts:
    """Matrices (u, u) over pairs of latents in use; NaN on the diagonal."""

    latents: list[int]
    barrier: np.ndarray
    """ELBO lost between the best and the worst rotation of the two latents, in nats per sample."""
    stderr: np.ndarray
    curvature: np.ndarray
    """Second derivative of the cost in the angle, in nats per squared radian."""
    angle: np.ndarray
    """Rotation that would be best, in degrees; 0 if the axes are where the ELBO wants them."""
    gain: np.ndarray
    """ELBO gained by that rotation."""
    norm_ratio: np.ndarray
    """Typical ratio of the shorter to the longer Jacobian column, 1 if equal at every code."""
    held: np.ndarray
    """Probability that the axes are within 18° of the right ones, a correlation of 0.95: see `held_probability`."""


def measure_planes(sample: EncodedSample, used: list[int], tolerance: float = TOLERANCE) -> PlaneCosts:
    """Costs of all pairs of latents in use."""
    found, prior, count = measure_curvature(sample, used), own_prior(sample), len(used)
    matrices = np.full((7, count, count), np.nan)
    for i, j in combinations(range(count), 2):
        fixed = prior_costs(prior, sample.mean[:, [used[i], used[j]]], ANGLES)
        matrices[:, i, j] = matrices[:, j, i] = _plane(found, (i, j), fixed, tolerance)
    return PlaneCosts(found.latents, *matrices)


def free_planes(latents: list[int]) -> PlaneCosts:
    """Costs of a posterior family that every rotation leaves unchanged: zero."""
    zero = np.zeros((len(latents), len(latents)))
    held = np.full_like(zero, held_probability(torch.zeros_like(ANGLES)))
    return PlaneCosts(latents, zero, zero, zero, zero, zero, np.full_like(zero, np.nan), held)


def held_probability(costs: Float[Tensor, " A"], tolerance: float = TOLERANCE) -> float:
    """Probability that an axis is within 18° of the right one, if rotations are as likely as their costs allow.

    An angle θ has the weight exp(-cost(θ) / tolerance). It is near 1 if every other angle costs much more than the
    tolerance, 0.4 if all angles of a plane cost the same, and near 0 if the ELBO prefers another angle.

    Args:
        costs: nats per sample at each of `ANGLES`.
        tolerance: nats per sample that training does not resolve.

    >>> round(held_probability(torch.zeros(61)), 2), round(held_probability(10 * ANGLES**2), 2)
    (0.41, 1.0)
    """
    weights = torch.softmax(-costs.double() / tolerance, 0)
    return float(weights[ANGLES.abs() <= RIGHT].sum())


def _plane(found: Curvature, plane: tuple[int, int], fixed: Float[Tensor, " A"], tolerance: float) -> tuple[float, ...]:
    costs = plane_costs(found.matrices, found.prior_variance, plane, ANGLES) + fixed[:, None]
    means = costs.mean(1)
    low, high = int(means.argmin()), int(means.argmax())
    gain = -float(means[low])
    if gain < 1e-9:  # rounding
        low, gain = len(ANGLES) // 2, 0.0
    spread = costs[high] - costs[low]
    norms = found.column_norms[:, list(plane)].clamp(min=1e-12).log()
    return (
        float(spread.mean()),
        float(spread.std() / len(spread) ** 0.5) if len(spread) > 1 else np.nan,
        float(cost_curvature(found.matrices, plane).mean()),
        float(torch.rad2deg(ANGLES[low])),
        gain,
        float((-(norms[:, 0] - norms[:, 1]).abs()).mean().exp()),
        held_probability(means, tolerance),
    )


RESAMPLES = 50
SAME = 0.95  # rank correlation of latents that are the same
STEEPNESS = (
    8  # with which disagreement lowers the score; chosen on development mixings of benchmarks/identifiability.py
)


@dataclass(frozen=True, eq=False)
class SeedAgreement:
    """Of each latent in use of the first model with the other models, (M, u): one row per other model."""

    axis: np.ndarray
    """Rank correlation with its match in the other model."""
    subspace: np.ndarray
    """Share of its variance that is a linear function of the other model's latents, held out."""
    up_to_rotation: np.ndarray
    """Correlation with the best linear function of the matches of all latents that it can be rotated into freely. For
    a latent that cannot be rotated freely it is `axis`."""
    interval: np.ndarray
    """(2, u): 95 % interval of the median of `axis` over models, from resampled models and samples."""

    @property
    def axis_median(self) -> np.ndarray:
        return np.asarray(np.median(self.axis, axis=0))

    @property
    def same(self) -> np.ndarray:
        """(u,) whether at least half of the other models have the latent: a rank correlation of at least 0.95."""
        return np.asarray((self.axis >= SAME).mean(0) >= 0.5)

    @property
    def credibility(self) -> np.ndarray:
        """(u,) 1 if most other models have the latent, up to free rotations; less the larger the angle between them.

        It is min(1, (18° / θ)⁸), where the cosine of θ is the median of `up_to_rotation` and that of 18° is 0.95. The
        exponent was chosen on mixings with known sources. Disagreement about a rotation that costs nothing says nothing
        about the rest of the model, and what a free rotation means for a latent is already in the cost of rotations.
        """
        angle = np.arccos(np.median(self.up_to_rotation, axis=0).clip(0.0, SAME))
        return np.asarray((np.arccos(SAME) / angle) ** STEEPNESS)

    @property
    def subspace_median(self) -> np.ndarray:
        return np.asarray(np.median(self.subspace, axis=0))


def seed_agreement(codes: np.ndarray, others: Sequence[np.ndarray], free: np.ndarray | None = None) -> SeedAgreement:
    """Compare one model with others.

    Args:
        codes: (N, u) latents in use of the first model.
        others: (N, u) latents in use of every other model, on the same samples.
        free: (u,) a label per latent, the same for latents that can be rotated into each other at no cost; by default
            no rotation is free.
    """
    axis = np.array([_axis(codes, other) for other in others])
    subspace = np.array([_subspace(codes, other) for other in others])
    labels = np.arange(codes.shape[1]) if free is None else free
    rotated = np.array([_up_to_rotation(codes, other, labels) for other in others])
    return SeedAgreement(axis, subspace, rotated, _interval(codes, others))


def _axis(codes: np.ndarray, other: np.ndarray) -> np.ndarray:
    if not other.shape[1]:
        return np.zeros(codes.shape[1])
    return best_matching(spearman_correlations(other, codes))[0]


def _up_to_rotation(codes: np.ndarray, other: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Correlation (u,) of every latent with a linear function of the matches of its free latents."""
    if not other.shape[1]:
        return np.zeros(codes.shape[1])
    found, match = best_matching(spearman_correlations(other, codes))
    for label in np.unique(free):
        group = np.flatnonzero(free == label)
        matched = match[group][match[group] >= 0]
        if len(group) > 1 and len(matched):
            found[group] = _multiple_correlation(other[:, matched], codes[:, group])
    return found


def _multiple_correlation(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Largest correlation of each target with a linear function of the inputs."""
    inputs, targets = inputs - inputs.mean(0), targets - targets.mean(0)
    fitted = inputs @ np.linalg.lstsq(inputs, targets, rcond=None)[0]
    return np.asarray(np.sqrt(np.square(fitted).sum(0) / np.square(targets).sum(0).clip(1e-300)).clip(0.0, 1.0))


def _subspace(codes: np.ndarray, other: np.ndarray) -> np.ndarray:
    if not other.shape[1]:
        return np.zeros(codes.shape[1])
    first, second = CodesAndFactors(other, codes, (False,) * codes.shape[1]).halves
    return ((held_out_r2(first, second) + held_out_r2(second, first)) / 2).clip(0.0, 1.0)


def _interval(codes: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(RESAMPLES):
        rows = rng.integers(len(codes), size=min(500, len(codes)))
        chosen = rng.integers(len(others), size=len(others))
        values = {m: _axis(codes[rows], others[m][rows]) for m in set(chosen.tolist())}
        found.append(np.median([values[m] for m in chosen.tolist()], axis=0))
    return np.quantile(found, (0.025, 0.975), axis=0)
