"""One inference problem: a decoder, observations, a precision and a prior, in the unbounded coordinate u."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import validation
from vaescope.distributions import Prior
from vaescope.errors import InputError
from vaescope.theory.derivatives import Decoder, check_decoder, decode_flat
from vaescope.theory.rules import Rule

CHUNK_NUMBERS = 2**22  # numbers a chunk may decode at a time


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything about p(x, z) that inference needs; all per point, batched over points."""

    decoder: Decoder
    x: Float[Tensor, "N n"]
    precision: float
    prior: Prior
    dim: int

    @property
    def constant(self) -> float:
        """The Gaussian likelihood's n/2 log(γ²/2π)."""
        return 0.5 * self.x.shape[1] * (math.log(self.precision) - math.log(2 * math.pi))

    def take(self, rows: Tensor | slice) -> Problem:
        return replace(self, x=self.x[rows])

    def chunks(self, nodes: int) -> Iterator[slice]:
        """Slices of points that together decode a bounded amount."""
        size = max(1, CHUNK_NUMBERS // (nodes * max(self.x.shape[1], 16 * self.dim)))
        for first in range(0, len(self.x), size):
            yield slice(first, min(first + size, len(self.x)))

    def output(self, u: Float[Tensor, "M d"]) -> Float[Tensor, "M n"]:
        return decode_flat(self.decoder, self.prior.to_support(u))

    def misfit(self, u: Float[Tensor, "N Q d"]) -> Float[Tensor, "N Q"]:
        """-γ²/2 ‖x - f(z)‖², for several u per point."""
        output = self.output(u.flatten(0, 1)).unflatten(0, u.shape[:2])
        return -0.5 * self.precision * (self.x.unsqueeze(1) - output).square().sum(-1)

    def log_prior(self, u: Float[Tensor, "*N d"]) -> Float[Tensor, "*N"]:
        """log p(u), with the slope of the squashing."""
        return (self.prior.log_density(self.prior.to_support(u)) + self.prior.log_derivative(u)).sum(-1)

    def log_joint(self, u: Float[Tensor, "N Q d"]) -> Float[Tensor, "N Q"]:
        """log p(x, u)."""
        return self.misfit(u) + self.constant + self.log_prior(u)

    def expected_misfit(
        self, mean: Float[Tensor, "N d"], factor: Float[Tensor, "N d d"], rule: Rule
    ) -> Float[Tensor, " N"]:
        """E_q of the misfit, q = N(mean, factor factorᵀ)."""
        nodes, weights = rule
        parts = [
            self.take(part).misfit(place(mean[part], factor[part], nodes)) @ weights for part in self.chunks(len(nodes))
        ]
        return torch.cat(parts)

    def prior_curvature(self, u: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
        """-∂² log p(u)/∂u_k², kept above zero so that it can serve as a precision."""

        def one(value: Tensor) -> Tensor:
            return self.log_prior(value.unsqueeze(-1))

        second = _elementwise_second_derivative(one, u)
        return (-second).clamp_min(1e-6)

    def linearise(self, u: Float[Tensor, "N d"]) -> tuple[Float[Tensor, "N n"], Float[Tensor, "N n d"]]:
        """f and its Jacobian in u."""
        columns, output = [], self.output(u)
        for k in range(self.dim):
            direction = torch.zeros_like(u)
            direction[:, k] = 1
            columns.append(torch.func.jvp(self.output, (u,), (direction,))[1])
        return output, torch.stack(columns, dim=-1)

    def laplace_precision(self, u: Float[Tensor, "N d"]) -> Float[Tensor, "N d d"]:
        """Σ†⁻¹ + γ² JᵀJ in u: the Gauss–Newton precision of the posterior at u."""
        parts = []
        for part in self.chunks(self.dim):
            _, J = self.take(part).linearise(u[part])
            parts.append(torch.diag_embed(self.prior_curvature(u[part])) + self.precision * J.mT @ J)
        return torch.cat(parts)


def place(mean: Float[Tensor, "N d"], factor: Float[Tensor, "N d d"], nodes: Float[Tensor, "Q d"]) -> Tensor:
    """Where the nodes of a rule fall for every Gaussian: (N, Q, d)."""
    return mean.unsqueeze(1) + torch.einsum("nij,qj->nqi", factor, nodes)


def _elementwise_second_derivative(function: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    """f'' of a function of single numbers, at every entry of u."""
    slope = torch.func.grad(lambda v: function(v).sum())
    return torch.func.jvp(slope, (u,), (torch.ones_like(u),))[1]


def make_problem(
    decoder: Decoder, x: Float[Tensor, "N ..."], *, precision: float, prior: Prior, dim: int, probe: Tensor
) -> Problem:
    """Check the arguments once, naming whichever is wrong."""
    gamma2 = validation.precision(precision)
    if not isinstance(x, Tensor) or x.ndim < 2 or not x.is_floating_point():
        raise InputError("x must be a floating-point tensor with a row per point.")
    if not bool(x.isfinite().all()):
        raise InputError("x must be finite, got NaN or infinity.")
    outputs = check_decoder(decoder, prior.to_support(probe[:1]))
    flat = x.flatten(1)
    if outputs != flat.shape[1]:
        raise InputError(f"decoder gives {outputs} outputs per point, but x has {flat.shape[1]}.")
    return Problem(decoder, flat, gamma2, prior, dim)
