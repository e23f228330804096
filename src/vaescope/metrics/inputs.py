"""Codes and factors as checked, shuffled float64 arrays."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

import numpy as np

from vaescope.core import validation
from vaescope.core.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")
Discrete = bool | Sequence[bool] | None
"""Which factors are classes; None for those with few distinct values."""


@dataclass(frozen=True, eq=False)
class CodesAndFactors:
    """Codes (N, d) and factors (N, k) of the same samples, in random order.

    Metrics with predictors fit them on the first half of the rows and score them on the second.
    """

    codes: np.ndarray
    factors: np.ndarray
    discrete: tuple[bool, ...]
    """Whether each factor is discrete."""
    computed: dict[Hashable, object] = field(default_factory=dict, repr=False)
    """Results of functions marked `once_per_inputs`, which several metrics need."""

    @property
    def samples(self) -> int:
        return len(self.codes)

    @property
    def latents(self) -> int:
        return self.codes.shape[1]

    @property
    def factor_count(self) -> int:
        return self.factors.shape[1]

    @property
    def halves(self) -> tuple[CodesAndFactors, CodesAndFactors]:
        """The half for fitting and the half for scoring."""
        middle = (self.samples + 1) // 2
        return self.subset(slice(None, middle)), self.subset(slice(middle, None))

    def subset(self, rows: slice | np.ndarray) -> CodesAndFactors:
        return replace(self, codes=self.codes[rows], factors=self.factors[rows], computed={})

    def shuffled(self, rng: np.random.Generator) -> CodesAndFactors:
        """The same arrays with the rows of the codes shuffled, so that codes and factors are independent."""
        return replace(self, codes=self.codes[rng.permutation(self.samples)], computed={})


def once_per_inputs(
    function: Callable[Concatenate[CodesAndFactors, P], T],
) -> Callable[Concatenate[CodesAndFactors, P], T]:
    """A function whose results are kept with the inputs, so that metrics on the same inputs share them.

    Results must not be changed in place. Arguments other than the inputs must be hashable and given by name.
    """

    @wraps(function)
    def shared(inputs: CodesAndFactors, *args: P.args, **options: P.kwargs) -> T:
        key = (function.__qualname__, args, tuple(sorted(options.items())))
        if key not in inputs.computed:
            inputs.computed[key] = function(inputs, *args, **options)
        return cast(T, inputs.computed[key])

    return shared


def read_inputs(
    codes: object, factors: object, *, discrete: Discrete = None, minimum: int = 20, seed: int = 0
) -> CodesAndFactors:
    """Check and shuffle codes (N, d) and factors (N, k).

    Args:
        codes: a row per sample, a column per latent.
        factors: a row per sample, a column per factor; no factor may be constant.
        discrete: which factors are classes; by default those with few distinct values.
        minimum: smallest number of samples.
        seed: seed of the shuffling.
    """
    z, v = validation.matrix(codes, "codes"), validation.matrix(factors, "factors")
    samples = validation.same_rows({"codes": len(z), "factors": len(v)})
    if samples < minimum:
        raise InputError(f"codes and factors need at least {minimum} samples, got {samples}.")
    constant = np.flatnonzero(np.ptp(v, axis=0) == 0)
    if constant.size:
        raise InputError(f"factor {constant[0]} has the same value in every sample; remove it.")
    if discrete is None:
        classes = tuple(bool(looks_discrete(column)) for column in v.T)
    elif isinstance(discrete, bool | np.bool_):
        classes = (bool(discrete),) * v.shape[1]
    elif not isinstance(discrete, Sequence | np.ndarray):
        raise InputError(f"discrete must be True, False or an entry per factor, got {discrete!r}.")
    elif len(discrete) != v.shape[1]:
        raise InputError(f"discrete needs an entry per factor, {v.shape[1]}, got {len(discrete)}.")
    else:
        classes = tuple(bool(entry) for entry in discrete)
    order = np.random.default_rng(seed).permutation(samples)
    return CodesAndFactors(rescale_exactly(z)[order], rescale_exactly(v)[order], classes)


def rescale_exactly(values: np.ndarray) -> np.ndarray:
    """Divide columns whose squares would overflow or underflow by a power of two, which is exact.

    >>> rescale_exactly(np.array([[1e300, 3.0], [-2e300, 1.0]])).round(3).tolist()
    [[0.373, 3.0], [-0.747, 1.0]]
    """
    exponent = np.frexp(np.abs(values).max(axis=0))[1]
    return np.ldexp(values, np.where(np.abs(exponent) > 200, -exponent, 0))


def looks_discrete(column: np.ndarray, most: int = 50) -> bool:
    """Whether a column has at most so many distinct values, each of at least five samples on average.

    >>> looks_discrete(np.arange(100) % 4), looks_discrete(np.linspace(0, 1, 100))
    (True, False)
    """
    if len(np.unique(column[: 4 * most])) > most:  # avoids sorting a long column
        return False
    values = len(np.unique(column))
    return values <= most and len(column) >= 5 * values


def is_varying(columns: np.ndarray) -> np.ndarray:
    """Which columns vary by more than rounding errors."""
    return _exceeds_rounding(columns.std(axis=0), columns)


def standardise(columns: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and variance 1; constant columns become 0."""
    centred = columns - columns.mean(0)
    sd = np.sqrt(np.einsum("ij,ij->j", centred, centred) / len(columns))
    varying = _exceeds_rounding(sd, columns)
    return centred * np.where(varying, 1 / np.where(varying, sd, 1.0), 0.0)


