"""The regime of a model: encoded a part at a time, with what its decoder makes of every latent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.distributions import Normal, Prior
from vaescope.errors import InputError
from vaescope.protocol import LatentModel
from vaescope.regime.classify import Regime, judge
from vaescope.regime.posteriors import NUMBERS_AT_ONCE, Posteriors, parts
from vaescope.regime.tally import Tally, Thresholds
from vaescope.theory.derivatives import column_norms

JACOBIAN_POINTS = 256  # samples at which column norms are taken
EFFECT_POINTS = 1000  # samples that are decoded with one latent held


@dataclass(frozen=True, eq=False)
class Encoded:
    """Some samples with their posteriors and priors, (N, d) each."""

    x: Tensor
    u: Any
    mean: Float[Tensor, "N d"]
    variance: Float[Tensor, "N d"]
    prior_mean: Float[Tensor, "N d"]
    prior_variance: Float[Tensor, "N d"]

    @property
    def prior(self) -> Normal:
        return Normal(self.prior_mean, self.prior_variance)

    def posteriors(self) -> Posteriors:
        (part,) = parts(self.mean, self.variance, self.prior_mean, self.prior_variance)
        return part


def of_model(
    model: LatentModel, x: Any, *, auxiliary: Any = None, thresholds: Thresholds | None = None, decoder: bool = True
) -> Regime:
    """Judge every latent of a model on these samples; x may be larger than memory (a memory-mapped array).

    An iVAE needs its `auxiliary` u. With a decoder, the column norms of its Jacobian and the effect of
    every latent on the reconstruction are measured at samples spread over x.
    """
    tally = Tally(thresholds or Thresholds())
    for part in encoded_parts(model, x, auxiliary):
        tally.add(part.posteriors())
    regime = judge(tally)
    if not decoder:
        return regime
    return replace(regime, column_norm=_column_norm(model, x, auxiliary), effect=_effect(model, x, auxiliary))


def encode(model: LatentModel, x: Any, u: Any = None) -> Encoded:
    """Samples with their posteriors, and each with its prior."""
    rows = _tensor(x)
    with torch.no_grad():
        mean, variance = model.encode(rows) if u is None else model.encode(rows, u)  # type: ignore[call-arg]
        prior = prior_of(model, u, like=mean)
    ones = torch.ones_like(mean)
    return Encoded(rows, u, mean, variance, prior.mean * ones, prior.variance * ones)


def prior_of(model: LatentModel, u: Any, *, like: Tensor) -> Normal:
    """p(z|u) of an iVAE, or the prior of a VAE."""
    prior: Prior = model.prior if u is None else model.prior_at(u, like=like)  # type: ignore[attr-defined]
    if not isinstance(prior, Normal):
        raise InputError(f"the polarised regime is about Gaussian priors, got {type(prior).__name__}.")
    return prior


def encoded_parts(model: LatentModel, x: Any, u: Any = None) -> Iterator[Encoded]:
    """All samples in order, a part at a time."""
    check_rows(x, u)
    step = max(1, NUMBERS_AT_ONCE // max(1, int(np.prod(x.shape[1:]))))
    for first in range(0, len(x), step):
        yield encode(model, x[first : first + step], None if u is None else u[first : first + step])


def spread_samples(model: LatentModel, x: Any, u: Any, count: int) -> Encoded:
    """At most that many samples, evenly spread over x."""
    check_rows(x, u)
    places = np.unique(np.linspace(0, len(x) - 1, min(count, len(x))).round().astype(int))
    return encode(model, x[places], None if u is None else u[places])


def check_rows(x: Any, u: Any) -> None:
    if len(getattr(x, "shape", ())) < 2:
        raise InputError(f"x must be an array with a row per sample, got {type(x).__name__}.")
    if len(x) == 0:
        raise InputError("x must hold at least one sample, got none.")
    if u is not None and not hasattr(u, "shape"):
        raise InputError(f"u must be an array with a row per sample, got {type(u).__name__}.")
    if u is not None and len(u) != len(x):
        raise InputError(f"u needs a row per sample, got {len(u)} rows for {len(x)} samples.")


def squared_error(x: Tensor, output: Tensor) -> Float[Tensor, " N"]:
    """‖x - f(z)‖² of every sample."""
    return (x - output.reshape(x.shape)).flatten(1).square().sum(1)


def _tensor(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach()
    array = np.asarray(x)
    return torch.from_numpy(np.array(array, dtype=np.float64 if array.dtype == np.float64 else np.float32))


def _column_norm(model: LatentModel, x: Any, u: Any) -> np.ndarray:
    some = spread_samples(model, x, u, JACOBIAN_POINTS)
    norms = column_norms(model.decode, some.mean)
    return norms.double().square().mean(0).sqrt().cpu().numpy()


@torch.no_grad()
def _effect(model: LatentModel, x: Any, u: Any) -> np.ndarray:
    """The squared error that holding a latent at its prior mean adds, as a share of the variance of x."""
    some = spread_samples(model, x, u, EFFECT_POINTS)
    flat = some.x.flatten(1)
    scale = (flat - flat.mean(0)).square().sum(1).mean().clamp(min=torch.finfo(flat.dtype).tiny)
    before = squared_error(some.x, model.decode(some.mean))
    effects = []
    for k in range(some.mean.shape[1]):
        held = some.mean.clone()
        held[:, k] = some.prior_mean[:, k]
        effects.append((squared_error(some.x, model.decode(held)) - before).mean() / scale)
    return torch.stack(effects).double().cpu().numpy()
