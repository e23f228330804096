"""ELBO*, computed instead of trained: the information projection of the true posterior onto Gaussians.

For a fixed decoder, the best Gaussian of each observation maximises a smooth function of a few numbers (Reizinger et
al. 2022, Eqs. 7 and 8). Expectations are quadratures, so there is no sampling noise, and a damped Newton method that
starts at the mode with the variances of Eq. 12 needs a few steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.core.validation import choice
from vaescope.distributions import FullGaussian, Normal, Posterior, Prior, kl
from vaescope.inference.derivatives import Decoder, along_axes, as_columns, push_forward
from vaescope.inference.joint import (
    CHUNK_NUMBERS,
    DecoderJoint,
    Precision,
    Rule,
    decoder_joint,
    find_mode,
    increasing_orders,
    laplace,
    rule,
    transform_nodes,
)

MAX_STEPS = 60  # of Newton's method


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


def maximise(
    joint: DecoderJoint, shape: Family, mean: Tensor, factor: Tensor, fine: Rule
) -> tuple[Tensor, Tensor, Tensor]:
    """Maximise the ELBO under this quadrature rule; returns mean, factor and the norm of the gradient."""
    coarse = rule(joint.dim, increasing_orders(joint.dim)[0], mean)
    value, gradient = _value_and_gradient(joint, shape, mean, factor, fine)
    active = torch.arange(len(mean), device=mean.device)
    for iteration in range(MAX_STEPS):
        active = active[gradient[active].norm(dim=1) > 1e-10]  # in units of the posterior
        if not len(active):
            break
        part = joint.take(active)
        # the Hessian of the coarse rule suffices for a direction; the few points that it fails on get the fine one
        hessian = _hessian(part, shape, mean[active], factor[active], coarse if iteration < 12 else fine)
        step = _ascent_direction(hessian, gradient[active], joint.dim)
        moved = _line_search(part, shape, mean[active], factor[active], value[active], gradient[active], step, fine)
        gain = (moved[2] - value[active]).abs()
        stuck = (gain == 0) & (moved[3].norm(dim=1) >= gradient[active].norm(dim=1))
        mean[active], factor[active], value[active], gradient[active] = moved
        active = active[~stuck]
    return mean, factor, gradient.norm(dim=1)


def _ascent_direction(hessian: Tensor, gradient: Tensor, dim: int) -> Tensor:
    """Newton's step with the absolute values of all curvatures, bounded away from zero.

    Scales change by at most a factor of e² per step. Means are not limited: if columns of the Jacobian are nearly
    parallel, the posterior is much longer than any diagonal Gaussian and the mean has far to go.
    """
    values, vectors = torch.linalg.eigh(-hessian)
    largest = values.abs().amax(-1, keepdim=True)
    values = values.abs().clamp_min(1e-14 * largest)
    along = torch.einsum("nji,nj->ni", vectors, gradient) / values
    step = torch.einsum("nij,nj->ni", vectors, along)
    widest = step[:, dim:].abs().amax(1, keepdim=True)
    return step * (2 / widest.clamp_min(1e-300)).clamp(max=1)


def _line_search(
    joint: DecoderJoint,
    shape: Family,
    mean: Tensor,
    factor: Tensor,
    value: Tensor,
    gradient: Tensor,
    step: Tensor,
    fine: Rule,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Shorten the step of each point until its ELBO increases (or, at rounding level, its gradient decreases)."""
    best = [mean.clone(), factor.clone(), value.clone(), gradient.clone()]
    active, length = torch.arange(len(mean), device=mean.device), 1.0
    norms = gradient.norm(dim=1)
    while len(active) and length > 1e-6:
        d = joint.dim
        a, b = length * step[active, :d], length * step[active, d:]
        m = mean[active] + torch.einsum("nij,nj->ni", factor[active], a)
        L = factor[active] @ shape.factor(b)
        v, g = _value_and_gradient(joint.take(active), shape, m, L, fine)
        slack = 1e-13 * (1 + value[active].abs())
        increases = v > value[active] + slack
        flattens = (v >= value[active] - slack) & (g.norm(dim=1) < norms[active])
        accepted = increases | flattens
        for store, new in zip(best, (m, L, v, g), strict=True):
            store[active[accepted]] = new[accepted]
        active, length = active[~accepted], length / 4
    return best[0], best[1], best[2], best[3]


