"""Posteriors and priors as arrays, in memory or on disk, checked and read in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from vaescope.analysis.encoding import EncodedSample, spread_rows
from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.data.files.arrays import open_memmap

NUMBERS_AT_ONCE = 2**19  # of each array in a chunk: 4 MB as float64
Array = Float[np.ndarray, "..."]
FIELDS = ("mean", "variance", "prior_mean", "prior_variance")


@dataclass(frozen=True, eq=False)
class Posteriors:
    """Mean and variance of q(z_j|x_i) and of the prior p(z_j|u_i), (N, d) each, in float64."""

    mean: Array
    variance: Array
    prior_mean: Array
    prior_variance: Array

    @property
    def ratio(self) -> Array:
        """σ²/σ†²: 1 if x carries no information about the latent, near 0 if it determines it."""
        return self.variance / self.prior_variance

    @property
    def shift(self) -> Array:
        """(μ - μ†)/σ†: the posterior mean in standard deviations of the prior."""
        return (self.mean - self.prior_mean) / np.sqrt(self.prior_variance)

    @property
    def kl(self) -> Array:
        """KL[q(z_j|x_i) || p(z_j|u_i)] in nats."""
        return normal_kl(self.ratio, self.shift)

    @property
    def information(self) -> Array:
        """Information of x about each latent, in nats: the KL, with variances above the prior's counted as equal."""
        return normal_kl(np.minimum(self.ratio, 1.0), self.shift)

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def latent_dim(self) -> int:
        return int(self.mean.shape[1])


def normal_kl(ratio: Array, shift: Array) -> Array:
    """KL[N(μ, σ²) || N(μ†, σ†²)] from r = σ²/σ†² and (μ - μ†)/σ†, in nats.

    >>> normal_kl(np.array([1.0]), np.array([2.0]))
    array([2.])
    """
    return 0.5 * (ratio - 1 - np.log(ratio) + shift**2)


def read_chunks(
    mean: object, variance: object, prior_mean: object = 0.0, prior_variance: object = 1.0
) -> Iterator[Posteriors]:
    """All posteriors in order, a chunk at a time.

    Args:
        mean: (N, d) array, tensor, or path of an .npy file, which stays on disk.
        variance: the same.
        prior_mean: a number, one per latent (d,), or one per sample and latent (N, d).
        prior_variance: the same.
    """
    arrays = _open_arrays(mean, variance, prior_mean, prior_variance)
    samples, latents = arrays["mean"].shape
    step = max(1, NUMBERS_AT_ONCE // latents)
    for first in range(0, samples, step):
        yield _read_rows(arrays, slice(first, first + step), np.arange(first, min(first + step, samples)))


def read_sample(
    mean: object, variance: object, prior_mean: object, prior_variance: object, *, count: int
) -> Posteriors:
    """At most `count` posteriors from all over the arrays; only these are read."""
    arrays = _open_arrays(mean, variance, prior_mean, prior_variance)
    rows = spread_rows(len(arrays["mean"]), count)
    return _read_rows(arrays, rows, rows)


def posteriors_of(sample: EncodedSample) -> Posteriors:
    """The posteriors of encoded samples, checked."""
    arrays = {name: getattr(sample, name).double().cpu().numpy() for name in FIELDS}
    return _read_rows(arrays, slice(None), sample.rows)


def _open_arrays(*given: object) -> dict[str, np.ndarray]:
    """Arrays by name, of matching shapes; those in files stay on disk."""
    arrays = {}
    for name, value in zip(FIELDS, given, strict=True):
        try:
            opened = open_memmap(Path(value)) if isinstance(value, str | Path) else value
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        arrays[name] = validation.array(opened, name)
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
                "for an iVAE pass the prior of each sample."
            )
    return arrays


def _read_rows(arrays: dict[str, np.ndarray], index: slice | np.ndarray, rows: np.ndarray) -> Posteriors:
    """The posteriors at these rows; `rows` are their numbers for error messages."""
    samples, latents = arrays["mean"].shape
    values = {}
    for name in FIELDS:
        array = arrays[name]
        chosen = array[index] if array.ndim == 2 and len(array) == samples else array
        values[name] = np.broadcast_to(np.asarray(chosen, dtype=np.float64), (len(rows), latents))
        _check(values[name], name, rows)
    return Posteriors(**values)


def _check(values: Array, name: str, rows: np.ndarray) -> None:
    """Values must be finite, and variances positive."""
    bad = ~np.isfinite(values)
    if bad.any():
        row, latent = np.argwhere(bad)[0]
        raise InputError(
            f"{name} must be finite, got {values[row, latent]} at sample {rows[row]}, latent {latent} "
            f"({int(bad.any(1).sum())} such samples in this chunk); drop them or check the encoder."
        )
    if not name.endswith("variance") or (values > 0).all():
        return
    row, latent = np.argwhere(values <= 0)[0]
    found = f"{name} must be > 0, got {values[row, latent]:.4g} at sample {rows[row]}, latent {latent}"
    if (values < 0).any():
        share = (values < 0).mean()
        raise InputError(
            f"{found}; {share:.0%} of the values are negative, so they look like log-variances: pass np.exp of them."
        )
    raise InputError(f"{found}; clamp variances that underflow to zero in the encoder.")
