"""Checks of arrays and tensors that users pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core.checks import choice as choice
from vaescope.core.checks import integer as integer
from vaescope.core.checks import number as number
from vaescope.core.checks import shown as shown
from vaescope.core.containers import unwrap
from vaescope.core.errors import InputError

ImageShape = tuple[int, int, int]
"""(channels, height, width)."""

NUMERIC_KINDS = "fiub"  # NumPy dtype kinds of real numbers
CHECKED_AT_ONCE = 2**24  # numbers per finiteness check, so that arrays on disk need little memory


def precision(value: object) -> float:
    """Check γ² = 1 / decoder variance: one number > 0.

    >>> precision(100)
    100.0
    """
    if isinstance(value, Tensor | np.ndarray) and math.prod(value.shape) == 1:
        value = value.item()
    return number("precision", value, above=0.0, hint="it is 1 / decoder variance")


def precisions(value: object, points: int) -> Tensor:
    """Check γ² of each of several points, given as one number or as one for each: float64.

    >>> precisions(100, 2)
    tensor([100., 100.], dtype=torch.float64)
    """
    if isinstance(value, Real):
        return torch.full((points,), precision(value), dtype=torch.float64)
    found = array(value, "precision")
    if found.dtype == bool:
        raise InputError("precision must be numbers > 0, got booleans; it is 1 / decoder variance.")
    if found.size == 1:
        return torch.full((points,), precision(found.item()), dtype=torch.float64)
    given = torch.from_numpy(np.array(found, dtype=np.float64))
    if given.shape != (points,):
        raise InputError(
            f"precision must be one number, or one for each of the {points} points, got shape {tuple(given.shape)}."
        )
    valid = given.isfinite() & (given > 0)
    if not bool(valid.all()):
        raise InputError(f"precision must be > 0, got {float(given[~valid][0]):g}; it is 1 / decoder variance.")
    return given


def image_shape(value: object, name: str = "image_shape") -> ImageShape:
    """Check (channels, height, width).

    >>> image_shape([1, 64, 64])
    (1, 64, 64)
    """
    sides = list(value) if isinstance(value, tuple | list) else []
    if len(sides) != 3 or not all(isinstance(side, Integral) and int(side) > 0 for side in sides):
        raise InputError(f"{name} must be (channels, height, width), got {shown(value)}.")
    return int(sides[0]), int(sides[1]), int(sides[2])


# arrays ---------------------------------------------------------------------------------------


def array(values: object, name: str) -> np.ndarray:
    """Read an array of real numbers without changing its dtype; arrays on disk stay on disk.

    bfloat16 and other floating-point tensors that NumPy does not have become float32.

    >>> array([[1, 2], [3, 4]], "x").shape
    (2, 2)
    """
    if type(values) is not np.ndarray:
        values = values if isinstance(values, Tensor) and values.layout == torch.strided else unwrap(values, name)
    if isinstance(values, list | tuple) and values and all(isinstance(v, Tensor) for v in values):
        try:
            values = torch.stack(list(values))
        except RuntimeError:
            raise InputError(f"{name} must be an array of numbers, got tensors of different shapes.") from None
    if isinstance(values, Tensor):
        if values.is_complex():
            raise InputError(f"{name} must be real, got complex numbers.")
        try:
            real = values.detach().cpu().resolve_neg()
            return (real.float() if real.is_floating_point() and real.itemsize < 4 else real).numpy()
        except (RuntimeError, TypeError):  # quantised numbers; the device meta, which stores none
            kind = f"{str(values.dtype).removeprefix('torch.')} on device {values.device}"
            raise InputError(f"{name} must be a tensor of plain numbers, got {kind}; convert it to float32.") from None
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InputError(f"{name} has masked values; drop or impute those samples.")
    found = _from_any(values, name)
    if found.dtype == object:
        found = _from_objects(found, values, name)
    if found.dtype.kind not in NUMERIC_KINDS:
        raise InputError(f"{name} must be an array of numbers, got {_describe(values, found)}.")
    return found


def _from_any(values: object, name: str) -> np.ndarray:
    if isinstance(values, np.ndarray) and type(values) in (np.ndarray, np.memmap):
        return values
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        given = "rows of different lengths" if isinstance(values, list | tuple) else type(values).__name__
        raise InputError(f"{name} must be an array of numbers, got {given}.") from None


def _from_objects(found: np.ndarray, given: object, name: str) -> np.ndarray:
    """Convert numbers stored as Python objects, as in a data frame with columns of different types."""
    try:
        if found.ndim == 0 or any(isinstance(value, str | bytes) for value in found.flat):
            raise TypeError("not numbers")  # NumPy would convert text that looks like a number
        return found.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be an array of numbers, got {_describe(given, found)}.") from None


def _describe(given: object, found: np.ndarray) -> str:
    """What was given instead of numbers, and what to do."""
    if found.dtype.kind in "US":
        return "text; encode categories as integers"
    if found.dtype.kind != "O":
        return str(found.dtype)
    if found.ndim or not isinstance(given, Iterable):
        return f"{'objects' if found.ndim else type(given).__name__}; encode categories as integers"
    if isinstance(given, Mapping):
        return f"a {type(given).__name__}; pass one of its arrays"
    return f"a {type(given).__name__}; collect its batches into one array first"


def rows(values: object, name: str, *, minimum: int = 1, finite: bool = True) -> np.ndarray:
    """Read an array with one row per sample, shape (N, ...); no copy and no conversion.

    Args:
        minimum: smallest number of samples.
        finite: whether to reject NaN and infinity.

    >>> rows([[1.0, 2.0]], "x").shape
    (1, 2)
    """
    found = array(values, name)
    check_layout(found.shape, found.dtype, name)
    repeated = any(stride == 0 and side > 1 for stride, side in zip(found.strides, found.shape, strict=True))
    if repeated and found.nbytes > 2**33:
        raise InputError(f"{name} repeats a few numbers to {found.nbytes / 1e9:.0f} GB; pass the samples themselves.")
    if len(found) < minimum:
        raise InputError(f"{name} needs at least {minimum} samples, got {len(found)}.")
    if finite:
        check_finite(found, name)
    return found


def check_layout(shape: tuple[int, ...], dtype: np.dtype, name: str) -> None:
    """Check that an array, which need not be in memory, has real numbers and a row per sample."""
    if dtype.kind not in NUMERIC_KINDS:
        raise InputError(f"{name} must be an array of numbers, got {dtype}.")
    if len(shape) < 2:
        raise InputError(f"{name} must have a row per sample, shape (N, n), got shape {shape}.")
    if 0 in shape:
        raise InputError(f"{name} must have at least one row and one column, got shape {shape}.")


def check_finite(values: np.ndarray, name: str) -> None:
    """Reject rows with NaN or infinity, reading a part at a time."""
    if values.dtype.kind != "f":
        return
    step = max(1, CHECKED_AT_ONCE // max(1, math.prod(values.shape[1:])))
    bad: list[int] = []
    for start in range(0, len(values), step):
        finite = np.isfinite(values[start : start + step])
        if not finite.all():
            bad += (start + np.flatnonzero(~finite.reshape(len(finite), -1).all(1))).tolist()
    if bad:
        raise InputError(
            f"{name} must be finite, got NaN or infinity in {len(bad)} of {len(values)} rows (the first is row "
            f"{bad[0]}); drop or impute them."
        )


def matrix(values: object, name: str, *, minimum: int = 1) -> np.ndarray:
    """Read finite numbers (N, k) as float64: a row per sample, a column per variable.

    >>> matrix([[1, 2]], "codes").dtype
    dtype('float64')
    """
    found = rows(values, name, minimum=minimum)
    if found.ndim != 2:
        raise InputError(f"{name} must have a row per sample, shape (N, k), got shape {found.shape}.")
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
    """Read rows as a tensor: float64 stays float64, other numbers become float32.

    A float32 or float64 tensor is not copied, and tensors keep their device.

    >>> tensor([[1, 2], [3, 4]], "x").dtype
    torch.float32
    """
    found = rows(values, name, minimum=minimum, finite=finite)
    if isinstance(values, Tensor) and values.dtype in (torch.float32, torch.float64):
        return values.detach()
    double = found.dtype.kind == "f" and found.dtype.itemsize >= 8
    device = values.device if isinstance(values, Tensor) else torch.device("cpu")
    return torch.from_numpy(np.array(found, dtype=np.float64 if double else np.float32)).to(device)


def labels(values: object, name: str) -> np.ndarray:
    """Read factors (N, k), or labels (N,), as float64; text becomes the number of its category.

    >>> labels(["cat", "dog", "cat"], "factors").tolist()
    [[0.0], [1.0], [0.0]]
    """
    found = np.asarray(values) if not isinstance(values, Tensor) else None
    strings = found is not None and found.dtype == object and all(isinstance(value, str) for value in found.flat)
    if found is not None and found.ndim == 1 and len(found) and (found.dtype.kind in "US" or strings):
        found = np.unique(found.astype(str), return_inverse=True)[1]
    else:
        found = array(values, name)
    if found.ndim == 0:
        raise InputError(f"{name} must have a label or a row of numbers per sample, got a single number.")
    return matrix(found[:, None] if found.ndim == 1 else found, name)


def device(name: str) -> torch.device:
    """Check that a device exists on this machine.

    >>> device("cpu")
    device(type='cpu')
    """
    try:
        found = torch.device(name)
        torch.zeros(1, device=found).item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError):
        raise InputError(f"device {name!r} is not available here; use cpu.") from None
    return found


def posterior(mean: object, variance: object) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
    """Read means and variances (N, d) of posteriors; variances must be > 0.

    >>> [part.shape for part in posterior([[0.0, 0.0]], [[1.0, 0.5]])]
    [torch.Size([1, 2]), torch.Size([1, 2])]
    """
    centre, spread = tensor(mean, "mean"), tensor(variance, "variance")
    if centre.ndim != 2 or centre.shape != spread.shape:
        raise InputError(
            f"mean and variance must have the same shape (N, d), got {tuple(centre.shape)} and {tuple(spread.shape)}."
        )
    if not bool((spread > 0).all()):
        raise InputError("variance must be > 0; pass variances, not log-variances.")
    return centre, spread.to(centre)


def latent_mask(values: object, latents: int, name: str = "active") -> np.ndarray:
    """Read one True or False per latent.

    >>> latent_mask([True, False], 2)
    array([ True, False])
    """
    found = array(values, name)
    if found.shape != (latents,) or found.dtype != bool:
        raise InputError(f"{name} must hold True or False for each of {latents} latents, got {shown(values)}.")
    return found


def same_rows(arrays: Mapping[str, int]) -> int:
    """The common number of samples of several arrays.

    Args:
        arrays: number of rows by name.

    >>> same_rows({"codes": 10, "factors": 10})
    10
    """
    if len(set(arrays.values())) > 1:
        listed = ", ".join(f"{name} has {count}" for name, count in arrays.items())
        raise InputError(f"arrays must have the same number of rows, one per sample: {listed}.")
    return next(iter(arrays.values()))
