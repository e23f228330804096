"""Claims and report of principal-axes on planted results."""

from dataclasses import replace

import pytest
import torch

from tests.papers.planted import UNDECIDED, failing, judge
from tests.papers.report_checks import report_parts, stored_and_read
from vaescope.core.errors import InputError
from vaescope_papers.results import Result
from vaescope_papers.why_vaes_disentangle.principal_axes import (
    EXPERIMENT,
    PUBLISHED,
    AxesCell,
    AxesMeasurement,
    AxesSettings,
    InOrder,
    PrincipalAxes,
    direction_changes,
)

SIZE = EXPERIMENT.quick.size
IMAGE = bytes(SIZE**2)
LEFT = {(0, 1500): 0.05, (0, 2000): 0.03, (0, 2500): 0.02, (0, 3000): 0.01, (2000, 3000): 0.98, (2500, 3000): 0.99}
DESCENDING_IS_BLANK, PUBLISHED_IS_SORTED = 0, 3  # refuted, whatever the images


def in_order(left):
    return InOrder(tuple(left[axis_set] for axis_set in PUBLISHED.errors), (IMAGE,) * len(PUBLISHED.errors))


def planted(*, descending=None, ascending=None, position_r2=0.7, seeds=1):
    measured = AxesMeasurement(
        total_variance=20.0,
        descending=in_order(LEFT | (descending or {})),
        ascending=in_order(dict.fromkeys(PUBLISHED.errors, 0.99) | (ascending or {})),
        cumulative=tuple(1 - 0.5 ** (1 + k) for k in range(256)),
        position_r2=position_r2,
        original=IMAGE,
    )
    return [Result(AxesCell(seed), measured) for seed in range(seeds)]


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, {DESCENDING_IS_BLANK}),
        ({"position_r2": 0.5}, {DESCENDING_IS_BLANK, 4}),
        ({"descending": {(0, 1500): 0.9}}, set()),
        ({"ascending": {(0, 1500): 0.1}}, {DESCENDING_IS_BLANK, 1}),
        ({"descending": {(2000, 3000): 0.1}}, {DESCENDING_IS_BLANK, 2}),
        ({"position_r2": 0.1}, {DESCENDING_IS_BLANK, 4}),
    ],
)
def test_claims(change, broken):
    assert failing(EXPERIMENT, planted(**change)) == broken | {PUBLISHED_IS_SORTED}


def test_every_data_set_counts():
    """The claims are about these data sets: one that disagrees refutes them, and none is too few."""
    results = [*planted(seeds=2), *planted(position_r2=0.4)]
    assert failing(EXPERIMENT, results) == {DESCENDING_IS_BLANK, PUBLISHED_IS_SORTED, 4}
    assert {str(claim.verdict) for claim in judge(EXPERIMENT, [])} == {UNDECIDED}


def test_no_data_have_a_blank_image_from_the_first_axes_in_descending_order():
    """The 1500 largest of 4096 variances are at least their share of the sum, whatever the data."""
    flat = PrincipalAxes(torch.zeros(8), torch.eye(8), torch.ones(8))
    assert flat.error(0, 3) / 8 == 1 - 3 / 8
    assert PUBLISHED.blank > 1 - 1500 / 4096
    assert judge(EXPERIMENT, planted())[DESCENDING_IS_BLANK].tolerances.startswith("Robust")


def test_a_published_table_of_sorted_axes_would_be_recognised():
    assert direction_changes(PUBLISHED.steps) == 1
    descending = replace(PUBLISHED, errors=dict(zip(PUBLISHED.errors, (4.0, 2.0, 1.0, 0.5, 22.5, 23.5), strict=True)))
    assert descending.total == 24.0
    assert direction_changes(descending.steps) == 0
    ascending = replace(
        PUBLISHED, errors=dict(zip(PUBLISHED.errors, (23.9, 23.0, 21.0, 16.0, 17.0, 19.0), strict=True))
    )
    assert direction_changes(ascending.steps) == 0


def test_tables_comparisons_and_figures():
    for seeds in (1, 3):
        _, comparisons, (errors, steps), figures, _ = report_parts(EXPERIMENT, planted(seeds=seeds))
        assert [panel.figure for panel in comparisons] == ["Tab. 7", "Tab. 7"]
        assert errors.rows[0]["descending"] == 0.05
        assert errors.rows[0]["here (of 1024)"] == "0 to 375"
        assert steps.rows[0]["descending"] == pytest.approx(1000 * 0.95 / 1500)
        assert [figure.name for figure in figures] == ["a_figure_5", "b_errors"]


def test_both_curves_start_with_all_of_the_variance_and_end_with_none():
    """Points are at 0, 1, 5, 9, … and all 1024 axes of a 32 x 32 image, scaled to 4096."""
    figures = report_parts(EXPERIMENT, planted())[3]
    lines = figures[1].figure.axes[0].get_lines()[:2]
    descending, ascending = (list(zip(*line.get_data(), strict=True)) for line in lines)
    assert descending[:3] == [(0, 1), (4, 0.5), (20, 0.25)]
    assert descending[-1] == (4096, 0)
    assert ascending[0] == (4096, 0)
    assert ascending[-1] == (0, 1)


def test_results_survive_a_file(tmp_path):
    assert stored_and_read(EXPERIMENT, planted(seeds=2), tmp_path) == planted(seeds=2)


def test_images_must_have_axes():
    with pytest.raises(InputError, match="at least 2 images of at least 8 x 8 pixels, got 20000 of 4 x 4"):
        replace(EXPERIMENT.paper, size=4)
    assert AxesSettings(seeds=1).scaled((0, 1500)) == (0, 1500)
