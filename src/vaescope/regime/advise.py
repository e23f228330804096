"""How many latents the data need, from one over-wide model and without training another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.distributions import kl_per_latent
from vaescope.distributions.likelihoods import LIKELIHOODS, bernoulli_log_likelihood, gaussian_log_likelihood
from vaescope.errors import InputError
from vaescope.protocol import LatentModel
from vaescope.regime.classify import Regime
from vaescope.regime.model import Encoded, as_array, of_model, spread_samples, squared_error

DRAWS = 4  # of the latents, per sample and length of the code


@dataclass(frozen=True, eq=False)
class Advice:
    """The dimension to use, and what every shorter code would cost."""

    latents: int
    """Latents that carry something: active and mixed."""
    order: list[int]
    """Latents by KL, the most used first."""
    error: np.ndarray
    """(d + 1,) mean squared error (summed over x) with the first k latents only."""
    elbo: np.ndarray | None
    """(d + 1,) ELBO with the first k latents only, where the likelihood is known."""
    elbo_gain: np.ndarray | None
    """(d,) what the k-th latent adds to the ELBO, in nats."""
    elbo_gain_error: np.ndarray | None
    """(d,) its standard error over samples."""
    regime: Regime = field(repr=False)

    @property
    def enough(self) -> int:
        """The shortest code after which no latent adds `passive_kl` nats to the ELBO, beyond two standard errors."""
        if self.elbo_gain is None or self.elbo_gain_error is None:
            return self.latents
        least = self.regime.thresholds.passive_kl
        paying = np.flatnonzero((self.elbo_gain > least) & (self.elbo_gain > 2 * self.elbo_gain_error))
        return int(paying[-1]) + 1 if len(paying) else 0

    @property
    def words(self) -> str:
        width = len(self.order)
        if self.latents == 0:
            return (
                f"The model uses none of its {width} latents: it has collapsed and cannot tell. Train it again with a "
                "lower β, a higher precision or a warm-up, and ask again."
            )
        text = f"The model uses {self.latents} of its {width} latents"
        if self.latents == width:
            return f"{text}, all of them: it may be too narrow. Train a wider one and ask again."
        if self.elbo is not None and self.enough != self.latents:
            return (
                f"{text}, while the ELBO stops rising after {self.enough}; the verdicts of the latents between "
                "hang on thresholds, so look at the curve."
            )
        return f"{text}; {self.latents} would do."

    def table(self) -> list[dict[str, Any]]:
        """The truncation curve, a row per number of latents."""
        rows = []
        for k in range(len(self.error)):
            row = {"latents": k, "squared error": float(self.error[k])}
            row |= {} if self.elbo is None else {"ELBO": float(self.elbo[k])}
            rows.append(row | ({"adds latent": self.order[k - 1]} if k else {}))
        return rows


@torch.no_grad()
def advise(
    model: LatentModel,
    x: Any,
    *,
    auxiliary: Any = None,
    likelihood: str | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> Advice:
    """Judge every latent, then cut the code after each of them in turn.

    The model with the first k latents has the posterior q(z_1|x) … q(z_k|x) p(z_{k+1}) … p(z_d): the others are drawn
    from their prior and cost no KL, so its ELBO is a bound like any other, and no weight has to be changed.
    """
    x, auxiliary = as_array(x), as_array(auxiliary)
    if samples < 2 or len(x) < 2:
        raise InputError(f"advice needs at least 2 samples, got {min(samples, len(x))}.")
    regime = of_model(model, x, auxiliary=auxiliary, decoder=False)
    order = [*regime.used, *regime.passive]
    some = spread_samples(model, x, auxiliary, samples)
    kind = _likelihood(model, likelihood, some.x)
    errors, fits = zip(*_truncated(model, some, order, kind, seed), strict=True)
    error = torch.stack(errors).mean(1).double().cpu().numpy()
    if kind is None:
        return Advice(len(regime.used), order, error, None, None, None, regime)
    kl = kl_per_latent(some.mean, some.variance, some.prior)[:, order].cumsum(1).T
    elbo = torch.stack(fits).double()
    elbo[1:] -= kl.double()
    gain = elbo.diff(dim=0)
    return Advice(
        len(regime.used),
        order,
        error,
        elbo.mean(1).cpu().numpy(),
        gain.mean(1).cpu().numpy(),
        (gain.std(1) / gain.shape[1] ** 0.5).cpu().numpy(),
        regime,
    )


def _likelihood(model: LatentModel, said: str | None, x: Tensor) -> str | None:
    """What is known of p(x|z): what the caller says, what the model says, or a Gaussian where there is a precision."""
    kind = said or getattr(model, "likelihood", None) or ("gaussian" if model.precision is not None else None)
    if kind not in (None, *LIKELIHOODS):
        raise InputError(f"likelihood must be one of {', '.join(LIKELIHOODS)}, got {kind!r}.")
    if kind == "gaussian" and model.precision is None:
        raise InputError("a Gaussian likelihood needs the model's precision, and it has none.")
    if kind == "bernoulli" and not 0 <= float(x.min()) <= float(x.max()) <= 1:
        raise InputError(f"a Bernoulli likelihood needs x in [0, 1], got {float(x.min()):g} to {float(x.max()):g}.")
    return kind


def _truncated(
    model: LatentModel, some: Encoded, order: list[int], kind: str | None, seed: int
) -> list[tuple[Float[Tensor, " N"], Float[Tensor, " N"]]]:
    """Squared error at the mean and E log p(x|z), of every sample, for every length of the code.

    One set of draws serves all lengths, so that differences between them are of the cut alone.
    """
    noise = torch.randn(
        (DRAWS, *some.mean.shape), generator=randomness.generator(seed, "advise"), dtype=some.mean.dtype
    )
    noise = noise.to(some.mean.device)
    drawn = some.mean + some.variance.sqrt() * noise
    unknown = some.prior_mean + some.prior_variance.sqrt() * noise
    found = []
    for k in range(len(order) + 1):
        cut = torch.zeros(len(order), dtype=torch.bool, device=some.mean.device)
        cut[order[k:]] = True
        error = squared_error(some.x, model.decode(torch.where(cut, some.prior_mean, some.mean)))
        fits = [
            _log_likelihood(model, some.x, model.decode(torch.where(cut, p, q)), kind)
            for p, q in zip(unknown, drawn, strict=True)
        ]
        found.append((error, torch.stack(fits).mean(0)))
    return found


def _log_likelihood(model: LatentModel, x: Tensor, output: Tensor, kind: str | None) -> Float[Tensor, " N"]:
    if kind == "bernoulli":
        mean = output.reshape(x.shape).flatten(1)
        return bernoulli_log_likelihood(x.flatten(1), torch.logit(mean, eps=torch.finfo(mean.dtype).eps))
    error = squared_error(x, output)
    if kind is None:
        return torch.zeros_like(error)
    return gaussian_log_likelihood(error, x.flatten(1).shape[1], torch.as_tensor(model.precision))
