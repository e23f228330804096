"""One trained model of a stack, as the rest of the package uses it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core.errors import InputError
from vaescope.core.serialization import from_plain, plain_fields
from vaescope.distributions import Posterior, Prior
from vaescope.models.auxiliary import ConditionalPrior, LearnedNormal, encode_auxiliary
from vaescope.models.networks import Params, covariance_log_likelihood, learned_prior, noise_precision
from vaescope.models.vae import VAE
from vaescope.protocol import LatentModel, ModelSpec


@dataclass(frozen=True)
class TrainingSummary:
    """Result of training one member; stored with its weights and as its row of results."""

    status: str
    """`finished` or `diverged`."""
    epochs: int
    """Epochs trained."""
    best_epoch: int
    """The epoch, counted from 1, whose weights were kept."""
    elbo: float | None = None
    """Validation ELBO of the best epoch, in nats per sample; None unless the member finished."""
    used_precision: float | None = None
    """γ² of the trained decoder; None under a Bernoulli likelihood."""
    diverged_at_step: int | None = None
    """The step, counted from 1, at which the loss was no longer finite."""
    converged: bool | None = None
    """Whether more epochs would have changed little (`has_converged`); None if diverged or not recorded."""
    precision_floor: float | None = None
    """γ² below which an optimal one was not let; None if it is the maximum-likelihood value whatever that is."""

    def to_dict(self) -> dict[str, object]:
        """Fields by name, for JSON and tables."""
        return plain_fields(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> TrainingSummary:
        """From `to_dict`, with types checked; a summary without `converged` has None there.

        >>> TrainingSummary.from_dict({"status": "finished", "epochs": 3, "best_epoch": 2}).converged is None
        True
        """
        return from_plain(cls, data, name="summary")


def has_converged(scores: Sequence[float]) -> bool:
    """Whether training had nearly stopped improving when it reached its last epoch.

    True if the best score rose by at most max(0.05 nats, 0.001 of its rise after the first fifth of the epochs) over
    the last fifth of them. A single epoch says nothing: False. Members stopped by patience count as converged without
    this rule, diverged ones do not converge. The first epochs do not count, because a random decoder of high precision
    starts at an ELBO of minus many thousand nats.

    Args:
        scores: validation objective after every epoch at the final precision, to be maximised: the ELBO if β = 1.

    >>> has_converged([-10.0, -5.0, -4.0, -3.99, -3.98]), has_converged([-10.0, -8.0, -6.0, -4.0, -2.0])
    (True, False)
    """
    fifth = math.ceil(len(scores) / 5)
    before = scores[: len(scores) - fifth]
    if not before:
        return False
    best = max(scores)
    return best - max(before) <= max(0.05, 1e-3 * (best - scores[fifth - 1]))


@dataclass(frozen=True, eq=False)
class Member(LatentModel):
    """A `LatentModel`: a VAE's settings, the weights of one member, and how its training went.

    Computations follow the dtype of their input: float64 rows are encoded in float64.

    Args:
        model: settings of the VAE.
        params: weights, with a member axis of length one.
        seed: of initial weights, batches and noise.
        beta: factor of the KL in training.
        precision: γ² = 1 / decoder variance; None under a Bernoulli likelihood, and for a learned covariance.
        training: how training went.
        history: training loss, validation ELBO and further metrics after every epoch.
    """

    model: VAE
    params: Params
    seed: int = 0
    beta: float = 1.0
    precision: float | None = None
    training: TrainingSummary = field(default_factory=lambda: TrainingSummary("finished", epochs=0, best_epoch=0))
    history: Mapping[str, list[float]] = field(default_factory=dict)

    # how training went ------------------------------------------------------------------------

    def summary(self) -> TrainingSummary:
        """How training went."""
        return self.training

    @property
    def status(self) -> str:
        """`finished` or `diverged`."""
        return self.training.status

    @property
    def best_elbo(self) -> float:
        """Validation ELBO of the best epoch; NaN unless finished."""
        return math.nan if self.training.elbo is None else self.training.elbo

    @property
    def best_epoch(self) -> int:
        return self.training.best_epoch

    @property
    def diverged_at_step(self) -> int | None:
        return self.training.diverged_at_step

    @property
    def converged(self) -> bool | None:
        return self.training.converged

    def history_rows(self, cell: Mapping[str, object]) -> list[dict[str, object]]:
        """The history as rows of a table, one per epoch, each starting with the columns of the cell.

        Args:
            cell: columns that identify the member, such as its precision and seed.
        """
        names = list(self.history)
        return [
            {**cell, "epoch": epoch, **dict(zip(names, values, strict=True))}
            for epoch, values in enumerate(zip(*self.history.values(), strict=True), start=1)
        ]

    # what the model is ------------------------------------------------------------------------

    def build_spec(self) -> ModelSpec:
        """What analyses need to know; the prior of an iVAE is known with its auxiliary input only, by `prior_at`."""
        return ModelSpec(
            latent_dim=self.model.latent_dim,
            name=f"member {self.seed}",
            prior=ConditionalPrior() if self.model.auxiliary_dim else self._own_prior,
            likelihood=self.model.likelihood,
            precision=self.precision,
            log_likelihood=self._covariance_log_likelihood if self.model.learns_covariance else None,
            beta=self.beta,
            posterior_family="marginals" if self.model.posterior == "full" else "diagonal",
            returns_variances=True,
            auxiliary_dim=self.model.auxiliary_dim,
            image_shape=self.model.networks.image_shape,
            flattens_images=True,
        )

    def trained_weights(self) -> dict[str, Tensor]:
        return dict(self.params)

    def with_weights(self, weights: Mapping[str, Tensor]) -> Member:
        return replace(self, params={**self.params, **weights})

    def _covariance_log_likelihood(self, x: Tensor, z: Tensor) -> Tensor:
        """log p(x|z) under a learned covariance, which γ² does not describe."""
        return covariance_log_likelihood(self._params(x), (x.flatten(1) - self.decode(z)).unsqueeze(0))[0]

    @property
    def noise_precision(self) -> Tensor | None:
        """Λ, the learned inverse covariance of the outputs: (n,) or (n, n); None for noise that γ² describes."""
        return noise_precision(self.params) if self.model.learns_covariance else None

    @property
    def _own_prior(self) -> Prior:
        """The prior of a plain VAE, with parameters per latent if they are learned."""
        prior = self.model.prior
        if self.model.prior_shape == "fixed":
            return prior
        return learned_prior(prior, self.params, member=0)

    def prior_at(self, auxiliary: object | None = None, *, like: Tensor | None = None) -> Prior:
        if not self.auxiliary_dim and auxiliary is None:
            return self._own_prior
        encoded = encode_auxiliary(auxiliary, self.auxiliary_dim, like=like)
        found = self.model.prior_at(self._params(encoded), encoded.unsqueeze(0))
        return found.member(0) if isinstance(found, LearnedNormal) else found

    # encoding and decoding --------------------------------------------------------------------

    def join_auxiliary(self, x: Float[Tensor, "N n"], auxiliary: object | None = None) -> Float[Tensor, "N r"]:
        """Rows as the networks take them: x, then the encoded auxiliary input.

        Args:
            x: (N, n) observations.
            auxiliary: labels or rows of numbers, one per sample; None for a plain VAE.
        """
        if x.ndim != 2 or x.shape[1] != self.model.observed_dim:
            raise InputError(f"x must have shape (N, {self.model.observed_dim}), got {tuple(x.shape)}.")
        encoded = encode_auxiliary(auxiliary, self.auxiliary_dim, like=x)
        if self.auxiliary_dim and len(encoded) != len(x):
            raise InputError(f"auxiliary needs a row per sample, got {len(encoded)} rows for {len(x)} samples.")
        return torch.cat([x, encoded], dim=1) if self.auxiliary_dim else x

    def split_auxiliary(self, rows: Float[Tensor, "N r"]) -> tuple[Float[Tensor, "N n"], Float[Tensor, "N m"] | None]:
        """x and auxiliary input of rows; the latter is None for a plain VAE.

        Args:
            rows: x followed by the auxiliary input.
        """
        x, auxiliary = self.model.split_auxiliary(rows)
        return x, auxiliary if self.auxiliary_dim else None

    def posterior(self, x: Float[Tensor, "N n"], auxiliary: object | None = None) -> Posterior:
        """q(z|x), or q(z|x, auxiliary), in the unbounded coordinate of the latents.

        Args:
            x: (N, n) observations.
            auxiliary: labels or rows of numbers, one per sample; None for a plain VAE.
        """
        rows = self.join_auxiliary(x, auxiliary)
        return self.model.encode(self._params(rows), rows.unsqueeze(0)).member(0)

    def encode(
        self, x: Float[Tensor, "N n"], auxiliary: object | None = None
    ) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
        posterior = self.posterior(x, auxiliary)
        return self.model.prior.moments(posterior.mean, posterior.marginal_variance)

    def sample(
        self, x: Float[Tensor, "N n"], generator: torch.Generator, auxiliary: object | None = None
    ) -> Float[Tensor, "N d"]:
        """One draw of z from q(z|x), or q(z|x, auxiliary), per row of x.

        Args:
            x: (N, n) observations.
            generator: source of randomness, on the CPU.
            auxiliary: labels or rows of numbers, one per sample; None for a plain VAE.
        """
        posterior = self.posterior(x, auxiliary)
        noise = torch.randn(posterior.mean.shape, generator=generator, dtype=x.dtype)
        return self.model.prior.to_support(posterior.sample(noise.to(x.device)))

    def decode(self, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n"]:
        output = self.model.decoder_output(self._params(z), z.unsqueeze(0))[0]
        return torch.sigmoid(output) if self.model.likelihood == "bernoulli" else output

    def _params(self, like: Tensor) -> dict[str, Tensor]:
        """Weights in the dtype and on the device of the input."""
        return {name: value.to(like) for name, value in self.params.items()}
