"""Claims of sprites on planted results, its training curves, and the published network at toy size."""

from dataclasses import replace

import numpy as np
import pytest

from tests.papers.planted import UNDECIDED, failing, finished, unconverged, verdicts
from vaescope.models import ConvNetworks, Member
from vaescope.papers.embrace_the_gap.sprites import EXPERIMENT, sprite_generator
from vaescope.papers.embrace_the_gap.sprites_results import (
    FACTORS,
    STEPS,
    FactorRecovery,
    SpriteCell,
    SpriteMeasurement,
    TrainingCurve,
)
from vaescope.papers.experiment import RunOptions
from vaescope.papers.results import from_rows
from vaescope.papers.run import reproduce
from vaescope.runs.files import read_rows
from vaescope.training import NoProgress

CURVE = TrainingCurve(
    epoch=tuple(range(1, 31)),
    mcc=tuple(0.3 + 0.02 * epoch for epoch in range(30)),
    contrast=(0.1, 0.5, *(1 / (epoch + 1) for epoch in range(28))),
)
GOOD = SpriteMeasurement(
    mcc=0.95,
    mcc_sampled=0.9,
    mcc_floor=0.1,
    mcc_pca=0.7,
    r2=0.9,
    r2_pca=0.7,
    ima_contrast=0.1,
    renderer_contrast=0.01,
    fine_renderer_contrast=0.01,
    reconstruction_mse=1e-3,
    factors={name: FactorRecovery(0.95, 0.7, (0.0, 1.0), (0.1, 0.9)) for name in FACTORS},
    curve=CURVE,
    interpolations=bytes(len(FACTORS) * STEPS * 3 * 16 * 16),
)


def planted(elbo=2.0, **changes):
    """A member that failed, and one with a higher ELBO that obeys every claim except for the changes."""
    failed = finished(SpriteCell(0), replace(GOOD, mcc=0.4), elbo=1.0)
    return [failed, finished(SpriteCell(1), replace(GOOD, **changes), elbo=elbo)]


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, set()),
        ({"mcc_pca": 0.96}, {0}),
        ({"mcc": 0.8}, {1}),
        ({"curve": replace(CURVE, mcc=tuple(0.5 + 0.01 * (e % 2) for e in range(30)))}, {2, 3}),
        ({"elbo": 0.5}, {0, 1}),  # the member that failed has the higher ELBO
    ],
)
def test_claims(changes, broken):
    assert failing(EXPERIMENT, planted(**changes)) == broken


def test_recovery_by_unconverged_members_is_undecided():
    assert failing(EXPERIMENT, unconverged(planted(mcc=0.6)), UNDECIDED) == {0, 1}


def test_a_contrast_without_a_fall_is_undecided():
    rising = replace(CURVE, contrast=tuple(0.1 * epoch for epoch in range(30)))
    assert failing(EXPERIMENT, planted(curve=rising), UNDECIDED) == {3}


def test_short_training_decides_no_trend():
    short = TrainingCurve(CURVE.epoch[:5], CURVE.mcc[:5][::-1], CURVE.contrast[:5])
    assert verdicts(EXPERIMENT, planted(curve=replace(short, mcc=(0.3, 0.2, 0.4, 0.1, 0.3))))[2] == UNDECIDED
    empty = TrainingCurve((), (), ())
    assert failing(EXPERIMENT, planted(curve=empty), UNDECIDED) == {2, 3}


def test_a_renderer_outside_the_class():
    results = [replace(r, measured=replace(r.measured, renderer_contrast=4.0)) for r in planted()]
    assert failing(EXPERIMENT, results) == {4}


def test_the_paper_profile_runs(tmp_path):
    assert isinstance(EXPERIMENT.model(SpriteCell(0), EXPERIMENT.paper).networks, ConvNetworks)
    options = RunOptions("paper", changes={"seeds": 1, "samples": 120, "epochs": 2, "size": 32})
    claims = reproduce(EXPERIMENT, options, out=tmp_path, progress=NoProgress())
    assert len(claims) == 5
    rows = read_rows(tmp_path / "sprites" / "results.parquet")
    (result,) = from_rows(rows, SpriteCell, SpriteMeasurement).finished
    measured = result.measured
    assert measured.curve.epoch == (1, 2)
    assert len(measured.curve.mcc) == len(measured.curve.contrast) == 2
    assert len(measured.interpolations) == len(FACTORS) * STEPS * 3 * 32 * 32
    assert 0 < measured.mcc_floor < 0.5
    assert all(np.isfinite(measured.factors[name].mcc) for name in FACTORS)


def test_generators_differ_by_profile():
    published, distributions = sprite_generator(0, EXPERIMENT.paper)
    assert {(f.low, f.high) for f in published.factors} == {(0.0, 1.0)}
    assert len({(d.a, d.b) for d in distributions.values()}) == 4
    inside, _ = sprite_generator(0, EXPERIMENT.quick)
    x, y, scale, hue = inside.factors
    assert min(x.low, y.low, 1 - x.high, 1 - y.high) >= scale.high  # the circumscribed circle is inside the image
    assert hue.high < 1


def test_watching_a_member_that_has_just_diverged_gives_nan():
    settings = replace(EXPERIMENT.quick, samples=60, size=16, hidden=(8,))
    cell = SpriteCell(0)
    model = EXPERIMENT.model(cell, settings)
    watch = EXPERIMENT.watch({0: EXPERIMENT.data(cell, settings)}, settings)
    params = {name: value * float("nan") for name, value in model.init([0]).items()}
    watched = watch(1, Member(model, params, seed=0))
    assert all(np.isnan(value) for value in watched.values())
    assert np.isfinite(watch(1, Member(model, model.init([0]), seed=0))["mcc"])
