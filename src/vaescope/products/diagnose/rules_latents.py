"""Faults of latents: collapse, too many of them, rotated axes, codes that do not follow the prior."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from vaescope.products.diagnose.evidence import Evidence, layer_rows
from vaescope.products.diagnose.scales import Noise
from vaescope.report.findings import Finding
from vaescope.report.wording import listed

ROTATED = 0.15  # nats of contrast that a rotation must save
ROTATED_SHARE = 0.6  # share of the contrast that it must save
NARROW = 0.5  # posterior over prior variance of latents that carry enough to have an axis; two are needed
STABLE = 0.8  # mean correlation of matched latents between seeds
SAME_SUBSPACE = 0.8  # mean squared canonical correlation
WIDE = 0.2  # share of posteriors wider than their prior
LITTLE = 0.5  # nats of all latents together with which a model has nearly collapsed
LITTLE_EXPLAINED = 0.1  # share of the variance of x that it then explains, at most
SCALED = 2.0  # factor from 1 that the standard deviation of scaled codes may have
DIFFUSERS_SCALING = 0.18215  # what diffusers declares if nobody has set it
APART = 0.88  # AUC of telling codes from prior samples from which on that is noted
ENTIRELY_APART = 0.95  # the same from which on it is a warning; codes with the best ELBO have up to 0.92
NEARLY_APART = 0.85  # the same of codes whose mean and covariance are off too, or that had a weak KL
APART_GAIN = 0.6  # nats that a normal distribution fitted to such codes saves
WEAK_KL = 0.25  # β below which a model was not trained to have aligned axes, or codes that follow the prior


def collapse(evidence: Evidence) -> Iterator[Finding]:
    regime, total = evidence.regime, float(np.sum(evidence.regime.kl))
    if regime.collapse.kind in ("full", "repeats prior") or _nearly_collapsed(evidence):
        nearly = regime.collapse.kind not in ("full", "repeats prior")
        what = regime.collapse.description
        if nearly:
            what = "All latents together carry almost no information."
        elif regime.collapse.kind == "full":
            what = "No posterior differs from its prior, so the decoder gets no information about x."
        yield Finding(
            "repeats-prior" if regime.collapse.kind == "repeats prior" else "collapsed",
            "error",
            "The posterior has nearly collapsed."
            if nearly
            else "The posterior has collapsed: codes carry no information about x.",
            f"{what} Mean KL {total:.3g} nats.",
            "If the loss averages over pixels, sum over them: a mean over n pixels is a β of n. Otherwise lower β, or "
            "raise the precision of a Gaussian decoder; vs.preflight(x) says from which values on latents are used. "
            "Warm-up and a weaker decoder help only there.",
            "loss = (reconstruction.flatten(1).sum(1) + beta * kl.sum(1)).mean()  # sums over pixels and latents",
        )


def _nearly_collapsed(evidence: Evidence) -> bool:
    found = evidence.reconstruction
    little = float(np.sum(evidence.regime.kl)) < LITTLE
    return little and found is not None and found.given.explained < LITTLE_EXPLAINED


def width(evidence: Evidence) -> Iterator[Finding]:
    regime = evidence.regime
    passive, d = regime.passive, regime.latent_dim
    if evidence.latent_image is not None or evidence.groups:  # latents are positions or parts of a layer
        return
    if len(passive) >= max(2, math.ceil(d / 2)):
        yield Finding(
            "over-wide",
            "warning",
            f"{d - len(passive)} of {d} latents are enough.",
            f"{len(passive)} latents stay at their prior; the decoder gets no information from them.",
            f"Use latent_dim={d - len(passive)}, or drop them with vs.regime.prune. If reconstructions are poor, the "
            "model is over-regularised instead: check β and the precision.",
            f"latent_dim = {d - len(passive)}",
        )
    elif passive:
        yield Finding(
            "dead-latent",
            "note",
            f"{len(passive)} of {d} latents {'is' if len(passive) == 1 else 'are'} not in use.",
            f"Latent{'s' * (len(passive) > 1)} {listed(passive)}: posterior at the prior for nearly every sample.",
            "Exclude them from downstream analyses of the codes; small variations of their means are misleading.",
        )


def scaling_factor(evidence: Evidence) -> Iterator[Finding]:
    """Codes that a diffusion model is trained on should have a standard deviation of about one."""
    found = evidence.latent_image
    if found is None or found.scaling is None:
        return
    scaled = found.scaling * found.total_std
    if 1 / SCALED <= scaled <= SCALED:
        return
    yield Finding(
        "scaling-factor",
        "note" if found.scaling == DIFFUSERS_SCALING else "warning",
        "The scaling factor does not fit these codes.",
        f"Codes times scaling_factor = {found.scaling:g} have a standard deviation of {scaled:.2g}; a diffusion model "
        "expects about 1.",
        "Set it to 1 / standard deviation of the codes before you train a model of the codes.",
        f"vae.register_to_config(scaling_factor={1 / found.total_std:.4g})",
    )


def unused_layers(evidence: Evidence) -> Iterator[Finding]:
    """Layers of a hierarchical VAE without a latent in use."""
    rows = layer_rows(evidence.regime, evidence.groups) if evidence.groups else []
    unused = [str(row["layer"]) for row in rows if not row["in use"]]
    if unused and len(unused) < len(rows):
        yield Finding(
            "unused-layer",
            "warning",
            f"{len(unused)} of {len(rows)} layers of latents carry no information.",
            f"Layers {', '.join(unused[:8])}: every posterior is at its prior.",
            "Use free bits or a warm-up of the KL for these layers, or remove them.",
            "kl = kl.mean(0).clamp(min=free_bits).sum()  # per layer, averaged over the batch",
        )


def wide_posteriors(evidence: Evidence) -> Iterator[Finding]:
    regime = evidence.regime
    wide = [k for k in range(regime.latent_dim) if regime.wide_fraction[k] > WIDE]
    if wide:
        yield Finding(
            "wide-posteriors",
            "note",
            "Some posteriors are wider than their prior.",
            f"Latents {listed(wide)}, for more than {WIDE:.0%} of samples.",
            "Train the encoder longer: no optimal posterior is wider than its prior.",
        )


def axes(evidence: Evidence) -> Iterator[Finding]:
    if evidence.geometry is None or len(evidence.regime.used) < 2 or not evidence.rotatable:
        return
    rotation = evidence.geometry.rotation
    narrow = sum(float(evidence.regime.variance_ratio[k]) < NARROW for k in evidence.regime.used)
    if rotation is None or narrow < 2:
        return
    if rotation.gain >= ROTATED and rotation.gain >= ROTATED_SHARE * rotation.before:
        weak = evidence.noise is not None and evidence.noise.declared_beta < WEAK_KL
        known = evidence.likelihood is not None and evidence.elbo_trained and not weak
        yield Finding(
            "rotated",
            "warning" if known else "note",
            "The latent axes are not those that the decoder favours.",
            (
                ""
                if evidence.likelihood
                else "The likelihood is unknown, so all outputs are assumed to be equally noisy. "
            )
            + f"Rotating the latents in use (by up to {rotation.largest_angle:.0f}°) would lower the mean contrast "
            f"c_IMA from {rotation.before:.2f} to {rotation.after:.2f} nats at the same likelihood.",
            "Do not interpret single latents. Train longer with diagonal posteriors, or rotate codes with the matrix "
            "in geometry.axes of the JSON file, whose columns are the better axes.",
        )


def aggregate(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.aggregate
    if evidence.latent_image is not None:  # their prior is a model that is trained on the codes
        return
    if found is None:
        return
    off = _is_stated_too_precise(evidence.noise) or found.gain > APART_GAIN
    limit = NEARLY_APART if off else APART
    if found.auc < limit or found.auc - 2 * found.stderr < limit - 0.06:
        return
    yield Finding(
        "aggregate",
        "warning" if evidence.generative and (off or found.auc > ENTIRELY_APART) else "note",
        "Samples from the prior will not look like data.",
        f"Codes of data are easily distinguished from draws from the prior: AUC {found.auc:.2f}, 0.5 if alike "
        f"(a normal distribution fitted to the codes would save {found.gain:.1f} nats).",
        "To generate, sample from a density fitted to the codes, or train with a larger β (or a learned prior). For "
        "reconstructions and codes it does not matter.",
        "z = GaussianMixture(10).fit(codes).sample(100)[0]  # sklearn.mixture, instead of torch.randn",
    )


def _is_stated_too_precise(noise: Noise | None) -> bool:
    """Whether the stated γ²/β is far above the measured γ², so that the KL had little weight.

    A precision of 100 with β = 1 and one of 1 with β = 0.01 are the same model.
    """
    if noise is None or noise.declared is None:
        return False
    if noise.likelihood == "bernoulli":
        return noise.declared_beta < WEAK_KL
    return noise.declared / noise.declared_beta > noise.precision / WEAK_KL


def stability(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.stability
    if found is None or found.score >= STABLE:
        return
    same = found.subspace >= SAME_SUBSPACE
    yield Finding(
        "unstable",
        "warning",
        "Other seeds give the same information on other axes." if same else "Other seeds give other latents.",
        f"Mean correlation of matched latents in use between models {found.score:.2f} (floor "
        f"{float(found.axes.floor):.2f}); of the subspaces that they span {found.subspace:.2f}.",
        "Do not interpret single latents; "
        + ("use methods that do not depend on axes." if same else "rely on what all seeds have in common."),
    )