def _value_and_gradient(
    joint: DecoderJoint, shape: Family, mean: Tensor, factor: Tensor, fine: Rule
) -> tuple[Tensor, Tensor]:
    """The ELBO without constants, and its gradient in p."""
    nodes, weights = fine
    features = shape.features(nodes)
    values, gradients = [], []
    for rows in joint.chunks(len(nodes)):
        part = joint.take(rows)
        L = factor[rows]

        def total(u: Tensor, part: DecoderJoint = part) -> tuple[Tensor, Tensor]:
            misfit = part.misfit(u)
            return misfit.sum(), misfit

        slope, misfit = torch.func.grad(total, has_aux=True)(transform_nodes(mean[rows], L, nodes))
        whitened = torch.einsum("nij,nqi->nqj", L, slope)
        values.append(misfit @ weights)
        gradients.append(torch.einsum("q,qdp,nqd->np", weights, features, whitened))
    zero = torch.zeros(len(mean), shape.size, dtype=mean.dtype, device=mean.device)
    regular = torch.func.grad(lambda p: _regular(joint, shape, mean, factor, p).sum())(zero)
    value = torch.cat(values) + _regular(joint, shape, mean, factor, zero)
    return value, torch.cat(gradients) + regular


def _hessian(joint: DecoderJoint, shape: Family, mean: Tensor, factor: Tensor, coarse: Rule) -> Tensor:
    """The Hessian in p: second derivatives of the misfit at the nodes, in the family's features."""
    nodes, weights = coarse
    features = shape.features(nodes)
    chunks = []
    for rows in joint.chunks(2 * len(nodes) * joint.dim):
        part, L = joint.take(rows), factor[rows]
        gradient, columns = _misfit_derivatives(part, transform_nodes(mean[rows], L, nodes))
        second = torch.einsum("nia,nqij,njb->nqab", L, columns, L)
        first = torch.einsum("q,qdp,nqd->np", weights, features, torch.einsum("nij,nqi->nqj", L, gradient))
        hessian = torch.einsum("q,qap,nqab,qbr->npr", weights, features, second, features)
        # a scale enters as exp(b), so its second derivative includes the first
        logs = shape.log_scales()
        hessian[:, logs, logs] += first[:, logs]
        chunks.append(hessian)
    return torch.cat(chunks) + _regular_hessian(joint, shape, mean, factor)


def _misfit_derivatives(
    joint: DecoderJoint, u: Float[Tensor, "N Q d"]
) -> tuple[Float[Tensor, "N Q d"], Float[Tensor, "N Q d d"]]:
    """Gradient and Hessian of the misfit at every node: in one pass, or for large outputs one column at a time."""

    def slope_of(own: DecoderJoint) -> Callable[[Tensor], Tensor]:
        return torch.func.grad(lambda u: own.misfit(u).sum())

    d = joint.dim
    points, directions = along_axes(u)
    if u.numel() * joint.x.shape[1] <= CHUNK_NUMBERS:
        gradients, columns = push_forward(
            slope_of(replace(joint, x=joint.x.repeat(d, 1), precision=joint.precision.repeat(d))), points, directions
        )
        return gradients[: len(u)], as_columns(columns, d)
    found = [push_forward(slope_of(joint), u, direction) for direction in directions.chunk(d)]
    return found[0][0], torch.stack([column for _, column in found], dim=-1)


# the part of the ELBO that does not depend on the decoder: prior and entropy -------------------


def _regular(joint: DecoderJoint, shape: Family, mean: Tensor, factor: Tensor, p: Tensor) -> Tensor:
    d = joint.dim
    moved = mean + torch.einsum("...ij,...j->...i", factor, p[..., :d])
    variance = (factor @ shape.factor(p[..., d:])).square().sum(-1)
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + shape.log_det(p[..., d:])
    return joint.prior.expected_log_density(moved, variance).sum(-1) + log_det


