"""Claims and report of ivae-sources on planted results."""

import pytest

from tests.papers.planted import UNDECIDED, failing, finished, unconverged
from tests.papers.report_checks import check_incomplete_results, report_parts, stored_and_read
from vaescope_papers.polarised_regime.ivae_sources import EXPERIMENT, SourcesCell, SourcesMeasurement

MCC = {"vae": 0.7, "ivae": 0.95}


def planted(change=None, *, seeds=3):
    """The iVAE recovers sources that the VAE leaves rotated; `change` has other values by data and model."""
    change = change or {}
    return [
        finished(
            SourcesCell(data, model, seed),
            SourcesMeasurement(
                **{"mcc": MCC[model], "mcc_floor": 0.1, "r2": 0.97, "active": 4} | change.get((data, model), {})
            ),
        )
        for data in ("segments", "drift")
        for model in MCC
        for seed in range(seeds)
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
def test_claims(change, broken):
    assert failing(EXPERIMENT, planted(change)) == broken
    assert failing(EXPERIMENT, unconverged(planted(change)), UNDECIDED) == broken


def test_gains_are_paired_by_seed():
    results = [r for r in planted() if r.cell != SourcesCell("segments", "vae", 1)]
    assert failing(EXPERIMENT, results) == set()
    without = [r for r in results if (r.cell.data, r.cell.model) != ("segments", "vae")]
    assert failing(EXPERIMENT, without, UNDECIDED) == {1}


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
    assert stored_and_read(EXPERIMENT, planted(), tmp_path) == planted()
