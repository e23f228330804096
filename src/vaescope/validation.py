"""Checks of what users pass in: arrays, numbers and choices. Every error says what was expected, what came, what to do.

Arrays are read in one place: NumPy arrays (memory-mapped ones stay on disk), tensors of any real type, nested lists,
and anything that NumPy understands, such as a data frame. Text, objects, complex numbers, masked values and rows of
different lengths are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.checks import choice, number, shown, whole_number
from vaescope.errors import InputError

__all__ = [
    "array",
    "choice",
    "image_shape",
    "matrices",
    "matrix",
    "number",
    "posterior",
    "precision",
    "rows",
    "same_rows",
    "tensor",
    "whole_number",
]

NUMERIC_KINDS = "fiub"  # kinds of NumPy types that hold real numbers


def precision(value: object) -> float:
    """γ² = 1 / decoder variance: one number > 0.

    >>> precision(100)
    100.0
    """
    if isinstance(value, Tensor | np.ndarray) and value.ndim == 0:
        value = value.item()
    return number("precision", value, above=0.0, hint="it is 1 / decoder variance")


def image_shape(value: object, name: str = "image_shape") -> tuple[int, int, int]:
    """(channels, height, width).

    >>> image_shape([1, 64, 64])
    (1, 64, 64)
    """
    sides = list(value) if isinstance(value, tuple | list) else []
    if len(sides) != 3 or not all(isinstance(side, Integral) and int(side) > 0 for side in sides):
        raise InputError(f"{name} must be (channels, height, width), got {shown(value)}.")
    return int(sides[0]), int(sides[1]), int(sides[2])


# arrays ---------------------------------------------------------------------------------------


def array(values: object, name: str) -> np.ndarray:
    """An array of real numbers in the type it came in; arrays on disk stay there.

    >>> array([[1, 2], [3, 4]], "x").shape
    (2, 2)
    """
    if isinstance(values, list | tuple) and values and all(isinstance(v, Tensor) for v in values):
        values = _stacked(list(values), name)
    if isinstance(values, Tensor):
        return _from_tensor(values, name)
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InputError(f"{name} has masked values; drop or impute those samples.")
    try:
        found = values if isinstance(values, np.ndarray) else np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} must be an array of numbers, got rows of different lengths.") from None
    if found.dtype == object:
        found = _from_objects(found, values, name)
    if found.dtype.kind not in NUMERIC_KINDS:
        raise InputError(f"{name} must be an array of numbers, got {_kind_of(values, found)}.")
    return found


def _stacked(values: list[Tensor], name: str) -> Tensor:
    try:
        return torch.stack(values)
    except RuntimeError:
        raise InputError(f"{name} must be an array of numbers, got tensors of different shapes.") from None


def _from_tensor(values: Tensor, name: str) -> np.ndarray:
    if values.is_complex():
        raise InputError(f"{name} must be real, got complex numbers.")
    real = values.detach().cpu()
    return (real.float() if real.dtype in (torch.bfloat16, torch.float16) else real).numpy()


def _from_objects(found: np.ndarray, given: object, name: str) -> np.ndarray:
    """Numbers that a table holds as objects."""
    try:
        return found.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be an array of numbers, got {_kind_of(given, found)}.") from None


def _kind_of(given: object, found: np.ndarray) -> str:
    if not isinstance(given, np.ndarray | list | tuple) and hasattr(given, "__iter__") and found.ndim == 0:
        return f"{type(given).__name__}; collect its batches into one array first"
    if found.dtype.kind in "USO":
        return f"{'text' if found.dtype.kind in 'US' else 'objects'}; encode categories as integers"
    return str(found.dtype)


def rows(values: object, name: str, *, minimum: int = 1, finite: bool = True) -> np.ndarray:
    """An array with a row per sample, at least `minimum` of them; not copied, not converted.

    >>> rows([[1.0, 2.0]], "x").shape
    (1, 2)
    """
    found = array(values, name)
    if found.ndim < 2:
        raise InputError(f"{name} must have a row per sample, shape (N, n), got shape {found.shape}.")
    if 0 in found.shape:
        raise InputError(f"{name} must hold at least one sample and one number of each, got shape {found.shape}.")
    if len(found) < minimum:
        raise InputError(f"{name} needs at least {minimum} samples, got {len(found)}.")
    if finite:
        _check_finite(found, name)
    return found


def _check_finite(values: np.ndarray, name: str) -> None:
    if values.dtype.kind != "f":
        return
    bad = ~np.isfinite(values.reshape(len(values), -1)).all(1)
    if bad.any():
        raise InputError(
            f"{name} must be finite, got NaN or infinity in {int(bad.sum())} of {len(values)} rows "
            f"(the first is row {int(bad.argmax())}); drop or impute them."
        )


def matrix(values: object, name: str, *, minimum: int = 1) -> np.ndarray:
    """Finite numbers (N, k) in float64: a row per sample, a column per variable."""
    found = rows(values, name, minimum=minimum)
    if found.ndim != 2:
        raise InputError(f"{name} must have shape (N, k), a row per sample, got shape {found.shape}.")
    return found.astype(np.float64)


def matrices(values: object, name: str) -> Float[Tensor, "*batch n d"]:
    """Finite matrices (..., n, d) in float64, each with at least as many rows as columns."""
    found = torch.as_tensor(np.array(array(values, name), dtype=np.float64))
    if found.ndim < 2 or 0 in found.shape:
        raise InputError(f"{name} must have rows and columns, shape (..., n, d), got shape {tuple(found.shape)}.")
    if found.shape[-2] < found.shape[-1]:
        raise InputError(
            f"{name} needs at least as many rows as columns, got {found.shape[-2]} x {found.shape[-1]}; "
            "is it transposed?"
        )
    if not bool(found.isfinite().all()):
        raise InputError(f"{name} must be finite, got NaN or infinity.")
    return found


def tensor(values: object, name: str, *, minimum: int = 1, finite: bool = True) -> Float[Tensor, "N ..."]:
    """Rows as a tensor of float32 or float64: a floating type is kept, other numbers become float32.

    >>> tensor([[1, 2], [3, 4]], "x").dtype
    torch.float32
    """
    if isinstance(values, Tensor) and values.dtype in (torch.float32, torch.float64):
        checked = values.detach()
        rows(checked, name, minimum=minimum, finite=finite)
        return checked
    found = rows(values, name, minimum=minimum, finite=finite)
    kept = np.float64 if found.dtype == np.float64 else np.float32
    device = values.device if isinstance(values, Tensor) else torch.device("cpu")
    return torch.from_numpy(np.array(found, dtype=kept)).to(device)


def posterior(mean: object, variance: object) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
    """Means and variances (N, d) of one shape, variances above zero."""
    centre, spread = tensor(mean, "mean"), tensor(variance, "variance")
    if centre.ndim != 2 or centre.shape != spread.shape:
        raise InputError(
            f"mean and variance must be (N, d), a row per sample, got {tuple(centre.shape)} and {tuple(spread.shape)}."
        )
    if not bool((spread > 0).all()):
        raise InputError("variance must be > 0; pass variances, not log-variances.")
    return centre, spread.to(centre)


def same_rows(arrays: Mapping[str, int]) -> int:
    """One number of samples for arrays given by name and length.

    >>> same_rows({"codes": 10, "factors": 10})
    10
    """
    if len(set(arrays.values())) > 1:
        listed = ", ".join(f"{name} has {count}" for name, count in arrays.items())
        raise InputError(f"every array needs a row per sample: {listed} rows.")
    return next(iter(arrays.values()))
