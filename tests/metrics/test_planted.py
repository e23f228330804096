"""Every metric on codes with a known relation to their factors."""

import numpy as np
import pytest

from tests.metrics.planted import CODES, classes, continuous
from vaescope import metrics

KINDS = {"continuous": continuous, "classes": classes}

# the range that each score must be in for each code, with continuous and with discrete factors
HIGH, NULL = (0.9, 1.0), (-0.1, 0.12)
EXPECTED = {
    "MCC": {
        "identity": HIGH,
        "monotone": (0.7, 0.9),
        "duplicated": HIGH,
        "rotated": (0.75, 0.85),
        "split": (0.9, 0.97),
        "constant latent": HIGH,
        "ten latents": HIGH,
        "too few latents": (0.65, 0.69),
        "null": NULL,
    },
    "MCC (Spearman)": {"identity": HIGH, "monotone": (1 - 1e-9, 1.0), "rotated": (0.75, 0.85), "null": NULL},
    "linear R²": {
        "identity": HIGH,
        "monotone": (0.5, 0.75),
        "duplicated": HIGH,
        "rotated": HIGH,  # invariant to linear mixing, by design
        "split": (0.85, 0.95),
        "constant latent": HIGH,
        "ten latents": HIGH,
        "too few latents": (0.6, 0.7),
        "null": NULL,
    },
    "DCI disentanglement": {
        "identity": HIGH,
        "monotone": HIGH,
        "duplicated": HIGH,  # each of two latents encodes one factor
        "rotated": (0.4, 0.7),
        "split": HIGH,
        "constant latent": HIGH,
        "ten latents": HIGH,
        "null": NULL,
    },
    "DCI completeness": {
        "identity": HIGH,
        "duplicated": (0.5, 0.7),
        "rotated": (0.4, 0.7),
        "split": (0.8, 0.92),
        "ten latents": HIGH,
        "null": NULL,
    },
    "DCI informativeness": {
        "identity": HIGH,
        "monotone": HIGH,
        "duplicated": HIGH,
        "rotated": HIGH,
        "split": HIGH,
        "too few latents": (0.6, 0.8),
        "null": (-0.1, 0.25),  # one class in six by chance
    },
    "MIG": {
        "identity": HIGH,
        "duplicated": (0.0, 0.01),
        "rotated": (0.2, 0.5),
        "split": (0.7, 0.9),
        "constant latent": HIGH,
        "ten latents": HIGH,
        "too few latents": (0.55, 0.7),
        "null": NULL,
    },
    "MIG-sup": {
        "identity": HIGH,
        "duplicated": HIGH,
        "rotated": (0.2, 0.5),
        "split": (0.6, 0.9),
        "constant latent": HIGH,
        "ten latents": (0.2, 0.4),  # seven latents are noise
        "too few latents": HIGH,
        "null": NULL,
    },
    "SAP": {
        "identity": HIGH,
        "duplicated": (0.0, 0.01),
        "rotated": (0.25, 0.5),
        "constant latent": HIGH,
        "ten latents": HIGH,
        "too few latents": (0.6, 0.7),
        "null": NULL,
    },
    "InfoM (modularity)": {
        "identity": HIGH,
        "monotone": HIGH,
        "duplicated": HIGH,
        "rotated": (0.4, 0.6),
        "split": HIGH,
        "constant latent": HIGH,
        "ten latents": HIGH,
        "too few latents": HIGH,
        "null": NULL,
    },
    "InfoE (explicitness)": {
        "identity": HIGH,
        "duplicated": HIGH,
        "rotated": HIGH,
        "ten latents": HIGH,
        "too few latents": (0.6, 0.7),
        "null": NULL,
    },
    "InfoC (compactness)": {
        "identity": HIGH,
        "monotone": HIGH,
        "duplicated": (0.35, 0.45),
        "rotated": (0.4, 0.6),
        "split": (0.8, 0.95),
        "ten latents": HIGH,
        "too few latents": (0.6, 0.7),
        "null": NULL,
    },
    "modularity": {
        "identity": HIGH,
        "duplicated": HIGH,
        "rotated": (0.5, 0.75),
        "constant latent": HIGH,
        "ten latents": (0.3, 0.6),
        "null": (0.0, 0.4),  # noise has a best factor too: compare with the floor
    },
    "explicitness": {"identity": HIGH, "rotated": HIGH, "too few latents": (0.8, 0.9), "null": (0.45, 0.55)},
    "FactorVAE score": {
        "identity": HIGH,
        "monotone": HIGH,
        "duplicated": HIGH,
        "rotated": (0.5, 0.8),
        "constant latent": HIGH,
        "ten latents": HIGH,
        "too few latents": (0.6, 0.7),
        "null": (0.25, 0.42),
    },
    "β-VAE score": {
        "identity": HIGH,
        "duplicated": HIGH,
        "rotated": (0.5, 0.8),
        "constant latent": HIGH,
        "ten latents": HIGH,
        "too few latents": HIGH,  # a factor that no latent encodes is recognised by that
        "null": (0.25, 0.42),
    },
    "IRS": {
        "identity": HIGH,
        "monotone": HIGH,
        "duplicated": HIGH,
        "rotated": (0.5, 0.75),
        "constant latent": HIGH,
        "ten latents": (0.2, 0.45),
        "null": (0.0, 0.2),
    },
    "Amari distance": {
        "identity": (0.0, 0.01),
        "duplicated": (0.0, 0.01),
        "rotated": (0.25, 0.4),
        "constant latent": (0.0, 0.01),
        "ten latents": (0.0, 0.01),
        "null": (0.3, 1.0),
    },
}


