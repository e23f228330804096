r"""Statistics of held-out x beside those of data sets that the model makes, with exact p-values.

If x came from the model, x and M simulated data sets of the same size (z from the prior, x from p(x|z)) are
exchangeable, and so are values of any function of a data set, also of one that encodes it and draws from its
posteriors. So the rank of x among them has an exact p-value, whatever the encoder and however dependent the statistics
are; x is never compared with a fit to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy import stats
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.likelihood import draw_observations, draw_posterior
from vaescope.analysis.models import likelihood_is_known, sample_log_likelihood
from vaescope.core import randomness
from vaescope.core.budget import Budget
from vaescope.core.errors import InputError, Skipped

Statistic = Callable[[np.ndarray], object]
"""Rows or images of a data set -> a number, or an array of numbers."""
Values = Float[np.ndarray, "_"]


@dataclass(frozen=True)
class Limits:
    """Sizes; all are conventions."""

    level: float = 0.05
    posterior_rows: int = 200
    """Samples whose posterior predictive draws are made."""
    posterior_draws: int = 9
    correlated: int = 40
    """Dimensions between which correlations are measured: those that vary most in simulated data."""
    bins: int = 10
    permutations: int = 999


# data sets ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples with their posteriors, and draws of x from the posterior predictive distribution of the first of them."""

    sample: EncodedSample
    rows: Float[np.ndarray, "N n"]
    redrawn: Float[np.ndarray, "S P n"]

    @classmethod
    def of(cls, sample: EncodedSample, generator: torch.Generator) -> DataSet:
        few = _first(sample, Limits.posterior_rows)
        parts = []
        for _ in range(Limits.posterior_draws):
            noise = torch.randn(few.mean.shape, generator=generator, dtype=torch.float64).to(few.mean)
            density = few.model.posterior_density
            z = few.mean + few.variance.sqrt() * noise if density is None else density.sample(few.x).to(few.mean)
            parts.append(draw_observations(few.model, z, generator, few.auxiliary).flatten(1).double().numpy())
        return cls(sample, sample.observations.numpy(), np.stack(parts))


def _first(sample: EncodedSample, count: int) -> EncodedSample:
    rows = slice(0, count)
    return replace(
        sample,
        rows=sample.rows[rows],
        x=sample.x[rows],
        mean=sample.mean[rows],
        variance=sample.variance[rows],
        prior_mean=sample.prior_mean[rows],
        prior_variance=sample.prior_variance[rows],
        auxiliary=None if sample.auxiliary is None else sample.auxiliary[rows],
    )


@torch.no_grad()
def simulated(real: EncodedSample, generator: torch.Generator) -> EncodedSample:
    """A data set as large as the real one that the model makes, with the same auxiliary input, encoded."""
    model, count = real.model, len(real)
    if model.prior_density is not None:
        z = model.prior_density.sample(count).to(real.mean)
    else:
        prior = model.prior_at(real.auxiliary, like=real.mean.double()) if real.auxiliary is not None else model.prior
        z = prior.sample(count, model.latent_dim, generator=generator, dtype=torch.float64).to(real.mean)
    x = draw_observations(model, z, generator, real.auxiliary)
    if not bool(x.isfinite().all()):
        raise Skipped("the decoder returned NaN or infinity for draws from the prior")
    real.check_output(x.flatten(1))
    x = x.reshape(count, *real.x.shape[1:]).to(real.x)
    given = () if real.auxiliary is None else (real.auxiliary,)
    mean, variance = model.encode(x, *given)
    if not bool((mean.isfinite() & variance.isfinite()).all()):
        raise Skipped("the encoder returned NaN or infinity for simulated x")
    return replace(real, x=x, mean=mean, variance=variance)


# statistics ---------------------------------------------------------------------------------------


class Family(NamedTuple):
    """Statistics that are tested together: a value per dimension, bin or pair."""

    name: str
    compute: Callable[[DataSet], Values]
    labels: str
    """What the values are of, such as `dimension {0}, bin {1}`."""
    each: int = 1
    """Values per dimension."""


