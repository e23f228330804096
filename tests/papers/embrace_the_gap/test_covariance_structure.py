"""Claims of covariance-structure on planted results."""

from dataclasses import replace

import pytest
import torch

from tests.papers.planted import HOLDS, REFUTED, UNDECIDED, finished, judge, unconverged, verdicts
from vaescope import theory
from vaescope.inference.anisotropic import isotropic_posterior
from vaescope_papers.embrace_the_gap.covariance_structure import (
    EXPERIMENT,
    PRIOR,
    CovarianceCell,
    CovarianceMeasurement,
    make_mixing,
    relative_noise,
    sample_sources,
)

BASE = CovarianceMeasurement(
    conformal_contrast=0.5,
    ima_contrast=0.01,
    encoder_contrast=0.01,
    true_conformal_contrast=0.1,
    reconstruction_mse=1e-3,
    mcc_mean=0.9,
    r2=0.9,
)
BY_GROUP = {
    ("isotropic", "even"): replace(BASE, conformal_contrast=0.1, mcc_mean=0.8),
    ("diagonal", "even"): BASE,
    ("full", "even"): replace(BASE, ima_contrast=0.5, mcc_mean=0.7),
    ("isotropic", "uneven"): replace(BASE, ima_contrast=0.3, encoder_contrast=0.02),
}


def planted(by_group=BY_GROUP):
    cells = EXPERIMENT.cells(EXPERIMENT.quick)
    return [finished(cell, by_group[cell.posterior, cell.noise]) for cell in cells]


def test_claims():
    assert verdicts(EXPERIMENT, planted()) == [HOLDS, HOLDS, REFUTED, HOLDS, HOLDS, HOLDS]
    better = BY_GROUP | {("isotropic", "even"): replace(BASE, conformal_contrast=0.1, mcc_mean=0.97)}
    assert verdicts(EXPERIMENT, planted(better)) == [HOLDS, HOLDS, HOLDS, HOLDS, HOLDS, REFUTED]
    swapped = BY_GROUP | {("isotropic", "uneven"): replace(BASE, ima_contrast=0.02, encoder_contrast=0.3)}
    assert verdicts(EXPERIMENT, planted(swapped))[1] == REFUTED


def test_families_without_a_difference_refute_every_claim():
    same = planted(dict.fromkeys(BY_GROUP, BASE))
    assert verdicts(EXPERIMENT, same) == [REFUTED] * 6
    assert verdicts(EXPERIMENT, unconverged(same)) == [UNDECIDED] * 6


def test_only_pairs_with_the_same_data_are_compared():
    results = planted()
    partners = [r for r in results if (r.cell.posterior, r.cell.mixing, r.cell.seed) != ("full", "moebius", 0)]
    reasons = [claim.reason for claim in judge(EXPERIMENT, partners)]
    assert "of 8 pairs" in reasons[0]
    assert "of 7 pairs" in reasons[3]
    alone = [r for r in results if r.cell.posterior == "full"]
    assert verdicts(EXPERIMENT, alone) == [UNDECIDED] * 6


def test_conjectures_and_our_own_control_are_told_apart():
    sources = [claim.source for claim in judge(EXPERIMENT, planted())]
    assert ["conjecture" in source for source in sources] == [True] * 3 + [False] * 3
    assert all("not in the paper" in source for source in sources[3:])


@pytest.mark.parametrize(("name", "conformal"), [("moebius", True), ("stretched", False)])
def test_both_mixings_are_in_the_ima_class_and_one_is_conformal(name, conformal):
    mixing, z = make_mixing(name, 0), sample_sources(50, 0)
    assert float(theory.ima_contrast(mixing, z).max()) < 1e-9
    assert (float(theory.conformal_contrast(mixing, z).max()) < 1e-9) is conformal


def test_sources_follow_the_prior_inside_the_box():
    z = sample_sources(20_000, 1)
    assert float(z.abs().max()) < 0.5
    assert float(z.abs().mean()) == pytest.approx(PRIOR.scale, rel=0.03)


def test_uneven_noise_is_that_of_the_whitened_observations():
    """A decoder of the whitened data has the isotropic gap of the cell's noise in units of the observations."""
    cell = CovarianceCell("isotropic", "moebius", 0, "uneven")
    noise, mixing = relative_noise(cell), make_mixing("moebius", 0)
    assert float(noise.precision.prod()) == pytest.approx(1)
    z = sample_sources(20, 0)
    small = replace(EXPERIMENT.quick, samples=100)
    even = EXPERIMENT.data(replace(cell, noise="even"), small).observations.test
    uneven = EXPERIMENT.data(cell, small).observations.test
    torch.testing.assert_close(uneven, even * noise.precision.sqrt().to(even))
    found = isotropic_posterior(mixing, z, noise=noise)
    torch.testing.assert_close(found.gap, theory.conformal_contrast(noise.whitened(mixing), z))
