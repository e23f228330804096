"""Linear predictors of factors from codes, fitted on one half and scored on the other."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from vaescope.metrics.information import factor_classes
from vaescope.metrics.inputs import Data, standardised
from vaescope.metrics.r2 import held_out_r2

CLASSES = 10  # continuous factors are cut into so many of equal mass where classes are needed


def one_against_rest_auc(arrays: Data) -> np.ndarray:
    """Area under the ROC curve (k,), averaged over the classes of every factor."""
    labels = factor_classes(arrays, binning="mass", bins=CLASSES)
    return np.array([_auc(_as_halves(arrays, column)) for column in labels.T])


def predictive_information(arrays: Data) -> np.ndarray:
    """Share of a factor's uncertainty that a linear predictor removes (k,), 0 to 1.

    Discrete: of the cross-entropy of logistic regression. Continuous: of the squared error (R²).
    """
    fit, test = arrays.halves
    shares = held_out_r2(fit, test)
    for k in np.flatnonzero(arrays.discrete):
        labels = np.unique(arrays.factors[:, k], return_inverse=True)[1]
        shares[k] = _entropy_removed(_as_halves(arrays, labels))
    return shares.clip(0.0, 1.0)


Halves = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _as_halves(arrays: Data, labels: np.ndarray) -> Halves:
    """Codes and labels to fit on, codes and labels to score on, with the classes that both have."""
    codes, middle = standardised(arrays.codes), (arrays.samples + 1) // 2
    common = np.intersect1d(labels[:middle], labels[middle:])
    fit, test = np.isin(labels[:middle], common), np.isin(labels[middle:], common)
    return codes[:middle][fit], labels[:middle][fit], codes[middle:][test], labels[middle:][test]


def _probabilities(halves: Halves) -> tuple[np.ndarray, np.ndarray]:
    x, y, x_test, _ = halves
    model = LogisticRegression(C=1e4, max_iter=300)
    with warnings.catch_warnings():  # separable classes never converge, and need not
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    return model.predict_proba(x_test), model.classes_


def _auc(halves: Halves) -> float:
    if len(np.unique(halves[1])) < 2:
        return 0.5
    probabilities, classes = _probabilities(halves)
    areas = [roc_auc_score(halves[3] == c, probabilities[:, i]) for i, c in enumerate(classes)]
    return float(np.mean(areas))


def _entropy_removed(halves: Halves) -> float:
    _, y, _, y_test = halves
    if len(np.unique(y)) < 2:
        return 0.0
    probabilities, classes = _probabilities(halves)
    guess = np.array([(y == c).mean() for c in classes])
    before = log_loss(y_test, np.tile(guess, (len(y_test), 1)), labels=classes)
    return 1 - float(log_loss(y_test, probabilities, labels=classes)) / float(before)
