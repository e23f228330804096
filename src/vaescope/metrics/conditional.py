"""Cross-fitted MCC: matching and maps are found on one half of the samples and scored on the other."""

from __future__ import annotations

from functools import cache, cached_property, partial

import numpy as np
from jaxtyping import Float
from scipy.stats import rankdata
from scipy.stats import t as student

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.metrics.correlation import CORRELATIONS, MCC, best_matching, pearson_correlations
from vaescope.metrics.inputs import CodesAndFactors, input_warnings, read_inputs, standardise
from vaescope.metrics.score import Detail, MetricValues, OneScore, Score


@cache
def _weights(inputs: int, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(inputs, count)), rng.uniform(0, 2 * np.pi, count)


def regression_features(columns: np.ndarray, count: int) -> np.ndarray:
    """A constant, the standardised columns, and random Fourier features of a Gaussian kernel of unit width."""
    scaled = standardise(columns)
    frequencies, phases = _weights(scaled.shape[1], count)
    waves = np.cos(scaled @ frequencies / np.sqrt(scaled.shape[1]) + phases)
    return np.column_stack([np.ones(len(scaled)), scaled, waves])


def residuals(targets: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Targets (N, t) minus their prediction from other columns (N, g), each fifth predicted from the others.

    >>> v = np.random.default_rng(0).normal(size=(2000, 2))  # enough for 50 features
    >>> bool(residuals(np.sin(v[:, :1]) + 2 * v[:, 1:], v).std() < 0.05)
    True
    """
    targets = standardise(targets)
    if given.shape[1] == 0:
        return targets
    features, found = _features_of(given), np.empty_like(targets)
    for test, fit in _folds(len(targets)):
        found[test] = targets[test] - features[test] @ ridge(features[fit], targets[fit])
    return found


def _features_of(given: np.ndarray) -> np.ndarray:
    """One random feature per 40 samples, at most 60.

    Errors of two regressions in many features have products that a test of independence would take for dependence.
    """
    return regression_features(given, int(np.clip(len(given) // 40, 8, 60)))


def _folds(samples: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of every fifth, and all others."""
    rows = np.arange(samples)
    return [(test, np.setdiff1d(rows, test, assume_unique=True)) for test in np.array_split(rows, 5)]


def shared_error_inflation(given: np.ndarray) -> float:
    r"""Variance of Σ r s over residuals of two independent targets, relative to Σ Var(r) Var(s): 1 with many samples.

    .. math:: \frac{\|M M^\top\|_F^2}{\sum_i (M M^\top)_{ii}^2}

    `residuals` are linear in the targets, r = M y. Samples share the errors of the fitted weights, so that products of
    residuals are correlated and their sum varies more than their spread says. Exact for noise of the same variance
    everywhere. Rows of M M' of the parts f and g are Φ_f B Φ_g', so that only matrices over features are needed.

    Args:
        given: (N, g) what the targets were predicted from.

    >>> v = np.random.default_rng(0).normal(size=(3000, 2))
    >>> [round(shared_error_inflation(v[:n]), 2) for n in (100, 3000)]
    [1.29, 1.02]
    """
    if given.shape[1] == 0:
        return 1.0
    features, folds = _features_of(given), _folds(len(given))
    own = [features[test].T @ features[test] for test, _ in folds]
    total = np.sum(own, axis=0)
    penalty = 1e-3 * np.eye(len(total))  # as in `ridge`
    inverse = [np.linalg.inv(total - gram + len(fit) * penalty) for gram, (_, fit) in zip(own, folds, strict=True)]

    def squared_norm(B: np.ndarray, left: np.ndarray, right: np.ndarray) -> float:
        """Squared norm of Φ_f B Φ_g', from the Gram matrices of both parts."""
        return float(np.trace(B @ right @ B.T @ left))

    squared = diagonal = 0.0
    for f, (test, _) in enumerate(folds):
        B = inverse[f] @ (total - own[f]) @ inverse[f]
        squared += len(test) + 2 * np.trace(B @ own[f]) + squared_norm(B, own[f], own[f])
        diagonal += np.square(1 + np.einsum("ij,jk,ik->i", features[test], B, features[test])).sum()
        for g in range(f):
            B = inverse[f] @ (total - own[f] - own[g]) @ inverse[g] - inverse[f] - inverse[g]
            squared += 2 * squared_norm(B, own[f], own[g])
    return float(squared / diagonal)


def ridge(features: np.ndarray, targets: np.ndarray, strength: float = 1e-3) -> np.ndarray:
    """Weights of ridge regression; its strength is relative to the number of samples."""
    gram = features.T @ features + strength * len(features) * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ targets)


