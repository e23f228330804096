"""Claims and report of ivae-sources on planted results."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.papers.planted import HOLDS, REFUTED, UNDECIDED, failing, finished, judge, unconverged, verdicts
from tests.papers.report_checks import check_incomplete_results, report_parts, stored_and_read
from vaescope import metrics
from vaescope_papers.embrace_the_gap.shared import linear_ica
from vaescope_papers.polarised_regime.ivae_sources import (
    LOOKS,
    IVAESourcesExperiment,
    SourcesCell,
    SourcesMeasurement,
)
from vaescope_papers.verify import read_run

RESULTS = Path(__file__).parents[3] / "results"
MCC = {"vae": 0.7, "ivae": 0.95}


class Experiment(IVAESourcesExperiment):
    """At a constant rate, under which a flat curve is evidence."""

    quick = replace(IVAESourcesExperiment.quick, decay="constant")


EXPERIMENT = Experiment()


def planted(change=None, *, seeds=20, of=None):
    """The iVAE recovers sources that the VAE leaves rotated; `change` has other values by data and model.

    `of` is the share of the seeds that have the other values.
    """
    change = change or {}
    good = {"mcc_floor": 0.1, "r2": 0.97, "active": 4, "mcc_linear_ica": 0.6, "r2_linear": 0.7}
    changed = range(seeds if of is None else round(of * seeds))
    return [
        finished(
            SourcesCell(data, model, seed),
            SourcesMeasurement(
                **{"mcc": MCC[model], **good} | (change.get((data, model), {}) if seed in changed else {})
            ),
        )
        for data in ("segments", "drift")
        for model in MCC
        for seed in range(seeds)
    ]


CHANGES = [
    ({("segments", "ivae"): {"mcc": 0.85}}, {0}),
    ({("segments", "vae"): {"mcc": 0.9}}, {1}),
    ({("segments", "ivae"): {"mcc_linear_ica": 0.99}}, {2}),
    ({("drift", "ivae"): {"mcc": 0.75}}, {3, 4}),
    ({("drift", "ivae"): {"mcc_linear_ica": 0.99}}, {5}),
    ({("drift", "vae"): {"r2": 0.5}, ("segments", "vae"): {"r2": 0.5}}, {6}),
]


def test_claims_hold_with_enough_mixings_at_a_constant_rate():
    assert failing(EXPERIMENT, planted()) == set()


@pytest.mark.parametrize(("change", "broken"), CHANGES)
def test_claims_are_refuted(change, broken):
    found = verdicts(EXPERIMENT, planted(change))
    assert {index for index, verdict in enumerate(found) if verdict == REFUTED} == broken
    found = verdicts(EXPERIMENT, planted(change, of=0.5))
    assert {found[index] for index in broken} == {UNDECIDED}


@pytest.mark.parametrize("change", [{}, CHANGES[3][0]])
def test_conditions_apply_to_every_verdict(change):
    assert set(verdicts(EXPERIMENT, unconverged(planted(change)))) == {UNDECIDED}
    assert set(verdicts(IVAESourcesExperiment(), planted(change))) == {UNDECIDED}  # the rate decays
    assert set(verdicts(EXPERIMENT, planted(change, seeds=LOOKS[0]))) == {UNDECIDED}  # too few
    assert set(verdicts(EXPERIMENT, planted(change, seeds=LOOKS[-1] + 1))) == {UNDECIDED}  # not declared


def test_recovery_says_nothing_where_linear_ica_recovers_as_much():
    easy = planted({("segments", "ivae"): {"mcc_linear_ica": 0.92}})
    found = judge(EXPERIMENT, easy)
    assert [str(found[0].verdict), str(found[2].verdict), str(found[3].verdict)] == [UNDECIDED, HOLDS, HOLDS]
    assert found[0].reason.startswith("Linear ICA of the observations has a median MCC of 0.920")
    assert "only less linear mixings would decide it" in found[0].note


def test_gains_are_paired_by_seed_and_codes_counted_by_mixing():
    results = [r for r in planted() if r.cell != SourcesCell("segments", "vae", 1)]
    assert [claim.units for claim in judge(EXPERIMENT, results)] == [20, 19, 20, 20, 20, 20, 20]
    without = [r for r in results if (r.cell.data, r.cell.model) != ("segments", "vae")]
    assert failing(EXPERIMENT, without, UNDECIDED) == {1}


def test_the_stored_baselines_are_those_of_the_data():
    run = read_run(RESULTS / "laptop" / "ivae-sources")
    own = next(r for r in run.results.finished if r.cell == SourcesCell("drift", "vae", 0))
    data = IVAESourcesExperiment().data(own.cell, run.settings)
    x = data.observations.test.float()
    assert own.measured.r2_linear == pytest.approx(metrics.linear_r2(x, data.test_factors).score, rel=1e-6)
    found = metrics.mcc(linear_ica(x.double().numpy()), data.test_factors).score
    assert own.measured.mcc_linear_ica == pytest.approx(found, rel=1e-3)
    with_auxiliary = IVAESourcesExperiment().data(replace(own.cell, model="ivae"), run.settings).observations.test
    torch.testing.assert_close(with_auxiliary[:, :4].float(), x)


def test_the_table_has_medians_of_every_model():
    _, _, (table,), (figure,), _ = report_parts(EXPERIMENT, planted())
    assert [(row["auxiliary variable"], row["model"], row["MCC"]) for row in table.rows] == [
        ("a segment label", "VAE", 0.7),
        ("a segment label", "iVAE", 0.95),
        ("a number in [-1, 1]", "VAE", 0.7),
        ("a number in [-1, 1]", "iVAE", 0.95),
    ]
    assert figure.name == "ivae_sources"


def test_reports_of_incomplete_results():
    check_incomplete_results(EXPERIMENT, planted(seeds=1))


def test_results_survive_a_file(tmp_path):
    assert stored_and_read(EXPERIMENT, planted(seeds=2), tmp_path) == planted(seeds=2)
