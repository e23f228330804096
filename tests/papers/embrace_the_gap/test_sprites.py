"""Claims of sprites on planted results, its training curves, and the published network at toy size."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.papers.planted import UNDECIDED, failing, finished, judge, verdicts
from vaescope import metrics, theory
from vaescope.data.rendering import Sprites
from vaescope.models import ConvNetworks, Member
from vaescope.runs.files import read_rows
from vaescope.training import NoProgress
from vaescope_papers.embrace_the_gap.shared import linear_ica
from vaescope_papers.embrace_the_gap.sprites import (
    EXPERIMENT,
    FACTORS,
    PRIOR,
    REMEDIES,
    STEPS,
    FactorRecovery,
    SpriteCell,
    SpriteMeasurement,
    TrainingCurve,
    best_members,
    latents_of,
    weights_at_factors,
)
from vaescope_papers.experiment import RunOptions
from vaescope_papers.results import from_rows
from vaescope_papers.run import reproduce

CURVE = TrainingCurve(
    epoch=tuple(range(1, 31)),
    mcc=tuple(0.95 - 0.65 * math.exp(-epoch / 4) for epoch in range(30)),
    contrast=(0.1, 0.5, *(1 / (epoch + 1) for epoch in range(28))),
)
GOOD = SpriteMeasurement(
    mcc=0.96,
    mcc_sampled=0.9,
    mcc_floor=0.1,
    mcc_pca=0.7,
    mcc_ica=0.6,
    mcc_unmixed=0.95,
    latents_in_use=4,
    r2=0.9,
    r2_pca=0.7,
    ima_contrast=0.1,
    renderer_contrast=0.01,
    fine_renderer_contrast=0.01,
    reconstruction_mse=1e-3,
    factors={name: FactorRecovery(0.96, 0.7, 0.6, (0.0, 1.0), (0.1, 0.9)) for name in FACTORS},
    curve=CURVE,
    interpolations=bytes(len(FACTORS) * STEPS * 3 * 16 * 16),
)


def planted(elbo=2.0, control_elbo=2.04, control_mcc=0.97, **changes):
    """On 20 data sets: a member that failed, one with a higher ELBO that obeys every claim but for the changes, and
    one that started at the factors.
    """
    failed = replace(GOOD, mcc=0.4, factors=dict.fromkeys(FACTORS, factor(0.4)))
    members = (
        (0, "random", failed, 1.0),
        (1, "random", replace(GOOD, **changes), elbo),
        (0, "factors", replace(GOOD, mcc=control_mcc), control_elbo),
    )
    return [
        finished(SpriteCell(data_set, seed, start), measured, elbo=score)
        for data_set in range(1, 21)
        for seed, start, measured, score in members
    ]


def factor(mcc, pca=0.7, ica=0.6):
    return FactorRecovery(mcc, pca, ica, (0.0, 1.0), (0.1, 0.9))


TABLE_5 = 5  # the claim about the three latents of Tab. 5, which is false whatever is trained


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, {TABLE_5}),
        ({"factors": GOOD.factors | {"hue": factor(0.96, pca=0.97)}}, {1, TABLE_5}),
        ({"factors": GOOD.factors | {"hue": factor(0.96, ica=0.97)}}, {2, TABLE_5}),
        ({"curve": replace(CURVE, mcc=tuple(0.95 - 0.001 * e for e in range(30)))}, {3, 4, TABLE_5}),
        ({"control_mcc": 0.7}, {TABLE_5, 6}),
        ({"control_elbo": 1.5}, {TABLE_5, 7}),
    ],
)
def test_claims(changes, broken):
    assert failing(EXPERIMENT, near_optimum(**changes)) == broken


def near_optimum(**changes):
    """Without the members that failed, which are far below their optimum."""
    return [r for r in planted(**changes) if r.cell.seed == 1 or r.cell.start == "factors"]


def test_recovery_that_the_authors_runs_have_is_not_reproduced():
    claim = judge(EXPERIMENT, planted(mcc=0.8))[0]
    assert str(claim.verdict) == "not reproduced"
    assert "0.976 (median of 10, 0.968 to 0.977" in claim.reason
    assert "32 x 32 images, of which 0.13 million are seen in training" in claim.reason
    assert str(judge(EXPERIMENT, planted(elbo=0.5))[0].verdict) == "not reproduced"  # those that failed are chosen


def test_members_below_a_start_at_the_factors_decide_nothing_about_baselines():
    worse = {"factors": GOOD.factors | {"hue": factor(0.5)}}
    for results in (planted(control_elbo=9.0, **worse), planted(control_elbo=9.0)):
        found = judge(EXPERIMENT, results)[1:3]
        assert {str(claim.verdict) for claim in found} == {UNDECIDED}
        assert "40 of 40 members are not known to be within 0.05 nats of their optimum" in found[0].reason


def test_runs_are_the_units_of_claims_about_training():
    """Epochs depend on each other: two runs decide nothing, however many epochs they have."""
    few = [r for r in planted() if r.cell.data_set <= 2]
    moving = [r if r.cell.data_set == 1 else replace(r, measured=replace(r.measured, curve=NOISE)) for r in few]
    assert verdicts(EXPERIMENT, moving)[3] == UNDECIDED
    assert judge(EXPERIMENT, few)[3].units == 2


NOISE = replace(CURVE, mcc=tuple(0.5 + 0.01 * (epoch * 17 % 30) for epoch in range(30)))


def test_members_that_fail_are_explained():
    note = judge(EXPERIMENT, planted())[0].note
    assert note.startswith("20 of 40 members are below it: MCC 0.4 to 0.4, linear R² 0.9 to 0.9, after linear ICA")
    best = [r for r in planted() if r.cell.seed == 1]
    assert judge(EXPERIMENT, best)[0].note == "Every member is above it."


@pytest.mark.parametrize("elbo", [0.5, 2.0])
def test_recovery_that_still_changes_is_undecided(elbo):
    """Whether it is low or high."""
    moving = replace(CURVE, mcc=tuple(0.3 + 0.02 * epoch for epoch in range(30)))
    results = [replace(r, measured=replace(r.measured, curve=moving)) for r in planted(elbo=elbo)]
    found = judge(EXPERIMENT, results)[0]
    assert str(found.verdict) == UNDECIDED
    assert "The MCC of 40 of 40 members still changed" in found.reason


def test_short_training_decides_no_trend():
    empty = TrainingCurve((), (), ())
    found = verdicts(EXPERIMENT, planted(curve=empty))
    assert found[3] == found[4] == UNDECIDED


def test_three_latents_match_at_most_three_of_four_factors():
    z = np.random.default_rng(0).normal(size=(500, 4))
    assert metrics.mcc(z[:, :3], z).score <= 0.75 + 0.05  # the fourth factor is matched by chance at most
    claim = judge(EXPERIMENT, planted())[TABLE_5]
    assert (str(claim.verdict), claim.value) == ("refuted", pytest.approx(0.97675))


def test_without_controls_their_claims_are_undecided():
    results = [r for r in planted() if r.cell.start == "random"]
    found = verdicts(EXPERIMENT, results)
    assert found[6] == found[7] == found[1] == UNDECIDED


def test_controls_do_not_compete_with_members_from_random_weights():
    """They know the factors, so they are never the best member of a data set."""
    assert {r.cell.start for r in best_members(planted())} == {"random"}


def test_weights_at_the_factors_encode_and_decode_them():
    settings = replace(EXPERIMENT.quick, samples=300, size=16, controls=1, data_sets=(2,))
    cell = next(cell for cell in EXPERIMENT.cells(settings) if cell.start == "factors")
    model, data = EXPERIMENT.model(cell, settings), EXPERIMENT.data(cell, settings)
    x = data.observations.test
    weights = weights_at_factors(model, x, data.test_factors, PRIOR, seed=0, steps=200)  # fitted on these images
    member = Member(model, weights, seed=0, precision=8.0)
    mean, _ = member.encode(x)
    assert metrics.mcc(mean, data.test_factors).score > 0.9
    z = latents_of(data.test_factors, PRIOR)
    error = (member.decode(z) - x).square().sum(1).mean()
    assert error < 0.5 * (x - x.mean(0)).square().sum(1).mean()


def test_the_paper_profile_runs(tmp_path):
    assert isinstance(EXPERIMENT.model(SpriteCell(1, 0), EXPERIMENT.paper).networks, ConvNetworks)
    changes = {"seeds": 1, "samples": 120, "epochs": 2, "size": 32, "data_sets": (1,)}
    options = RunOptions("paper", changes=changes)
    claims = reproduce(EXPERIMENT, options, out=tmp_path, progress=NoProgress())
    assert len(claims) == 8
    rows = read_rows(tmp_path / "sprites" / "results.parquet")
    (result,) = from_rows(rows, SpriteCell, SpriteMeasurement).finished
    measured = result.measured
    assert measured.curve.epoch == (1, 2)
    assert len(measured.curve.mcc) == len(measured.curve.contrast) == 2
    assert len(measured.interpolations) == len(FACTORS) * STEPS * 3 * 32 * 32
    assert 0 < measured.mcc_floor < 0.5
    assert all(np.isfinite(measured.factors[name].mcc) for name in FACTORS)


@pytest.mark.parametrize("data_set", EXPERIMENT.paper.data_sets)
def test_the_renderers_of_the_data_sets_are_close_to_the_class(data_set):
    """The rule by which they were chosen; of the first draws, number 0 and 3 do not satisfy it."""
    assert _renderer_contrast(data_set) <= 0.05
    assert _renderer_contrast(3) > 0.05


def _renderer_contrast(data_set):
    renderer, distributions = Sprites.published(data_set, size=32)
    z = renderer.sample(64, seed=data_set, distributions=distributions).factors
    return float(theory.ima_contrast(lambda v: renderer.render_batch(v).flatten(1), z).median())


def test_linear_ica_unmixes_what_principal_components_cannot():
    sources = np.random.default_rng(0).uniform(size=(2000, 2))
    mixed = sources @ np.array([[1.0, 1.0], [-1.0, 1.0]])  # equal variances in all directions
    assert metrics.mcc(linear_ica(mixed), sources).score > 0.99
    assert metrics.mcc(mixed, sources).score < 0.8


def test_epoch_metrics_of_a_member_that_has_just_diverged_are_nan():
    settings = replace(EXPERIMENT.quick, samples=60, size=16)
    cell = SpriteCell(1, 0)
    model = EXPERIMENT.model(cell, settings)
    metrics = EXPERIMENT.epoch_metrics({0: EXPERIMENT.data(cell, settings)}, settings)
    params = {name: value * float("nan") for name, value in model.init([0]).items()}
    found = metrics(1, Member(model, params, seed=0))
    assert all(np.isnan(value) for value in found.values())
    assert np.isfinite(metrics(1, Member(model, model.init([0]), seed=0))["mcc"])


# remedies -------------------------------------------------------------------------------------


def test_remedies_change_training_and_nothing_else():
    settings = EXPERIMENT.laptop
    cells = {cell.remedy: cell for cell in EXPERIMENT.cells(settings) if cell.data_set == 1 and cell.remedy}
    assert set(cells) == set(REMEDIES) == set(settings.remedies)
    trained = {name: EXPERIMENT.training_of(cell, settings) for name, cell in cells.items()}
    assert trained["more-latents"] == settings
    assert EXPERIMENT.model(cells["more-latents"], settings).latent_dim == 10
    low = trained["published-precision"]
    assert (low.precision, low.precision_start, low.precision_warmup) == (4.0, 4.0, 0)
    assert EXPERIMENT.member(cells["published-precision"], 0, settings).precision == 4.0
    slow = trained["slow-rise"]
    assert (slow.precision_start, slow.precision_hold, slow.precision_warmup) == (2.0, 0, 6000)
    assert len({EXPERIMENT.stack_key(cell) for cell in EXPERIMENT.cells(settings)}) == 4 * (2 + len(REMEDIES))


@pytest.mark.parametrize(("mcc", "verdict"), [(0.97, "refuted"), (0.7, "holds")])
def test_remedies_are_judged_by_themselves(mcc, verdict):
    """A remedy changes neither the claims about other members nor their best member."""
    remedied = [
        finished(SpriteCell(data_set, 0, remedy="slow-rise"), replace(GOOD, mcc=mcc), elbo=9.0) for data_set in (1, 2)
    ]
    settings = replace(EXPERIMENT.quick, remedies=("slow-rise",))
    claims = judge(EXPERIMENT, planted() + remedied, settings)
    assert str(claims[-1].verdict) == verdict
    assert claims[-1].note == "Latents in use: 4, 4."
    assert [str(claim.verdict) for claim in claims[:-1]] == verdicts(EXPERIMENT, planted())
    assert all(not r.cell.remedy for r in best_members(planted() + remedied))
