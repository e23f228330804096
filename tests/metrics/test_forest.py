"""A forest is that of scikit-learn, to the last bit."""

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

from vaescope.metrics.importances import Forest


@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.parametrize(("samples", "leaf"), [(300, 5), (40, 1), (12, 20)])
def test_a_forest_is_that_of_scikit_learn(classes, samples, leaf):
    random = np.random.default_rng(samples)
    x = random.normal(size=(2 * samples, 4))
    y = random.integers(0, 3, 2 * samples) + 2 * (x[:, 0] > 0) if classes else x[:, 0] * x[:, 1]
    kind = ExtraTreesClassifier if classes else ExtraTreesRegressor
    theirs = kind(n_estimators=7, min_samples_leaf=leaf, max_features=None, random_state=0).fit(
        x[:samples], y[:samples]
    )
    own = Forest(classes=classes, trees=7, min_samples_leaf=leaf).fit(x[:samples], y[:samples])
    assert np.array_equal(own.feature_importances_, theirs.feature_importances_)
    assert own.score(x[samples:], y[samples:]) == pytest.approx(theirs.score(x[samples:], y[samples:]), abs=1e-12)


def test_a_forest_without_splits_has_no_importances():
    x = np.random.default_rng(0).normal(size=(10, 3))
    forest = Forest(classes=True, trees=3, min_samples_leaf=10).fit(x, x[:, 0] > 0)
    assert np.array_equal(forest.feature_importances_, np.zeros(3))
