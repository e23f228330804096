"""How often verdicts are wrong on simulated data with known truth: at most 1 % for each kind, for each criterion.

Every case is simulated with the effect exactly at the border of the claimed region, where *holds* and *refuted* are
both wrong, and clearly inside and outside, where one is wrong and the other must be found.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from scipy.stats import binom

from tests.papers.planted import finished
from vaescope_papers.claims import ClaimSpec, Verdict, judge_claims
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
    at_least,
    at_most,
    within,
)
from vaescope_papers.embrace_the_gap.shared import PrecisionCell

COUNTS = [pytest.param(500, id="500"), pytest.param(20_000, id="20000", marks=pytest.mark.long)]
ALLOWED = 0.01


def assert_rare(wrong, count, allowed=ALLOWED):
    """At most as many as a rate of `allowed` gives in all but one of 10,000 tests."""
    assert wrong <= binom.ppf(1 - 1e-4, count, allowed), f"{wrong} of {count} are wrong"


def members(rng, effect, n=8, *, skewed=False):
    """Values of n independent units with this median."""
    noise = rng.exponential(size=n) - np.log(2) if skewed else rng.normal(size=n)
    return (effect + noise).tolist()


def nested(rng, effect, n=8, each=16):
    """Values of n units, most of whose variance is between units."""
    units = np.repeat(np.arange(n), each)
    values = effect + rng.normal(size=n)[units] + 0.3 * rng.normal(size=len(units))
    return Sample(values.tolist(), units.tolist())


def groups(rng, effect, n=6):
    return Groups((effect + rng.normal(size=n)).tolist(), rng.normal(size=n).tolist())


def pairs(rng, effect, n=12, each=1):
    """Pairs with this rank correlation; of several per unit, all are nearly the same."""
    pearson = 2 * np.sin(np.pi / 6 * effect)
    x, noise = rng.normal(size=n), rng.normal(size=n)
    y = pearson * x + np.sqrt(1 - pearson**2) * noise
    units = np.repeat(np.arange(n), each)
    jitter = 1e-3 * rng.normal(size=(2, len(units))) if each > 1 else np.zeros((2, n))
    columns = [(own[units] + j).tolist() for own, j in zip((x, y), jitter, strict=True)]
    return Pairs(*columns, units=units.tolist() if each > 1 else None)


def partial_pairs(rng, effect, n=20):
    """Pairs that a common cause makes similar; at `NO_PARTIAL` their partial rank correlation given it is 0."""
    own, cause = pairs(rng, effect, n), 2 * rng.normal(size=n)
    return Pairs((own.x + cause).tolist(), (own.y + cause).tolist(), cause.tolist())


def rank_of(pearson):
    """Spearman's correlation of a normal pair with this Pearson correlation."""
    return 6 / np.pi * np.arcsin(pearson / 2)


# r_xy = r_xg² for rank correlations, with x = own + 2 g; solved for the correlation of the own parts
NO_PARTIAL = rank_of(5 * 2 * np.sin(np.pi / 6 * rank_of(2 / np.sqrt(5)) ** 2) - 4)


def curves(rng, effect, n=8, epochs=30):
    """Autocorrelated curves of n runs, whose slopes vary around this effect."""
    t, x, y, units = np.linspace(-1, 1, epochs), [], [], []
    for run in range(n):
        x += t.tolist()
        y += ((effect + rng.normal()) * t + 0.3 * np.cumsum(rng.normal(size=epochs)) / np.sqrt(epochs)).tolist()
        units += [run] * epochs
    return Pairs(x, y, units=units)


def paired(rng, effect, n=12, each=8):
    """Ratios of two groups, the second of which is always clearly below 1; images are nested in members."""
    units = np.repeat(np.arange(n), each)
    ratios = [np.exp(e + 0.5 * rng.normal(size=n)[units] + 0.1 * rng.normal(size=len(units))) for e in (effect, -3.0)]
    return {name: PairedSamples(own, np.ones(len(units)), units) for name, own in zip("ab", ratios, strict=True)}


def measured(rng, effect, n=4):
    """Distances, of which the first has this true value and the others are far below the tolerance."""
    true = np.array([effect, *[-5.0] * (n - 1)])
    found = true + rng.normal(size=n)
    return [Interval(str(i), v, v - 1.96, v + 1.96) for i, v in enumerate(found)]


def hits(rng, effect, n=30):
    """0 or 1 of n units; the share of zeros is the effect."""
    return (rng.random(n) > effect).astype(float).tolist()


@dataclass(frozen=True)
class Case:
    criterion: object
    data: object
    border: float
    inside: float
    outside: float