@pytest.fixture(scope="module", params=KINDS)
def tables(request):
    factors = KINDS[request.param]()
    found = {name: metrics.evaluate(make(factors), factors, intervals=False).rows for name, make in CODES.items()}
    return {name: {row["metric"]: row for row in rows} for name, rows in found.items()}


def test_every_score_is_tested():
    factors = continuous(200)
    assert {row["metric"] for row in metrics.evaluate(factors, factors, intervals=False).rows} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_scores_are_in_the_expected_range(name, tables):
    found = {case: tables[case][name]["score"] for case in EXPECTED[name]}
    outside = {
        case: found[case] for case, (low, high) in EXPECTED[name].items() if not low <= found[case] <= high + 1e-12
    }
    assert not outside


@pytest.mark.parametrize("name", EXPECTED)
def test_order_sign_and_scale_do_not_matter(name, tables):
    plain, changed = tables["identity"][name]["score"], tables["permuted and rescaled"][name]["score"]
    tolerance = 5e-3 if name.startswith(("DCI", "expl", "β", "InfoE")) else 1e-9  # fitted predictors
    assert changed == pytest.approx(plain, abs=tolerance)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_null_code_scores_its_floor(name, tables):
    row = tables["null"][name]
    assert row["score"] == pytest.approx(row["floor"], abs=0.3 if name == "Amari distance" else 0.12)


@pytest.mark.parametrize("name", EXPECTED)
def test_identity_is_far_from_its_floor(name, tables):
    row = tables["identity"][name]
    gain = row["score"] - row["floor"] if row["higher_is_better"] else row["floor"] - row["score"]
    assert gain > 0.2


def test_per_factor_values_identify_the_mixed_factors():
    """The first two factors are rotated into each other, the third is unchanged."""
    factors = continuous()
    codes = CODES["rotated"](factors)
    for measure in (metrics.mcc, metrics.dci, metrics.mig, metrics.sap, metrics.infomec, metrics.irs):
        per_factor = measure(codes, factors).per_factor
        assert per_factor.shape == (3,)
        assert per_factor[2] > np.nanmax(per_factor[:2]) + 0.2


def test_a_single_latent_or_factor():
    factors = continuous(300)
    for codes, truth in ((factors[:, :1], factors), (factors, factors[:, :1]), (factors[:, :1], factors[:, :1])):
        rows = metrics.evaluate(codes, truth, intervals=False).rows
        assert len(rows) >= 17  # all but Amari
        assert all(np.isfinite(row["score"]) and np.isfinite(row["floor"]) for row in rows)
    alone = metrics.evaluate(factors[:, :1], factors[:, :1], intervals=False)
    assert alone["mig"].score > 0.95
    assert alone["dci"].disentanglement == 1.0
    assert any("amari was skipped: the Amari distance needs at least two factors" in text for text in alone.warnings)
