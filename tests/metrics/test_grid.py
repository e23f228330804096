"""Newer metrics on four kinds of factors under ten encoders, against closed forms, and under laws."""

import numpy as np
import pytest

from tests.metrics.planted import ENCODERS, FACTORS, PROCESSES
from vaescope import InputError, metrics
from vaescope.metrics.conditional import residuals, shared_error_inflation

SAMPLES = 600
NOISE = ("Gaussian noise", "uniform noise")
EXACT = ("rescaled", "repeated")  # every factor is a latent, up to scale


def grid(process, encoder):
    v = PROCESSES[process](SAMPLES)
    return ENCODERS[encoder](v), v


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_cross_fitted_mcc(process, encoder):
    codes, v = grid(process, encoder)
    pearson = metrics.mcc_crossfitted(codes, v)
    if encoder in NOISE:
        assert pearson.score < 0.12
    elif encoder == "dropped":
        assert pearson.coverage == 3 / 5
        assert pearson.matched == pytest.approx(1.0)
    elif encoder in EXACT:
        assert pearson.score == pytest.approx(1.0)
    elif encoder.startswith("mixed"):
        assert 0.4 < pearson.score < 0.95
    else:
        assert 0.6 < pearson.score < 0.99


@pytest.mark.parametrize(
    ("encoder", "low", "high"), [("bent", 0.98, 1), ("sine and cosine", 0.95, 1), ("mixed", 0, 0.8)]
)
def test_rdc_is_invariant_to_maps_of_single_latents_but_not_to_mixing(encoder, low, high):
    found = metrics.mcc_crossfitted(*grid("independent", encoder), method="rdc")
    assert low <= found.score <= high


def test_many_latents_and_few_samples_do_not_inflate_cross_fitted_scores():
    rng = np.random.default_rng(0)
    codes, v = rng.normal(size=(60, 40)), rng.normal(size=(60, 3))
    assert metrics.mcc(codes, v).score > 0.3
    found = metrics.mcc_crossfitted(codes, v)
    assert found.score < 0.2
    assert found.p_value > 0.05
    assert found.above_chance < 0.2


def test_the_null_of_a_real_encoder():
    found = metrics.mcc_crossfitted(*grid("independent", "mixed"))
    assert found.p_value == pytest.approx(1 / 51)
    assert found.null.mean() < 0.1
    assert metrics.mcc_crossfitted(*grid("independent", "dropped")).above_chance == pytest.approx(1.0)


# dependent factors -------------------------------------------------------------------------------


def test_conditional_mcc_is_mcc_for_independent_factors():
    for encoder in ("rescaled", "mixed", "dropped"):
        codes, v = grid("independent", encoder)
        assert metrics.conditional_mcc(codes, v).score == pytest.approx(metrics.mcc(codes, v).score, abs=0.06)


def test_conditional_mcc_of_correlated_factors():
    """A perfect encoder keeps its score; one that ignores a factor gets nothing for its correlates."""
    v = PROCESSES["correlated"](2000)
    assert metrics.conditional_mcc(v, v).score == pytest.approx(1.0, abs=0.02)
    one = np.repeat(v[:, :1], FACTORS, axis=1)
    assert metrics.mcc(one, v).score > 0.7
    assert metrics.conditional_mcc(one, v).score == pytest.approx(1 / FACTORS, abs=0.06)


@pytest.mark.parametrize(("process", "redundant"), [("copied", 2), ("combined", 3)])
def test_factors_that_are_functions_of_others_are_not_credited(process, redundant):
    v = PROCESSES[process](SAMPLES)
    found = metrics.conditional_mcc(v, v)
    assert found.score == pytest.approx(1 - redundant / FACTORS, abs=0.02)
    assert any("functions of the others" in warning for warning in found.warnings)


def test_residuals_of_a_linear_model():
    rng = np.random.default_rng(0)
    given = rng.normal(size=(2000, 2))
    noise = rng.normal(size=(2000, 1))
    target = given @ [[1.0], [-2.0]] + noise
    found = residuals(target, given)
    assert np.corrcoef(found[:, 0], noise[:, 0])[0, 1] > 0.98


