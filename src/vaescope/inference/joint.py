"""p(x, u) of a batch of points, in the unbounded coordinate u of the prior; its mode and its curvature.

A `DecoderJoint` has a decoder with Gaussian noise, which torch differentiates by forward mode. A `LikelihoodJoint` has
any log-likelihood. Everything that needs p(x, u) is written against their common base, `Joint`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import randomness, validation
from vaescope.core.errors import InputError, Skipped
from vaescope.distributions import DiagonalGaussian, Normal, Prior, quadrature
from vaescope.inference.anisotropic import Noise
from vaescope.inference.derivatives import (
    Decoder,
    check_decoder,
    check_latents,
    decode_flat,
    elementwise_derivatives,
    hessian,
    jacobian_columns,
)
from vaescope.inference.geometry import check_support

Rule = tuple[Float[Tensor, "Q d"], Float[Tensor, " Q"]]
Nodes = Float[Tensor, "Q d"]
LogLikelihood = Callable[[Tensor, Tensor], Tensor]
"""(rows, z) -> log p(x|z): row i of z (M, d) is a code of point rows[i]."""
Curvature = Callable[[Tensor], Tensor]
"""(N, d) codes, one per point -> (N, d, d) expected curvatures of -log p(x|z)."""

LARGEST_GRID = 5000  # nodes of a tensor-product rule; larger problems use quasi-random nodes
CHUNK_NUMBERS = 2**20  # decoded numbers at a time: more would leave the cache


# quadrature rules -------------------------------------------------------------------------------


def increasing_orders(dim: int) -> list[int]:
    """Orders to try in turn until the result stops changing; 0 is the quasi-random rule."""
    if dim == 4:
        return [3, 5, 7]  # exact moments at the largest grid, where quasi-random nodes have errors of 1 %
    orders = [order for order in (3, 7, 13, 21) if order**dim <= LARGEST_GRID]
    return orders if len(orders) > 2 else [*orders, 0]


def rule(dim: int, order: int, like: Tensor) -> Rule:
    """Nodes and weights of this order (see `increasing_orders`), with the dtype and device of `like`."""
    return quadrature.hermite_grid(dim, order, like) if order else quasi_random(dim, 4096, like)


def quasi_random(dim: int, count: int, like: Tensor) -> Rule:
    """`matched_nodes` with equal weights."""
    nodes = matched_nodes(dim, count).to(like)
    return nodes, torch.full_like(nodes[:, 0], 1 / len(nodes))


@cache
def matched_nodes(dim: int, count: int) -> Tensor:
    """Sobol points, transformed to normal, mirrored and whitened: odd moments vanish and second moments are exact."""
    uniform = torch.quasirandom.SobolEngine(dim, scramble=True, seed=0).draw(count // 2)
    half = torch.special.ndtri(uniform.double().clamp(1e-9, 1 - 1e-9))
    return whitened(torch.cat([half, -half]))


def whitened(nodes: Float[Tensor, "*N Q d"]) -> Float[Tensor, "*N Q d"]:
    """Nodes with mean zero, turned and scaled so that their second moments are exactly those of N(0, I)."""
    scale = torch.linalg.cholesky(nodes.mT @ nodes / nodes.shape[-2])
    return torch.linalg.solve_triangular(scale, nodes.mT, upper=False).mT


def transform_nodes(mean: Float[Tensor, "N d"], factor: Float[Tensor, "N d d"], nodes: Tensor) -> Tensor:
    """Nodes (Q, d), or (N, Q, d) of each point, of a standard rule, moved to each Gaussian: (N, Q, d)."""
    moved = torch.einsum("nij,qj->nqi" if nodes.ndim == 2 else "nij,nqj->nqi", factor, nodes)
    return mean.unsqueeze(1) + moved


Precision = float | Float[Tensor, " N"] | Noise
"""γ² = 1 / decoder variance: one number, one for each observation, or a `Noise` with one per output or a matrix."""


# p(x, u) ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Joint(ABC):
    """p(x, u) of N points."""

    prior: Prior
    dim: int

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, rows: Tensor | slice) -> Joint:
        """The same for some of the points."""

    @abstractmethod
    def log_joint(self, u: Float[Tensor, "N Q d"]) -> Float[Tensor, "N Q"]:
        """log p(x, u) of several u per point."""

    @abstractmethod
    def derivatives(self, u: Float[Tensor, "N d"]) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d d"]]:
        """Gradient of log p(x, u), and a positive definite matrix in place of minus its Hessian."""

    @abstractmethod
    def chunks(self, nodes: int) -> Iterator[slice]:
        """Slices of points, such that `log_joint` of as many u per point fits in memory."""

    def log_prior(self, u: Float[Tensor, "*N d"], rows: Tensor | None = None) -> Float[Tensor, "*N"]:
        """log p(u): the prior's density in z times dz/du. `rows` are the points of u if the prior has rows."""
        prior = self.prior
        if rows is not None and isinstance(prior, Normal):
            prior = Normal(*(_rows_of(value, rows) for value in (prior.mean, prior.variance)))
        return (prior.log_density(prior.to_support(u)) + prior.log_derivative(u)).sum(-1)


