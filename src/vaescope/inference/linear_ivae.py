r"""The linear iVAE in closed form: which latents an auxiliary input u makes active, passive or mixed.

The model: p(z|u) = N(m(u), diag S(u)) with S, and m if it is learned, free functions of u; x = W z + b + noise of
precision γ²; q(z|x, u) a diagonal Gaussian. The data: for every group u with weight π(u), x has mean a(u) and
covariance C(u). Only these moments enter.

As with any VAE, β and γ² matter only through s = β/γ². If the columns of W are orthonormal (their lengths are part of
S), the posterior is diagonal, the ELBO is the log-likelihood, and it separates into groups and columns w. With
c(u) = wᵀ C(u) w, or the second moment about b where the prior mean is fixed, the optimum is

.. math:: S(u) = \max(0, c(u) - s), \quad \mathrm{Var}_q / S = \min(1, s / c(u)), \quad
          \mathbb{E} KL(u) = \tfrac12 \log \max(1, c(u) / s).

So a latent is passive for the groups with c(u) ≤ s and active for the others: it is *mixed* exactly if c(u) crosses s.
What u says about x beyond its variance is in m(u), at no KL. If u determines x, no latent is active.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.optimize import minimize_scalar
from torch import Tensor

from vaescope.core import checks, validation
from vaescope.core.errors import InputError


@dataclass(frozen=True, eq=False)
class LinearIVAE:
    """The optimum of the β-ELBO over encoder, decoder and conditional prior. G groups, n columns of x, d latents."""

    axes: Float[Tensor, "n d"]
    """W: orthonormal columns; zero columns where the model has more latents than x has directions."""
    offset: Float[Tensor, " n"]
    """b."""
    prior_mean: Float[Tensor, "G d"]
    prior_variance: Float[Tensor, "G d"]
    """S, in units in which the columns of W have length one; 0 where the prior has collapsed to its mean."""
    moment: Float[Tensor, "G d"]
    """c(u): variance of x along the column within the group, about b if the prior mean is fixed."""
    threshold: float
    """s = β/γ²: a latent is active in the groups in which its moment is larger."""
    weights: Float[Tensor, " G"]
    """π(u), which sum to one."""
    elbo: float
    """The mean ELBO over groups and samples, in nats; with β = 1 the mean log-likelihood."""

    @cached_property
    def active(self) -> Bool[Tensor, "G d"]:
        """Whether a latent is active in a group."""
        return self.moment > self.threshold

    @cached_property
    def variance_ratio(self) -> Float[Tensor, "G d"]:
        """Posterior variance relative to the prior's, s/c(u); 1 where the latent is passive."""
        return torch.where(self.active, self.threshold / self.moment, torch.ones(()).to(self.moment))

    @cached_property
    def kl(self) -> Float[Tensor, "G d"]:
        """Mean KL of a latent over the samples of a group, in nats."""
        return -0.5 * self.variance_ratio.log()

    @cached_property
    def passive_fraction(self) -> Float[Tensor, " d"]:
        """Share of the samples for which a latent is passive."""
        return 1 - self.weights @ self.active.to(self.weights)

    @cached_property
    def kind(self) -> list[str]:
        """`active`, `passive` or `mixed`, per latent."""
        always, ever = self.active.all(0).tolist(), self.active.any(0).tolist()
        return ["active" if a else "mixed" if e else "passive" for a, e in zip(always, ever, strict=True)]


