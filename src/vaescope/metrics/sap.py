"""Separated attribute predictability: how much better does the best latent predict a factor than the second best?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from vaescope import validation
from vaescope.metrics.input_warnings import input_warnings
from vaescope.metrics.inputs import CodesAndFactors, read_inputs, standardise
from vaescope.metrics.mcc import pearson_correlations
from vaescope.metrics.mig import top_gap
from vaescope.metrics.score import MetricValues, Score


def sap(
    codes: object, factors: object, *, classifier: str = "thresholds", discrete: bool | Sequence[bool] | None = None
) -> Score:
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
    notes = partial(input_warnings, inputs, classes=True)
    resamples, shuffles = (10, 3) if any(inputs.discrete) else (100, 5)  # classifiers are slow
    return Score("SAP", compute(inputs), notes, compute, inputs, resamples=resamples, shuffles=shuffles)


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
