"""Mutual information between every latent and every factor, in nats.

Estimators: `binned` cuts codes and continuous factors into 20 bins of equal width (or equal mass) and takes the plug-in
estimate from counts. It is fast and the convention in the field, and biased upwards by about
(rows - 1)(columns - 1) / 2N. `neighbours` takes the nearest-neighbour estimators of Kraskov and Ross from scikit-learn,
which need no bins and are nearly unbiased, but slower, and unbounded for a code that equals a continuous factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.feature_selection import mutual_info_classif, mutual_info_regression

from vaescope import validation
from vaescope.metrics.input_warnings import input_warnings, list_latents
from vaescope.metrics.inputs import CodesAndFactors, once_per_inputs, read_inputs, standardise
from vaescope.metrics.quiet import without_fit_warnings

DEFAULT_BINS = 20
BINNINGS = ("width", "mass")
ESTIMATORS = ("binned", "neighbours")
NEIGHBOUR_COUNT = 3
NULL_SHUFFLES = {"binned": 50, "neighbours": 10}
TINY = 1e-12
MAX_BIN_SHARE = 0.5  # share of samples in one bin above which bins of equal width are misleading


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
    codes: object,
    factors: object,
    *,
    estimator: str = "binned",
    binning: str = "width",
    discrete: bool | Sequence[bool] | None = None,
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
    check_estimator(estimator, binning)
    inputs = read_inputs(codes, factors, discrete=discrete)
    if estimator == "neighbours":
        classes = [np.unique(column, return_inverse=True)[1] for column in inputs.factors.T]
        return _neighbour_information(inputs, [c if d else None for c, d in zip(classes, inputs.discrete, strict=True)])
    return pairwise_information(inputs, binning=binning).mutual


def check_estimator(estimator: str, binning: str) -> None:
    validation.choice("estimator", estimator, ESTIMATORS)
    validation.choice("binning", binning, BINNINGS)


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
    null = _shuffled_information(inputs, estimator, binning)
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
    overfull = [j for j, column in enumerate(inputs.codes.T) if _largest_bin_share(column) > MAX_BIN_SHARE]
    if binning != "width" or not overfull:
        return found
    return (
        *found,
        f"{list_latents(overfull)}: most samples are in one of {DEFAULT_BINS} bins of equal width, so information is "
        "underestimated; compare with binning='mass'.",
    )


def _largest_bin_share(column: np.ndarray) -> float:
    """The share of samples in the fullest bin; 0 for a column that needs no bins."""
    if len(np.unique(column)) <= DEFAULT_BINS:
        return 0.0
    return float(np.bincount(bin_indices(column)).max() / len(column))


def _shuffled_information(inputs: CodesAndFactors, estimator: str, binning: str) -> np.ndarray:
    """Mutual information of shuffled codes and the factors, (shuffles, d, k). Bins do not depend on the order."""
    rng, shuffles = np.random.default_rng(0), NULL_SHUFFLES[estimator]
    if estimator == "neighbours":
        shuffled = [inputs.shuffled(rng) for _ in range(shuffles)]
        return np.stack([pairwise_information(one, estimator=estimator, binning=binning).mutual for one in shuffled])
    tables = ContingencyTables.of(_code_bins(inputs, binning=binning), factor_classes(inputs, binning=binning))
    return tables.shuffled(rng, shuffles)


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
                n_neighbors=NEIGHBOUR_COUNT,
                random_state=0,
            )
            columns.append(found)
    return np.column_stack(columns)
