"""Claims and report of orthogonality on planted results."""

from dataclasses import replace

import pytest

from tests.papers.planted import REFUTED, UNDECIDED, failing, finished, judge, unconverged
from tests.papers.report_checks import check_incomplete_results, report_parts, stored_and_read
from vaescope_papers.claims import TOO_SHORT
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
    od_scores,
)

SEEDS = 8  # per objective: enough members for a claim about a correlation to be refuted
STEPS = SEEDS * len(OBJECTIVES)


def distances(order, **change):
    """The more disentangled, the closer to orthogonal."""
    good = {"trained": 2.0 - 1.8 * order / STEPS, "random": 3.0, "rotated": 2.5} | change
    return Distances(**{name: (value,) * 6 for name, value in good.items()})


def curve(last, late=None):
    """The MIG after 15 epochs: 0 for the first ten, then `late`, by default `last`, and at the end `last`."""
    return (0.0,) * 10 + (last if late is None else late,) * 4 + (last,)


def measurement(order, **change):
    share = order / STEPS
    mig, mig_sup = 0.1 + 0.4 * share, 0.1 + 0.5 * share
    fit = SlopeFit(-1.0, 0.9)
    good = {
        "disentanglement": Disentanglement(mig, 0.01, mig_sup, mig, mig_sup),
        "kl": 20.0 - 10 * share,
        "latents_in_use": (0, 1),
        "od_distances": ODDistances(distances(order), distances(order), distances(order)),
        "columns": ColumnStatistics(2.0 - share, 0.1, 1.0, (0.0, 80.0, 80.0, 0.0)),
        "inverse_squares": InverseSquares(fit, fit, fit),
        "norms": (1.0, 2.0),
        "variances": (0.5, 0.2),
        "neighbours": NeighbourDistances(5.0 - share, 4.0 - share, 3.0 - share),
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
        for order, (objective, seed) in enumerate((o, s) for o in OBJECTIVES for s in range(seeds))
    ]


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
    return {"neighbours": NeighbourDistances(**{"sampled": -share, "mean": -share, "relative": -share} | change)}


UP = [0.1 + 0.4 * order / STEPS for order in range(STEPS)]
CHANGES = [
    (lambda o: gaps(UP[-1 - o], UP[o]), {0, 1, 2, 9, 11, 12}, {0, 1, 2, 9, 11, 12}),
    (lambda o: gaps(UP[o], UP[-1 - o]), {3, 4, 10}, {3, 4, 10}),
    (lambda o: od(o, in_use={"trained": 1.0 + UP[o]}), {9, 10}, {9, 10}),
    (lambda o: od(o, published={"trained": 1.0 + UP[o]}), {11}, {11}),
    (lambda o: {"columns": ColumnStatistics(UP[o], 0.1, 1.0, (0.0, 80.0, 80.0, 0.0))}, {12}, {12}),
    (lambda o: od(o, in_use={"random": 0.01}), {13}, set()),
    (lambda o: od(o, in_use={"rotated": 0.01}), {14}, {14}),
    (lambda o: slopes(jacobian=-0.5), {15}, {15}),
    (lambda o: slopes(local=-0.5), {16}, {16}),
    (lambda o: slopes(weighted=-0.5), {17}, {17}),
    (lambda o: neighbours(o, sampled=UP[o]), {18}, set()),
    (lambda o: neighbours(o, mean=UP[o]), {19}, set()),
    (lambda o: neighbours(o, relative=UP[o]), {20}, set()),
]
CORRELATIONS = {9, 10, 11, 12}
ON_3DSHAPES = {5, 6, 7, 8}  # undecided on planted results of dSprites


def still_training(results):
    """The same members, with an ELBO that was still improving, and in the order opposite to their MIG until the end."""
    migs = [r.measured.disentanglement.mig for r in results]
    curves = [curve(mig, late=max(migs) + min(migs) - mig) for mig in migs]
    moving = zip(results, curves, strict=True)
    return unconverged([replace(r, measured=replace(r.measured, mig_curve=own)) for r, own in moving])


def by_verdict(results):
    """The indices of the refuted claims, and those of the undecided ones."""
    found = [claim.verdict for claim in judge(EXPERIMENT, results)]
    return tuple({i for i, verdict in enumerate(found) if verdict == wanted} for wanted in (REFUTED, UNDECIDED))


def test_claims_hold():
    assert failing(EXPERIMENT, planted(data=("dsprites", "3dshapes"))) == set()
    assert failing(EXPERIMENT, planted(), UNDECIDED) == ON_3DSHAPES


@pytest.mark.parametrize(("change", "broken", "about_optima"), CHANGES)
def test_claims_are_refuted(change, broken, about_optima):
    results = planted(change)
    assert by_verdict(results) == (broken, ON_3DSHAPES)
    assert by_verdict(still_training(results)) == (broken - about_optima, ON_3DSHAPES | about_optima)


