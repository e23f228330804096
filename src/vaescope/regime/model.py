"""The regime of a model: all samples encoded in chunks, and the effect of each latent on what is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample, differentiate, encode_chunks, encode_sample
from vaescope.analysis.posteriors import Array, posteriors_of
from vaescope.analysis.samples import read_samples
from vaescope.core import randomness
from vaescope.core.checks import choice, integer
from vaescope.core.errors import InputError
from vaescope.distributions import Normal, Prior, kl_per_latent
from vaescope.distributions.likelihoods import LIKELIHOODS, log_likelihood
from vaescope.protocol import LatentModel, LogLikelihood, ModelSpec, WrappedModel, check_model
from vaescope.regime.classify import PosteriorStatistics, Regime, TableRow, Thresholds, judge

EFFECT_SAMPLES = 500  # that are decoded with one latent drawn from its prior


def of_model(
    model: LatentModel,
    x: object,
    *,
    auxiliary: object | None = None,
    thresholds: Thresholds | None = None,
    decoder: bool = True,
) -> Regime:
    """Judge each latent of a model on these samples.

    Args:
        model: a member of a fit, a model from `vs.adapters`, or your own `LatentModel`.
        x: samples; may be larger than memory (a memory-mapped array).
        auxiliary: the auxiliary input of an iVAE, a label or a row of numbers per sample.
        thresholds: what counts as passive and as active.
        decoder: also measure the column norms of the decoder's Jacobian and the effect of each latent on the
            reconstruction, at a random sample from all over x.
    """
    given = read_samples(check_model(model), x, auxiliary)
    sample = encode_sample(model, given, None, EFFECT_SAMPLES) if decoder else None
    regime = regime_of(encode_chunks(model, given, first=sample), thresholds)
    if sample is None:
        return regime
    column_norm = differentiate(sample, []).column_norm.cpu().numpy()
    return replace(regime, column_norm=column_norm, effect=effect(sample))


def regime_of(chunks: Iterable[EncodedSample], thresholds: Thresholds | None = None) -> Regime:
    """Judge each latent from encoded samples."""
    return judge(PosteriorStatistics.of((posteriors_of(chunk) for chunk in chunks), thresholds))


def squared_error(x: Tensor, output: Tensor) -> Float[Tensor, " N"]:
    """‖x - f(z)‖² of each sample."""
    return (x - output.reshape(x.shape)).flatten(1).square().sum(1)


@torch.no_grad()
def effect(sample: EncodedSample) -> Array:
    """(d,) squared error added by drawing a latent from its prior, over the variance of x; NaN if x is constant.

    A draw rather than the prior's mean: the posterior mean of a passive latent is at the prior's mean already, whether
    or not the decoder depends on the latent.
    """
    flat = sample.x.flatten(1)
    scale = (flat - flat.mean(0)).square().sum(1).mean()
    noise = torch.randn(sample.mean.shape, generator=randomness.generator(0, "effect"), dtype=sample.mean.dtype)
    drawn = sample.prior_mean + sample.prior_variance.sqrt() * noise.to(sample.mean.device)
    sample.check_output(sample.decoded)
    before = squared_error(sample.x, sample.decoded)
    effects = []
    for k in range(sample.mean.shape[1]):
        changed = sample.mean.clone()
        changed[:, k] = drawn[:, k]
        added = (squared_error(sample.x, sample.decode(changed)) - before).mean()
        effects.append(added / scale if float(scale) > 0 else torch.full_like(added, torch.nan))
    return torch.stack(effects).double().cpu().numpy()


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
    given = read_samples(check_model(model), x, auxiliary)
    available = min(integer("samples", samples), len(given))
    if available < 2:
        raise InputError(f"advice needs at least 2 samples, got {available}.")
    sample = encode_sample(model, given, None, samples)
    regime = regime_of(encode_chunks(model, given, first=sample))
    order = [*regime.used, *regime.passive]
    kind = _known_likelihood(model, likelihood, sample.x)
    errors, elbo = _truncations(sample, order, kind, seed)
    error = errors.mean(1).double().cpu().numpy()
    if kind is None:
        return Advice(len(regime.used), order, error, None, None, None, regime)
    kl = kl_per_latent(sample.mean, sample.variance, sample.prior)[:, order].cumsum(1).T
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


def _truncations(
    sample: EncodedSample, order: list[int], kind: str | None, seed: int, draws: int = 4
) -> tuple[Float[Tensor, "k N"], Float[Tensor, "k N"]]:
    """Squared error at the mean, and E log p(x|z) by some draws, with the first k latents, for every k.

    All k share one set of draws, so that differences between them are due to the truncation alone.
    """
    generator = randomness.generator(seed, "advise")
    noise = torch.randn((draws, *sample.mean.shape), generator=generator, dtype=sample.mean.dtype)
    noise = noise.to(sample.mean.device)
    posterior_draws = sample.mean + sample.variance.sqrt() * noise
    prior_draws = sample.prior_mean + sample.prior_variance.sqrt() * noise
    errors, fits = [], []
    for k in range(len(order) + 1):
        dropped = torch.zeros(len(order), dtype=torch.bool, device=sample.mean.device)
        dropped[order[k:]] = True
        errors.append(squared_error(sample.x, sample.decode(torch.where(dropped, sample.prior_mean, sample.mean))))
        codes = torch.where(dropped, prior_draws, posterior_draws)
        fits.append(torch.stack([_log_likelihood(sample, sample.decode(z), kind) for z in codes]).mean(0))
    return torch.stack(errors), torch.stack(fits).double()


def _log_likelihood(sample: EncodedSample, output: Tensor, kind: str | None) -> Float[Tensor, " N"]:
    if kind is None:
        return torch.zeros_like(output[:, 0])
    return log_likelihood(kind, sample.x, output.reshape(sample.x.shape), sample.model.precision)


@dataclass(frozen=True, eq=False)
class Pruned(WrappedModel):
    """A `LatentModel` of the kept latents; the others are held at `filling`, their prior mean."""

    model: LatentModel
    kept: list[int]
    filling: Float[Tensor, " d"]
    change: float = 0.0
    """Mean squared change of decoder outputs, as a share of their variance over the data."""

    def build_spec(self) -> ModelSpec:
        spec = self.model.spec
        given = spec.log_likelihood
        log_likelihood: LogLikelihood | None = None if given is None else lambda x, z: given(x, self._full_code(z))
        prior = self._kept_prior(spec.prior)
        return replace(spec, latent_dim=len(self.kept), prior=prior, log_likelihood=log_likelihood)

    def prior_at(self, auxiliary: object | None = None, *, like: Tensor | None = None) -> Prior:
        """p(z | auxiliary) of the kept latents."""
        return self._kept_prior(self.model.prior_at(auxiliary, like=like))

    def _kept_prior(self, prior: Prior) -> Prior:
        if not isinstance(prior, Normal):
            return prior
        return Normal(
            *(
                (value[..., self.kept] if isinstance(value, Tensor) and value.ndim and value.shape[-1] > 1 else value)
                for value in (prior.mean, prior.variance)
            )
        )

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Float[Tensor, "N k"], Float[Tensor, "N k"]]:
        mean, variance = super().encode(x, auxiliary)
        return mean[:, self.kept], variance[:, self.kept]

    def decode(self, z: Float[Tensor, "N k"]) -> Tensor:
        return self.model.decode(self._full_code(z))

    def _full_code(self, z: Float[Tensor, "N k"]) -> Float[Tensor, "N d"]:
        if z.ndim != 2 or z.shape[1] != len(self.kept):
            raise InputError(f"z must have a column per kept latent, (N, {len(self.kept)}), got {tuple(z.shape)}.")
        full = self.filling.to(z).repeat(len(z), 1)
        # a sum instead of an assignment, since every mode of differentiation supports it
        embedding = torch.eye(len(self.filling), dtype=z.dtype, device=z.device)[self.kept]
        dropped = 1 - embedding.sum(0)
        return full * dropped + z @ embedding


def prune(
    model: LatentModel,
    x: object,
    *,
    auxiliary: object | None = None,
    keep: Sequence[int] | None = None,
    tolerance: float = 0.01,
) -> Pruned:
    """Drop passive latents and check that the decoder's outputs stay the same.

    Args:
        model: a member of a fit, a model from `vs.adapters`, or your own `LatentModel`.
        x: samples.
        auxiliary: the auxiliary input of an iVAE, a label or a row of numbers per sample.
        keep: latents to keep; by default those that are not passive on x.
        tolerance: largest mean squared change of the outputs, as a share of their variance over x.
    """
    given = read_samples(check_model(model), x, auxiliary)
    sample = encode_sample(model, given, None, EFFECT_SAMPLES)
    if keep is None:
        kept = sorted(regime_of(encode_chunks(model, given, first=sample)).used)
        if not kept:
            raise InputError("every latent is passive: the model has collapsed, and nothing would be left of it.")
    else:
        latents = model.latent_dim
        valid = [isinstance(k, Integral) and not isinstance(k, bool | np.bool_) and 0 <= k < latents for k in keep]
        if not len(keep) or not all(valid) or len({int(k) for k in keep}) < len(keep):
            raise InputError(f"keep must name different latents from 0 to {latents - 1}, got {list(keep)}.")
        kept = sorted(int(k) for k in keep)
    pruned = Pruned(model, kept, sample.prior_mean.mean(0))
    with torch.no_grad():
        before, after = sample.decoded, pruned.decode(sample.mean[:, kept]).flatten(1)
    scale = float((before - before.mean(0)).square().sum(1).mean())
    added = (after - before).square().sum(1).mean()
    change = float(added / scale) if scale > 0 else float(added > 0)
    if change > tolerance:
        raise InputError(
            f"dropping latents changes the decoder's outputs by {change:.2g} of their variance, more than the "
            f"tolerance of {tolerance:g}; keep more latents, or raise the tolerance."
        )
    return replace(pruned, change=change)
