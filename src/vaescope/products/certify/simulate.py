"""Draws of (z, x) from the prior and the decoder: pairs whose true posterior is known to be that of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from jaxtyping import Float
from scipy import stats
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.likelihood import draw_observations, joint_of
from vaescope.analysis.models import sample_log_likelihood
from vaescope.core import randomness
from vaescope.core.budget import Budget
from vaescope.core.calls import call_user_function
from vaescope.core.errors import InputError, Skipped
from vaescope.distributions import DiagonalGaussian, Normal, Prior
from vaescope.inference.annealing import Sandwich, bound_log_marginal
from vaescope.inference.gap import sampled_gap
from vaescope.inference.joint import LikelihoodJoint, find_mode, laplace, matched_nodes
from vaescope.protocol import LatentModel


def unbounded_moments(prior: Prior, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of u such that z(u) has these moments: the inverse of `Prior.moments`.

    Unbounded priors return their arguments. Under a bounded prior the pair is found by Newton's method on the mean
    and the log-variance of u; variances that no normal u can give are replaced by the nearest ones that it can.

    Args:
        prior: the prior of the latents.
        mean: of z.
        variance: of z.

    >>> from vaescope import Uniform
    >>> m, v = torch.tensor([0.7]), torch.tensor([0.25])
    >>> [round(float(value), 3) for value in unbounded_moments(Uniform(), *Uniform().moments(m, v))]
    [0.7, 0.25]
    """
    if prior.bounds is None:
        return mean, variance
    low, high = prior.bounds
    margin = 1e-6 * (high - low)
    inside = mean.clamp(low + margin, high - margin)
    spread = torch.minimum(variance, 0.98 * (inside - low) * (high - inside))
    u = prior.from_support(inside)
    log_v = spread.log() - 2 * prior.log_derivative(u)
    for _ in range(40):
        u, log_v = _newton_step(prior, u, log_v, inside, spread)
    return u, log_v.exp()


