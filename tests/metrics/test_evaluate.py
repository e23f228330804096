"""The table of all metrics shares resamples, bins and fits: nothing but the time may depend on it."""

import threading
import warnings

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression as ScikitLogisticRegression
from sklearn.metrics import roc_auc_score

from tests.metrics.planted import classes
from vaescope import metrics
from vaescope.metrics.evaluate import METRICS
from vaescope.metrics.information import ContingencyTables, pairwise_information
from vaescope.metrics.informativeness import LogisticRegression, class_predictions, one_against_rest_auc
from vaescope.metrics.inputs import read_inputs, without_fit_warnings


@pytest.fixture
def arrays():
    factors = np.column_stack([classes(200)[:, :2], np.random.default_rng(0).normal(size=200)])
    return factors + 0.5 * np.random.default_rng(1).normal(size=factors.shape), factors


def test_shared_resamples_give_the_numbers_of_each_metric_alone(arrays):
    table = metrics.evaluate(*arrays)
    for name, metric in METRICS.items():
        alone = metric(*arrays)
        assert table[name].scores == alone.scores
        assert table[name].intervals == alone.intervals
        assert table[name].floors == alone.floors


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_the_table_does_not_depend_on_the_number_of_threads(arrays, three_threads):
    several = metrics.evaluate(*arrays, intervals=False).rows
    torch.set_num_threads(1)
    assert metrics.evaluate(*arrays, intervals=False).rows == several


def test_inputs_keep_results_and_resamples_do_not_inherit_them(arrays):
    inputs = read_inputs(*arrays)
    assert pairwise_information(inputs) is pairwise_information(inputs)
    assert pairwise_information(inputs, binning="mass") is not pairwise_information(inputs)
    assert not inputs.subset(slice(100)).computed
    assert not inputs.shuffled(np.random.default_rng(0)).computed


def test_information_of_shuffled_codes_matches_shuffling_first():
    rng = np.random.default_rng(0)
    cells, labels = rng.integers(0, 5, (300, 2)), rng.integers(0, 3, (300, 2))
    fast = ContingencyTables.of(cells, labels).shuffled(np.random.default_rng(1), 3)
    rng = np.random.default_rng(1)
    slow = [ContingencyTables.of(cells[rng.permutation(300)], labels).information().mutual for _ in range(3)]
    np.testing.assert_allclose(fast, slow, atol=1e-12)


@pytest.mark.parametrize("noise", [0.1, 1.0, 20.0])
def test_logistic_regression_matches_scikit_learn(noise):
    labels = np.random.default_rng(0).integers(0, 4, 400)
    x = labels[:, None] + noise * np.random.default_rng(1).normal(size=(400, 3))
    expected = ScikitLogisticRegression(C=1e4, max_iter=300).fit(x, labels).predict_proba(x)
    np.testing.assert_allclose(LogisticRegression(x, labels, 4).probabilities(x), expected, atol=2e-3)


def test_the_area_under_the_curve_matches_scikit_learn(arrays):
    inputs = read_inputs(*arrays)
    test = inputs.halves[1]
    found = class_predictions(inputs, 0)
    areas = [roc_auc_score(test.factors[:, 0] == c, found.probabilities[:, c]) for c in range(len(found.frequencies))]
    assert one_against_rest_auc(inputs)[0] == pytest.approx(np.mean(areas), abs=1e-12)


def test_filters_of_warnings_are_restored_whatever_the_order_of_threads():
    before = list(warnings.filters)
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with without_fit_warnings():
            entered.set()
            leave.wait(5)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(5)
    with without_fit_warnings():  # enters second, and leaves first
        pass
    assert warnings.filters != before
    leave.set()
    thread.join()
    assert warnings.filters == before
