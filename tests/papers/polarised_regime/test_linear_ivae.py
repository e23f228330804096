"""Claims and report of linear-ivae on planted results; its samples have the moments that the formulas are about."""

from dataclasses import replace

import pytest
import torch

from tests.papers.planted import REFUTED, UNDECIDED, failing, finished
from tests.papers.report_checks import check_incomplete_results, report_parts, stored_and_read
from vaescope.core import randomness
from vaescope_papers.polarised_regime.linear_ivae import (
    EXPERIMENT,
    MODELS,
    LinearIVAECell,
    LinearIVAEMeasurement,
    best,
    exact_sample,
    moments,
)


def planted(change=None, *, seeds=7):
    """Trained models that are the closed form's; `change` has other values by model."""
    results = []
    for model in MODELS:
        for seed in range(seeds):
            cell = LinearIVAECell(model, seed)
            optimum = best(cell)
            ratios = tuple(optimum.variance_ratio.flatten().tolist())
            fractions = tuple(optimum.passive_fraction.tolist())
            measured = LinearIVAEMeasurement(
                kinds=tuple(optimum.kind),
                predicted_kinds=tuple(optimum.kind),
                passive_fraction=fractions,
                predicted_passive_fraction=fractions,
                ratios=ratios,
                predicted_ratios=ratios,
                shortfall=None if model == "network" else 0.001,
                optimum=-1.0,
            )
            results.append(finished(cell, replace(measured, **(change or {}).get(model, {}))))
    return results


NO_MIXED = {"kinds": ("active", "active", "active", "passive", "passive")}


@pytest.mark.parametrize(
    ("change", "refuted"),
    [
        ({}, set()),
        ({"fixed": {"shortfall": -0.01}}, {0}),
        ({"fixed": {"ratios": (0.5,) * 15}, "learned": {"ratios": (0.5,) * 15}}, {1}),
        ({"fixed": NO_MIXED, "learned": NO_MIXED}, {2}),
        ({"network": NO_MIXED}, {3}),
    ],
)
def test_claims(change, refuted):
    assert failing(EXPERIMENT, planted(change), REFUTED) == refuted


def test_models_far_from_the_optimum_decide_nothing_about_it():
    short = {"shortfall": 0.5, **NO_MIXED}
    results = planted({"fixed": short, "learned": short})
    assert failing(EXPERIMENT, results, UNDECIDED) == {1, 2, 3}


def test_a_sample_has_exactly_the_given_moments():
    mean, covariance = moments(LinearIVAECell("learned", 3))
    x = exact_sample(mean[1], covariance[1], 50, randomness.generator(0, "test"))
    assert torch.allclose(x.mean(0), mean[1])
    assert torch.allclose(x.T.cov(correction=0), covariance[1])


def test_two_latents_of_every_model_are_predicted_to_be_mixed():
    assert all(best(LinearIVAECell(model, 0)).kind.count("mixed") == 2 for model in MODELS)


def test_figure_and_table():
    _, _, (table,), (figure,), _ = report_parts(EXPERIMENT, planted())
    assert [row["mixed latents"] for row in table.rows] == [2.0, 2.0, 2.0]
    assert figure.name == "linear_ivae"


def test_results_are_stored_and_read(tmp_path):
    results = planted(seeds=1)
    assert [(r.cell, r.measured) for r in stored_and_read(EXPERIMENT, results, tmp_path)] == [
        (r.cell, r.measured) for r in results
    ]


def test_incomplete_results_are_reported():
    check_incomplete_results(EXPERIMENT, planted(seeds=2))
