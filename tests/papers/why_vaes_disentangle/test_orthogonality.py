"""Claims and report of orthogonality on planted results."""

from dataclasses import replace
from math import nan

import pytest

from tests.papers.planted import HOLDS, REFUTED, UNDECIDED, finished, judge, unconverged
from tests.papers.report_checks import check_incomplete_results, report_parts, stored_and_read
from vaescope_papers.claims import TOO_SHORT, Statement, judge_claims
from vaescope_papers.why_vaes_disentangle.disentangling import OBJECTIVES, DisentanglingCell
from vaescope_papers.why_vaes_disentangle.orthogonality import (
    EXPERIMENT,
    ColumnStatistics,
    Disentanglement,
    Distances,
    InverseSquares,
    NeighbourDistances,
    ODDistances,
    OrthogonalityMeasurement,
    SlopeFit,
    all_scores,
    drawn_distance,
    od_scores,
)

SEEDS = 8  # per objective
STEPS = SEEDS * len(OBJECTIVES)
SETTINGS = replace(EXPERIMENT.quick, decay="constant")  # under which a flat curve is evidence
NOT_REPRODUCED = "not reproduced"
ORDERS = {  # from the least to the most disentangled, as published
    "dsprites": ("vae", "beta-vae", "beta-tcvae"),
    "3dshapes": ("vae", "beta-tcvae", "beta-vae"),
    "mpi3d": ("vae", "beta-vae", "beta-tcvae"),
}


def distances(order, **change):
    """The more disentangled, the closer to orthogonal."""
    good = {"trained": 2.0 - 1.8 * order / STEPS, "random": 3.0, "rotated": 2.5} | change
    return Distances(**{name: (value,) * 6 for name, value in good.items()})


def curve(last, late=None):
    """The MIG after 15 epochs: 0 for the first ten, then `late`, by default `last`, and at the end `last`."""
    return (0.0,) * 10 + (last if late is None else late,) * 4 + (last,)


def columns(contrast, weighted=None):
    return ColumnStatistics(contrast, 0.1, 1.0, (0.0, 80.0, 80.0, 0.0), contrast if weighted is None else weighted)


def measurement(order, **change):
    share = order / STEPS
    mig, mig_sup = 0.1 + 0.4 * share, 0.1 + 0.5 * share
    fit = SlopeFit(-1.0, 0.9)
    good = {
        "disentanglement": Disentanglement(mig, 0.01, mig_sup, mig, mig_sup),
        "kl": 20.0 - 10 * share,
        "latents_in_use": (0, 1),
        "od_distances": ODDistances(distances(order), distances(order), distances(order)),
        "columns": columns(0.09 - 0.05 * share),
        "inverse_squares": InverseSquares(fit, fit, fit),
        "norms": (1.0, 2.0),
        "variances": (0.5, 0.2),
        "neighbours": NeighbourDistances(5.0 - share, 4.0 - share, 3.0 - share, 2.0 - share),
        "mig_curve": curve(mig),
    }
    return OrthogonalityMeasurement(**good | change)


def planted(change=lambda order: {}, *, data=("dsprites",), seeds=SEEDS, official=False):
    """The more disentangled, the more orthogonal, from the worst member to the best: all that the paper claims."""
    return [
        finished(
            DisentanglingCell(name, official, objective, seed),
            measurement(order, **change(order)),
        )
        for name in data
        for order, (objective, seed) in enumerate((o, s) for o in ORDERS[name] for s in range(seeds))
    ]


def on_both(change=lambda order: {}, **options):
    return planted(change, data=("dsprites", "3dshapes"), **options)


def gaps(mig, mig_sup):
    return {"disentanglement": Disentanglement(mig, 0.01, mig_sup, mig, mig_sup), "mig_curve": curve(mig)}


def od(order, **change):
    variants = {"in_use": {}, "all_latents": {}, "published": {}} | change
    return {"od_distances": ODDistances(**{name: distances(order, **own) for name, own in variants.items()})}


def slopes(**change):
    good = {"jacobian": -1.0, "local": -1.0, "weighted": -1.0} | change
    return {"inverse_squares": InverseSquares(**{name: SlopeFit(value, 0.9) for name, value in good.items()})}


def neighbours(order, **change):
    share = order / STEPS
    names = ("sampled", "mean", "relative", "in_use")
    return {"neighbours": NeighbourDistances(**dict.fromkeys(names, -share) | change)}


