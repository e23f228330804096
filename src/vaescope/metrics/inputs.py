"""Codes and factors as checked float64 arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from vaescope.errors import InputError

MOST_CLASSES = 50  # a factor with more different values is taken as continuous ...
EXTREME = 200  # powers of two beyond which numbers are rescaled
LEAST_PER_CLASS = 5  # ... and so is one whose values hardly repeat


@dataclass(frozen=True, eq=False)
class Data:
    """Codes (N, d) and factors (N, k) of the same N samples; which factors are discrete.

    Rows come shuffled: whoever fits something fits on the first half and scores on the second.
    """

    codes: np.ndarray
    factors: np.ndarray
    discrete: tuple[bool, ...]

    @property
    def samples(self) -> int:
        return len(self.codes)

    @property
    def latents(self) -> int:
        return self.codes.shape[1]

    @property
    def halves(self) -> tuple[Data, Data]:
        """The half to fit on and the half to score on."""
        middle = (self.samples + 1) // 2
        return self.rows(slice(None, middle)), self.rows(slice(middle, None))

    def rows(self, pick: slice | np.ndarray) -> Data:
        return replace(self, codes=self.codes[pick], factors=self.factors[pick])

    def null(self, rng: np.random.Generator) -> Data:
        """The same codes in another order: they say nothing about the factors."""
        return replace(self, codes=self.codes[rng.permutation(self.samples)])


def matrix(values: object, name: str) -> np.ndarray:
    """(N, k) float64, finite, from numpy or torch."""
    array = _numpy(values, name)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must be numbers, got {array.dtype}; encode categories as integers.")
    if array.ndim != 2 or array.shape[1] == 0:
        raise InputError(
            f"{name} must have a row per sample and a column per {name[:-1]}, shape (N, k), got shape {array.shape}."
        )
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise InputError(f"{name} must be finite, got {array[row, column]} in row {row}, column {column}.")
    return array


def _numpy(values: object, name: str) -> np.ndarray:
    """An array from numpy, torch (any real type), lists of either, or anything that numpy understands."""
    if isinstance(values, list | tuple) and values and all(isinstance(v, torch.Tensor) for v in values):
        values = torch.stack(list(values))
    if isinstance(values, torch.Tensor):
        real = values.detach().cpu()
        return (real if real.is_complex() else real.double()).numpy()
    try:
        array = np.asarray(values)
        return array.astype(np.float64) if array.dtype == object else array
    except (TypeError, ValueError):
        raise InputError(f"{name} must be an array of numbers with rows of one length; encode categories.") from None


def exactly_rescaled(values: np.ndarray) -> np.ndarray:
    """Columns whose squares would overflow or vanish, divided by a power of two: nothing is rounded.

    >>> exactly_rescaled(np.array([[1e300, 3.0], [-2e300, 1.0]])).round(3).tolist()
    [[0.373, 3.0], [-0.747, 1.0]]
    """
    exponent = np.frexp(np.abs(values).max(axis=0))[1]
    return np.ldexp(values, np.where(np.abs(exponent) > EXTREME, -exponent, 0))


def pair(codes: object, factors: object, *, least: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Codes (N, d) and factors (N, k) of the same N samples, no factor constant."""
    c, f = matrix(codes, "codes"), matrix(factors, "factors")
    if len(c) != len(f):
        raise InputError(f"codes and factors must have a row per sample each, got {len(c)} and {len(f)} rows.")
    if len(c) < least:
        raise InputError(f"codes and factors need at least {least} samples, got {len(c)}.")
    constant = np.flatnonzero(np.ptp(f, axis=0) == 0)
    if constant.size:
        raise InputError(f"factor {constant[0]} has the same value in every sample; leave it out.")
    return c, f


def data(
    codes: object, factors: object, *, discrete: bool | Sequence[bool] | None = None, least: int = 20, seed: int = 0
) -> Data:
    """Checked and shuffled arrays; `discrete` says which factors are classes (by default, those that look it)."""
    c, f = pair(codes, factors, least=least)
    order = np.random.default_rng(seed).permutation(len(c))
    return Data(exactly_rescaled(c)[order], exactly_rescaled(f)[order], _kinds(f, discrete))


def _kinds(factors: np.ndarray, discrete: bool | Sequence[bool] | None) -> tuple[bool, ...]:
    count = factors.shape[1]
    if discrete is None:
        return tuple(bool(looks_discrete(column)) for column in factors.T)
    if isinstance(discrete, bool | np.bool_):
        return (bool(discrete),) * count
    if not isinstance(discrete, Sequence | np.ndarray):
        raise InputError(f"discrete must be True, False or an entry per factor, got {discrete!r}.")
    kinds = tuple(bool(kind) for kind in discrete)
    if len(kinds) != count:
        raise InputError(f"discrete needs an entry per factor, {count}, got {len(kinds)}.")
    return kinds


def looks_discrete(column: np.ndarray) -> bool:
    """Few values that repeat.

    >>> looks_discrete(np.arange(100) % 4), looks_discrete(np.linspace(0, 1, 100))
    (True, False)
    """
    if len(np.unique(column[: 4 * MOST_CLASSES])) > MOST_CLASSES:  # seen without sorting all of it
        return False
    values = len(np.unique(column))
    return values <= MOST_CLASSES and len(column) >= LEAST_PER_CLASS * values


def alive(codes: np.ndarray) -> np.ndarray:
    """Which columns vary beyond rounding."""
    spread = codes.std(axis=0)
    return spread > 1e-12 * np.maximum(np.abs(codes).max(axis=0), np.finfo(float).tiny)


def standardised(values: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and variance 1; constant columns become 0."""
    centred = values - values.mean(0)
    spread = np.sqrt(np.einsum("ij,ij->j", centred, centred) / len(values))
    living = spread > 1e-12 * np.maximum(np.abs(values).max(axis=0), np.finfo(float).tiny)
    return centred * np.where(living, 1 / np.where(living, spread, 1.0), 0.0)
