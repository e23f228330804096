"""Mutual information between every latent and every factor, in nats, by stated estimators.

`binned`: codes and continuous factors are cut into 20 bins of equal width (or equal mass), then the
plug-in estimate from counts. Fast and the field's convention; biased upwards by about
(rows - 1)(columns - 1) / 2N. `neighbours`: Kraskov's and Ross's nearest-neighbour estimators, as in
scikit-learn: no bins, nearly unbiased, slower, and unbounded for a code that equals a continuous factor.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.feature_selection import mutual_info_classif, mutual_info_regression

from vaescope.errors import InputError
from vaescope.metrics.cautions import cautions
from vaescope.metrics.inputs import Data, data, standardised

BINS = 20
BINNINGS = ("width", "mass")
ESTIMATORS = ("binned", "neighbours")
NEIGHBOURS = 3
CROWDED = 0.5  # share of samples in one bin beyond which bins of equal width mislead


@dataclass(frozen=True, eq=False)
class Information:
    """Mutual information (d, k), the factors' entropies (k,), and what independent variables would seem to
    share: its mean and standard deviation (d, k)."""

    mutual: np.ndarray
    entropy: np.ndarray
    bias: np.ndarray
    noise: np.ndarray

    @property
    def normalised(self) -> np.ndarray:
        """Share of every factor's entropy that a latent knows, (d, k)."""
        return self.mutual / self.entropy

    @property
    def significant(self) -> np.ndarray:
        """The same less its bias, and 0 where it is within three standard deviations of independence."""
        share = ((self.mutual - self.bias) / np.maximum(self.entropy - self.bias, 1e-12)).clip(0.0, 1.0)
        return np.where(self.mutual > self.bias + 3 * self.noise, share, 0.0)


def mutual_information(
    codes: object,
    factors: object,
    *,
    estimator: str = "binned",
    binning: str = "width",
    discrete: bool | Sequence[bool] | None = None,
) -> np.ndarray:
    """I(z_j; v_k) for every latent and factor, (d, k), in nats.

    >>> v = np.arange(1000)[:, None] % 2
    >>> mutual_information(np.hstack([v, 0 * v]), v).round(4)  # log 2 for the copy
    array([[0.6931],
           [0.    ]])
    """
    check_estimator(estimator, binning)
    return information(data(codes, factors, discrete=discrete), estimator=estimator, binning=binning).mutual


def check_estimator(estimator: str, binning: str) -> None:
    if estimator not in ESTIMATORS:
        raise InputError(f"estimator must be binned or neighbours, got {estimator!r}.")
    if binning not in BINNINGS:
        raise InputError(f"binning must be width or mass, got {binning!r}.")


def information(arrays: Data, *, estimator: str = "binned", binning: str = "width") -> Information:
    """Every pair's mutual information and every factor's entropy."""
    labels = factor_classes(arrays, binning=binning)
    cells = np.column_stack([bins_of(column, binning) for column in arrays.codes.T])
    result = _plug_in(cells, labels)
    if estimator == "binned":
        return result
    noise = np.full_like(result.bias, 1 / np.sqrt(arrays.samples))
    return Information(_neighbours(arrays), result.entropy, np.zeros_like(noise), noise)


def binned_cautions(arrays: Data, *, estimator: str, binning: str) -> tuple[str, ...]:
    """Cautions of metrics on mutual information; bins of equal width say little where most samples share one."""
    notes = cautions(arrays, classes=True)
    if estimator != "binned" or binning != "width":
        return notes
    crowded = [j for j, column in enumerate(arrays.codes.T) if _fullest(column) > CROWDED]
    if not crowded:
        return notes
    which = ", ".join(map(str, crowded[:8])) + (", …" if len(crowded) > 8 else "")
    return (
        *notes,
        f"latent{'s' * (len(crowded) > 1)} {which}: most samples share one of {BINS} bins of equal width, so "
        "information is lost; compare with binning='mass'.",
    )


def _fullest(column: np.ndarray) -> float:
    """The share of the fullest bin, of a column that has to be binned."""
    if len(np.unique(column)) <= BINS:
        return 0.0
    return float(np.bincount(bins_of(column)).max() / len(column))


def bins_of(column: np.ndarray, binning: str = "width", bins: int = BINS) -> np.ndarray:
    """The bin of every value; a column with no more values than bins keeps them as they are.

    >>> bins_of(np.array([0.0, 0.1, 1.0, 0.1])).tolist()
    [0, 1, 2, 1]
    """
    values, own = np.unique(column, return_inverse=True)
    if len(values) <= bins:
        return own
    if binning == "mass":
        edges = np.quantile(column, np.linspace(0, 1, bins + 1)[1:-1])
    else:
        edges = np.linspace(column.min(), column.max(), bins + 1)[1:-1]
    return np.searchsorted(edges, column, side="right")


def factor_classes(arrays: Data, *, binning: str = "width", bins: int = BINS) -> np.ndarray:
    """Factors as class numbers (N, k): discrete ones as they are, continuous ones binned."""
    columns = [
        np.unique(column, return_inverse=True)[1] if discrete else bins_of(column, binning, bins)
        for column, discrete in zip(arrays.factors.T, arrays.discrete, strict=True)
    ]
    return np.column_stack(columns)


def _plug_in(cells: np.ndarray, labels: np.ndarray) -> Information:
    """All contingency tables by one count."""
    count, d, k = len(cells), cells.shape[1], labels.shape[1]
    rows, columns = int(cells.max()) + 1, int(labels.max()) + 1
    pairs = (np.arange(d)[:, None] * k + np.arange(k)) * rows * columns
    index = pairs[None] + cells[:, :, None] * columns + labels[:, None, :]
    tables = np.bincount(index.ravel(), minlength=d * k * rows * columns).reshape(d, k, rows, columns) / count
    by_code, by_factor = tables.sum(3), tables.sum(2)
    code_entropy, factor_entropy = _entropy(by_code), _entropy(by_factor)
    joint = _entropy(tables.reshape(d, k, -1))
    freedom = ((by_code > 0).sum(-1) - 1) * ((by_factor > 0).sum(-1) - 1)
    mutual = (code_entropy + factor_entropy - joint).clip(0)  # 2N times it is χ² under independence
    return Information(mutual, factor_entropy[0], freedom / (2 * count), np.sqrt(2 * freedom) / (2 * count))


def _entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)


def _neighbours(arrays: Data) -> np.ndarray:
    columns = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # many classes look like a regression target
        for column, discrete in zip(arrays.factors.T, arrays.discrete, strict=True):
            estimate = mutual_info_classif if discrete else mutual_info_regression
            target = np.unique(column, return_inverse=True)[1] if discrete else column
            columns.append(
                estimate(
                    standardised(arrays.codes),
                    target,
                    discrete_features=False,
                    n_neighbors=NEIGHBOURS,
                    random_state=0,
                )
            )
    return np.column_stack(columns)