UP = [0.1 + 0.4 * order / STEPS for order in range(STEPS)]
PUBLISHED_OD, ALIGNED_OD, CONTRAST = {0, 1, 2, 3}, {4, 5, 6, 7}, 8
ROTATED, ORTHOGONAL, RANDOM, SLOPES = 9, {10, 11}, 12, (13, 14, 15)
LINEAR_DRAWS, LINEAR_MEANS, DRAWS, MEANS, RELATIVE = 16, 17, {18, 20}, {19, 21}, 22
MIG_ORDER, SUP_ORDER = {*range(23, 29), *range(35, 41)}, {*range(29, 35), *range(41, 47)}
EVERY = set(range(47))
EXACT = {LINEAR_DRAWS, LINEAR_MEANS}
WITH_MIG, WITH_SUP = {0, 1, 4, 5}, {2, 3, 6, 7}


def with_verdict(results, verdict, settings=SETTINGS):
    return {i for i, claim in enumerate(judge(EXPERIMENT, results, settings)) if claim.verdict == verdict}


def still_training(results):
    """The same members in the order opposite to their MIG until the end."""
    migs = [r.measured.disentanglement.mig for r in results]
    curves = [curve(mig, late=max(migs) + min(migs) - mig) for mig in migs]
    moving = zip(results, curves, strict=True)
    return [replace(r, measured=replace(r.measured, mig_curve=own)) for r, own in moving]


def test_claims_hold():
    """All but one, which is false whatever is trained."""
    assert with_verdict(on_both(), HOLDS) == EVERY - {LINEAR_DRAWS}
    assert with_verdict(on_both(), REFUTED) == {LINEAR_DRAWS}


@pytest.mark.parametrize(
    ("change", "not_reproduced", "refuted"),
    [
        (lambda o: gaps(UP[-1 - o], UP[o]), MIG_ORDER | WITH_MIG, {CONTRAST}),
        (lambda o: gaps(UP[o], UP[-1 - o]), SUP_ORDER | WITH_SUP, set()),
        (lambda o: od(o, in_use={"trained": 1.0 + UP[o]}), ALIGNED_OD, set()),
        (lambda o: od(o, published={"trained": 1.0 + UP[o]}), PUBLISHED_OD, set()),
        (lambda o: {"columns": columns(UP[o] / 10)}, set(), {CONTRAST}),
        (lambda o: {"columns": columns(30.0 - o)}, set(), ORTHOGONAL),
        (lambda o: od(o, in_use={"random": 0.01}), set(), {RANDOM}),
        (lambda o: od(o, in_use={"rotated": 0.01}), set(), {ROTATED}),
        (lambda o: slopes(jacobian=-0.5), set(), {SLOPES[0]}),
        (lambda o: slopes(local=-0.5), set(), {SLOPES[1]}),
        (lambda o: slopes(weighted=-0.5), set(), {SLOPES[2]}),
        (lambda o: neighbours(o, in_use=UP[o]), set(), DRAWS),
        (lambda o: neighbours(o, mean=UP[o]), set(), MEANS),
        (lambda o: neighbours(o, relative=UP[o]), set(), {RELATIVE}),
    ],
)
def test_claims_that_fail(change, not_reproduced, refuted):
    """What the authors' models show is not reproduced; everything else is refuted."""
    results = on_both(change)
    assert with_verdict(results, NOT_REPRODUCED) == not_reproduced
    assert with_verdict(results, REFUTED) == refuted | {LINEAR_DRAWS}
    assert with_verdict(results, UNDECIDED) == set()


def test_few_members_decide_nothing():
    assert with_verdict(planted(seeds=1), UNDECIDED) == EVERY - EXACT


@pytest.mark.parametrize("change", [lambda o: {}, lambda o: {"columns": columns(9.0)} | slopes(jacobian=-0.5)])
def test_minima_need_members_that_have_converged(change):
    """Whether the claims would hold or not; under a rate that decays, a flat curve is no evidence."""
    results = on_both(change)
    about_minima = ORTHOGONAL | set(SLOPES)
    assert with_verdict(unconverged(results), UNDECIDED) >= about_minima
    assert with_verdict(results, UNDECIDED, EXPERIMENT.quick) >= about_minima
    reason = judge(EXPERIMENT, unconverged(results), SETTINGS)[SLOPES[0]].reason
    assert "A restart at a higher rate, or longer training at a constant one, would decide it." in reason


@pytest.mark.parametrize("sign", [1, -1])
def test_a_verdict_on_scores_must_last(sign):
    """Other scores than the recorded one are taken to have changed by as much."""
    results = on_both(lambda o: gaps(UP[::sign][o], UP[::sign][o]))
    moving = with_verdict(still_training(results), UNDECIDED)
    assert moving == MIG_ORDER | SUP_ORDER | PUBLISHED_OD | ALIGNED_OD | {CONTRAST}
    reasons = [claim.reason for claim in judge(EXPERIMENT, still_training(results), SETTINGS)]
    assert reasons[min(MIG_ORDER)].startswith("The MIG after 4 of 5 late epochs gives another verdict.")
    for epochs, reason in {0: "The MIG was not recorded after every epoch.", 14: TOO_SHORT}.items():
        short = [replace(r, measured=replace(r.measured, mig_curve=r.measured.mig_curve[:epochs])) for r in results]
        assert judge(EXPERIMENT, short, SETTINGS)[min(MIG_ORDER)].reason.startswith(reason)


