"""Separated attribute predictability: how much better is the best latent than the next, as a predictor?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from vaescope.errors import InputError
from vaescope.metrics.cautions import cautions
from vaescope.metrics.inputs import Data, data, standardised
from vaescope.metrics.mcc import correlations
from vaescope.metrics.mig import top_gap
from vaescope.metrics.score import Parts, Score


def sap(
    codes: object, factors: object, *, classifier: str = "thresholds", discrete: bool | Sequence[bool] | None = None
) -> Score:
    """Gap between the two best latents as one-dimensional predictors of every factor (Kumar et al. 2018).

    Continuous factors: squared correlation. Discrete factors: held-out balanced accuracy of thresholds on
    one latent, as in the paper, rescaled so that guessing is 0; `classifier="svm"` is the plain accuracy of
    a linear support vector machine, as in public code, which cannot find the middle ones of ordered classes
    and changes with the units of a latent.

    >>> v = np.random.default_rng(0).normal(size=(1000, 2))
    >>> bool(sap(v, v).score > 0.98)
    True
    """
    if classifier not in ("thresholds", "svm"):
        raise InputError(f"classifier must be thresholds or svm, got {classifier!r}.")
    arrays = data(codes, factors, discrete=discrete)
    compute = partial(_sap, classifier=classifier)
    costly = any(arrays.discrete)
    notes = partial(cautions, arrays, classes=True)
    return Score("SAP", compute(arrays), notes, compute, arrays, resamples=20 if costly else 100, nulls=5)


def _sap(arrays: Data, classifier: str) -> Parts:
    relevance = np.square(correlations(arrays.codes, arrays.factors))
    fit, test = arrays.halves
    score = thresholds_scores if classifier == "thresholds" else svm_scores
    for k in np.flatnonzero(arrays.discrete):
        relevance[:, k] = score(fit.codes, fit.factors[:, k], test.codes, test.factors[:, k])
    per_factor = top_gap(relevance)
    return Parts({"sap": float(per_factor.mean())}, per_factor, {"predictability": relevance})


def thresholds_scores(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> np.ndarray:
    """Per latent, balanced accuracy of as many intervals as classes, from 0 (guessing) to 1."""
    classes, labels, counts = np.unique(y, return_inverse=True, return_counts=True)
    seen = np.isin(y_test, classes)
    if len(classes) < 2 or not seen.any():
        return np.zeros(x.shape[1])
    x_test, y_test = x_test[seen], y_test[seen]
    weights = 1 / counts[labels]  # every class counts the same
    places = np.searchsorted(classes, y_test)
    test_weights = 1 / np.bincount(places)[places]
    test_weights /= test_weights.sum()
    x, x_test = (v.astype(np.float32) for v in np.split(standardised(np.vstack([x, x_test])), [len(x)]))
    accuracy = np.empty(x.shape[1])
    for j in range(x.shape[1]):
        tree = DecisionTreeClassifier(max_leaf_nodes=len(classes), random_state=0)
        tree.fit(x[:, [j]], labels, sample_weight=weights, check_input=False)
        accuracy[j] = test_weights @ (tree.predict(x_test[:, [j]], check_input=False) == places)
    chance = 1 / len(np.unique(places))
    return ((accuracy - chance) / (1 - chance)).clip(min=0.0) if chance < 1 else np.zeros(x.shape[1])


def svm_scores(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> np.ndarray:
    """Per latent, accuracy of a linear support vector machine."""
    if len(np.unique(y)) < 2:
        return np.full(x.shape[1], np.mean(y_test == y[0]))
    machine = LinearSVC(C=0.01, class_weight="balanced", random_state=0)
    return np.array([np.mean(machine.fit(x[:, [j]], y).predict(x_test[:, [j]]) == y_test) for j in range(x.shape[1])])
