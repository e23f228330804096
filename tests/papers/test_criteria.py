"""Criteria and claims: each can hold, be refuted and be undecided, and says why."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, pearsonr, rankdata, spearmanr, ttest_1samp
from scipy.stats import t as student

from tests.papers.planted import finished
from vaescope_papers.claims import (
    Claim,
    ClaimSpec,
    PublishedRuns,
    Statement,
    Verdict,
    count_verdicts,
    judge_claims,
    lasting_verdict,
    late_value,
    members_converged,
    show,
)
from vaescope_papers.criteria import (
    Bound,
    Groups,
    Interval,
    IntervalsBelow,
    LargerGroup,
    PairedDifference,
    PairedSamples,
    PairedTest,
    Pairs,
    RankCorrelation,
    Sample,
    above,
    at_least,
    at_most,
    below,
    within,
)
from vaescope_papers.embrace_the_gap.shared import PrecisionCell
from vaescope_papers.results import Result
from vaescope_papers.statistics import (
    estimate_mean,
    estimate_median,
    estimate_rank_correlation,
    estimate_shift,
    partial_rank_test,
    rank_correlation,
    rank_test,
    relative_ranks,
    slope,
)

NAN = float("nan")


# bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "inside", "outside"),
    [
        (at_most(1), 1.0, 1.1),
        (at_least(1), 1.0, 0.9),
        (below(1), 0.9, 1.0),
        (above(1), 1.1, 1.0),
        (within(-1, 0.1), -0.95, -0.8),
    ],
)
def test_limits(limit, inside, outside):
    assert limit.accepts(inside)
    assert not limit.accepts(outside)


@pytest.mark.parametrize("limit", [at_most(1), at_least(1), below(1), above(1), within(-1, 0.1)])
def test_a_limit_can_have_another_tolerance(limit):
    assert limit.at(limit.tolerance) == limit
    assert limit.at(0.5).tolerance == pytest.approx(0.5)
    assert limit.at(0.5).form == limit.form


@pytest.mark.parametrize(("statistic", "value"), [("median", 2.0), ("largest", 9.0), ("smallest", 1.0), ("first", 9.0)])
def test_an_exact_bound_judges_one_statistic_and_shows_the_range(statistic, value):
    bound = Bound("error", at_most(5), statistic=statistic, exact=True)
    found = bound.judge([9.0, 1.0, 2.0])
    assert (found.value, found.low, found.high) == (value, 1.0, 9.0)
    assert found.verdict is (Verdict.HOLDS if value <= 5 else Verdict.REFUTED)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        (range(1, 8), Verdict.UNDECIDED),  # 1 to 7 contains 5
        ([*range(1, 5), 4, 4, 5], Verdict.HOLDS),
        (range(6, 13), Verdict.REFUTED),
        (range(1, 5), Verdict.UNDECIDED),  # too few
    ],
)
def test_a_median_is_judged_by_its_interval(values, verdict):
    found = Bound("error", at_most(5)).judge([float(v) for v in values])
    assert found.verdict is verdict
    assert ("would decide" in found.reason) == (len(values) == 7 and verdict is Verdict.UNDECIDED)
    assert ("too few" in found.reason) == (len(values) < 7)


def test_a_statement_about_every_member_is_one_about_a_share_of_all_that_could_be_trained():
    bound = Bound("error", at_most(5), statistic="largest")
    assert bound.judge([1.0] * 16).verdict is Verdict.UNDECIDED
    assert bound.judge([1.0] * 17).verdict is Verdict.HOLDS  # 0.75**17 < 1 %
    assert bound.judge([1.0] * 4 + [9.0] * 13).verdict is Verdict.REFUTED
    assert bound.judge([1.0] * 17).value == 1.0


def test_a_single_value_without_interval_decides_nothing_unless_it_is_exact():
    assert Bound("rise", above(0), over="").judge([1.0]).verdict is Verdict.UNDECIDED
    assert Bound("rise", above(0), over="", exact=True).judge([1.0]).verdict is Verdict.HOLDS


def test_values_of_one_unit_count_once():
    values, units = [0.0, 0.1, 0.2] * 7, [unit for unit in range(7) for _ in range(3)]
    found = Bound("error", at_most(5)).judge(Sample(values, units))
    assert (found.units, found.value) == (7, 0.1)
    assert Bound("error", at_most(5)).judge(Sample(values[:18], units[:18])).verdict is Verdict.UNDECIDED


def test_demands_read_as_sentences():
    largest = Bound("error", at_most(0.1), statistic="largest")
    assert largest.demand == "error at most 0.1 for at least 75% of members, by its interval"
    exact = Bound("error", at_most(0.1), statistic="largest", exact=True)
    assert exact.demand == "largest error over members at most 0.1, as measured"
    assert Bound("rise in nats", above(0), over="", exact=True).demand == "rise in nats above 0"
    assert RankCorrelation(sign=-1).demand == "rank correlation over members below 0, by its interval"
    assert RankCorrelation(sign=1, given="R²", beyond=0.4).demand == (
        "partial rank correlation given R² over members above 0.4, by its interval"
    )
    assert PairedDifference("MCC", "A", "B", minimum=0.01).demand == (
        "MCC larger with A than with B by more than 0.01, in the median over pairs, by its interval"
    )


def test_a_bound_is_undecided_without_values_or_with_undefined_ones():
    bound = Bound("error", at_most(5))
    assert bound.judge([]).verdict is Verdict.UNDECIDED
    undefined = bound.judge([1.0, NAN, 2.0])
    assert undefined.verdict is Verdict.UNDECIDED
    assert "1 of 3" in undefined.reason
    assert bound.judge([math.inf]).verdict is Verdict.UNDECIDED
    assert Bound("error", at_most(5), exact=True).judge([math.inf]).verdict is Verdict.UNDECIDED


# differences ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.1] * 7, Verdict.HOLDS),
        ([0.1] * 6, Verdict.UNDECIDED),  # too few pairs
        ([0.1] * 6 + [-0.3], Verdict.UNDECIDED),
        ([-0.1] * 7, Verdict.REFUTED),
        ([0.001] * 7, Verdict.REFUTED),  # all agree, by too little
        ([0.1, NAN], Verdict.UNDECIDED),
        ([], Verdict.UNDECIDED),
    ],
)
def test_paired_differences(differences, verdict):
    assert PairedDifference("MCC", "A", "B", minimum=0.01).judge(differences).verdict is verdict


# correlations ---------------------------------------------------------------------------------


def rank(x, y, sign=1):
    return RankCorrelation(sign).judge(Pairs(list(x), list(y)))


def test_rank_correlations():
    x = np.arange(30.0)
    noise = np.random.default_rng(0).normal(size=30)
    assert rank(x, x**3).verdict is Verdict.HOLDS
    assert rank(x, -x).verdict is Verdict.REFUTED
    weak = rank(x, noise)
    assert weak.verdict is Verdict.UNDECIDED  # no correlation was seen, which refutes nothing
    assert weak.low < weak.value < weak.high
    assert weak.value == pytest.approx(spearmanr(x, noise).statistic)


def test_a_claimed_effect_is_refuted_only_if_the_interval_excludes_it():
    x, rng = np.arange(100.0), np.random.default_rng(0)
    weak = pairs(x, rng.normal(size=100))
    assert RankCorrelation(1, beyond=0.5).judge(weak).verdict is Verdict.REFUTED
    assert RankCorrelation(1, beyond=0.1).judge(weak).verdict is Verdict.UNDECIDED
    assert RankCorrelation(-1, beyond=0.5).judge(weak).verdict is Verdict.REFUTED
    falls = pairs(x, -x + 20 * rng.normal(size=100))
    assert RankCorrelation(-1, beyond=0.5).judge(falls).verdict is Verdict.HOLDS


def test_pooled_ranks_of_groups_of_different_sizes_have_no_correlation_between_groups():
    """Within both groups y falls with x; ranks from 1 to n would be high together in the larger group."""
    groups = [[float(k) for k in range(n)] for n in (30, 10, 10)]
    x = [rank for values in groups for rank in relative_ranks(values)]
    y = [rank for values in groups for rank in relative_ranks(values[::-1])]
    assert rank_test(x, y)[0] == pytest.approx(-1)


def test_a_rank_correlation_of_few_members_is_undecided():
    noise = np.random.default_rng(0).normal(size=8)
    found = rank(np.arange(8.0), noise)
    assert found.verdict is Verdict.UNDECIDED
    assert "members would decide it" in found.reason
    assert rank([1.0, 2.0], [1.0, 2.0]).verdict is Verdict.UNDECIDED
    assert rank([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]).verdict is Verdict.UNDECIDED
    assert rank([1.0, 2.0, 3.0], [1.0, 2.0, NAN]).verdict is Verdict.UNDECIDED
    perfect = np.arange(7.0)
    assert rank(perfect[:5], perfect[:5]).verdict is Verdict.UNDECIDED
    assert rank(perfect, perfect).verdict is Verdict.HOLDS


def test_epochs_of_a_run_are_not_independent_members():
    epochs, rng = np.arange(30.0), np.random.default_rng(0)
    slopes = (1.0, -0.2, 1.0, 1.0)  # four runs, one of which falls
    x = np.tile(epochs, 4)
    y = np.concatenate([slope * epochs + rng.normal(size=30) for slope in slopes])
    units = np.repeat(np.arange(4), 30)
    pooled = RankCorrelation(1, "epochs").judge(pairs(x, y))
    within_runs = RankCorrelation(1, "runs", within=True).judge(Pairs(x.tolist(), y.tolist(), units=units.tolist()))
    assert pooled.verdict is Verdict.HOLDS
    assert (within_runs.verdict, within_runs.units) == (Verdict.UNDECIDED, 4)


def test_p_values_of_few_pairs_are_exact():
    perfect = np.arange(8.0)
    assert [rank_test(perfect[:n].tolist(), perfect[:n].tolist())[1] for n in (3, 4, 5)] == pytest.approx(
        [2 / 6, 2 / 24, 2 / 120]
    )
    rng = np.random.default_rng(0)
    x, y = np.array([1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]), rng.normal(size=8)
    value, p = rank_test(x.tolist(), y.tolist())
    assert value == pytest.approx(spearmanr(x, y).statistic)
    shuffled = [abs(spearmanr(x, rng.permutation(y)).statistic) >= abs(value) - 1e-9 for _ in range(1500)]
    assert p == pytest.approx(np.mean(shuffled), abs=0.04)


def test_rank_correlation_agrees_with_scipy_and_is_undefined_for_constants():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=20), rng.integers(0, 4, 20).astype(float)
    assert rank_correlation(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert math.isnan(rank_correlation(x, np.ones(20)))


def pairs(*columns):
    return Pairs(*(np.asarray(column).tolist() for column in columns))


def partial(*columns):
    return partial_rank_test(*pairs(*columns)[:3])


def test_a_partial_rank_correlation_is_that_of_the_residuals_of_ranks():
    rng = np.random.default_rng(0)
    given = rng.normal(size=40)
    x, y = given + rng.normal(size=40), -given + rng.integers(0, 5, 40)
    ranks = [rankdata(values) - 20.5 for values in (x, y, given)]
    first, second = (r - ranks[2] * (r @ ranks[2]) / (ranks[2] @ ranks[2]) for r in ranks[:2])
    value, p = partial(x, y, given)
    assert value == pytest.approx(pearsonr(first, second).statistic)
    t = abs(value) * math.sqrt(37 / (1 - value**2))
    assert p == pytest.approx(2 * student.sf(t, 37))
    assert partial(y, x, given) == pytest.approx((value, p))  # symmetric
    assert partial(x, y, np.exp(given)) == pytest.approx((value, p))  # only ranks count


def test_a_partial_rank_correlation_sees_through_a_common_cause():
    rng = np.random.default_rng(0)
    cause = rng.normal(size=150)
    x, y = cause + 0.5 * rng.normal(size=150), -cause + 0.5 * rng.normal(size=150)
    assert rank_test(x.tolist(), y.tolist())[0] < -0.7
    assert abs(partial(x, y, cause)[0]) < 0.2
    criterion = RankCorrelation(sign=-1, beyond=0.4, given="the cause")
    assert criterion.judge(pairs(x, y)).verdict is Verdict.HOLDS
    refuted = criterion.judge(pairs(x, y, cause))
    assert refuted.verdict is Verdict.REFUTED
    assert "given the cause" in refuted.reason
    assert refuted.low < refuted.value < refuted.high
    direct = criterion.judge(pairs(x, -x + 0.5 * rng.normal(size=150), cause))
    assert (direct.verdict, direct.value < -0.4) == (Verdict.HOLDS, True)
    few = criterion.judge(pairs(x[:10], rng.normal(size=10), cause[:10]))
    assert few.verdict is Verdict.UNDECIDED


def test_a_partial_rank_correlation_may_be_undefined():
    x = [1.0, 2.0, 3.0, 4.0, 5.0]
    for given in (x, [1.0] * 5):
        assert all(math.isnan(v) for v in partial_rank_test(x, [2.0, 1.0, 4.0, 3.0, 5.0], given))
    assert math.isnan(partial_rank_test([1.0, 2.0, 3.0], [2.0, 1.0, 3.0], [3.0, 1.0, 2.0])[0])
    assert RankCorrelation(sign=1, given="x").judge(Pairs(x, x[::-1], x)).verdict is Verdict.UNDECIDED


# intervals against other implementations -------------------------------------------------------


def test_the_interval_of_a_mean_is_that_of_scipy():
    values = np.random.default_rng(0).normal(size=9).tolist()
    found, theirs = estimate_mean(values), ttest_1samp(values, 0).confidence_interval(0.98)
    assert (found.low, found.high) == pytest.approx(tuple(theirs))


def test_the_interval_of_a_shift_inverts_the_exact_test():
    rng = np.random.default_rng(0)
    larger, smaller = rng.normal(1, 1, 7), rng.normal(0, 1, 6)
    found = estimate_shift(larger.tolist(), smaller.tolist(), 0.02)

    def p(shift, alternative):
        return mannwhitneyu(larger - shift, smaller, alternative=alternative, method="exact").pvalue

    small = 1e-9
    assert p(found.low - small, "greater") <= 0.02 < p(found.low + small, "greater")
    assert p(found.high + small, "less") <= 0.02 < p(found.high - small, "less")


def test_the_interval_of_a_median_is_the_narrowest_of_order_statistics_that_covers():
    for n in (7, 8, 15, 40):
        values = [float(v) for v in range(1, n + 1)]
        k = int(estimate_median(values).low)
        missed = [sum(math.comb(n, i) for i in range(j)) / 2**n for j in (k, k + 1)]
        assert missed[0] <= 0.01 < missed[1]
        assert estimate_median(values).high == n + 1 - k
    assert estimate_median([1.0] * 6).low == -math.inf


def test_the_interval_of_a_rank_correlation_is_for_the_partial_one_that_of_one_member_less():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=20).tolist(), rng.normal(size=20).tolist()
    found = estimate_rank_correlation(x, y)
    z, sd = math.atanh(found.value), math.sqrt((1 + found.value**2 / 2) / 17)
    assert found.high == pytest.approx(math.tanh(z + student.ppf(0.99, 18) * sd))
    own = estimate_rank_correlation(x, y, rng.normal(size=20).tolist())
    z, sd = math.atanh(own.value), math.sqrt((1 + own.value**2 / 2) / 16)
    assert own.low == pytest.approx(math.tanh(z - student.ppf(0.99, 17) * sd))


def test_slopes():
    assert slope([1.0, 10.0], [1.0, 100.0]) == pytest.approx(2.0)
    assert math.isnan(slope([1.0, 10.0], [1.0, 0.0]))
    assert math.isnan(slope([1.0, 10.0], [1.0, NAN]))
    assert math.isnan(slope([1.0, 1.0], [1.0, 2.0]))
    assert math.isnan(slope([], []))


# paired tests and intervals -------------------------------------------------------------------


def test_paired_tests():
    test = PairedTest("errors", "data set")
    theirs = np.arange(1.0, 21.0)
    smaller, larger = PairedSamples(theirs * 0.5, theirs), PairedSamples(theirs * 2, theirs)
    few = PairedSamples(theirs[:3] * 0.5, theirs[:3])
    assert test.judge({"a": smaller}).verdict is Verdict.HOLDS
    assert test.judge({"a": smaller, "b": larger}).verdict is Verdict.REFUTED
    assert test.judge({"a": smaller, "b": few}).verdict is Verdict.UNDECIDED
    seven = PairedSamples(theirs[:7] * 0.5, theirs[:7]), PairedSamples(theirs[:7] * 2, theirs[:7])
    assert test.judge({"a": seven[0], "b": seven[0]}).verdict is Verdict.HOLDS  # no correction for groups
    assert test.judge({"a": seven[0], "b": seven[1]}).verdict is Verdict.UNDECIDED  # 7 are too few at α / 2
    nested = PairedSamples(theirs * 0.5, theirs, np.repeat([0, 1], 10))
    assert test.judge({"a": nested}).verdict is Verdict.UNDECIDED  # images of two members
    assert test.judge({"a": PairedSamples(np.array([NAN, 1.0]), np.ones(2))}).verdict is Verdict.UNDECIDED
    assert test.judge({}).verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        (Interval("m", 0.01, 0.0, 0.05), Verdict.HOLDS),
        (Interval("m", 0.09, 0.05, 0.15), Verdict.UNDECIDED),
        (Interval("m", 0.3, 0.2, 0.4), Verdict.REFUTED),
        (Interval("m", NAN, NAN, NAN), Verdict.UNDECIDED),
    ],
)
def test_intervals(interval, verdict):
    good = Interval("good", 0.01, 0.0, 0.02)
    assert IntervalsBelow("distance", 0.1).judge([good, interval]).verdict is verdict


# claims ---------------------------------------------------------------------------------------


def member(value, *, converged=True):
    return finished(PrecisionCell(1.0, 0), value, converged=converged)


def spec(**changes):
    defaults = {
        "sentence": "S.",
        "source": "s",
        "measure": lambda results, _: [r.measured for r in results],
        "criterion": Bound("value", at_most(1), exact=True),
    }
    return ClaimSpec(**defaults | changes)


def test_a_claim_explains_its_verdict():
    claim = spec(if_refuted="The theory assumes more.", note="In nats.").judged([member(2.0)], None)
    assert claim.verdict is Verdict.REFUTED
    assert claim.reason == "The median over 1 members is 2. The theory assumes more."
    assert claim.note == "In nats."
    held = spec(if_refuted="The theory assumes more.").judged([member(0.5)], None)
    assert held.holds
    assert held.reason == "The median over 1 members is 0.5."


def test_notes_can_depend_on_the_results():
    claim = spec(note=lambda results, settings: f"{len(results)} members, {settings}").judged([member(0.5)], "quick")
    assert claim.note == "1 members, quick"


@pytest.mark.parametrize("value", [0.5, 2.0])
def test_conditions_apply_to_every_verdict(value):
    conditional = spec(requires=(members_converged(),))
    claim = conditional.judged([member(value, converged=False), member(value)], None)
    assert claim.verdict is Verdict.UNDECIDED
    assert claim.reason.startswith("1 of 2 members were still improving when training ended. The median")
    assert claim.value == value
    decided = conditional.judged([member(value)], None).verdict
    assert decided is (Verdict.HOLDS if value < 1 else Verdict.REFUTED)


@dataclass(frozen=True)
class Training:
    decay: str


def test_a_flat_curve_under_a_decaying_rate_is_no_evidence_of_convergence():
    condition = members_converged()
    assert condition([member(1.0)], Training("constant")) is None
    assert "flattens every curve" in condition([member(1.0)], Training("cosine"))
    restarted = members_converged(shortfall=lambda r: r.measured)
    assert restarted([member(0.01)], Training("cosine")) is None
    assert "2 of 2 members" in restarted([member(0.5), member(NAN)], Training("cosine"))


def test_a_fifth_of_the_members_may_be_unconverged():
    condition = members_converged()
    assert condition([member(1.0)] * 4 + [member(1.0, converged=False)], None) is None
    assert condition([member(1.0)] * 3 + [member(1.0, converged=False)], None) is not None
    assert condition([Result(PrecisionCell(1.0, 0), 1.0)], Training("cosine")) is None  # solved, not trained


@pytest.mark.parametrize(("last", "met"), [(0.5, True), (2.0, True), (1.0, False)])
def test_a_verdict_must_last(last, met):
    """The value is `last` times 0.6 to 1.4 over the late epochs."""
    curve = [0.0] * 10 + [last * (0.6 + 0.2 * step) for step in range(5)]
    condition = lasting_verdict(
        Bound("value", at_most(1), exact=True),
        lambda results, part: [late_value(curve, 1.0 if part is None else part) for _ in results],
        lambda r: curve,
        "value",
    )
    assert (condition([member(0.0)], None) is None) == met


def test_what_the_authors_runs_show_is_not_refuted_but_not_reproduced():
    runs = PublishedRuns((0.4, 0.6, 0.5), "Tab. 1")
    published = spec(published_runs=runs, scale="ten epochs", if_refuted="Why.")
    claim = published.judged([member(2.0)], None)
    assert claim.verdict is Verdict.NOT_REPRODUCED
    assert claim.reason == (
        "The authors' runs show it: 0.5 (median of 3, 0.4 to 0.6; Tab. 1). Ours, at ten epochs, do not: "
        "The median over 1 members is 2. Why."
    )
    assert claim.published == runs.words
    assert published.judged([member(0.5)], None).holds
    not_theirs = spec(published_runs=PublishedRuns((3.0,), "Tab. 1"), scale="ten epochs")
    assert not_theirs.judged([member(2.0)], None).verdict is Verdict.REFUTED
    formula = spec(published_runs=runs, scale="ten epochs", kind=Statement.MATHEMATICAL)
    assert formula.judged([member(2.0)], None).verdict is Verdict.REFUTED
    with pytest.raises(ValueError, match="say in `scale` what is smaller here"):
        spec(published_runs=runs)


def test_a_verdict_over_tolerances_is_robust_or_not():
    robust = spec(robust_over=(0.8, 1.5)).judged([member(0.5)], None)
    assert robust.tolerances == "Robust: the verdict is the same for tolerances from 0.8 to 1.5."
    flips = spec(robust_over=(0.4, 1.5)).judged([member(0.5)], None)
    assert flips.tolerances == "Depends on the tolerance: refuted with 0.4; holds with 1.5."
    few = spec(criterion=Bound("value", at_most(1)), robust_over=(0.8, 1.5)).judged([member(0.5), member(0.6)], None)
    assert few.tolerances == "Undecided for tolerances from 0.8 to 1.5."


@pytest.mark.parametrize(
    "criterion",
    [
        Bound("v", at_most(1)),
        PairedDifference("v", "a", "b"),
        RankCorrelation(1),
        PairedTest("v", "g"),
        IntervalsBelow("v", 1),
        LargerGroup("v", "a", "b"),
    ],
)
def test_every_criterion_has_a_region_and_other_tolerances(criterion):
    assert criterion.with_tolerance(0.25) != criterion
    assert criterion.with_tolerance(0.25).region.tolerance == 0.25


def test_looks_cost_alpha_and_end_where_they_were_declared():
    values = [member(0.5) for _ in range(7)]
    once, twice = (spec(criterion=Bound("value", at_most(1)), looks=looks) for looks in ((7,), (4, 7)))
    assert once.judged(values, None).verdict is Verdict.HOLDS
    assert twice.judged(values, None).verdict is Verdict.UNDECIDED  # 7 values allow no interval at α / 2
    more = spec(criterion=Bound("value", at_most(1)), looks=(4,)).judged(values, None)
    assert more.verdict is Verdict.UNDECIDED
    assert "7 units were looked at; the declared looks end at 4." in more.reason


def test_claims_of_a_family_share_their_alpha():
    """Seven values decide a median at 1 %, not at half of it."""
    values = [member(0.5) for _ in range(7)]
    single, other = spec(criterion=Bound("value", at_most(1))), spec(criterion=Bound("value", at_least(-9)))
    family = [replace(claim, family="Tab. 1") for claim in (single, other)]
    assert [claim.verdict for claim in judge_claims([single, other], values, None)] == ["holds", "holds"]
    assert [claim.verdict for claim in judge_claims(family, values, None)] == ["undecided", "undecided"]
    eight = judge_claims(family, [*values, member(0.5)], None)
    assert [(claim.verdict, claim.alpha) for claim in eight] == [("holds", 0.005), ("holds", 0.01)]
    assert judge_claims(family, [], None)[0].verdict is Verdict.UNDECIDED


def test_without_members_nothing_is_decided():
    claim = spec().judged([], None)
    assert claim.verdict is Verdict.UNDECIDED
    assert claim.reason == "No member finished."


def test_numbers_are_shown_with_their_spread():
    claim = Claim("S.", "s", "d", Verdict.HOLDS, "r", value=-1.0312, low=-1.1, high=-0.9)
    assert claim.measured == "-1.03 (-1.1 to -0.9)"
    assert show(NAN) == "nan"


def test_claims_become_json_without_nan():
    data = Claim("S.", "s", "d", Verdict.UNDECIDED, "r", value=NAN).to_data()
    assert data["value"] is None
    assert data["verdict"] == "undecided"
    assert data["holds"] is False


def test_verdicts_are_counted():
    assert count_verdicts(["refuted", "holds"]) == "1 hold, 1 refuted"
    assert count_verdicts([]) == "no claims"


# two groups -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("larger", "smaller", "verdict", "words"),
    [
        ([5.0, 6.0, 7.0, 8.0, 9.0], [0.0, 1.0, 2.0, 3.0, 4.0], Verdict.HOLDS, "the shift is 5"),
        ([0.0, 1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0, 9.0], Verdict.REFUTED, "the shift is -5"),
        ([0.0, 1.0, 2.0, 8.0, 9.0], [1.5, 2.5, 3.0, 3.5, 4.0], Verdict.UNDECIDED, "would decide"),
        ([5.0, 6.0, 7.0], [0.0, 1.0, 2.0], Verdict.UNDECIDED, "too few"),
        ([], [1.0], Verdict.UNDECIDED, "No finished member"),
        ([1.0, NAN], [1.0], Verdict.UNDECIDED, "1 of 3 measured values"),
    ],
)
def test_two_groups(larger, smaller, verdict, words):
    found = LargerGroup("MIG", "A", "B").judge(Groups(larger, smaller))
    assert found.verdict is verdict
    assert words in found.reason