CASES = {
    "median": Case(Bound("v", at_least(2.0)), members, 2.0, 4.0, 0.0),
    "median of skewed values": Case(Bound("v", at_most(2.0)), partial(members, skewed=True), 2.0, 0.0, 4.0),
    "median within a margin": Case(Bound("v", within(0.0, 3.0)), partial(members, n=20), 3.0, 0.0, 6.0),
    "mean of five": Case(Bound("v", at_least(0.0), "mean"), partial(members, n=5), 0.0, 4.0, -4.0),
    "nested values": Case(Bound("v", at_least(0.0)), nested, 0.0, 2.0, -2.0),
    "share": Case(Bound("v", at_most(0.5), "largest", share=0.75), hits, 0.75, 0.99, 0.3),
    "paired difference": Case(PairedDifference("v", "a", "b", 0.5), members, 0.5, 2.5, -1.5),
    "two groups": Case(LargerGroup("v", "a", "b", 0.5), groups, 0.5, 5.0, -4.0),
    "correlation": Case(RankCorrelation(1), pairs, 0.0, 0.9, -0.9),
    "correlation beyond an effect": Case(RankCorrelation(-1, beyond=0.4), partial(pairs, n=30), -0.4, -0.9, 0.2),
    "partial correlation": Case(RankCorrelation(1, given="cause"), partial_pairs, NO_PARTIAL, 0.9, -0.9),
    "correlation of repeated units": Case(RankCorrelation(1), partial(pairs, each=5), 0.0, 0.9, -0.9),
    "correlation within runs": Case(RankCorrelation(1, "runs", within=True), curves, 0.0, 4.0, -4.0),
    "paired test": Case(PairedTest("v", "group"), paired, 0.0, -1.5, 1.5),
    "intervals": Case(IntervalsBelow("v", 1.0), measured, 1.0, -5.0, 8.0),
}


def counts(case, effect, count, seed=0):
    """How often every verdict is given."""
    rng = np.random.default_rng(seed)
    found = [case.criterion.judge(case.data(rng, effect)).verdict for _ in range(count)]
    return {verdict: found.count(verdict) for verdict in Verdict}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", CASES)
def test_wrong_verdicts_are_rare_and_right_ones_are_found(name, count):
    case = CASES[name]
    border = counts(case, case.border, count)
    assert_rare(border[Verdict.HOLDS], count)
    assert_rare(border[Verdict.REFUTED], count)
    few = max(200, count // 10)
    inside, outside = counts(case, case.inside, few, 1), counts(case, case.outside, few, 2)
    assert_rare(inside[Verdict.REFUTED], few)
    assert_rare(outside[Verdict.HOLDS], few)
    assert inside[Verdict.HOLDS] > few / 2
    assert outside[Verdict.REFUTED] > few / 2


def test_without_units_nested_values_give_wrong_verdicts():
    """The check above can fail: 128 values of 8 units are not 128 units."""
    rng = np.random.default_rng(0)
    found = [Bound("v", at_least(0.0)).judge(nested(rng, 0.0).values).verdict for _ in range(200)]
    assert found.count(Verdict.HOLDS) > 40


def results(rng, effect, n):
    return [finished(PrecisionCell(1.0, seed), value) for seed, value in enumerate(members(rng, effect, n))]


def claim(**changes):
    defaults = {"sentence": "S.", "source": "s", "criterion": Bound("v", at_least(0.0))}
    return ClaimSpec(**defaults | {"measure": lambda found, _: [r.measured for r in found]} | changes)


def first_decision(spec, found, looks):
    """The verdict of the first look that decides."""
    verdicts = (spec.judged(found[:n], None).verdict for n in looks)
    return next((v for v in verdicts if v is not Verdict.UNDECIDED), Verdict.UNDECIDED)


@pytest.mark.parametrize("count", COUNTS)
def test_two_looks_together_are_rarely_wrong(count):
    rng, looks, spec = np.random.default_rng(0), (8, 11), claim(looks=(8, 11))
    found = [first_decision(spec, results(rng, 0.0, looks[-1]), looks) for _ in range(count)]
    assert_rare(found.count(Verdict.HOLDS), count)
    assert_rare(found.count(Verdict.REFUTED), count)


def test_many_looks_that_are_not_declared_are_wrong_too_often():
    rng, looks, spec = np.random.default_rng(0), range(5, 60, 3), claim(criterion=Bound("v", at_least(0.0), "mean"))
    found = [first_decision(spec, results(rng, 0.0, looks[-1]), looks) for _ in range(300)]
    wrong = found.count(Verdict.HOLDS) + found.count(Verdict.REFUTED)
    assert wrong > binom.ppf(1 - 1e-4, 300, 2 * ALLOWED)


@pytest.mark.parametrize("count", [pytest.param(150, id="150"), pytest.param(5000, id="5000", marks=pytest.mark.long)])
@pytest.mark.parametrize("effects", [(0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 3.0, -3.0)])
def test_in_a_family_any_wrong_verdict_is_rare(count, effects):
    """Effects of 0 are at the border; the others must still be decided."""
    rng = np.random.default_rng(0)
    own = [claim(family="t", measure=lambda found, _, i=i: [r.measured[i] for r in found]) for i in range(len(effects))]
    wrong = right = 0
    for _ in range(count):
        columns = zip(*(members(rng, effect, 12) for effect in effects), strict=True)
        found = [finished(PrecisionCell(1.0, seed), row) for seed, row in enumerate(columns)]
        verdicts = [judged.verdict for judged in judge_claims(own, found, None)]
        wrong += any(v is Verdict.HOLDS for v, effect in zip(verdicts, effects, strict=True) if effect == 0.0)
        right += verdicts[2:] == [Verdict.HOLDS, Verdict.REFUTED]
    assert_rare(wrong, count)
    assert right > 0.9 * count or effects[2] == 0.0
