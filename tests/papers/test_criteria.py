"""Criteria and claims: each can hold, be refuted and be undecided, and says why."""

import math

import numpy as np
import pytest
from scipy.stats import pearsonr, rankdata, spearmanr
from scipy.stats import t as student

from tests.papers.planted import finished
from vaescope_papers.claims import Claim, ClaimSpec, Verdict, count_verdicts, members_converged, show
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
    above,
    at_least,
    at_most,
    below,
    within,
)
from vaescope_papers.embrace_the_gap.shared import PrecisionCell
from vaescope_papers.results import Result
from vaescope_papers.statistics import (
    median_interval,
    members_needed,
    partial_rank_test,
    rank_correlation,
    rank_interval,
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


@pytest.mark.parametrize(("statistic", "value"), [("median", 2.0), ("largest", 9.0), ("smallest", 1.0), ("first", 9.0)])
def test_a_bound_judges_one_statistic_and_shows_the_range(statistic, value):
    bound = Bound("error", at_most(5), statistic=statistic)
    found = bound.judge([9.0, 1.0, 2.0])
    assert (found.value, found.low, found.high) == (value, 1.0, 9.0)
    assert found.verdict is (Verdict.HOLDS if value <= 5 else Verdict.REFUTED)


def test_demands_read_as_sentences():
    assert Bound("error", at_most(0.1), statistic="largest").demand == "largest error over members at most 0.1"
    assert Bound("rise in nats", above(0), over="").demand == "rise in nats above 0"
    assert Bound("MCC of the best member", at_least(0.9), statistic="first").demand == (
        "MCC of the best member at least 0.9"
    )
    assert RankCorrelation(sign=-1).demand == (
        "negative rank correlation over members, two-sided p < 0.01; 20 members are needed to see |ρ| = 0.7"
    )
    assert RankCorrelation(sign=1, given="R²").demand.startswith("positive partial rank correlation given R² over")
    with_minimum = PairedDifference("MCC", "A", "B", minimum=0.01).demand
    assert with_minimum == "MCC larger with A than with B in at least 75% of pairs, and by at least 0.01 in the median"
    assert PairedDifference("MCC", "A", "B").demand == "MCC larger with A than with B in at least 75% of pairs"


def test_a_bound_is_undecided_without_values_or_with_undefined_ones():
    bound = Bound("error", at_most(5))
    assert bound.judge([]).verdict is Verdict.UNDECIDED
    undefined = bound.judge([1.0, NAN, 2.0])
    assert undefined.verdict is Verdict.UNDECIDED
    assert "1 of 3" in undefined.reason
    assert bound.judge([math.inf]).verdict is Verdict.UNDECIDED


# differences ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.1, 0.2, 0.3, -0.1], Verdict.HOLDS),
        ([0.1, 0.2, -0.3, -0.1], Verdict.REFUTED),  # too few pairs agree
        ([0.001, 0.002, 0.003], Verdict.REFUTED),  # all agree, by too little
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
    assert rank(x, -x).verdict is Verdict.REFUTED  # significant, with the wrong sign
    weak = rank(x, noise)
    assert weak.verdict is Verdict.REFUTED  # 30 members would have shown it
    assert weak.low < weak.value < weak.high
    assert weak.value == pytest.approx(spearmanr(x, noise).statistic)


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
    assert "20 members are needed" in found.reason
    assert rank([1.0, 2.0], [1.0, 2.0]).verdict is Verdict.UNDECIDED
    assert rank([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]).verdict is Verdict.UNDECIDED
    assert rank([1.0, 2.0, 3.0], [1.0, 2.0, NAN]).verdict is Verdict.UNDECIDED


def test_p_values_of_few_pairs_are_exact():
    perfect = np.arange(8.0)
    assert [rank_test(perfect[:n].tolist(), perfect[:n].tolist())[1] for n in (3, 4, 5)] == pytest.approx(
        [2 / 6, 2 / 24, 2 / 120]
    )
    assert rank(perfect[:5], perfect[:5]).verdict is Verdict.UNDECIDED  # no 5 pairs can have p < 0.01
    assert rank(perfect[:6], perfect[:6]).verdict is Verdict.HOLDS
    rng = np.random.default_rng(0)
    x, y = np.array([1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]), rng.normal(size=8)
    value, p = rank_test(x.tolist(), y.tolist())
    assert value == pytest.approx(spearmanr(x, y).statistic)
    shuffled = [abs(spearmanr(x, rng.permutation(y)).statistic) >= abs(value) - 1e-9 for _ in range(1500)]
    assert p == pytest.approx(np.mean(shuffled), abs=0.04)


def test_the_number_of_members_needed_gives_the_power_it_promises():
    rng = np.random.default_rng(0)
    n, pearson = members_needed(0.7, 0.01), 2 * math.sin(math.pi / 6 * 0.7)  # of normal data with Spearman's ρ = 0.7
    draws = rng.multivariate_normal([0, 0], [[1, pearson], [pearson, 1]], size=(600, n))
    found = np.mean([spearmanr(*sample.T).pvalue < 0.01 for sample in draws])
    assert found == pytest.approx(0.8, abs=0.06)


def test_rank_correlation_agrees_with_scipy_and_is_undefined_for_constants():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=20), rng.integers(0, 4, 20).astype(float)
    assert rank_correlation(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert math.isnan(rank_correlation(x, np.ones(20)))


def pairs(*columns):
    return Pairs(*(np.asarray(column).tolist() for column in columns))


def partial(*columns):
    return partial_rank_test(*pairs(*columns))


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
    criterion = RankCorrelation(sign=-1, effect=0.4, given="the cause")
    assert criterion.judge(pairs(x, y)).verdict is Verdict.HOLDS
    refuted = criterion.judge(pairs(x, y, cause))
    assert refuted.verdict is Verdict.REFUTED
    assert "given the cause" in refuted.reason
    low, high = rank_interval(x.tolist(), y.tolist(), cause.tolist())
    assert low < refuted.value < high
    direct = criterion.judge(pairs(x, -x + 0.5 * rng.normal(size=150), cause))
    assert (direct.verdict, direct.value < -0.4) == (Verdict.HOLDS, True)
    few = criterion.judge(pairs(x[:20], rng.normal(size=20), cause[:20]))
    assert few.verdict is Verdict.UNDECIDED


def test_a_partial_rank_correlation_may_be_undefined():
    x = [1.0, 2.0, 3.0, 4.0, 5.0]
    for given in (x, [1.0] * 5):
        assert all(math.isnan(v) for v in partial_rank_test(x, [2.0, 1.0, 4.0, 3.0, 5.0], given))
    assert math.isnan(partial_rank_test([1.0, 2.0, 3.0], [2.0, 1.0, 3.0], [3.0, 1.0, 2.0])[0])
    assert RankCorrelation(sign=1, given="x").judge(Pairs(x, x[::-1], x)).verdict is Verdict.UNDECIDED
    assert all(math.isnan(v) for v in rank_interval(x, x, [1.0] * 5))


def test_every_rank_correlation_says_how_many_members_are_needed_and_whether_there_were():
    x = np.arange(30.0)
    assert "30 members are enough (needed: 20)" in rank(x, x).reason
    assert "20 members are needed to see |ρ| = 0.7 with p < 0.01" in rank(x[:6], x[:6]).reason
    assert RankCorrelation(sign=1, given="R²").needed == RankCorrelation(sign=1).needed + 1


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
        "criterion": Bound("value", at_most(1)),
    }
    return ClaimSpec(**defaults | changes)


