"""Gauss–Hermite quadrature: expectations under a normal distribution without sampling noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


@cache
def _hermite(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    return tuple(nodes.tolist()), tuple((weights / weights.sum()).tolist())


@torch.compiler.assume_constant_result  # else a compiled step would find the nodes anew every time
def _nodes(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return _hermite(order)


def nodes(order: int, like: Tensor) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"]]:
    """Nodes and weights (summing to one) for a standard normal variable.

    >>> t, w = nodes(3, Tensor())
    >>> round(float((w * t**4).sum()), 5)  # the fourth moment of N(0, 1)
    3.0
    """
    t, w = _nodes(order)
    return like.new_tensor(t), like.new_tensor(w)


def grid(dim: int, order: int, like: Tensor) -> tuple[Float[Tensor, "Q d"], Float[Tensor, " Q"]]:
    """The tensor-product rule in `dim` dimensions: `order ** dim` nodes."""
    t, w = _nodes(order)
    points = np.array(list(product(t, repeat=dim)))
    weights = np.array([np.prod(c) for c in product(w, repeat=dim)])
    return like.new_tensor(points), like.new_tensor(weights)


def expectation(function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, *, order: int = 32) -> Tensor:
    """E[function(u)] for u ~ N(mean, variance), elementwise; a sum over nodes, so smooth in both arguments.

    >>> expectation(lambda u: u**2, Tensor([1.0]), Tensor([4.0]))
    tensor([5.0000])
    """
    t, w = nodes(order, mean)
    u = mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * t
    return (function(u) * w).sum(-1)