def test_late_epochs_are_the_last_third_of_every_training():
    """A claim that fails at the end of some trainings, and held over the rest of their last third, is undecided."""
    worse = on_both(lambda o: gaps(UP[-1 - o], UP[o]))
    good = {r.cell: UP[order % STEPS] for order, r in enumerate(worse)}
    curves = [(0.0,) * 20 + (good[r.cell],) * 5 + r.measured.mig_curve[-5:] for r in worse]
    longer = [replace(r, measured=replace(r.measured, mig_curve=own)) for r, own in zip(worse, curves, strict=True)]
    assert judge(EXPERIMENT, longer, SETTINGS)[min(MIG_ORDER)].reason.startswith(
        "The MIG after 5 of 10 late epochs gives another"
    )


def test_every_score_is_that_of_its_row():
    measured = replace(measurement(0), disentanglement=Disentanglement(0.1, 0.01, 0.2, 0.3, 0.4), mig_curve=(0.0, 0.1))
    assert [score.of(measured) for score in all_scores()] == [0.1, 0.3, 0.2, 0.4]
    longer = replace(measured, mig_curve=(0.0, 0.0, 0.0, 0.0, 0.05, 0.1))
    assert [score.of(longer, 0.0) for score in all_scores()] == pytest.approx([0.05, 0.25, 0.15, 0.35])


def test_a_jacobian_without_the_weights_of_its_likelihood_decides_nothing():
    """That of a Bernoulli likelihood, in results that were measured before; a Gaussian one needs no weights."""
    unweighted = on_both(lambda o: {"columns": columns(9.0, nan)})
    claims = judge(EXPERIMENT, unweighted, SETTINGS)
    assert {str(claims[i].verdict) for i in (*ORTHOGONAL, CONTRAST)} == {UNDECIDED}
    note = "in nats: 9 (VAE), 9 (β-VAE), 9 (β-TCVAE). The Jacobian weighted as by the Bernoulli likelihood was not"
    assert note in claims[min(ORTHOGONAL)].note
    squared = replace(SETTINGS, squared_error=("dsprites",))
    own = [replace(r, cell=replace(r.cell, likelihood="gaussian")) for r in unweighted if r.cell.data == "dsprites"]
    found = {c.sentence: str(c.verdict) for c in judge(EXPERIMENT, own, squared)}
    assert (
        found["On rendered dSprites with squared error, the columns of the decoder's Jacobian are orthogonal."]
        == REFUTED
    )


def test_distances_between_draws_are_those_of_latents_in_use():
    """Where they were not measured, they are those of means and the variances at a few images."""
    measured = measurement(0, neighbours=NeighbourDistances(15.0, 1.0, 0.5, nan), variances=(0.5, 0.25, 0.25, 0.25))
    assert drawn_distance(measured) == 1.0 + 2 * (0.375 + 0.25)
    assert drawn_distance(measurement(0)) == 2.0
    claim = judge(EXPERIMENT, on_both(lambda o: neighbours(o, sampled=UP[o], in_use=nan)), SETTINGS)[min(DRAWS)]
    assert "Variances are those at 16 images" in claim.note
    assert "Over all latents ρ = -1.00" in claim.note


def test_a_collapsed_member_has_no_distance_between_latents_in_use():
    collapsed = replace(on_both()[0], measured=measurement(0, latents_in_use=(), kl=0.0, norms=(), variances=()))
    claim = judge(EXPERIMENT, [collapsed, *on_both()[1:]], SETTINGS)[min(DRAWS)]
    assert claim.units == STEPS - 1


def test_correlations_are_judged_within_image_sets():
    """Levels that differ between image sets are no correlation; each set has its own in the note."""
    high = planted(lambda o: gaps(0.5 + UP[-1 - o], 0.5), data=("3dshapes",))
    claim = judge(EXPERIMENT, [*planted(), *high], SETTINGS)[min(ALIGNED_OD)]
    assert abs(claim.value) < 0.1
    assert "On rendered dSprites: ρ = -1.00" in claim.note
    assert "On rendered 3DShapes: ρ = 1.00" in claim.note


