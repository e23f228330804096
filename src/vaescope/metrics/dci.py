"""DCI: does a latent predict one factor, is a factor predicted by one latent, and how well by all?"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
)

from vaescope.errors import InputError
from vaescope.metrics.cautions import cautions
from vaescope.metrics.inputs import Data, data, standardised
from vaescope.metrics.score import Parts, Score

_TREES: dict[str, Any] = {"n_estimators": 40, "max_features": None, "random_state": 0}


class DCI(Score):
    """Three scores of Eastwood and Williams, and the matrix they come from."""

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
        """How much every latent contributes to predicting every factor, (d, k), columns sum to 1."""
        return self.parts.detail["importance"]


def dci(codes: object, factors: object, *, model: str = "forest", discrete: bool | Sequence[bool] | None = None) -> DCI:
    """Disentanglement, completeness, informativeness (Eastwood & Williams 2018).

    Every factor is predicted from all latents by trees; the share of the trees' gain that falls to a latent
    is its importance. Disentanglement: a latent's importances lie with one factor. Completeness: a factor's
    lie with one latent. Informativeness: held-out accuracy (classes) or R² (continuous). `model` is `forest`
    (extremely randomised trees, all latents at every split) or `boosted` (gradient boosting as in public
    code: tens of times slower, the same ranking). `per_factor` is the completeness.

    >>> v = np.random.default_rng(0).integers(0, 4, (400, 2))
    >>> result = dci(v, v)
    >>> bool(result.disentanglement > 0.95), result.importance.argmax(0).tolist()
    (True, [0, 1])
    """
    if model not in ("forest", "boosted"):
        raise InputError(f"model must be forest or boosted, got {model!r}.")
    arrays = data(codes, factors, discrete=discrete)
    compute = partial(_dci, model=model)
    notes = partial(cautions, arrays, classes=True)
    return DCI("DCI", compute(arrays), notes, compute, arrays, resamples=10, nulls=3)


def concentration(importance: np.ndarray) -> np.ndarray:
    """Per row: 1 less the entropy of its shares over the largest possible; 0 for a row of zeros.

    >>> concentration(np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]])).tolist()
    [1.0, 0.0, 0.0]
    """
    places, total = importance.shape[1], importance.sum(1, keepdims=True)
    if places < 2:
        return (total[:, 0] > 0).astype(float)
    share = np.where(total > 0, importance / np.where(total > 0, total, 1.0), 1 / places)
    return 1 + (share * np.log(np.where(share > 0, share, 1.0))).sum(1) / np.log(places)


def _dci(arrays: Data, model: str) -> Parts:
    arrays = replace(arrays, codes=standardised(arrays.codes))  # trees see single precision
    fits = [_fit(arrays, k, model) for k in range(arrays.factors.shape[1])]
    importance = np.column_stack([gains for gains, _ in fits])
    informativeness = np.array([score for _, score in fits])
    by_latent, by_factor = concentration(importance), concentration(importance.T)
    scores = {
        "disentanglement": _weighted(by_latent, importance.sum(1)),
        "completeness": _weighted(by_factor, importance.sum(0)),
        "informativeness": float(informativeness.mean()),
    }
    detail = {"importance": importance, "per_latent": by_latent, "informativeness_per_factor": informativeness}
    return Parts(scores, by_factor, detail)


def _weighted(values: np.ndarray, weights: np.ndarray) -> float:
    return float(values @ weights / weights.sum()) if weights.sum() > 0 else 0.0


def _fit(arrays: Data, k: int, model: str) -> tuple[np.ndarray, float]:
    """Importances (d,) and held-out score of one factor."""
    fit, test = arrays.halves
    discrete = arrays.discrete[k]
    target = np.unique(arrays.factors[:, k], return_inverse=True)[1] if discrete else standardised(arrays.factors)[:, k]
    y, y_test = target[: fit.samples], target[fit.samples :]
    if np.ptp(y) == 0:
        return np.zeros(arrays.latents), float(np.mean(y_test == y[0])) if discrete else 0.0
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore", UserWarning)  # many classes look like a regression target
        trees = _trees(model, discrete, fit.samples).fit(fit.codes, y)
        importance = np.nan_to_num(np.asarray(trees.feature_importances_))  # no tree found a split
    return importance, max(0.0, float(trees.score(test.codes, y_test)))


def _trees(model: str, discrete: bool, samples: int) -> Any:
    if model == "boosted":
        return (GradientBoostingClassifier if discrete else GradientBoostingRegressor)(random_state=0)
    leaf = min(5, max(1, samples // 20))
    return (ExtraTreesClassifier if discrete else ExtraTreesRegressor)(min_samples_leaf=leaf, **_TREES)
