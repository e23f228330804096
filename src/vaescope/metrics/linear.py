"""Linear predictors of factors from codes, fitted on one half of the samples and scored on the other."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from vaescope.metrics.information import factor_classes
from vaescope.metrics.inputs import CodesAndFactors, standardise
from vaescope.metrics.r2 import held_out_r2

AUC_CLASSES = 10  # classes of equal mass into which continuous factors are cut


def one_against_rest_auc(inputs: CodesAndFactors) -> np.ndarray:
    """Area under the ROC curve (k,), averaged over the classes of every factor."""
    labels = factor_classes(inputs, binning="mass", bins=AUC_CLASSES)
    return np.array([_auc(_fit_and_test(inputs, column)) for column in labels.T])


def predictive_information(inputs: CodesAndFactors) -> np.ndarray:
    """Share of a factor's uncertainty that a linear predictor removes (k,), from 0 to 1.

    Discrete factors: cross-entropy of logistic regression. Continuous factors: squared error (R²).
    """
    fit, test = inputs.halves
    shares = held_out_r2(fit, test)
    for k in np.flatnonzero(inputs.discrete):
        labels = np.unique(inputs.factors[:, k], return_inverse=True)[1]
        shares[k] = _entropy_removed(_fit_and_test(inputs, labels))
    return shares.clip(0.0, 1.0)


class FitAndTest(NamedTuple):
    """Codes and labels for fitting and for scoring, restricted to the classes that occur in both."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def _fit_and_test(inputs: CodesAndFactors, labels: np.ndarray) -> FitAndTest:
    codes, middle = standardise(inputs.codes), (inputs.samples + 1) // 2
    common = np.intersect1d(labels[:middle], labels[middle:])
    fit, test = np.isin(labels[:middle], common), np.isin(labels[middle:], common)
    return FitAndTest(codes[:middle][fit], labels[:middle][fit], codes[middle:][test], labels[middle:][test])


def _predict_probabilities(data: FitAndTest) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of the test samples, and the classes of the columns."""
    model = LogisticRegression(C=1e4, max_iter=300)
    with warnings.catch_warnings():  # separable classes do not converge, which does not change the predictions
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(data.x, data.y)
    return model.predict_proba(data.x_test), model.classes_


def _auc(data: FitAndTest) -> float:
    if len(np.unique(data.y)) < 2:
        return 0.5
    probabilities, classes = _predict_probabilities(data)
    areas = [roc_auc_score(data.y_test == c, probabilities[:, i]) for i, c in enumerate(classes)]
    return float(np.mean(areas))


def _entropy_removed(data: FitAndTest) -> float:
    if len(np.unique(data.y)) < 2:
        return 0.0
    probabilities, classes = _predict_probabilities(data)
    frequencies = np.array([(data.y == c).mean() for c in classes])
    baseline = log_loss(data.y_test, np.tile(frequencies, (len(data.y_test), 1)), labels=classes)
    return 1 - float(log_loss(data.y_test, probabilities, labels=classes)) / float(baseline)