def test_looks_and_families_are_declared():
    """The laptop profile was looked at with five seeds, then with ten; claims of one table share their α."""
    claims = EXPERIMENT.claims(EXPERIMENT.laptop)
    assert {spec.looks for spec in claims if spec.family == "Tab. 4"} == {(5, 10)}
    assert {spec.looks for spec in claims if spec.family == "Fig. 4"} == {(45, 90)}
    assert [len([spec for spec in claims if spec.family == f]) for f in ("Tab. 4", "Tab. 5", "Fig. 4")] == [18, 18, 8]
    assert EXPERIMENT.claims(EXPERIMENT.quick)[min(MIG_ORDER)].looks == ()
    assert [i for i, spec in enumerate(EXPERIMENT.claims(EXPERIMENT.quick)) if spec.kind is Statement.MATHEMATICAL] == [
        LINEAR_DRAWS,
        LINEAR_MEANS,
    ]
    table_4 = [spec for spec in claims if spec.family == "Tab. 4"]
    found = [claim.alpha for claim in judge_claims(table_4, on_both(), EXPERIMENT.laptop) if claim.alpha]
    assert min(found) == pytest.approx(0.01 / 2 / 18)


def test_claims_that_are_not_reproduced_show_the_published_numbers_and_what_may_differ():
    results = on_both(lambda o: gaps(UP[-1 - o], UP[-1 - o]))
    claims = [c for c in judge(EXPERIMENT, results, SETTINGS) if c.verdict == NOT_REPRODUCED]
    assert len(claims) == len(MIG_ORDER | SUP_ORDER | PUBLISHED_OD | ALIGNED_OD)
    order = next(claim for claim in claims if claim.family == "Tab. 4")
    assert "0.52 ± 0.10 and 0.25 ± 0.10 on the official images" in order.reason
    assert "at 32 x 32 rendered images and 12 epochs" in order.reason
    assert all(
        "authors' script" in c.reason or "paper does not say" in c.reason or "Lemma 4" in c.reason for c in claims
    )


# scores ---------------------------------------------------------------------------------------


def test_scores_are_relative_to_the_largest_of_the_compared_models():
    scores = list(od_scores(planted()).values())
    assert scores[0].trained == pytest.approx(1)
    assert scores[-1].trained == pytest.approx((2 - 1.8 * (STEPS - 1) / STEPS) / 2)
    assert scores[0].random == pytest.approx(1.5)
    assert scores[0].rotated == pytest.approx(1.25)


def test_scores_are_computed_per_image_set():
    large = lambda order: od(order, in_use={"trained": 20.0 - order / STEPS})  # noqa: E731
    mixed = [*planted(), *planted(large, data=("3dshapes",))]
    assert od_scores(planted()).items() <= od_scores(mixed).items()


def test_members_without_latents_in_use_have_no_score():
    empty = Distances((), (), ())
    results = planted()
    measured = replace(
        results[0].measured,
        od_distances=replace(results[0].measured.od_distances, in_use=empty),
        columns=None,
        inverse_squares=InverseSquares(None, None, None),
        latents_in_use=(),
        norms=(),
        variances=(),
    )
    results[0] = replace(results[0], measured=measured)
    assert list(od_scores(results)) == [r.cell for r in results[1:]]
    assert with_verdict(results, NOT_REPRODUCED) == set()
    report_parts(EXPERIMENT, results)


# report ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("official", [False, True])
def test_rendered_and_official_images_are_compared_with_the_published_values(official):
    results = planted(official=official, data=("dsprites", "mpi3d") if official else ("dsprites",))
    _, comparisons, (ranking, table), figures, _ = report_parts(EXPERIMENT, results)
    label = "official dSprites, β-TCVAE" if official else "rendered dSprites, β-TCVAE"
    rows = [next(row for row in panel.rows if row.setting == label) for panel in comparisons]
    values = [0.52, 0.52, 0.52, 0.52, 0.9093]
    assert [row.published for row in rows] == (values if official else [f"{v:g} (official images)" for v in values])
    assert all((row.ratio is not None) == official for row in rows)
    assert len(table.rows) == (6 if official else 3)
    assert [row["model"] for row in ranking.rows[:3]] == ["β-TCVAE", "β-VAE", "VAE"]
    assert [figure.name for figure in figures] == ["a_scores", "a_figure_4", "b_angles", "c_theorems"]


def test_reports_of_incomplete_results():
    check_incomplete_results(EXPERIMENT, planted(seeds=1, data=("dsprites", "3dshapes")))


def test_results_survive_a_file(tmp_path):
    results = planted()
    results[1] = replace(
        results[1],
        measured=replace(results[1].measured, columns=None, inverse_squares=InverseSquares(None, None, None)),
    )
    assert stored_and_read(EXPERIMENT, results, tmp_path) == results
