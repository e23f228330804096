"""Codes and factors as checked float64 arrays."""

from __future__ import annotations

import numpy as np
import torch

from vaescope.errors import InputError


def matrix(values: object, name: str) -> np.ndarray:
    """(N, k) float64, finite, from numpy or torch."""
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must be numbers, got {array.dtype}; encode categories as integers.")
    if array.ndim != 2:
        raise InputError(f"{name} must have a row per sample, shape (N, k), got shape {array.shape}.")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise InputError(f"{name} must be finite, got NaN or infinity.")
    return array


def pair(codes: object, factors: object, *, least: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Codes (N, d) and factors (N, k) of the same N samples."""
    c, f = matrix(codes, "codes"), matrix(factors, "factors")
    if len(c) != len(f):
        raise InputError(f"codes and factors must have a row per sample each, got {len(c)} and {len(f)} rows.")
    if len(c) < least:
        raise InputError(f"codes and factors need at least {least} samples, got {len(c)}.")
    return c, f
