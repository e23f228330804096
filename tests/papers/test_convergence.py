"""What the page says about training: planted histories with known answers."""

import math

import pytest

from tests.papers.planted import finished
from vaescope.runs.files import write_json, write_rows
from vaescope_papers.embrace_the_gap.shared import PrecisionCell
from vaescope_papers.results import Result
from vaescope_papers.run import SMALLEST, Curve, training_report


def epochs(cell):
    """As many as `finished` trains."""
    return 10


def history(cell, elbo):
    return [{"precision": cell.precision, "seed": cell.seed, "epoch": e, "elbo": v} for e, v in enumerate(elbo, 1)]


def run(folder, curves, *, converged):
    """Results with these validation curves, and the history in a folder."""
    results = [finished(cell, None, converged=converged[cell]) for cell in curves]
    write_json(folder / "config.json", {"experiment": "planted"})
    write_rows(folder / "history.parquet", [row for cell, elbo in curves.items() for row in history(cell, elbo)])
    return results


def test_every_member_is_drawn_and_every_setting_has_a_row(tmp_path):
    flat, rising = [-3.0, -2.0, *[-1.0] * 8], [float(v) for v in range(10)]
    cells = {PrecisionCell(p, seed): rising if p == 1e5 and seed else flat for p in (1e2, 1e5) for seed in (0, 1)}
    results = run(tmp_path, cells, converged={cell: elbo is flat for cell, elbo in cells.items()})
    (figure,), (table,) = training_report(tmp_path, results, epochs)
    assert len(figure.figure.axes[0].get_lines()) == 4
    labels = figure.figure.axes[0].get_legend_handles_labels()[1]
    assert sorted(labels) == ["flat at the end", "still improving"]
    low, high = table.rows
    assert (low["precision"], low["flat at the end"], low["largest rise over the last tenth, nats"]) == (
        "100",
        "2 of 2",
        0.0,
    )
    assert (high["flat at the end"], high["largest rise over the last tenth, nats"]) == ("1 of 2", 1.0)
    assert low["stopped early"] == 0
    (again,) = training_report(tmp_path, results, lambda cell: 15)[1]
    assert again.rows[0]["stopped early"] == 2


def test_members_without_history_or_training_are_left_out(tmp_path):
    cell = PrecisionCell(1e2, 0)
    results = run(tmp_path, {cell: [-1.0, -0.5]}, converged={cell: True})
    others = [finished(PrecisionCell(1e3, 0), None), Result(PrecisionCell(1e4, 0), None)]
    assert len(training_report(tmp_path, [*results, *others], epochs)[1][0].rows) == 1
    for folder, own in ((tmp_path, others), (tmp_path / "elsewhere", results)):  # only what summaries have
        drawn, (table,) = training_report(folder, own, epochs)
        assert drawn == []
        assert table.rows[0]["flat at the end"] == "1 of 1"
        assert "largest rise over the last tenth, nats" not in table.rows[0]
    assert training_report(tmp_path, others[1:], epochs) == ([], [])
    assert training_report(tmp_path, [], epochs) == ([], [])


def test_curves():
    curve = Curve([-5.0, -1.0, -2.0], converged=True)
    assert curve.distances == [4.0, SMALLEST, 1.0]
    assert curve.late_gain == 0.0
    assert Curve([-1.0], converged=False).late_gain == math.inf
    assert Curve([*[-1.0] * 19, -0.25], converged=True).late_gain == pytest.approx(0.75)
