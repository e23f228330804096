"""Mutual information between every latent and every factor, in nats.

Estimators: `binned` cuts codes and continuous factors into 20 bins of equal width (or equal mass) and takes the plug-in
estimate from counts. It is fast and the convention in the field, and biased upwards by about
(rows - 1)(columns - 1) / 2N. `neighbours` takes the nearest-neighbour estimators of Kraskov and Ross from scikit-learn,
which need no bins and are nearly unbiased, but slower, and unbounded for a code that equals a continuous factor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from sklearn.feature_selection import mutual_info_classif, mutual_info_regression
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.metrics.correlation import pearson_correlations
from vaescope.metrics.importances import fit_factor
from vaescope.metrics.inputs import (
    CodesAndFactors,
    Discrete,
    input_warnings,
    is_varying,
    list_latents,
    once_per_inputs,
    read_inputs,
    standardise,
    without_fit_warnings,
)
from vaescope.metrics.score import MetricValues, OneScore, Score

DEFAULT_BINS = 20
TINY = 1e-12
S = TypeVar("S", bound=Score)


@dataclass(frozen=True, eq=False)
class PairwiseInformation:
    """Mutual information (d, k) and the entropies of the factors (k,), in nats."""

    mutual: np.ndarray
    entropy: np.ndarray

    @property
    def normalised(self) -> np.ndarray:
        """Mutual information as a share of the factor's entropy, (d, k); 0 for constant factors."""
        return np.where(self.entropy > TINY, self.mutual / np.where(self.entropy > TINY, self.entropy, 1.0), 0.0)


def mutual_information(
    codes: object, factors: object, *, estimator: str = "binned", binning: str = "width", discrete: Discrete = None
) -> np.ndarray:
    """I(z_j; v_k) of every latent and factor, (d, k), in nats.

    Args:
        codes: (N, d).
        factors: (N, k).
        estimator: `binned` (counts in 20 bins) or `neighbours` (nearest neighbours: slower, nearly unbiased).
        binning: `width` (bins of equal width) or `mass` (bins with equally many samples).
        discrete: which factors are classes; by default those with few distinct values.

    >>> v = np.arange(1000)[:, None] % 2
    >>> mutual_information(np.hstack([v, 0 * v]), v).round(4)  # log 2 for the copy
    array([[0.6931],
           [0.    ]])
    """
    inputs = _read(codes, factors, discrete, estimator, binning)
    if estimator == "neighbours":
        classes = [np.unique(column, return_inverse=True)[1] for column in inputs.factors.T]
        return _neighbour_information(inputs, [c if d else None for c, d in zip(classes, inputs.discrete, strict=True)])
    return pairwise_information(inputs, binning=binning).mutual


def _read(codes: object, factors: object, discrete: Discrete, estimator: str, binning: str) -> CodesAndFactors:
    validation.choice("estimator", estimator, ("binned", "neighbours"))
    validation.choice("binning", binning, ("width", "mass"))
    return read_inputs(codes, factors, discrete=discrete)


def information_score(
    kind: type[S],
    name: str,
    compute: Callable[..., MetricValues],
    arrays: tuple[object, object, Discrete],
    resampling: tuple[int, int] = (100, 10),
    *,
    estimator: str,
    binning: str,
) -> S:
    """The result of a metric based on mutual information.

    Args:
        kind: of result.
        name: of the metric.
        compute: the metric as a function of inputs, estimator and binning.
        arrays: codes, factors, and which factors are discrete.
        resampling: numbers of half-samples and of shuffles.
        estimator: see `mutual_information`.
        binning: see `mutual_information`.
    """
    inputs, (resamples, shuffles) = _read(*arrays, estimator, binning), resampling
    compute = partial(compute, estimator=estimator, binning=binning)
    notes = partial(information_warnings, estimator=estimator, binning=binning)
    return kind(name, compute, inputs, notes, resamples=resamples, shuffles=shuffles)


@once_per_inputs
def pairwise_information(
    inputs: CodesAndFactors, *, estimator: str = "binned", binning: str = "width"
) -> PairwiseInformation:
    """Mutual information of every latent and factor, and the factors' entropies; continuous factors are binned."""
    labels = factor_classes(inputs, binning=binning)
    if estimator == "neighbours":
        entropy = _entropy(np.stack([np.bincount(c, minlength=labels.max() + 1) for c in labels.T]) / len(labels))
        return PairwiseInformation(_neighbour_information(inputs, list(labels.T)).clip(0, entropy), entropy)
    return ContingencyTables.of(_code_bins(inputs, binning=binning), labels).information()


