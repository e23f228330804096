"""Claims and report of rotation on planted results."""

from dataclasses import replace

import numpy as np
import pytest

from tests.papers.planted import UNDECIDED, failing, finished, judge, unconverged
from tests.papers.report_checks import check_incomplete_results, report_parts, stored_and_read
from vaescope.core.errors import InputError
from vaescope_papers.why_vaes_disentangle.rotation import (
    EXPERIMENT,
    LINES,
    POINTS,
    Curves,
    RotationCell,
    RotationMeasurement,
)

ANGLES = EXPERIMENT.quick.angles


def curve(height, at=0.0, *, start=0.0):
    """A value at this angle that changes by `height` up to an eighth of a turn away."""
    return tuple(start + height * float(np.sin(2 * np.radians(angle - at)) ** 2) for angle in ANGLES)


def planted(seeds=1, **change):
    """A model whose trained axes are best in every way."""
    good = {
        "log_likelihood": (1.0,) * len(ANGLES),
        "elbo": curve(-0.2, start=1.0),
        "contrast": curve(0.2),
        "mig": curve(-0.5, start=0.8),
        "od": curve(1.0),
    }
    grids = np.zeros((len(ANGLES), 2, LINES, POINTS, 2), dtype=np.float32).tobytes()
    measured = RotationMeasurement(ANGLES, Curves(**good | change), (0.0, 1.0, 2.0, 3.0), grids)
    return [finished(RotationCell(seed), measured) for seed in range(seeds)]


@pytest.mark.parametrize(
    ("change", "broken", "about_optima"),
    [
        ({}, set(), set()),
        ({"log_likelihood": tuple(1 + 1e-3 * angle / 90 for angle in ANGLES)}, {0}, set()),
        ({"elbo": curve(-0.2, 27.0, start=1.0)}, {1, 2, 3}, {1, 2}),
        ({"elbo": curve(-0.01, start=1.0)}, {2, 3}, {2}),
        ({"contrast": curve(0.2, -27.0)}, {3, 4}, {4}),
        ({"od": curve(1.0, 36.0)}, {5}, {5}),
        ({"mig": curve(0.5)}, {6}, {6}),
    ],
)
def test_claims(change, broken, about_optima):
    assert failing(EXPERIMENT, planted(**change)) == broken
    claims = judge(EXPERIMENT, unconverged(planted(**change)))
    assert {i for i, claim in enumerate(claims) if claim.verdict == UNDECIDED} == about_optima


def test_notes_list_the_best_angles():
    results = [*planted(), *planted(elbo=curve(-0.2, 18.0, start=1.0))]
    assert judge(EXPERIMENT, results)[1].note == "Best angles: +0°, +18°."


def test_values_are_those_of_the_nearest_angle():
    measured = planted()[0].measured
    assert measured.at("elbo", 45.0) == measured.curves.elbo[-1]
    assert measured.at("elbo", 44.9999) == measured.curves.elbo[-1]
    assert measured.at("elbo", 0.0) == 1.0


def test_table_figure_and_animation():
    _, _, (table,), (figure,), (animation,) = report_parts(EXPERIMENT, planted(seeds=2))
    assert [row["θ"] for row in table.rows] == ["0°", "9°", "18°", "27°", "36°", "45°"]
    assert table.rows[-1]["ELBO*"] == pytest.approx(0.8)
    assert figure.name == "rotation"
    assert animation.gif.startswith(b"GIF8")


def test_reports_of_incomplete_results():
    check_incomplete_results(EXPERIMENT, planted(seeds=2))
    assert report_parts(EXPERIMENT, [])[3:] == ([], [])


def test_results_survive_a_file(tmp_path):
    assert stored_and_read(EXPERIMENT, planted(seeds=2), tmp_path) == planted(seeds=2)


def test_angles_end_at_an_eighth_of_a_turn():
    assert (ANGLES[0], ANGLES[-1], len(ANGLES)) == (-45.0, 45.0, 11)
    assert replace(EXPERIMENT.quick, step=45.0).angles == (-45.0, 0.0, 45.0)
    for step in (10.0, 0.0, -9.0, 90.0):
        with pytest.raises(InputError, match="step must divide 45 degrees"):
            replace(EXPERIMENT.quick, step=step)
