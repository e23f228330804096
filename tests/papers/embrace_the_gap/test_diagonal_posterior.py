"""Claims of diagonal-posterior on planted results; its data are what the claims say they are."""

from dataclasses import replace

import pytest
import torch

from tests.papers.planted import HOLDS, REFUTED, UNDECIDED, finished, verdicts
from tests.papers.report_checks import check_incomplete_results, report_parts
from vaescope import metrics, theory
from vaescope.models import Member
from vaescope_papers.embrace_the_gap.diagonal_posterior import (
    EXPERIMENT,
    DiagonalPosteriorSettings,
    PosteriorMeasurement,
    make_mixing,
    sample_sources,
)
from vaescope_papers.embrace_the_gap.shared import linear_ica
from vaescope_papers.trained import restart_gain

FULL = replace(EXPERIMENT.paper, normal_seeds=1)
BASE = PosteriorMeasurement(
    mcc_mean=0.98,
    mcc_sampled=0.97,
    mcc_sampled_in_batches=0.97,
    r2_mean=0.97,
    r2_sampled=0.96,
    mcc_linear_ica=0.7,
    ima_contrast=0.01,
    mixing_contrast=0.0,
    reconstruction_mse=1e-3,
    active=3,
    mcc_pca=0.6,
    restart_gain=0.1,
    mcc_curve=(0.5,) * 20 + (0.98,) * 10,
    true_gap=0.1,
)
LOST = replace(BASE, mcc_mean=0.7, ima_contrast=0.2)
CAUSAL = {("uniform", "full"): LOST, ("uniform", "isotropic"): LOST, ("normal", "full"): LOST}
NOT_CAUSAL = {("uniform", "full"): replace(BASE, ima_contrast=0.05), ("normal", "full"): LOST}


def planted(changes):
    cells = EXPERIMENT.cells(FULL)
    return [finished(cell, changes.get((cell.sources, cell.posterior), BASE)) for cell in cells]


def test_a_cause_and_none_give_opposite_verdicts():
    H, R = HOLDS, REFUTED
    normal = [H, H, R, H, R]
    assert verdicts(EXPERIMENT, planted(CAUSAL), FULL) == [H, H, H, R, H, R, H, *normal]
    assert verdicts(EXPERIMENT, planted(NOT_CAUSAL), FULL) == [H, H, R, H, H, H, R, *normal]


def test_recovery_that_still_changes_decides_nothing():
    moving = replace(BASE, mcc_curve=tuple(0.5 + 0.015 * k for k in range(30)))
    found = verdicts(EXPERIMENT, planted(NOT_CAUSAL | {("uniform", "full"): moving}), FULL)
    assert found[:7] == [HOLDS, HOLDS, *[UNDECIDED] * 4, REFUTED]


def test_one_good_seed_of_a_mixing_is_not_a_unit():
    results = planted(CAUSAL)
    lucky = [replace(r, measured=BASE) if r.cell.seed == 0 else r for r in results]
    assert verdicts(EXPERIMENT, lucky, FULL)[:7] == verdicts(EXPERIMENT, results, FULL)[:7]


@pytest.mark.parametrize("seed", DiagonalPosteriorSettings.mixings)
def test_linear_ica_fails_on_every_mixing(seed):
    z = sample_sources("uniform", 5_000, seed)
    assert metrics.mcc(linear_ica(make_mixing("uniform", seed)(z).numpy()), z).score <= 0.8


@pytest.mark.parametrize("seed", DiagonalPosteriorSettings.mixings)
def test_mixings_are_in_the_ima_class_and_only_that_of_uniform_sources_is_conformal(seed):
    for sources in ("uniform", "normal"):
        mixing, z = make_mixing(sources, seed), sample_sources(sources, 50, seed)
        assert float(theory.ima_contrast(mixing, z).max()) < 1e-9
        assert (float(theory.conformal_contrast(mixing, z).max()) < 1e-9) is (sources == "uniform")


def test_a_rotation_of_normal_sources_has_columns_that_are_not_orthogonal():
    mixing, z = make_mixing("normal", 1000), sample_sources("normal", 50, 0)
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    assert float(theory.ima_contrast(lambda v: mixing(v @ turn.T), z).min()) > 0.02


def test_full_posteriors_have_no_gap_on_the_true_mixing_and_others_have_more():
    mixing, z = make_mixing("normal", 1000), sample_sources("normal", 10, 0)
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]

    def rotated(v):
        return mixing(v @ turn.T)

    gaps = {}
    for family in ("diagonal", "full"):
        best = theory.project(rotated, mixing(z), precision=1e4, start=z @ turn, family=family)
        likelihood = theory.log_marginal(rotated, mixing(z), precision=1e4, start=best.mean).value
        gaps[family] = float((likelihood - best.elbo).mean())
    assert gaps["full"] < 0.01 < 0.1 < gaps["diagonal"]


def test_the_gain_of_a_restart():
    def gain(scores):
        return restart_gain(Member(None, {}, history={"elbo": scores}))

    assert gain([-9.0, -3.0, -2.0, -5.0, -1.5, -1.75]) == 0.5
    assert gain([-9.0, -3.0, -2.0, -5.0, -2.5, -2.25]) == 0.0


def test_report():
    results = planted(NOT_CAUSAL)
    _, _, (table,), (figure,), _ = report_parts(EXPERIMENT, results, FULL)
    assert len(table.rows) == 5
    assert "linear ICA" in figure.caption
    check_incomplete_results(EXPERIMENT, results[:20], FULL)
    assert len(EXPERIMENT.claims(EXPERIMENT.laptop)) == 6