def linear_ivae(
    mean: Float[Tensor, "G n"],
    covariance: Float[Tensor, "G n n"],
    *,
    precision: float,
    latent_dim: int,
    beta: float = 1.0,
    prior_mean: str = "learned",
    weights: Float[Tensor, " G"] | None = None,
) -> LinearIVAE:
    """The best linear iVAE of data whose groups have given means and covariances.

    The covariances must share their principal axes; so must the covariance of the means if there are fewer latents than
    columns. With a fixed prior mean, means may differ along one of the axes.

    Args:
        mean: of x in every group.
        covariance: of x in every group.
        precision: γ² = 1 / decoder variance.
        latent_dim: d.
        beta: weight of the KL.
        prior_mean: `learned`, or `fixed` for the same mean in every group.
        weights: shares of the groups in the data; equal by default.

    >>> variances = torch.tensor([[4.0, 4.0, 0.5], [9.0, 0.2, 0.5]])  # of two groups, along three axes
    >>> found = linear_ivae(torch.zeros(2, 3), torch.diag_embed(variances), precision=1.0, latent_dim=3)
    >>> found.kind, found.passive_fraction.tolist()
    (['active', 'mixed', 'passive'], [0.0, 0.5, 1.0])
    """
    s = checks.number("beta", beta, above=0.0) / validation.precision(precision)
    checks.integer("latent_dim", latent_dim)
    checks.choice("prior_mean", prior_mean, ("learned", "fixed"))
    mean, covariance, weights = _groups(mean, covariance, weights)
    offsets = mean - weights @ mean
    between = torch.einsum("g,gi,gj->ij", weights, offsets, offsets)
    spans_all = prior_mean == "learned" and latent_dim >= mean.shape[1]
    basis = _common_axes(covariance if spans_all else torch.cat([covariance, between[None]]))
    a, c = mean @ basis, torch.einsum("gij,ik,jk->gk", covariance, basis, basis).clamp(min=0)
    centre = weights @ a
    unused = -0.5 * (math.log(s) + (c + (a - centre).square()) / s)
    if prior_mean == "learned":
        b, moment = centre, c
    else:
        if int((offsets @ basis).abs().gt(1e-6 * c.max().sqrt()).any(0).sum()) > 1:
            raise InputError(
                "with prior_mean='fixed' the means of the groups must differ along one common axis of the covariances "
                "at most, got several; use prior_mean='learned'."
            )
        b = _best_offsets(a, c, weights, s)
        moment = c + (a - b).square()
    fitted = moment.clamp(min=s)
    used = -0.5 * (fitted.log() + moment / fitted)
    order = (weights @ (used - unused)).argsort(descending=True, stable=True)[:latent_dim]
    chosen = torch.zeros(len(b), dtype=torch.bool).index_fill(0, order, True)
    b = torch.where(chosen, b, centre)
    value = float(weights @ torch.where(chosen, used, unused).sum(1))
    kl = float(weights @ (0.5 * (fitted[:, order] / s).log()).sum(1))
    # the β-ELBO with precision γ² is β times the ELBO with decoder variance s, up to constants
    constants = 0.5 * len(b) * (math.log(precision / (2 * math.pi)) + beta * math.log(s))

    def per_latent(values: Float[Tensor, "m k"], rest: float = 0.0) -> Float[Tensor, "m d"]:
        return torch.nn.functional.pad(values[:, order], (0, latent_dim - len(order)), value=rest)

    return LinearIVAE(
        axes=per_latent(basis),
        offset=basis @ b,
        prior_mean=per_latent(a - b if prior_mean == "learned" else torch.zeros_like(a)),
        prior_variance=per_latent((moment - s).clamp(min=0), 1.0),
        moment=per_latent(moment),
        threshold=s,
        weights=weights,
        elbo=beta * value + constants + (beta - 1) * kl,
    )


def expected_elbo(
    W: Float[Tensor, "n d"],
    offset: Float[Tensor, " n"],
    prior_mean: Float[Tensor, "G d"],
    prior_variance: Float[Tensor, "G d"],
    mean: Float[Tensor, "G n"],
    covariance: Float[Tensor, "G n n"],
    *,
    precision: float,
    weights: Float[Tensor, " G"] | None = None,
) -> Float[Tensor, ""]:
    """The mean ELBO of any linear iVAE with the best diagonal posteriors: E log p(x|u) minus the mean gap.

    Args:
        W: weights of the decoder.
        offset: b of the decoder.
        prior_mean: m(u) of every group.
        prior_variance: S(u) of every group.
        mean: of x in every group.
        covariance: of x in every group.
        precision: γ² = 1 / decoder variance.
        weights: shares of the groups in the data; equal by default.
    """
    mean, covariance, weights = _groups(mean, covariance, weights)
    scaled = W * prior_variance.sqrt()[:, None, :]
    gram = precision * scaled.mT @ scaled + torch.eye(W.shape[1], dtype=W.dtype)
    gap = 0.5 * (gram.diagonal(dim1=1, dim2=2).log().sum(1) - gram.logdet())
    marginal = scaled @ scaled.mT + torch.eye(len(W), dtype=W.dtype) / precision
    error = mean - prior_mean @ W.T - offset
    second = covariance + error[:, :, None] * error[:, None, :]
    fit = torch.linalg.solve(marginal, second).diagonal(dim1=1, dim2=2).sum(1)
    log_likelihood = -0.5 * (len(W) * math.log(2 * math.pi) + marginal.logdet() + fit)
    return weights @ (log_likelihood - gap)


