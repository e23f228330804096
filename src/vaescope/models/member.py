"""One trained model of a stack, as the rest of the package sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.distributions import Posterior, Prior
from vaescope.errors import InputError
from vaescope.models.conditional import ConditionalPrior, LearnedNormal, auxiliary
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
        """p(z); an iVAE has one for every u, see `prior_at`."""
        return ConditionalPrior() if self.conditional else self.model.prior

    @property
    def conditional(self) -> bool:
        """Whether it is an iVAE: encoder and prior need an auxiliary u."""
        return self.model.conditional

    @property
    def auxiliary_dim(self) -> int:
        return self.model.auxiliary_dim

    @property
    def name(self) -> str:
        return "model"

    @property
    def has_decoder(self) -> bool:
        return True

    @property
    def log_likelihood(self) -> None:
        return None

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        return getattr(self.model, "image", None)

    @property
    def flattens_images(self) -> bool:
        return True

    def prior_at(self, u: object | None = None, *, like: Tensor | None = None) -> Prior:
        """p(z|u), a row per sample; without u, the prior of a plain VAE. `like` gives the dtype of u."""
        if not self.conditional and u is None:
            return self.model.prior
        encoded = auxiliary(u, self.model.auxiliary_dim, like=like)
        found = self.model.prior_at(self._params(encoded), encoded.unsqueeze(0))
        return found.at(0) if isinstance(found, LearnedNormal) else found

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

    @property
    def likelihood(self) -> str:
        """gaussian or bernoulli."""
        return self.model.likelihood

    def rows(self, x: Float[Tensor, "N n"], u: object | None = None) -> Float[Tensor, "N r"]:
        """Rows as the networks take them: x, and u behind it."""
        if x.ndim != 2 or x.shape[1] != self.model.observed_dim:
            raise InputError(f"x must have shape (N, {self.model.observed_dim}), got {tuple(x.shape)}.")
        encoded = auxiliary(u, self.model.auxiliary_dim, like=x)
        if self.conditional and len(encoded) != len(x):
            raise InputError(f"u needs a row per sample, got {len(encoded)} rows for {len(x)} samples.")
        return torch.cat([x, encoded], dim=1) if self.conditional else x

    def parted(self, rows: Float[Tensor, "N r"]) -> tuple[Float[Tensor, "N n"], Float[Tensor, "N m"] | None]:
        """x and u of rows; a plain VAE has no u."""
        x, u = self.model.parted(rows)
        return x, u if self.conditional else None

    def posterior(self, x: Float[Tensor, "N n"], u: object | None = None) -> Posterior:
        """q(z|x), or q(z|x,u), in the unbounded coordinate of the latents."""
        rows = self.rows(x, u)
        return self.model.encode(self._params(rows), rows.unsqueeze(0)).at(0)

    def encode(
        self, x: Float[Tensor, "N n"], u: object | None = None
    ) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
        """Mean and variance of q(z|x), or of q(z|x,u)."""
        posterior = self.posterior(x, u)
        return self.model.prior.moments(posterior.mean, posterior.marginal_variance)

    def sample(
        self, x: Float[Tensor, "N n"], generator: torch.Generator, u: object | None = None
    ) -> Float[Tensor, "N d"]:
        """One draw of z from q(z|x), or q(z|x,u), for every x."""
        posterior = self.posterior(x, u)
        noise = torch.randn(posterior.mean.shape, generator=generator, dtype=x.dtype)
        return self.model.prior.to_support(posterior.sample(noise.to(x.device)))

    def decode(self, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n"]:
        """Mean of p(x|z)."""
        output = self.model.decode(self._params(z), z.unsqueeze(0))[0]
        return torch.sigmoid(output) if self.model.likelihood == "bernoulli" else output

    def _params(self, like: Tensor) -> dict[str, Tensor]:
        return {name: value.to(like) for name, value in self.params.items()}