@once_per_inputs
def significant_information(
    inputs: CodesAndFactors, *, estimator: str = "binned", binning: str = "width"
) -> np.ndarray:
    """Normalised mutual information (d, k) above its mean for shuffled codes, and 0 if it is not significant.

    The threshold is the largest standardised excess of any pair in any shuffle, which corrects for the number of
    pairs: the probability of a false positive is about one over the number of shuffles.
    """
    found = pairwise_information(inputs, estimator=estimator, binning=binning)
    rng = np.random.default_rng(0)
    if estimator == "neighbours":
        shuffled = [inputs.shuffled(rng) for _ in range(10)]
        null = np.stack([pairwise_information(i, estimator=estimator, binning=binning).mutual for i in shuffled])
    else:  # bins do not depend on the order
        tables = ContingencyTables.of(_code_bins(inputs, binning=binning), factor_classes(inputs, binning=binning))
        null = tables.shuffled(rng, 50)
    bias, noise = null.mean(0), null.std(0, ddof=1) + TINY
    threshold = max(3.0, float(((null - bias) / noise).max()))
    share = ((found.mutual - bias) / np.maximum(found.entropy - bias, TINY)).clip(0.0, 1.0)
    return np.where(found.mutual > bias + threshold * noise, share, 0.0)


def information_warnings(inputs: CodesAndFactors, *, estimator: str, binning: str) -> tuple[str, ...]:
    """Warnings of metrics based on mutual information: too few samples per bin, and overfull bins."""
    found = input_warnings(inputs, classes=True)
    if estimator != "binned":
        return found
    cells = DEFAULT_BINS * (int(factor_classes(inputs).max()) + 1)
    if inputs.samples < 2 * cells:
        few = f"{inputs.samples} samples for up to {cells} bins of a latent and a factor: information is biased, and "
        found += (few + "the interval does not cover the bias.",)
    overfull = [
        j
        for j, column in enumerate(inputs.codes.T)
        if len(np.unique(column)) > DEFAULT_BINS and np.bincount(bin_indices(column)).max() > 0.5 * len(column)
    ]
    if binning == "width" and overfull:
        many = f"{list_latents(overfull)}: most samples are in one of {DEFAULT_BINS} bins of equal width, so "
        found += (many + "information is underestimated; compare with binning='mass'.",)
    return found


@once_per_inputs
def _code_bins(inputs: CodesAndFactors, *, binning: str) -> np.ndarray:
    return np.column_stack([bin_indices(column, binning) for column in inputs.codes.T])


def bin_indices(column: np.ndarray, binning: str = "width", bins: int = DEFAULT_BINS) -> np.ndarray:
    """The bin of every value; a column with at most `bins` distinct values has one bin per value.

    >>> bin_indices(np.array([0.0, 0.1, 1.0, 0.1])).tolist()
    [0, 1, 2, 1]
    """
    if len(np.unique(column[: 4 * bins])) <= bins:  # avoids sorting a long column
        values, indices = np.unique(column, return_inverse=True)
        if len(values) <= bins:
            return indices
    if binning == "mass":
        edges = np.quantile(column, np.linspace(0, 1, bins + 1)[1:-1])
        atoms = edges[1:][edges[1:] == edges[:-1]]  # a value with more samples than a bin gets its own bin
        edges = np.unique(np.concatenate([edges, np.nextafter(atoms, -np.inf)]))
        return np.searchsorted(edges, column, side="left")
    edges = np.linspace(column.min(), column.max(), bins + 1)[1:-1]
    return np.searchsorted(edges, column, side="right")


@once_per_inputs
def factor_classes(inputs: CodesAndFactors, *, binning: str = "width", bins: int = DEFAULT_BINS) -> np.ndarray:
    """Factors as class numbers (N, k); continuous factors are binned."""
    columns = [
        np.unique(column, return_inverse=True)[1] if discrete else bin_indices(column, binning, bins)
        for column, discrete in zip(inputs.factors.T, inputs.discrete, strict=True)
    ]
    return np.column_stack(columns)