def copula_features(column: np.ndarray, seed: int) -> np.ndarray:
    """Sines of random projections of a column's ranks (Lopez-Paz, Hennig & Schölkopf 2013), standardised."""
    ranks = rankdata(column) / len(column)
    weights, _ = _weights(2, 20, seed)  # 20 projections, weights with a standard deviation of 3
    return standardise(np.sin(np.column_stack([ranks, np.ones_like(ranks)]) @ weights * 6.0 / 2))


def canonical_maps(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the first pair of canonical variables of two sets of standardised features."""
    whitening = []
    for part in (x, y):
        values, vectors = np.linalg.eigh(part.T @ part / len(part))
        whitening.append((vectors / np.sqrt(np.clip(values, 0, None) + 1e-3)) @ vectors.T)  # so that maps generalise
    left, _, right = np.linalg.svd(whitening[0] @ (x.T @ y / len(x)) @ whitening[1])
    return whitening[0] @ left[:, 0], whitening[1] @ right[0]


def held_out_rdc(codes: np.ndarray, factors: np.ndarray, fit: slice, test: slice) -> np.ndarray:
    """RDC (d, k) on `test` of the maps found on `fit`: no positive bias of independent columns.

    >>> v = np.random.default_rng(0).uniform(-1, 1, (600, 2))
    >>> found = held_out_rdc(np.column_stack([v[:, 0] ** 2, v[:, 1]]), v, slice(300), slice(300, None))
    >>> (found > 0.8).tolist()
    [[True, False], [False, True]]
    """
    x = [copula_features(column, seed=0) for column in codes.T]
    y = [copula_features(column, seed=1) for column in factors.T]
    found = np.zeros((len(x), len(y)))
    for j, k in np.ndindex(found.shape):
        a, b = canonical_maps(x[j][fit], y[k][fit])
        u, v = x[j][test] @ a, y[k][test] @ b
        if u.std() > 0 and v.std() > 0:
            found[j, k] = np.clip(np.corrcoef(u, v)[0, 1], 0.0, 1.0)
    return found


class CrossfittedMCC(Score):
    """MCC on samples that the matching was not chosen on, with a permutation null and the coverage of factors."""

    coverage = OneScore()
    """Share of factors that have a latent: below 1 if there are fewer latents than factors."""
    matched = OneScore()
    """Mean over the factors that have a latent: the score over the coverage."""

    @cached_property
    def null(self) -> np.ndarray:
        """Scores of codes with shuffled rows, fifty times."""
        rng = np.random.default_rng(2)
        return np.array([self.compute(self.inputs.shuffled(rng)).scores["mcc"] for _ in range(50)])

    @property
    def p_value(self) -> float:
        """Probability of a score this high if codes and factors are independent."""
        return float((1 + (self.null >= self.score).sum()) / (1 + len(self.null)))

    @property
    def above_chance(self) -> float:
        """(score - null) / (coverage - null): 0 for independent codes, 1 if all that can be matched is recovered."""
        chance = float(self.null.mean())
        return max(0.0, (self.score - chance) / max(self.coverage - chance, 1e-12))


def mcc_crossfitted(codes: object, factors: object, *, method: str = "pearson") -> CrossfittedMCC:
    """MCC without the optimism of choosing the matching on the samples that are scored.

    With many latents and few samples, the best of many chance correlations is high: MCC of independent codes grows with
    the number of latents per sample. Here the matching is chosen on one half and scored on the other, and vice versa.

    Args:
        codes: (N, d).
        factors: (N, k).
        method: `pearson`, `spearman`, or `rdc`, which is invariant to any smooth map of a latent, monotone or not.

    >>> rng = np.random.default_rng(0)
    >>> v = rng.uniform(-1, 1, (300, 2))
    >>> found = mcc_crossfitted(np.column_stack([v[:, 1] ** 2, v[:, 0]]), v, method="rdc")
    >>> found.values.details["assignment"].tolist(), bool(found.score > 0.9)
    ([1, 0], True)
    """
    validation.choice("method", method, (*CORRELATIONS, "rdc"))
    inputs = read_inputs(codes, factors, discrete=False, minimum=20)
    compute = partial(_crossfitted, method=method)
    return CrossfittedMCC(f"MCC (cross-fitted, {method})", compute, inputs, input_warnings, resamples=20)


def _crossfitted(inputs: CodesAndFactors, method: str) -> MetricValues:
    middle = (inputs.samples + 1) // 2
    halves = slice(None, middle), slice(middle, None)
    values, assignments = np.zeros((2, inputs.factor_count)), []
    for index, (fit, test) in enumerate((halves, halves[::-1])):
        _, assignment = best_matching(_relevance(inputs, method, fit, fit))
        matched = np.flatnonzero(assignment >= 0)
        values[index, matched] = _relevance(inputs, method, fit, test)[assignment[matched], matched]
        assignments.append(assignment)
    per_factor = values.mean(0)
    coverage = min(inputs.latents, inputs.factor_count) / inputs.factor_count
    score = float(per_factor.mean())
    scores = {"mcc": score, "matched": score / coverage, "coverage": coverage}
    return MetricValues(scores, per_factor, {"assignment": assignments[0]})


def _relevance(inputs: CodesAndFactors, method: str, fit: slice, test: slice) -> np.ndarray:
    """(d, k) correlations on `test`; correlations of Pearson and Spearman need no fit."""
    if method == "rdc":
        return held_out_rdc(inputs.codes, inputs.factors, fit, test)
    return CORRELATIONS[method](inputs.codes[test], inputs.factors[test])


def conditional_mcc(codes: object, factors: object) -> MCC:
    """MCC in which a latent is credited only for what it says about a factor beyond the other factors.

    Correlated factors inflate MCC: a latent that encodes one factor correlates with all. Here the relevance of latent c
    for factor v is the smaller of |corr(c, v)| and |corr(c, r)| / |corr(v, r)|, where r is what is left of v once the
    other factors are regressed out (cross-fitted, non-linear): 1 for c = v, however v depends on the others, and 0 for
    a c that is a function of the others. With independent factors it is MCC. A factor that is a function of the others
    cannot be distinguished from them: it scores 0, with a warning.

    Args:
        codes: (N, d).
        factors: (N, k), which may depend on each other.

    >>> rng = np.random.default_rng(0)
    >>> first = rng.normal(size=1000)
    >>> v = np.column_stack([first, first + 0.3 * rng.normal(size=1000)])  # correlation 0.96
    >>> copied = np.column_stack([v[:, 0], v[:, 0]])  # the second factor is not encoded
    >>> from vaescope.metrics import mcc
    >>> bool(mcc(copied, v).score > 0.95), bool(conditional_mcc(copied, v).score < 0.6)
    (True, True)
    """
    inputs = read_inputs(codes, factors, discrete=False, minimum=40)
    return MCC("conditional MCC", _conditional, inputs, _warnings, resamples=20)


def _conditional(inputs: CodesAndFactors) -> MetricValues:
    plain = pearson_correlations(inputs.codes, inputs.factors)
    left = np.column_stack([factor for _, factor in conditional_residuals(inputs)])
    own = np.diag(pearson_correlations(inputs.factors, left))
    relevance = np.minimum(plain, pearson_correlations(inputs.codes, left) / np.where(own > 0, own, np.inf))
    relevance[:, redundant_factors(left)] = 0.0
    values, assignment = best_matching(relevance)
    return MetricValues({"mcc": float(values.mean())}, values, {"assignment": assignment, "relevance": relevance})


def conditional_residuals(
    inputs: CodesAndFactors,
) -> list[tuple[Float[np.ndarray, "N d"], Float[np.ndarray, " N"]]]:
    """For every factor: residuals of all codes and of that factor, given all other factors."""
    found = []
    for k in range(inputs.factor_count):
        others = np.delete(inputs.factors, k, axis=1)
        both = residuals(np.column_stack([inputs.codes, inputs.factors[:, k]]), others)
        found.append((both[:, :-1], both[:, -1]))
    return found


def redundant_factors(left: Float[np.ndarray, "N k"]) -> np.ndarray:
    """Which factors are functions of the others: standardised factors leave less than 5 % of their variance."""
    return np.square(left).mean(0) < 0.05


def _warnings(inputs: CodesAndFactors) -> tuple[str, ...]:
    left = np.column_stack([factor for _, factor in conditional_residuals(inputs)])
    redundant = np.flatnonzero(redundant_factors(left))
    listed = ", ".join(map(str, redundant))
    note = (f"Factors {listed} are functions of the others, so no latent can be credited for them.",)
    return (*input_warnings(inputs), *(note if len(redundant) else ()))


class TMEX(Score):
    """The number of latent-factor pairs that contradict the expected structure; 0 is best."""

    p_values = Detail()
    """(d, k) of the tests of each latent and factor, given all other factors."""
    structure = Detail()
    """Which latent was expected to depend on which factor, (d, k)."""


def tmex(codes: object, factors: object, *, structure: object | None = None, level: float = 0.05) -> TMEX:
    """Test-based measurement exclusivity (Yao, Huang, Cadei, Zhang & Locatello 2025).

    A latent measures a factor if it depends on it given all other factors. Every pair is tested for conditional
    independence with the generalised covariance measure (Shah & Peters 2020), on residuals of cross-fitted non-linear
    regressions. The score counts pairs where the test and the expected structure disagree. It is valid for dependent
    factors. With few samples the errors of the regressions matter, and the statistic is divided by what they add to its
    spread; absent pairs are then rejected about as often as `level` says from 100 samples on. Factors that depend on
    each other in ways that the regression cannot fit, such as one that is the square of another, are still rejected too
    often. The test has no power against dependence without correlation of residuals, such as an even function.

    Args:
        codes: (N, d).
        factors: (N, k), which may depend on each other.
        structure: (d, k) of True and False: which latent should measure which factor. By default one latent per factor,
            matched by the strength of the dependence.
        level: of each test; a correct structure of m absent pairs still has about level · m contradictions.

    >>> v = np.random.default_rng(0).normal(size=(500, 2))
    >>> tmex(v[:, ::-1], v, level=0.001).score, tmex(v @ np.array([[1.0, 1.0], [-1.0, 1.0]]), v, level=0.001).score
    (0.0, 2.0)
    """
    validation.number("level", level, above=0.0)
    inputs = read_inputs(codes, factors, discrete=False, minimum=40)
    shape, expected = (inputs.latents, inputs.factor_count), None
    if structure is not None:
        found = validation.array(structure, "structure")
        if found.shape != shape:
            expects = f"a row per latent and a column per factor, {shape}"
            raise InputError(f"structure must have {expects}, got {found.shape}.")
        expected = found.astype(bool)
    bounds = (0.0, float(shape[0] * shape[1]))
    compute = partial(_tmex, structure=expected, level=level)
    return TMEX("T-MEX", compute, inputs, input_warnings, bounds=bounds, resamples=20)


def _tmex(inputs: CodesAndFactors, structure: np.ndarray | None, level: float) -> MetricValues:
    others = [np.delete(inputs.factors, k, axis=1) for k in range(inputs.factor_count)]
    statistic = np.empty((inputs.latents, inputs.factor_count))
    for k, (codes, factor) in enumerate(conditional_residuals(inputs)):  # standard normal under independence
        products = codes * factor[:, None]
        spread = products.std(0)
        statistic[:, k] = np.sqrt(len(products)) * products.mean(0) / np.where(spread > 0, spread, np.inf)
    statistic /= np.sqrt([shared_error_inflation(given) for given in others])
    p_values = 2 * student.sf(np.abs(statistic), inputs.samples - 1)
    expected = structure
    if expected is None:  # one latent per factor: the matching with the largest sum
        assignment = best_matching(np.abs(statistic))[1]
        expected = np.arange(inputs.latents)[:, None] == assignment
    wrong = (p_values < level) != expected
    return MetricValues(
        {"tmex": float(wrong.sum()), "share": float(wrong.mean())},
        wrong.sum(0).astype(float),
        {"p_values": p_values, "structure": expected},
    )
