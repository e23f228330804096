"""The expected curvature of the likelihood at the codes of a sample, with latents in units of their prior."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.adapters.networks import call_user_function
from vaescope.encoded import EncodedSample, differentiate
from vaescope.encoded.derivatives import CODES
from vaescope.encoded.weights import declared_beta, output_weights
from vaescope.errors import InputError
from vaescope.protocol import LogLikelihood

DRAWS = 4  # of z per sample, mirrored


@dataclass(frozen=True, eq=False)
class Curvature:
    """Λ = -E_q ∇² log p(x|z) / β at each code, with latents in standard deviations of their prior."""

    latents: list[int]
    matrices: Float[Tensor, "P u u"]
    prior_variance: Float[Tensor, "P u"]
    """At each code: 1, unless the prior depends on an auxiliary input."""
    column_norms: Float[Tensor, "P u"]
    """How far the output moves per standard deviation of each latent, in units of the noise."""


def measure_curvature(sample: EncodedSample, used: list[int]) -> Curvature:
    """Curvature of the latents in use, at random codes.

    Gaussian and Bernoulli likelihoods: the Gauss-Newton matrix γ² JᵀWJ, averaged over draws of z from the posterior; an
    unknown precision is that which the widths of the posteriors imply. Other likelihoods: second derivatives.
    """
    codes, own = sample.random_subset(CODES), sample.model.log_likelihood
    codes, matrices = _gauss_newton(codes, used) if own is None else _second_derivatives(codes, used, own)
    variance = codes.prior_variance[:, used].double().cpu()
    scale = variance.mean(0).sqrt()
    found = matrices / declared_beta(sample.model) * scale[:, None] * scale
    return Curvature(used, found, variance / scale.square(), found.diagonal(dim1=1, dim2=2).sqrt())


def _at_rows(codes: EncodedSample, rows: np.ndarray) -> EncodedSample:
    """The samples of these rows of x, in this order."""
    place = {row: index for index, row in enumerate(codes.rows.tolist())}
    index = torch.tensor([place[row] for row in rows.tolist()])
    values = (codes.x, codes.mean, codes.variance, codes.prior_mean, codes.prior_variance)
    return EncodedSample(codes.model, rows, *(value[index] for value in values))


def _draws(codes: EncodedSample) -> list[Float[Tensor, "P d"]]:
    """Draws from the posteriors, each with its mirror image."""
    generator = randomness.generator(0, "identifiability")
    found = []
    for _ in range(DRAWS // 2):
        noise = torch.randn(codes.mean.shape, generator=generator, dtype=torch.float64).to(codes.mean)
        found += [codes.mean + sign * codes.variance.sqrt() * noise for sign in (1, -1)]
    return found


def _gauss_newton(codes: EncodedSample, used: list[int]) -> tuple[EncodedSample, Float[Tensor, "P u u"]]:
    grams = []
    for z in _draws(codes):
        found = differentiate(replace(codes, mean=z), used)
        count = len(found.columns)
        J = found.columns * output_weights(codes.model.likelihood, found.sample.decoded[:count].double())
        grams.append(J.mT @ J)
    gram = torch.stack(grams).mean(0)
    codes = _at_rows(codes, found.sample.rows[:count])
    return codes, _precision(codes, used, gram) * gram


def _precision(codes: EncodedSample, used: list[int], gram: Float[Tensor, "P u u"]) -> float:
    """γ²: declared, 1 under a Bernoulli likelihood, or what Eq. 12 implies from the widths of the posteriors."""
    if codes.model.likelihood == "bernoulli":
        return 1.0
    if codes.model.precision is not None:
        return codes.model.precision
    added = 1 / codes.variance[:, used].double() - 1 / codes.prior_variance[:, used].double()
    ratios = added / gram.diagonal(dim1=1, dim2=2)
    reliable = (added * codes.prior_variance[:, used].double() > 1) & ratios.isfinite()
    if not bool(reliable.any()):
        raise InputError("the precision of the decoder is not known, and posteriors are too wide to imply it.")
    return float(ratios[reliable].median()) * declared_beta(codes.model)


def _second_derivatives(
    codes: EncodedSample, used: list[int], log_p: LogLikelihood
) -> tuple[EncodedSample, Float[Tensor, "P u u"]]:
    total = torch.zeros(len(codes), len(used), len(used), dtype=torch.float64)
    for z in _draws(codes):
        with torch.enable_grad():
            point = z.detach().clone().requires_grad_()
            value = call_user_function("log_likelihood", log_p, codes.x.flatten(1), point)
            if not value.requires_grad:
                raise InputError("log_likelihood detaches its output from z.")
            (slope,) = torch.autograd.grad(value.sum(), point, create_graph=True)
            for row, k in enumerate(used):
                (second,) = torch.autograd.grad(slope[:, k].sum(), point, retain_graph=True, allow_unused=True)
                total[:, row] -= 0 if second is None else second[:, used].detach().double().cpu() / DRAWS
    return codes, _nearest_positive((total + total.mT) / 2)


def _nearest_positive(matrices: Float[Tensor, "P u u"]) -> Float[Tensor, "P u u"]:
    values, vectors = torch.linalg.eigh(matrices.nan_to_num(0.0, 0.0, 0.0))
    return (vectors * values.clamp(min=0).unsqueeze(1)) @ vectors.mT
