"""Claims of linear-vae on planted results."""

from dataclasses import replace

import pytest

from tests.papers.planted import UNDECIDED, failing, finished, judge
from vaescope_papers.embrace_the_gap.linear_vae import EXPERIMENT, LIMIT_PRECISIONS, LinearMeasurement, RandomDecoder
from vaescope_papers.embrace_the_gap.shared import PrecisionCell

RANDOM = RandomDecoder(
    gap=0.5,
    closed_form_mismatch=1e-12,
    contrast=1.0,
    gaps=tuple(1 - 1 / p for p in LIMIT_PRECISIONS),
    distances=tuple(1 / p for p in LIMIT_PRECISIONS),
)
GOOD = LinearMeasurement(
    trained_gap=1e-3, axes_cosine=0.999, likelihood_loss=1e-3, orthogonal_gap=0.0, random_decoder=RANDOM
)
SLOW = replace(RANDOM, distances=tuple(p**-0.5 for p in LIMIT_PRECISIONS))
VANISHED = replace(RANDOM, distances=tuple(0.0 for _ in LIMIT_PRECISIONS))


def planted(**changes):
    cells = [PrecisionCell(precision, seed) for precision in (1.0, 10.0) for seed in range(8)]
    return [finished(cell, replace(GOOD, **changes)) for cell in cells]


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, set()),
        ({"random_decoder": replace(RANDOM, closed_form_mismatch=1e-6)}, {0}),
        ({"orthogonal_gap": 1e-3}, {1}),
        ({"random_decoder": SLOW}, {2}),
        ({"trained_gap": 0.03}, {3}),
        ({"axes_cosine": 0.7}, {4}),
    ],
)
def test_claims(changes, broken):
    assert failing(EXPERIMENT, planted(**changes)) == broken


def test_members_below_the_known_optimum_decide_nothing_about_it():
    found = planted(trained_gap=0.03, likelihood_loss=0.1, axes_cosine=0.7)
    assert failing(EXPERIMENT, found, UNDECIDED) == {3, 4}
    claim = judge(EXPERIMENT, found)[4]
    assert "16 of 16 members are not known to be within 0.05 nats" in claim.reason
    assert claim.note == "16 of 16 members are more than 0.01 nats below the optimum; their smallest |cos| is 0.70."


def test_members_of_a_seed_are_one_unit():
    claim = judge(EXPERIMENT, planted())[3]
    assert (claim.units, claim.note) == (8, "0 of 16 members are more than 0.01 nats below the optimum.")


def test_a_rate_that_cannot_be_fitted_is_undecided():
    assert failing(EXPERIMENT, planted(random_decoder=VANISHED), UNDECIDED) == {2}
