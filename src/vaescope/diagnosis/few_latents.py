"""The gap with few latents: expectations by quadrature, low orders first, all points through the decoder at once.

`theory.gap` solves the same problem to rounding error. Here the decoder is evaluated at a few nodes per point and step,
derivatives are first derivatives, and orders rise only until the ELBO changes by less than the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.distributions import DiagonalGaussian, Normal, kl
from vaescope.distributions.quadrature import hermite_grid
from vaescope.errors import InputError

LogLikelihood = Callable[[Tensor, Tensor], Tensor]
"""(rows, z) -> log p(x|z): row i of z is a code of point rows[i]."""
Curvature = Callable[[Tensor], Tensor]
"""(P, d) codes, one per point -> (P, d, d) expected curvatures of -log p(x|z)."""

ORDERS = {1: (7, 15, 31), 2: (4, 7, 13), 3: (3, 5, 9), 4: (3, 5)}
"""Quadrature orders by number of latents."""
STEPS = 40
MODE_STEPS = 20
TOLERANCE = 0.01  # nats
CODES_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class QuadratureGap:
    """log p(x), the ELBO and the best ELBO of each point."""

    log_marginal: Float[Tensor, " P"]
    elbo: Float[Tensor, " P"]
    best_elbo: Float[Tensor, " P"]
    best: DiagonalGaussian
    converged: Bool[Tensor, " P"]
    error: float
    """Largest change from the last quadrature order to the one before, of log p(x) and of the best ELBO."""


def quadrature_gap(
    log_likelihood: LogLikelihood,
    posterior: DiagonalGaussian,
    prior: Normal,
    curvature: Curvature,
    *,
    tolerance: float = TOLERANCE,
) -> QuadratureGap:
    """Split the gap of an encoder with at most four latents.

    Args:
        log_likelihood: (rows, z) -> log p(x|z), where z[i] is a code of point rows[i].
        posterior: the encoder's posteriors, one per point.
        prior: with a row per point.
        curvature: Gauss-Newton curvature of -log p(x|z) at one code per point.
        tolerance: nats by which the result may change at the next quadrature order.

    >>> x = torch.zeros(4, 1, dtype=torch.float64)
    >>> q = DiagonalGaussian(x + 0.3, 0 * x + 0.5)
    >>> ones = torch.ones(4, 1, 1, dtype=torch.float64)
    >>> prior = Normal(x, 0 * x + 1)
    >>> found = quadrature_gap(lambda rows, z: -0.5 * ((x[rows] - z) ** 2).sum(1), q, prior, lambda z: ones)
    >>> round(float((found.best_elbo - found.elbo)[0]), 2)
    0.09
    """
    problem = _Problem(log_likelihood, prior, curvature, posterior.mean.shape[1])
    orders = ORDERS[problem.dim]
    start = _better(problem, posterior, problem.at_mode(posterior.mean), orders[0])
    best, converged = _ascend(problem, start, orders[0], tolerance)
    coarse = problem.elbo(best, orders[0])
    error = math.inf
    for order in orders[1:]:
        fine = problem.elbo(best, order)
        error = float((fine - coarse).abs().max())
        coarse = fine
        if error <= tolerance:
            break
        best, converged = _ascend(problem, best, order, tolerance)
        coarse = problem.elbo(best, order)
    elbo = problem.elbo(posterior, order)
    better = coarse >= elbo
    best = DiagonalGaussian(*(torch.where(better[:, None], a, b) for a, b in _pairs(best, posterior)))
    value, change = problem.log_marginal(best.mean, tolerance)
    return QuadratureGap(value, elbo, torch.maximum(coarse, elbo), best, converged, max(error, change))


@dataclass(frozen=True, eq=False)
class _Problem:
    log_likelihood: LogLikelihood
    prior: Normal
    curvature: Curvature
    dim: int

    def evaluate(self, z: Float[Tensor, "P Q d"], *, slope: bool = False) -> tuple[Tensor, Tensor | None]:
        """log p(x|z) of all codes (P, Q), and its gradient in z."""
        rows = torch.arange(len(z)).repeat_interleave(z.shape[1])
        values, slopes = [], []
        for r, part in zip(rows.split(CODES_AT_ONCE), z.flatten(0, 1).split(CODES_AT_ONCE), strict=True):
            with torch.set_grad_enabled(slope):
                codes = part.detach().requires_grad_(slope)
                value = self.log_likelihood(r, codes)
                if slope and not value.requires_grad:
                    raise InputError("the decoder detaches its output from its input")
                if slope:
                    slopes.append(torch.autograd.grad(value.sum(), codes)[0])
                values.append(value.detach())
        found = torch.cat(values).reshape(z.shape[:2])
        return found, torch.cat(slopes).reshape(z.shape) if slope else None

    def elbo(self, q: DiagonalGaussian, order: int) -> Float[Tensor, " P"]:
        nodes, weights = hermite_grid(self.dim, order, q.mean)
        return self.evaluate(_codes(q, nodes))[0] @ weights - kl(q, self.prior)

    def gradients(self, q: DiagonalGaussian, order: int) -> tuple[Tensor, Tensor, Tensor]:
        """The ELBO, its gradient in the mean, and E[-∂²log p(x|z)/∂z_k²] by Stein's identity."""
        nodes, weights = hermite_grid(self.dim, order, q.mean)
        value, slope = self.evaluate(_codes(q, nodes), slope=True)
        assert slope is not None
        slope = slope.nan_to_num(0.0, 0.0, 0.0)
        pull = (q.mean - torch.as_tensor(self.prior.mean)) / torch.as_tensor(self.prior.variance)
        gradient = torch.einsum("q,pqd->pd", weights, slope) - pull
        curved = -torch.einsum("q,pqd,qd->pd", weights, slope, nodes) / q.variance.sqrt()
        return value @ weights - kl(q, self.prior), gradient, curved

    def precision(self, z: Float[Tensor, "P d"]) -> Float[Tensor, "P d d"]:
        """Σ†⁻¹ + curvature."""
        return self.curvature(z) + torch.diag_embed(1 / torch.as_tensor(self.prior.variance).to(z))

    def log_joint(self, z: Float[Tensor, "P Q d"]) -> Float[Tensor, "P Q"]:
        prior = Normal(*(torch.as_tensor(v).unsqueeze(1) for v in (self.prior.mean, self.prior.variance)))
        return self.evaluate(z)[0] + prior.log_density(z).sum(-1)

    def at_mode(self, start: Float[Tensor, "P d"]) -> DiagonalGaussian:
        """Eq. 12 at the mode of log p(x, z), by damped Gauss-Newton steps."""
        z, size = start.clone(), torch.ones(len(start), 1).to(start)
        value = self.log_joint(z.unsqueeze(1)).squeeze(1)
        for _ in range(MODE_STEPS):
            _, slope = self.evaluate(z.unsqueeze(1), slope=True)
            assert slope is not None
            pull = (z - torch.as_tensor(self.prior.mean)) / torch.as_tensor(self.prior.variance)
            step = torch.linalg.solve(self.precision(z), (slope.squeeze(1) - pull).unsqueeze(2)).squeeze(2)
            trial = z + size * step
            found = self.log_joint(trial.unsqueeze(1)).squeeze(1)
            better = found > value
            gained = float((found - value)[better].detach().max()) if bool(better.any()) else 0.0
            z, value = torch.where(better[:, None], trial, z), torch.where(better, found, value)
            size = torch.where(better[:, None], (2 * size).clamp(max=1), size / 4)
            if gained < 1e-3 and float(size.min()) > 1e-3:
                break
        return DiagonalGaussian(z, 1 / self.precision(z).diagonal(dim1=1, dim2=2))

    def log_marginal(self, mean: Float[Tensor, "P d"], tolerance: float) -> tuple[Tensor, float]:
        """log p(x) with nodes placed by the Laplace covariance, and the change at the last order."""
        factor = torch.linalg.cholesky(torch.linalg.inv(self.precision(mean)))
        log_volume = factor.diagonal(dim1=1, dim2=2).log().sum(-1) + 0.5 * self.dim * math.log(2 * math.pi)
        value, change = None, math.inf
        for order in ORDERS[self.dim]:
            nodes, weights = hermite_grid(self.dim, order, mean)
            z = mean.unsqueeze(1) + torch.einsum("pij,qj->pqi", factor, nodes)
            found = torch.logsumexp(self.log_joint(z) + weights.log() + 0.5 * nodes.square().sum(-1), 1) + log_volume
            change = math.inf if value is None else float((found - value).abs().max())
            value = found
            if change <= tolerance:
                break
        assert value is not None
        return value, change