def _regular_hessian(joint: DecoderJoint, shape: Family, mean: Tensor, factor: Tensor) -> Tensor:
    size = shape.size
    rows = max(1, CHUNK_NUMBERS // (8 * size * joint.dim**2))
    chunks = []
    for m, L in zip(mean.split(rows), factor.split(rows), strict=True):
        means, factors = m.repeat(size, 1), L.repeat(size, 1, 1)
        slope = torch.func.grad(lambda p, m=means, L=factors: _regular(joint, shape, m, L, p).sum())
        zero = torch.zeros(len(m), size, dtype=m.dtype, device=m.device)
        chunks.append(as_columns(push_forward(slope, *along_axes(zero))[1], size))
    return torch.cat(chunks)


@dataclass(frozen=True, eq=False)
class Projection:
    """The best Gaussian of each point. Exclude points with `converged` False.

    `mean` and `variance` are those of the latents z. `posterior` is the Gaussian itself, in the unbounded coordinate u,
    which differs from z only for a bounded prior.
    """

    mean: Float[Tensor, "N d"]
    variance: Float[Tensor, "N d"]
    elbo: Float[Tensor, " N"]
    converged: Bool[Tensor, " N"]
    gradient_norm: Float[Tensor, " N"]
    quadrature_error: Float[Tensor, " N"]
    posterior: FullGaussian


def project(
    decoder: Decoder,
    x: Float[Tensor, "N ..."],
    *,
    precision: Precision,
    prior: Prior | None = None,
    start: Float[Tensor, "N d"] | None = None,
    latent_dim: int | None = None,
    family: str = "diagonal",
) -> Projection:
    """The Gaussian q of a family that maximises the ELBO of each x, and that ELBO.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        x: observations.
        precision: γ² = 1 / decoder variance; one number, one for each observation, or a `Noise`.
        prior: N(0, I) by default.
        start: a guess of the latents, such as g(x) or an encoder's means; by default the best of several searches.
        latent_dim: the number of latents; needed only if the decoder takes codes of several sizes.
        family: `diagonal`, `isotropic` or `full`.

    >>> W = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    >>> x = torch.ones(1, 2, dtype=torch.float64)
    >>> project(lambda z: z @ W.T, x, precision=1.0).variance
    tensor([[0.2000, 0.5000]], dtype=torch.float64)
    """
    joint, guess = decoder_joint(decoder, x, precision=precision, prior=prior, start=start, latent_dim=latent_dim)
    dim = joint.dim
    shape = make_family(family, dim)
    mode = find_mode(joint, guess)
    if family == "full":
        factor = laplace(joint, mode).factor
    else:  # Eq. 12 in u, or its mean over latents
        diagonal = joint.derivatives(mode)[1].diagonal(dim1=1, dim2=2)
        diagonal = diagonal.mean(-1, keepdim=True).expand_as(diagonal) if family == "isotropic" else diagonal
        factor = torch.diag_embed(diagonal.rsqrt())
    mean = mode
    norms = torch.full_like(mode[:, 0], math.inf)
    errors = norms.clone()
    todo = torch.arange(len(mode), device=mode.device)
    orders = increasing_orders(dim)
    for position, order in enumerate(orders):
        part = joint.take(todo)
        mean[todo], factor[todo], norms[todo] = maximise(part, shape, mean[todo], factor[todo], rule(dim, order, x))
        if position == 0:
            continue  # the lowest order only gives a starting point
        above = orders[min(position + 1, len(orders) - 1)]
        compared = orders[position - 1] if above == order else above
        here, there = (
            part.expected_misfit(mean[todo], factor[todo], rule(dim, other, x)) for other in (order, compared)
        )
        errors[todo] = (here - there).abs()
        todo = todo[errors[todo] > 1e-9]  # nats
        if not len(todo):
            break
    posterior = FullGaussian(mean, factor)
    value = _elbo(joint, posterior, rule(dim, orders[-1], mean))
    converged = (norms <= 1e-8) & value.isfinite()
    return Projection(
        *joint.prior.moments(mean, posterior.marginal_variance), value, converged, norms, errors, posterior
    )


def elbo(
    decoder: Decoder,
    x: Float[Tensor, "N ..."],
    posterior: Posterior,
    *,
    precision: Precision,
    prior: Prior | None = None,
) -> Float[Tensor, " N"]:
    """The ELBO of any Gaussian posterior (in u), by the finest quadrature rule.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        x: observations.
        posterior: one per observation, in u, the unbounded coordinate.
        precision: γ² = 1 / decoder variance; one number, one for each observation, or a `Noise`.
        prior: N(0, I) by default.
    """
    prior = Normal() if prior is None else prior
    if not isinstance(posterior, FullGaussian):
        posterior = FullGaussian(posterior.mean, torch.diag_embed(posterior.marginal_variance.sqrt()))
    mean = posterior.mean
    centre = prior.to_support(torch.full_like(mean[:1], prior.unbounded_centre()))
    joint, _ = decoder_joint(decoder, x, precision=precision, prior=prior, start=centre)
    return _elbo(joint, posterior, rule(joint.dim, increasing_orders(joint.dim)[-1], mean))


def _elbo(joint: DecoderJoint, posterior: FullGaussian, fine: Rule) -> Tensor:
    return joint.expected_misfit(posterior.mean, posterior.scale, fine) + joint.constant - kl(posterior, joint.prior)
