"""Extremely randomised trees."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from sklearn.metrics import accuracy_score, r2_score
from sklearn.tree import ExtraTreeClassifier, ExtraTreeRegressor

LARGEST_SEED = np.iinfo(np.int32).max


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
            seed = random.randint(LARGEST_SEED)
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