def _codes(q: DiagonalGaussian, nodes: Float[Tensor, "Q d"]) -> Float[Tensor, "P Q d"]:
    return q.mean.unsqueeze(1) + q.variance.sqrt().unsqueeze(1) * nodes


def _pairs(a: DiagonalGaussian, b: DiagonalGaussian) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return (a.mean, b.mean), (a.variance, b.variance)


def _better(problem: _Problem, a: DiagonalGaussian, b: DiagonalGaussian, order: int) -> DiagonalGaussian:
    higher = problem.elbo(a, order) > problem.elbo(b, order)
    return DiagonalGaussian(*(torch.where(higher[:, None], *pair) for pair in _pairs(a, b)))


def _ascend(
    problem: _Problem, start: DiagonalGaussian, order: int, tolerance: float
) -> tuple[DiagonalGaussian, Bool[Tensor, " P"]]:
    """Newton steps in the mean, fixed-point steps 1/σ² = 1/σ†² + E[-∂²log p(x|z)] in the variances, both damped."""
    q, size = start, torch.ones(len(start.mean), 1).to(start.mean)
    value, gradient, curved = problem.gradients(q, order)
    prior_precision = 1 / torch.as_tensor(problem.prior.variance).to(q.mean)
    converged = torch.zeros(len(value), dtype=torch.bool)
    for _ in range(STEPS):
        full = problem.precision(q.mean)
        step = torch.linalg.solve(full, gradient.unsqueeze(2)).squeeze(2)
        wanted = (prior_precision + curved).clamp(min=0.1 * prior_precision)
        log_step = (1 / wanted).log() - q.variance.log()
        trial = DiagonalGaussian(q.mean + size * step, q.variance * (size * log_step).clamp(-3, 3).exp())
        found = problem.gradients(trial, order)
        better = found[0] > value
        gain = torch.where(better, found[0] - value, torch.zeros_like(value))
        converged = torch.where(better, gain < tolerance / 10, converged | (size.squeeze(1) < 1e-2))
        q = DiagonalGaussian(*(torch.where(better[:, None], *pair) for pair in _pairs(trial, q)))
        value, gradient, curved = (
            torch.where(better if new.ndim == 1 else better[:, None], new, old)
            for new, old in zip(found, (value, gradient, curved), strict=True)
        )
        size = torch.where(better[:, None], (2 * size).clamp(max=1), size / 3)
        if bool(converged.all()):
            break
    return q, converged