def _rows_of(value: float | Tensor, rows: Tensor) -> float | Tensor:
    """A parameter of the prior at some points: the same for all, or a row per point."""
    return value[rows] if isinstance(value, Tensor) and value.ndim == 2 and len(value) > 1 else value


@dataclass(frozen=True, eq=False)
class LikelihoodJoint(Joint):
    """p(x, u) for any log-likelihood.

    Without a `curvature`, that of log p(x, u) is its Hessian with the absolute values of all eigenvalues, at least
    `smallest` at each point.
    """

    log_likelihood: LogLikelihood
    points: Tensor
    """Indices of the points, as the log-likelihood counts them."""
    curvature: Curvature | None = None
    smallest: Float[Tensor, " N"] | None = None
    codes_at_once: int = 1024
    """Codes that are decoded at a time."""

    def __len__(self) -> int:
        return len(self.points)

    def take(self, rows: Tensor | slice) -> LikelihoodJoint:
        return replace(self, points=self.points[rows], smallest=None if self.smallest is None else self.smallest[rows])

    def chunks(self, nodes: int) -> Iterator[slice]:
        yield slice(None)  # `log_joint` splits codes itself

    def at(self, rows: Tensor, u: Float[Tensor, "M d"]) -> Float[Tensor, " M"]:
        """log p(x, u), where u[i] is of point rows[i]; differentiable."""
        points = self.points[rows]
        return self.log_likelihood(points, self.prior.to_support(u)) + self.log_prior(u, points)

    def log_joint(self, u: Float[Tensor, "N Q d"]) -> Float[Tensor, "N Q"]:
        rows = torch.arange(len(u)).repeat_interleave(u.shape[1])
        pairs = zip(rows.split(self.codes_at_once), u.flatten(0, 1).split(self.codes_at_once), strict=True)
        return torch.cat([self.at(r, part) for r, part in pairs]).reshape(u.shape[:2])

    def with_gradient(self, rows: Tensor, u: Float[Tensor, "M d"]) -> tuple[Tensor, Tensor]:
        """log p(x, u) and its gradient, where u[i] is of point rows[i]; zero where it is not finite."""
        values, slopes = [], []
        for r, part in zip(rows.split(self.codes_at_once), u.split(self.codes_at_once), strict=True):
            with torch.enable_grad():
                here = part.detach().requires_grad_()
                value = self.at(r, here)
                if not value.requires_grad:
                    raise InputError("the decoder detaches its output from its input")
                if bool(value.detach().isnan().all()):
                    raise Skipped("the likelihood is not a number")
                slopes.append(torch.autograd.grad(value.sum(), here)[0].nan_to_num(0.0, 0.0, 0.0))
            values.append(value.detach())
        return torch.cat(values), torch.cat(slopes)

    def derivatives(self, u: Float[Tensor, "N d"]) -> tuple[Tensor, Tensor]:
        rows = torch.arange(len(u))
        if self.curvature is None:
            _, slope, second = hessian(lambda v: self.at(rows, v), u)
            symmetric = (-0.5 * (second + second.mT)).nan_to_num(0.0, 0.0, 0.0)
            values, vectors = torch.linalg.eigh(symmetric)
            floor = torch.full_like(u[:, 0], 1e-6) if self.smallest is None else self.smallest
            values = torch.maximum(values.abs(), floor[:, None])
            return slope.nan_to_num(0.0, 0.0, 0.0), (vectors * values.unsqueeze(1)) @ vectors.mT
        return self.with_gradient(rows, u)[1], self.laplace_precision(u)

    def laplace_precision(self, u: Float[Tensor, "N d"]) -> Float[Tensor, "N d d"]:
        """Σ†⁻¹ plus the curvature of the likelihood, under a normal prior."""
        assert self.curvature is not None
        assert isinstance(self.prior, Normal)
        variance = torch.as_tensor(_rows_of(self.prior.variance, self.points)).to(u)
        return self.curvature(u) + torch.diag_embed((1 / variance).expand(u.shape))

    def elbo(self, q: DiagonalGaussian, nodes: Nodes, weights: Tensor | None = None) -> Float[Tensor, " N"]:
        """E_q log p(x, u) + entropy, by the rule; equal weights by default."""
        with torch.no_grad():
            value = self.log_joint(q.mean.unsqueeze(1) + q.variance.sqrt().unsqueeze(1) * nodes.to(q.mean))
            return (value.mean(1) if weights is None else value @ weights) + q.entropy()