def _exceeds_rounding(sd: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return sd > 1e-12 * np.maximum(np.abs(columns).max(axis=0), np.finfo(float).tiny)


def input_warnings(inputs: CodesAndFactors, *, classes: bool = False) -> tuple[str, ...]:
    """Violated assumptions of any metric; `classes` adds those of metrics that need several samples per class.

    Limits are conventions: below them, intervals become wide or the planted codes of the tests get misleading scores.

    >>> z = np.random.default_rng(0).normal(size=(200, 1))
    >>> input_warnings(CodesAndFactors(z * [1, 0], np.hstack([z, z]), (False, False)))[1]
    'latent 1 is constant and counts as uninformative.'
    """
    samples, notes = inputs.samples, []
    factors = standardise(inputs.factors)
    correlations = np.triu(np.abs(factors.T @ factors) / samples, 1)
    i, j = np.unravel_index(correlations.argmax(), correlations.shape)
    if correlations[i, j] > max(0.3, 4 / np.sqrt(samples)):
        notes.append(
            f"factors {i} and {j} are correlated ({correlations[i, j]:.2f}): a latent that encodes one predicts both, "
            "and scores cannot distinguish them."
        )
    constant = np.flatnonzero(~is_varying(inputs.codes))
    if constant.size == inputs.latents:
        notes.append("every latent is constant: the codes contain no information.")
    elif constant.size:
        verb = "are constant and count" if constant.size > 1 else "is constant and counts"
        notes.append(f"{list_latents(constant)} {verb} as uninformative.")
    if samples < 100:
        notes.append(f"only {samples} samples: with fewer than 100, scores are imprecise; see the interval.")
    if inputs.latents > samples / 8:
        notes.append(f"{inputs.latents} latents for {samples} samples: predictors fitted on half of them overfit.")
    if max(len(np.unique(column)) for column in inputs.codes.T) > 20:  # fewer values are expected to repeat
        distinct = len(np.unique(np.hstack([inputs.codes, inputs.factors]), axis=0))
        if distinct < 0.9 * samples:  # rows that occur in both halves reward memorisation
            notes.append(
                f"only {distinct} of {samples} rows are distinct: repeated samples make scores and intervals too "
                "optimistic."
            )
    for k in np.flatnonzero(inputs.discrete) if classes else ():
        smallest = int(np.unique(inputs.factors[:, k], return_counts=True)[1].min())
        if smallest < 10:
            notes.append(
                f"factor {k} has a class with only {smallest} samples; at least 10 are needed for a reliable score."
            )
    return tuple(notes)


def list_latents(indices: Sequence[int] | np.ndarray) -> str:
    """Indices of latents for a warning, at most eight.

    >>> list_latents([3]), list_latents(range(10))
    ('latent 3', 'latents 0, 1, 2, 3, 4, 5, 6, 7, …')
    """
    listed = ", ".join(str(index) for index in indices[:8]) + (", …" if len(indices) > 8 else "")
    return f"latent{'s' * (len(indices) > 1)} {listed}"


_lock = threading.Lock()
_filters = ExitStack()
_users = 0


@contextmanager
def without_fit_warnings() -> Iterator[None]:
    """Ignore that scikit-learn takes many classes for a regression target; threads may overlap.

    >>> with without_fit_warnings():
    ...     warnings.warn("the number of unique classes is large", stacklevel=1)
    """
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _filters.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", UserWarning)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _filters.close()
