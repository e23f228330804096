"""What users give: means, variances and data as finite floating point tensors, or one line that says what is wrong."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.errors import InputError


def numbers(values: object, name: str) -> Float[Tensor, "N n"]:
    """Rows of finite numbers, at least one, in the floating type they came in (or float32 and up)."""
    try:
        found = torch.as_tensor(values if isinstance(values, Tensor) else np.asarray(values)).detach()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} must be an array of numbers, got {type(values).__name__}.") from None
    if found.is_complex() or found.ndim < 2 or 0 in found.shape:
        raise InputError(
            f"{name} must be rows of real numbers (N, n), got {found.dtype} of shape {tuple(found.shape)}."
        )
    found = found if found.dtype in (torch.float32, torch.float64) else found.float()
    if not bool(found.isfinite().all()):
        raise InputError(f"{name} must be finite, got NaN or infinity.")
    return found


def posterior(mean: object, variance: object) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
    """Means and variances of one shape, variances above zero."""
    centre, spread = numbers(mean, "mean"), numbers(variance, "variance")
    if centre.ndim != 2 or centre.shape != spread.shape:
        raise InputError(
            f"mean and variance must be (N, d), a row per sample, got {tuple(centre.shape)} and {tuple(spread.shape)}."
        )
    if not bool((spread > 0).all()):
        raise InputError("variance must be > 0; pass variances, not log-variances.")
    return centre, spread.to(centre)


def count(value: object, name: str, least: int) -> int:
    """A whole number that is large enough."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name} must be a whole number, at least {least}, got {value!r}.")
    return int(value)
