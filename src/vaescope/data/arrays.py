"""A user's observations as a checked tensor, and seeded splits of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.errors import InputError


def observations(x: object, *, name: str = "x", least: int = 2) -> Float[Tensor, "N n"]:
    """`x` as a finite float tensor with a row per sample, or an error that says what is wrong with it.

    >>> observations([[1.0, 2.0], [3.0, 4.0]]).shape
    torch.Size([2, 2])
    """
    try:
        tensor = x if isinstance(x, Tensor) else torch.from_numpy(np.asarray(x, dtype=None))
    except (TypeError, ValueError):
        raise InputError(f"{name} must be an array of numbers, got {type(x).__name__}.") from None
    if tensor.ndim < 2:
        raise InputError(f"{name} must have a row per sample, shape (N, n), got shape {tuple(tensor.shape)}.")
    if len(tensor) < least:
        raise InputError(f"{name} needs at least {least} samples, got {len(tensor)}.")
    tensor = tensor.detach().flatten(1)
    tensor = tensor if tensor.is_floating_point() else tensor.float()
    bad = ~tensor.isfinite().all(1)
    if bool(bad.any()):
        raise InputError(
            f"{name} must be finite, got NaN or infinity in {int(bad.sum())} of {len(tensor)} rows "
            f"(the first is row {int(bad.nonzero()[0])}); drop or impute them."
        )
    return tensor


@dataclass(frozen=True, eq=False)
class Split:
    """Rows for training, for early stopping, and for everything that is reported."""

    train: Float[Tensor, "*D N n"]
    validation: Float[Tensor, "*D M n"]
    test: Float[Tensor, "*D T n"]


def split(x: Float[Tensor, "N n"], *, fractions: tuple[float, float] = (0.7, 0.2)) -> Split:
    """The first rows to train, then validation, then test; shuffle before if rows have an order."""
    count = len(x)
    train = max(1, round(fractions[0] * count))
    validation = max(1, round(fractions[1] * count))
    if train + validation > count:
        raise InputError(f"x needs at least 2 samples to be split, got {count}.")
    parts = x[:train], x[train : train + validation], x[train + validation :]
    return Split(*(part.contiguous() for part in parts))
