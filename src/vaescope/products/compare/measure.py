"""Everything that is measured of one of several models, on the same samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import rankdata
from scipy.stats import t as student
from torch import Tensor

from vaescope import metrics
from vaescope.analysis.agreement import UsedCodes
from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.gap import ElboGap, check_gap, decodes_per_point, gap_at, seconds_per_decode
from vaescope.analysis.geometry import (
    Geometry,
    NearDeterministic,
    WeightedJacobian,
    differentiate_decoder,
    measure_geometry,
    near_deterministic,
    near_deterministic_ratio,
)
from vaescope.analysis.likelihood import UNKNOWN
from vaescope.analysis.models import RepairedModel, likelihood_is_known, repair, sample_log_likelihood
from vaescope.analysis.posteriors import posteriors_of
from vaescope.core import randomness
from vaescope.core.errors import Attempts, Skipped
from vaescope.inference.joint import whitened
from vaescope.metrics.score import Score
from vaescope.protocol import LatentModel
from vaescope.regime import Regime
from vaescope.regime.model import regime_of

CONFIDENCE = 0.95


@torch.no_grad()
def elbo_of_samples(sample: EncodedSample, *, noise: Float[Tensor, "N S d"] | None = None) -> Float[Tensor, " N"]:
    """log p(x|z) averaged over draws from q(z|x), minus the KL in closed form.

    The draws of a sample are mirrored and, with few latents, whitened: for a linear decoder the result is exact. They
    are independent between samples, so that a standard error over samples includes the error of sampling, and the
    same for all models with as many latents.

    Args:
        sample: of one model.
        noise: standard normal draws of each sample, in place of these.
    """
    _check(sample)
    log_p, x = sample_log_likelihood(sample), sample.observations
    noise = mirrored_noise(len(sample), sample.mean.shape[1], 64) if noise is None else noise
    draws = noise.shape[1]
    total = torch.zeros(len(sample), dtype=torch.float64)
    mean, deviation = sample.mean.double(), sample.variance.double().sqrt()
    step = max(1, 4096 // draws)
    for rows in torch.arange(len(sample)).split(step):
        z = mean[rows, None] + deviation[rows, None] * noise[rows]
        found = log_p(x[rows].repeat_interleave(draws, 0), z.flatten(0, 1).to(sample.mean.dtype))
        total[rows] = found.double().reshape(len(rows), draws).mean(1)
    if not bool(total.isfinite().all()):
        raise Skipped("the likelihood of these samples is not finite")
    return total - torch.from_numpy(posteriors_of(sample).kl.sum(1)).double()


def _check(sample: EncodedSample) -> None:
    model = sample.model
    if not model.has_decoder:
        raise Skipped("the model has no decoder")
    if isinstance(model, RepairedModel) and model.normal_prior is not None:
        raise Skipped("the ELBO is only computed for normal priors")
    if model.posterior_family != "diagonal":
        raise Skipped("encode returns the marginals of q(z|x), not q itself")
    if not likelihood_is_known(model):
        raise Skipped(UNKNOWN)
    if model.log_likelihood is None:
        sample.check_output(sample.decoded)


def mirrored_noise(samples: int, dim: int, draws: int) -> Float[Tensor, "N S d"]:
    """Standard normal draws in opposite pairs; with few latents, their second moments are exact too.

    Args:
        samples: with draws of their own.
        dim: latents.
        draws: per sample, an even number.
    """
    half = torch.randn(samples, draws // 2, dim, generator=randomness.generator(0, "compare"), dtype=torch.float64)
    noise = torch.cat([half, -half], dim=1)
    return noise if 4 * dim > draws else whitened(noise)


@dataclass(frozen=True, eq=False)
class MeasuredModel:
    """One model on the shared samples; None for what could not be measured, with the reason in `skipped`."""

    name: str
    sample: EncodedSample
    regime: Regime
    elbo: np.ndarray | None = None
    """(N,) of every sample."""
    gap: ElboGap | None = None
    """log p(x) and the parts of the gap at some of the samples."""
    geometry: Geometry | None = None
    near: NearDeterministic | None = None
    scores: dict[str, Score] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def codes(self) -> UsedCodes:
        values = self.sample.mean[:, self.regime.used].double().cpu().numpy()
        return UsedCodes(self.name, self.regime.used, values)

    @property
    def integrated(self) -> list[int]:
        """Latents over which log p(x) is integrated: those in use, of a collapsed model that with the highest KL."""
        return self.regime.used or self.regime.passive[:1]

    @property
    def log_marginal(self) -> dict[int, float]:
        """log p(x) by row number in x."""
        if self.gap is None:
            return {}
        rows = self.sample.random_subset(len(self.gap.elbo)).rows
        return dict(zip(rows.tolist(), self.gap.log_marginal.tolist(), strict=True))

    @property
    def reliable(self) -> bool:
        """Whether log p(x) is by quadrature, or by importance sampling with a Pareto k below 0.7."""
        return self.gap is not None and (self.gap.pareto_k is None or self.gap.pareto_k < 0.7)


@torch.no_grad()
def measure(
    model: LatentModel,
    name: str,
    x: object,
    auxiliary: object | None,
    factors: np.ndarray | None,
    sample_shape: tuple[int, int, int] | None = None,
) -> MeasuredModel:
    """Measure one model, without log p(x).

    Args:
        model: the model.
        name: what tables call it.
        x: samples; the same rows are used of every model, at most 2,000.
        auxiliary: the auxiliary input of an iVAE.
        factors: (N, k) of all samples.
        sample_shape: (channels, height, width) of samples that are images.
    """
    repaired = repair(model, x, auxiliary, 2000, sample_shape)
    sample = repaired.sample
    regime = regime_of([sample])
    attempt = Attempts(repaired.corrections)
    elbo = attempt("ELBO", lambda: elbo_of_samples(sample).numpy())
    derivatives = attempt("geometry", lambda: differentiate_decoder(sample, regime.used)) if model.has_decoder else None
    geometry = near = None
    if derivatives is not None:
        geometry = attempt("geometry", lambda: measure_geometry(WeightedJacobian.of(derivatives)))
        eq12 = near_deterministic_ratio(derivatives)
        if eq12 is not None and regime.samples > 1:
            near = near_deterministic(eq12, regime.variance_ratio, regime.used)
    scores = {} if factors is None else attempt("metrics", lambda: _scores(sample, factors)) or {}
    return MeasuredModel(name, sample, regime, elbo, None, geometry, near, scores, attempt.skipped)


def measure_log_marginal(model: MeasuredModel, points: int) -> MeasuredModel:
    """The same model with log p(x) and the parts of the gap, at this many samples."""
    if model.elbo is None:
        return model
    attempt = Attempts()
    gap = attempt("log p(x)", lambda: gap_at(model.sample, model.integrated, points))
    return replace(model, gap=gap, skipped=model.skipped | attempt.skipped)


def common_points(models: Sequence[MeasuredModel], seconds: float, *, most: int = 128, fewest: int = 8) -> int:
    """At how many samples log p(x) of all models can be computed in this time: a power of two; 0 if too few.

    The same number for all models, whatever their order, so that their values can be paired.
    """
    needed = 0.0
    for model in models:
        attempt = Attempts()
        attempt("log p(x)", partial(check_gap, model.sample, model.integrated))
        if attempt.skipped or model.elbo is None:
            continue
        fastest = min(seconds_per_decode(model.sample) for _ in range(3))
        needed += fastest * decodes_per_point(model.sample, model.integrated)
    points = most
    while points * needed > seconds and points >= fewest:
        points //= 2
    return points if points >= fewest else 0


def _scores(sample: EncodedSample, factors: np.ndarray) -> dict[str, Score]:
    codes, known = sample.mean.double().cpu().numpy(), factors[sample.rows]
    return {
        "MCC": metrics.mcc(codes, known),
        "linear R²": metrics.linear_r2(codes, known),
        "MIG": metrics.mig(codes, known),
        "DCI disentanglement": metrics.dci(codes, known),
    }


@dataclass(frozen=True, eq=False)
class Paired:
    """Matrices (M, M) over pairs of models: row minus column."""

    difference: np.ndarray
    """Mean difference, in nats per sample."""
    stderr: np.ndarray
    covariance: np.ndarray
    """Of the values of the models over samples."""
    samples: int
    inflation: np.ndarray
    """Factor of intervals that are too short if differences are skewed and samples few: see `skewness_inflation`."""

    @cached_property
    def p_value(self) -> np.ndarray:
        """(M, M) of no difference, adjusted for all pairs together.

        The largest t-statistic over all pairs is compared with its distribution under no difference: a multivariate
        Student distribution with the covariance of the models' values (Hothorn, Bretz & Westfall 2008).
        """
        if self.samples < 2:
            return np.ones_like(self.difference)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(self.difference == 0, 0.0, np.abs(self.difference) / self.stderr) / self.inflation
        if len(t) == 2:
            return np.asarray(2 * student.sf(t, max(1, self.samples - 1)))
        return _adjusted_p_values(t, self._largest)

    @property
    def half_width(self) -> np.ndarray:
        """Half the width of the 95 % interval of each pair on its own."""
        return np.asarray(self.inflation * self.stderr * student.ppf((1 + CONFIDENCE) / 2, max(1, self.samples - 1)))

    @property
    def joint_half_width(self) -> np.ndarray:
        """Half the width of intervals of which 95 % of data sets have all: zero is in those of `indistinguishable`."""
        freedom = max(1, self.samples - 1)
        if len(self.difference) == 2 or self.samples < 2:
            return self.half_width
        critical = float(np.quantile(self._largest, CONFIDENCE, method="higher"))
        return np.asarray(self.inflation * self.stderr * max(critical, student.ppf((1 + CONFIDENCE) / 2, freedom)))

    @cached_property
    def _largest(self) -> np.ndarray:
        """Draws of the largest |t| over pairs under no difference, the same for any order of models."""
        order = np.lexsort(np.vstack([self.difference.sum(0)[None], self.covariance.diagonal()[None]]))
        return _largest_t(self.covariance[np.ix_(order, order)], max(1, self.samples - 1))

    @property
    def indistinguishable(self) -> np.ndarray:
        """(M, M) whether a difference could be chance, at 5 % for all pairs together."""
        return np.asarray(self.p_value > 1 - CONFIDENCE)


def combined_differences(all_elbo: np.ndarray, elbo: np.ndarray, log_marginal: np.ndarray) -> Paired:
    r"""Differences of log p(x) from the ELBO of all samples and the gap, log p(x) - ELBO, of some of them.

    .. math:: \frac1N \sum_{i \le N} \mathrm{ELBO}_i + \frac1n \sum_{i \le n} (\log p(x_i) - \mathrm{ELBO}_i)

    Its variance over draws of the N samples, of which n are a random part, is that of the ELBO over N plus that of the
    gap over n plus twice their covariance over N. Gaps of models differ less between samples than their log p(x).

    Args:
        all_elbo: (N, M) of all samples.
        elbo: (n, M) of those with log p(x).
        log_marginal: (n, M).
    """
    gap, (count, total) = log_marginal - elbo, (len(elbo), len(all_elbo))

    def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.atleast_2d((a - a.mean(0)).T @ (b - b.mean(0))) / max(1, len(a) - 1)

    mixed = covariance(elbo, gap)
    of_means = covariance(all_elbo, all_elbo) / total + covariance(gap, gap) / count + (mixed + mixed.T) / total
    means = all_elbo.mean(0) + gap.mean(0)
    variance = of_means.diagonal()[:, None] + of_means.diagonal()[None] - 2 * of_means
    scale = np.abs(np.concatenate([all_elbo, log_marginal])).max()
    stderr = np.sqrt(np.where(variance > (1e-9 * scale) ** 2 / count, variance, 0.0))
    difference = means[:, None] - means[None]
    difference = np.where((np.abs(difference) <= 1e-9 * scale) & (stderr == 0), 0.0, difference)
    inflation = np.maximum(paired_differences(all_elbo).inflation, paired_differences(gap).inflation)
    return Paired(difference, stderr, of_means * count, count, np.asarray(inflation))


def paired_differences(values: np.ndarray) -> Paired:
    """Mean differences with standard errors and p-values that are valid for all pairs at once.

    Args:
        values: (N, M) a value per sample and model.

    >>> found = paired_differences(np.array([[1.0, 0.0], [2.0, 1.5], [3.0, 1.5]]))
    >>> found.difference[0, 1], round(float(found.stderr[0, 1]), 3)
    (np.float64(1.0), 0.289)
    """
    samples = len(values)
    rounding = 1e-9  # relative difference of values that are the same
    centred = values - values.mean(0)
    covariance = np.atleast_2d(centred.T @ centred) / max(1, samples - 1)
    variance = covariance.diagonal()[:, None] + covariance.diagonal()[None] - 2 * covariance
    scale = np.abs(values).max() if values.size else 0.0
    difference = values.mean(0)[:, None] - values.mean(0)[None]
    stderr = np.sqrt(np.where(variance > (rounding * scale) ** 2, variance, 0.0) / samples)
    difference = np.where((np.abs(difference) <= rounding * scale) & (stderr == 0), 0.0, difference)
    return Paired(difference, stderr, covariance, samples, skewness_inflation(values, stderr))


def skewness_inflation(values: np.ndarray, stderr: np.ndarray) -> np.ndarray:
    r"""Factor (M, M) by which a 95 % interval of each mean difference has to be longer than Student's.

    .. math:: 1 + \frac{g^2}{18 N} (q^4 + 2 q^2 - 3)

    q is Student's quantile and g the skewness of the differences: the term of the Edgeworth expansion of a t-statistic
    by which skewness lowers the coverage of a symmetric interval (Hall 1992). Differences of log p(x)
    have heavy tails to one side, where one of the models fits badly.

    Args:
        values: (N, M) a value per sample and model.
        stderr: (M, M) of the mean differences; pairs without spread are not changed.

    >>> values = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
    >>> skewness_inflation(values, np.array([[0.0, 1.0], [1.0, 0.0]])).round(1)
    array([[1. , 3.2],
           [3.2, 1. ]])
    """
    samples = len(values)
    if samples < 2:
        return np.ones_like(stderr)
    centred = values - values.mean(0)
    third = np.stack([((column[:, None] - centred) ** 3).mean(0) for column in centred.T])
    spread = np.sqrt(samples - 1) * stderr  # the standard deviation, dividing by N
    skewness = np.divide(third, spread**3, out=np.zeros_like(third), where=spread > 0)
    q = student.ppf((1 + CONFIDENCE) / 2, samples - 1)
    return np.asarray(1 + skewness**2 * (q**4 + 2 * q**2 - 3) / (18 * samples))


def _adjusted_p_values(t: np.ndarray, largest: np.ndarray) -> np.ndarray:
    if len(t) <= 16:
        found = (largest[:, None, None] >= t).mean(0)
    else:
        found = 1 - np.searchsorted(np.sort(largest), t) / len(largest)
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)


def _largest_t(covariance: np.ndarray, freedom: int, draws: int = 10_000) -> np.ndarray:
    """Draws of the largest |t| over pairs under no difference."""
    rng = np.random.default_rng(0)
    values, vectors = np.linalg.eigh(covariance)
    factor = vectors * np.sqrt(values.clip(0))
    drawn = rng.normal(size=(draws, len(covariance))) @ factor.T
    drawn /= np.sqrt(rng.chisquare(freedom, size=(draws, 1)) / freedom)
    largest = np.zeros(draws)
    for i in range(len(covariance)):
        deviation = np.sqrt((covariance[i, i] + covariance.diagonal() - 2 * covariance[i]).clip(0))
        valid = deviation > 1e-12 * np.sqrt(covariance.diagonal().max() + 1e-300)
        if valid.any():
            t = np.abs(drawn[:, [i]] - drawn[:, valid]) / deviation[valid]
            largest = np.maximum(largest, t.max(1))
    return largest


@dataclass(frozen=True, eq=False)
class Settings:
    """Models that were trained alike but for the seed, compared as settings: matrices (G, G), row minus column."""

    names: list[str]
    members: list[list[int]]
    """Indices of the models of each setting."""
    difference: np.ndarray
    """Mean over seeds and samples, in nats per sample."""
    stderr: np.ndarray
    """From the spread over seeds and the paired spread over samples."""
    freedom: np.ndarray
    seed_deviation: np.ndarray
    """(G,) standard deviation between the means of the seeds of a setting; NaN for one seed."""
    separated: np.ndarray
    """Whether every model of the row is above every model of the column."""
    inflation: np.ndarray

    @property
    def half_width(self) -> np.ndarray:
        """Half the width of 95 % intervals for all pairs together (Bonferroni)."""
        pairs = max(1, len(self.names) * (len(self.names) - 1) // 2)
        return np.asarray(self.inflation * self.stderr * student.ppf(1 - (1 - CONFIDENCE) / 2 / pairs, self.freedom))

    @property
    def indistinguishable(self) -> np.ndarray:
        """Whether a difference could be chance, of seeds or of samples."""
        return np.asarray(np.abs(self.difference) <= self.half_width)

    def chance_of_separation(self, first: int, second: int) -> float:
        """Of equal settings, in either direction.

        >>> one = np.zeros((2, 2))
        >>> Settings(["a", "b"], [[0, 1, 2], [3, 4, 5]], one, one, one, one, one, one).chance_of_separation(0, 1)
        0.1
        """
        sizes = len(self.members[first]), len(self.members[second])
        return 2 / math.comb(sum(sizes), sizes[0])


def compare_settings(paired: Paired, labels: Sequence[str]) -> Settings:
    """Means over seeds with both errors: between seeds, as seeds are a sample too, and between samples, paired.

    The variance between seeds is pooled over the two settings of a pair, or over all if these have a seed each.

    Args:
        paired: differences of the models.
        labels: the setting of each model.
    """
    names = list(dict.fromkeys(labels))
    members = [[i for i, label in enumerate(labels) if label == name] for name in names]
    means = paired.difference[:, 0]  # up to a constant
    weights = np.array([[1 / len(own) if i in own else 0.0 for i in range(len(labels))] for own in members])
    squares = np.array([float(((means[own] - means[own].mean()) ** 2).sum()) for own in members])
    spare = np.array([len(own) - 1 for own in members])
    shape = len(names), len(names)
    difference, stderr, freedom = np.zeros(shape), np.zeros(shape), np.ones(shape)
    separated, inflation = np.zeros(shape, dtype=bool), np.ones(shape)
    for a, b in product(range(len(names)), repeat=2):
        if a == b:
            continue
        contrast, pair = weights[a] - weights[b], [a, b]
        known = pair if spare[pair].sum() else range(len(names))
        degrees = int(spare[[*known]].sum())
        between = float(squares[[*known]].sum()) / degrees * float((1 / (spare[pair] + 1)).sum())
        within = max(0.0, float(contrast @ paired.covariance @ contrast)) / paired.samples
        difference[a, b] = float(weights[a] @ means - weights[b] @ means)
        stderr[a, b] = math.sqrt(between + within)
        terms = between**2 / degrees + within**2 / max(1, paired.samples - 1)
        freedom[a, b] = (between + within) ** 2 / terms if terms > 0 else degrees
        separated[a, b] = means[members[a]].min() > means[members[b]].max()
        inflation[a, b] = paired.inflation[np.ix_(members[a], members[b])].max() if within > between else 1.0
    deviations = np.sqrt(np.divide(squares, spare, out=np.full(len(names), np.nan), where=spare > 0))
    return Settings(names, members, difference, stderr, freedom, deviations, separated, inflation)


@dataclass(frozen=True, eq=False)
class Failures:
    """The samples with the lowest values of each model."""

    rows: list[np.ndarray]
    """For every model the row numbers in x of its worst samples, worst first."""
    overlap: np.ndarray
    """(M, M) share of the worst samples of one model that are among the worst of the other; 0.05 by chance."""
    rank_correlation: np.ndarray
    """(M, M) of the values of all samples."""
    common: np.ndarray
    """Rows that are among the worst of every model, worst first."""


def find_failures(values: np.ndarray, rows: np.ndarray, *, share: float = 0.05) -> Failures:
    """The worst samples of every model.

    Args:
        values: (N, M) a value per sample and model, such as the ELBO.
        rows: row numbers in x.
        share: of samples that count as failures.

    >>> x = np.arange(100.0)
    >>> find_failures(np.stack([x, x + 1, -x], axis=1), np.arange(100)).overlap[0]
    array([1., 1., 0.])
    """
    count = max(1, round(share * len(values)))
    worst = np.argsort(values, axis=0, kind="stable")[:count]
    flags = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(flags, worst, values=True, axis=0)
    shared = np.flatnonzero(flags.all(1))
    shared = shared[np.argsort(values[shared].mean(1), kind="stable")]
    ranks = rankdata(values, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN for a model that finds all samples equally hard
        agreement = np.atleast_2d(np.corrcoef(ranks.T))
    return Failures(
        [rows[column] for column in worst.T],
        flags.T.astype(float) @ flags.astype(float) / count,
        agreement,
        rows[shared],
    )