def families(kind: str, reference: DataSet, shape: tuple[int, ...], own: Mapping[str, Statistic]) -> list[Family]:
    """All statistics for a kind of data.

    Args:
        kind: counts, binary, continuous, images or series.
        reference: a simulated data set, which chooses dimensions and bins before x is looked at.
        shape: of a sample.
        own: the user's statistics by name.
    """
    found = [
        Family("means", lambda d: d.rows.mean(0), "dimension {0}"),
        Family("variances", lambda d: np.log(d.rows.var(0) + 1e-12), "dimension {0}"),
        Family("correlations", _correlations(reference), "pair {0}"),
        Family("spectrum of the covariance", _eigenvalues, "rank {0}"),
        Family("row totals", _row_totals, "quantile {0}"),
        Family("PIT", _pit_by_dimension, "dimension {0}, bin {1}", Limits.posterior_draws + 1),
        Family("PIT, pooled", lambda d: _pit_counts(d).sum(0), "bin {0}"),
        Family("noise", _noise, "dimension {0}"),
        Family("codes", _code_moments, "moment {0}"),
    ]
    if likelihood_is_known(reference.sample.model):
        found.append(Family("log p(x|z)", _log_likelihood, "quantile {0}"))
    if kind == "counts":
        found += [
            Family("zeros", lambda d: (d.rows == 0).mean(0), "dimension {0}"),
            Family("zeros, given codes", _zeros_given_codes, "dimension {0}"),
            Family("dispersion, given codes", _dispersion_given_codes, "dimension {0}"),
            Family("mean-variance curve", _mean_variance(reference), "bin {0}"),
            Family("coefficient of variation of rows", _row_variation, "quantile {0}"),
        ]
    elif kind != "binary":
        found.append(Family("quantiles", _quantiles, "quantile {0} of dimension {1}", reference.rows.shape[1]))
    if kind == "images":
        found.append(Family("power spectrum", _image_spectrum(shape), "frequency {0}"))
    if kind == "series":
        found.append(Family("power spectrum", _series_spectrum, "frequency {0}"))
    if reference.rows.shape[1] < 2:
        found = [family for family in found if family.name != "correlations"]
    return found + [Family(name, _users(name, function, shape), "value {0}") for name, function in own.items()]


def _users(name: str, function: Statistic, shape: tuple[int, ...]) -> Callable[[DataSet], Values]:
    def compute(data: DataSet) -> Values:
        try:
            found = function(data.rows.reshape(len(data.rows), *shape))
            values = np.asarray(found, dtype=np.float64).ravel()
        except Exception as error:
            raise InputError(f"the statistic {name!r} failed: {type(error).__name__}: {error}.") from None
        if not len(values) or not np.isfinite(values).all():
            raise InputError(f"the statistic {name!r} must return finite numbers, got {found!r}.")
        return values

    return compute


def _correlations(reference: DataSet) -> Callable[[DataSet], Values]:
    chosen = np.argsort(-reference.rows.var(0))[: Limits.correlated]
    above = np.triu_indices(len(chosen), 1)

    def compute(data: DataSet) -> Values:
        columns = data.rows[:, chosen]
        centred = columns - columns.mean(0)
        scaled = centred / np.maximum(centred.std(0), 1e-12)
        return np.arctanh(np.clip((scaled.T @ scaled / len(scaled))[above], -0.999999, 0.999999))

    return compute


def _eigenvalues(data: DataSet) -> Values:
    centred = data.rows - data.rows.mean(0)
    N, n = centred.shape
    gram = centred.T @ centred if n <= N else centred @ centred.T
    values: np.ndarray = np.linalg.eigvalsh(gram)[::-1][: min(20, n, N - 1)] / N
    return np.log(np.maximum(values, 1e-12))


def _levels() -> np.ndarray:
    return np.array([0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98])


