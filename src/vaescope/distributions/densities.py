"""Posteriors and priors that are given by functions: full covariances, flows, mixtures, VampPriors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class PosteriorDensity:
    """q(z|x) as functions.

    Args:
        sample: x -> (N, d), one independent draw of z ~ q(z|x) per row of x.
        log_prob: (z, x) -> (N,), log q(z|x) of each row.
    """

    sample: Callable[[Tensor], Tensor]
    log_prob: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class PriorDensity:
    """p(z) as functions.

    Args:
        sample: count -> (count, d), independent draws.
        log_prob: z -> (N,), log p(z) of each row.
    """

    sample: Callable[[int], Tensor]
    log_prob: Callable[[Tensor], Tensor]
