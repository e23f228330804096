"""One trained model of a stack, as the rest of the package sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.distributions import Posterior, Prior
from vaescope.models.vae import VAE


@dataclass(frozen=True, eq=False)
class Member:
    """A `LatentModel`: the architecture, one member's weights, and how its training went.

    Weights keep a member axis of length one, so the stack's own functions serve it. They follow
    the dtype of what they are given: float64 in, float64 theory.
    """

    model: VAE
    params: Mapping[str, Tensor]
    seed: int = 0
    beta: float = 1.0
    precision: float | None = None
    status: str = "finished"
    best_elbo: float = float("nan")
    best_epoch: int = 0
    diverged_at_step: int | None = None
    history: Mapping[str, list[float]] = field(default_factory=dict)

    @property
    def latent_dim(self) -> int:
        return self.model.latent_dim

    @property
    def prior(self) -> Prior:
        return self.model.prior

    def summary(self) -> dict[str, Any]:
        """How training went, as plain data."""
        return {
            "status": self.status,
            "epochs": len(self.history.get("elbo", [])),
            "best_epoch": self.best_epoch,
            "elbo": self.best_elbo if self.status == "finished" else None,
            "used_precision": self.precision,
            "diverged_at_step": self.diverged_at_step,
        }

    @classmethod
    def from_summary(
        cls, model: VAE, params: Mapping[str, Tensor], summary: Mapping[str, Any], *, seed: int, beta: float
    ) -> Member:
        """A member as it was kept."""
        elbo = summary["elbo"]
        return cls(
            model,
            params,
            seed,
            beta,
            summary["used_precision"],
            status=summary["status"],
            best_elbo=float("nan") if elbo is None else elbo,
            best_epoch=summary["best_epoch"],
            diverged_at_step=summary["diverged_at_step"],
        )

    def epochs(self, cell: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The history as rows, an epoch each."""
        names = list(self.history)
        return [
            dict(cell) | {"epoch": epoch} | dict(zip(names, values, strict=True))
            for epoch, values in enumerate(zip(*self.history.values(), strict=True), start=1)
        ]

    def posterior(self, x: Float[Tensor, "N n"]) -> Posterior:
        """q(u|x), u the unbounded coordinate of the latents."""
        return self.model.encode(self._params(x), x.unsqueeze(0)).at(0)

    def encode(self, x: Float[Tensor, "N n"]) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
        """Mean and variance of q(z|x)."""
        posterior = self.posterior(x)
        return self.prior.moments(posterior.mean, posterior.marginal_variance)

    def sample(self, x: Float[Tensor, "N n"], generator: torch.Generator) -> Float[Tensor, "N d"]:
        """One draw of z from q(z|x) for every x."""
        posterior = self.posterior(x)
        noise = torch.randn(posterior.mean.shape, generator=generator, dtype=x.dtype)
        return self.prior.to_support(posterior.sample(noise.to(x.device)))

    def decode(self, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n"]:
        """Mean of p(x|z)."""
        output = self.model.decode(self._params(z), z.unsqueeze(0))[0]
        return torch.sigmoid(output) if self.model.likelihood == "bernoulli" else output

    def _params(self, like: Tensor) -> dict[str, Tensor]:
        return {name: value.to(like) for name, value in self.params.items()}