def _groups(
    mean: Tensor, covariance: Tensor, weights: Tensor | None
) -> tuple[Float[Tensor, "G n"], Float[Tensor, "G n n"], Float[Tensor, " G"]]:
    """The moments in float64, with weights that sum to one."""
    mean, covariance = validation.tensor(mean, "mean").double(), validation.matrices(covariance, "covariance").double()
    groups = len(mean)
    if mean.ndim != 2 or covariance.shape != (groups, mean.shape[1], mean.shape[1]):
        raise InputError(
            "expected mean (G, n) and covariance (G, n, n), a row and a matrix per group, got "
            f"{tuple(mean.shape)} and {tuple(covariance.shape)}."
        )
    if not torch.allclose(covariance, covariance.mT, rtol=1e-6, atol=1e-12):
        raise InputError("covariance must be symmetric in every group.")
    if float(torch.linalg.eigvalsh(covariance).min()) < -1e-9 * float(covariance.abs().max()):
        raise InputError("covariance must have no negative eigenvalue in any group.")
    given = np.ones(groups) if weights is None else validation.array(weights, "weights")
    found = torch.from_numpy(given.astype(float))
    if found.shape != (groups,) or not bool((found >= 0).all()) or not 0 < float(found.sum()) < math.inf:
        raise InputError(f"weights must be {groups} shares that are not negative, one per group.")
    return mean, covariance, found / found.sum()


def _common_axes(matrices: Float[Tensor, "K n n"], *, tolerance: float = 1e-6) -> Float[Tensor, "n n"]:
    """Orthonormal columns in which all of the matrices are diagonal; refused if there are none."""
    size = matrices.diagonal(dim1=1, dim2=2).sum(1).clamp(min=torch.finfo(torch.float64).tiny)
    scaled = matrices / size[:, None, None]
    # eigenvectors of a combination with unrelated weights are shared by all matrices if any are
    shares = 1 + (torch.arange(len(matrices), dtype=torch.float64) * (math.sqrt(5) / 2 - 0.5)).frac()
    basis: Tensor = torch.linalg.eigh(torch.einsum("k,kij->ij", shares, scaled))[1].flip(1)
    rotated = basis.mT @ scaled @ basis
    rest = float((rotated - torch.diag_embed(rotated.diagonal(dim1=1, dim2=2))).abs().max())
    if rest > tolerance:
        raise InputError(
            "the closed form needs groups whose covariances share their principal axes (with fewer latents than "
            "columns, or a fixed prior mean, so must the covariance of the means); the largest entry off the axes "
            f"is {rest:.1g} of the variance. Use `expected_elbo` and an optimizer for other data."
        )
    return basis


def _best_offsets(
    a: Float[Tensor, "G n"], c: Float[Tensor, "G n"], weights: Float[Tensor, " G"], s: float
) -> Float[Tensor, " n"]:
    """The offset along every axis that is best for a prior whose mean is the same in all groups.

    The value has a local maximum near every group with a small variance, so every interval between means is searched.
    """

    def loss(b: float, k: int) -> float:
        moment = c[:, k] + (a[:, k] - b).square()
        fitted = moment.clamp(min=s)
        return float(weights @ (0.5 * (fitted.log() + moment / fitted)))

    best = []
    for k in range(a.shape[1]):
        means = sorted(set(a[:, k].tolist()))
        inside = [
            float(minimize_scalar(loss, bounds=pair, args=(k,), method="bounded", options={"xatol": 1e-12}).x)
            for pair in pairwise(means)
            if pair[1] - pair[0] > 1e-9 * (1 + abs(pair[0]))
        ]
        best.append(min([*means, *inside], key=lambda b: loss(b, k)))
    return torch.tensor(best, dtype=torch.float64)
