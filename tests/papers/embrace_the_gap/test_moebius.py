"""Claims of both Möbius experiments on planted results, and the contrasts of the mixings."""

from dataclasses import asdict, replace
from itertools import pairwise

import pytest

from tests.papers.planted import REFUTED, UNDECIDED, failing, finished, judge, unconverged, verdicts
from vaescope.papers.embrace_the_gap import moebius_linear_map, moebius_precision
from vaescope.papers.embrace_the_gap.moebius import Recovery
from vaescope.papers.embrace_the_gap.moebius_linear_map import contrast_of_map
from vaescope.papers.embrace_the_gap.moebius_linear_map_results import (
    HIGHEST,
    LOWEST,
    LinearMapMeasurement,
    SeedOnlyCell,
)
from vaescope.papers.embrace_the_gap.precision import PrecisionCell

PRECISION, LINEAR_MAP = moebius_precision.EXPERIMENT, moebius_linear_map.EXPERIMENT
BASE = Recovery(
    mcc_mean=0.9,
    mcc_sampled=0.9,
    mcc_sampled_in_batches=0.9,
    r2_mean=0.9,
    r2_sampled=0.9,
    mcc_linear_ica=0.9,
    ima_contrast=0.1,
    mixing_contrast=0.1,
    reconstruction_mse=1e-3,
)


# over the precision ---------------------------------------------------------------------------


def planted(**changes):
    """MCC rises and contrast falls with γ²; at γ² = 10 samples carry no information."""
    results = []
    for place, precision in enumerate(PRECISION.quick.precisions):
        for seed in range(4):
            mcc = (0.02, 0.1, 0.8, 0.96, 0.97)[place] + 0.001 * seed
            good = {
                "mcc_sampled": mcc,
                "mcc_mean": max(mcc, 0.7),
                "mcc_sampled_in_batches": max(mcc, 0.15),
                "ima_contrast": 10.0 ** (-place - 0.01 * seed),
            }
            results.append(finished(PrecisionCell(precision, seed), replace(BASE, **good | changes)))
    return results


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, set()),
        ({"mcc_mean": 0.9}, {1, 6}),
        ({"mcc_sampled_in_batches": 0.02}, {5}),
        ({"mcc_linear_ica": 0.99}, {6}),
    ],
)
def test_claims_over_the_precision(changes, broken):
    assert failing(PRECISION, planted(**changes)) == broken
    assert failing(PRECISION, unconverged(planted(**changes)), UNDECIDED) == broken


def test_trends_over_the_precision():
    falling = planted(mcc_sampled=0.9)
    assert verdicts(PRECISION, falling)[0] == REFUTED
    assert verdicts(PRECISION, falling)[2] == UNDECIDED  # constant values have no rank correlation
    reversed_results = [finished(PrecisionCell(1e6 / r.cell.precision, r.cell.seed), r.measured) for r in planted()]
    found = verdicts(PRECISION, reversed_results)
    assert found[2] == found[3] == REFUTED
    few = [r for r in planted() if r.cell.seed == 0][:3]
    assert verdicts(PRECISION, few)[2] == UNDECIDED


def test_without_members_at_the_lowest_precision_its_claims_are_undecided():
    near = [r for r in planted() if r.cell.precision >= 1e3]
    assert {4, 5} <= failing(PRECISION, near, UNDECIDED)


# over linear maps -----------------------------------------------------------------------------


def mapped(sign, seeds=20):
    def measured(seed):
        mcc = 0.5 + sign * seed / 50
        values = asdict(BASE) | {"mcc_mean": mcc, "mcc_sampled": mcc, "mixing_contrast": float(seed)}
        return LinearMapMeasurement(**values, map_contrast=float(seed))

    return [finished(SeedOnlyCell(seed), measured(seed)) for seed in range(seeds)]


def test_claims_over_linear_maps():
    assert failing(LINEAR_MAP, mapped(-1)) == set()
    assert verdicts(LINEAR_MAP, mapped(1)) == [REFUTED] * 3
    assert verdicts(LINEAR_MAP, unconverged(mapped(1))) == [UNDECIDED] * 3
    assert verdicts(LINEAR_MAP, mapped(-1, seeds=2)) == [UNDECIDED] * 3


def test_maps_without_a_trend_refute_the_claims_if_there_are_enough_of_them():
    def alternating(seeds):
        results = mapped(-1, seeds)
        return [replace(r, measured=replace(r.measured, mcc_mean=0.5 + 0.1 * (r.cell.seed % 2))) for r in results]

    assert judge(LINEAR_MAP, alternating(30))[0].verdict == REFUTED
    assert judge(LINEAR_MAP, alternating(10))[0].verdict == UNDECIDED


def test_the_comparison_needs_no_trend():
    (panel,) = LINEAR_MAP.comparisons(mapped(-1), LINEAR_MAP.quick)
    assert panel.rows[0].ours == pytest.approx(-1.0)
    (single,) = LINEAR_MAP.comparisons(mapped(-1, seeds=1), LINEAR_MAP.quick)
    assert single.rows[0].ours is None


def test_contrasts_of_maps_fill_the_published_range_evenly():
    found = sorted(contrast_of_map(seed) for seed in range(64))
    assert found[0] == LOWEST
    assert found[-1] < HIGHEST
    gaps = [b - a for a, b in pairwise(found)]
    assert max(gaps) == pytest.approx(min(gaps))
