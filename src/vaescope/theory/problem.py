"""An inference problem: a decoder, observations, a precision and a prior, in the unbounded coordinate u."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import validation
from vaescope.distributions import Prior
from vaescope.errors import InputError
from vaescope.theory.derivatives import (
    Decoder,
    check_decoder,
    check_latents,
    decode_flat,
    jacobian_columns,
)
from vaescope.theory.optimal import check_support
from vaescope.theory.rules import Rule

MAX_TRIED_LATENTS = 64  # where nothing else says how many latents there are
CHUNK_NUMBERS = 2**20  # decoded numbers at a time: more would leave the cache


@runtime_checkable
class SizedDecoder(Protocol):
    """A decoder that knows its number of latents."""

    dim: int


@runtime_checkable
class InvertibleDecoder(SizedDecoder, Protocol):
    """A decoder with its inverse, such as a mixing: good starting points need no search."""

    def inverse(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Problem:
    """p(x, z) of a batch of points."""

    decoder: Decoder
    x: Float[Tensor, "N n"]
    precision: Float[Tensor, " N"]
    """γ² of each point."""
    prior: Prior
    dim: int

    @property
    def constant(self) -> Float[Tensor, " N"]:
        """The Gaussian likelihood's n/2 log(γ²/2π)."""
        return 0.5 * self.x.shape[1] * (self.precision.log() - math.log(2 * math.pi))

    def take(self, rows: Tensor | slice) -> Problem:
        """The same problem for some of the points."""
        return replace(self, x=self.x[rows], precision=self.precision[rows])

    def repeat(self, times: int) -> Problem:
        """The same points several times, one copy after another."""
        return replace(self, x=self.x.repeat(times, 1), precision=self.precision.repeat(times))

    def with_precision(self, precision: float) -> Problem:
        """The same points with one γ² for all."""
        return replace(self, precision=torch.full_like(self.precision, precision))

    def chunks(self, nodes: int) -> Iterator[slice]:
        """Slices of points, at least one each, such that decoding `nodes` codes per point stays in the cache."""
        size = max(1, CHUNK_NUMBERS // (nodes * max(self.x.shape[1], 16 * self.dim)))
        for first in range(0, len(self.x), size):
            yield slice(first, min(first + size, len(self.x)))

    def output(self, u: Float[Tensor, "M d"]) -> Float[Tensor, "M n"]:
        """f(z) at z(u), flattened."""
        return decode_flat(self.decoder, self.prior.to_support(u))

    def misfit(self, u: Float[Tensor, "N Q d"]) -> Float[Tensor, "N Q"]:
        """-γ²/2 ‖x - f(z)‖², for several u per point."""
        output = self.output(u.flatten(0, 1)).unflatten(0, u.shape[:2])
        return -0.5 * self.precision.unsqueeze(1) * (self.x.unsqueeze(1) - output).square().sum(-1)

    def log_prior(self, u: Float[Tensor, "*N d"]) -> Float[Tensor, "*N"]:
        """log p(u): the prior's density in z times dz/du."""
        return (self.prior.log_density(self.prior.to_support(u)) + self.prior.log_derivative(u)).sum(-1)

    def log_joint(self, u: Float[Tensor, "N Q d"]) -> Float[Tensor, "N Q"]:
        """log p(x, u)."""
        return self.misfit(u) + self.constant.unsqueeze(1) + self.log_prior(u)

    def expected_misfit(
        self, mean: Float[Tensor, "N d"], factor: Float[Tensor, "N d d"], rule: Rule
    ) -> Float[Tensor, " N"]:
        """E_q of the misfit, q = N(mean, factor factorᵀ)."""
        nodes, weights = rule
        values = [
            self.take(rows).misfit(transform_nodes(mean[rows], factor[rows], nodes)) @ weights
            for rows in self.chunks(len(nodes))
        ]
        return torch.cat(values)

    def prior_curvature(self, u: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
        """-∂² log p(u)/∂u_k², clamped above zero so that it is a valid precision."""

        def one(value: Tensor) -> Tensor:
            return self.log_prior(value.unsqueeze(-1))

        second = _elementwise_second_derivative(one, u)
        return (-second).clamp_min(1e-6)

    def linearise(self, u: Float[Tensor, "N d"]) -> tuple[Float[Tensor, "N n"], Float[Tensor, "N n d"]]:
        """f and its Jacobian with respect to u."""
        return self.output(u), jacobian_columns(self.output, u, self.x.shape[1])

    def laplace_precision(self, u: Float[Tensor, "N d"]) -> Float[Tensor, "N d d"]:
        """Σ†⁻¹ + γ² JᵀJ in u: the Gauss–Newton precision of the posterior at u."""
        chunks = []
        for rows in self.chunks(self.dim):
            part = self.take(rows)
            _, J = part.linearise(u[rows])
            chunks.append(part.laplace_precision_of(u[rows], J))
        return torch.cat(chunks)

    def laplace_precision_of(self, u: Float[Tensor, "N d"], J: Float[Tensor, "N n d"]) -> Float[Tensor, "N d d"]:
        """The same, given the Jacobian."""
        return torch.diag_embed(self.prior_curvature(u)) + self.precision[:, None, None] * J.mT @ J


def transform_nodes(mean: Float[Tensor, "N d"], factor: Float[Tensor, "N d d"], nodes: Float[Tensor, "Q d"]) -> Tensor:
    """The nodes of a standard normal rule, moved to each Gaussian: (N, Q, d)."""
    return mean.unsqueeze(1) + torch.einsum("nij,qj->nqi", factor, nodes)


def _elementwise_second_derivative(function: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    """f'' of a scalar function, at each entry of u."""
    slope = torch.func.grad(lambda v: function(v).sum())
    return torch.func.jvp(slope, (u,), (torch.ones_like(u),))[1]


def make_problem(
    decoder: Decoder,
    x: Float[Tensor, "N ..."],
    *,
    precision: float | Float[Tensor, " N"],
    prior: Prior,
    dim: int,
    probe: Tensor,
) -> Problem:
    """A problem with its arguments checked."""
    _check_observations(x)
    gamma2 = validation.precisions(precision, len(x)).to(x)
    outputs = check_decoder(decoder, prior.to_support(probe[:1]))
    flat = x.flatten(1)
    if outputs != flat.shape[1]:
        raise InputError(f"decoder gives {outputs} outputs per point, but x has {flat.shape[1]}.")
    return Problem(decoder, flat, gamma2, prior, dim)


def _check_observations(x: object) -> None:
    if not isinstance(x, Tensor) or x.ndim < 2 or not x.is_floating_point():
        raise InputError("x must be a floating-point tensor with a row per point.")
    if not bool(x.isfinite().all()):
        raise InputError("x must be finite, got NaN or infinity.")


def latent_dimension(decoder: Decoder, x: Tensor, prior: Prior, *, start: Tensor | None, latent_dim: int | None) -> int:
    """d, from the argument, the start, the decoder's `dim`, or the only number of latents that the decoder takes."""
    known = latent_dim or (start.shape[-1] if start is not None else None)
    if known is None and isinstance(decoder, SizedDecoder):
        known = decoder.dim
    if known is not None:
        return int(known)
    _check_observations(x)
    accepted = [dim for dim in range(1, MAX_TRIED_LATENTS + 1) if _takes(decoder, dim, x, prior)]
    if len(accepted) == 1:
        return accepted[0]
    shown = ", ".join(str(dim) for dim in accepted[:3]) + (", …" if len(accepted) > 3 else "")
    found = f"the decoder takes {shown} latents" if accepted else f"no number up to {MAX_TRIED_LATENTS} fits x"
    raise InputError(f"the number of latents could not be found: {found}; pass latent_dim.")


def _takes(decoder: Decoder, dim: int, x: Tensor, prior: Prior) -> bool:
    """Whether a decoder makes observations of this size from `dim` latents."""
    centre = torch.full((1, dim), prior.unbounded_centre(), dtype=x.dtype, device=x.device)
    try:
        with torch.no_grad():
            return decode_flat(decoder, prior.to_support(centre)).shape == (1, x[:1].numel())
    except (RuntimeError, ValueError, IndexError, TypeError):  # what a decoder raises for codes of another size
        return False


def prepare(
    decoder: Decoder,
    x: Tensor,
    precision: float | Float[Tensor, " N"],
    prior: Prior,
    start: Tensor | None,
    dim: int,
) -> tuple[Problem, Tensor | None]:
    """The problem, and the start in the coordinate u (from the decoder's inverse, if it has one)."""
    if start is not None:
        check_latents(start, "start")
        check_support(start, prior, "start")
    probe = torch.full((1, dim), prior.unbounded_centre(), dtype=x.dtype, device=x.device)
    probe = prior.from_support(start[:1]) if start is not None else probe
    problem = make_problem(decoder, x, precision=precision, prior=prior, dim=dim, probe=probe)
    if start is None and isinstance(decoder, InvertibleDecoder) and problem.x.shape[1] == dim:
        guess = prior.from_support(decoder.inverse(problem.x))
        start_u = guess if bool(guess.isfinite().all()) else None
    else:
        start_u = None if start is None else prior.from_support(start.to(problem.x))
    return problem, start_u
