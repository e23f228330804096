"""InfoMEC: modularity, explicitness and compactness, measured by information."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.stats import rankdata

from vaescope.metrics.correlation import held_out_r2
from vaescope.metrics.information import (
    factor_classes,
    information_score,
    mean_by_best_factor,
    pairwise_information,
    significant_information,
)
from vaescope.metrics.inputs import (
    CodesAndFactors,
    Discrete,
    input_warnings,
    is_varying,
    once_per_inputs,
    read_inputs,
    standardise,
)
from vaescope.metrics.score import MetricValues, OneScore, Score


class LogisticRegression:
    """Class probabilities that are log-linear in the inputs, as in scikit-learn but without its overhead and warnings.

    The penalty on squared weights is that of C = 1e4 in scikit-learn. Fits stop after 300 steps: separable classes do
    not converge, which does not change the predictions.

    Args:
        x: inputs (N, p).
        labels: class numbers (N,).
        classes: number of classes.

    >>> x = np.array([[-1.0], [-0.5], [0.5], [1.0]])
    >>> LogisticRegression(x, np.array([0, 0, 1, 1]), 2).probabilities(x).argmax(1).tolist()
    [0, 0, 1, 1]
    """

    def __init__(self, x: np.ndarray, labels: np.ndarray, classes: int) -> None:
        self._design = np.column_stack([x, np.ones(len(x))])
        self._targets = np.eye(classes)[labels]
        start = np.zeros(self._design.shape[1] * classes)
        options = {"maxiter": 300, "gtol": 1e-4, "ftol": 0.0}
        found = minimize(self._mean_loss, start, jac=True, method="L-BFGS-B", options=options)
        self.weights = found.x.reshape(-1, classes)

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Probabilities of the classes, (N, classes)."""
        return _softmax(np.column_stack([x, np.ones(len(x))]) @ self.weights)[0]

    def _mean_loss(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Penalised cross-entropy per sample, and its gradient; the constant is not penalised."""
        weights, samples = flat.reshape(-1, self._targets.shape[1]), len(self._design)
        logits = self._design @ weights
        probabilities, normaliser = _softmax(logits)
        penalised = weights * 1e-4 / samples
        penalised[-1] = 0.0
        loss = (normaliser.sum() - np.vdot(logits, self._targets)) / samples + 0.5 * np.vdot(penalised, weights)
        gradient = self._design.T @ (probabilities - self._targets) / samples + penalised
        return float(loss), gradient.ravel()


def _softmax(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and the logarithm of their normaliser."""
    largest = logits.max(1, keepdims=True)
    shares = np.exp(logits - largest)
    total = shares.sum(1, keepdims=True)
    return shares / total, (largest + np.log(total))[:, 0]


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
    areas = np.full(inputs.factor_count, 0.5)
    for k in range(inputs.factor_count):
        found = class_predictions(inputs, k)
        classes, samples = len(found.frequencies), len(found.truth)
        if classes >= 2:  # P(a sample of the class ranks above another one); ties count one half
            inside = np.eye(classes, dtype=bool)[found.truth]
            ranks, counts = rankdata(found.probabilities, axis=0), inside.sum(0)
            above = np.where(inside, ranks, 0.0).sum(0) - counts * (counts + 1) / 2
            areas[k] = (above / (counts * (samples - counts))).mean()
    return areas


def predictive_information(inputs: CodesAndFactors) -> np.ndarray:
    """Share of a factor's uncertainty that a linear predictor removes (k,), from 0 to 1.

    Discrete factors: cross-entropy of logistic regression. Continuous factors: squared error (R²).
    """
    fit, test = inputs.halves
    shares = held_out_r2(fit, test)
    for k in np.flatnonzero(inputs.discrete):
        found = class_predictions(inputs, int(k))
        shares[k] = 0.0
        if len(found.frequencies) >= 2:
            chosen = found.probabilities[np.arange(len(found.truth)), found.truth].clip(np.finfo(float).eps, 1.0)
            shares[k] = 1 - float(np.log(chosen).mean() / np.log(found.frequencies[found.truth]).mean())
    return shares.clip(0.0, 1.0)


@once_per_inputs
def class_predictions(inputs: CodesAndFactors, k: int) -> Predictions:
    """Logistic regression of the classes of factor k; continuous factors are cut into ten classes of equal mass."""
    labels = factor_classes(inputs, binning="mass", bins=10)[:, k]
    codes, middle = standardise(inputs.codes), (inputs.samples + 1) // 2
    common = np.intersect1d(labels[:middle], labels[middle:])
    fit, test = np.isin(labels[:middle], common), np.isin(labels[middle:], common)
    known, truth = (np.searchsorted(common, half) for half in (labels[:middle][fit], labels[middle:][test]))
    frequencies = np.bincount(known, minlength=len(common)) / max(len(known), 1)
    if len(common) < 2:
        return Predictions(np.ones((len(truth), len(common))), truth, frequencies)
    model = LogisticRegression(codes[:middle][fit], known, len(common))
    return Predictions(model.probabilities(codes[middle:][test]), truth, frequencies)


class InfoMEC(Score):
    """The three scores of Hsu et al. 2023."""

    modularity = OneScore()
    explicitness = OneScore()
    compactness = OneScore()


def infomec(
    codes: object, factors: object, *, estimator: str = "binned", binning: str = "width", discrete: Discrete = None
) -> InfoMEC:
    """Modularity, explicitness and compactness (Hsu et al. 2023), each from 0 (chance) to 1.

    Modularity is the share of a latent's information that is about its best factor, averaged over informative latents.
    Compactness is the share of the information about a factor that is in its best latent. Both use significant mutual
    information, relative to the factor's entropy. Explicitness is the share of a factor's uncertainty that a linear
    predictor removes on held-out samples. `per_factor` is the compactness.

    Args:
        codes: (N, d).
        factors: (N, k).
        estimator: `binned` (counts in 20 bins) or `neighbours` (nearest neighbours: slower, nearly unbiased).
        binning: `width` (bins of equal width) or `mass` (bins with equally many samples).
        discrete: which factors are classes; by default those with few distinct values.
    """
    arrays = codes, factors, discrete
    return information_score(InfoMEC, "InfoMEC", _infomec, arrays, (10, 3), estimator=estimator, binning=binning)


def _infomec(inputs: CodesAndFactors, estimator: str, binning: str) -> MetricValues:
    share = significant_information(inputs, estimator=estimator, binning=binning)
    informative = share.any(1)
    explicitness = predictive_information(inputs)
    modularity, compactness = top_share(share[informative]), top_share(share[informative].T)
    scores = {
        "modularity": float(modularity.mean()) if informative.any() else 0.0,
        "explicitness": float(explicitness.mean()),
        "compactness": float(compactness.mean()) if informative.any() else 0.0,
    }
    per_latent = np.full(inputs.latents, np.nan)
    per_latent[informative] = modularity
    return MetricValues(scores, compactness, {"per_latent": per_latent, "explicitness_per_factor": explicitness})


def top_share(relevance: np.ndarray) -> np.ndarray:
    """Share of the largest entry of every row, rescaled to 0 for equal entries (or zeros) and 1 for a single entry."""
    width = relevance.shape[1]
    total = relevance.sum(1)
    if width < 2:
        return (total > 0).astype(float)
    share = np.where(total > 0, relevance.max(1, initial=0) / np.where(total > 0, total, 1.0), 1 / width)
    return (share - 1 / width) / (1 - 1 / width)


class ModularityExplicitness(Score):
    """The two scores of Ridgeway & Mozer 2018."""

    modularity = OneScore()
    explicitness = OneScore()


def modularity_explicitness(codes: object, factors: object, *, discrete: Discrete = None) -> ModularityExplicitness:
    """Modularity and explicitness (Ridgeway & Mozer 2018).

    Modularity: 1 - the mean squared information about all factors but the best one, relative to that about the best
    one, averaged over latents that vary. It is high even if a latent has very little information about a single factor,
    so read it together with explicitness. Explicitness: held-out area under the ROC curve of a linear classifier, one
    class against the rest, averaged; 0.5 is chance. Continuous factors are cut into classes. `per_factor` is the
    explicitness.

    Args:
        codes: (N, d).
        factors: (N, k).
        discrete: which factors are classes; by default those with few distinct values.
    """
    inputs = read_inputs(codes, factors, discrete=discrete)
    name, notes = "modularity, explicitness", partial(input_warnings, classes=True)
    return ModularityExplicitness(name, _modularity_explicitness, inputs, notes, resamples=10, shuffles=3)


def modularity_per_latent(mutual: np.ndarray) -> np.ndarray:
    """Modularity of every latent from mutual information (d, k); 0 without any information."""
    best = mutual.max(1)
    others = mutual.shape[1] - 1
    if others == 0:
        return (best > 0).astype(float)
    excess = (np.square(mutual).sum(1) - np.square(best)) / (np.square(np.where(best > 0, best, 1.0)) * others)
    return np.where(best > 0, 1 - excess, 0.0)


def _modularity_explicitness(inputs: CodesAndFactors) -> MetricValues:
    mutual = pairwise_information(inputs).mutual
    per_latent, varying = modularity_per_latent(mutual), is_varying(inputs.codes)
    auc = one_against_rest_auc(inputs)
    scores = {
        "modularity": float(per_latent[varying].mean()) if varying.any() else 0.0,
        "explicitness": float(auc.mean()),
    }
    per_factor = mean_by_best_factor(per_latent, mutual, varying)
    return MetricValues(scores, auc, {"per_latent": per_latent, "modularity_per_factor": per_factor})
