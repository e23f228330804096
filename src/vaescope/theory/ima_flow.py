"""Flows trained on the IMA-regularised likelihood: the explicit counterpart of what a VAE does implicitly.

The unmixing g(x) = A x + MLP(x) has as many outputs as inputs, and its Jacobian is computed along with it. So log p and
c_IMA of its inverse are exact at every step, and nothing has to be inverted. log |det J| keeps g locally invertible:
the objective is -inf where it is not. Gresele et al. 2021; Reizinger et al. 2022, L_IMA.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.distributions import Prior
from vaescope.models.mlp import MLP, smooth_leaky_relu
from vaescope.models.networks import Params

SKIP = "skip.weight"
BENT = 0.3  # scale of the first weights of the last layer, so that g begins nearly linear


@dataclass(frozen=True)
class Unmixing:
    """x -> u of a stack of flows: a linear map plus an MLP. Holds sizes, not weights."""

    dim: int
    hidden: tuple[int, ...] = (30, 30)

    @property
    def network(self) -> MLP:
        return MLP("unmixing", (self.dim, *self.hidden, self.dim))

    def init(self, seed: int) -> dict[str, Tensor]:
        """First weights of one flow: a random rotation, and a small MLP."""
        generator = randomness.generator(seed, "ima flow")
        params = self.network.init(generator)
        last = f"unmixing.{self.network.layers - 1}.weight"
        params[last] = BENT * params[last]
        params[SKIP] = torch.linalg.qr(torch.randn(self.dim, self.dim, generator=generator)).Q
        return params

    def __call__(
        self, params: Params, x: Float[Tensor, "E B d"]
    ) -> tuple[Float[Tensor, "E B d"], Float[Tensor, "E B d d"]]:
        """u and ∂u/∂x: values and tangents pass every layer in one product."""
        members, batch, d = x.shape
        axes = torch.eye(d, dtype=x.dtype, device=x.device).repeat_interleave(batch, dim=1)
        first = torch.cat([x.mT, axes.expand(members, -1, -1)], dim=2)  # (E, d, B (1 + d)): x, then every direction
        h = first
        for layer in range(self.network.layers):
            h = torch.bmm(params[f"unmixing.{layer}.weight"], h)
            value, tangents = h[..., :batch] + params[f"unmixing.{layer}.bias"], h[..., batch:]
            if layer < self.network.layers - 1:
                slope = 0.2 + 0.8 * torch.sigmoid(value)
                tangents = (tangents.unflatten(2, (d, batch)) * slope.unsqueeze(2)).flatten(2)
                value = smooth_leaky_relu(value)
            h = torch.cat([value, tangents], dim=2)
        h = h + torch.bmm(params[SKIP], first)
        return h[..., :batch].mT, h[..., batch:].unflatten(2, (d, batch)).permute(0, 3, 1, 2)


def inverse_columns(J: Float[Tensor, "*B d d"]) -> tuple[Float[Tensor, "*B d"], Float[Tensor, "*B"]]:
    """log ‖columns of J⁻¹‖ and log |det J|; in closed form for three dimensions, where a factorisation is slow."""
    if J.shape[-1] != 3:
        inverse = torch.linalg.inv(J)
        return inverse.norm(dim=-2).log(), torch.linalg.slogdet(J).logabsdet
    rows = J.unbind(-2)
    crossed = [torch.linalg.cross(rows[(k + 1) % 3], rows[(k + 2) % 3], dim=-1) for k in range(3)]
    log_det = (rows[0] * crossed[0]).sum(-1).abs().log()
    return torch.stack([c.norm(dim=-1).log() for c in crossed], dim=-1) - log_det.unsqueeze(-1), log_det


@dataclass(frozen=True, eq=False)
class FlowTerms:
    """log p(x) by the change of variables, and c_IMA of the inverse of the unmixing, at each row."""

    log_likelihood: Float[Tensor, "*B"]
    contrast: Float[Tensor, "*B"]

    def regularised(self, strength: Float[Tensor, "*s"] | float) -> Float[Tensor, "*B"]:
        """log p - λ c_IMA, as `ima_likelihood`."""
        return self.log_likelihood - strength * self.contrast


def flow_terms(u: Float[Tensor, "*B d"], J: Float[Tensor, "*B d d"], prior: Prior) -> FlowTerms:
    """Both terms of L_IMA from g(x) and its Jacobian.

    In u, log p = log p(u) + log |det J_g| and c_IMA = Σ log ‖columns of J_g⁻¹‖ + log |det J_g|; a bounded prior changes
    both coordinates and columns by factors per latent, which leave c_IMA unchanged.
    """
    columns, log_det = inverse_columns(J)
    log_prior = (prior.log_density(prior.to_support(u)) + prior.log_derivative(u)).sum(-1)
    return FlowTerms(log_prior + log_det, columns.sum(-1) + log_det)


@dataclass(frozen=True, eq=False)
class IMAFlow:
    """A trained unmixing of observations (N, d), which are centred and scaled first."""

    unmixing: Unmixing
    params: Params
    """With a member axis of length one."""
    prior: Prior
    centre: Float[Tensor, " d"]
    scale: Float[Tensor, ""]
    """One for all columns: others would change which columns of the decoder are orthogonal."""
    history: list[float]
    """The objective after every step."""

    def _unmix(self, x: Float[Tensor, "N d"]) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d d"]]:
        with torch.no_grad():
            u, J = self.unmixing(self.params, ((x - self.centre) / self.scale).unsqueeze(0))
        return u[0], J[0] / self.scale

    def encode(self, x: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
        """The latents z = g(x)."""
        return self.prior.to_support(self._unmix(x)[0])

    def terms(self, x: Float[Tensor, "N d"]) -> FlowTerms:
        """log p(x) and c_IMA at every row."""
        return flow_terms(*self._unmix(x), self.prior)

    def folded(self, x: Float[Tensor, "N d"]) -> float:
        """The share of rows at which the determinant has the rarer sign: 0 for an invertible map."""
        positive = float((torch.linalg.slogdet(self._unmix(x)[1]).sign > 0).double().mean())
        return min(positive, 1 - positive)
