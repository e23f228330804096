"""From evidence to findings: one small function per fault, each with its threshold beside its words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vaescope.diagnosis.evidence import Geometry, Noise
from vaescope.diagnosis.findings import Finding
from vaescope.diagnosis.gap import Split
from vaescope.regime import Regime

ROTATED = 0.1  # nats of contrast that other axes must save,
ROTATED_SHARE = 0.3  # and the share of the contrast that this must be
VARIANCE_WRONG = 10.0  # times
BETA_WRONG = 4.0  # times
AMORTISATION = 0.5  # nats that an encoder loses beyond its family,
AMORTISATION_SHARE = 0.05  # and the share of the KL
STABLE = 0.8
NARROW = 0.1  # posterior over prior variance up to which a model is near-deterministic,
AS_PREDICTED = 1.25  # and times by which Eq. 12 may be missed then
UNRELIABLE = 0.7  # Pareto k above which importance sampling is not to be trusted
WIDE = 0.2  # share of posteriors wider than their prior


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything that was measured; None where it could not be, with the reason in `skipped`."""

    regime: Regime
    log_variance: bool = False
    logits: bool = False
    zero_variance: bool = False
    rotatable: bool = True
    """Whether the prior has no axes of its own."""
    likelihood: str | None = None
    geometry: Geometry | None = None
    noise: Noise | None = None
    split: Split | None = None
    eq12: np.ndarray | None = None
    stability: Any = None
    evaluation: Any = None
    skipped: dict[str, str] = field(default_factory=dict)


def near_deterministic(seen: Evidence) -> tuple[bool, str] | None:
    """Whether the theory of the near-deterministic limit is about this model, and why; None where that is not known."""
    places = seen.regime.used
    if seen.eq12 is None or not places or seen.regime.samples < 2:
        return None
    ratio = float(np.median([seen.eq12[k] for k in places]))
    narrow = float(np.median([seen.regime.variance_ratio[k] for k in places]))
    words = f"posteriors in use have {narrow:.2g} of their prior's variance and {ratio:.2f} of what Eq. 12 says"
    return narrow <= NARROW and 1 / AS_PREDICTED <= ratio <= AS_PREDICTED, words


def judge(seen: Evidence) -> list[Finding]:
    """Every finding; a fault that explains others silences them."""
    found = [finding for rule in (_posteriors, _collapse, _axes, _noise, _trust) for finding in rule(seen)]
    codes = {finding.code for finding in found}
    if not codes & {"collapsed", "log-variance", "decoder-variance", "beta-high", "beta-low"}:
        found += _encoder(seen)
    return found


def _posteriors(seen: Evidence) -> Iterator[Finding]:
    if seen.log_variance:
        yield Finding(
            "log-variance",
            "error",
            "The encoder returns something else than variances.",
            "Some of the values given as variances are zero or negative; they were taken for log-variances here.",
            "Return exp(log-variance) from encode, or say scale='log_variance' to from_modules.",
        )
    if seen.zero_variance:
        yield Finding(
            "zero-variance",
            "warning",
            "Some posterior variances are exactly zero.",
            "They were taken for the least number above it; KL and everything from it is large without bound there.",
            "Compute log-variances, or clamp them in the encoder; a deterministic autoencoder has no posterior.",
        )
    if seen.logits:
        yield Finding(
            "logits",
            "error",
            "The decoder returns something else than probabilities.",
            "Some outputs of a Bernoulli decoder are below 0 or above 1; they were taken for logits here.",
            "Return sigmoid(logits) from decode.",
        )
    wide = [k for k in range(seen.regime.latent_dim) if seen.regime.wide_fraction[k] > WIDE]
    if wide and not seen.log_variance:
        yield Finding(
            "wide-posteriors",
            "note",
            "Some posteriors are wider than their prior.",
            f"Latents {_listed(wide)}, for more than {WIDE:.0%} of samples.",
            "Train the encoder longer: no optimal posterior is wider than its prior.",
        )


def _collapse(seen: Evidence) -> Iterator[Finding]:
    regime = seen.regime
    passive, d = regime.passive, regime.latent_dim
    if regime.collapse.kind in ("full", "repeats prior"):
        yield Finding(
            "collapsed" if regime.collapse.kind == "full" else "repeats-prior",
            "error",
            "The posterior has collapsed: codes say nothing of x.",
            f"{regime.collapse.words} Mean KL {float(np.sum(regime.kl)):.3g} nats.",
            "Lower β, raise the decoder's precision or warm it up, or weaken a decoder that needs no codes.",
        )
    elif len(passive) >= max(2, math.ceil(d / 2)):
        yield Finding(
            "over-wide",
            "warning",
            f"{d - len(passive)} of {d} latents would do.",
            f"{len(passive)} latents stay at their prior; the decoder cannot read them.",
            f"Use latent_dim={d - len(passive)}, or drop them with vs.regime.prune; if reconstructions are poor, the "
            "model is rather over-regularised: see β and precision.",
        )
    elif passive:
        yield Finding(
            "dead-latent",
            "note",
            f"{len(passive)} of {d} latents {'is' if len(passive) == 1 else 'are'} not in use.",
            f"Latent{'s' * (len(passive) > 1)} {_listed(passive)}: posterior at the prior for nearly every sample.",
            "Leave them out of whatever reads the codes; their means still move a little, and mislead.",
        )