def _row_totals(data: DataSet) -> Values:
    return np.quantile(data.rows.mean(1), _levels())


def _row_variation(data: DataSet) -> Values:
    return np.quantile(data.rows.std(1) / np.maximum(data.rows.mean(1), 1e-12), _levels())


def _quantiles(data: DataSet) -> Values:
    return np.quantile(data.rows, [0.02, 0.1, 0.5, 0.9, 0.98], axis=0).ravel()


def _pit_counts(data: DataSet) -> Float[np.ndarray, "n b"]:
    """Histograms of the ranks of x among draws given its own codes; ties are broken at random."""
    x = data.rows[: data.redrawn.shape[1]]
    rng = np.random.default_rng(0)
    below, same = (data.redrawn < x).sum(0), (data.redrawn == x).sum(0)
    ranks = below + rng.integers(0, same + 1)
    return np.stack([(ranks == k).sum(0) for k in range(len(data.redrawn) + 1)], axis=1).astype(float)


def _pit_by_dimension(data: DataSet) -> Values:
    return _pit_counts(data).ravel()


def _noise(data: DataSet) -> Values:
    """Log of the mean square distance of x from the mean of draws given its codes, over that of the draws."""
    x, mean = data.rows[: data.redrawn.shape[1]], data.redrawn.mean(0)
    spread = data.redrawn.var(0, ddof=1).mean(0)
    return np.log((np.square(x - mean).mean(0) + 1e-9) / (spread + 1e-9))


def _zeros_given_codes(data: DataSet) -> Values:
    x = data.rows[: data.redrawn.shape[1]]
    return (x == 0).mean(0) - (data.redrawn == 0).mean((0, 1))


def _dispersion_given_codes(data: DataSet) -> Values:
    """Mean of (x - m)²/m, where m is the mean of draws given the codes."""
    x, mean = data.rows[: data.redrawn.shape[1]], data.redrawn.mean(0)
    floor = 1 / len(data.redrawn)
    own = np.square(x - mean) / np.maximum(mean, floor)
    return np.log(own.mean(0) + 1e-3)


def _mean_variance(reference: DataSet) -> Callable[[DataSet], Values]:
    """log variance in bins of log mean; dimensions are divided among bins by the reference."""
    parts = np.array_split(np.argsort(reference.rows.mean(0)), min(Limits.bins, reference.rows.shape[1]))

    def compute(data: DataSet) -> Values:
        mean, variance = data.rows.mean(0), data.rows.var(0)
        ratio = np.log(variance + 1e-6) - np.log(mean + 1e-6)
        return np.array([ratio[part].mean() for part in parts])

    return compute


def _code_moments(data: DataSet) -> Values:
    """Means and standard deviations of draws of the codes, their correlations, and their fourth moments."""
    z = draw_posterior(data.sample, 0).double().numpy()
    centred = z - z.mean(0)
    scaled = centred / np.maximum(centred.std(0), 1e-12)
    fourth = np.log(np.square(np.square(scaled)).mean(0) + 1e-12)
    correlation = (scaled.T @ scaled / len(z))[np.triu_indices(z.shape[1], 1)]
    return np.concatenate([z.mean(0), np.log(centred.std(0) + 1e-12), correlation[:400], fourth])


def _log_likelihood(data: DataSet) -> Values:
    z = draw_posterior(data.sample, 1)
    found = sample_log_likelihood(data.sample)(data.sample.observations.to(z), z).double().numpy()
    if not np.isfinite(found).all():
        raise Skipped("log p(x|z) of some samples is not finite")
    return np.append(np.quantile(found, _levels()), found.mean())


def _image_spectrum(shape: tuple[int, ...]) -> Callable[[DataSet], Values]:
    height, width = shape[-2:]
    vertical, horizontal = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None]
    radius = np.round(np.hypot(vertical, horizontal) * min(height, width)).astype(int)

    def compute(data: DataSet) -> Values:
        images = data.rows.reshape(-1, height, width)
        power = np.square(np.abs(np.fft.fft2(images - images.mean(0)))).mean(0)
        rings = np.bincount(radius.ravel(), power.ravel()) / np.maximum(np.bincount(radius.ravel()), 1)
        return np.log(rings[1:] + 1e-12)

    return compute


