"""Linear predictors of factors from codes, fitted on one half of the samples and scored on the other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from vaescope.metrics.information import factor_classes
from vaescope.metrics.inputs import CodesAndFactors, once_per_inputs, standardise
from vaescope.metrics.logistic import LogisticRegression
from vaescope.metrics.r2 import held_out_r2

AUC_CLASSES = 10  # classes of equal mass into which continuous factors are cut


class Predictions(NamedTuple):
    """Held-out class probabilities of a factor, restricted to the classes that occur in both halves."""

    probabilities: np.ndarray
    """(N, classes)"""
    truth: np.ndarray
    """Class numbers (N,) of the same samples."""
    frequencies: np.ndarray
    """Of the classes in the half for fitting."""


def one_against_rest_auc(inputs: CodesAndFactors) -> np.ndarray:
    """Area under the ROC curve (k,), averaged over the classes of every factor."""
    return np.array([_auc(class_predictions(inputs, k)) for k in range(inputs.factor_count)])


def predictive_information(inputs: CodesAndFactors) -> np.ndarray:
    """Share of a factor's uncertainty that a linear predictor removes (k,), from 0 to 1.

    Discrete factors: cross-entropy of logistic regression. Continuous factors: squared error (R²).
    """
    fit, test = inputs.halves
    shares = held_out_r2(fit, test)
    for k in np.flatnonzero(inputs.discrete):
        shares[k] = _entropy_removed(class_predictions(inputs, int(k)))
    return shares.clip(0.0, 1.0)


@once_per_inputs
def class_predictions(inputs: CodesAndFactors, k: int) -> Predictions:
    """Logistic regression of the classes of factor k; continuous factors are cut into classes of equal mass."""
    labels = factor_classes(inputs, binning="mass", bins=AUC_CLASSES)[:, k]
    codes, middle = standardise(inputs.codes), (inputs.samples + 1) // 2
    common = np.intersect1d(labels[:middle], labels[middle:])
    fit, test = np.isin(labels[:middle], common), np.isin(labels[middle:], common)
    known, truth = (np.searchsorted(common, half) for half in (labels[:middle][fit], labels[middle:][test]))
    frequencies = np.bincount(known, minlength=len(common)) / max(len(known), 1)
    if len(common) < 2:
        return Predictions(np.ones((len(truth), len(common))), truth, frequencies)
    model = LogisticRegression(codes[:middle][fit], known, len(common))
    return Predictions(model.probabilities(codes[middle:][test]), truth, frequencies)


def _auc(found: Predictions) -> float:
    """The mean over classes of P(a sample of the class ranks above another one); ties count one half."""
    classes, samples = len(found.frequencies), len(found.truth)
    if classes < 2:
        return 0.5
    inside = np.eye(classes, dtype=bool)[found.truth]
    ranks, counts = rankdata(found.probabilities, axis=0), inside.sum(0)
    above = np.where(inside, ranks, 0.0).sum(0) - counts * (counts + 1) / 2
    return float((above / (counts * (samples - counts))).mean())


def _entropy_removed(found: Predictions) -> float:
    if len(found.frequencies) < 2:
        return 0.0
    tiny = np.finfo(float).eps
    chosen = found.probabilities[np.arange(len(found.truth)), found.truth].clip(tiny, 1.0)
    return 1 - float(np.log(chosen).mean() / np.log(found.frequencies[found.truth]).mean())