def test_what_refutes_a_claim_about_mig_must_last_although_the_elbo_may_still_improve():
    worse = planted(lambda o: gaps(UP[-1 - o], UP[o]))
    assert by_verdict(unconverged(worse)) == by_verdict(worse)
    reasons = [claim.reason for claim in judge(EXPERIMENT, still_training(worse))]
    assert reasons[1] == "The MIG after 4 of 5 late epochs does not refute it."
    reasons = {0: "The MIG was not recorded after every epoch.", 14: TOO_SHORT}
    for epochs, reason in reasons.items():
        short = [replace(r, measured=replace(r.measured, mig_curve=r.measured.mig_curve[:epochs])) for r in worse]
        assert by_verdict(short) == by_verdict(still_training(worse))
        assert judge(EXPERIMENT, short)[1].reason == reason


def test_late_epochs_are_the_last_third_of_every_training():
    """A claim that fails at the end of some trainings, and held over the rest of their last third, is undecided."""
    worse = planted(lambda o: gaps(UP[-1 - o], UP[o]))
    good = {r.cell: UP[order] for order, r in enumerate(worse)}
    curves = [(0.0,) * 20 + (good[r.cell],) * 5 + r.measured.mig_curve[-5:] for r in worse]
    longer = [replace(r, measured=replace(r.measured, mig_curve=own)) for r, own in zip(worse, curves, strict=True)]
    assert judge(EXPERIMENT, longer)[1].reason == "The MIG after 5 of 10 late epochs does not refute it."
    mixed = [*longer[:-1], worse[-1]]  # one training of 15 epochs: five late epochs of each are compared
    assert judge(EXPERIMENT, mixed)[1].reason == "The MIG after 3 of 5 late epochs does not refute it."


def test_groups_that_overlap_are_undecided_for_that_reason():
    """The criterion's own reason is shown, whatever the MIG did before."""
    migs = {"vae": (0.1, 0.2, 0.3, 0.4, 0.5), "beta-vae": (0.12, 0.21, 0.31, 0.41, 0.51)}
    order = [migs.get(objective, (0.6,) * 5)[seed] for objective in OBJECTIVES for seed in range(5)]
    results = planted(lambda o: gaps(order[o], order[o]), seeds=5)
    assert judge(EXPERIMENT, results)[2].verdict == UNDECIDED
    assert "The groups overlap too much" in judge(EXPERIMENT, still_training(results))[2].reason


def test_correlations_with_disentanglement_need_disentangled_models():
    """With a MIG below 0.3 everywhere, no correlation with it is refuted."""
    low = [0.1 + 0.1 * order / STEPS for order in range(STEPS)]
    results = planted(lambda o: gaps(low[-1 - o], low[-1 - o]))
    assert by_verdict(results) == ({0, 1, 2, 3, 4}, ON_3DSHAPES | CORRELATIONS)
    assert "All models have a MIG below 0.3: the range is too small to decide." in judge(EXPERIMENT, results)[9].reason


def test_few_members_leave_correlations_undecided():
    shuffled = [0.4, 0.1, 0.3]
    results = planted(lambda o: gaps(shuffled[o], shuffled[o]), seeds=1)
    assert by_verdict(results)[1] >= CORRELATIONS | {0, 1, 2, 3, 4}


def test_every_refuted_claim_of_the_paper_says_what_could_have_made_it_hold():
    results = planted(
        lambda o: gaps(UP[-1 - o], UP[-1 - o]) | slopes(jacobian=-0.1, local=-0.1) | neighbours(o, sampled=UP[o])
    )
    claims = [c for c in judge(EXPERIMENT, results) if c.verdict == REFUTED and "Bhowal" in c.source]
    assert len(claims) == 11
    assert all(len(claim.reason) > 100 for claim in claims)


def test_correlations_are_judged_within_image_sets():
    """Levels that differ between image sets are no correlation; each set has its own in the note."""
    high = [
        replace(r, measured=replace(r.measured, **gaps(0.5 + UP[-1 - o % STEPS], 0.5)))
        for o, r in enumerate(planted(data=("3dshapes",)))
    ]
    claim = judge(EXPERIMENT, [*planted(), *high])[9]
    assert abs(claim.value) < 0.1
    assert "On rendered dSprites: ρ = -1.00" in claim.note
    assert "On rendered 3DShapes: ρ = 1.00" in claim.note
    assert "20 members (ranked within their image set) are needed to see |ρ| = 0.7" in claim.demand


def test_few_members_leave_a_difference_undecided():
    claim = judge(EXPERIMENT, planted(seeds=2))[1]
    assert str(claim.verdict) == UNDECIDED
    assert "5 members of each are needed" in claim.reason


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
    assert failing(EXPERIMENT, results, UNDECIDED) == ON_3DSHAPES
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
    assert [figure.name for figure in figures] == ["a_figure_4", "b_angles", "c_theorems"]


def test_reports_of_incomplete_results():
    check_incomplete_results(EXPERIMENT, planted(seeds=1, data=("dsprites", "3dshapes")))


def test_results_survive_a_file(tmp_path):
    results = planted()
    results[1] = replace(
        results[1],
        measured=replace(results[1].measured, columns=None, inverse_squares=InverseSquares(None, None, None)),
    )
    assert stored_and_read(EXPERIMENT, results, tmp_path) == results
