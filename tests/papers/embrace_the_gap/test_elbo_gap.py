"""Claims of elbo-gap on planted results, its decoders, and its table."""

from dataclasses import replace

import pytest

from tests.papers.planted import UNDECIDED, failing, finished, judge
from vaescope import randomness, theory
from vaescope.papers.embrace_the_gap.elbo_gap import EXPERIMENT, is_trained
from vaescope.papers.embrace_the_gap.elbo_gap_decoders import CASES
from vaescope.papers.embrace_the_gap.elbo_gap_results import (
    ORTHOGONAL,
    PUBLISHED_CONTRAST,
    PUBLISHED_ELBO,
    PUBLISHED_LOG_P,
    TRIANGULAR,
    WIDE,
    WIDE_NOISY,
    ElboGapMeasurement,
    TrainedEncoder,
    half_decades,
    triangular_table,
)
from vaescope.papers.results import Result

GOOD = ElboGapMeasurement(exact_converged=1.0, elbo_star=7.785, log_p=14.857, contrast=7.072, l_ima=7.785, distance=0.0)
SCALES = {TRIANGULAR: 1e11, ORTHOGONAL: 1e4}


def measured(cell):
    """The exact curve of the triangular mixing passes through the published values, read as γ."""
    own = replace(GOOD, distance=SCALES.get(cell.mixing, 1.0) / cell.precision)
    place = half_decades(cell.precision) // 2 - 2
    if cell.mixing == TRIANGULAR and 0 <= place < 9 and half_decades(cell.precision) % 2 == 0:
        own = replace(own, elbo_star=PUBLISHED_ELBO[place])
    return replace(own, encoder=TrainedEncoder(own.elbo_star - 0.1, 0.1)) if is_trained(cell) else own


def planted(**changes):
    """Results that obey every claim, except for the changes of one mixing."""
    results = []
    for cell in EXPERIMENT.cells(EXPERIMENT.quick):
        own = replace(measured(cell), **changes.get(cell.mixing, {}))
        results.append(finished(cell, own) if is_trained(cell) else Result(cell, own))
    return results


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, set()),
        ({TRIANGULAR: {"elbo_star": 14.8}}, {0, 1, 6}),
        ({TRIANGULAR: {"distance": 0.1}}, {2}),
        ({ORTHOGONAL: {"distance": 0.1}}, {3}),
        ({WIDE: {"distance": 0.1}}, {4}),
        ({WIDE_NOISY: {"distance": 0.1}}, {5}),
        ({TRIANGULAR: {"encoder": TrainedEncoder(8.0, -0.1)}}, {8}),
    ],
)
def test_claims(changes, broken):
    assert failing(EXPERIMENT, planted(**changes)) == broken


def test_the_reason_for_the_slow_rate_is_given_only_if_it_is_slow():
    held, refuted = judge(EXPERIMENT, planted())[5], judge(EXPERIMENT, planted(**{WIDE_NOISY: {"distance": 0.1}}))[5]
    assert "curvature" not in held.reason
    assert "curvature" in refuted.reason


def test_claims_about_missing_mixings_are_undecided():
    only_wide = [r for r in planted() if r.cell.mixing == WIDE]
    # the bound on the published values (7) needs no results
    assert failing(EXPERIMENT, only_wide, UNDECIDED) == {0, 1, 2, 3, 5, 6, 8}


def test_the_triangular_mixing_has_the_published_contrast_and_likelihood():
    case = CASES[TRIANGULAR]
    mixing = case.decoder()
    z = case.prior.sample(20_000, 2, generator=randomness.generator(0, "calibration"))
    assert float(theory.ima_contrast(mixing, z).mean()) == pytest.approx(PUBLISHED_CONTRAST, abs=1e-6)
    log_p = case.prior.log_density(z).sum(1) - mixing.log_abs_det(z)
    assert float(log_p.mean()) == pytest.approx(PUBLISHED_LOG_P, abs=1e-6)


def test_the_table_shows_published_values_in_both_readings():
    rows = {row["γ²"]: row for row in triangular_table(planted()).rows}
    assert rows["10"]["published, read as γ²"] == PUBLISHED_ELBO[0]
    assert rows["10"]["published, read as γ"] is None
    assert rows["100"]["published, read as γ"] == PUBLISHED_ELBO[0]
    assert rows["1e+16"]["trained"] is None
    assert rows["1e+10"]["trained"] is not None
