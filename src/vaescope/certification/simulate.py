"""Draws of (z, x) from the prior and the decoder: pairs whose true posterior is known to be that of the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.adapters.networks import call_user_function
from vaescope.certification.coordinates import unbounded_moments
from vaescope.distributions import DiagonalGaussian, Prior
from vaescope.encoded import EncodedSample
from vaescope.errors import InputError
from vaescope.protocol import LatentModel
from vaescope.skipped import Skipped

NUMBERS_AT_ONCE = 2**22  # of decoded x


@dataclass(frozen=True, eq=False)
class Simulation:
    """z drawn from the prior, x drawn from p(x|z), and what the encoder returns for x."""

    z: Float[Tensor, "N d"]
    encoded: EncodedSample
    """The simulated x with the encoder's posteriors, moments in z."""
    prior: Prior
    """p(z), or p(z|auxiliary) with a row per draw."""
    auxiliary: Tensor | np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.z)

    @property
    def u(self) -> Float[Tensor, "N d"]:
        """z in its unbounded coordinate."""
        return self.prior.from_support(self.z)

    @property
    def posterior(self) -> DiagonalGaussian:
        """The encoder's posterior in the unbounded coordinate, in float64."""
        mean, variance = (value.double() for value in (self.encoded.mean, self.encoded.variance))
        return DiagonalGaussian(*unbounded_moments(self.prior, mean, variance))


def simulate(model: LatentModel, real: EncodedSample, count: int, auxiliary: object | None, seed: int) -> Simulation:
    """Draw z ~ p(z), x ~ p(x|z), and encode x.

    Args:
        model: a model with a decoder and a known likelihood, Gaussian outputs with a precision.
        real: encoded samples, from which simulated x take their shape and floating-point type.
        count: number of draws.
        auxiliary: of an iVAE, one row per row of x; rows are drawn from it.
        seed: of all draws.
    """
    generator = randomness.generator(seed, "simulation")
    labels = _draw_rows(auxiliary, count, generator)
    like = real.mean
    with torch.no_grad():
        prior = model.prior_at(labels, like=like.double()) if labels is not None else model.prior
        z = prior.sample(count, model.latent_dim, generator=generator, dtype=torch.float64)
        parts = z.split(_rows_at_once(real))
        x = torch.cat([draw_observations(model, part.to(like), generator) for part in parts])
    if not bool(x.isfinite().all()):
        raise Skipped("the decoder returned NaN or infinity for draws from the prior")
    if x[0].numel() != real.x[0].numel():
        raise InputError(f"the decoder returns {x[0].numel()} numbers per sample, but x has {real.x[0].numel()}.")
    x = x.reshape(len(x), *real.x.shape[1:]).to(real.x)
    return Simulation(z, encode_simulated(model, x, prior, labels), prior, labels)


def encode_simulated(
    model: LatentModel, x: Tensor, prior: Prior, auxiliary: Tensor | np.ndarray | None
) -> EncodedSample:
    """Encode simulated x in chunks, under any prior."""
    step = max(1, NUMBERS_AT_ONCE // max(1, x[0].numel()))
    starts = range(0, len(x), step)
    with torch.no_grad():
        labels = [None if auxiliary is None else auxiliary[s : s + step] for s in starts]
        found = [model.encode(x[s : s + step], part) for s, part in zip(starts, labels, strict=True)]
    mean, variance = (torch.cat([pair[i] for pair in found]) for i in range(2))
    if not bool((mean.isfinite() & variance.isfinite()).all()):
        raise Skipped("the encoder returned NaN or infinity for simulated x")
    moments = [torch.as_tensor(value).to(mean).expand(mean.shape) for value in prior.mean_and_variance()]
    return EncodedSample(model, np.arange(len(x)), x, mean, variance, *moments)


def draw_observations(
    model: LatentModel, z: Float[Tensor, "N d"], generator: torch.Generator
) -> Float[Tensor, "N ..."]:
    """One draw from p(x|z) per row of z.

    >>> from vaescope.adapters import from_callables
    >>> plain = from_callables(encode=lambda x: (x, x), decode=lambda z: 0 * z, latent_dim=2, precision=4.0)
    >>> x = draw_observations(plain, torch.zeros(10_000, 2), torch.Generator().manual_seed(0))
    >>> round(float(x.var()), 2)
    0.25
    """
    if model.log_likelihood is not None or model.sample_observations is not None:
        if model.sample_observations is None:
            raise Skipped("the likelihood is the model's own, and it cannot be sampled; pass sample_observations=")
        drawer = model.sample_observations
        return call_user_function("sample_observations", lambda codes: drawer(codes, generator), z)
    mean = model.decode(z)
    if model.likelihood == "bernoulli":
        return torch.bernoulli(mean.clamp(0, 1), generator=generator)
    if model.likelihood != "gaussian" or model.precision is None:
        raise Skipped(
            "the likelihood is not known; pass precision=, likelihood= or sample_observations= to the adapter"
        )
    noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
    return mean + noise / model.precision**0.5


def _rows_at_once(real: EncodedSample) -> int:
    return max(1, NUMBERS_AT_ONCE // max(1, real.x[0].numel()))


def _draw_rows(auxiliary: object | None, count: int, generator: torch.Generator) -> Tensor | np.ndarray | None:
    """Rows of the auxiliary input, drawn with replacement."""
    if auxiliary is None:
        return None
    assert isinstance(auxiliary, Tensor | np.ndarray)
    rows = torch.randint(len(auxiliary), (count,), generator=generator)
    return auxiliary[rows] if isinstance(auxiliary, Tensor) else auxiliary[rows.numpy()]
