"""Quadrature: expectations under a normal distribution without sampling noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
from jaxtyping import Float
from torch import Tensor


@cache
def _cached_rule(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    return tuple(nodes.tolist()), tuple((weights / weights.sum()).tolist())


@cache
def _cached_even_rule(count: int, reach: float = 9.0) -> tuple[tuple[float, ...], tuple[float, ...]]:
    nodes = np.linspace(-reach, reach, count)
    weights = np.exp(-0.5 * nodes**2)
    return tuple(nodes.tolist()), tuple((weights / weights.sum()).tolist())


def _hermite_rule(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return _cached_rule(order)


CONSTANT = (_hermite_rule,)
"""Functions whose results a compiled step keeps, instead of computing the nodes at every call."""


def hermite_nodes(order: int, like: Tensor) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"]]:
    """Nodes and weights (summing to one) for a standard normal variable.

    >>> t, w = hermite_nodes(3, Tensor())
    >>> round(float((w * t**4).sum()), 5)  # the fourth moment of N(0, 1)
    3.0
    """
    t, w = _hermite_rule(order)
    return like.new_tensor(t), like.new_tensor(w)


def hermite_grid(dim: int, order: int, like: Tensor) -> tuple[Float[Tensor, "Q d"], Float[Tensor, " Q"]]:
    """The tensor-product rule in `dim` dimensions, with `order ** dim` nodes."""
    points, weights = _cached_grid(dim, order)
    return like.new_tensor(points), like.new_tensor(weights)


@cache
def _cached_grid(dim: int, order: int) -> tuple[np.ndarray, np.ndarray]:
    t, w = _hermite_rule(order)
    return np.array(list(product(t, repeat=dim))), np.prod(list(product(w, repeat=dim)), axis=1)


def even_nodes(count: int, like: Tensor) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"]]:
    """Equally spaced nodes and weights (summing to one) for a standard normal variable: the trapezoidal rule.

    The error falls exponentially with the number of nodes as soon as the function is smooth over a step, 18 / `count`
    deviations. Gauss–Hermite nodes are better for nearly polynomial functions and worse for bends and spikes.

    >>> t, w = even_nodes(41, Tensor().double())
    >>> round(float((w * t**4).sum()), 5)
    3.0
    """
    t, w = _cached_even_rule(count)
    return like.new_tensor(t), like.new_tensor(w)


def normal_expectation(
    function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, *, order: int = 32, even: bool = False
) -> Tensor:
    """E[function(u)] for u ~ N(mean, variance), elementwise; differentiable in mean and variance.

    Args:
        function: of values with the nodes along a new last axis.
        mean: of u.
        variance: of u.
        order: number of nodes.
        even: equally spaced nodes, instead of Gauss–Hermite nodes.

    >>> normal_expectation(lambda u: u**2, Tensor([1.0]), Tensor([4.0]))
    tensor([5.0000])
    """
    t, w = even_nodes(order, mean) if even else hermite_nodes(order, mean)
    u = mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * t
    return (function(u) * w).sum(-1)
