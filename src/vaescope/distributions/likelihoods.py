"""Likelihoods p(x|z) of a decoder's output, summed over observed dimensions, in nats, with constants."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vaescope.errors import InputError

LIKELIHOODS = ("gaussian", "bernoulli")
LOG_2PI = math.log(2 * math.pi)
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
