"""How many latents the data need, estimated from one over-wide model without training another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.distributions import kl_per_latent
from vaescope.distributions.likelihoods import LIKELIHOODS, log_likelihood
from vaescope.encoded import EncodedSample, encode_chunks, encode_sample
from vaescope.encoded.sample import check_samples
from vaescope.errors import InputError
from vaescope.protocol import LatentModel
from vaescope.regime.classify import Regime, TableRow
from vaescope.regime.model import regime_of, squared_error
from vaescope.validation import choice, whole_number

DRAWS = 4  # of the latents, per sample and number of latents


@dataclass(frozen=True, eq=False)
class Advice:
    """The recommended number of latents, and the cost of using fewer."""

    latents: int
    """Latents that carry information: active and mixed."""
    order: list[int]
    """Latents by KL, highest first."""
    error: np.ndarray
    """(d + 1,) mean squared error (summed over x) with the first k latents only."""
    elbo: np.ndarray | None
    """(d + 1,) ELBO with the first k latents only, if the likelihood is known."""
    elbo_gain: np.ndarray | None
    """(d,) what the k-th latent adds to the ELBO, in nats."""
    elbo_gain_error: np.ndarray | None
    """(d,) its standard error over samples."""
    regime: Regime = field(repr=False)

    @property
    def latents_by_elbo(self) -> int:
        """The smallest number of latents after which none adds `passive_kl` nats or two standard errors to the ELBO."""
        if self.elbo_gain is None or self.elbo_gain_error is None:
            return self.latents
        minimum = self.regime.thresholds.passive_kl
        useful = np.flatnonzero((self.elbo_gain > minimum) & (self.elbo_gain > 2 * self.elbo_gain_error))
        return int(useful[-1]) + 1 if len(useful) else 0

    @property
    def recommendation(self) -> str:
        """The advice in a sentence or two."""
        width = len(self.order)
        if self.latents == 0:
            return (
                f"The model uses none of its {width} latents: it has collapsed, so it gives no estimate. Train it "
                "again with a lower β or a higher precision; vs.preflight(x) says which."
            )
        text = f"The model uses {self.latents} of its {width} latents"
        if self.latents == width:
            return f"{text}, so it may be too narrow. Train a wider one to find out."
        if self.elbo is not None and self.latents_by_elbo != self.latents:
            return (
                f"{text}, but the ELBO stops increasing after {self.latents_by_elbo}; the verdicts on the latents in "
                "between depend on thresholds, so look at the curve."
            )
        return f"{text}; {self.latents} are enough."

    def table(self) -> list[TableRow]:
        """The truncation curve, a row per number of latents."""
        rows = []
        for k in range(len(self.error)):
            row: TableRow = {"latents": k, "squared error": float(self.error[k])}
            row |= {} if self.elbo is None else {"ELBO": float(self.elbo[k])}
            rows.append(row | ({"adds latent": self.order[k - 1]} if k else {}))
        return rows


class _Truncation(NamedTuple):
    """Reconstruction of each sample with some of the latents."""

    squared_error: Float[Tensor, " N"]
    log_likelihood: Float[Tensor, " N"]


@torch.no_grad()
def advise(
    model: LatentModel,
    x: object,
    *,
    auxiliary: object | None = None,
    likelihood: str | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> Advice:
    """Judge each latent, then measure what the model loses with only the first k latents, for every k.

    The truncated model has the posterior q(z_1|x) … q(z_k|x) p(z_{k+1}) … p(z_d): the other latents are drawn from
    their prior and cost no KL. Its ELBO is a valid bound, and no weights change.

    Args:
        model: a member of a fit, a model from `vs.adapters`, or your own `LatentModel`.
        x: samples; may be larger than memory (a memory-mapped array).
        auxiliary: the auxiliary input of an iVAE, a label or a row of numbers per sample.
        likelihood: `gaussian` or `bernoulli`; by default that of the model.
        samples: how many samples the curve is measured on.
        seed: of the draws.
    """
    available = min(whole_number("samples", samples), len(check_samples(x)[0]))
    if available < 2:
        raise InputError(f"advice needs at least 2 samples, got {available}.")
    sample = encode_sample(model, x, auxiliary, samples)
    regime = regime_of(encode_chunks(model, x, auxiliary, first=sample))
    order = [*regime.used, *regime.passive]
    kind = _known_likelihood(model, likelihood, sample.x)
    errors, fits = zip(*_truncations(sample, order, kind, seed), strict=True)
    error = torch.stack(errors).mean(1).double().cpu().numpy()
    if kind is None:
        return Advice(len(regime.used), order, error, None, None, None, regime)
    kl = kl_per_latent(sample.mean, sample.variance, sample.prior)[:, order].cumsum(1).T
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


def _known_likelihood(model: LatentModel, given: str | None, x: Tensor) -> str | None:
    """The likelihood given by the caller or the model; Gaussian if there is only a precision."""
    kind = given or model.likelihood or ("gaussian" if model.precision is not None else None)
    if kind is not None:
        choice("likelihood", kind, LIKELIHOODS)
    if kind == "gaussian" and model.precision is None:
        raise InputError("a Gaussian likelihood needs the model's precision, and this model has none.")
    if kind == "bernoulli" and not 0 <= float(x.min()) <= float(x.max()) <= 1:
        raise InputError(f"a Bernoulli likelihood needs x in [0, 1], got {float(x.min()):g} to {float(x.max()):g}.")
    return kind


def _truncations(sample: EncodedSample, order: list[int], kind: str | None, seed: int) -> list[_Truncation]:
    """Squared error at the mean and E log p(x|z) with the first k latents, for every k.

    All k share one set of draws, so that differences between them are due to the truncation alone.
    """
    generator = randomness.generator(seed, "advise")
    noise = torch.randn((DRAWS, *sample.mean.shape), generator=generator, dtype=sample.mean.dtype)
    noise = noise.to(sample.mean.device)
    posterior_draws = sample.mean + sample.variance.sqrt() * noise
    prior_draws = sample.prior_mean + sample.prior_variance.sqrt() * noise
    found = []
    for k in range(len(order) + 1):
        dropped = torch.zeros(len(order), dtype=torch.bool, device=sample.mean.device)
        dropped[order[k:]] = True
        error = squared_error(sample.x, sample.decode(torch.where(dropped, sample.prior_mean, sample.mean)))
        draws = (torch.where(dropped, p, q) for p, q in zip(prior_draws, posterior_draws, strict=True))
        fits = [_log_likelihood(sample, sample.decode(z), kind) for z in draws]
        found.append(_Truncation(error, torch.stack(fits).mean(0)))
    return found


def _log_likelihood(sample: EncodedSample, output: Tensor, kind: str | None) -> Float[Tensor, " N"]:
    if kind is None:
        return torch.zeros_like(output[:, 0])
    return log_likelihood(kind, sample.x, output.reshape(sample.x.shape), sample.model.precision)