def _axes(seen: Evidence) -> Iterator[Finding]:
    if seen.geometry is None or len(seen.regime.used) < 2 or not seen.rotatable:
        return
    turn = seen.geometry.rotation
    if turn is None:
        return
    if turn.gained >= ROTATED and turn.gained >= ROTATED_SHARE * turn.before:
        known = seen.likelihood is not None
        yield Finding(
            "rotated",
            "warning" if known else "note",
            "The latents' axes are not those that the decoder singles out.",
            ("" if known else "Measured as if the noise were alike in all outputs, which is not known. ")
            + f"Rotating the latents in use (by up to {turn.turned:.0f}°) would lower the mean contrast c_IMA from "
            f"{turn.before:.2f} to {turn.after:.2f} nats at the same likelihood.",
            "Do not read single latents: train longer with diagonal posteriors, or rotate codes by the matrix "
            "(geometry.axes in the JSON, columns are the better axes).",
        )


def _noise(seen: Evidence) -> Iterator[Finding]:
    noise = seen.noise
    if noise is None or seen.regime.collapse.kind == "full" or seen.log_variance:
        return
    best = 0.0 if seen.split is None else seen.split.precision or 0.0
    measured = max(noise.precision, best)  # an encoder that is off is not noise; nor are posteriors of a wrong variance
    wrong = None if noise.declared is None else noise.declared / measured
    if wrong is not None and noise.likelihood == "gaussian" and not 1 / VARIANCE_WRONG <= wrong <= VARIANCE_WRONG:
        too = "small" if wrong > 1 else "large"
        yield Finding(
            "decoder-variance",
            "warning",
            f"The decoder's variance is {max(wrong, 1 / wrong):.0f} times too {too}.",
            f"It is said to be {1 / (noise.declared or 1):.3g}; the errors of reconstructions are those of "
            f"{1 / measured:.3g}.",
            "Train with its maximum-likelihood value (precision='optimal'), or divide a summed squared error by twice "
            "that variance.",
        )
        return
    if noise.beta is None:
        return
    weighed, stated = noise.beta / noise.stated_beta, noise.stated_beta
    asked = "the likelihood asks for" if stated == 1 else f"β = {stated:g} asks for"
    if weighed > BETA_WRONG:
        yield Finding(
            "beta-high",
            "warning",
            f"The KL seems to be weighed {weighed:.0f} times as much as {asked}.",
            f"Posteriors are as wide as those of a decoder with precision {noise.implied:.3g} (Eq. 12), where "
            f"{noise.declared:.3g} is its own.",
            "If β was not meant to be that high: losses must be sums over pixels and latents, not means over pixels.",
        )
    elif weighed < 1 / BETA_WRONG:
        yield Finding(
            "beta-low",
            "warning",
            f"The KL seems to be weighed {1 / weighed:.0f} times less than {asked}.",
            f"Posteriors are as narrow as those of a decoder with precision {noise.implied:.3g} (Eq. 12), where "
            f"{noise.declared:.3g} is its own.",
            "Samples from the prior will not look like data: raise β, or state the precision that the loss implies.",
        )


def _encoder(seen: Evidence) -> Iterator[Finding]:
    split = seen.split
    if split is None or (seen.noise is not None and seen.noise.stated_beta != 1):
        return
    lost, error = split.mean("amortisation")
    if lost > AMORTISATION and lost > 3 * error and lost > AMORTISATION_SHARE * float(np.sum(seen.regime.kl)):
        yield Finding(
            "amortisation",
            "warning",
            "The encoder lags behind its decoder.",
            f"It loses {lost:.2f} ± {error:.2f} nats against the best posterior of its own family; the family itself "
            f"loses {split.mean('family')[0]:.2f}.",
            "Train the encoder alone for a while with the decoder held, make it larger, or lower its learning rate.",
        )


def _trust(seen: Evidence) -> Iterator[Finding]:
    if seen.stability is not None and float(seen.stability.score) < STABLE:
        yield Finding(
            "unstable",
            "warning",
            "Another seed gives other latents.",
            f"Mean correlation of matched latents between members {float(seen.stability.score):.2f} (floor "
            f"{float(seen.stability.floor):.2f}).",
            "Do not give single latents a meaning; look for what is common to all seeds.",
        )
    if seen.split is not None and seen.split.pareto_k is not None and seen.split.pareto_k > UNRELIABLE:
        yield Finding(
            "unreliable-likelihood",
            "note",
            "log p(x) by importance sampling is not to be trusted here.",
            f"Pareto k̂ {seen.split.pareto_k:.2f}, above {UNRELIABLE:g}.",
            "Take the gap for a lower bound.",
        )


def _listed(places: list[int]) -> str:
    return ", ".join(map(str, sorted(places)[:8])) + (", …" if len(places) > 8 else "")
