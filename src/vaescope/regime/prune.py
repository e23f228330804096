"""A model without its passive latents: the same decoder with a shorter code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.distributions import Normal, Prior
from vaescope.encoded import encode_chunks, encode_sample
from vaescope.errors import InputError
from vaescope.protocol import LatentModel, LogLikelihood, WrappedModel, check_model
from vaescope.regime.model import EFFECT_SAMPLES, regime_of

TOLERANCE = 0.01


@dataclass(frozen=True, eq=False)
class Pruned(WrappedModel):
    """A `LatentModel` of the kept latents; the others are held at `filling`, their prior mean."""

    model: LatentModel
    kept: list[int]
    filling: Float[Tensor, " d"]
    change: float = 0.0
    """Mean squared change of decoder outputs, as a share of their variance over the data."""

    @property
    def latent_dim(self) -> int:
        return len(self.kept)

    @property
    def prior(self) -> Prior:
        """The prior of the kept latents."""
        return self._kept_prior(self.model.prior)

    def prior_at(self, auxiliary: object | None = None, *, like: Tensor | None = None) -> Prior:
        """p(z | auxiliary) of the kept latents."""
        return self._kept_prior(self.model.prior_at(auxiliary, like=like))

    def _kept_prior(self, prior: Prior) -> Prior:
        if not isinstance(prior, Normal):
            return prior
        return Normal(*(_select(value, self.kept) for value in (prior.mean, prior.variance)))

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Float[Tensor, "N k"], Float[Tensor, "N k"]]:
        mean, variance = super().encode(x, auxiliary)
        return mean[:, self.kept], variance[:, self.kept]

    def decode(self, z: Float[Tensor, "N k"]) -> Tensor:
        return self.model.decode(self._full_code(z))

    @property
    def log_likelihood(self) -> LogLikelihood | None:
        given = self.model.log_likelihood
        return None if given is None else lambda x, z: given(x, self._full_code(z))

    def _full_code(self, z: Float[Tensor, "N k"]) -> Float[Tensor, "N d"]:
        if z.ndim != 2 or z.shape[1] != len(self.kept):
            raise InputError(f"z must have a column per kept latent, (N, {len(self.kept)}), got {tuple(z.shape)}.")
        full = self.filling.to(z).repeat(len(z), 1)
        # a sum instead of an assignment, since every mode of differentiation supports it
        embedding = torch.eye(len(self.filling), dtype=z.dtype, device=z.device)[self.kept]
        dropped = 1 - embedding.sum(0)
        return full * dropped + z @ embedding


def prune(
    model: LatentModel,
    x: object,
    *,
    auxiliary: object | None = None,
    keep: Sequence[int] | None = None,
    tolerance: float = TOLERANCE,
) -> Pruned:
    """Drop passive latents and check that the decoder's outputs stay the same.

    Args:
        model: a member of a fit, a model from `vs.adapters`, or your own `LatentModel`.
        x: samples.
        auxiliary: the auxiliary input of an iVAE, a label or a row of numbers per sample.
        keep: latents to keep; by default those that are not passive on x.
        tolerance: largest mean squared change of the outputs, as a share of their variance over x.
    """
    check_model(model)
    sample = encode_sample(model, x, auxiliary, EFFECT_SAMPLES)
    if keep is None:
        kept = sorted(regime_of(encode_chunks(model, x, auxiliary, first=sample)).used)
        if not kept:
            raise InputError("every latent is passive: the model has collapsed, and nothing would be left of it.")
    else:
        kept = _check_kept(keep, model.latent_dim)
    pruned = Pruned(model, kept, sample.prior_mean.mean(0))
    change = _change(pruned, sample.decoded, sample.mean)
    if change > tolerance:
        raise InputError(
            f"dropping latents changes the decoder's outputs by {change:.2g} of their variance, more than the "
            f"tolerance of {tolerance:g}; keep more latents, or raise the tolerance."
        )
    return replace(pruned, change=change)


def _check_kept(keep: Sequence[int], latents: int) -> list[int]:
    valid = [isinstance(k, Integral) and not isinstance(k, bool | np.bool_) and 0 <= k < latents for k in keep]
    if not len(keep) or not all(valid) or len({int(k) for k in keep}) < len(keep):
        raise InputError(f"keep must name different latents from 0 to {latents - 1}, got {list(keep)}.")
    return sorted(int(k) for k in keep)


@torch.no_grad()
def _change(pruned: Pruned, before: Float[Tensor, "N n"], mean: Float[Tensor, "N d"]) -> float:
    after = pruned.decode(mean[:, pruned.kept]).flatten(1)
    scale = (before - before.mean(0)).square().sum(1).mean()
    change = (after - before).square().sum(1).mean()
    return float(change / scale) if float(scale) > 0 else float(change > 0)


def _select(value: float | Tensor, kept: list[int]) -> float | Tensor:
    """The parameters of the kept latents, if latents have different ones."""
    return value[..., kept] if isinstance(value, Tensor) and value.ndim and value.shape[-1] > 1 else value