@runtime_checkable
class SizedDecoder(Protocol):
    """A decoder that knows its number of latents."""

    dim: int


@runtime_checkable
class InvertibleDecoder(SizedDecoder, Protocol):
    """A decoder with its inverse, such as a mixing: good starting points need no search."""

    def inverse(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class DecoderJoint(Joint):
    """p(x, u) for a decoder with Gaussian noise of one precision per point."""

    decoder: Decoder
    x: Float[Tensor, "N n"]
    precision: Float[Tensor, " N"]
    """γ² of each point."""
    log_volume: float = 0.0
    """By which log p(x) exceeds that of the given x, if these were whitened."""

    def __len__(self) -> int:
        return len(self.x)

    @property
    def constant(self) -> Float[Tensor, " N"]:
        """The Gaussian likelihood's n/2 log(γ²/2π)."""
        return 0.5 * self.x.shape[1] * (self.precision.log() - math.log(2 * math.pi)) + self.log_volume

    def take(self, rows: Tensor | slice) -> DecoderJoint:
        return replace(self, x=self.x[rows], precision=self.precision[rows])

    def chunks(self, nodes: int) -> Iterator[slice]:
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

    def log_joint(self, u: Float[Tensor, "N Q d"]) -> Float[Tensor, "N Q"]:
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

    def linearise(self, u: Float[Tensor, "N d"]) -> tuple[Float[Tensor, "N n"], Float[Tensor, "N n d"]]:
        """f and its Jacobian with respect to u."""
        return self.output(u), jacobian_columns(self.output, u, self.x.shape[1])

    def derivatives(self, u: Float[Tensor, "N d"]) -> tuple[Tensor, Tensor]:
        """With the Gauss–Newton precision Σ†⁻¹ + γ² JᵀJ in u; that of the prior is at least 1e-6."""
        gradients, precisions = [], []
        for rows in self.chunks(self.dim):
            part = self.take(rows)
            output, J = part.linearise(u[rows])
            _, slope, second = elementwise_derivatives(lambda v: self.log_prior(v.unsqueeze(-1)), u[rows])
            gradients.append(slope + part.precision[:, None] * torch.einsum("nij,ni->nj", J, part.x - output))
            prior = torch.diag_embed((-second).clamp_min(1e-6))
            precisions.append(prior + part.precision[:, None, None] * J.mT @ J)
        return torch.cat(gradients), torch.cat(precisions)


def decoder_joint(
    decoder: Decoder,
    x: Float[Tensor, "N ..."],
    *,
    precision: Precision,
    prior: Prior | None = None,
    start: Float[Tensor, "M d"] | None = None,
    latent_dim: int | None = None,
) -> tuple[DecoderJoint, Float[Tensor, "M d"] | None]:
    """p(x, u) of a decoder with its arguments checked, and where to start in u.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        x: observations.
        precision: γ², or a `Noise`: then decoder and x are whitened.
        prior: N(0, I) by default.
        start: latents to start from, one row or a row per observation; by default the decoder's own inverse of x, if it
            has one.
        latent_dim: d; by default that of the start, the decoder's `dim`, or the only number that the decoder takes.
    """
    prior = Normal() if prior is None else prior
    known = latent_dim or (start.shape[-1] if start is not None else None)
    if known is None and isinstance(decoder, SizedDecoder):
        known = decoder.dim
    if not isinstance(x, Tensor) or x.ndim < 2 or not x.is_floating_point():
        raise InputError("x must be a floating-point tensor with a row per point.")
    if not bool(x.isfinite().all()):
        raise InputError("x must be finite, got NaN or infinity.")
    dim = int(known) if known is not None else _only_dimension(decoder, x, prior)
    if start is not None:
        check_latents(start, "start")
        check_support(start, prior, "start")
        if len(start) not in (1, len(x)):
            raise InputError(f"start must have a row per observation ({len(x)}), got {len(start)}.")
    flat, function, log_volume, gamma2 = x.flatten(1), decoder, 0.0, precision
    if isinstance(precision, Noise):
        flat, function, gamma2 = precision.whiten(x), precision.whitened(decoder), 1.0
        log_volume = float(precision.log_volume)
    precisions = validation.precisions(gamma2, len(x)).to(x)
    probe = torch.full((1, dim), prior.unbounded_centre(), dtype=x.dtype, device=x.device)
    outputs = check_decoder(function, start[:1] if start is not None else prior.to_support(probe))
    if outputs != flat.shape[1]:
        raise InputError(f"decoder gives {outputs} outputs per point, but x has {flat.shape[1]}.")
    joint = DecoderJoint(prior, dim, function, flat, precisions, log_volume)
    if start is not None:
        return joint, prior.from_support(start.to(flat))
    if isinstance(decoder, InvertibleDecoder) and flat.shape[1] == dim:
        guess = prior.from_support(decoder.inverse(x.flatten(1)))
        return joint, guess if bool(guess.isfinite().all()) else None
    return joint, None


def _only_dimension(decoder: Decoder, x: Tensor, prior: Prior, largest: int = 64) -> int:
    """The number of latents from which a decoder makes observations of this size."""

    def takes(dim: int) -> bool:
        centre = torch.full((1, dim), prior.unbounded_centre(), dtype=x.dtype, device=x.device)
        try:
            with torch.no_grad():
                return decode_flat(decoder, prior.to_support(centre)).shape == (1, x[:1].numel())
        except (RuntimeError, ValueError, IndexError, TypeError):  # what a decoder raises for codes of another size
            return False

    accepted = [dim for dim in range(1, largest + 1) if takes(dim)]
    if len(accepted) == 1:
        return accepted[0]
    shown = ", ".join(str(dim) for dim in accepted[:3]) + (", …" if len(accepted) > 3 else "")
    found = f"the decoder takes {shown} latents" if accepted else f"no number up to {largest} fits x"
    raise InputError(f"the number of latents could not be found: {found}; pass latent_dim.")


# Gaussians in u ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gaussian:
    """N(centre, factor factorᵀ) in u, one per observation."""

    centre: Float[Tensor, "N d"]
    factor: Float[Tensor, "N d d"]

    def codes(self, t: Float[Tensor, "C N d"]) -> Float[Tensor, "C N d"]:
        """u = centre + factor t."""
        return self.centre + torch.einsum("nij,cnj->cni", self.factor, t)

    def standardise(self, u: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
        """t of codes u."""
        return torch.linalg.solve(self.factor, (u - self.centre).unsqueeze(2)).squeeze(2)


def inverse_factor(P: Float[Tensor, "N d d"]) -> Float[Tensor, "N d d"]:
    """The lower triangular A with A Aᵀ = P⁻¹; NaN where P is not positive definite.

    >>> inverse_factor(torch.tensor([[[4.0, 0.0], [0.0, 1.0]]]))
    tensor([[[0.5000, 0.0000],
             [0.0000, 1.0000]]])
    """
    lower, failed = torch.linalg.cholesky_ex(P.flip(-1, -2))  # in reversed order, so that A is lower triangular
    eye = torch.eye(P.shape[-1], dtype=P.dtype, device=P.device).expand_as(P)
    inverse = torch.linalg.solve_triangular(lower, eye, upper=False).mT.flip(-1, -2)
    return torch.where((failed == 0)[:, None, None], inverse, torch.nan)


@torch.no_grad()
def laplace(joint: Joint, mode: Float[Tensor, "N d"]) -> Gaussian:
    """The Laplace approximation of p(u|x) at its mode."""
    return Gaussian(mode, inverse_factor(joint.derivatives(mode)[1]))


# mode -------------------------------------------------------------------------------------------


def find_mode(
    joint: Joint, start: Float[Tensor, "N d"] | None = None, *, steps: int = 200, tolerance: float = 1e-12
) -> Float[Tensor, "N d"]:
    """The u that maximises log p(x, u), by the method of Levenberg and Marquardt; converged points drop out.

    Args:
        joint: p(x, u).
        start: u to start from; by default the prior's centre and seven draws from the prior, of which the best wins.
        steps: largest number of steps.
        tolerance: predicted gain in nats below which a point has converged.
    """
    if start is not None:
        return _climb(joint, start, steps, tolerance)[0]
    generator, dim = randomness.generator(0, "starts"), joint.dim
    draws = joint.prior.sample(7, dim, generator=generator, dtype=torch.float64)
    centre = torch.full((1, dim), joint.prior.unbounded_centre(), dtype=torch.float64)
    starts = torch.cat([centre, joint.prior.from_support(draws)])
    like = joint.x if isinstance(joint, DecoderJoint) else starts
    found = [_climb(joint, s.expand(len(joint), -1), steps, tolerance) for s in starts.to(like)]
    best, best_value = found[0]
    for u, value in found[1:]:
        better = value > best_value
        best, best_value = torch.where(better[:, None], u, best), torch.where(better, value, best_value)
    return best


@torch.no_grad()
def _climb(joint: Joint, start: Float[Tensor, "N d"], steps: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """The mode from one start, and log p(x, u) there."""
    u, value = start.clone(), joint.log_joint(start.unsqueeze(1)).squeeze(1)
    damping = torch.full((len(u),), 1e-3, dtype=u.dtype, device=u.device)
    active = torch.arange(len(u), device=u.device)
    for _ in range(steps):
        if not len(active):
            break
        part = joint.take(active)
        gradient, precision = part.derivatives(u[active])
        diagonal = precision.diagonal(dim1=1, dim2=2)
        damped = precision + torch.diag_embed(damping[active, None] * diagonal)
        step = torch.linalg.solve_ex(damped, gradient.unsqueeze(-1)).result.squeeze(-1)
        decrement = (gradient * step).sum(-1)
        trial = u[active] + step
        trial_value = part.log_joint(trial.unsqueeze(1)).squeeze(1)
        better = trial_value >= value[active]
        u[active] = torch.where(better[:, None], trial, u[active])
        value[active] = torch.where(better, trial_value, value[active])
        damping[active] = torch.where(better, damping[active] / 5, damping[active] * 4).clamp(1e-14, 1e12)
        active = active[(decrement > tolerance) & (damping[active] < 1e10)]
    return u, value
