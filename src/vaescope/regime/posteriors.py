"""Posteriors and priors as arrays, in memory or on disk, checked and handed over a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, bfloat16

from vaescope.data.files.numpy_files import open_memmap
from vaescope.errors import InputError

NUMBERS_AT_ONCE = 2**19  # of every array: 4 MB as float64
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, eq=False)
class Posteriors:
    """Mean and variance of q(z_j|x_i) and of p(z_j|u_i), (N, d) each, for some of the samples."""

    mean: Array
    variance: Array
    prior_mean: Array
    prior_variance: Array

    @property
    def ratio(self) -> Array:
        """σ²/σ†²: 1 where x told nothing, near 0 where it told all."""
        return self.variance / self.prior_variance

    @property
    def shift(self) -> Array:
        """(μ - μ†)/σ†: how far x moved the mean, in the prior's standard deviations."""
        return (self.mean - self.prior_mean) / np.sqrt(self.prior_variance)

    @property
    def kl(self) -> Array:
        """KL[q(z_j|x_i) || p(z_j|u_i)] in nats."""
        ratio = self.ratio
        return 0.5 * (ratio - 1 - np.log(ratio) + self.shift**2)

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def latent_dim(self) -> int:
        return int(self.mean.shape[1])


def parts(
    mean: object, variance: object, prior_mean: object = 0.0, prior_variance: object = 1.0
) -> Iterator[Posteriors]:
    """Everything in order, a part at a time: arrays, tensors, or paths of .npy files that stay on disk.

    The prior is a number, one per latent (d,), or one per sample and latent (N, d).
    """
    arrays = _arrays(mean, variance, prior_mean, prior_variance)
    samples, latents = arrays["mean"].shape
    step = max(1, NUMBERS_AT_ONCE // latents)
    for first in range(0, samples, step):
        yield _part(arrays, first, min(step, samples - first), latents)


def some(mean: object, variance: object, prior_mean: object, prior_variance: object, *, most: int) -> Posteriors:
    """All of it in memory, or, of more samples than `most`, that many at random; only they are read."""
    arrays = _arrays(mean, variance, prior_mean, prior_variance)
    samples, latents = arrays["mean"].shape
    if samples > most:
        places = spread_places(samples, most)
        arrays = {name: a[places] if a.ndim == 2 and len(a) == samples else a for name, a in arrays.items()}
    return _part(arrays, 0, len(arrays["mean"]), latents)


def spread_places(samples: int, most: int) -> np.ndarray:
    """At most that many rows, drawn at random (always the same) and in order: data may have a period."""
    if samples <= most:
        return np.arange(samples)
    return np.sort(np.random.default_rng(0).choice(samples, most, replace=False))


def _arrays(mean: object, variance: object, prior_mean: object, prior_variance: object) -> dict[str, np.ndarray]:
    given = {"mean": mean, "variance": variance, "prior_mean": prior_mean, "prior_variance": prior_variance}
    arrays = {name: _opened(value, name) for name, value in given.items()}
    _check_shapes(arrays)
    return arrays


def _opened(value: object, name: str) -> np.ndarray:
    if isinstance(value, Tensor):
        value = (value.detach().float() if value.dtype == bfloat16 else value.detach()).cpu().numpy()
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InputError(f"{name} has masked values; drop those samples.")
    try:
        array = open_memmap(Path(value)) if isinstance(value, str | Path) else np.asanyarray(value)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except (ValueError, RuntimeError):
        raise InputError(f"{name} must be an array of numbers, got rows of different lengths.") from None
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must be an array of numbers, got {type(value).__name__}.")
    return array


def _check_shapes(arrays: dict[str, np.ndarray]) -> None:
    shape = arrays["mean"].shape
    if len(shape) != 2 or 0 in shape:
        raise InputError(f"mean must have a row per sample and a column per latent, (N, d), got shape {shape}.")
    if arrays["variance"].shape != shape:
        raise InputError(
            f"variance must have the shape of mean, {shape}, got {arrays['variance'].shape}; both come from encode."
        )
    for name in ("prior_mean", "prior_variance"):
        if arrays[name].shape not in ((), (shape[1],), (1, shape[1]), shape):
            raise InputError(
                f"{name} must be a number, ({shape[1]},) or {shape}, got shape {arrays[name].shape}; "
                "for an iVAE it is the prior at each sample's own u."
            )


def _part(arrays: dict[str, np.ndarray], first: int, count: int, latents: int) -> Posteriors:
    def rows(name: str) -> Array:
        array = arrays[name]
        own = array[first : first + count] if array.ndim == 2 and len(array) == len(arrays["mean"]) else array
        return np.broadcast_to(np.asarray(own, dtype=np.float64), (count, latents))

    part = Posteriors(rows("mean"), rows("variance"), rows("prior_mean"), rows("prior_variance"))
    for name in ("mean", "variance", "prior_mean", "prior_variance"):
        _check_finite(getattr(part, name), name, first)
    _check_positive(part.variance, "variance", first)
    _check_positive(part.prior_variance, "prior_variance", first)
    return part


def _check_finite(values: Array, name: str, first: int) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        row, latent = np.argwhere(bad)[0]
        raise InputError(
            f"{name} must be finite, got {values[row, latent]} at sample {first + row}, latent {latent} "
            f"({int(bad.any(1).sum())} such samples in this part); drop them or look at the encoder."
        )


def _check_positive(values: Array, name: str, first: int) -> None:
    bad = values <= 0
    if not bad.any():
        return
    row, latent = np.argwhere(bad)[0]
    found = f"{name} must be > 0, got {values[row, latent]:.4g} at sample {first + row}, latent {latent}"
    if (values < 0).any():
        share = (values < 0).mean()
        raise InputError(
            f"{found}; {share:.0%} of the values are negative, so these look like log-variances: pass np.exp of them."
        )
    raise InputError(f"{found}; a variance that underflowed to zero has to be clamped in the encoder.")
