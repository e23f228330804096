"""Claims can fail: rows that obey a statement make it hold, rows that break it make it fail."""

from itertools import pairwise

import numpy as np
import pytest

from vaescope.experiments import (
    beta_precision,
    covariance_structure,
    elbo_gap,
    linear_vae,
    moebius_linear_map,
    moebius_precision,
    sprites,
)
from vaescope.experiments.claims import Claim, claim_over, rank_claim, show, slope
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


def moebius_rows(**change):
    """MCC rises and contrast falls with γ²; at γ² = 10 nothing is transmitted."""
    rows = []
    for place, precision in enumerate(moebius_precision.EXPERIMENT.profiles["quick"].precisions):
        for seed in range(4):
            mcc = (0.02, 0.1, 0.8, 0.96, 0.97)[place] + 0.001 * seed
            row = {"mcc_sampled": mcc, "mcc_mean": max(mcc, 0.7), "mcc_linear_ica": 0.9}
            row |= {"ima_contrast": 10.0 ** (-place - 0.01 * seed), "mcc_sampled_in_batches": max(mcc, 0.15)}
            rows.append({"status": "finished", "precision": precision, "seed": seed} | row | change)
    return rows


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, set()),
        ({"mcc_sampled": 0.9}, {0, 2, 4}),
        ({"mcc_mean": 0.9}, {1, 6}),
        ({"ima_contrast": 0.1}, {3}),
        ({"mcc_sampled_in_batches": 0.02}, {5}),
        ({"mcc_linear_ica": 0.99}, {6}),
    ],
)
def test_moebius_precision(change, broken):
    assert verdicts(moebius_precision.EXPERIMENT, moebius_rows(**change)) == [i not in broken for i in range(7)]


def test_moebius_linear_map():
    def rows(sign):
        return [
            {"status": "finished", "seed": s, "map_contrast": float(s), "mixing_contrast": float(s)}
            | {"mcc_mean": 0.5 + sign * s / 50, "mcc_sampled": 0.5 + sign * s / 50, "ima_contrast": 0.1}
            for s in range(20)
        ]

    assert verdicts(moebius_linear_map.EXPERIMENT, rows(-1)) == [True] * 3
    assert verdicts(moebius_linear_map.EXPERIMENT, rows(1)) == [False] * 3
    assert verdicts(moebius_linear_map.EXPERIMENT, rows(-1)[:2]) == [False] * 3


def sprite_rows(**change):
    along = {"along_epoch": list(range(1, 31)), "along_mcc": [0.3 + 0.02 * e for e in range(30)]}
    along["along_contrast"] = [0.1, 0.5, *(1.0 / (e + 1) for e in range(28))]
    good = {"status": "finished", "mcc": 0.95, "mcc_pca": 0.7, "renderer_contrast": 0.01} | along
    worse = {"mcc": 0.4, "elbo": 1.0, "seed": 0}  # a member that failed is shown, and not chosen
    return [good | worse, good | {"elbo": 2.0, "seed": 1} | change]


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, set()),
        ({"mcc_pca": 0.96}, {0}),
        ({"mcc": 0.8}, {1}),
        ({"along_mcc": [0.5 + 0.01 * (e % 2) for e in range(30)]}, {2, 3}),
        ({"along_contrast": [0.1 * e for e in range(30)]}, {3}),
        ({"elbo": 0.5}, {0, 1}),  # then the failed member is the best by ELBO
    ],
)
def test_sprites(change, broken):
    assert verdicts(sprites.EXPERIMENT, sprite_rows(**change)) == [i not in broken for i in range(5)]


def test_sprites_of_a_renderer_outside_the_class():
    rows = [row | {"renderer_contrast": 4.0} for row in sprite_rows()]
    assert verdicts(sprites.EXPERIMENT, rows) == [True, True, True, True, False]


def test_contrasts_of_mixings_fill_the_published_range():
    found = sorted(moebius_linear_map.contrast(seed) for seed in range(64))
    assert found[0] == moebius_linear_map.LOWEST
    assert found[-1] < moebius_linear_map.HIGHEST
    gaps = [b - a for a, b in pairwise(found)]
    assert max(gaps) == pytest.approx(min(gaps))


def test_a_weak_trend_is_not_claimed():
    rng = np.random.default_rng(0)
    claim = rank_claim(np.arange(30.0).tolist(), rng.normal(size=30).tolist(), sign=1, sentence="S.", source="s")
    assert not claim.holds
    assert claim.low < claim.value < claim.high


def test_numbers_are_shown_with_their_spread():
    claim = Claim("S.", "s", "d", value=-1.0312, low=-1.1, high=-0.9, holds=True)
    assert claim.measured == "-1.03 (-1.1 to -0.9)"
    assert show(float("nan")) == "nan"
    assert slope([1.0, 10.0], [1.0, 100.0]) == pytest.approx(2.0)


def test_without_members_nothing_holds():
    claim = claim_over([], holds=lambda v: True, sentence="S.", source="s", demand="d")
    assert not claim.holds
    assert "No finished member" in claim.note
