"""Claims of linear-vae on planted results."""

from dataclasses import replace

import pytest

from tests.papers.planted import UNDECIDED, failing, finished, unconverged
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
    return [finished(PrecisionCell(1.0, seed), replace(GOOD, **changes)) for seed in range(3)]


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, set()),
        ({"random_decoder": replace(RANDOM, closed_form_mismatch=1e-6)}, {0}),
        ({"orthogonal_gap": 1e-3}, {1}),
        ({"random_decoder": SLOW}, {2}),
        ({"trained_gap": 0.2}, {3}),
        ({"axes_cosine": 0.7}, {4}),
    ],
)
def test_claims(changes, broken):
    assert failing(EXPERIMENT, planted(**changes)) == broken


def test_optima_of_unconverged_members_are_undecided():
    assert failing(EXPERIMENT, unconverged(planted(trained_gap=0.2, axes_cosine=0.7)), UNDECIDED) == {3, 4}


def test_a_rate_that_cannot_be_fitted_is_undecided():
    assert failing(EXPERIMENT, planted(random_decoder=VANISHED), UNDECIDED) == {2}
