"""Quadrature rules for expectations under a standard normal vector in any number of dimensions."""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.distributions import quadrature

ORDERS = (3, 7, 13, 21)
ORDERS_OF_FOUR_LATENTS = (3, 5, 7)  # exact moments at the largest grid, where quasi-random nodes have errors of 1 %
LARGEST_GRID = 5000  # nodes of a tensor-product rule; larger problems use quasi-random nodes
QUASI_RANDOM_NODES = 4096

Rule = tuple[Float[Tensor, "Q d"], Float[Tensor, " Q"]]


def increasing_orders(dim: int) -> list[int]:
    """Orders to try in turn until the result stops changing; 0 is the quasi-random rule."""
    if dim == 4:
        return list(ORDERS_OF_FOUR_LATENTS)
    orders = [order for order in ORDERS if order**dim <= LARGEST_GRID]
    return orders if len(orders) > 2 else [*orders, 0]


def rule(dim: int, order: int, like: Tensor) -> Rule:
    """Nodes and weights of this order (see `increasing_orders`), with the dtype and device of `like`."""
    nodes, weights = quadrature.hermite_grid(dim, order, like) if order else quasi_random(dim, QUASI_RANDOM_NODES, like)
    return nodes, weights


def quasi_random(dim: int, count: int, like: Tensor) -> Rule:
    """`matched_nodes` with equal weights."""
    nodes = matched_nodes(dim, count).to(like)
    return nodes, torch.full_like(nodes[:, 0], 1 / len(nodes))


@cache
def matched_nodes(dim: int, count: int) -> Tensor:
    """Sobol points, transformed to normal, mirrored and whitened: odd moments vanish and second moments are exact."""
    uniform = torch.quasirandom.SobolEngine(dim, scramble=True, seed=0).draw(count // 2)
    half = torch.special.ndtri(uniform.double().clamp(1e-9, 1 - 1e-9))
    nodes = torch.cat([half, -half])
    scale = torch.linalg.cholesky(nodes.T @ nodes / len(nodes))
    return torch.linalg.solve_triangular(scale, nodes.T, upper=False).T
