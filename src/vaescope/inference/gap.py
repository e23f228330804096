"""The gap between log p(x) and the ELBO, split into its parts: exactly, with a tolerance, or by sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.core import randomness, validation
from vaescope.core.errors import InputError
from vaescope.distributions import DiagonalGaussian, FullGaussian, IsotropicGaussian, Normal, Posterior, Prior
from vaescope.distributions.quadrature import hermite_grid
from vaescope.inference.anisotropic import Noise
from vaescope.inference.derivatives import Decoder, jacobians
from vaescope.inference.geometry import contrast_of_matrix, ima_contrast
from vaescope.inference.joint import (
    Curvature,
    Gaussian,
    LikelihoodJoint,
    LogLikelihood,
    Precision,
    decoder_joint,
    find_mode,
    inverse_factor,
    laplace,
    matched_nodes,
)
from vaescope.inference.marginal import inverse_latents, log_marginal, marginal
from vaescope.inference.projection import Projection, elbo, project


@dataclass(frozen=True, eq=False)
class Gap:
    """log p(x) - ELBO = family + amortization at each point, in nats.

    `family` is the gap of the best Gaussian of the family. As γ → ∞ that of diagonal Gaussians tends to `contrast`, the
    IMA contrast of the decoder at the mean of the best one; that of isotropic Gaussians to the conformal contrast, and
    that of full covariances to 0. `amortization` is what the encoder loses beyond it. Both are non-negative up to
    numerical error.
    """

    log_marginal: Float[Tensor, " N"]
    stderr: Float[Tensor, " N"]
    elbo: Float[Tensor, " N"]
    contrast: Float[Tensor, " N"]
    projection: Projection
    pareto_k: Float[Tensor, " N"] | None
    elbo_star: Float[Tensor, " N"]
    """The ELBO of the best Gaussian."""
    family: Float[Tensor, " N"]
    amortization: Float[Tensor, " N"]
    total: Float[Tensor, " N"]
    """log p(x) - ELBO."""
    converged: Bool[Tensor, " N"]
    """Whether the best Gaussian was found."""


def gap(
    decoder: Decoder,
    x: Float[Tensor, "N ..."],
    posterior: Posterior,
    *,
    precision: Precision,
    prior: Prior | None = None,
    method: str | None = None,
) -> Gap:
    """Split the gap of an encoder.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        x: observations.
        posterior: the encoder's posteriors of x, in u, the unbounded coordinate. The best Gaussian is of its family.
        precision: γ² = 1 / decoder variance; one number, one for each observation, or a `Noise`.
        prior: N(0, I) by default.
        method: how log p(x) is computed, see `log_marginal`; by default quadrature up to four latents, importance
            sampling above.

    >>> import torch
    >>> W = torch.tensor([[1.0, 0.5], [0.0, 1.0]], dtype=torch.float64)
    >>> q = DiagonalGaussian(torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64))
    >>> split = gap(lambda z: z @ W.T, torch.zeros(1, 2, dtype=torch.float64), q, precision=1e8)
    >>> torch.allclose(split.family, split.contrast)
    True
    """
    prior = Normal() if prior is None else prior
    families = {DiagonalGaussian: "diagonal", IsotropicGaussian: "isotropic", FullGaussian: "full"}
    if type(posterior) not in families:
        raise InputError(f"posterior must be one of vaescope's Gaussians, got {type(posterior).__name__}.")
    start, family = prior.to_support(posterior.mean), families[type(posterior)]
    best = project(decoder, x, precision=precision, prior=prior, start=start, family=family)
    method = method or ("quadrature" if posterior.mean.shape[1] <= 4 else "importance")
    likelihood = log_marginal(decoder, x, precision=precision, prior=prior, method=method, start=best.mean)
    whitened = precision.whitened(decoder) if isinstance(precision, Noise) else decoder
    own = elbo(decoder, x, posterior, precision=precision, prior=prior)
    return Gap(
        log_marginal=likelihood.value,
        stderr=likelihood.stderr,
        elbo=own,
        contrast=ima_contrast(whitened, best.mean),
        projection=best,
        pareto_k=likelihood.pareto_k,
        elbo_star=best.elbo,
        family=likelihood.value - best.elbo,
        amortization=best.elbo - own,
        total=likelihood.value - own,
        converged=best.converged,
    )


def ima_likelihood(
    decoder: Decoder,
    x: Float[Tensor, "N ..."],
    *,
    strength: float = 1.0,
    prior: Prior | None = None,
    start: Float[Tensor, "N d"] | None = None,
    latent_dim: int | None = None,
) -> Float[Tensor, " N"]:
    r"""L_IMA(x) = log p(x) - λ c_IMA(g(x)), with log p by the change of variables.

    .. math:: L_\lambda = \log p_0(g(x)) - \sum_k \log \|J_k\| + (1 - \lambda)\, c_{IMA}(g(x))

    λ = 1 is the limit of ELBO* as γ → ∞ (Reizinger et al. 2022, Theorem 1), λ = 0 the log-likelihood. With n > d
    outputs it is a density on the decoder's image: the limit of ELBO*, or of log p, minus (n - d)/2 log(γ²/2π), the
    density of the noise across the image.

    Args:
        decoder: an injective map of latents (N, d) to outputs (N, ...).
        x: observations in the decoder's image.
        strength: λ >= 0.
        prior: N(0, I) by default.
        start: latents from which to search for g(x); not needed if the decoder has an inverse.
        latent_dim: the number of latents; needed only if the decoder takes codes of several sizes.

    >>> W = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    >>> x = torch.zeros(1, 2, dtype=torch.float64)
    >>> ima_likelihood(lambda z: z @ W.T, x, strength=0.0) - ima_likelihood(lambda z: z @ W.T, x)  # c_IMA
    tensor([0.3466], dtype=torch.float64)
    """
    strength = validation.number("strength", strength, minimum=0.0)
    joint, guess = decoder_joint(decoder, x, precision=1.0, prior=prior, start=start, latent_dim=latent_dim)
    z = inverse_latents(joint, guess, "ima_likelihood")
    regularised = []
    for J in jacobians(decoder, z):
        penalty = 0.0 if strength == 1 else (1 - strength) * contrast_of_matrix(J)  # 0 times an infinite contrast
        regularised.append(penalty - J.norm(dim=1).log().sum(1))
    return joint.prior.log_density(z).sum(1) + torch.cat(regularised)


# any likelihood, a normal prior -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EncoderGap:
    """log p(x) - ELBO = family + amortization at each point, in nats, with the best diagonal posterior that was found.

    By sampling, `amortization` is a lower bound.
    """

    log_marginal: Float[Tensor, " N"]
    elbo: Float[Tensor, " N"]
    best_elbo: Float[Tensor, " N"]
    best: DiagonalGaussian
    converged: Bool[Tensor, " N"]
    """Whether the best posterior was found; otherwise `family` is too large and `amortization` too small."""
    error: float = math.nan
    """Largest change from the last quadrature order to the one before, of log p(x) and of the best ELBO."""
    pareto_k: Float[Tensor, " N"] | None = None
    """k̂ of importance sampling."""

    @property
    def family(self) -> Float[Tensor, " N"]:
        return self.log_marginal - self.best_elbo

    @property
    def amortization(self) -> Float[Tensor, " N"]:
        return self.best_elbo - self.elbo


def _better(
    first: DiagonalGaussian, first_elbo: Tensor, second: DiagonalGaussian, second_elbo: Tensor
) -> tuple[DiagonalGaussian, Tensor]:
    """The posterior with the higher ELBO at each point, and that ELBO."""
    higher = second_elbo > first_elbo
    pairs = ((second.mean, first.mean), (second.variance, first.variance))
    best = DiagonalGaussian(*(torch.where(higher[:, None], *pair) for pair in pairs))
    return best, torch.where(higher, second_elbo, first_elbo)


def _at_mode(joint: LikelihoodJoint, start: Tensor) -> DiagonalGaussian:
    """Eq. 12 at the mode of log p(x, z), searched from the encoder's mean."""
    z = find_mode(joint, start, steps=30)
    return DiagonalGaussian(z, 1 / joint.laplace_precision(z).diagonal(dim1=1, dim2=2))


