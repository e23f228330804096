r"""FactorVAE: the total correlation estimated by a discriminator (Kim & Mnih 2018).

The discriminator distinguishes draws of q(z) from draws of \prod_j q(z_j); its logit estimates
log q(z) - log \prod_j q(z_j), whose mean is the total correlation. Draws of the product are those of the batch with
latents permuted across samples. One step updates both networks: each part of the loss treats the other network as
constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vaescope.core import randomness
from vaescope.core.errors import InputError
from vaescope.models import Terms
from vaescope.models.mlp import MLP
from vaescope.models.networks import Params
from vaescope.objectives.elbo import beta_elbo


@dataclass(frozen=True)
class Factor:
    """-(ELBO) + (β - 1) total correlation, as in `BetaTC`; β - 1 is the paper's γ, β = 1 is the negative ELBO.

    Args:
        latent_dim: of the model.
        hidden: hidden units of the discriminator (the paper: five layers of 1,000). It is trained with the same Adam
            and learning rate as the model.
        params: weights of the discriminator; set by `with_weights`.
    """

    latent_dim: int
    hidden: tuple[int, ...] = (200, 200, 200)
    params: Params | None = None
    prefix: ClassVar[str] = "objective"
    """Of the names of the discriminator's weights."""

    def __post_init__(self) -> None:
        if self.latent_dim < 2:
            raise InputError(f"a FactorVAE needs at least two latents, got {self.latent_dim}.")

    @property
    def discriminator(self) -> MLP:
        return MLP(self.prefix, (self.latent_dim, *self.hidden, 1), "leaky_relu")

    def init(self, seeds: Sequence[int]) -> dict[str, Tensor]:
        """Initial weights of the discriminator, one member per seed.

        Args:
            seeds: one per member.
        """
        members = [self.discriminator.init(randomness.generator(seed, "discriminator")) for seed in seeds]
        return {name: torch.stack([m[name] for m in members]) for name in members[0]}

    def with_weights(self, params: Params) -> Factor:
        """The objective with the discriminator's weights, selected from those of a stack.

        Args:
            params: weights of a stack: of the model and of the discriminator.
        """
        return replace(
            self, params={name: value for name, value in params.items() if name.startswith(f"{self.prefix}.")}
        )

    def __call__(self, terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
        if terms.u is None or not self.params:
            raise InputError("a FactorVAE needs draws of z and its discriminator's weights; see `with_weights`.")
        if terms.u.shape[-1] != self.latent_dim:
            raise InputError(f"this FactorVAE is for {self.latent_dim} latents, got a model with {terms.u.shape[-1]}.")
        constant = {name: value.detach() for name, value in self.params.items()}
        total_correlation = self.logit(constant, terms.u).mean(-1)
        loss = self.cross_entropy(terms.u.detach())  # of the discriminator: adds its gradient, but not its value
        return beta_elbo(terms, torch.ones_like(beta)) + (beta - 1) * total_correlation + loss - loss.detach()

    def logit(self, params: Params, z: Float[Tensor, "E B d"]) -> Float[Tensor, "E B"]:
        """Estimate of log q(z) - log ∏ q(z_j).

        Args:
            params: weights of the discriminator.
            z: a batch of latents per member.
        """
        return self.discriminator(params, z).squeeze(-1)

    def cross_entropy(self, z: Float[Tensor, "E B d"]) -> Float[Tensor, " E"]:
        """Loss of the discriminator on z against permuted z; log 2 if it cannot distinguish them.

        Args:
            z: a batch of latents per member.
        """
        assert self.params is not None
        joint, product = self.logit(self.params, z), self.logit(self.params, permute_latents(z))
        return 0.5 * (F.softplus(-joint) + F.softplus(product)).mean(-1)


def permute_latents(z: Float[Tensor, "E B d"]) -> Float[Tensor, "E B d"]:
    """Shift latent j by j samples, so that the latents of a row come from different samples if B >= d.

    Batches are shuffled, so a deterministic permutation is enough.

    >>> permute_latents(torch.tensor([[[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]]))[0].tolist()
    [[1.0, 30.0], [2.0, 10.0], [3.0, 20.0]]
    """
    return torch.stack([z[..., j].roll(j, -1) for j in range(z.shape[-1])], dim=-1)
