"""A model without its passive latents: the same decoder, a shorter code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.distributions import Normal, Prior
from vaescope.errors import InputError
from vaescope.protocol import LatentModel
from vaescope.regime.model import EFFECT_POINTS, of_model, spread_samples

TOLERANCE = 0.01


@dataclass(frozen=True, eq=False)
class Pruned:
    """A `LatentModel` of the kept latents; the others are held at `filling`, their prior mean."""

    whole: LatentModel
    kept: list[int]
    filling: Float[Tensor, " d"]
    change: float
    """How far decoder outputs moved, as a share of their variance over the data."""

    @property
    def latent_dim(self) -> int:
        return len(self.kept)

    @property
    def precision(self) -> float | None:
        return self.whole.precision

    @property
    def likelihood(self) -> str | None:
        return getattr(self.whole, "likelihood", None)

    @property
    def auxiliary_dim(self) -> int:
        return int(getattr(self.whole, "auxiliary_dim", 0))

    @property
    def prior(self) -> Prior:
        """Of the kept latents; an iVAE has one for every u, see `prior_at`."""
        prior: Prior = self.whole.prior
        if not isinstance(prior, Normal):
            return prior
        return Normal(*(_taken(value, self.kept) for value in (prior.mean, prior.variance)))

    def prior_at(self, u: Any, **options: Any) -> Normal:
        """p(z|u) of the kept latents of an iVAE."""
        prior = self.whole.prior_at(u, **options)  # type: ignore[attr-defined]
        return Normal(*(_taken(value, self.kept) for value in (prior.mean, prior.variance)))

    def encode(self, x: Tensor, *u: Any) -> tuple[Float[Tensor, "N k"], Float[Tensor, "N k"]]:
        mean, variance = self.whole.encode(x, *u)
        return mean[:, self.kept], variance[:, self.kept]

    def decode(self, z: Float[Tensor, "N k"]) -> Tensor:
        if z.ndim != 2 or z.shape[1] != len(self.kept):
            raise InputError(f"z must have a column per kept latent, (N, {len(self.kept)}), got {tuple(z.shape)}.")
        full = self.filling.to(z).repeat(len(z), 1)
        # written as a sum, not an assignment, so that derivatives of every mode pass through it
        place = torch.eye(len(self.filling), dtype=z.dtype, device=z.device)[self.kept]
        free = 1 - place.sum(0)
        return self.whole.decode(full * free + z @ place)


def prune(
    model: LatentModel,
    x: Any,
    *,
    auxiliary: Any = None,
    keep: Sequence[int] | None = None,
    tolerance: float = TOLERANCE,
) -> Pruned:
    """Drop passive latents; the decoder's outputs may move by at most `tolerance` of their variance over x.

    Which latents are passive is judged on x, unless `keep` names those to keep. Mixed latents are kept.
    """
    if keep is None:
        used = sorted(of_model(model, x, auxiliary=auxiliary, decoder=False).used)
        if not used:
            raise InputError("every latent is passive: the model has collapsed, and pruning would leave nothing.")
    else:
        used = _named(keep, model.latent_dim)
    some = spread_samples(model, x, auxiliary, EFFECT_POINTS)
    pruned = Pruned(model, used, some.prior_mean.mean(0), change=0.0)
    change = _change(pruned, some.mean)
    if change > tolerance:
        raise InputError(
            f"dropping latents moves the decoder's outputs by {change:.2g} of their variance, more than the tolerance "
            f"of {tolerance:g}; keep more latents, or raise the tolerance."
        )
    return Pruned(model, used, pruned.filling, change)


def _named(keep: Sequence[int], latents: int) -> list[int]:
    whole = [isinstance(k, Integral) and not isinstance(k, bool | np.bool_) and 0 <= k < latents for k in keep]
    if not len(keep) or not all(whole) or len({int(k) for k in keep}) < len(keep):
        raise InputError(f"keep must name different latents from 0 to {latents - 1}, got {list(keep)}.")
    return sorted(int(k) for k in keep)


@torch.no_grad()
def _change(pruned: Pruned, mean: Float[Tensor, "N d"]) -> float:
    before = pruned.whole.decode(mean).flatten(1)
    after = pruned.decode(mean[:, pruned.kept]).flatten(1)
    scale = (before - before.mean(0)).square().sum(1).mean()
    moved = (after - before).square().sum(1).mean()
    return float(moved / scale) if float(scale) > 0 else float(moved > 0)


def _taken(value: Any, kept: list[int]) -> Any:
    """The kept latents' own numbers, where latents have their own."""
    return value[..., kept] if isinstance(value, Tensor) and value.ndim and value.shape[-1] > 1 else value
