r"""How many nats of a variable codes hold, with an interval and a permutation null.

For any conditional density p̂(n|z), with p̂(n) the same model without codes,

.. math::
    I(Z; N) = E\left[\log \frac{\hat p(n|z)}{\hat p(n)}\right] + E\,KL[p(n|z) \| \hat p(n|z)] - KL[p(n) \| \hat p(n)]

(Barber & Agakov 2003). On held-out samples a model with k parameters loses k/2N nats by estimating them; on its own
samples it gains as many (Wilks). The mean of both is free of that bias; the difference says how large k is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np
from jaxtyping import Float, Int
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.preprocessing import SplineTransformer

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.metrics.inputs import looks_discrete, standardise, without_fit_warnings


@dataclass(frozen=True)
class Limits:
    """Conventions of the estimate."""

    class_samples: int = 10
    """Classes with fewer samples are left out."""
    folds: int = 5
    landmarks: int = 40
    """Of radial features."""
    parameters: float = 0.2
    """Per sample; with more, the correction for over-fitting is no longer accurate."""
    share: float = 1e-6
    """Smallest one that a model may predict: one sample must not decide about the mean."""
    bins: int = 10
    """Of a continuous variable."""


@dataclass(frozen=True, eq=False)
class Variable:
    """A variable with a value per sample: classes, or a continuous one by its normal scores."""

    name: str
    values: Float[np.ndarray, " N"]
    """Classes numbered from 0, or normal scores."""
    discrete: bool
    classes: tuple[str, ...] = ()
    """Names of the classes."""

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: np.ndarray) -> Variable:
        return replace(self, values=self.values[rows])

    @cached_property
    def labels(self) -> Int[np.ndarray, " N"]:
        """Classes, or bins with equally many samples."""
        if self.discrete:
            return self.values.astype(int)
        return np.minimum((stats.norm.cdf(self.values) * Limits.bins).astype(int), Limits.bins - 1)

    @property
    def entropy(self) -> float | None:
        """H(N) in nats; None for continuous variables."""
        if not self.discrete:
            return None
        share = np.bincount(self.labels) / len(self)
        return float(-(share[share > 0] * np.log(share[share > 0])).sum())

    @cached_property
    def columns(self) -> Float[np.ndarray, "N c"]:
        """Indicators of classes, or splines of a continuous variable: what predictors see of it."""
        if self.discrete:
            return np.eye(int(self.labels.max()) + 1)[self.labels]
        return np.asarray(SplineTransformer(5, include_bias=False).fit_transform(self.values[:, None]))


def read_variable(values: object, name: str) -> tuple[Variable, np.ndarray]:
    """A variable, and the rows that are kept: those whose class is not too rare.

    Args:
        values: labels (text or numbers), or a number per sample.
        name: of the variable, for messages.

    >>> found, rows = read_variable(["a", "b"] * 20 + ["rare"], "batch")
    >>> found.classes, len(found), len(rows)
    (('a', 'b'), 40, 40)
    """
    raw = np.asarray(values) if not hasattr(values, "detach") else validation.array(values, name)
    numbers = validation.labels(values if raw.dtype.kind not in "USO" else raw, name)
    if numbers.shape[1] != 1:
        raise InputError(f"{name} must have one label or number per sample, got shape {numbers.shape}.")
    column = numbers[:, 0]
    if raw.dtype.kind not in "USOb" and not looks_discrete(column):
        scores = stats.norm.ppf((stats.rankdata(column) - 0.5) / len(column))
        return Variable(name, scores, discrete=False), np.arange(len(column))
    found, labels, counts = np.unique(column, return_inverse=True, return_counts=True)
    kept = np.flatnonzero(counts >= Limits.class_samples)
    if len(kept) < 2:
        raise InputError(
            f"{name} needs at least two classes with {Limits.class_samples} samples each, got {len(kept)}."
        )
    rows = np.flatnonzero(np.isin(labels, kept))
    texts = np.unique(raw.astype(str)) if raw.dtype.kind in "USO" else [f"{value:g}" for value in found]
    renumbered = np.searchsorted(kept, labels[rows]).astype(float)
    return Variable(name, renumbered, discrete=True, classes=tuple(str(texts[k]) for k in kept)), rows


# features ---------------------------------------------------------------------------------------

Features = Float[np.ndarray, "_ _"]


def feature_sets(codes: Float[np.ndarray, "N d"]) -> dict[str, Features]:
    """Features of codes from which a variable is predicted, each richer than the one before.

    Args:
        codes: (N, d).

    >>> {name: columns.shape[1] for name, columns in feature_sets(np.random.randn(500, 2)).items()}
    {'linear': 2, 'squares': 4, 'quadratic': 5, 'nonlinear': 45}
    """
    z = np.clip(standardise(codes), -8, 8)
    N, d = z.shape
    squares = np.hstack([z, standardise(np.square(z))])
    found = {"linear": z, "squares": squares}
    if d == 1:
        knots = np.unique(np.quantile(z[:, 0], np.linspace(0, 1, 7)))
        if len(knots) > 3:
            spline = SplineTransformer(knots=knots[:, None], include_bias=False, extrapolation="linear")
            found["nonlinear"] = np.hstack([squares, standardise(spline.fit_transform(z))])
        return found
    pairs = np.triu_indices(d, 1)
    quadratic = np.hstack([squares, standardise(z[:, pairs[0]] * z[:, pairs[1]])])
    if quadratic.shape[1] <= max(10, N // 20):
        found["quadratic"] = quadratic
    centres = z[np.random.default_rng(0).permutation(N)[: min(Limits.landmarks, N // 10)]]
    squared = np.square(z).sum(1)[:, None] + np.square(centres).sum(1) - 2 * z @ centres.T
    width = max(float(np.median(squared)) / 2, 1e-12)
    richest = [*found.values()][-1]
    found["nonlinear"] = np.hstack([richest, standardise(np.exp(-np.maximum(squared, 0) / width))])
    return found


def _ridge(features: str) -> float:
    """Squared weights are multiplied by half of this, beside the sum of the log-losses."""
    return {"none": 1e-3, "nonlinear": 0.3, "quadratic": 0.03}.get(features, 0.01)


def _log_densities(target: Variable, features: Features, train: np.ndarray, ridge: float) -> Float[np.ndarray, " N"]:
    """log p̂(n|features) of all rows, of a model that was fitted to some."""
    if target.discrete:
        return _log_shares(target.labels, features, train, ridge)
    return _gaussian_log_density(target.values, features, train, ridge)


def _log_shares(labels: np.ndarray, features: Features, train: np.ndarray, ridge: float) -> Float[np.ndarray, " N"]:
    if features.shape[1] == 0:
        return np.log(np.bincount(labels[train], minlength=labels.max() + 1) / len(train))[labels]
    solver = "newton-cholesky" if features.shape[1] * labels.max() < 60 else "lbfgs"
    model = LogisticRegression(C=1 / ridge, solver=solver, max_iter=500, tol=1e-4)
    with without_fit_warnings():
        model.fit(features[train], labels[train])
    shares: np.ndarray = model.predict_proba(features)[np.arange(len(labels)), labels]
    return np.log(np.maximum(shares, Limits.share))


def _gaussian_log_density(
    values: np.ndarray, features: Features, train: np.ndarray, ridge: float
) -> Float[np.ndarray, " N"]:
    """A Gaussian around a linear function of the features."""
    X = np.hstack([np.ones((len(values), 1)), features])
    penalty = ridge * np.eye(X.shape[1])
    penalty[0, 0] = 0.0
    weights = np.linalg.solve(X[train].T @ X[train] + penalty, X[train].T @ values[train])
    residual = values - X @ weights
    variance = max(float(np.square(residual[train]).mean()), 1e-12)
    return -0.5 * (residual**2 / variance + math.log(2 * math.pi * variance))


@dataclass(frozen=True, eq=False)
class _Scores:
    """log p̂(n|·) per sample: by models that have not seen it, and by those that have."""

    held_out: Float[np.ndarray, " N"]
    seen: Float[np.ndarray, " N"]

    def __sub__(self, other: _Scores) -> _Scores:
        return _Scores(self.held_out - other.held_out, self.seen - other.seen)

    @cached_property
    def both(self) -> Float[np.ndarray, " N"]:
        """Free of the bias of either."""
        return (self.held_out + self.seen) / 2

    @cached_property
    def parameters(self) -> float:
        """How many were fitted, as the difference shows."""
        return max(0.0, float((self.seen - self.held_out).mean()) * len(self.seen) * (1 - 1 / Limits.folds))

    def is_better(self, than: _Scores) -> bool:
        """Whether more was gained than the noise of the further parameters, of which twice the gain is chi-squared."""
        noise = math.sqrt(max(0.0, self.parameters - than.parameters) / 2) / len(self.seen)
        gain = float((self.both - than.both).mean())
        return gain > 1.5 * noise and self.parameters < Limits.parameters * len(self.seen)


def _cross_fitted(target: Variable, features: Sequence[Features], folds: np.ndarray, ridge: float) -> _Scores:
    """Scores of models fitted without each fold; features may differ between folds."""
    values = np.stack(
        [_log_densities(target, columns, np.flatnonzero(folds != k), ridge) for k, columns in enumerate(features)]
    )
    held_out = np.take_along_axis(values, folds[None], axis=0)[0]
    return _Scores(held_out, (values.sum(0) - held_out) / (len(values) - 1))


def _folds(target: Variable, seed: int) -> Int[np.ndarray, " N"]:
    found = np.empty(len(target), int)
    kind = StratifiedKFold if target.discrete else KFold
    for k, (_, test) in enumerate(
        kind(Limits.folds, shuffle=True, random_state=seed).split(target.labels, target.labels)
    ):
        found[test] = k
    return found


# nats -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nats:
    """An estimate of information with its 95 % interval."""

    value: float
    low: float
    high: float
    model: str
    """Which features predicted best: linear, squares, quadratic or nonlinear."""

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def _estimate(scores: _Scores, entropy: float | None, model: str) -> Nats:
    """The mean of held-out and seen scores; its error from their spread and from the parameters that were fitted."""
    count = len(scores.both)
    deviation = math.sqrt(scores.both.var(ddof=1) / count + scores.parameters / (2 * count**2))
    most = math.inf if entropy is None else entropy
    value, margin = float(scores.both.mean()), 1.96 * deviation
    low, high = (float(np.clip(v, 0.0, most)) for v in (value - margin, value + margin))
    return Nats(float(np.clip(value, 0.0, most)), low, high, model)


CodesByFold = Callable[[np.ndarray], Float[np.ndarray, "N d"]]
"""Rows that a model is fitted to -> codes of all rows, such as codes with directions removed that these rows show."""


def nats_held(
    codes: Float[np.ndarray, "N d"] | CodesByFold,
    target: Variable,
    *,
    given: Variable | None = None,
    seed: int = 0,
) -> Nats:
    """I(Z; N), or I(Z; N | K), in nats, with a 95 % interval.

    Models of p(n|z) are multinomial logistic regressions (Gaussian ones for the normal scores of a continuous variable)
    on linear, quadratic and radial features of codes. A richer one is taken if it gains more than its noise.

    Args:
        codes: (N, d), or a function of the rows that a model is fitted to.
        target: N.
        given: K; the information that N shares with K is left out.
        seed: of the division into folds.

    >>> rng = np.random.default_rng(0)
    >>> n = rng.integers(0, 2, 2000)
    >>> found = nats_held(rng.normal(size=(2000, 1)) + 2 * n[:, None], read_variable(n, "n")[0])  # 0.337 nats
    >>> found.low < 0.337 < found.high
    True
    """
    folds = _folds(target, seed)
    trains = [np.flatnonzero(folds != k) for k in range(Limits.folds)]
    known = np.zeros((len(target), 0)) if given is None else given.columns
    base = _cross_fitted(target, [known] * Limits.folds, folds, _ridge("none"))
    by_fold = (
        [feature_sets(codes(train)) for train in trains] if callable(codes) else [feature_sets(codes)] * Limits.folds
    )
    best, chosen = None, ""
    for name, columns in _with_known([*by_fold], known, given):
        found = _cross_fitted(target, columns, folds, _ridge(name)) - base
        if best is None or found.is_better(best):
            best, chosen = found, name
    assert best is not None
    return _estimate(best, target.entropy, chosen)


def _with_known(
    by_fold: list[dict[str, Features]], known: Features, given: Variable | None
) -> Iterator[tuple[str, list[Features]]]:
    """Feature sets beside those of K; for discrete K also with effects of codes that differ between its classes."""
    for name in by_fold[0]:
        yield name, [np.hstack([known, sets[name]]) for sets in by_fold]
    if given is not None and given.discrete and known.shape[1] * by_fold[0]["linear"].shape[1] <= len(known) // 20:
        products = [(sets["linear"][:, :, None] * known[:, None]).reshape(len(known), -1) for sets in by_fold]
        yield "linear per class", [np.hstack([known, columns]) for columns in products]


# the null ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Null:
    """Permutation tests of independence: for all codes together, and for each latent, corrected for their number."""

    p_value: float
    per_latent: tuple[float, ...]
    """Corrected for testing every latent: the largest statistic of all (Westfall & Young 1993)."""
    chance: float
    """95 % quantile of the estimate over permutations, in nats of canonical correlations above their mean."""


def permutation_null(
    codes: Float[np.ndarray, "N d"],
    target: Variable,
    *,
    given: Variable | None = None,
    permutations: int = 499,
    seed: int = 0,
) -> Null:
    r"""Test whether codes and a variable are independent, or independent given another one.

    The statistic is :math:`-\frac12 \sum_i \log(1 - \rho_i^2)` over canonical correlations between features of codes
    and indicators of the variable, the largest of all feature sets in standard deviations of the null. The variable
    is permuted; given K, among samples with the same K, which is exact for classes and approximate for bins.

    Args:
        codes: (N, d).
        target: N.
        given: K.
        permutations: how many.
        seed: of the permutations.
    """
    strata = np.zeros(len(target), int) if given is None else given.labels
    indicators = target.columns if target.discrete else np.hstack([target.values[:, None], target.columns])
    outcome = _basis(_centred(indicators, strata))
    single = [feature_sets(column[:, None])["squares"] for column in codes.T]
    sets = [_basis(_centred(columns, strata)) for columns in (*feature_sets(codes).values(), *single)]
    joint = len(sets) - len(single)
    rng = np.random.default_rng(seed)
    orders = (_permuted(strata, rng) for _ in range(permutations))
    statistics = np.array([_canonical_nats(sets, y) for y in chain([outcome], (outcome[order] for order in orders))])
    centre, spread = statistics[1:].mean(0), np.maximum(statistics[1:].std(0), 1e-12)
    scaled = (statistics - centre) / spread
    whole, each = scaled[:, :joint].max(1), scaled[:, joint:]
    largest = each.max(1)
    return Null(
        float((1 + (whole[1:] >= whole[0]).sum()) / (1 + permutations)),
        tuple(((1 + (largest[1:, None] >= each[0]).sum(0)) / (1 + permutations)).tolist()),
        float(np.quantile(statistics[1:, 0] - centre[0], 0.95)),
    )


def _permuted(strata: np.ndarray, rng: np.random.Generator) -> Int[np.ndarray, " N"]:
    """A random order of rows within strata."""
    found = np.empty(len(strata), int)
    found[np.argsort(strata, kind="stable")] = np.lexsort((rng.random(len(strata)), strata))
    return found


def _centred(columns: Features, strata: np.ndarray) -> Features:
    counts = np.bincount(strata)
    means = np.stack([np.bincount(strata, column) for column in columns.T], axis=1) / np.maximum(counts, 1)[:, None]
    return columns - means[strata]


def _basis(columns: Features) -> Features:
    """Orthonormal columns that span the same space."""
    left, values, _ = np.linalg.svd(columns, full_matrices=False)
    return left[:, values > 1e-8 * max(values[0], 1e-300)]


def _canonical_nats(sets: list[Features], outcome: Features) -> Float[np.ndarray, " s"]:
    found = []
    for basis in sets:
        correlations = np.linalg.svd(basis.T @ outcome, compute_uv=False)
        found.append(-0.5 * np.log1p(-np.square(np.minimum(correlations, 1 - 1e-12))).sum())
    return np.array(found)


# the subspace -----------------------------------------------------------------------------------


def telling_directions(
    codes: Float[np.ndarray, "N d"], target: Variable, *, given: Variable | None = None
) -> Float[np.ndarray, "d r"]:
    """Directions of codes that differ most between values of a variable, as columns, the most telling first.

    Differences of means and of covariances between classes or bins (sliced inverse regression with second moments,
    Li & Wang 2007), of codes whitened with their covariance; given K, within its classes.

    Args:
        codes: (N, d).
        target: N.
        given: K.
    """
    z = codes if given is None else _centred(codes, given.labels)
    z = z - z.mean(0)
    values, vectors = np.linalg.eigh(np.cov(z.T).reshape(z.shape[1], z.shape[1]))
    kept = values > 1e-10 * values.max()
    whitener = vectors[:, kept] / np.sqrt(values[kept])
    w = z @ whitener
    kernel = np.zeros((w.shape[1], w.shape[1]))
    for label in np.unique(target.labels):
        rows = w[target.labels == label]
        share, mean = len(rows) / len(w), rows.mean(0)
        kernel += share * np.outer(mean, mean)
        if len(rows) > 5 * w.shape[1]:
            excess = np.cov(rows.T).reshape(kernel.shape) - np.eye(len(kernel))
            kernel += 0.25 * share * excess @ excess
    order = np.linalg.eigh(kernel)[1][:, ::-1]
    return whitener @ order


def without_directions(
    codes: Float[np.ndarray, "N d"], directions: Float[np.ndarray, "d r"], rows: np.ndarray
) -> Float[np.ndarray, "N d"]:
    """Codes minus what a linear function of the given directions predicts of them.

    Args:
        codes: (N, d).
        directions: as columns.
        rows: from which the linear function is fitted.
    """
    centred = codes - codes[rows].mean(0)
    along = centred @ directions
    slope = np.linalg.lstsq(along[rows], centred[rows], rcond=None)[0]
    return centred - along @ slope