def _series_spectrum(data: DataSet) -> Values:
    power = np.square(np.abs(np.fft.rfft(data.rows - data.rows.mean(0), axis=1))).mean(0)[1:]
    return np.array([np.log(part.mean() + 1e-12) for part in np.array_split(power, min(20, len(power)))])


# tests --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tested:
    """One family: its values for x beside those of simulated data sets, and whether they belong together."""

    name: str
    family: Family
    observed: Values
    low: Values
    """Simultaneous band: values of 95 % of simulated data sets stay inside everywhere."""
    high: Values
    centre: Values
    """Means over simulated data sets."""
    deviation: Values
    p_value: float
    adjusted: float
    """Corrected for the number of families: the largest statistic of all (Westfall & Young 1993)."""

    @property
    def scores(self) -> Values:
        """Distances of x from simulated data in standard deviations of these."""
        known = self.deviation > 1e-9 * (1 + np.abs(self.centre))
        different = self.observed != self.centre
        return np.where(
            known, (self.observed - self.centre) / np.where(known, self.deviation, 1.0), 99.0 * different
        ) * np.where(known, 1.0, np.sign(self.observed - self.centre))

    def place(self, index: int) -> str:
        """What a value is of."""
        return self.family.labels.format(*divmod(index, self.family.each))

    @property
    def labels(self) -> str:
        """What all values are of."""
        return self.family.labels.split(" {")[0]

    @property
    def shift(self) -> float:
        """Mean of the scores: their direction."""
        return float(np.clip(self.scores, -99, 99).mean())


def compare_families(listed: list[Family], values: list[list[Values]]) -> list[Tested]:
    """Compare the first data set with the others.

    Args:
        listed: the families.
        values: for every data set, x first, the values of every family.
    """
    tables = [np.stack([one[k] for one in values]) for k in range(len(listed))]
    strength = np.stack([_strength(table) for table in tables], axis=1)
    largest = strength.max(1)
    found = []
    for k, (family, table) in enumerate(zip(listed, tables, strict=True)):
        made = table[1:]
        centre, deviation = made.mean(0), made.std(0, ddof=1)
        scaled = np.abs(made - centre) / np.where(deviation > 0, deviation, 1.0)
        width = np.quantile(scaled.max(1), 1 - Limits.level) * deviation
        found.append(
            Tested(
                family.name,
                family,
                table[0],
                centre - width,
                centre + width,
                centre,
                deviation,
                float((strength[:, k] >= strength[0, k]).mean()),
                float((largest >= strength[0, k]).mean()),
            )
        )
    return found


def _strength(table: Float[np.ndarray, "m k"]) -> Float[np.ndarray, " m"]:
    """How far each data set is from all: by its largest value, by the mean square and by the mean, in one number.

    All data sets are treated alike, x too, so that the number has an exact rank.
    """
    spread = table.std(0)
    varying = spread > 1e-12 * (1 + np.abs(table).max(0))
    if not varying.any():
        return np.zeros(len(table))
    scores = (table[:, varying] - table[:, varying].mean(0)) / spread[varying]
    parts = np.stack([np.abs(scores).max(1), np.square(scores).mean(1), np.abs(scores.mean(1))], axis=1)
    deviation = parts.std(0)
    whole = (parts - parts.mean(0)) / np.where(deviation > 0, deviation, 1.0)
    return np.asarray(whole.max(1))


@dataclass(frozen=True, eq=False)
class Classified:
    """A classifier of real against simulated samples (C2ST), judged on samples that it has not seen."""

    auc: float
    p_value: float
    """Permutations of the labels of held-out samples."""
    telling: tuple[int, ...]
    """Dimensions in which real and simulated samples differ most."""
    separation: Values
    """Per dimension: the AUC of the dimension alone, from -1 (real are smaller) over 0 to 1 (real are larger)."""


