"""Parity with scikit-learn and with the metrics of disent."""

import numpy as np
import pytest
from benchmarks.peers import disent_metric
from scipy.stats import entropy
from sklearn.feature_selection import mutual_info_classif
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mutual_info_score, r2_score

from tests.metrics.planted import CODES, classes, continuous
from vaescope import metrics
from vaescope.metrics import inputs
from vaescope.metrics.importances import concentration
from vaescope.metrics.information import bin_indices

CASES = ("identity", "monotone", "duplicated", "rotated", "split", "ten latents", "null")


@pytest.fixture
def factors():
    return classes(800, seed=3)


def noisy(case, factors):
    codes = CODES[case](factors)
    return codes + 0.05 * np.random.default_rng(9).normal(size=codes.shape) * (codes.std(0) > 0)


@pytest.mark.parametrize("case", CASES)
def test_mutual_information_matches_scikit_learn(case, factors):
    codes = noisy(case, factors)
    found = metrics.mutual_information(codes, factors)
    for j, k in np.ndindex(found.shape):
        assert found[j, k] == pytest.approx(mutual_info_score(bin_indices(codes[:, j]), factors[:, k]), abs=1e-10)


def test_neighbour_estimates_match_scikit_learn(factors):
    codes = noisy("rotated", factors)
    arrays = inputs.read_inputs(codes, factors)
    found = metrics.mutual_information(codes, factors, estimator="neighbours")
    expected = mutual_info_classif(inputs.standardise(arrays.codes), arrays.factors[:, 1].astype(int), random_state=0)
    np.testing.assert_allclose(found[:, 1], expected, atol=1e-10)


def test_neighbour_estimates_match_gaussian_closed_form():
    """I = -½ log(1 - ρ²)."""
    rng = np.random.default_rng(0)
    v = rng.normal(size=(4000, 1))
    z = 0.8 * v + 0.6 * rng.normal(size=(4000, 1))
    expected = -0.5 * np.log(1 - 0.8**2)
    assert metrics.mutual_information(z, v, estimator="neighbours")[0, 0] == pytest.approx(expected, abs=0.04)
    for binning in ("width", "mass"):
        binned = metrics.mutual_information(z, v, binning=binning)[0, 0]
        assert expected - 0.1 < binned < expected + 0.06  # loss from bins, bias from counts


@pytest.mark.parametrize("case", CASES)
def test_mig_matches_disent(case, factors):
    codes = noisy(case, factors)
    expected = disent_metric("_mig")._compute_mig(codes.T, factors.T.astype(int))["mig.discrete_score"]
    assert metrics.mig(codes, factors).score == pytest.approx(expected, abs=2e-3)


def test_mig_matches_disent_exactly_for_discrete_codes(factors):
    """The bins of disent differ only by the rounding of edges; discrete codes have no bins."""
    expected = disent_metric("_mig")._compute_mig(factors.T, factors.T.astype(int))["mig.discrete_score"]
    assert metrics.mig(factors, factors).score == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_sap_of_continuous_factors_matches_disent(case):
    factors = continuous(800)
    codes = noisy(case, factors)
    expected = disent_metric("_sap")._compute_sap(codes.T, factors.T, None, None, True)["sap.score"]
    assert metrics.sap(codes, factors).score == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("case", ["identity", "rotated", "null"])
def test_sap_of_classes_matches_disent(case, factors):
    codes = noisy(case, factors)
    fit, test = inputs.read_inputs(codes, factors).halves
    expected = disent_metric("_sap")._compute_sap(
        fit.codes.T, fit.factors.T.astype(int), test.codes.T, test.factors.T.astype(int), False
    )["sap.score"]
    assert metrics.sap(codes, factors, classifier="svm").score == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("case", ["rotated", "null"])
def test_boosted_dci_matches_disent(case):
    factors = classes(160, seed=3)[:, :2]
    codes = noisy("identity", factors) if case == "null" else factors @ np.array([[1.0, 1.0], [1.0, -1.0]])
    codes = codes + 0.2 * np.random.default_rng(5).normal(size=codes.shape)
    fit, test = inputs.read_inputs(codes, factors).halves
    expected = disent_metric("_dci")._compute_dci(
        fit.codes.T, fit.factors.T.astype(int), test.codes.T, test.factors.T.astype(int)
    )
    found = metrics.dci(codes, factors, model="boosted")
    assert found.disentanglement == pytest.approx(expected["dci.disentanglement"], abs=0.02)
    assert found.completeness == pytest.approx(expected["dci.completeness"], abs=0.02)
    assert found.informativeness == pytest.approx(expected["dci.informativeness_test"], abs=0.02)


def test_linear_r2_matches_scikit_learn(factors):
    codes = noisy("rotated", factors)
    first, second = inputs.read_inputs(codes, factors).halves
    expected = []
    for fit, test in ((first, second), (second, first)):
        model = LinearRegression().fit(fit.codes, fit.factors)
        expected.append(r2_score(test.factors, model.predict(test.codes), multioutput="raw_values"))
    np.testing.assert_allclose(metrics.linear_r2(codes, factors).per_factor, np.mean(expected, axis=0), atol=2e-3)


def test_concentration_matches_scipy_entropy():
    importance = np.random.default_rng(0).random((4, 3))
    expected = 1 - entropy(importance.T, base=3)
    np.testing.assert_allclose(concentration(importance), expected)