QUADRATURE_ORDERS = {1: (7, 15, 31), 2: (4, 7, 13), 3: (3, 5, 9), 4: (3, 5)}  # by number of latents


def quadrature_gap(
    log_likelihood: LogLikelihood,
    posterior: DiagonalGaussian,
    prior: Normal,
    curvature: Curvature,
    *,
    tolerance: float = 0.01,
) -> EncoderGap:
    """Split the gap of an encoder with at most four latents.

    Args:
        log_likelihood: (rows, z) -> log p(x|z), where z[i] is a code of point rows[i].
        posterior: the encoder's posteriors, one per point.
        prior: one for all points, or with a row per point.
        curvature: Gauss-Newton curvature of -log p(x|z) at one code per point.
        tolerance: nats by which the result may change at the next quadrature order.

    >>> x = torch.zeros(4, 1, dtype=torch.float64)
    >>> q = DiagonalGaussian(x + 0.3, 0 * x + 0.5)
    >>> ones = torch.ones(4, 1, 1, dtype=torch.float64)
    >>> found = quadrature_gap(lambda rows, z: -0.5 * ((x[rows] - z) ** 2).sum(1), q, Normal(), lambda z: ones)
    >>> round(float(found.amortization[0]), 2)
    0.09
    """
    points, dim = posterior.mean.shape
    joint = LikelihoodJoint(prior, dim, log_likelihood, torch.arange(points), curvature)
    orders = QUADRATURE_ORDERS[dim]
    rules = {order: hermite_grid(dim, order, posterior.mean) for order in orders}
    start = _at_mode(joint, posterior.mean)
    lowest = rules[orders[0]]
    best, _ = _better(start, joint.elbo(start, *lowest), posterior, joint.elbo(posterior, *lowest))
    best, converged = _ascend_by_quadrature(joint, best, orders[0], tolerance)
    coarse, error = joint.elbo(best, *lowest), math.inf
    for order in orders[1:]:
        fine = joint.elbo(best, *rules[order])
        error = float((fine - coarse).abs().max())
        coarse = fine
        if error <= tolerance:
            break
        best, converged = _ascend_by_quadrature(joint, best, order, tolerance)
        coarse = joint.elbo(best, *rules[order])
    own = joint.elbo(posterior, *rules[order])
    best, best_elbo = _better(best, coarse, posterior, own)
    with torch.no_grad():
        around = laplace(joint, best.mean)
        found = marginal(joint, around, method="quadrature", orders=orders, tolerance=tolerance, together=True)
    return EncoderGap(found.value, own, best_elbo, best, converged, max(error, float(found.stderr.max())))