@dataclass(frozen=True, eq=False)
class ContingencyTables:
    """Counts of every latent's bins against every factor's classes, all from one call of bincount."""

    cells: np.ndarray
    """Offset of every sample's bin of every latent in all tables, (N, d)."""
    labels: np.ndarray
    """Offset of every sample's class of every factor in the tables of a latent, (N, k)."""
    shape: tuple[int, int, int, int]
    """Latents, factors, bins and classes."""

    @classmethod
    def of(cls, cells: np.ndarray, labels: np.ndarray) -> ContingencyTables:
        d, k, rows, columns = cells.shape[1], labels.shape[1], int(cells.max()) + 1, int(labels.max()) + 1
        size = rows * columns
        return cls(cells * columns + np.arange(d) * k * size, labels + np.arange(k) * size, (d, k, rows, columns))

    def information(self) -> PairwiseInformation:
        """The plug-in estimate."""
        tables, count = self._counts(self.cells), len(self.cells)
        code_entropy, factor_entropy = _entropy(tables.sum(3) / count), _entropy(tables.sum(2) / count)
        joint = _entropy(tables.reshape(*self.shape[:2], -1) / count)
        return PairwiseInformation((code_entropy + factor_entropy - joint).clip(0), factor_entropy[0])

    def shuffled(self, rng: np.random.Generator, shuffles: int) -> np.ndarray:
        """Mutual information with the samples of the codes in random orders, (shuffles, d, k).

        Only the joint entropy changes, log N - Σ n log n / N, and n log n is looked up.
        """
        count = len(self.cells)
        n = np.arange(1, count + 1)
        n_log_n = np.concatenate([[0.0], n * np.log(n)])
        tables = self._counts(self.cells)
        marginals = n_log_n[tables.sum(3)].sum(2) + n_log_n[tables.sum(2)].sum(2)
        orders = (rng.permutation(count) for _ in range(shuffles))
        joint = [n_log_n[self._counts(self.cells[order])].sum((2, 3)) for order in orders]
        return (np.log(count) + (np.stack(joint) - marginals) / count).clip(0)

    def _counts(self, cells: np.ndarray) -> np.ndarray:
        index = (cells[:, :, None] + self.labels[:, None, :]).ravel()
        return np.bincount(index, minlength=int(np.prod(self.shape))).reshape(self.shape)


def _entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)


def _neighbour_information(inputs: CodesAndFactors, labels: Sequence[np.ndarray | None]) -> np.ndarray:
    """Ross's estimate for discrete factors, Kraskov's for continuous factors (labels None), (d, k)."""
    columns = []
    with without_fit_warnings():
        for column, classes in zip(standardise(inputs.factors).T, labels, strict=True):
            estimate = mutual_info_regression if classes is None else mutual_info_classif
            found = estimate(
                standardise(inputs.codes),
                column if classes is None else classes,
                discrete_features=False,
                n_neighbors=3,
                random_state=0,
            )
            columns.append(found)
    return np.column_stack(columns)


def mig(
    codes: object, factors: object, *, estimator: str = "binned", binning: str = "width", discrete: Discrete = None
) -> Score:
    """Gap between the two latents with the most information about a factor, over its entropy (Chen et al. 2018).

    High only if every factor is encoded by a single latent. A latent that encodes several factors is not penalised; see
    `mig_sup`.

    Args:
        codes: (N, d).
        factors: (N, k).
        estimator: `binned` (counts in 20 bins) or `neighbours` (nearest neighbours: slower, nearly unbiased).
        binning: `width` (bins of equal width) or `mass` (bins with equally many samples).
        discrete: which factors are classes; by default those with few distinct values.

    >>> v = np.random.default_rng(0).integers(0, 4, (1000, 2))
    >>> bool(mig(v, v).score > 0.98), bool(mig(np.hstack([v, v]), v).score < 0.01)  # one copy, two copies
    (True, True)
    """
    return information_score(Score, "MIG", _mig, (codes, factors, discrete), estimator=estimator, binning=binning)


