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
SHUFFLES = {"binned": 50, "neighbours": 10}
TINY = 1e-12
CROWDED = 0.5  # share of samples in one bin beyond which bins of equal width mislead


@dataclass(frozen=True, eq=False)
class Information:
    """Mutual information (d, k) and the factors' entropies (k,)."""

    mutual: np.ndarray
    entropy: np.ndarray

    @property
    def normalised(self) -> np.ndarray:
        """Share of every factor's entropy that a latent knows, (d, k); nothing of a factor that does not vary."""
        return np.where(self.entropy > TINY, self.mutual / np.where(self.entropy > TINY, self.entropy, 1.0), 0.0)


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
    arrays = data(codes, factors, discrete=discrete)
    if estimator == "neighbours":
        return _neighbours(arrays, [c if d else None for c, d in zip(_classes(arrays), arrays.discrete, strict=True)])
    return information(arrays, binning=binning).mutual


def check_estimator(estimator: str, binning: str) -> None:
    if estimator not in ESTIMATORS:
        raise InputError(f"estimator must be binned or neighbours, got {estimator!r}.")
    if binning not in BINNINGS:
        raise InputError(f"binning must be width or mass, got {binning!r}.")


def information(arrays: Data, *, estimator: str = "binned", binning: str = "width") -> Information:
    """Every pair's mutual information and every factor's entropy; continuous factors count as their bins."""
    labels = factor_classes(arrays, binning=binning)
    if estimator == "neighbours":
        entropy = _entropy(np.stack([np.bincount(c, minlength=labels.max() + 1) for c in labels.T]) / len(labels))
        return Information(_neighbours(arrays, list(labels.T)).clip(0, entropy), entropy)
    return _plug_in(np.column_stack([bins_of(column, binning) for column in arrays.codes.T]), labels)


def significant_share(arrays: Data, *, estimator: str = "binned", binning: str = "width") -> np.ndarray:
    """Normalised information (d, k) less what shuffled codes seem to have, and 0 where it might be theirs.

    The bar is the largest standardised excess of any pair in any of the shuffles, so that with several latents
    and factors none of them is found by luck more than once in so many shuffles.
    """
    found = information(arrays, estimator=estimator, binning=binning)
    rng = np.random.default_rng(0)
    shuffles = SHUFFLES[estimator]
    null = np.stack(
        [information(arrays.null(rng), estimator=estimator, binning=binning).mutual for _ in range(shuffles)]
    )
    bias, noise = null.mean(0), null.std(0, ddof=1) + TINY
    bar = max(3.0, float(((null - bias) / noise).max()))
    share = ((found.mutual - bias) / np.maximum(found.entropy - bias, TINY)).clip(0.0, 1.0)
    return np.where(found.mutual > bias + bar * noise, share, 0.0)


def binned_cautions(arrays: Data, *, estimator: str, binning: str) -> tuple[str, ...]:
    """Cautions of metrics on mutual information; bins of equal width say little where most samples share one."""
    notes = cautions(arrays, classes=True)
    if estimator != "binned":
        return notes
    cells = BINS * (int(factor_classes(arrays).max()) + 1)
    if arrays.samples < 2 * cells:
        few = f"{arrays.samples} samples for up to {cells} bins of a latent and a factor: information is misjudged, "
        notes += (few + "and the interval does not cover it.",)
    if binning != "width":
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
        atoms = edges[1:][edges[1:] == edges[:-1]]  # a value that fills whole bins gets one to itself
        edges = np.unique(np.concatenate([edges, np.nextafter(atoms, -np.inf)]))
        return np.searchsorted(edges, column, side="left")
    edges = np.linspace(column.min(), column.max(), bins + 1)[1:-1]
    return np.searchsorted(edges, column, side="right")


def factor_classes(arrays: Data, *, binning: str = "width", bins: int = BINS) -> np.ndarray:
    """Factors as class numbers (N, k): discrete ones as they are, continuous ones binned."""
    columns = [
        np.unique(column, return_inverse=True)[1] if discrete else bins_of(column, binning, bins)
        for column, discrete in zip(arrays.factors.T, arrays.discrete, strict=True)
    ]
    return np.column_stack(columns)


def _classes(arrays: Data) -> list[np.ndarray]:
    return [np.unique(column, return_inverse=True)[1] for column in arrays.factors.T]


def _plug_in(cells: np.ndarray, labels: np.ndarray) -> Information:
    """All contingency tables by one count."""
    count, d, k = len(cells), cells.shape[1], labels.shape[1]
    rows, columns = int(cells.max()) + 1, int(labels.max()) + 1
    pairs = (np.arange(d)[:, None] * k + np.arange(k)) * rows * columns
    index = pairs[None] + cells[:, :, None] * columns + labels[:, None, :]
    tables = np.bincount(index.ravel(), minlength=d * k * rows * columns).reshape(d, k, rows, columns) / count
    code_entropy, factor_entropy = _entropy(tables.sum(3)), _entropy(tables.sum(2))
    joint = _entropy(tables.reshape(d, k, -1))
    return Information((code_entropy + factor_entropy - joint).clip(0), factor_entropy[0])


def _entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)


def _neighbours(arrays: Data, labels: Sequence[np.ndarray | None]) -> np.ndarray:
    """Ross's estimate for factors with classes, Kraskov's for those without, (d, k)."""
    columns = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # many classes look like a regression target
        for column, classes in zip(standardised(arrays.factors).T, labels, strict=True):
            estimate = mutual_info_regression if classes is None else mutual_info_classif
            found = estimate(
                standardised(arrays.codes),
                column if classes is None else classes,
                discrete_features=False,
                n_neighbors=NEIGHBOURS,
                random_state=0,
            )
            columns.append(found)
    return np.column_stack(columns)
