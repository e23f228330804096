"""Which latents mean something on their own: what rotations cost in ELBO, and whether other models have the latents.

The cost of a rotation follows from the expected curvature of the likelihood at the codes of a sample, with latents in
units of their prior. A pair of latents that rotates at no cost could have come out rotated by any angle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from vaescope.analysis.agreement import SeedAgreement, seed_agreement
from vaescope.analysis.encoding import EncodedSample, declared_beta, differentiate, gauss_newton
from vaescope.analysis.geometry import implied_precision
from vaescope.analysis.models import RepairedModel
from vaescope.core import randomness
from vaescope.core.calls import call_user_function
from vaescope.core.errors import InputError, first_line
from vaescope.distributions import Laplace, Normal, Prior, Uniform
from vaescope.inference.derivatives import hessian
from vaescope.inference.geometry import cost_curvature, plane_costs
from vaescope.metrics.correlation import spearman_correlations
from vaescope.report.wording import enumerated, interval, span

ANGLES = torch.linspace(-torch.pi / 4, torch.pi / 4, 61, dtype=torch.float64)  # of rotations: costs have period π/2


@dataclass(frozen=True)
class Thresholds:
    """What decides between `axis`, `subspace` and `none`."""

    tolerance: float = 0.01  # nats per sample up to which a rotation is free: what training does not resolve
    same_subspace: float = 0.8  # share of variance that is a linear function of the other model's latents: convention
    mixed: float = 0.3  # correlation above which a latent of another model contains a latent: convention
    isotropic: float = 1e-4  # relative difference between the variances of isotropic posteriors: rounding of float32
    equal_norms: float = 0.9  # ratio of column norms that counts as equal in words
    rotated: float = 10.0  # degrees away from the best axes that are worth a word


THRESHOLDS = Thresholds()


# curvature --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Curvature:
    """Λ = -E_q ∇² log p(x|z) / β at each code, with latents in standard deviations of their prior."""

    matrices: Float[Tensor, "P u u"]
    prior_variance: Float[Tensor, "P u"]
    """At each code: 1, unless the prior depends on an auxiliary input."""
    column_norms: Float[Tensor, "P u"]
    """How far the output moves per standard deviation of each latent, in units of the noise."""


def measure_curvature(sample: EncodedSample, used: list[int], *, pairs: int = 2) -> Curvature:
    """Curvature of the latents in use, at random codes, averaged over pairs of mirrored draws from the posterior.

    Gaussian and Bernoulli likelihoods: the Gauss-Newton matrix γ² JᵀWJ; an unknown precision is that which the widths
    of the posteriors imply. Other likelihoods: second derivatives.
    """
    codes, own, generator = (
        sample.random_subset(128),
        sample.model.log_likelihood,
        randomness.generator(0, "identifiability"),
    )
    draws = []
    for _ in range(pairs):
        noise = torch.randn(codes.mean.shape, generator=generator, dtype=torch.float64).to(codes.mean)
        draws += [codes.mean + sign * codes.variance.sqrt() * noise for sign in (1, -1)]
    if own is None:
        grams = []
        for z in draws:
            found = differentiate(replace(codes, mean=z), used)
            count = len(found.columns)
            grams.append(gauss_newton(found.columns, codes.model.likelihood, found.sample.decoded[:count].double()))
        gram = torch.stack(grams).mean(0)
        # derivatives are at some of the codes, in an order of their own
        place = {row: index for index, row in enumerate(codes.rows.tolist())}
        index = torch.tensor([place[row] for row in found.sample.rows[:count].tolist()])
        variance, prior_variance = codes.variance[index], codes.prior_variance[index]
        matrices = _precision(codes, variance[:, used].double(), prior_variance[:, used].double(), gram) * gram
    else:
        prior_variance, x = codes.prior_variance, codes.x.flatten(1)

        def log_likelihood(point: Tensor) -> Tensor:
            return call_user_function("log_likelihood", own, x, point)

        second = [hessian(log_likelihood, z, used)[2][:, :, used] for z in draws]
        total = -torch.stack([part.double().cpu() for part in second]).mean(0)
        values, vectors = torch.linalg.eigh(((total + total.mT) / 2).nan_to_num(0.0, 0.0, 0.0))
        matrices = (vectors * values.clamp(min=0).unsqueeze(1)) @ vectors.mT
    variance = prior_variance[:, used].double().cpu()
    scale = variance.mean(0).sqrt()
    found_matrices = matrices / declared_beta(sample.model) * scale[:, None] * scale
    return Curvature(found_matrices, variance / scale.square(), found_matrices.diagonal(dim1=1, dim2=2).sqrt())


def _precision(
    codes: EncodedSample, variance: Float[Tensor, "P u"], prior_variance: Float[Tensor, "P u"], gram: Tensor
) -> float:
    """γ²: declared, 1 under a Bernoulli likelihood, or what Eq. 12 implies from the widths of the posteriors."""
    if codes.model.likelihood == "bernoulli":
        return 1.0
    if codes.model.precision is not None:
        return codes.model.precision
    implied = implied_precision(variance, prior_variance, gram.diagonal(dim1=1, dim2=2))
    if implied is None:
        raise InputError("the precision of the decoder is not known, and posteriors are too wide to imply it.")
    return implied * declared_beta(codes.model)


# costs of rotations -----------------------------------------------------------------------------


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
    log_scales = torch.linspace(-1.0, 1.0, 201, dtype=torch.float64)
    fits = [prior.log_density(mean + variance**0.5 * scale.exp() * unit).mean(1) + scale for scale in log_scales]
    best: Tensor = torch.stack(fits).max(0).values
    return torch.where(best.isfinite(), deviation.squeeze(1).log() - best, torch.full_like(best, 1e3))


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

    def undecided(self, tolerance: float) -> np.ndarray:
        """(u, u) whether the axes of a plane are undecided."""
        return np.asarray((self.barrier <= tolerance) | (self.held < 0.5))


def measure_planes(sample: EncodedSample, used: list[int], tolerance: float = THRESHOLDS.tolerance) -> PlaneCosts:
    """Costs of all pairs of latents in use."""
    found, model = measure_curvature(sample, used), sample.model
    # the prior of the model itself, if it was replaced by a normal one
    prior: Prior = sample.prior
    if isinstance(model, RepairedModel) and model.normal_prior is not None:
        prior = model.model.prior
    matrices = np.full((7, len(used), len(used)), np.nan)
    for i, j in combinations(range(len(used)), 2):
        fixed = prior_costs(prior, sample.mean[:, [used[i], used[j]]], ANGLES)
        matrices[:, i, j] = matrices[:, j, i] = _plane(found, (i, j), fixed, tolerance)
    return PlaneCosts(used, *matrices)


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


def free_planes(latents: list[int]) -> PlaneCosts:
    """Costs of a posterior family that every rotation leaves unchanged: zero."""
    zero = np.zeros((len(latents), len(latents)))
    held = np.full_like(zero, held_probability(torch.zeros_like(ANGLES)))
    return PlaneCosts(latents, zero, zero, zero, zero, zero, np.full_like(zero, np.nan), held)


def held_probability(costs: Float[Tensor, " A"], tolerance: float = THRESHOLDS.tolerance) -> float:
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
    return float(weights[ANGLES.abs() <= math.acos(0.95) + 1e-6].sum())


def axis_score(planes: PlaneCosts) -> np.ndarray:
    """Probability (u,) that each latent is within 18° of the axis that the ELBO prefers, in every plane with another.

    >>> axis_score(free_planes([0, 1])).round(2)
    array([0.41, 0.41])
    """
    held = planes.held.copy()
    np.fill_diagonal(held, 1.0)
    return np.asarray(held.prod(1))


# verdicts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Identification:
    """How each latent of the first model can be interpreted."""

    name: str
    """What reports call the first model."""
    kind: list[str]
    """(d,) `axis`: may be read on its own; `subspace`: only together with others; `none`: neither."""
    score: np.ndarray
    """(d,) from 0 to 1: probability that the latent is within 18° (a correlation of 0.95) of the axis that the ELBO
    prefers, times a factor below 1 if most other models do not have it even up to free rotations; 0 for latents that
    are not in use."""
    groups: list[list[int]]
    """Latents that form a subspace."""
    sentences: list[str]
    """How each latent can be interpreted, and why."""
    reasons: list[str]
    """The why alone; empty for latents that are not in use."""
    summaries: list[str]
    """The same in a sentence for all latents that share a verdict, instead of one per latent."""
    planes: PlaneCosts | None
    """What rotations cost; None if the model has no decoder, or it could not be differentiated."""
    agreement: SeedAgreement | None
    """With the other models; None if there are none."""
    used: list[int]
    """Latents in use, in the order of `planes` and `agreement`."""
    note: str = ""
    """Why rotations were not measured; empty if they were."""

    def rows(self) -> list[dict[str, object]]:
        """A row per latent."""
        rows = []
        for k, (kind, score) in enumerate(zip(self.kind, self.score, strict=True)):
            row: dict[str, object] = {"latent": k, "kind": kind, "score": float(score)}
            index = self.used.index(k) if k in self.used else None
            if self.planes is not None:
                others = np.zeros(0) if index is None else np.delete(self.planes.barrier[index], index)
                row["rotation costs"] = float(np.min(others)) if len(others) else None
            if self.agreement is not None:
                row["same axis"] = None if index is None else float(self.agreement.axis_median[index])
                row["same subspace"] = None if index is None else float(self.agreement.subspace_median[index])
            rows.append(row)
        return rows

    def content(self) -> dict[str, object]:
        """Verdicts and numbers; the costs of rotations have no diagonal."""
        planes = self.planes
        costs, errors = (None, None) if planes is None else (planes.barrier.tolist(), planes.stderr.tolist())
        return {
            "name": self.name,
            "latents": [row | {"sentence": s} for row, s in zip(self.rows(), self.sentences, strict=True)],
            "groups": self.groups,
            "used": self.used,
            "rotation_costs": costs,
            "rotation_costs_stderr": errors,
            "note": self.note,
        }


@torch.no_grad()
def identify(
    samples: Sequence[EncodedSample], used: Sequence[list[int]], tolerance: float = THRESHOLDS.tolerance
) -> Identification:
    """Judge the latents of the first of several models.

    Args:
        samples: the same samples, encoded by every model.
        used: latents in use of every model.
        tolerance: nats per sample up to which a rotation is free.
    """
    if len(samples) > 1 and len(samples[0]) < 2:
        raise InputError("x needs at least 2 samples to compare models, got 1.")
    own = used[0]
    planes, note = _planes(samples[0], own, tolerance)
    codes = [s.mean[:, latents].double().cpu().numpy() for s, latents in zip(samples, used, strict=True)]
    undecided = None if planes is None or len(own) < 2 else planes.undecided(tolerance)
    free = np.arange(len(own)) if undecided is None else connected_components(undecided, directed=False)[1]
    agreement = seed_agreement(codes[0], codes[1:], free) if len(codes) > 1 and own else None
    if planes is None and agreement is None and own:
        raise InputError(f"rotations cannot be judged ({note.rstrip('.')}); pass several models to compare them.")

    held = np.ones(len(own)) if planes is None else axis_score(planes)
    axis = held >= 0.5
    shared, credible = np.ones(len(own)), np.ones(len(own))
    if agreement is not None:
        axis, shared, credible = axis & agreement.same, agreement.subspace_median, agreement.credibility
    kind, score = ["none"] * samples[0].model.latent_dim, np.zeros(samples[0].model.latent_dim)
    for index, k in enumerate(own):
        kind[k] = "axis" if axis[index] else "subspace" if shared[index] >= THRESHOLDS.same_subspace else "none"
        score[k] = held[index] * credible[index]

    # latents of subspaces belong together if rotations between them are free, or if another model mixes them
    chosen = [index for index, k in enumerate(own) if kind[k] == "subspace"]
    joined = np.zeros((len(chosen), len(chosen)), dtype=bool)
    if undecided is not None:
        joined |= undecided[np.ix_(chosen, chosen)]
    for other in codes[1:]:
        if other.shape[1] and chosen:
            mixed = (spearman_correlations(other, codes[0])[:, chosen] >= THRESHOLDS.mixed).astype(int)
            joined |= mixed.T @ mixed > 0
    labels = connected_components(joined, directed=False)[1] if chosen else np.zeros(0, int)
    groups = [sorted(own[chosen[i]] for i in np.flatnonzero(labels == label)) for label in np.unique(labels)]

    sentences, reasons = [], []
    for k in range(len(kind)):
        if k not in own:
            sentences.append(f"Latent {k} is not in use.")
            reasons.append("")
            continue
        index = own.index(k)
        reason = "; ".join(r for r in (_rotation(index, planes, tolerance), _seeds(index, agreement)) if r)
        reasons.append(reason)
        sentences.append(_sentence(k, kind[k], next((g for g in groups if k in g), [k]), reason))
    found = (
        samples[0].model.name,
        kind,
        score,
        groups,
        sentences,
        reasons,
        _summaries(kind, groups, own, planes, agreement),
    )
    return Identification(*found, planes, agreement, own, note)


def _planes(sample: EncodedSample, used: list[int], tolerance: float) -> tuple[PlaneCosts | None, str]:
    """What rotations cost, and why they were not measured."""
    if not sample.model.has_decoder:
        return None, "the model has no decoder"
    if sample.model.posterior_family != "diagonal":
        return free_planes(used), "q(z|x) has correlations, so every rotation of the latents has the same ELBO."
    variance = sample.variance[:, used].double()
    if len(used) > 1 and bool((variance.amax(1) <= (1 + THRESHOLDS.isotropic) * variance.amin(1)).all()):
        return free_planes(used), "q(z|x) has the same variance for all latents, so every rotation has the same ELBO."
    try:
        return measure_planes(sample, used, tolerance), ""
    except (InputError, RuntimeError, NotImplementedError) as error:
        return None, first_line(error)


def _sentence(latent: int, kind: str, group: list[int], reason: str) -> str:
    """How a latent in use can be interpreted, and why."""
    if kind == "axis":
        return f"Latent {latent} can be read on its own" + (f": {reason}." if reason else ".")
    if kind == "none":
        return f"Do not interpret latent {latent}: {reason}."
    if len(group) == 1:
        return f"Do not read latent {latent} on its own. Latent {latent}: {reason}."
    return f"Latents {enumerated(group)} form a subspace: do not read them one by one. Latent {latent}: {reason}."


def _summaries(
    kind: list[str], groups: list[list[int]], own: list[int], planes: PlaneCosts | None, agreement: SeedAgreement | None
) -> list[str]:
    """A sentence per verdict: about latents that can be read, each subspace, the others, and those not in use."""
    of_kind = {name: [k for k in own if kind[k] == name] for name in ("axis", "none")}
    found = [(of_kind["axis"], "{} can be read on {own} own")]
    found += [(group, "{} form a subspace: do not read them one by one") for group in groups if len(group) > 1]
    found += [([k for group in groups if len(group) == 1 for k in group], "do not read {} on {own} own")]
    found += [(of_kind["none"], "do not interpret {}")]
    lines = []
    for latents, words in found:
        if latents:
            named = f"latent{'s' * (len(latents) > 1)} {enumerated(latents)}"
            sentence = words.format(named, own="their" if len(latents) > 1 else "its")
            why = _why([own.index(k) for k in latents], planes, agreement)
            lines.append(sentence[0].upper() + sentence[1:] + (f": {why}." if why else "."))
    unused = [k for k in range(len(kind)) if k not in own]
    verb = "are" if len(unused) > 1 else "is"
    return [*lines, *([f"Latent{'s' * (len(unused) > 1)} {enumerated(unused)} {verb} not in use."] if unused else [])]


def _why(chosen: list[int], planes: PlaneCosts | None, agreement: SeedAgreement | None) -> str:
    """What rotations of these latents (indices of latents in use) cost, and how far other models agree."""
    parts = []
    if planes is not None and len(planes.latents) > 1:
        costs = np.where(np.eye(len(planes.latents), dtype=bool), np.inf, planes.barrier)[chosen].min(1)
        parts.append(
            f"the least costly rotation of each into another latent costs {span(*_ends(costs))} nats per sample"
        )
        gains = np.nan_to_num(planes.gain[chosen]).max(1)
        turned = np.nan_to_num(np.abs(planes.angle[chosen])).max(1) > THRESHOLDS.rotated
        if turned.any():
            of = f" of {int(turned.sum())} of them" if len(chosen) > 1 else ""
            parts.append(f"the ELBO would gain up to {gains[turned].max():.2g} nats per sample by another rotation{of}")
    if agreement is not None:
        axis, shared = agreement.axis_median[chosen], agreement.subspace_median[chosen]
        parts.append(
            f"other models agree with rank correlations of {span(*_ends(axis))}, and their latents determine "
            f"{span(*_ends(100 * shared))} % of each linearly"
        )
    return "; ".join(parts)


def _ends(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def _rotation(index: int, planes: PlaneCosts | None, tolerance: float) -> str:
    if planes is None:
        return ""
    if len(planes.latents) < 2:
        return "there is no other latent to rotate it into"
    own = np.arange(len(planes.latents)) == index
    barrier = np.where(own, np.inf, planes.barrier[index])
    weakest = int(barrier.argmin())
    other, cost, error = planes.latents[weakest], float(barrier[weakest]), planes.stderr[index, weakest]
    amount = interval(cost, error, " nats per sample")
    if cost <= tolerance:
        equal = planes.norm_ratio[index, weakest] >= THRESHOLDS.equal_norms
        why = ", as their columns have the same length" if equal else ""
        return f"it can be rotated into latent {other} at no cost ({amount}){why}"
    angles = np.where(own, 0.0, planes.angle[index])
    most = int(np.abs(angles).argmax())
    if abs(angles[most]) > THRESHOLDS.rotated:
        turn = f"{abs(angles[most]):.0f}° into latent {planes.latents[most]}"
        return f"the ELBO would gain {planes.gain[index, most]:.2g} nats per sample by rotating it {turn}"
    return f"rotating it costs {amount} or more (least into latent {other})"


def _seeds(index: int, agreement: SeedAgreement | None) -> str:
    if agreement is None:
        return ""
    low, high = agreement.interval[:, index]
    count = len(agreement.axis)
    match = f"{count} other model{'s' * (count > 1)} agree{'s' * (count == 1)} with a rank correlation of"
    found = f"{match} {agreement.axis_median[index]:.2f} ({low:.2f} to {high:.2f})"
    shared = agreement.subspace_median[index]
    kept = "is" if shared >= THRESHOLDS.same_subspace else "is only"
    return f"{found}, and {shared:.0%} of it {kept} a linear function of their latents"