def _ascend_by_quadrature(
    joint: LikelihoodJoint, q: DiagonalGaussian, order: int, tolerance: float
) -> tuple[DiagonalGaussian, Bool[Tensor, " P"]]:
    """Newton steps in the mean, fixed-point steps 1/σ² = E[-∂² log p(x, z)] in the variances, both damped."""
    nodes, weights = hermite_grid(joint.dim, order, q.mean)
    rows = torch.arange(len(joint)).repeat_interleave(len(nodes))
    prior_precision = 1 / torch.as_tensor(joint.prior.mean_and_variance()[1]).to(q.mean)

    def gradients(q: DiagonalGaussian) -> tuple[Tensor, Tensor, Tensor]:
        """The ELBO, its gradient in the mean, and E[-∂² log p(x, z)/∂z_k²] by Stein's identity."""
        codes = q.mean.unsqueeze(1) + q.variance.sqrt().unsqueeze(1) * nodes
        value, slope = joint.with_gradient(rows, codes.flatten(0, 1))
        value, slope = value.reshape(codes.shape[:2]), slope.reshape(codes.shape)
        curved = -torch.einsum("q,pqd,qd->pd", weights, slope, nodes) / q.variance.sqrt()
        return value @ weights + q.entropy(), torch.einsum("q,pqd->pd", weights, slope), curved

    size = torch.ones(len(joint), 1).to(q.mean)
    value, gradient, curved = gradients(q)
    converged = torch.zeros(len(value), dtype=torch.bool)
    for _ in range(40):
        step = torch.linalg.solve(joint.laplace_precision(q.mean), gradient.unsqueeze(2)).squeeze(2)
        wanted = torch.maximum(curved, 0.1 * prior_precision)
        log_step = (1 / wanted).log() - q.variance.log()
        trial = DiagonalGaussian(q.mean + size * step, q.variance * (size * log_step).clamp(-3, 3).exp())
        found = gradients(trial)
        better = found[0] > value
        gain = torch.where(better, found[0] - value, torch.zeros_like(value))
        converged = torch.where(better, gain < tolerance / 10, converged | (size.squeeze(1) < 1e-2))
        q = DiagonalGaussian(
            torch.where(better[:, None], trial.mean, q.mean), torch.where(better[:, None], trial.variance, q.variance)
        )
        value, gradient, curved = (
            torch.where(better if new.ndim == 1 else better[:, None], new, old)
            for new, old in zip(found, (value, gradient, curved), strict=True)
        )
        size = torch.where(better[:, None], (2 * size).clamp(max=1), size / 3)
        if bool(converged.all()):
            break
    return q, converged


