"""The regime of a model: all samples encoded in chunks, and the effect of each latent on what is decoded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.encoded import EncodedSample, differentiate, encode_chunks, encode_sample
from vaescope.protocol import LatentModel
from vaescope.regime.classify import Regime, judge
from vaescope.regime.posteriors import Array, posteriors_of
from vaescope.regime.statistics import PosteriorStatistics, Thresholds

EFFECT_SAMPLES = 500  # that are decoded with one latent drawn from its prior


def of_model(
    model: LatentModel,
    x: object,
    *,
    auxiliary: object | None = None,
    thresholds: Thresholds | None = None,
    decoder: bool = True,
) -> Regime:
    """Judge each latent of a model on these samples.

    Args:
        model: a member of a fit, a model from `vs.adapters`, or your own `LatentModel`.
        x: samples; may be larger than memory (a memory-mapped array).
        auxiliary: the auxiliary input of an iVAE, a label or a row of numbers per sample.
        thresholds: what counts as passive and as active.
        decoder: also measure the column norms of the decoder's Jacobian and the effect of each latent on the
            reconstruction, at a random sample from all over x.
    """
    sample = encode_sample(model, x, auxiliary, EFFECT_SAMPLES) if decoder else None
    regime = regime_of(encode_chunks(model, x, auxiliary, first=sample), thresholds)
    if sample is None:
        return regime
    column_norm = differentiate(sample, []).column_norm.cpu().numpy()
    return replace(regime, column_norm=column_norm, effect=effect(sample))


def regime_of(chunks: Iterable[EncodedSample], thresholds: Thresholds | None = None) -> Regime:
    """Judge each latent from encoded samples."""
    return judge(PosteriorStatistics.of((posteriors_of(chunk) for chunk in chunks), thresholds))


def squared_error(x: Tensor, output: Tensor) -> Float[Tensor, " N"]:
    """‖x - f(z)‖² of each sample."""
    return (x - output.reshape(x.shape)).flatten(1).square().sum(1)


@torch.no_grad()
def effect(sample: EncodedSample) -> Array:
    """(d,) squared error added by drawing a latent from its prior, over the variance of x; NaN if x is constant.

    A draw rather than the prior's mean: the posterior mean of a passive latent is at the prior's mean already, whether
    or not the decoder depends on the latent.
    """
    flat = sample.x.flatten(1)
    scale = (flat - flat.mean(0)).square().sum(1).mean()
    noise = torch.randn(sample.mean.shape, generator=randomness.generator(0, "effect"), dtype=sample.mean.dtype)
    drawn = sample.prior_mean + sample.prior_variance.sqrt() * noise.to(sample.mean.device)
    before = squared_error(sample.x, sample.decoded)
    effects = []
    for k in range(sample.mean.shape[1]):
        changed = sample.mean.clone()
        changed[:, k] = drawn[:, k]
        added = (squared_error(sample.x, sample.decode(changed)) - before).mean()
        effects.append(added / scale if float(scale) > 0 else torch.full_like(added, torch.nan))
    return torch.stack(effects).double().cpu().numpy()
