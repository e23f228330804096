"""A flow trained on the IMA-regularised likelihood: the explicit counterpart of what a VAE does implicitly.

The unmixing g is a stack of square matrices, biases and smooth leaky ReLUs, so that its Jacobian, and with it log p and
c_IMA, are exact at every step. Gresele et al. 2021; Reizinger et al. 2022, L_IMA.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness, validation
from vaescope.distributions import Normal, Prior

SLOPE = 0.2  # of a smooth leaky ReLU far below zero
FIRST_SCALE = 0.3  # of the deviation of a first weight matrix from a rotation


@dataclass(frozen=True, eq=False)
class Unmixing:
    """x -> u: affine layers with smooth leaky ReLUs between them."""

    weights: Float[Tensor, "L d d"]
    biases: Float[Tensor, "L d"]

    def __call__(self, x: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
        return self.with_jacobian(x)[0]

    def with_jacobian(self, x: Float[Tensor, "N d"]) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d d"]]:
        """u and ∂u/∂x."""
        u, J = x, torch.eye(x.shape[1], dtype=x.dtype).expand(len(x), -1, -1)
        for layer, (W, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer:
                J = (SLOPE + (1 - SLOPE) * torch.sigmoid(u)).unsqueeze(2) * J
                u = SLOPE * u + (1 - SLOPE) * F.softplus(u)
            u, J = u @ W.mT + b, W @ J
        return u, J


def regularised_likelihood(
    unmixing: Unmixing, x: Float[Tensor, "N d"], *, strength: float, prior: Prior
) -> Float[Tensor, " N"]:
    """log p(x) - λ c_IMA of the inverse of the unmixing, as `ima_likelihood`, but from the Jacobian of g.

    In u, log p = log p(u) + log |det J_g|, and c_IMA = Σ log ‖columns of J_g⁻¹‖ + log |det J_g|; a bounded prior
    changes both coordinates and columns by factors per latent, which leaves c_IMA unchanged.
    """
    u, J = unmixing.with_jacobian(x)
    log_det = torch.linalg.slogdet(J).logabsdet
    contrast = torch.linalg.inv(J).norm(dim=1).log().sum(1) + log_det
    log_prior = (prior.log_density(prior.to_support(u)) + prior.log_derivative(u)).sum(1)
    return log_prior + log_det - strength * contrast


@dataclass(frozen=True, eq=False)
class IMAFlow:
    """A trained unmixing and its objective after every step."""

    unmixing: Unmixing
    prior: Prior
    history: list[float]

    def encode(self, x: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
        """The latents z = g(x)."""
        return self.prior.to_support(self.unmixing(x))

    def contrast(self, x: Float[Tensor, "N d"]) -> Float[Tensor, " N"]:
        """c_IMA of the decoder at g(x)."""
        plain, penalised = (
            regularised_likelihood(self.unmixing, x, strength=strength, prior=self.prior) for strength in (0.0, 1.0)
        )
        return plain - penalised

    def log_likelihood(self, x: Float[Tensor, "N d"]) -> Float[Tensor, " N"]:
        return regularised_likelihood(self.unmixing, x, strength=0.0, prior=self.prior)


def fit_ima_flow(
    x: Float[Tensor, "N d"],
    *,
    strength: float = 1.0,
    prior: Prior | None = None,
    layers: int = 4,
    steps: int = 2000,
    learning_rate: float = 1e-2,
    batch: int = 512,
    seed: int = 0,
) -> IMAFlow:
    """Maximise the mean of L_IMA by Adam with a decaying step size.

    Args:
        x: observations with as many columns as latents, in float64 for exactness.
        strength: λ >= 0; 0 is maximum likelihood.
        prior: of the latents; N(0, I) by default.
        layers: affine layers; 1 is linear ICA.
        steps: of Adam.
        learning_rate: first step size.
        batch: rows per step.
        seed: of the first weights and of batches.
    """
    strength = validation.number("strength", strength, minimum=0.0)
    prior = Normal() if prior is None else prior
    generator = randomness.generator(seed, "ima flow")
    d = x.shape[1]
    centre = x.mean(0)
    scale = (x - centre).square().mean().sqrt()  # one for all columns: others would change which columns are orthogonal
    standard = (x - centre) / scale
    start = torch.randn(validation.whole_number("layers", layers), d, d, generator=generator, dtype=torch.float64)
    weights = (torch.linalg.qr(start).Q + FIRST_SCALE * start / d).to(x).requires_grad_()
    biases = torch.zeros(layers, d, dtype=x.dtype).requires_grad_()
    adam = torch.optim.Adam([weights, biases], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, validation.whole_number("steps", steps))
    history = []
    for _ in range(steps):
        rows = torch.randint(len(x), (min(batch, len(x)),), generator=generator)
        loss = -regularised_likelihood(Unmixing(weights, biases), standard[rows], strength=strength, prior=prior).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        schedule.step()
        history.append(-float(loss.detach()))
    first = weights.detach()[0] / scale
    shifted = biases.detach().clone()
    shifted[0] -= first @ centre
    return IMAFlow(Unmixing(torch.cat([first.unsqueeze(0), weights.detach()[1:]]), shifted), prior, history)
