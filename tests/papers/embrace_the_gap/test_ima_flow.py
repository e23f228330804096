"""ima-flow: claims on planted results, and how rows and convergence are counted."""

from dataclasses import replace

import pytest

from tests.papers.planted import HOLDS, UNDECIDED, failing, finished, judge, verdicts
from vaescope import theory
from vaescope_papers.embrace_the_gap.ima_flow import (
    EXPERIMENT,
    FLOW,
    MIXINGS,
    VAE_METHOD,
    FlowCell,
    FlowMeasurement,
    Likelihood,
    late_gain,
)
from vaescope_papers.results import Result

STRENGTHS = (0.0, 0.1, 1.0, 10.0)


def measured(*, mcc=0.9, contrast=0.1, log_likelihood=None, below_truth=0.0, folded=0.0):
    likelihood = None if log_likelihood is None else Likelihood(log_likelihood, below_truth, folded, 0.0)
    return FlowMeasurement(mcc, 0.95, contrast, 1.0, (10.0, 20.0, 30.0), (0.2, mcc, mcc), likelihood)


def planted(*, mcc_without=0.6, mcc_vae=0.95, cost=(0.01, 0.3), below_truth=0.0, folded=0.0, reverse=False, seeds=8):
    """Everything as claimed, unless told otherwise."""
    results = []
    for place, contrast in enumerate(MIXINGS):
        for seed in range(seeds):
            vae = FlowCell(VAE_METHOD, contrast, 1.0, seed)
            results.append(finished(vae, measured(mcc=mcc_vae)))
            for strength in STRENGTHS:
                found = measured(
                    mcc=mcc_without if strength == 0 else 0.94,
                    contrast=(1 + strength) ** (0.01 if reverse else -1) + 0.001 * seed - 0.01,
                    log_likelihood=5.0 - cost[place] * (strength > 0),
                    below_truth=below_truth,
                    folded=folded,
                )
                results.append(Result(FlowCell(FLOW, contrast, strength, seed), found))
    return results


def test_claims():
    assert set(verdicts(EXPERIMENT, planted())) == {HOLDS}
    assert failing(EXPERIMENT, planted(mcc_without=0.93)) == {0}
    assert failing(EXPERIMENT, planted(mcc_vae=1.0)) == {1}
    assert failing(EXPERIMENT, planted(reverse=True)) == {2}
    assert failing(EXPERIMENT, planted(cost=(0.2, 0.3))) == {3}
    assert failing(EXPERIMENT, planted(cost=(0.01, 0.0))) == {4}


@pytest.mark.parametrize("changes", [{}, {"mcc_vae": 1.0, "mcc_without": 0.93, "cost": (0.2, 0.0)}])
def test_flows_below_the_true_unmixing_decide_nothing_about_optima(changes):
    """Neither what holds nor what fails: training, not the objective, could be the reason."""
    found = judge(EXPERIMENT, planted(below_truth=1.5, **changes))
    assert [str(claim.verdict) for claim in found] == [UNDECIDED, UNDECIDED, HOLDS, UNDECIDED, UNDECIDED]
    assert "8 of 8 members are not known to be within 0.05 nats" in found[1].reason


def test_flows_that_fold_do_not_count_in_claims_about_likelihoods():
    """Their likelihood is no density: here it would make regularisation look expensive."""
    assert verdicts(EXPERIMENT, planted(folded=0.01))[3:] == [UNDECIDED, UNDECIDED]
    results = [
        replace(r, measured=replace(r.measured, likelihood=Likelihood(9.0, -1.0, 0.2, 0.0)))
        if r.cell.method == FLOW and r.cell.strength == 0 and r.cell.seed < 2
        else r
        for r in planted(seeds=10)
    ]
    cheap, costly = judge(EXPERIMENT, results)[3:]
    assert (str(cheap.verdict), cheap.value) == (HOLDS, pytest.approx(0.01))
    assert (str(costly.verdict), costly.value) == (HOLDS, pytest.approx(0.3))
    assert "4 of 20 with λ = 0" in costly.note
    fewer = [r for r in results if r.cell.seed < 4]
    assert str(judge(EXPERIMENT, fewer)[4].verdict) == UNDECIDED  # two pairs are left


def test_the_objective_of_the_truth_is_beside_that_of_the_flows():
    note = judge(EXPERIMENT, planted(below_truth=1.5, seeds=1))[1].note
    assert "0.99 to 0.99 nats below that of the true unmixing" in note


def test_rows_to_recover_and_late_gain():
    assert measured(mcc=0.9).rows_to_recover == 20.0
    assert replace(measured(mcc=0.9), mcc_curve=(0.9, 0.2, 0.9)).rows_to_recover == 30.0
    assert late_gain([0.0] * 8 + [1.0] * 2) == pytest.approx(1.0)
    assert late_gain([1.0]) == 0.0


@pytest.mark.parametrize("contrast", list(MIXINGS))
def test_the_mixings_have_the_contrast_of_their_cell(contrast):
    cell = FlowCell(FLOW, contrast, 1.0, 3)
    sources = EXPERIMENT.data(cell, replace(EXPERIMENT.quick, samples=4000)).test_factors
    assert float(theory.ima_contrast(EXPERIMENT.mixing(cell), sources).mean()) == pytest.approx(contrast, abs=0.05)
