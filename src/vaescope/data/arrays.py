"""Splits of a data set into training, validation and test rows."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from vaescope.errors import InputError


@dataclass(frozen=True, eq=False)
class Split:
    """Rows for training, for early stopping and for reported results."""

    train: Float[Tensor, "*D N n"]
    validation: Float[Tensor, "*D M n"]
    test: Float[Tensor, "*D T n"]


def split(x: Float[Tensor, "N n"], *, fractions: tuple[float, float] = (0.7, 0.2)) -> Split:
    """Split rows in order: training, then validation, then test. Shuffle ordered rows first.

    Args:
        x: observations, a row per sample.
        fractions: shares of training and validation rows; the rest are test rows.
    """
    count = len(x)
    if count < 2:
        raise InputError(f"x needs at least 2 samples to be split, got {count}.")
    validation = max(1, round(fractions[1] * count))
    train = min(max(1, round(fractions[0] * count)), count - validation)
    parts = x[:train], x[train : train + validation], x[train + validation :]
    return Split(*(part.contiguous() for part in parts))