def test_a_claim_explains_its_verdict():
    claim = spec(if_refuted="The theory assumes more.", note="In nats.").judged([member(2.0)], None)
    assert claim.verdict is Verdict.REFUTED
    assert claim.reason == "The median is 2. The theory assumes more."
    assert claim.note == "In nats."
    held = spec(if_refuted="The theory assumes more.").judged([member(0.5)], None)
    assert held.holds
    assert held.reason == "The median is 0.5."


def test_notes_can_depend_on_the_results():
    claim = spec(note=lambda results, settings: f"{len(results)} members, {settings}").judged([member(0.5)], "quick")
    assert claim.note == "1 members, quick"


def test_a_failed_claim_is_undecided_if_its_conditions_are_not_met():
    conditional = spec(requires=(members_converged(),))
    unfinished = [member(2.0, converged=False), member(2.0)]
    claim = conditional.judged(unfinished, None)
    assert claim.verdict is Verdict.UNDECIDED
    assert claim.reason == "1 of 2 members were still improving when training ended."
    assert claim.value == 2.0
    assert conditional.judged([member(2.0)], None).verdict is Verdict.REFUTED
    assert conditional.judged([member(0.5, converged=False)], None).holds  # a claim that holds needs no condition


def test_a_fifth_of_the_members_may_be_unconverged():
    condition = members_converged()
    assert condition([member(1.0)] * 4 + [member(1.0, converged=False)], None) is None
    assert condition([member(1.0)] * 3 + [member(1.0, converged=False)], None) is not None
    assert condition([Result(PrecisionCell(1.0, 0), 1.0)], None) is None  # solved, not trained


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
        ([5.0, 6.0, 7.0, 8.0, 9.0], [0.0, 1.0, 2.0, 3.0, 4.0], Verdict.HOLDS, "p = 0.004"),  # 1 of 252 orders
        ([0.0, 1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0, 9.0], Verdict.REFUTED, "p = 1."),
        ([0.0, 1.0, 2.0, 8.0, 9.0], [1.5, 2.5, 3.0, 3.5, 4.0], Verdict.UNDECIDED, "overlap too much"),  # lower median
        ([5.0, 6.0, 7.0], [0.0, 1.0, 2.0], Verdict.UNDECIDED, "p is at least 0.05: 5 members of each are needed"),
        ([0.0, 1.0, 6.0, 7.0, 8.0], [2.0, 3.0, 4.0, 5.0, 9.0], Verdict.UNDECIDED, "overlap too much"),
        ([], [1.0], Verdict.UNDECIDED, "No finished member"),
        ([1.0, NAN], [1.0], Verdict.UNDECIDED, "1 of 3 measured values"),
    ],
)
def test_two_groups(larger, smaller, verdict, words):
    found = LargerGroup("MIG", "A", "B").judge(Groups(larger, smaller))
    assert found.verdict is verdict
    assert words in found.reason


def test_the_interval_of_a_difference_contains_it():
    rng = np.random.default_rng(0)
    found = LargerGroup("MIG", "A", "B").judge(Groups(rng.normal(2, 1, 200).tolist(), rng.normal(0, 1, 200).tolist()))
    assert found.low < found.value < found.high
    assert found.low < 2 < found.high
    assert found.high - found.low < 1


def test_intervals_of_medians_cover():
    """Of 95 % intervals of the median of 25 normal numbers, about 95 % contain it."""
    samples = np.random.default_rng(0).normal(size=(200, 25)).tolist()
    covered = np.mean([low <= 0 <= high for low, high in (median_interval(s, resamples=400) for s in samples)])
    assert 0.9 <= covered <= 0.99
