"""Claims of encoder-rate on planted errors."""

import pytest

from tests.papers.planted import HOLDS, REFUTED, finished, verdicts
from tests.papers.report_checks import check_incomplete_results, report_parts
from vaescope_papers.embrace_the_gap.encoder_rate import EXPERIMENT, EncoderRateMeasurement

FLOORS = {0: 1e-4, 1: 1e-6, 2: 1e-9}  # of the encoder's own error, by size


def planted(floors=None, *, exact_slope=-2.0, exact_at=1e-3, own_slope=0.0):
    results = []
    for cell in EXPERIMENT.cells(EXPERIMENT.laptop):
        relative = cell.precision / 1e2
        exact = exact_at * (1 + 0.01 * cell.seed) * relative**exact_slope
        own = ((floors or FLOORS)[cell.size]) * relative**own_slope
        results.append(finished(cell, EncoderRateMeasurement(exact + own, exact, own, 1.0)))
    return results


@pytest.mark.parametrize(
    ("options", "failing"),
    [
        ({}, set()),
        ({"exact_slope": -1.0}, {0, 2, 3, 4}),
        ({"floors": {0: 1e-9, 1: 1e-9, 2: 1e-9}}, {1, 2}),
        ({"floors": {0: 1e-3, 1: 1e-4, 2: 1e-6}}, {4}),
        ({"own_slope": -2.0}, {1, 2, 5}),
    ],
)
def test_claims(options, failing):
    found = verdicts(EXPERIMENT, planted(**options), EXPERIMENT.laptop)
    assert found == [REFUTED if index in failing else HOLDS for index in range(6)]


def test_training_grows_with_the_size():
    settings = EXPERIMENT.laptop
    cells = {cell.size: cell for cell in EXPERIMENT.cells(settings)}
    trained = [EXPERIMENT.training_of(cells[size], settings) for size in range(3)]
    assert [own.epochs for own in trained] == [5, 20, 80]
    steps = settings.samples * 0.7 // settings.batch_size
    assert all(own.precision_hold + own.precision_warmup < own.epochs * steps / 2 for own in trained)
    assert [EXPERIMENT.model(cells[size], settings).networks.hidden[0] for size in range(3)] == list(settings.units)


def test_report():
    results = planted()
    _, _, (table,), (figure,), _ = report_parts(EXPERIMENT, results)
    assert [row["slope of the best means"] for row in table.rows] == pytest.approx([-2.0] * 3)
    assert "trained encoder" in figure.caption
    check_incomplete_results(EXPERIMENT, results)
