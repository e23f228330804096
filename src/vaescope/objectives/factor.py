r"""FactorVAE: the total correlation by a discriminator that is trained beside the model (Kim & Mnih 2018).

D tells draws of q(z) from draws of \prod_j q(z_j); its logit estimates log q(z) - log \prod_j q(z_j), whose mean is the
total correlation. Draws of the product are those of the batch with every latent taken from another sample. Both
networks are updated in one step: each part of the loss sees the other network as a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.errors import InputError
from vaescope.models.mlp import MLP, Params
from vaescope.models.vae import Terms
from vaescope.objectives.elbo import beta_elbo

NAME = "objective"  # of the discriminator's weights, among those of a stack


@dataclass(frozen=True)
class Factor:
    """-(ELBO) + (β - 1) total correlation, as `BetaTC` has it; β - 1 is the paper's γ, β = 1 the negative ELBO.

    `hidden` are the discriminator's layers (the paper: five of 1,000). It learns at the rate of the stack, with the
    same Adam.
    """

    latent_dim: int
    hidden: tuple[int, ...] = (200, 200, 200)
    params: Params | None = None

    def __post_init__(self) -> None:
        if self.latent_dim < 2:
            raise InputError(f"a FactorVAE needs at least two latents to tell apart, got {self.latent_dim}.")

    @property
    def discriminator(self) -> MLP:
        return MLP(NAME, (self.latent_dim, *self.hidden, 1), "leaky_relu")

    def init(self, seeds: Sequence[int]) -> dict[str, Tensor]:
        """Fresh weights of the discriminator, a member per seed."""
        members = [self.discriminator.init(randomness.generator(seed, "discriminator")) for seed in seeds]
        return {name: torch.stack([m[name] for m in members]) for name in members[0]}

    def at(self, params: Params) -> Factor:
        """The objective with these weights."""
        return replace(self, params={name: value for name, value in params.items() if name.startswith(f"{NAME}.")})

    def __call__(self, terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
        if terms.u is None or not self.params:
            raise InputError("a FactorVAE needs draws of z, and its discriminator's weights: see `init` and `at`.")
        if terms.u.shape[-1] != self.latent_dim:
            raise InputError(f"this FactorVAE is for {self.latent_dim} latents, the model has {terms.u.shape[-1]}.")
        fixed = {name: value.detach() for name, value in self.params.items()}
        total_correlation = self.logit(fixed, terms.u).mean(-1)
        learning = self.cross_entropy(terms.u.detach())
        # the discriminator's loss has its gradient here, and no value
        return beta_elbo(terms, torch.ones_like(beta)) + (beta - 1) * total_correlation + learning - learning.detach()

    def logit(self, params: Params, z: Float[Tensor, "E B d"]) -> Float[Tensor, "E B"]:
        """The estimate of log q(z) - log ∏ q(z_j)."""
        return self.discriminator(params, z).squeeze(-1)

    def cross_entropy(self, z: Float[Tensor, "E B d"]) -> Float[Tensor, " E"]:
        """How badly the discriminator tells z from z with its latents taken apart; log 2 where it cannot."""
        assert self.params is not None
        joint, product = self.logit(self.params, z), self.logit(self.params, taken_apart(z))
        return 0.5 * (F.softplus(-joint) + F.softplus(product)).mean(-1)


def taken_apart(z: Float[Tensor, "E B d"]) -> Float[Tensor, "E B d"]:
    """Latent j of every sample from the sample j places on, all different ones where the batch is as large as d.

    Batches are shuffled, so that no chance is needed here.

    >>> taken_apart(torch.tensor([[[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]]))[0].tolist()
    [[1.0, 30.0], [2.0, 10.0], [3.0, 20.0]]
    """
    return torch.stack([z[..., j].roll(j, -1) for j in range(z.shape[-1])], dim=-1)
