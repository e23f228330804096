"""The ELBO of every sample, with the same noise for all models."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.adapters.log_likelihood import sample_log_likelihood
from vaescope.adapters.repaired import RepairedModel
from vaescope.encoded import EncodedSample
from vaescope.regime.posteriors import posteriors_of
from vaescope.skipped import Skipped

DRAWS = 64  # of z per sample
CODES_AT_ONCE = 4096


@torch.no_grad()
def elbo_of_samples(sample: EncodedSample, draws: int = DRAWS) -> Float[Tensor, " N"]:
    """log p(x|z) averaged over draws from q(z|x), minus the KL in closed form.

    The draws of a sample are mirrored and, with few latents, whitened: for a linear decoder the result is exact. They
    are independent between samples, so that a standard error over samples includes the error of sampling, and the
    same for all models with as many latents.
    """
    _check(sample)
    log_p, x = sample_log_likelihood(sample), sample.observations
    noise = _noise(len(sample), sample.mean.shape[1], draws)
    total = torch.zeros(len(sample), dtype=torch.float64)
    mean, deviation = sample.mean.double(), sample.variance.double().sqrt()
    step = max(1, CODES_AT_ONCE // draws)
    for rows in torch.arange(len(sample)).split(step):
        z = mean[rows, None] + deviation[rows, None] * noise[rows]
        found = log_p(x[rows].repeat_interleave(draws, 0), z.flatten(0, 1).to(sample.mean.dtype))
        total[rows] = found.double().reshape(len(rows), draws).mean(1)
    if not bool(total.isfinite().all()):
        raise Skipped("the likelihood of these samples is not finite")
    return total - torch.from_numpy(posteriors_of(sample).kl.sum(1)).double()


def _check(sample: EncodedSample) -> None:
    model = sample.model
    if not model.has_decoder:
        raise Skipped("the model has no decoder")
    if isinstance(model, RepairedModel) and model.normal_prior is not None:
        raise Skipped("the ELBO is only computed for normal priors")
    if model.posterior_family != "diagonal":
        raise Skipped("encode returns the marginals of q(z|x), not q itself")
    known = model.likelihood == "bernoulli" or (model.likelihood == "gaussian" and model.precision is not None)
    if not known and model.log_likelihood is None:
        raise Skipped("the likelihood is not known; pass precision=, likelihood= or log_likelihood= to the adapter")
    if model.log_likelihood is None and sample.decoded.shape != sample.observations.shape:
        raise Skipped(f"the decoder returns {sample.decoded.shape[1]} numbers, x has {sample.observations.shape[1]}")


def _noise(samples: int, dim: int, draws: int) -> Float[Tensor, "N S d"]:
    half = torch.randn(samples, draws // 2, dim, generator=randomness.generator(0, "compare"), dtype=torch.float64)
    noise = torch.cat([half, -half], dim=1)
    if 4 * dim > draws:
        return noise
    scale = torch.linalg.cholesky(noise.mT @ noise / draws)
    return torch.linalg.solve_triangular(scale, noise.mT, upper=False).mT
