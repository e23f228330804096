"""Claims can fail: rows that obey a statement make it hold, rows that break it make it fail."""

import pytest

from vaescope.experiments import beta_precision, covariance_structure, elbo_gap, linear_vae
from vaescope.experiments.claims import Claim, claim_over, show, slope
from vaescope.experiments.elbo_gap_results import PUBLISHED_ELBO, half_decades


def verdicts(experiment, rows):
    return [claim.holds for claim in experiment.claims(rows, experiment.profiles["quick"])]


def linear_rows(**change):
    good = {
        "status": "finished",
        "closed_form_mismatch": 1e-12,
        "corollary_gap": 0.0,
        "limit_error": [1 / p for p in linear_vae.LIMIT_PRECISIONS],
        "trained_gap": 1e-3,
        "axes_cosine": 0.999,
    }
    return [good | {"precision": 1.0, "seed": seed} | change for seed in range(3)]


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, None),
        ({"closed_form_mismatch": 1e-6}, 0),
        ({"corollary_gap": 1e-3}, 1),
        ({"limit_error": [p**-0.5 for p in linear_vae.LIMIT_PRECISIONS]}, 2),
        ({"trained_gap": 0.2}, 3),
        ({"axes_cosine": 0.7}, 4),
    ],
)
def test_linear_vae(change, broken):
    assert verdicts(linear_vae.EXPERIMENT, linear_rows(**change)) == [i != broken for i in range(5)]


@pytest.mark.parametrize(
    ("mismatch", "ratio", "expected"),
    [(1e-15, 1.0, [True, True]), (1e-3, 1.0, [False, True]), (1e-15, 1.2, [True, False])],
)
def test_beta_precision(mismatch, ratio, expected):
    rows = [
        {"role": role, "beta": beta, "seed": seed, "status": "finished", "gradient_mismatch": mismatch}
        | {"posterior_variance": 0.1 * (ratio if role == "VAE" else 1.0)}
        for role in ("beta-VAE", "VAE")
        for beta in beta_precision.EXPERIMENT.profiles["quick"].betas
        for seed in range(3)
    ]
    assert verdicts(beta_precision.EXPERIMENT, rows) == expected


def gap_rows(**change):
    def row(mixing, precision, seed):
        scale = {"triangular": 1e11, "orthogonal": 1e4}.get(mixing, 1.0)
        good = {"elbo_star": 7.785, "l_ima": 7.785, "log_p": 14.857, "contrast": 7.072, "amortisation_gap": 0.1}
        good["distance"] = scale * precision**-1.0
        place = half_decades(precision) // 2 - 2  # exact curve on the published one, read as γ
        if mixing == "triangular" and 0 <= place < 9 and half_decades(precision) % 2 == 0:
            good["elbo_star"] = PUBLISHED_ELBO[place]
        return good | {"mixing": mixing, "precision": precision, "seed": seed} | change.get(mixing, {})

    cells = elbo_gap.EXPERIMENT.cells(elbo_gap.EXPERIMENT.profiles["quick"])
    return [row(c["mixing"], c["precision"], c["seed"]) for c in cells]


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, set()),
        ({"triangular": {"elbo_star": 14.8}}, {0, 1, 6}),
        ({"triangular": {"distance": 0.1}}, {2}),
        ({"orthogonal": {"distance": 0.1}}, {3}),
        ({"wide": {"distance": 0.1}}, {4}),
        ({"wide, noisy": {"distance": 0.1}}, {5}),
        ({"triangular": {"amortisation_gap": -0.1}}, {7}),
    ],
)
def test_elbo_gap(change, broken):
    assert verdicts(elbo_gap.EXPERIMENT, gap_rows(**change)) == [i not in broken for i in range(8)]


def test_covariance_structure():
    values = {
        "isotropic": {"conformal_contrast": 0.1, "ima_contrast": 0.1, "mcc_mean": 0.8},
        "diagonal": {"conformal_contrast": 0.5, "ima_contrast": 0.01, "mcc_mean": 0.9},
        "full": {"conformal_contrast": 0.5, "ima_contrast": 0.5, "mcc_mean": 0.7},
    }
    cells = covariance_structure.EXPERIMENT.cells(covariance_structure.EXPERIMENT.profiles["quick"])
    rows = [cell | {"status": "finished"} | values[cell["posterior"]] for cell in cells]
    assert verdicts(covariance_structure.EXPERIMENT, rows) == [True, True, True, True, False]
    flat = [row | {"conformal_contrast": 0.1, "ima_contrast": 0.1, "mcc_mean": 0.9} for row in rows]
    assert verdicts(covariance_structure.EXPERIMENT, flat) == [False] * 5


def test_numbers_are_shown_with_their_spread():
    claim = Claim("S.", "s", "d", value=-1.0312, low=-1.1, high=-0.9, holds=True)
    assert claim.measured == "-1.03 (-1.1 to -0.9)"
    assert show(float("nan")) == "nan"
    assert slope([1.0, 10.0], [1.0, 100.0]) == pytest.approx(2.0)


def test_without_members_nothing_holds():
    claim = claim_over([], holds=lambda v: True, sentence="S.", source="s", demand="d")
    assert not claim.holds
    assert "No finished member" in claim.note
