r"""What a rotation of two latents costs in ELBO, in closed form.

A rotation R of the latents changes the decoder to f(R z) and leaves p(x) unchanged if the prior is N(0, I). The best
diagonal posterior changes: with expected curvature Λ = -E_q ∇² log p(x|z) its variances are 1/(1 + (RᵀΛR)_kk), and

.. math:: \text{ELBO}^*(R) = \text{const} - \tfrac12 \sum_k \log\big(1 + \Sigma_k (R^\top \Lambda R)_{kk}\big)

with Σ_k = (RᵀΣ†R)_kk the prior's variances in the new axes, 1 for N(0, I). It is exact if log p(x|z) is quadratic in z
over the width of a posterior, as for a linear decoder, and otherwise correct to leading order in 1/γ².
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def plane_costs(
    curvature: Float[Tensor, "P d d"],
    prior_variance: Float[Tensor, "P d"],
    plane: tuple[int, int],
    angles: Float[Tensor, " A"],
) -> Float[Tensor, "A P"]:
    """ELBO lost at each point by rotating two latents, in nats; negative where the rotated axes are better.

    Args:
        curvature: Λ = -E_q ∇² log p(x|z) at each point; γ² JᵀJ for a Gaussian likelihood.
        prior_variance: of each latent.
        plane: the two latents.
        angles: in radians. Costs have a period of π/2, after which the latents have changed places.

    >>> import torch
    >>> unequal = torch.diag(torch.tensor([3.0, 0.0]))[None]
    >>> plane_costs(unequal, torch.ones(1, 2), (0, 1), torch.tensor([0.0, torch.pi / 4])).exp().round(decimals=3)
    tensor([[1.0000],
            [1.2500]])
    """
    i, j = plane
    a, b, c = curvature[:, i, i], curvature[:, j, j], curvature[:, i, j]
    s, t = prior_variance[:, i], prior_variance[:, j]
    cos, sin = angles.to(a).cos()[:, None], angles.to(a).sin()[:, None]
    first = (cos**2 * a + 2 * cos * sin * c + sin**2 * b) * (cos**2 * s + sin**2 * t)
    second = (sin**2 * a - 2 * cos * sin * c + cos**2 * b) * (sin**2 * s + cos**2 * t)
    lost: Tensor = 0.5 * (first.log1p() + second.log1p() - (a * s).log1p() - (b * t).log1p())
    return lost


def cost_curvature(curvature: Float[Tensor, "P d d"], plane: tuple[int, int]) -> Float[Tensor, " P"]:
    r"""Second derivative of the cost in the angle at 0, under N(0, I), in nats per squared radian.

    .. math:: \frac{(\Lambda_{ii}-\Lambda_{jj})^2}{(1+\Lambda_{ii})(1+\Lambda_{jj})}
              - 2\Lambda_{ij}^2\Big(\frac1{(1+\Lambda_{ii})^2}+\frac1{(1+\Lambda_{jj})^2}\Big)

    With orthogonal columns it is (σ_i² - σ_j²)²/(σ_i² σ_j²): zero exactly if the two posteriors have the same width,
    which for a Gaussian likelihood means columns of the same length.

    >>> import torch
    >>> cost_curvature(torch.diag(torch.tensor([3.0, 0.0]))[None], (0, 1))
    tensor([2.2500])
    """
    i, j = plane
    a, b, c = 1 + curvature[:, i, i], 1 + curvature[:, j, j], curvature[:, i, j]
    return (a - b).square() / (a * b) - 2 * c.square() * (a**-2 + b**-2)
