"""Likelihoods p(x|z) of a decoder's output, summed over observed dimensions, in nats, with constants."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vaescope.errors import InputError

LIKELIHOODS = ("gaussian", "bernoulli")
LOG_2PI = math.log(2 * math.pi)
SMALLEST_PROBABILITY = 1e-7  # of a Bernoulli output, since float32 decoders return exact zeros and ones
NOISES = ("fixed", "learned", "optimal")


def gaussian(squared_error: Tensor, observed_dim: int, precision: Tensor) -> Tensor:
    r"""log N(x; f(z), I/γ²) = -γ²/2 ‖x - f‖² + n/2 log γ² - n/2 log 2π, from ‖x - f‖².

    Reizinger et al. 2022, Eq. 11, which writes d log γ because there n = d.

    >>> gaussian(torch.tensor(0.0), 2, torch.tensor(2 * math.pi))
    tensor(0.)
    """
    return -0.5 * precision * squared_error + 0.5 * observed_dim * (torch.log(precision) - LOG_2PI)


def bernoulli(x: Tensor, logits: Tensor) -> Tensor:
    """log p(x|z) of binary x (values in [0, 1] are taken as expected bits)."""
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
    if likelihood == "bernoulli":
        floor = max(SMALLEST_PROBABILITY, torch.finfo(decoded.dtype).eps)
        p = decoded.clamp(floor, 1 - floor)
        return (torch.xlogy(observed, p) + torch.special.xlog1py(1 - observed, -p)).sum(1)
    if likelihood != "gaussian" or precision is None:
        raise InputError(f"expected a gaussian likelihood with its precision, or bernoulli; got {likelihood!r}.")
    squared_error = (observed - decoded).square().sum(1)
    return gaussian(squared_error, observed.shape[1], torch.as_tensor(precision, dtype=decoded.dtype))


def optimal_precision(squared_error: Tensor, observed_dim: int) -> Tensor:
    """The γ² that maximises the Gaussian likelihood, given E‖x - f‖² per sample.

    >>> optimal_precision(torch.tensor(0.5), 4)
    tensor(8.)
    """
    return observed_dim / squared_error.clamp_min(torch.finfo(squared_error.dtype).tiny)


def check_precision(precision: object) -> Tensor:
    """γ² as a float64 tensor, or an error that says what γ² is."""
    try:
        value = torch.as_tensor(precision, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"precision must be a number > 0, got {precision!r}.") from None
    if not bool(((value > 0) & value.isfinite()).all()):
        raise InputError(f"precision must be > 0, got {precision}; it is 1 / decoder variance.")
    return value