def classify(real: DataSet, made: DataSet, *, seed: int) -> Classified:
    """Train on half of the samples, test on the other half.

    Args:
        real: x.
        made: a simulated data set of the same size, which nothing else uses.
        seed: of the halves and permutations.
    """
    rng = np.random.default_rng(seed)
    both = np.concatenate([real.rows, made.rows])
    labels = np.repeat([1, 0], [len(real.rows), len(made.rows)])
    order = rng.permutation(len(both))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    features = _features(both, train)
    trees = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=8, min_samples_leaf=10, random_state=0)
    scores = trees.fit(features[train], labels[train]).predict_proba(features[test])[:, 1]
    ranks, own = stats.rankdata(scores), labels[test]
    permuted = np.array([ranks[rng.permutation(own) == 1].mean() for _ in range(Limits.permutations)])
    p = (1 + (permuted >= ranks[own == 1].mean()).sum()) / (1 + Limits.permutations)
    placed = stats.rankdata(both, axis=0)
    N = len(real.rows)
    separation = 2 * ((placed[:N].sum(0) - N * (N + 1) / 2) / (N * len(made.rows))) - 1
    telling = tuple(int(k) for k in np.argsort(-np.abs(separation))[:8])
    return Classified(float(roc_auc_score(own, scores)), float(p), telling, separation)


def _features(x: Float[np.ndarray, "N n"], train: np.ndarray) -> Float[np.ndarray, "N p"]:
    """Principal components, and mean, spread and share of zeros of each sample."""
    counts = bool((x >= 0).all()) and x.max() > 20
    scaled = np.log1p(x) if counts else x
    summary = np.stack([scaled.mean(1), scaled.std(1), (x == 0).mean(1)], axis=1)
    if x.shape[1] <= 20:
        return np.hstack([scaled, summary])
    components = PCA(min(20, len(train) // 4), svd_solver="randomized", random_state=0).fit(scaled[train])
    return np.hstack([components.transform(scaled), summary])


def kind_of(x: Float[np.ndarray, "N n"], shape: tuple[int, ...]) -> str:
    """counts, binary, images or continuous, from the values and the shape of a sample."""
    whole = bool((x == np.round(x)).all()) and bool((x >= 0).all())
    if whole:
        return "binary" if x.max() <= 1 else "counts"
    return "images" if len(shape) == 3 else "continuous"


def measure(
    real: EncodedSample, listed: Callable[[DataSet], list[Family]], simulations: int, clock: Budget, seed: int
) -> tuple[list[Tested], Classified, int]:
    """Every family on x and on simulated data sets, one data set in memory at a time; and how many were simulated."""
    generators = (randomness.generator(seed, f"check {k}") for k in range(simulations + 2))
    reference = DataSet.of(simulated(real, next(generators)), next(generators))
    own = DataSet.of(real, randomness.generator(seed, "check x"))
    chosen = listed(reference)
    values = [[family.compute(own) for family in chosen]]
    classified = classify(own, reference, seed=seed)
    made = _data_sets(real, generators, clock, simulations)
    values.extend([family.compute(data) for family in chosen] for data in made)
    return compare_families(chosen, values), classified, len(values) - 1


def _data_sets(
    real: EncodedSample, generators: Iterator[torch.Generator], clock: Budget, simulations: int
) -> Iterator[DataSet]:
    """Simulated data sets; at least 39, and the others while there is time."""
    for k, generator in enumerate(generators):
        if k % 20 == 0:
            clock.say(f"simulating data set {k + 1} of {simulations}")
        if k >= 39 and clock.left < 0:
            return
        yield DataSet.of(simulated(real, generator), generator)


def positions(values: Values, count: int = 5) -> list[int]:
    """Indices of the largest absolute values."""
    return [int(k) for k in np.argsort(-np.abs(values))[: min(count, len(values))]]
