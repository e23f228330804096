"""Claims can fail: rows that obey a statement make it hold, rows that break it make it fail."""

from itertools import pairwise

import numpy as np
import pytest

from vaescope.papers.claims import Claim, claim_over, rank_claim, show, slope
from vaescope.papers.embrace_the_gap import (
    beta_precision,
    covariance_structure,
    elbo_gap,
    linear_vae,
    moebius_linear_map,
    moebius_precision,
    sprites,
)
from vaescope.papers.embrace_the_gap.elbo_gap_results import PUBLISHED_ELBO, half_decades
from vaescope.papers.polarised_regime import ivae_sources, polarised_regime
from vaescope.papers.polarised_regime import polarised_regime_results as regime_results


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


def source_rows():
    good = {"status": "finished", "r2": 0.97}
    scores = {"vae": 0.7, "ivae": 0.95}
    return [
        good | {"data": data, "model": model, "seed": seed, "mcc": scores[model]}
        for data in ("segments", "drift")
        for model in scores
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, set()),
        ({("segments", "ivae"): {"mcc": 0.85}}, {0}),
        ({("segments", "vae"): {"mcc": 0.9}}, {1}),
        ({("drift", "ivae"): {"mcc": 0.75}}, {2, 3}),
        ({("drift", "vae"): {"r2": 0.5}, ("segments", "vae"): {"r2": 0.5}}, {4}),
    ],
)
def test_ivae_sources(change, broken):
    rows = [row | change.get((row["data"], row["model"]), {}) for row in source_rows()]
    assert verdicts(ivae_sources.EXPERIMENT, rows) == [i not in broken for i in range(5)]


def regime_rows():
    """Members that obey everything: two active and two passive latents each."""
    rows = []
    for cell in polarised_regime.EXPERIMENT.cells(polarised_regime.EXPERIMENT.profiles["quick"]):
        width = cell["latents"]
        kinds = ["active"] * 2 + ["passive"] * (width - 2)
        row = cell | {
            "status": "finished",
            "active": 2,
            "passive": width - 2,
            "mixed": 0,
            "boundary": 0,
            "kinds": kinds,
            "effect": [0.5] * 2 + [1e-4] * (width - 2),
            "prior_variance": [0.05] * width,
            "rival variance near 1": ["active"] * width,
        }
        for what in ("accuracy", "sampled_accuracy"):
            row |= {f"{what}_all": 0.6, f"{what}_used": 0.6, f"{what}_passive": 0.3}
        for name in regime_results.STATEMENTS:
            key = regime_results.slug(name)
            row |= {f"{key}_distance": 0.01, f"{key}_low": 0.0, f"{key}_high": 0.02, f"{key}_tolerance": 0.1}
            row[f"{key}_verdict"] = "holds"
        rows.append(row)
    return rows


STATEMENT_COUNT = len(regime_results.STATEMENTS)


def test_a_polarised_regime_holds():
    assert all(verdicts(polarised_regime.EXPERIMENT, regime_rows()))


@pytest.mark.parametrize("place", range(STATEMENT_COUNT))
@pytest.mark.parametrize("verdict", ["fails", "undecided"])
def test_a_statement_that_one_member_breaks_is_not_claimed(place, verdict):
    rows = regime_rows()
    key = regime_results.slug(list(regime_results.STATEMENTS)[place])
    rows[3] |= {f"{key}_verdict": verdict, f"{key}_distance": 0.5, f"{key}_high": 0.6}
    claims = polarised_regime.EXPERIMENT.claims(rows, polarised_regime.EXPERIMENT.profiles["quick"])
    assert [i for i, claim in enumerate(claims) if not claim.holds] == [place]
    assert claims[place].value == 0.5
    assert f"{regime_results.title(rows[3])}: {verdict}" in claims[place].note


@pytest.mark.parametrize(
    ("change", "where", "broken"),
    [
        ({"mixed": 1}, {}, 0),
        ({"active": 4}, {"model": "vae", "latents": 20}, 1),
        ({"active": 3}, {"model": "ivae", "beta": 4.0}, 2),
        ({"accuracy_used": 0.5}, {"model": "vae", "latents": 20}, 3),
        ({"accuracy_used": 0.5}, {"model": "ivae", "latents": 20}, 4),
        ({"sampled_accuracy_used": 0.5}, {"model": "vae", "latents": 20}, 5),
        ({"effect": [0.5, 0.5, 0.05] + [0.0] * 7}, {"latents": 10, "beta": 4.0}, 6),
        ({"rival variance near 1": ["passive"] * 20}, {"model": "ivae"}, 7),
        ({"prior_variance": [0.9] * 20}, {"model": "ivae"}, 8),
    ],
)
def test_polarised_regime(change, where, broken):
    rows = regime_rows()
    for row in rows:
        if all(row[key] == value for key, value in where.items()):
            row |= {k: v[: row["latents"]] if isinstance(v, list) else v for k, v in change.items()}
    wanted = [True] * (STATEMENT_COUNT + 9)
    wanted[STATEMENT_COUNT + broken] = False
    assert verdicts(polarised_regime.EXPERIMENT, rows) == wanted
