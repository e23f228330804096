"""Claims of beta-precision on planted results, and the members of a pair."""

from dataclasses import replace

import pytest

from tests.papers.planted import UNDECIDED, failing, finished
from vaescope_papers.embrace_the_gap.beta_precision import EXPERIMENT, BetaPrecisionMeasurement


def planted(mismatch=1e-15, ratio=1.0):
    return [
        finished(cell, BetaPrecisionMeasurement(0.1 * (ratio if cell.role == "VAE" else 1.0), 1e-3, mismatch))
        for cell in EXPERIMENT.cells(EXPERIMENT.quick)
    ]


@pytest.mark.parametrize(
    ("changes", "broken"), [({}, set()), ({"mismatch": 1e-3}, {0}), ({"ratio": 1.2}, {1}), ({"ratio": 0.8}, {1})]
)
def test_claims(changes, broken):
    assert failing(EXPERIMENT, planted(**changes)) == broken


def test_a_pair_without_its_partner_is_not_compared():
    only_one_role = [r for r in planted(ratio=1.2) if r.cell.role == "VAE"]
    assert failing(EXPERIMENT, only_one_role, UNDECIDED) == {1}


def test_both_members_of_a_pair_have_the_same_ratio_of_precision_and_beta():
    settings = EXPERIMENT.quick
    for cell in EXPERIMENT.cells(settings):
        pair = [EXPERIMENT.member(replace(cell, role=role), 0, settings) for role in ("beta-VAE", "VAE")]
        assert pair[0].precision / pair[0].beta == pytest.approx(pair[1].precision / pair[1].beta)
        assert pair[0].seed == pair[1].seed
