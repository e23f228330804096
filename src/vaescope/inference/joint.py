"""An inference problem: a decoder, observations, a precision and a prior, in the unbounded coordinate u."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import validation
from vaescope.core.checks import choice
from vaescope.core.errors import InputError
from vaescope.distributions import Prior, quadrature
from vaescope.inference.derivatives import Decoder, check_decoder, check_latents, decode_flat, jacobian_columns
from vaescope.inference.geometry import check_support

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


@dataclass(frozen=True)
class Family:
    """Which parameter sets each entry of K(b): entry (rows[i], columns[i]) is set by b[owner[i]]."""

    dim: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    owner: tuple[int, ...]

    @property
    def scales(self) -> int:
        """The length of b."""
        return max(self.owner) + 1

    @property
    def size(self) -> int:
        """The length of p = (a, b)."""
        return self.dim + self.scales

    def log_scales(self) -> list[int]:
        """Indices in p of the parameters that enter as exp(b): those on the diagonal of K."""
        diagonal = [o for r, c, o in zip(self.rows, self.columns, self.owner, strict=True) if r == c]
        return [self.dim + o for o in sorted(set(diagonal))]

    def factor(self, b: Float[Tensor, "*N s"]) -> Float[Tensor, "*N d d"]:
        """K(b)."""
        d = self.dim
        on_diagonal = torch.tensor([r == c for r, c in zip(self.rows, self.columns, strict=True)], device=b.device)
        values = b[..., list(self.owner)]
        entries = torch.where(on_diagonal, values.exp(), values)
        index = torch.tensor([r * d + c for r, c in zip(self.rows, self.columns, strict=True)], device=b.device)
        flat = torch.zeros(*b.shape[:-1], d * d, dtype=b.dtype, device=b.device)
        return flat.index_add(-1, index, entries).unflatten(-1, (d, d))

    def log_det(self, b: Float[Tensor, "*N s"]) -> Float[Tensor, "*N"]:
        """log det K(b)."""
        diagonal = [o for r, c, o in zip(self.rows, self.columns, self.owner, strict=True) if r == c]
        return b[..., diagonal].sum(-1)

    def features(self, nodes: Float[Tensor, "Q d"]) -> Float[Tensor, "Q d p"]:
        """∂(a + K t)/∂p at p = 0, for each node t."""
        count, d = nodes.shape
        features = torch.zeros(count, d, self.size, dtype=nodes.dtype, device=nodes.device)
        features[:, range(d), range(d)] = 1
        for row, column, owner in zip(self.rows, self.columns, self.owner, strict=True):
            features[:, row, d + owner] += nodes[:, column]
        return features


def make_family(name: str, dim: int) -> Family:
    """The family of this name: diagonal, isotropic or full."""
    choice("family", name, ("diagonal", "isotropic", "full"))
    if name == "diagonal":
        return Family(dim, tuple(range(dim)), tuple(range(dim)), tuple(range(dim)))
    if name == "isotropic":
        return Family(dim, tuple(range(dim)), tuple(range(dim)), (0,) * dim)
    rows, columns = torch.tril_indices(dim, dim).tolist()
    return Family(dim, tuple(rows), tuple(columns), tuple(range(len(rows))))