def mig_sup(
    codes: object,
    factors: object,
    *,
    active: Sequence[bool] | np.ndarray | None = None,
    estimator: str = "binned",
    binning: str = "width",
    discrete: Discrete = None,
) -> Score:
    """Gap between the two factors that a latent is most informative about, averaged over latents (Li et al. 2020).

    `per_factor` is the mean over the latents that are most informative about the factor.

    Args:
        codes: (N, d).
        factors: (N, k).
        active: which latents to average over; by default all that vary.
        estimator: `binned` (counts in 20 bins) or `neighbours` (nearest neighbours: slower, nearly unbiased).
        binning: `width` (bins of equal width) or `mass` (bins with equally many samples).
        discrete: which factors are classes; by default those with few distinct values.
    """
    inputs = _read(codes, factors, discrete, estimator, binning)
    mask = is_varying(inputs.codes) if active is None else validation.latent_mask(active, inputs.latents)
    compute = partial(_mig_sup, active=mask, estimator=estimator, binning=binning)
    return Score("MIG-sup", compute, inputs, partial(information_warnings, estimator=estimator, binning=binning))


def top_gap(relevance: np.ndarray) -> np.ndarray:
    """Largest minus second largest entry of every column; a single row is compared with 0."""
    ordered = np.sort(relevance, axis=0)[::-1]
    return ordered[0] - (ordered[1] if len(ordered) > 1 else 0.0)


