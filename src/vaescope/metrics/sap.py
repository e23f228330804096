"""Separated attribute predictability: how much better is the best latent than the next, as a predictor?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from vaescope.errors import InputError
from vaescope.metrics.cautions import cautions
from vaescope.metrics.inputs import Data, data
from vaescope.metrics.mcc import correlations
from vaescope.metrics.mig import top_gap
from vaescope.metrics.score import Parts, Score


def sap(
    codes: object, factors: object, *, classifier: str = "thresholds", discrete: bool | Sequence[bool] | None = None
) -> Score:
    """Gap between the two best latents as one-dimensional predictors of every factor (Kumar et al. 2018).

    Continuous factors: squared correlation. Discrete factors: held-out balanced accuracy of thresholds on
    one latent, as in the paper, rescaled so that guessing is 0; `classifier="svm"` is the plain accuracy of
    a linear support vector machine, as in public code, which cannot find the middle ones of ordered classes.

    >>> v = np.random.default_rng(0).normal(size=(1000, 2))
    >>> bool(sap(v, v).score > 0.98)
    True
    """
    if classifier not in ("thresholds", "svm"):
        raise InputError(f"classifier must be thresholds or svm, got {classifier!r}.")
    arrays = data(codes, factors, discrete=discrete)
    compute = partial(_sap, classifier=classifier)
    costly = any(arrays.discrete)
    notes = cautions(arrays, classes=True)
    return Score("SAP", compute(arrays), notes, compute, arrays, resamples=20 if costly else 100, nulls=5)


def _sap(arrays: Data, classifier: str) -> Parts:
    relevance = np.square(correlations(arrays.codes, arrays.factors))
    fit, test = arrays.halves
    for k in np.flatnonzero(arrays.discrete):
        score = thresholds_score if classifier == "thresholds" else svm_score
        for j in range(arrays.latents):
            relevance[j, k] = score(fit.codes[:, [j]], fit.factors[:, k], test.codes[:, [j]], test.factors[:, k])
    per_factor = top_gap(relevance)
    return Parts({"sap": float(per_factor.mean())}, per_factor, {"predictability": relevance})


def thresholds_score(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> float:
    """Balanced accuracy of as many intervals as classes, from 0 (guessing) to 1."""
    classes = len(np.unique(y))
    if classes < 2:
        return 0.0
    tree = DecisionTreeClassifier(max_leaf_nodes=classes, class_weight="balanced", random_state=0).fit(x, y)
    hit = tree.predict(x_test) == y_test
    accuracy = float(np.mean([hit[y_test == c].mean() for c in np.unique(y_test)]))
    return max(0.0, (accuracy - 1 / classes) / (1 - 1 / classes))


def svm_score(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> float:
    """Accuracy of a linear support vector machine on one latent."""
    if len(np.unique(y)) < 2:
        return float(np.mean(y_test == y[0]))
    machine = LinearSVC(C=0.01, class_weight="balanced", random_state=0).fit(x, y)
    return float(np.mean(machine.predict(x_test) == y_test))