def sampled_gap(
    log_likelihood: LogLikelihood,
    posterior: DiagonalGaussian,
    prior: Normal,
    *,
    curvature: Curvature | None = None,
    seed: int = 0,
) -> EncoderGap:
    """Split the gap of an encoder with any number of latents.

    Args:
        log_likelihood: (rows, z) -> log p(x|z), where z[i] is a code of point rows[i].
        posterior: the encoder's posteriors, one per point.
        prior: one for all points, or with a row per point.
        curvature: of -log p(x|z), at one code per point; it shapes the proposals of importance sampling.
        seed: of all draws.

    >>> x = torch.zeros(4, 1, dtype=torch.float64)
    >>> q = DiagonalGaussian(x + 0.3, 0 * x + 0.5)
    >>> found = sampled_gap(lambda rows, z: -0.5 * ((x[rows] - z) ** 2).sum(1), q, Normal())
    >>> bool((found.family.abs() < 0.1).all()), round(float(found.amortization[0]), 2)
    (True, 0.09)
    """
    points, dim = posterior.mean.shape
    joint = LikelihoodJoint(prior, dim, log_likelihood, torch.arange(points), curvature)
    generator = randomness.generator(seed, "sampled gap")
    nodes = matched_nodes(dim, max(256, 8 * dim))  # the same for all posteriors
    own = joint.elbo(posterior, nodes)
    start, start_elbo = posterior, own
    if curvature is not None:
        at_mode = _at_mode(joint, posterior.mean)
        start, start_elbo = _better(start, start_elbo, at_mode, joint.elbo(at_mode, nodes))
    first = _ascend_by_sampling(joint, start, generator, first_step=0.3, steps=240)
    second = _ascend_by_sampling(joint, first, generator, first_step=0.05, steps=80)  # should gain nothing
    elbos = joint.elbo(first, nodes), joint.elbo(second, nodes)
    converged = elbos[1] - elbos[0] < 0.1
    best, best_elbo = _better(*_better(start, start_elbo, first, elbos[0]), second, elbos[1])
    with torch.no_grad():
        factor = torch.diag_embed(best.variance.sqrt())
        if curvature is not None:
            inverse = inverse_factor(joint.laplace_precision(best.mean))
            valid = inverse.isfinite().all(-1).all(-1)
            factor = torch.where(valid[:, None, None], inverse, factor)
        around = Gaussian(best.mean, factor)
        found = marginal(joint, around, method="importance", samples=1000, generator=generator)
    return EncoderGap(found.value, own, best_elbo, best, converged, pareto_k=found.pareto_k)


def _ascend_by_sampling(
    joint: LikelihoodJoint, start: DiagonalGaussian, generator: torch.Generator, *, first_step: float, steps: int
) -> DiagonalGaussian:
    """Adam on the reparametrised ELBO, in units of the starting posterior, with a decaying step size."""
    scale = start.variance.sqrt()
    shifts = torch.zeros_like(start.mean).requires_grad_()
    logs = torch.zeros_like(start.mean).requires_grad_()
    adam = torch.optim.Adam([shifts, logs], lr=first_step, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.ExponentialLR(adam, (0.005 / first_step) ** (1 / steps))
    rows = torch.arange(len(joint)).repeat_interleave(8)
    with torch.enable_grad():
        for _ in range(steps):
            mean, variance = start.mean + scale * shifts, start.variance * logs.exp()
            half = torch.randn(4, joint.dim, generator=generator, dtype=torch.float64)
            codes = mean.unsqueeze(1) + variance.sqrt().unsqueeze(1) * torch.cat([half, -half]).to(mean)
            value = joint.at(rows, codes.flatten(0, 1)).reshape(codes.shape[:2]).mean(1)
            adam.zero_grad()
            (-(value + DiagonalGaussian(mean, variance).entropy()).sum()).backward()
            for parameter in (shifts, logs):
                assert parameter.grad is not None
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
            adam.step()
            schedule.step()
    return DiagonalGaussian((start.mean + scale * shifts).detach(), (start.variance * logs.exp()).detach())
