"""From evidence to findings: a small function per kind of fault."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from vaescope.diagnosis.evidence import Evidence
from vaescope.diagnosis.findings import Finding

ROTATED = 0.1  # nats of contrast that a rotation must save
ROTATED_SHARE = 0.3  # share of the contrast that it must save
VARIANCE_WRONG = 10.0  # factor between declared and measured decoder variance
BETA_WRONG = 4.0  # factor between declared and effective β
AMORTISATION = 0.5  # nats that an encoder must lose
AMORTISATION_SHARE = 0.05  # share of the KL that it must lose
STABLE = 0.8  # mean correlation of matched latents between seeds
UNRELIABLE = 0.7  # Pareto k̂ above which importance sampling is unreliable
WIDE = 0.2  # share of posteriors wider than their prior
EXPLAIN_AMORTISATION = {"collapsed", "log-variance", "decoder-variance", "beta-high", "beta-low"}


def judge(evidence: Evidence) -> list[Finding]:
    """All findings; faults that explain a loss of the encoder suppress the finding about it."""
    rules = (_posteriors, _collapse, _axes, _noise, _reliability)
    found = [finding for rule in rules for finding in rule(evidence)]
    if not {finding.code for finding in found} & EXPLAIN_AMORTISATION:
        found += _encoder(evidence)
    return found


def _posteriors(evidence: Evidence) -> Iterator[Finding]:
    if evidence.log_variance:
        yield Finding(
            "log-variance",
            "error",
            "The encoder does not return variances.",
            "Some of the returned variances are negative; they are treated as log-variances here.",
            "Return exp(log-variance) from encode, or pass scale='log_variance' to from_modules.",
        )
    if evidence.zero_variance:
        yield Finding(
            "zero-variance",
            "warning",
            "Some posterior variances are exactly zero.",
            "They are replaced by the smallest positive number; the KL and everything derived from it is unbounded.",
            "Compute log-variances, or clamp variances in the encoder; a deterministic autoencoder has no posterior.",
        )
    if evidence.logits:
        yield Finding(
            "logits",
            "error",
            "The decoder does not return probabilities.",
            "Some outputs of the Bernoulli decoder are below 0 or above 1; they are treated as logits here.",
            "Return sigmoid(logits) from decode.",
        )
    regime = evidence.regime
    wide = [k for k in range(regime.latent_dim) if regime.wide_fraction[k] > WIDE]
    if wide and not evidence.log_variance:
        yield Finding(
            "wide-posteriors",
            "note",
            "Some posteriors are wider than their prior.",
            f"Latents {_listed(wide)}, for more than {WIDE:.0%} of samples.",
            "Train the encoder longer: no optimal posterior is wider than its prior.",
        )


def _collapse(evidence: Evidence) -> Iterator[Finding]:
    regime = evidence.regime
    passive, d = regime.passive, regime.latent_dim
    if regime.collapse.kind in ("full", "repeats prior"):
        yield Finding(
            "collapsed" if regime.collapse.kind == "full" else "repeats-prior",
            "error",
            "The posterior has collapsed: codes carry no information about x.",
            f"{regime.collapse.description} Mean KL {float(np.sum(regime.kl)):.3g} nats.",
            "Lower β, raise the decoder's precision or use warm-up, or use a weaker decoder that depends on its codes.",
        )
    elif len(passive) >= max(2, math.ceil(d / 2)):
        yield Finding(
            "over-wide",
            "warning",
            f"{d - len(passive)} of {d} latents are enough.",
            f"{len(passive)} latents stay at their prior; the decoder gets no information from them.",
            f"Use latent_dim={d - len(passive)}, or drop them with vs.regime.prune. If reconstructions are poor, the "
            "model is over-regularised instead: check β and the precision.",
        )
    elif passive:
        yield Finding(
            "dead-latent",
            "note",
            f"{len(passive)} of {d} latents {'is' if len(passive) == 1 else 'are'} not in use.",
            f"Latent{'s' * (len(passive) > 1)} {_listed(passive)}: posterior at the prior for nearly every sample.",
            "Exclude them from downstream analyses of the codes; small variations of their means are misleading.",
        )


def _axes(evidence: Evidence) -> Iterator[Finding]:
    if evidence.geometry is None or len(evidence.regime.used) < 2 or not evidence.rotatable:
        return
    rotation = evidence.geometry.rotation
    if rotation is None:
        return
    if rotation.gain >= ROTATED and rotation.gain >= ROTATED_SHARE * rotation.before:
        known = evidence.likelihood is not None
        yield Finding(
            "rotated",
            "warning" if known else "note",
            "The latent axes are not those that the decoder favours.",
            ("" if known else "The likelihood is unknown, so all outputs are assumed to be equally noisy. ")
            + f"Rotating the latents in use (by up to {rotation.largest_angle:.0f}°) would lower the mean contrast "
            f"c_IMA from {rotation.before:.2f} to {rotation.after:.2f} nats at the same likelihood.",
            "Do not interpret single latents. Train longer with diagonal posteriors, or rotate codes with the matrix "
            "in geometry.axes of the JSON file, whose columns are the better axes.",
        )


def _noise(evidence: Evidence) -> Iterator[Finding]:
    noise = evidence.noise
    if noise is None or evidence.regime.collapse.kind == "full" or evidence.log_variance:
        return
    at_best = 0.0 if evidence.gap is None else evidence.gap.precision or 0.0
    measured = max(noise.precision, at_best)  # errors of the encoder are not noise
    wrong = None if noise.declared is None else noise.declared / measured
    if wrong is not None and noise.likelihood == "gaussian" and not 1 / VARIANCE_WRONG <= wrong <= VARIANCE_WRONG:
        yield Finding(
            "decoder-variance",
            "warning",
            f"The decoder's variance is {max(wrong, 1 / wrong):.0f} times too {'small' if wrong > 1 else 'large'}.",
            f"It is declared as {1 / (noise.declared or 1):.3g}, but reconstruction errors imply {1 / measured:.3g}.",
            "Train with its maximum-likelihood value (precision='optimal'), or divide the summed squared error by "
            "twice that variance.",
        )
    elif noise.beta is not None:
        yield from _beta(noise.beta / noise.declared_beta, noise.declared_beta, noise.implied, noise.declared)


def _beta(factor: float, declared_beta: float, implied: float | None, declared: float | None) -> Iterator[Finding]:
    """Findings about the weight of the KL, relative to the declared one."""
    assert implied is not None
    assert declared is not None
    reference = "of the likelihood" if declared_beta == 1 else f"of β = {declared_beta:g}"
    evidence = f"as those of a decoder with precision {implied:.3g} (Eq. 12), but the decoder's is {declared:.3g}."
    if factor > BETA_WRONG:
        yield Finding(
            "beta-high",
            "warning",
            f"The effective weight of the KL is {factor:.0f} times that {reference}.",
            f"Posteriors are as wide {evidence}",
            "If β should not be that high: sum the loss over pixels and latents instead of averaging over pixels.",
        )
    elif factor < 1 / BETA_WRONG:
        yield Finding(
            "beta-low",
            "warning",
            f"The effective weight of the KL is 1/{1 / factor:.0f} of that {reference}.",
            f"Posteriors are as narrow {evidence}",
            "Samples from the prior will not look like data: raise β, or declare the precision that the loss implies.",
        )


def _encoder(evidence: Evidence) -> Iterator[Finding]:
    gap = evidence.gap
    if gap is None or (evidence.noise is not None and evidence.noise.declared_beta != 1):
        return
    lost, error = gap.mean("amortisation")
    kl = float(np.sum(evidence.regime.kl))
    if lost > AMORTISATION and lost > 3 * error and lost > AMORTISATION_SHARE * kl:
        yield Finding(
            "amortisation",
            "warning",
            "The encoder is far from optimal for its decoder.",
            f"It loses {lost:.2f} ± {error:.2f} nats compared with the best posterior of its family; the family itself "
            f"loses {gap.mean('family')[0]:.2f}.",
            "Train the encoder alone with the decoder frozen, make it larger, or lower its learning rate.",
        )


def _reliability(evidence: Evidence) -> Iterator[Finding]:
    stability, gap = evidence.stability, evidence.gap
    if stability is not None and float(stability.score) < STABLE:
        yield Finding(
            "unstable",
            "warning",
            "Other seeds give other latents.",
            f"Mean correlation of matched latents between models {float(stability.score):.2f} (floor "
            f"{float(stability.floor):.2f}).",
            "Do not interpret single latents; rely on what all seeds have in common.",
        )
    if gap is not None and gap.pareto_k is not None and gap.pareto_k > UNRELIABLE:
        yield Finding(
            "unreliable-likelihood",
            "note",
            "The importance sampling estimate of log p(x) is unreliable.",
            f"Pareto k̂ {gap.pareto_k:.2f}, above {UNRELIABLE:g}.",
            "Treat the gap as a lower bound.",
        )


def _listed(latents: list[int]) -> str:
    return ", ".join(map(str, sorted(latents)[:8])) + (", …" if len(latents) > 8 else "")