# T-MEX -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoder", "wrong"),
    [("rescaled", 0), ("mixed", FACTORS * (FACTORS - 1)), ("Gaussian noise", FACTORS), ("dropped", 0)],
)
@pytest.mark.parametrize("process", ["independent", "correlated"])
def test_tmex_counts_contradictions(process, encoder, wrong):
    """Also for correlated factors: a latent that measures one factor is independent of the others given it."""
    assert metrics.tmex(*grid(process, encoder), level=1e-4).score == wrong


@pytest.mark.parametrize("samples", [60, 300])
def test_variance_of_products_of_cross_fitted_residuals(samples):
    """Against the matrix of the linear map from targets to residuals, which shows in the residuals of unit vectors."""
    given = np.random.default_rng(0).normal(size=(samples, 3))
    noise = np.random.default_rng(1).normal(size=(samples, 1))
    step = 1e-3 * np.eye(samples)  # `residuals` standardises its targets; small steps hardly change the scale
    targets = np.hstack([noise, noise + step])
    scale = targets.std(0)
    found = residuals(targets, given) * scale
    M = (found[:, 1:] - found[:, :1]) / 1e-3
    gram = M @ M.T
    expected = np.square(gram).sum() / np.square(gram.diagonal()).sum()
    assert shared_error_inflation(given) == pytest.approx(expected, rel=0.1)
    assert expected > 1.05


def test_tmex_level_with_few_samples():
    """Without allowing for the errors of the regressions, 10 % of absent pairs are rejected."""
    rejected = []
    for seed in range(40):
        v = PROCESSES["independent"](100, seed)
        codes = np.tanh(1.5 * v) + 0.1 * np.random.default_rng(seed).normal(size=v.shape)
        rejected.append((metrics.tmex(codes, v).p_values[~np.eye(FACTORS, dtype=bool)] < 0.05).mean())
    assert np.mean(rejected) == pytest.approx(0.05, abs=0.02)


def test_tmex_level_and_structure():
    """Tests of absent pairs reject as often as their level says, and a wrong structure is contradicted."""
    rejected = []
    for seed in range(40):
        v = PROCESSES["correlated"](300, seed)
        noise = 0.5 * np.random.default_rng(500 + seed).normal(size=v.shape)
        p_values = metrics.tmex(v + noise, v).p_values
        rejected.append((p_values[~np.eye(FACTORS, dtype=bool)] < 0.05).mean())
    assert np.mean(rejected) == pytest.approx(0.05, abs=0.02)
    v = PROCESSES["independent"](SAMPLES)
    swapped = np.eye(FACTORS)[[1, 0, 2, 3, 4]].astype(bool)
    assert metrics.tmex(v, v, structure=swapped, level=1e-4).score == 4
    with pytest.raises(InputError, match="a row per latent"):
        metrics.tmex(v, v, structure=np.eye(2))


# EDI and DCI-ES ----------------------------------------------------------------------------------


def test_edi_tells_modularity_from_compactness():
    identity, repeated, mixed, noise = (
        metrics.edi(*grid("independent", name)) for name in ("rescaled", "repeated", "mixed", "Gaussian noise")
    )
    assert identity.modularity > 0.95
    assert identity.compactness > 0.95
    assert repeated.modularity > 0.95
    assert repeated.compactness < 0.75  # each factor is in two latents
    assert mixed.modularity < 0.3
    assert noise.score == noise.compactness == noise.explicitness == 0.0


def test_dci_es():
    identity, repeated, noise = (
        metrics.dci_es(*grid("independent", name)) for name in ("rescaled", "repeated", "Gaussian noise")
    )
    assert identity.explicitness > 0.98
    assert (identity.size, repeated.size) == (1.0, 0.5)
    assert noise.explicitness == 0.0
    codes = np.random.default_rng(0).uniform(-1, 1, (800, 1))
    hidden = metrics.dci_es(codes, np.sin(5 * codes))
    assert hidden.losses[0] > 0.5  # a linear predictor does not find the factor
    assert hidden.losses[-1] < 0.1
    assert hidden.explicitness < 0.9
    assert (np.diff(hidden.losses, axis=0) <= 0).all()


@pytest.mark.parametrize("name", ["mcc_crossfitted", "conditional_mcc", "tmex", "edi", "dci_es"])
def test_order_and_scale_of_latents_do_not_matter(name):
    codes, v = grid("independent", "bent")
    metric = getattr(metrics, name)
    assert metric(codes, v).score == pytest.approx(metric(codes[:, ::-1] * 3.0, v).score, abs=0.03)
