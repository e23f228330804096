"""Log-likelihoods log p(x|z), summed over observed dimensions, in nats, with all constants."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vaescope.core.errors import InputError
from vaescope.distributions.base import LOG_2PI
from vaescope.settings import LIKELIHOODS as LIKELIHOODS

NOISE_MODELS = ("fixed", "learned", "optimal", "learned-diagonal", "learned-full")
"""How the precision of a Gaussian likelihood is determined: one number, or a covariance of the outputs."""


def gaussian_log_likelihood(squared_error: Tensor, observed_dim: int, precision: Tensor) -> Tensor:
    r"""log N(x; f(z), I/γ²) = -γ²/2 ‖x - f‖² + n/2 log γ² - n/2 log 2π.

    Reizinger et al. 2022, Eq. 11, where n = d.

    Args:
        squared_error: ‖x - f(z)‖², summed over the n observed dimensions.
        observed_dim: n.
        precision: γ², broadcast against `squared_error`.

    >>> gaussian_log_likelihood(torch.tensor(0.0), 2, torch.tensor(2 * torch.pi))
    tensor(0.)
    """
    return -0.5 * precision * squared_error + 0.5 * observed_dim * (torch.log(precision) - LOG_2PI)


def bernoulli_log_likelihood(x: Tensor, logits: Tensor) -> Tensor:
    """log p(x|z) of binary x; values between 0 and 1 are treated as probabilities of a one."""
    return -F.binary_cross_entropy_with_logits(logits, x.expand_as(logits), reduction="none").sum(-1)


def log_likelihood(
    likelihood: str, x: Float[Tensor, "N ..."], mean: Float[Tensor, "N ..."], precision: float | None = None
) -> Float[Tensor, " N"]:
    """log p(x|z) of every row, from the decoder's mean.

    Args:
        likelihood: `gaussian` or `bernoulli`.
        x: observations; in [0, 1] for a Bernoulli likelihood.
        mean: decoded means, with as many numbers per row as x. Bernoulli means are clamped away from 0 and 1.
        precision: γ² of a Gaussian likelihood.

    >>> log_likelihood("bernoulli", torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])).exp()
    tensor([0.2500])
    """
    observed, decoded = x.flatten(1), mean.flatten(1)
    if decoded.shape[1] != observed.shape[1]:
        raise InputError(f"the decoder returns {decoded.shape[1]} numbers per sample, but x has {observed.shape[1]}.")
    if likelihood == "bernoulli":
        floor = max(1e-7, torch.finfo(decoded.dtype).eps)  # float32 decoders return exact zeros and ones
        p = decoded.clamp(floor, 1 - floor)
        return (torch.xlogy(observed, p) + torch.special.xlog1py(1 - observed, -p)).sum(1)
    if likelihood != "gaussian" or precision is None:
        raise InputError(f"expected a gaussian likelihood with its precision, or bernoulli; got {likelihood!r}.")
    squared_error = (observed - decoded).square().sum(1)
    return gaussian_log_likelihood(squared_error, observed.shape[1], torch.as_tensor(precision, dtype=decoded.dtype))


def optimal_precision(squared_error: Tensor, observed_dim: int) -> Tensor:
    """The γ² that maximises the Gaussian likelihood for a given E‖x - f‖² per sample.

    >>> optimal_precision(torch.tensor(0.5), 4)
    tensor(8.)
    """
    return observed_dim / squared_error.clamp_min(torch.finfo(squared_error.dtype).tiny)
