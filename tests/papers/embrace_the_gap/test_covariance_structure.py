"""Claims of covariance-structure on planted results."""

from dataclasses import replace

import pytest

from tests.papers.planted import HOLDS, REFUTED, UNDECIDED, finished, judge, unconverged, verdicts
from vaescope import theory
from vaescope.papers.embrace_the_gap.covariance_structure import (
    EXPERIMENT,
    CovarianceMeasurement,
    make_mixing,
)

BASE = CovarianceMeasurement(
    conformal_contrast=0.5,
    ima_contrast=0.01,
    true_conformal_contrast=0.1,
    reconstruction_mse=1e-3,
    mcc_mean=0.9,
    r2=0.9,
)
BY_FAMILY = {
    "isotropic": replace(BASE, conformal_contrast=0.1, mcc_mean=0.8),
    "diagonal": BASE,
    "full": replace(BASE, ima_contrast=0.5, mcc_mean=0.7),
}


def planted(by_family=BY_FAMILY):
    return [finished(cell, by_family[cell.posterior]) for cell in EXPERIMENT.cells(EXPERIMENT.quick)]


def test_claims():
    assert verdicts(EXPERIMENT, planted()) == [HOLDS, HOLDS, HOLDS, HOLDS, REFUTED]
    better = BY_FAMILY | {"isotropic": replace(BASE, conformal_contrast=0.1, mcc_mean=0.95)}
    assert verdicts(EXPERIMENT, planted(better)) == [HOLDS, HOLDS, HOLDS, REFUTED, HOLDS]


def test_families_without_a_difference_refute_every_claim():
    same = planted(dict.fromkeys(BY_FAMILY, BASE))
    assert verdicts(EXPERIMENT, same) == [REFUTED] * 5
    assert verdicts(EXPERIMENT, unconverged(same)) == [UNDECIDED] * 5


def test_only_pairs_with_the_same_data_are_compared():
    results = planted()
    partners = [r for r in results if (r.cell.posterior, r.cell.mixing, r.cell.seed) != ("full", "moebius", 0)]
    reasons = [claim.reason for claim in judge(EXPERIMENT, partners)]
    assert "of 8 pairs" in reasons[0]
    assert "of 7 pairs" in reasons[1]
    alone = [r for r in results if r.cell.posterior == "full"]
    assert verdicts(EXPERIMENT, alone) == [UNDECIDED] * 5


@pytest.mark.parametrize(("name", "conformal"), [("moebius", True), ("stretched", False)])
def test_both_mixings_are_in_the_ima_class_and_one_is_conformal(name, conformal):
    mixing = make_mixing(name, 0)
    z = EXPERIMENT.data(EXPERIMENT.cells(EXPERIMENT.quick)[0], replace(EXPERIMENT.quick, samples=50)).test_factors
    assert float(theory.ima_contrast(mixing, z).max()) < 1e-9
    assert (float(theory.conformal_contrast(mixing, z).max()) < 1e-9) is conformal
