"""The regime of a model: encoded a part at a time, with what its decoder makes of every latent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope import randomness
from vaescope.data.dataset import flatten_samples
from vaescope.distributions import Normal, Prior
from vaescope.errors import InputError
from vaescope.models import Member
from vaescope.protocol import LatentModel
from vaescope.regime.classify import Regime, judge
from vaescope.regime.posteriors import NUMBERS_AT_ONCE, Posteriors, some, spread_places
from vaescope.regime.statistics import Tally, Thresholds
from vaescope.theory.derivatives import column_norms

JACOBIAN_POINTS = 128  # samples at which column norms are taken
EFFECT_POINTS = 500  # samples that are decoded with one latent drawn
ROWS_AT_ONCE = 4096  # a network's activations are wider than its inputs


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
        return some(self.mean, self.variance, self.prior_mean, self.prior_variance, most=len(self.mean))


def of_model(
    model: LatentModel, x: Any, *, auxiliary: Any = None, thresholds: Thresholds | None = None, decoder: bool = True
) -> Regime:
    """Judge every latent of a model on these samples; x may be larger than memory (a memory-mapped array).

    An iVAE needs its `auxiliary` u. With a decoder, the column norms of its Jacobian and the effect of
    every latent on the reconstruction are measured at samples from all over x.
    """
    x, auxiliary = as_array(x), as_array(auxiliary)
    tally = Tally(thresholds or Thresholds())
    for part in encoded_parts(model, x, auxiliary):
        tally.add(part.posteriors())
    regime = judge(tally)
    if not decoder:
        return regime
    return replace(regime, column_norm=column_norm(model, x, auxiliary), effect=effect(model, x, auxiliary))


def encode(model: LatentModel, x: Any, u: Any = None, *, places: Sequence[int] | np.ndarray | None = None) -> Encoded:
    """Samples with their posteriors, and each with its prior; `places` are theirs in all of x, for what is told."""
    rows = _tensor(x, model)
    finite = rows.flatten(1).isfinite().all(1)
    if not bool(finite.all()):
        raise InputError(f"x must be finite, got NaN or infinity at sample {_place(~finite, places)}.")
    if u is not None and not hasattr(model, "prior_at"):
        raise InputError("this model takes no auxiliary u; leave u out.")
    with torch.no_grad():
        mean, variance = model.encode(rows) if u is None else model.encode(rows, u)  # type: ignore[call-arg]
        prior = prior_of(model, u, like=mean)
    bad = ~(mean.isfinite() & variance.isfinite()).all(1)
    if bool(bad.any()):
        place = _place(bad, places)
        raise InputError(f"the encoder gives NaN or infinity at sample {place}; check its scale and the weights.")
    try:
        values = [torch.as_tensor(v).to(mean).expand(mean.shape) for v in (prior.mean, prior.variance)]
    except RuntimeError:
        shape = tuple(torch.as_tensor(prior.variance).shape)
        raise InputError(f"the prior is for latents of shape {shape}, the model has {mean.shape[1]}.") from None
    return Encoded(rows, u, mean, variance, *values)


def prior_of(model: LatentModel, u: Any, *, like: Tensor) -> Normal:
    """p(z|u) of an iVAE, or the prior of a VAE."""
    prior: Prior = model.prior if u is None else model.prior_at(u, like=like)  # type: ignore[attr-defined]
    if not isinstance(prior, Normal):
        raise InputError(f"the polarised regime is about Gaussian priors, got {type(prior).__name__}.")
    return prior


def encoded_parts(model: LatentModel, x: Any, u: Any = None) -> Iterator[Encoded]:
    """All samples in order, a part at a time."""
    check_rows(x, u)
    numbers = max(int(np.prod(x.shape[1:])), model.latent_dim)
    step = min(ROWS_AT_ONCE, max(1, NUMBERS_AT_ONCE // numbers))
    for first in range(0, len(x), step):
        own = None if u is None else u[first : first + step]
        yield encode(model, x[first : first + step], own, places=range(first, first + step))


def spread_samples(model: LatentModel, x: Any, u: Any, count: int) -> Encoded:
    """At most that many samples from all over x."""
    x, u = as_array(x), as_array(u)
    check_rows(x, u)
    places = spread_places(len(x), count)
    return encode(model, x[places], None if u is None else u[places], places=places)


def _place(bad: Bool[Tensor, " N"], places: Sequence[int] | np.ndarray | None) -> int:
    first = int(bad.int().argmax())
    return first if places is None else int(places[first])


def check_rows(x: Any, u: Any) -> None:
    if len(getattr(x, "shape", ())) < 2:
        raise InputError(f"x must be an array with a row per sample, got {type(x).__name__}.")
    if len(x) == 0 or 0 in x.shape:
        raise InputError(f"x must hold at least one sample and one number of each, got shape {tuple(x.shape)}.")
    if u is not None and len(u) != len(x):
        raise InputError(f"u needs a row per sample, got {len(u)} rows for {len(x)} samples.")


def squared_error(x: Tensor, output: Tensor) -> Float[Tensor, " N"]:
    """‖x - f(z)‖² of every sample."""
    return (x - output.reshape(x.shape)).flatten(1).square().sum(1)


def as_array(value: Any) -> Any:
    """Arrays and tensors as they are, on disk or not; lists, and tables that know how, as arrays."""
    if value is None or isinstance(value, Tensor):
        return value
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
    except (TypeError, ValueError):
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "fiub":
        hint = "; collect its batches into one array first" if hasattr(value, "__iter__") else ""
        raise InputError(f"expected an array of numbers, got {type(value).__name__}{hint}.")
    return array


def _tensor(x: Any, model: LatentModel) -> Tensor:
    """Samples as the model takes them: its own dtype where it has one; images as rows where it was trained on rows."""
    own = isinstance(getattr(model, "whole", model), Member)
    if own and x.ndim > 2:
        x = flatten_samples(x, "x")[1]
    if not isinstance(x, Tensor):
        array = np.asarray(x)
        x = torch.from_numpy(np.array(array, dtype=np.float64 if array.dtype == np.float64 else np.float32))
    x = x.detach() if x.is_floating_point() else x.detach().float()
    if isinstance(model, torch.nn.Module):
        x = x.to(next((p.dtype for p in model.parameters()), x.dtype))
    return x


def column_norm(model: LatentModel, x: Any, u: Any = None) -> np.ndarray:
    """(d,) Lengths of the columns of the decoder's Jacobian, root mean square over samples."""
    seen = spread_samples(model, x, u, JACOBIAN_POINTS)
    norms = column_norms(model.decode, seen.mean).detach()
    return norms.double().square().mean(0).sqrt().cpu().numpy()


@torch.no_grad()
def effect(model: LatentModel, x: Any, u: Any = None) -> np.ndarray:
    """The squared error added by drawing a latent from its prior, as a share of the variance of x; NaN without any.

    A draw, not the prior's mean: the mean of a passive latent is there already, whatever the decoder makes of it.
    """
    seen = spread_samples(model, x, u, EFFECT_POINTS)
    flat = seen.x.flatten(1)
    scale = (flat - flat.mean(0)).square().sum(1).mean()
    noise = torch.randn(seen.mean.shape, generator=randomness.generator(0, "effect"), dtype=seen.mean.dtype)
    drawn = seen.prior_mean + seen.prior_variance.sqrt() * noise.to(seen.mean.device)
    before = squared_error(seen.x, model.decode(seen.mean))
    effects = []
    for k in range(seen.mean.shape[1]):
        moved = seen.mean.clone()
        moved[:, k] = drawn[:, k]
        added = (squared_error(seen.x, model.decode(moved)) - before).mean()
        effects.append(added / scale if float(scale) > 0 else torch.full_like(added, torch.nan))
    return torch.stack(effects).double().cpu().numpy()
