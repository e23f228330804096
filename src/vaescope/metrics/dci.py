"""DCI: does a latent predict one factor, is a factor predicted by one latent, and how well by all latents?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

from vaescope import validation
from vaescope.metrics.forest import Forest
from vaescope.metrics.input_warnings import input_warnings
from vaescope.metrics.inputs import CodesAndFactors, read_inputs, standardise
from vaescope.metrics.quiet import without_fit_warnings
from vaescope.metrics.score import MetricValues, Score

TREE_MODELS = ("forest", "boosted")
TREES, INTERVAL_TREES = 40, 10  # of a forest
MANY_SAMPLES = 2000  # from here on, one shuffle gives the floor precisely


class DCI(Score):
    """The three scores of Eastwood & Williams 2018 and the matrix of importances."""

    @property
    def disentanglement(self) -> float:
        return self.scores["disentanglement"]

    @property
    def completeness(self) -> float:
        return self.scores["completeness"]

    @property
    def informativeness(self) -> float:
        return self.scores["informativeness"]

    @property
    def importance(self) -> np.ndarray:
        """Importance of every latent for predicting every factor, (d, k); columns sum to 1."""
        return self.values.details["importance"]


def dci(codes: object, factors: object, *, model: str = "forest", discrete: bool | Sequence[bool] | None = None) -> DCI:
    """Disentanglement, completeness and informativeness (Eastwood & Williams 2018).

    Trees predict every factor from all latents. The importance of a latent is its share of the impurity decrease.
    Disentanglement: the importances of a latent concentrate on one factor. Completeness: the importances for a factor
    concentrate on one latent. Informativeness: held-out accuracy (classes) or R² (continuous factors). `per_factor` is
    the completeness. Intervals are those of a forest of ten trees, which vary slightly more than those of all forty.

    Args:
        codes: (N, d).
        factors: (N, k).
        model: `forest` (extremely randomised trees) or `boosted` (gradient boosting, as in public code; tens of times
            slower, with the same ranking of models).
        discrete: which factors are classes; by default those with few distinct values.

    >>> v = np.random.default_rng(0).integers(0, 4, (400, 2))
    >>> result = dci(v, v)
    >>> bool(result.disentanglement > 0.95), result.importance.argmax(0).tolist()
    (True, [0, 1])
    """
    validation.choice("model", model, TREE_MODELS)
    inputs = read_inputs(codes, factors, discrete=discrete)
    compute = partial(compute_dci, model=model)
    return DCI(
        "DCI",
        compute(inputs),
        partial(input_warnings, inputs, classes=True),
        compute,
        inputs,
        resamples=10,
        shuffles=1 if inputs.samples >= MANY_SAMPLES else 3,
        interval_compute=partial(compute_dci, model=model, trees=INTERVAL_TREES) if model == "forest" else None,
    )


def concentration(importance: np.ndarray) -> np.ndarray:
    """1 - normalised entropy of every row; 0 for a row of zeros.

    >>> concentration(np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]])).tolist()
    [1.0, 0.0, 0.0]
    """
    width, total = importance.shape[1], importance.sum(1, keepdims=True)
    if width < 2:
        return (total[:, 0] > 0).astype(float)
    share = np.where(total > 0, importance / np.where(total > 0, total, 1.0), 1 / width)
    return 1 + (share * np.log(np.where(share > 0, share, 1.0))).sum(1) / np.log(width)


def compute_dci(inputs: CodesAndFactors, model: str, trees: int = TREES) -> MetricValues:
    """The three scores, importances and details; `model` is one of `TREE_MODELS`."""
    inputs = replace(inputs, codes=standardise(inputs.codes), computed={})  # trees use single precision
    fits = [fit_factor(inputs, k, model, trees) for k in range(inputs.factor_count)]
    importance = np.column_stack([importances for importances, _ in fits])
    informativeness = np.array([score for _, score in fits])
    disentanglement, completeness = concentration(importance), concentration(importance.T)
    scores = {
        "disentanglement": _weighted_mean(disentanglement, importance.sum(1)),
        "completeness": _weighted_mean(completeness, importance.sum(0)),
        "informativeness": float(informativeness.mean()),
    }
    details = {
        "importance": importance,
        "per_latent": disentanglement,
        "informativeness_per_factor": informativeness,
    }
    return MetricValues(scores, completeness, details)


def _weighted_mean(values: np.ndarray, weights: np.ndarray) -> float:
    return float(values @ weights / weights.sum()) if weights.sum() > 0 else 0.0


def fit_factor(inputs: CodesAndFactors, k: int, model: str, trees: int = TREES) -> tuple[np.ndarray, float]:
    """Importances (d,) and held-out score for one factor."""
    fit, test = inputs.halves
    discrete = inputs.discrete[k]
    target = np.unique(inputs.factors[:, k], return_inverse=True)[1] if discrete else standardise(inputs.factors)[:, k]
    y, y_test = target[: fit.samples], target[fit.samples :]
    if np.ptp(y) == 0:
        return np.zeros(inputs.latents), float(np.mean(y_test == y[0])) if discrete else 0.0
    with without_fit_warnings(), np.errstate(invalid="ignore"):
        fitted = _tree_model(model, discrete, fit.samples, trees).fit(fit.codes, y)
        importance = np.nan_to_num(np.asarray(fitted.feature_importances_))  # NaN if no tree has a split
    return importance, max(0.0, float(fitted.score(test.codes, y_test)))


def _tree_model(
    model: str, discrete: bool, samples: int, trees: int
) -> Forest | GradientBoostingClassifier | GradientBoostingRegressor:
    if model == "boosted":
        return (GradientBoostingClassifier if discrete else GradientBoostingRegressor)(random_state=0)
    return Forest(classes=discrete, trees=trees, min_samples_leaf=min(5, max(1, samples // 20)))