def mean_by_best_factor(per_latent: np.ndarray, relevance: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Mean of a value per latent over the latents whose most relevant factor this is; NaN if there are none."""
    best = relevance.argmax(1)
    groups = [per_latent[mask & (best == k)] for k in range(relevance.shape[1])]
    return np.array([group.mean() if group.size else np.nan for group in groups])


def _mig(inputs: CodesAndFactors, estimator: str, binning: str) -> MetricValues:
    found = pairwise_information(inputs, estimator=estimator, binning=binning)
    per_factor = top_gap(found.normalised)
    return MetricValues({"mig": float(per_factor.mean())}, per_factor, {"mutual_information": found.mutual})


def _mig_sup(inputs: CodesAndFactors, active: np.ndarray, estimator: str, binning: str) -> MetricValues:
    share = pairwise_information(inputs, estimator=estimator, binning=binning).normalised
    per_latent = top_gap(share.T)
    score = float(per_latent[active].mean()) if active.any() else 0.0
    per_factor = mean_by_best_factor(per_latent, share, active)
    return MetricValues({"mig_sup": score}, per_factor, {"per_latent": per_latent})


@dataclass(frozen=True, eq=False)
class AggregatedMIG:
    """MIG and MIG-sup of posteriors, and the information they are computed from."""

    score: float
    per_factor: np.ndarray
    sup: float
    """MIG-sup over active latents."""
    mutual_information: np.ndarray
    """(d, k), in nats."""
    factor_entropy: np.ndarray


def aggregated_mig(
    mean: object,
    variance: object,
    factors: object,
    *,
    active: Sequence[bool] | np.ndarray | None = None,
    draws: int = 2000,
    discrete: Discrete = None,
    seed: int = 0,
) -> AggregatedMIG:
    """Mutual information gaps of sampled codes, from the mean and variance of every posterior.

    A latent whose mean moves less than its posterior is wide has no information here.

    Args:
        mean: (N, d).
        variance: (N, d), > 0.
        factors: (N, k); continuous factors are binned.
        active: which latents to average over for MIG-sup; by default all.
        draws: number of samples z.
        discrete: which factors are classes; by default those with few distinct values.
        seed: seed of the samples z.

    >>> v = np.repeat([0.0, 1.0], 50)[:, None]
    >>> found = aggregated_mig(np.hstack([v, 0 * v]), np.full((100, 2), 1e-4), v)
    >>> round(found.score, 3)
    1.0
    """
    centre, spread = validation.matrix(mean, "mean"), validation.matrix(variance, "variance")
    if spread.shape != centre.shape:
        raise InputError(f"mean and variance must have the same shape, got {centre.shape} and {spread.shape}.")
    d = centre.shape[1]
    inputs = read_inputs(np.hstack([centre, spread]), factors, discrete=discrete)  # shuffles both alike
    centre, spread = inputs.codes[:, :d], inputs.codes[:, d:]
    if not (spread > 0).all():
        raise InputError("variance must be > 0; pass variances, not log-variances.")
    validation.integer("draws", draws, minimum=2)
    mask = np.ones(d, dtype=bool) if active is None else validation.latent_mask(active, d)
    found = _information(centre, spread, factor_classes(inputs), draws, seed)
    per_latent = top_gap(found.normalised.T)
    per_factor = top_gap(found.normalised)
    sup = float(per_latent[mask].mean()) if mask.any() else 0.0
    return AggregatedMIG(float(per_factor.mean()), per_factor, sup, found.mutual, found.entropy)


def _information(
    mean: np.ndarray, variance: np.ndarray, labels: np.ndarray, draws: int, seed: int
) -> PairwiseInformation:
    """Every latent against every factor; one matrix of densities serves all factors of a latent."""
    rng = np.random.default_rng(seed)
    N, d = mean.shape
    chosen = np.arange(N) if draws >= N else rng.choice(N, draws, replace=False)
    z = mean[chosen] + np.sqrt(variance[chosen]) * rng.standard_normal((len(chosen), d))
    values = [np.bincount(column) for column in labels.T]
    offsets = np.concatenate([[0], np.cumsum([len(v) for v in values])])
    same_value = np.zeros((N, offsets[-1]))  # indicators of all values of all factors
    columns = labels + offsets[:-1]
    np.put_along_axis(same_value, columns, 1.0, axis=1)
    counts = same_value.sum(0)
    mutual = np.zeros((d, labels.shape[1]))
    for part in np.array_split(np.arange(len(chosen)), max(1, len(chosen) * N // 2**22)):  # 32 MB of densities
        drawn_columns = columns[chosen[part]]
        for j in range(d):
            density = -0.5 * ((z[part, j, None] - mean[:, j]) ** 2 / variance[:, j] + np.log(variance[:, j]))
            density = np.exp(density - density.max(1, keepdims=True))
            conditional = np.take_along_axis(density @ same_value, drawn_columns, axis=1) / counts[drawn_columns]
            tiny = np.finfo(float).tiny
            log_ratio = np.log(np.maximum(conditional, tiny)) - np.log(density.mean(1, keepdims=True))
            mutual[j] += log_ratio.sum(0)
    shares = [v / N for v in values]
    entropy = np.array([-(p[p > 0] * np.log(p[p > 0])).sum() for p in shares])
    return PairwiseInformation(np.clip(mutual / len(chosen), 0, entropy), entropy)


def sap(codes: object, factors: object, *, classifier: str = "thresholds", discrete: Discrete = None) -> Score:
    """Gap between the two latents that best predict a factor on their own (Kumar et al. 2018).

    Continuous factors are scored by the squared correlation, discrete factors by the held-out accuracy of a classifier.

    Args:
        codes: (N, d).
        factors: (N, k).
        classifier: `thresholds` on one latent, as in the paper, with balanced accuracy rescaled so that chance is 0; or
            `svm`, the accuracy of a linear support vector machine as in public code, which cannot separate the middle
            ones of ordered classes and depends on the scale of a latent.
        discrete: which factors are classes; by default those with few distinct values.

    >>> v = np.random.default_rng(0).normal(size=(1000, 2))
    >>> bool(sap(v, v).score > 0.98)
    True
    """
    validation.choice("classifier", classifier, CLASSIFIERS)
    inputs = read_inputs(codes, factors, discrete=discrete)
    compute = partial(_sap, classifier=classifier)
    resamples, shuffles = (10, 3) if any(inputs.discrete) else (100, 5)  # classifiers are slow
    notes = partial(input_warnings, classes=True)
    return Score("SAP", compute, inputs, notes, resamples=resamples, shuffles=shuffles)


def _sap(inputs: CodesAndFactors, classifier: str) -> MetricValues:
    relevance = np.square(pearson_correlations(inputs.codes, inputs.factors))
    fit, test = inputs.halves
    for k in np.flatnonzero(inputs.discrete):
        relevance[:, k] = CLASSIFIERS[classifier](fit.codes, fit.factors[:, k], test.codes, test.factors[:, k])
    per_factor = top_gap(relevance)
    return MetricValues({"sap": float(per_factor.mean())}, per_factor, {"predictability": relevance})


def threshold_scores(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> np.ndarray:
    """Balanced accuracy of thresholds on every latent, with one interval per class; 0 is chance."""
    classes, labels, counts = np.unique(y, return_inverse=True, return_counts=True)
    known = np.isin(y_test, classes)
    if len(classes) < 2 or not known.any():
        return np.zeros(x.shape[1])
    x_test, y_test = x_test[known], y_test[known]
    weights = 1 / counts[labels]  # every class has the same weight
    test_labels = np.searchsorted(classes, y_test)
    test_weights = 1 / np.bincount(test_labels)[test_labels]
    test_weights /= test_weights.sum()
    x, x_test = (v.astype(np.float32) for v in np.split(standardise(np.vstack([x, x_test])), [len(x)]))
    accuracy = np.empty(x.shape[1])
    for j in range(x.shape[1]):
        tree = DecisionTreeClassifier(max_leaf_nodes=len(classes), random_state=0)
        tree.fit(x[:, [j]], labels, sample_weight=weights, check_input=False)
        accuracy[j] = test_weights @ (tree.predict(x_test[:, [j]], check_input=False) == test_labels)
    chance = 1 / len(np.unique(test_labels))
    return ((accuracy - chance) / (1 - chance)).clip(min=0.0) if chance < 1 else np.zeros(x.shape[1])


def svm_scores(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> np.ndarray:
    """Accuracy of a linear support vector machine on every latent."""
    if len(np.unique(y)) < 2:
        return np.full(x.shape[1], np.mean(y_test == y[0]))
    svm = LinearSVC(C=0.01, class_weight="balanced", random_state=0)
    return np.array([np.mean(svm.fit(x[:, [j]], y).predict(x_test[:, [j]]) == y_test) for j in range(x.shape[1])])


CLASSIFIERS = {"thresholds": threshold_scores, "svm": svm_scores}


class EDI(Score):
    """The three scores of Julka, Wang & Granitzer 2024."""

    modularity = OneScore()
    compactness = OneScore()
    explicitness = OneScore()


def edi(
    codes: object, factors: object, *, estimator: str = "binned", binning: str = "width", discrete: Discrete = None
) -> EDI:
    """Exclusivity disentanglement index (Julka, Wang & Granitzer 2024), each score from 0 to 1.

    Exclusivity of a row of relations is its largest entry minus the root mean square of the others. Modularity:
    exclusivity of each latent over factors, credited to its best factor, at most 1 per factor. Compactness: exclusivity
    of each factor over latents. The relation is the significant mutual information over the factor's entropy; the
    authors estimate it with neural networks. Explicitness: held-out accuracy or R² of trees on all latents.
    `per_factor` is the compactness.

    Args:
        codes: (N, d).
        factors: (N, k).
        estimator: `binned` (counts in 20 bins) or `neighbours` (nearest neighbours: slower, nearly unbiased).
        binning: `width` (bins of equal width) or `mass` (bins with equally many samples).
        discrete: which factors are classes; by default those with few distinct values.

    >>> v = np.random.default_rng(0).integers(0, 4, (400, 2))
    >>> found = edi(v, v)
    >>> bool(found.modularity > 0.9), bool(found.compactness > 0.9)
    (True, True)
    """
    arrays = codes, factors, discrete
    return information_score(EDI, "EDI", _edi, arrays, (10, 3), estimator=estimator, binning=binning)


def exclusivity(relation: np.ndarray) -> np.ndarray:
    """Largest entry of every row minus the root mean square of the others.

    >>> exclusivity(np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.5]])).tolist()
    [1.0, 0.0]
    """
    ordered = np.sort(relation, axis=1)
    if relation.shape[1] < 2:
        return ordered[:, -1]
    return ordered[:, -1] - np.sqrt(np.square(ordered[:, :-1]).mean(1))


def _edi(inputs: CodesAndFactors, estimator: str, binning: str) -> MetricValues:
    relation = significant_information(inputs, estimator=estimator, binning=binning)
    per_latent = exclusivity(relation)
    credited = np.zeros_like(relation)
    credited[np.arange(len(relation)), relation.argmax(1)] = per_latent
    modularity, compactness = np.minimum(credited.sum(0), 1.0), exclusivity(relation.T)
    explicitness = np.array([fit_factor(inputs, k)[1] for k in range(inputs.factor_count)])
    scores = {
        "modularity": float(modularity.mean()),
        "compactness": float(compactness.mean()),
        "explicitness": float(explicitness.mean()),
    }
    return MetricValues(scores, compactness, {"per_latent": per_latent, "explicitness_per_factor": explicitness})