def _newton_step(prior: Prior, u: Tensor, log_v: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """One step on the mean and on the log of the variance of z, at most one unit long."""

    def moments(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        first, second = prior.moments(a, b.exp())
        return first, second.log()

    zero, one = torch.zeros_like(u), torch.ones_like(u)
    found = torch.func.jvp(moments, (u, log_v), (one, zero))
    (m, s), (m_u, s_u) = found[0], found[1]
    m_v, s_v = torch.func.jvp(moments, (u, log_v), (zero, one))[1]
    missing_m, missing_s = mean - m, variance.log() - s
    determinant = m_u * s_v - m_v * s_u
    step_u = (s_v * missing_m - m_v * missing_s) / determinant
    step_v = (m_u * missing_s - s_u * missing_m) / determinant
    return u + step_u.nan_to_num(0.0).clamp(-1, 1), log_v + step_v.nan_to_num(0.0).clamp(-1, 1)


@dataclass(frozen=True, eq=False)
class Simulation:
    """z drawn from the prior, x drawn from p(x|z), and what the encoder returns for x."""

    z: Float[Tensor, "N d"]
    encoded: EncodedSample
    """The simulated x with the encoder's posteriors, moments in z."""
    prior: Prior
    """p(z), or p(z|auxiliary) with a row per draw."""
    auxiliary: Tensor | None = None

    def __len__(self) -> int:
        return len(self.z)

    @property
    def u(self) -> Float[Tensor, "N d"]:
        """z in its unbounded coordinate."""
        return self.prior.from_support(self.z)

    def joint(self, points: int | None = None) -> LikelihoodJoint:
        """p(x, u) of all draws, or of the first ones."""
        return joint_of(self.encoded, self.prior, points)

    @property
    def posterior(self) -> DiagonalGaussian:
        """The encoder's posterior in the unbounded coordinate, in float64."""
        return posterior_of(self.encoded, self.prior)


def posterior_of(sample: EncodedSample, prior: Prior) -> DiagonalGaussian:
    """The encoder's posterior in the unbounded coordinate, in float64.

    Args:
        sample: encoded x, moments in z.
        prior: p(z), or p(z|auxiliary) with a row per sample.
    """
    return DiagonalGaussian(*unbounded_moments(prior, sample.mean.double(), sample.variance.double()))


def simulate(model: LatentModel, real: EncodedSample, count: int, auxiliary: object | None, seed: int) -> Simulation:
    """Draw z ~ p(z), x ~ p(x|z), and encode x.

    Args:
        model: a model with a decoder and a known likelihood, Gaussian outputs with a precision.
        real: encoded samples, from which simulated x take their shape and floating-point type.
        count: number of draws.
        auxiliary: of an iVAE or a conditional VAE, one row per row of x; rows are drawn from it.
        seed: of all draws.
    """
    generator = randomness.generator(seed, "simulation")
    labels, like = None, real.mean
    if isinstance(auxiliary, Tensor | np.ndarray):
        labels = torch.as_tensor(auxiliary)[torch.randint(len(auxiliary), (count,), generator=generator)]
    with torch.no_grad():
        prior = model.prior_at(labels, like=like.double()) if labels is not None else model.prior
        z = prior.sample(count, model.latent_dim, generator=generator, dtype=torch.float64)
        at_once = max(1, 2**22 // max(1, real.x[0].numel()))
        given = [None] * count if labels is None else labels.split(at_once)
        parts = [(part.to(like), own) for part, own in zip(z.split(at_once), given, strict=False)]
        x = torch.cat([draw_observations(model, codes, generator, own) for codes, own in parts])
    if not bool(x.isfinite().all()):
        raise Skipped("the decoder returned NaN or infinity for draws from the prior")
    real.check_output(x.flatten(1))
    x = x.reshape(len(x), *real.x.shape[1:]).to(real.x)
    return Simulation(z, encode_simulated(model, x, prior, labels), prior, labels)


def encode_simulated(model: LatentModel, x: Tensor, prior: Prior, auxiliary: Tensor | None) -> EncodedSample:
    """Encode simulated x in chunks, under any prior."""
    step = max(1, 2**22 // max(1, x[0].numel()))
    starts = range(0, len(x), step)
    with torch.no_grad():
        labels = [None if auxiliary is None else auxiliary[s : s + step] for s in starts]
        found = [model.encode(x[s : s + step], part) for s, part in zip(starts, labels, strict=True)]
    mean, variance = (torch.cat([pair[i] for pair in found]) for i in range(2))
    if not bool((mean.isfinite() & variance.isfinite()).all()):
        raise Skipped("the encoder returned NaN or infinity for simulated x")
    first, second = (torch.as_tensor(value).to(mean).expand(mean.shape) for value in prior.mean_and_variance())
    return EncodedSample(model, np.arange(len(x)), x, mean, variance, first, second, auxiliary)


BINS = 20  # of rank histograms
COVERAGE = (0.5, 0.9)  # levels that are reported


@dataclass(frozen=True, eq=False)
class Widths:
    """Per latent: how wide the encoder's posteriors are, and how far their means are off in one direction."""

    width_ratio: Float[np.ndarray, " d"]
    """Standard deviation of q over the right one."""
    width_error: Float[np.ndarray, " d"]
    """Standard error of log width_ratio."""
    bias: Float[np.ndarray, " d"]
    """Mean distance of the right mean from that of q, in standard deviations; > 0 if q is too low."""
    bias_error: Float[np.ndarray, " d"]


@dataclass(frozen=True, eq=False)
class Calibration(Widths):
    """How the encoder's posteriors compare with the true ones; the right width is 1 / root mean square residual."""

    ranks: Float[np.ndarray, "N d"]
    """Share of the encoder's posterior below the true value; uniform if the posterior is exact."""
    counts: Float[np.ndarray, "d bins"]
    """Histograms of the ranks."""
    band: tuple[float, float]
    """Counts between which all bins of all latents of exact posteriors are, with probability 99 %."""

    def coverage(self, level: float) -> Float[np.ndarray, " d"]:
        """Share of true values in the central interval of that probability under q."""
        inside: np.ndarray = np.abs(self.ranks - 0.5) <= level / 2
        return inside.mean(0)


def calibrate(simulation: Simulation) -> Calibration:
    """The true z under the encoder's posteriors."""
    q = simulation.posterior
    residual = ((simulation.u - q.mean) / q.variance.sqrt()).numpy()
    squares, count = np.square(residual), len(residual)
    ranks = stats.norm.cdf(residual)
    edges = np.linspace(0, 1, BINS + 1)
    return Calibration(
        width_ratio=1 / np.sqrt(squares.mean(0)),
        width_error=0.5 * squares.std(0) / squares.mean(0) / math.sqrt(count),
        bias=residual.mean(0),
        bias_error=residual.std(0) / math.sqrt(count),
        ranks=ranks,
        counts=np.stack([np.histogram(column, edges)[0] for column in ranks.T]).astype(float),
        band=simultaneous_band(count, BINS, residual.shape[1]),
    )


Quantity = Callable[[Tensor, Tensor], object]
"""(x, z) -> a number per row."""


@dataclass(frozen=True, eq=False)
class JointRanks:
    """Ranks of a quantity of the true (x, z) among those of draws of z from q(z|x); uniform if q is exact."""

    name: str
    ranks: Float[np.ndarray, " N"]
    """From 0 to 1."""
    p_value: float
    """Of a chi-squared test of 20 bins."""


@torch.no_grad()
def rank_jointly(simulation: Simulation, quantities: Mapping[str, Quantity], *, seed: int = 0) -> list[JointRanks]:
    """Ranks of quantities that depend on all latents at once: they show what ranks of single latents cannot.

    log p(x|z) and log p(x, z); the distance of z from a point that is drawn from the prior for every x, which is the
    test of accuracy with random points of Lemos et al. 2023 (TARP); and the user's.

    Args:
        simulation: draws and the encoder's posteriors.
        quantities: of the user, by name.
        seed: of the draws.
    """
    sample, prior, draws = simulation.encoded, simulation.prior, BINS - 1
    generator = randomness.generator(seed, "joint ranks")
    q = simulation.posterior
    reference = prior.sample(len(simulation), q.mean.shape[1], generator=generator, dtype=torch.float64)
    scale = simulation.z.std(0).clamp(min=1e-12)
    log_p, joint, rows = sample_log_likelihood(sample), simulation.joint(), torch.arange(len(simulation))
    known: dict[str, Quantity] = {
        "log p(x|z)": lambda x, z: log_p(sample.observations, z),
        "log p(x, z)": lambda x, z: joint.at(rows, prior.from_support(z)),
        "distance from random points (TARP)": lambda x, z: ((z - reference) / scale).square().sum(1),
        **{name: partial(_of_user, name, function) for name, function in quantities.items()},
    }
    density = sample.model.posterior_density
    below = {name: torch.zeros(len(simulation), dtype=torch.float64) for name in known}
    true = {name: torch.as_tensor(function(sample.x, simulation.z)).double() for name, function in known.items()}
    for _ in range(draws):
        noise = torch.randn(q.mean.shape, generator=generator, dtype=torch.float64)
        z = (
            prior.to_support(q.mean + q.variance.sqrt() * noise)
            if density is None
            else density.sample(sample.x).double()
        )
        for name, function in known.items():
            below[name] += torch.as_tensor(function(sample.x, z)).double() < true[name]
    expected = len(simulation) / BINS
    found = []
    for name, counts in below.items():
        histogram = np.bincount(counts.numpy().astype(int), minlength=BINS)
        statistic = float(np.square(histogram - expected).sum() / expected)
        found.append(JointRanks(name, (counts.numpy() + 0.5) / BINS, float(stats.chi2.sf(statistic, BINS - 1))))
    return found


def _of_user(name: str, function: Quantity, x: Tensor, z: Tensor) -> Tensor:
    """What a user's function of x and z returns, checked."""
    found = call_user_function(name, lambda codes: function(x, codes), z)
    if not isinstance(found, Tensor) or found.shape != (len(z),) or not bool(found.isfinite().all()):
        raise InputError(f"the quantity {name!r} must return a finite number per row of z, ({len(z)},).")
    return found


@cache
def simultaneous_band(samples: int, bins: int, latents: int, level: float = 0.01) -> tuple[float, float]:
    """Counts per bin that uniform ranks leave, in any bin of any latent, with probability `level`.

    Pointwise binomial limits, widened as far as simulated uniform histograms need (as Säilynoja, Bürkner & Vehtari
    2022 do for empirical distribution functions).

    >>> simultaneous_band(1000, 20, 1)[0] < 50 < simultaneous_band(1000, 20, 1)[1]
    True
    """
    single = 1 - (1 - level) ** (1 / latents)
    draws = max(4000, math.ceil(10 / single))
    counts = np.random.default_rng(0).multinomial(samples, np.full(bins, 1 / bins), size=draws)
    binomial = stats.binom(samples, 1 / bins)
    values = np.arange(counts.max() + 1)
    tail = np.minimum(binomial.cdf(values), binomial.sf(values - 1))
    limit = np.quantile(tail[counts].min(1), single)
    allowed = values[tail >= limit]
    return float(allowed.min()), float(max(allowed.max(), samples / bins))


# bounds on log p(x) -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GapBounds:
    """Bounds on log p(x), and the ELBOs of the encoder and of the best posterior of its family."""

    sandwich: Sandwich
    elbo: Float[Tensor, " N"] | None
    """Of the encoder; None if `encode` returns only marginals of q."""
    best_elbo: Float[Tensor, " N"] | None
    """Of the best diagonal Gaussian that gradient ascent found; None without time left or with another prior."""

    @property
    def gap(self) -> tuple[float, float] | None:
        """Mean log p(x) - ELBO: at least and at most."""
        if self.elbo is None:
            return None
        return float((self.sandwich.lower - self.elbo).mean()), float((self.sandwich.upper - self.elbo).mean())

    @property
    def amortization(self) -> float | None:
        """Mean loss of the encoder against the best posterior of its family; a lower bound."""
        return None if self.best_elbo is None or self.elbo is None else float((self.best_elbo - self.elbo).mean())


def bound_gap(simulation: Simulation, budget: Budget, *, points: int = 48, seed: int = 0) -> GapBounds:
    """Bound log p(x) of some simulated x from both sides, and compare with the ELBO."""
    q, sample = simulation.posterior, simulation.encoded
    q = DiagonalGaussian(q.mean[:points], q.variance[:points])
    joint = simulation.joint(points)
    rounding = torch.finfo(sample.mean.dtype).eps
    start = laplace(joint, find_mode(joint, q.mean, steps=25))
    sandwich = bound_log_marginal(joint, start, simulation.u[:points], budget, seed=seed, rounding=rounding)
    if sample.model.posterior_family != "diagonal":
        return GapBounds(sandwich, None, None)
    elbo = joint.elbo(q, matched_nodes(joint.dim, max(256, 4 * joint.dim)))
    if budget.left <= 0 or not isinstance(joint.prior, Normal):
        return GapBounds(sandwich, elbo, None)
    prior = Normal(sample.prior_mean.double(), sample.prior_variance.double())
    found = sampled_gap(joint.log_likelihood, q, prior)
    return GapBounds(sandwich, elbo, torch.maximum(found.best_elbo.double(), elbo))
