r"""The next order: the mean of the optimal posterior, ELBO*, log p and their gap beyond the near-deterministic limit.

Let P = γ² JᵀJ + diag(κ) with κ = -(log p₀)'', s_k = 1/P_kk, C = P⁻¹, and let V be the misfit of `taylor`. Expanding the
ELBO of N(z + a, diag(s)) around z = g(x) and maximising over a, and expanding the integral of p(x, z) likewise, gives

.. math::
    \text{ELBO}^* &= \ell - \tfrac12 \sum_k \log P_{kk} + \tfrac12 b_s^\top C b_s
        - \tfrac{\gamma^2}8 V_{kkll} s_k s_l \\
    \log p &= \ell - \tfrac12 \log\det P + \tfrac12 b_C^\top C b_C
        + \tfrac{\gamma^4}{12} V_{ijk} V_{lmn} C_{il} C_{jm} C_{kn} - \tfrac{\gamma^2}8 V_{ijkl} C_{ij} C_{kl} \\
    b_\Sigma &= (\log p_0)' - \tfrac{\gamma^2}2 V_{\cdot jk} \Sigma_{jk}, \qquad
    \ell = \log p_0(z) + \tfrac d2 \log 2\pi + \tfrac n2 \log \tfrac{\gamma^2}{2\pi}

up to O(1/γ⁴). For a linear decoder with a Gaussian prior both are exact at every γ². This extends Theorem 1 of
Reizinger et al. 2022, whose gap is c_IMA + O(1/γ²), and corrects its Prop. 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.core import validation
from vaescope.distributions import Normal, Prior
from vaescope.distributions.quadrature import hermite_grid
from vaescope.inference.derivatives import (
    CHUNK_ELEMENTS,
    Decoder,
    along,
    check_decoder,
    check_latents,
    decode_flat,
    elementwise_derivatives,
)
from vaescope.inference.geometry import check_support, contrast_of_matrix, ima_contrast
from vaescope.inference.joint import DecoderJoint, inverse_factor, quasi_random


@dataclass(frozen=True, eq=False)
class Taylor:
    """The decoder's first two derivatives at some points, and those of the prior's log density, in u."""

    function: Decoder
    prior: Prior
    u: Float[Tensor, "N d"]
    J: Float[Tensor, "N n d"]
    H: Float[Tensor, "N n d d"]
    log_prior: Float[Tensor, " N"]
    slope: Float[Tensor, "N d"]
    curvature: Float[Tensor, "N d"]
    """-(log p)'', not clamped: negative where the prior is not log-concave."""

    def third(self) -> Float[Tensor, "N d d d"]:
        """V_ijk."""
        part = torch.einsum("noi,nojk->nijk", self.J, self.H)
        return part + part.permute(0, 2, 1, 3) + part.permute(0, 2, 3, 1)

    def fourth(self, frame: Float[Tensor, "N d d"]) -> Float[Tensor, " N"]:
        """V_ijkl C_ij C_kl, where C = A Aᵀ and the columns of A are given."""
        turned = torch.einsum("noij,nik,njl->nokl", self.H, frame, frame)
        trace = turned.diagonal(dim1=2, dim2=3).sum(-1)
        second = trace.square().sum(1) + 2 * turned.square().sum((1, 2, 3))
        columns = torch.einsum("noi,nik->nok", self.J, frame)

        def laplacian(u: Tensor) -> Tensor:
            parts = [along(along(self.function, column), column)(u) for column in frame.unbind(-1)]
            return torch.stack(parts).sum(0)

        third = [
            (columns[:, :, k] * along(laplacian, column)(self.u)).sum(1) for k, column in enumerate(frame.unbind(-1))
        ]
        return second + 4 * torch.stack(third).sum(0)


def expand_misfit(decoder: Decoder, z: Float[Tensor, "N d"], prior: Prior) -> Iterator[Taylor]:
    """Taylor coefficients of consecutive chunks of points, so that memory does not grow with N."""
    check_latents(z)
    outputs = check_decoder(decoder, z)
    check_support(z, prior)

    def function(u: Tensor) -> Tensor:
        return decode_flat(decoder, prior.to_support(u))

    def log_density(u: Tensor) -> Tensor:
        return prior.log_density(prior.to_support(u)) + prior.log_derivative(u)

    for u in prior.from_support(z).split(max(1, CHUNK_ELEMENTS // (outputs * z.shape[1] ** 2))):
        value, slope, second = elementwise_derivatives(log_density, u)
        d = u.shape[1]
        axes = torch.eye(d, dtype=u.dtype, device=u.device).unsqueeze(1).expand(d, *u.shape)
        first = [along(function, axis) for axis in axes]
        rows: list[list[Tensor]] = [[] for _ in range(d)]
        for i in range(d):
            for j in range(d):
                rows[i].append(rows[j][i] if j < i else along(first[i], axes[j])(u))
        J = torch.stack([column(u) for column in first], dim=-1)
        H = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
        yield Taylor(function, prior, u, J, H, value.sum(1), slope, -second)


NODES = 700  # of the quadrature that measures the remainder, at most


@dataclass(frozen=True, eq=False)
class Expansion:
    """Closed forms at x = f(z), in nats, with errors of order 1/γ⁴. NaN where P is not positive definite."""

    elbo: Float[Tensor, " N"]
    log_marginal: Float[Tensor, " N"]
    linear_gap: Float[Tensor, " N"]
    """½ [Σ log P_kk - log det P], the gap if the decoder were linear; it tends to c_IMA as γ → ∞."""
    prior_coefficient: Float[Tensor, " N"]
    """The limit of γ² (linear_gap - c_IMA), ½ Σ κ_k [1/‖J_k‖² - (JᵀJ)⁻¹_kk]: at most 0 for a log-concave prior."""
    curvature: Float[Tensor, " N"]
    """What the curvature of the decoder adds to the gap, of order 1/γ²."""
    curvature_coefficient: Float[Tensor, " N"]
    """The limit of γ² times `curvature` as γ → ∞; NaN unless J has full column rank."""
    remainder: Float[Tensor, " N"]
    """E log p(x, z) under N(z, diag(s)) by quadrature, minus its expansion: what derivatives at z do not explain."""

    @property
    def gap(self) -> Float[Tensor, " N"]:
        """log p(x) - ELBO*(x)."""
        return self.linear_gap + self.curvature


def expansion(decoder: Decoder, z: Float[Tensor, "N d"], *, precision: float, prior: Prior | None = None) -> Expansion:
    """ELBO*, log p and their gap at x = f(z), to the order beyond Theorem 1 of Reizinger et al. 2022.

    Args:
        decoder: a smooth map of latents (N, d) to outputs (N, ...).
        z: latents; the observations are f(z).
        precision: γ² = 1 / decoder variance.
        prior: N(0, I) by default; smooth on its support.

    >>> found = expansion(lambda z: z + 0.1 * z**2, torch.full((1, 1), 0.5, dtype=torch.float64), precision=1e4)
    >>> round(float(1e4 * found.gap), 4)  # ¾ f''² / f'⁴
    0.0205
    """
    gamma2 = validation.precision(precision)
    prior = Normal() if prior is None else prior
    parts = [_expand(taylor, decoder, gamma2) for taylor in expand_misfit(decoder, z, prior)]
    return Expansion(*(torch.cat(values) for values in zip(*parts, strict=True)))


def _expand(taylor: Taylor, decoder: Decoder, gamma2: float) -> tuple[Tensor, ...]:
    (n, d), u, kappa = taylor.J.shape[1:], taylor.u, taylor.curvature
    gram = taylor.J.mT @ taylor.J
    P = gamma2 * gram + torch.diag_embed(kappa)
    diagonal, factor = P.diagonal(dim1=1, dim2=2), inverse_factor(P)
    next_elbo, next_log_p, fourth = _next_order(taylor, gamma2, diagonal, factor)
    # ½ [Σ log P_kk - log det P], without cancellation where the prior is log-concave
    exact = contrast_of_matrix(
        torch.cat([math.sqrt(gamma2) * taylor.J, torch.diag_embed(kappa.clamp_min(0).sqrt())], dim=1)
    )
    direct = 0.5 * diagonal.log().sum(1) + factor.diagonal(dim1=1, dim2=2).log().sum(1)
    linear_gap = torch.where((kappa >= 0).all(1) & direct.isfinite(), exact, direct)
    # E[-γ²/2 ‖x - f(z)‖² + log p₀(z)] under N(z, diag(1 / P_kk)), by quadrature and by the expansion
    nodes = hermite_grid(d, 5, u) if 5**d <= NODES else quasi_random(d, NODES, u)
    joint = DecoderJoint(taylor.prior, d, decoder, taylor.function(u), torch.full_like(u[:, 0], gamma2))
    expected = joint.expected_misfit(u, torch.diag_embed(diagonal.rsqrt()), nodes)
    expected = expected + taylor.prior.expected_log_density(u, 1 / diagonal).sum(1)
    predicted = taylor.log_prior - 0.5 * d - fourth  # P_kk s_k = 1 joins the terms of misfit and prior
    axes = torch.eye(d).to(u)
    inverse = torch.stack([_solve_gram(taylor.J, axis.expand_as(u))[:, k] for k, axis in enumerate(axes)], dim=1)
    spread = 1 / taylor.J.square().sum(1)
    limits = _next_order(taylor, 1.0, gram.diagonal(dim1=1, dim2=2), inverse_factor(gram))
    level = taylor.log_prior + 0.5 * d * math.log(2 * math.pi) + 0.5 * n * math.log(gamma2 / (2 * math.pi))
    elbo = level - 0.5 * diagonal.log().sum(1)
    return (
        elbo + next_elbo,
        elbo + linear_gap + next_log_p,
        linear_gap,
        0.5 * (kappa * (spread - inverse)).sum(1),
        next_log_p - next_elbo,
        limits[1] - limits[0],
        expected - predicted,
    )


def _next_order(
    taylor: Taylor, gamma2: float, diagonal: Float[Tensor, "N d"], factor: Float[Tensor, "N d d"]
) -> tuple[Tensor, Tensor, Tensor]:
    """What follows the logarithms in ELBO* and in log p, and the term with V_kkll in the first of them."""

    def quadratic(b: Float[Tensor, "N d"]) -> Float[Tensor, " N"]:
        return torch.einsum("nij,ni,nj->n", C, b, b)

    C, V3 = factor @ factor.mT, taylor.third()
    b_s = taylor.slope - 0.5 * gamma2 * torch.einsum("nikk,nk->ni", V3, 1 / diagonal)
    b_C = taylor.slope - 0.5 * gamma2 * torch.einsum("nijk,njk->ni", V3, C)
    turned = torch.einsum("nijk,nia,njb,nkc->nabc", V3, factor, factor, factor)
    fourth = gamma2 / 8 * taylor.fourth(torch.diag_embed(diagonal.rsqrt()))
    next_log_p = 0.5 * quadratic(b_C) - gamma2 / 8 * taylor.fourth(factor)
    return 0.5 * quadratic(b_s) - fourth, next_log_p + gamma2**2 / 12 * turned.square().sum((1, 2, 3)), fourth


def mean_offset(
    decoder: Decoder, z: Float[Tensor, "N d"], *, precision: float, prior: Prior | None = None
) -> Float[Tensor, "N d"]:
    r"""The leading term of μ* - g(x) at z = g(x): how far the optimal posterior's mean is from the inverse decoder.

    .. math:: \mu^* - g(x) = \frac1{\gamma^2} (J^\top J)^{-1} \Big( (\log p_0)'
        - \tfrac12 \sum_k \frac{J_i \cdot H_{kk} + 2 J_k \cdot H_{ik}}{\|J_k\|^2} \Big) + O(1/\gamma^4)

    In one dimension (n' - (3/2) f''/f') / (γ² f'²). This replaces Eq. 28 of Reizinger et al. 2022 (Prop. 4), which
    lacks the sum. For a bounded prior the expansion is in u, and the mean is that of z(u).

    Args:
        decoder: a smooth map of latents (N, d) to outputs (N, ...).
        z: latents; the observations are f(z).
        precision: γ² = 1 / decoder variance.
        prior: N(0, I) by default; smooth on its support.

    Returns:
        Infinite where the Jacobian has not full column rank.

    >>> mean_offset(lambda z: 2 * z, torch.ones(1, 1), precision=100.0)
    tensor([[-0.0025]])
    """
    gamma2 = validation.precision(precision)
    prior = Normal() if prior is None else prior
    offsets = []
    for taylor in expand_misfit(decoder, z, prior):
        spread = 1 / taylor.J.square().sum(1)
        skew = torch.einsum("nikk,nk->ni", taylor.third(), spread)
        _, first, second = elementwise_derivatives(prior.to_support, taylor.u)
        offset = first * _solve_gram(taylor.J, taylor.slope - 0.5 * skew) + 0.5 * second * spread
        offsets.append(torch.where(contrast_of_matrix(taylor.J).isfinite()[:, None], offset, torch.inf))
    return torch.cat(offsets) / gamma2


def _solve_gram(J: Float[Tensor, "N n d"], b: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
    """(JᵀJ)⁻¹ b, without squaring the condition number of J in a factorisation."""
    if J.shape[1] < J.shape[2]:
        return torch.full_like(b, torch.inf)
    R = torch.linalg.qr(J, mode="r").R
    half = torch.linalg.solve_triangular(R.mT, b.unsqueeze(-1), upper=False)
    return torch.linalg.solve_triangular(R, half, upper=True).squeeze(-1)


def printed_mean_offset(
    decoder: Decoder, z: Float[Tensor, "N d"], *, precision: float, prior: Prior | None = None
) -> Float[Tensor, "N d"]:
    """Eq. 28 of Reizinger et al. 2022 as printed, (JᵀJ)⁻¹ (log p₀)' / γ²; right for linear decoders only.

    See `mean_offset` for the leading term.
    """
    gamma2 = validation.precision(precision)
    prior = Normal() if prior is None else prior
    offsets = []
    for taylor in expand_misfit(decoder, z, prior):
        own = prior.to_support(taylor.u)
        _, scale, _ = elementwise_derivatives(prior.to_support, taylor.u)
        slope = elementwise_derivatives(prior.log_density, own)[1]
        offsets.append(_solve_gram(taylor.J / scale.unsqueeze(1), slope))
    return torch.cat(offsets) / gamma2


@dataclass(frozen=True, eq=False)
class Validity:
    """The gap log p - ELBO* of a decoder beside its limit c_IMA, at each point, in nats."""

    contrast: Float[Tensor, " N"]
    """c_IMA, the gap for γ → ∞."""
    expansion: Expansion
    required_precision: Float[Tensor, " N"]
    """A γ² from which the gap is within the tolerance of c_IMA, by the limit of the 1/γ² law; whatever γ² is now.

    It adds the sizes of both parts. Where they have opposite signs, a lower γ² suffices."""
    tolerance: float

    prior_part: Float[Tensor, " N"]
    """What noise and prior change: the gap of the linearised decoder minus c_IMA. -c_IMA for unused latents."""
    curvature_part: Float[Tensor, " N"]
    """What the decoder's curvature within the posterior adds to the gap."""
    nats: Float[Tensor, " N"]
    """|gap - c_IMA|: how wrong "the ELBO is the likelihood minus c_IMA" is. Infinite if it has no meaning."""
    resolved: Bool[Tensor, " N"]
    """Whether derivatives describe the decoder across the posterior; False at kinks and for wide posteriors."""
    valid: Bool[Tensor, " N"]
    """Whether the gap is within the tolerance of c_IMA, and the expansion that says so is resolved."""

    def to_data(self) -> dict[str, object]:
        """Medians over points, as JSON data."""
        return {
            "nats": float(self.nats.median()),
            "valid_share": float(self.valid.double().mean()),
            "resolved_share": float(self.resolved.double().mean()),
            "required_precision": float(self.required_precision.median()),
            "tolerance": self.tolerance,
            "sentence": self.sentence(),
        }

    def sentence(self) -> str:
        """The verdict over all points in a sentence."""
        share = float(self.valid.double().mean())
        needed = float(self.required_precision.median())
        return (
            f"The gap is within {self.tolerance:g} nats of c_IMA at {share:.0%} of the points (median distance "
            f"{float(self.nats.median()):.2g} nats, of which {float(self.prior_part.median()):+.2g} from noise and "
            f"prior and {float(self.curvature_part.median()):+.2g} from curvature); at half of the points a precision "
            f"of {needed:.2g} suffices."
        )


def validity(
    decoder: Decoder,
    z: Float[Tensor, "N d"],
    *,
    precision: float,
    prior: Prior | None = None,
    tolerance: float = 0.1,
) -> Validity:
    """How far the gap of this decoder is from c_IMA at this precision, in nats, and why.

    Reizinger et al. 2022, Theorem 1, says that log p - ELBO* = c_IMA + O(1/γ²); here is the coefficient (`expansion`).

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: latents, such as encoded means; the observations are f(z).
        precision: γ² = 1 / decoder variance.
        prior: N(0, I) by default.
        tolerance: largest distance in nats at which the picture counts as valid.

    >>> bend = lambda z: z + 0.1 * z**2
    >>> found = validity(bend, torch.full((1, 1), 0.5, dtype=torch.float64), precision=100.0)
    >>> round(float(found.nats), 5), found.valid.tolist()
    (0.0002, [True])
    """
    gamma2 = validation.precision(precision)
    tolerance = validation.number("tolerance", tolerance, above=0.0)
    prior = Normal() if prior is None else prior
    found = expansion(decoder, z, precision=gamma2, prior=prior)
    contrast = ima_contrast(decoder, z)
    needed = (found.prior_coefficient.abs() + found.curvature_coefficient.abs()) / tolerance
    needed = torch.where(needed.isfinite() & contrast.isfinite(), needed, torch.inf)
    distance = (found.gap - contrast).abs()
    nats, resolved = torch.where(distance.isfinite(), distance, torch.inf), found.remainder.abs() <= tolerance
    return Validity(
        contrast,
        found,
        needed,
        tolerance,
        prior_part=found.linear_gap - contrast,
        curvature_part=found.curvature,
        nats=nats,
        resolved=resolved,
        valid=(nats <= tolerance) & resolved,
    )
