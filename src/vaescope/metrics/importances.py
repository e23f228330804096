"""DCI: does a latent predict one factor, is a factor predicted by one latent, and how well by all latents?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from jaxtyping import Float
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from sklearn.metrics import accuracy_score, r2_score
from sklearn.tree import ExtraTreeClassifier, ExtraTreeRegressor

from vaescope.core import validation
from vaescope.metrics.conditional import regression_features, ridge
from vaescope.metrics.inputs import (
    CodesAndFactors,
    Discrete,
    input_warnings,
    read_inputs,
    standardise,
    without_fit_warnings,
)
from vaescope.metrics.score import Detail, MetricValues, OneScore, Score


@dataclass
class Forest:
    """The trees of scikit-learn's `ExtraTreesClassifier` or `ExtraTreesRegressor`, to the last bit.

    A forest of scikit-learn copies a prototype for every tree and hands the trees to a pool, which takes a quarter of
    its time if trees are small.

    Args:
        classes: whether the target is a class, or a number.
        trees: how many.
        min_samples_leaf: samples in a leaf, at least.

    >>> x = np.random.default_rng(0).normal(size=(100, 2))
    >>> Forest(classes=True, trees=10, min_samples_leaf=1).fit(x, x[:, 0] > 0).score(x, x[:, 0] > 0)
    1.0
    """

    classes: bool
    trees: int
    min_samples_leaf: int
    fitted: list[ExtraTreeClassifier | ExtraTreeRegressor] = field(default_factory=list)

    def fit(self, x: np.ndarray, y: np.ndarray) -> Forest:
        """Fit all trees.

        Args:
            x: (N, d), finite.
            y: (N,).
        """
        random = np.random.RandomState(0)
        kind = ExtraTreeClassifier if self.classes else ExtraTreeRegressor
        target = np.ascontiguousarray(y, dtype=None if self.classes else np.float64)
        single = np.ascontiguousarray(x, dtype=np.float32)
        for _ in range(self.trees):
            seed = random.randint(np.iinfo(np.int32).max)
            tree = kind(min_samples_leaf=self.min_samples_leaf, max_features=None, random_state=seed)
            self.fitted.append(tree.fit(single, target, check_input=False))
        return self

    @property
    def feature_importances_(self) -> np.ndarray:
        """Share of the impurity decrease of every column, (d,), averaged over the trees that have a split."""
        found = [tree.feature_importances_ for tree in self.fitted if tree.tree_.node_count > 1]
        mean = np.mean(found, axis=0) if found else np.zeros(self.fitted[0].n_features_in_)
        return np.asarray(mean / mean.sum() if found else mean)

    def score(self, x: np.ndarray, y: np.ndarray) -> float:
        """Accuracy or R² of the mean prediction.

        Args:
            x: (M, d), finite.
            y: (M,).
        """
        single = np.ascontiguousarray(x, dtype=np.float32)
        if not self.classes:
            return float(r2_score(y, np.mean([tree.predict(single, check_input=False) for tree in self.fitted], 0)))
        shares = np.mean([tree.predict_proba(single, check_input=False) for tree in self.fitted], 0)
        return float(accuracy_score(y, self.fitted[0].classes_[shares.argmax(1)]))


class DCI(Score):
    """The three scores of Eastwood & Williams 2018 and the matrix of importances."""

    disentanglement = OneScore()
    completeness = OneScore()
    informativeness = OneScore()
    importance = Detail()
    """Importance of every latent for predicting every factor, (d, k); columns sum to 1."""


def dci(codes: object, factors: object, *, model: str = "forest", discrete: Discrete = None) -> DCI:
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
    validation.choice("model", model, ("forest", "boosted"))
    inputs = read_inputs(codes, factors, discrete=discrete)
    return DCI(
        "DCI",
        partial(compute_dci, model=model),
        inputs,
        partial(input_warnings, classes=True),
        resamples=10,
        shuffles=1 if inputs.samples >= 2000 else 3,  # one gives the floor of many samples precisely
        interval_compute=partial(compute_dci, trees=10) if model == "forest" else None,
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


def compute_dci(inputs: CodesAndFactors, model: str = "forest", trees: int = 40) -> MetricValues:
    """The three scores, importances and details."""
    inputs = replace(inputs, codes=standardise(inputs.codes), computed={})  # trees use single precision
    fits = [fit_factor(inputs, k, model, trees) for k in range(inputs.factor_count)]
    importance = np.column_stack([importances for importances, _ in fits])
    informativeness = np.array([score for _, score in fits])
    disentanglement, completeness = concentration(importance), concentration(importance.T)

    def weighted_mean(values: np.ndarray, weights: np.ndarray) -> float:
        return float(values @ weights / weights.sum()) if weights.sum() > 0 else 0.0

    scores = {
        "disentanglement": weighted_mean(disentanglement, importance.sum(1)),
        "completeness": weighted_mean(completeness, importance.sum(0)),
        "informativeness": float(informativeness.mean()),
    }
    details = {
        "importance": importance,
        "per_latent": disentanglement,
        "informativeness_per_factor": informativeness,
    }
    return MetricValues(scores, completeness, details)


def fit_factor(inputs: CodesAndFactors, k: int, model: str = "forest", trees: int = 40) -> tuple[np.ndarray, float]:
    """Importances (d,) and held-out score for one factor."""
    fit, test = inputs.halves
    discrete = inputs.discrete[k]
    target = np.unique(inputs.factors[:, k], return_inverse=True)[1] if discrete else standardise(inputs.factors)[:, k]
    y, y_test = target[: fit.samples], target[fit.samples :]
    if np.ptp(y) == 0:
        return np.zeros(inputs.latents), float(np.mean(y_test == y[0])) if discrete else 0.0
    trained: Forest | GradientBoostingClassifier | GradientBoostingRegressor
    if model == "boosted":
        trained = (GradientBoostingClassifier if discrete else GradientBoostingRegressor)(random_state=0)
    else:
        trained = Forest(classes=discrete, trees=trees, min_samples_leaf=min(5, max(1, fit.samples // 20)))
    with without_fit_warnings(), np.errstate(invalid="ignore"):
        trained.fit(fit.codes, y)
        importance = np.nan_to_num(np.asarray(trained.feature_importances_))  # NaN if no tree has a split
    return importance, max(0.0, float(trained.score(test.codes, y_test)))


class DCIES(DCI):
    """The five scores of Eastwood et al. 2023."""

    explicitness = OneScore()
    size = OneScore()
    losses = Detail()
    """Held-out loss of every capacity and factor, as a share of that of a constant, (capacities, k)."""


def dci_es(codes: object, factors: object, *, discrete: Discrete = None) -> DCIES:
    """DCI, explicitness and size (Eastwood, Nicolicioiu, von Kügelgen, Kekić, Träuble, Dittadi & Schölkopf 2023).

    Explicitness is 1 minus the area under the loss-capacity curve over that of a straight line from the loss of a
    constant to the smallest loss: 1 if the simplest predictor is already the best, 0 if the loss falls linearly,
    negative if only the largest predictors help. Predictors are ridge regressions on the latents and on more and more
    random Fourier features of them; each step of capacity doubles their number, and the first has none. A factor that
    no predictor explains scores 0. Size is the number of factors over that of latents, at most 1.

    Args:
        codes: (N, d).
        factors: (N, k).
        discrete: which factors are classes, for DCI; explicitness predicts indicators of their classes.

    >>> v = np.random.default_rng(0).uniform(-1, 1, (400, 2))
    >>> found = dci_es(v, v)
    >>> bool(found.explicitness > 0.95), found.size
    (True, 1.0)
    """
    inputs = read_inputs(codes, factors, discrete=discrete)
    notes = partial(input_warnings, classes=True)
    return DCIES("DCI-ES", _dci_es, inputs, notes, bounds=(-1.0, 1.0), resamples=10, shuffles=3)


def _dci_es(inputs: CodesAndFactors) -> MetricValues:
    plain = compute_dci(inputs)
    losses = np.column_stack([loss_curve(inputs, k) for k in range(inputs.factor_count)])
    explicitness = np.array([area_score(curve) for curve in losses.T])
    added = {
        "explicitness": float(explicitness.mean()),
        "size": min(1.0, inputs.factor_count / inputs.latents),
    }
    details = {**plain.details, "losses": losses, "explicitness_per_factor": explicitness}
    return MetricValues({**plain.scores, **added}, plain.per_factor, details)


def loss_curve(inputs: CodesAndFactors, k: int) -> Float[np.ndarray, " capacities"]:
    """Held-out squared error of factor k at every capacity, over that of a constant."""
    column = inputs.factors[:, k, None]
    targets = (column == np.unique(column)).astype(float) if inputs.discrete[k] else standardise(column)
    middle = (inputs.samples + 1) // 2
    baseline = np.square(targets[middle:] - targets[:middle].mean(0)).sum()
    losses = []
    for count in (0, 16, 32, 64, 128, 256):  # random features in addition to the linear ones
        features = regression_features(inputs.codes, count)
        weights = ridge(features[:middle], targets[:middle], strength=1e-4)
        losses.append(np.square(targets[middle:] - features[middle:] @ weights).sum() / max(baseline, 1e-300))
    return np.minimum.accumulate(np.minimum(losses, 1.0))


def area_score(losses: Float[np.ndarray, " capacities"]) -> float:
    """1 - area under the curve of losses above the smallest one, over the area under the straight line.

    >>> area_score(np.array([0.0, 0.0, 0.0])), round(area_score(np.array([1.0, 0.5, 0.0])), 3)
    (1.0, 0.0)
    """
    best = float(losses.min())
    if best > 0.98:  # no predictor is better than a constant
        return 0.0
    excess = np.clip(losses - best, 0.0, None)
    area = (0.5 * (excess[1:] + excess[:-1])).mean()
    return float(1 - area / (0.5 * (1 - best)))
