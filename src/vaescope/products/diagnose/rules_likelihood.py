"""Faults of the likelihood and of the fit: decoder variance, β, the encoder, overfitting."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from vaescope.products.diagnose.evidence import Evidence
from vaescope.products.diagnose.scales import Noise
from vaescope.report.findings import Finding
from vaescope.report.wording import amount, times

VARIANCE_WRONG = 10.0  # factor between declared and measured decoder variance
BETA_WRONG = 3.0  # factor between declared and effective β
BEYOND_SCATTER = 1.5  # times the mean |log| distance of variances from Eq. 12, which the log of that factor exceeds
CERTAIN_FACTOR = 10.0  # such a factor that is reported whatever the scatter
SHIFTED = 0.25  # squared distance of means from those that a high β makes optimal, in posterior deviations
SLIGHTLY_SHIFTED = 0.07  # such a distance below which means are right, whatever the decoder was trained with
MISCALIBRATED = 0.05, 4.0  # least distance of the slope of x on reconstructions from 1, absolute and in standard errors
LAGS = 0.18  # of `_lag`, up to which posteriors are wide because of β; trained with β = 6 it is at most 0.1
AMORTISATION = 0.5  # nats that an encoder must lose
AMORTISATION_SHARE = 0.3  # share of the KL that it must lose
AMORTISATION_SPREAD = 0.5  # of the variation of the best ELBO between samples that it must lose
AMORTISATION_WARNS = 1.0, 0.15  # shares of the KL and of that variation from which on it is a warning
POOR_MEANS = 1.75  # excess error from which on a smaller loss is a warning; healthy models have up to 1.5
AMORTISATION_POOR = 0.5  # share of the KL that is then enough
OVERFIT = 1.5  # factor between held-out and training errors
OVERFIT_WARNS = 1.75  # such a factor from which on that is a warning; healthy models have up to 1.65
OVERFIT_ERRORS = 4.0  # standard errors of their difference
UNRELIABLE = 0.7  # Pareto k̂ above which importance sampling is unreliable


def overfits(evidence: Evidence, factor: float = OVERFIT_WARNS) -> bool:
    """Whether errors of held-out samples are clearly larger than those of training samples, by this factor."""
    found = evidence.generalisation
    if found is None or found.lost < 0:
        return False
    return found.error_ratio >= factor and found.error_score >= OVERFIT_ERRORS


def overfit(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.generalisation
    if found is None or not overfits(evidence, OVERFIT):
        return
    yield Finding(
        "overfit",
        "warning" if found.error_ratio >= OVERFIT_WARNS else "note",
        "The model overfits its training samples.",
        f"Held-out samples have {found.lost:.3g} ± {2 * found.stderr:.2g} nats less than training samples, and squared "
        f"errors {times(found.error_ratio)} as large.",
        "Train on more data, stop earlier, or use weight decay, dropout in the encoder or smaller networks; a larger "
        "encoder makes it worse.",
    )


def decoder_variance(evidence: Evidence) -> Iterator[Finding]:
    """A precision γ² with β is a precision γ²/β with β = 1: a variance is wrong only if it is in both readings."""
    noise = evidence.noise
    if noise is None or noise.declared is None or noise.likelihood != "gaussian":
        return
    at_best = 0.0 if evidence.gap is None else evidence.gap.precision or 0.0
    measured = max(noise.precision, at_best)  # errors of the encoder are not noise
    wrong = sorted((noise.declared / measured, noise.declared / noise.declared_beta / measured))
    factor = wrong[0] if wrong[0] > VARIANCE_WRONG else wrong[1] if wrong[1] < 1 / VARIANCE_WRONG else None
    if factor is None:
        return
    yield Finding(
        "decoder-variance",
        "warning",
        f"The decoder's variance is {times(max(factor, 1 / factor))} too {'small' if factor > 1 else 'large'}.",
        f"It is declared as {amount(noise.declared_beta / noise.declared)}"
        + (f" (β / precision, β = {noise.declared_beta:g})" if noise.declared_beta != 1 else "")
        + f", but reconstruction errors imply {amount(1 / measured)}.",
        "Train with its maximum-likelihood value (precision='optimal' in vs.fit), or divide the summed squared error "
        "by twice that variance.",
        f"loss = ((x - x_hat) ** 2).flatten(1).sum(1) / (2 * {amount(1 / measured)}) + kl",
    )


def beta(evidence: Evidence) -> Iterator[Finding]:
    """The weight of the KL, relative to the declared one."""
    noise, fit = evidence.noise, evidence.scale.found if evidence.scale is not None else None
    if noise is None or noise.beta is None or not evidence.elbo_trained:
        return
    factor, declared = noise.beta / noise.declared_beta, noise.declared_beta
    if fit is not None and abs(math.log(factor)) < min(BEYOND_SCATTER * fit.scatter, math.log(CERTAIN_FACTOR)):
        return
    if _encoder_lags(evidence, noise, high=factor > 1):
        return
    reference = "of the likelihood" if declared == 1 else f"of β = {declared:g}"
    assert noise.implied is not None
    assert noise.declared is not None
    implied, stated = amount(noise.implied), amount(noise.declared)
    compared = f"as those of a decoder with precision {implied} (Eq. 12), but the decoder's is {stated}."
    if factor > BETA_WRONG:
        yield Finding(
            "beta-high",
            "warning",
            f"The effective weight of the KL is {times(factor)} that {reference}.",
            f"Posteriors are as wide {compared}",
            "If β should not be that high: sum the loss over pixels and latents instead of averaging over pixels.",
            f"loss = {_reconstruction_loss(noise)} + {declared:g} * kl.sum(1)  # sums, not means",
        )
    elif factor < 1 / BETA_WRONG:
        yield Finding(
            "beta-low",
            "warning",
            f"The effective weight of the KL is {times(factor)} that {reference}.",
            f"Posteriors are as narrow {compared}",
            "Samples from the prior will not look like data: raise β, or declare the precision that the loss implies.",
            f"loss = {_reconstruction_loss(noise)} + {declared:g} * kl.sum(1)  # KL summed over latents, not averaged",
        )


def _encoder_lags(evidence: Evidence, noise: Noise, *, high: bool) -> bool:
    """Whether widths of posteriors are off because the encoder is poor, and not because of a high or low β.

    A high β makes posteriors wide around the right means, and the decoder is trained with these; with a low one,
    posteriors lose fewer nats than the KL. The gap is that of β = 1, so with another stated β only a large shift of the
    means counts. Dropout, too, makes a decoder return other than E[x|z], but does not shift means.
    """
    gap, shift = evidence.gap, noise.shift
    if noise.declared_beta != 1 or gap is None:
        return high and shift is not None and shift > SHIFTED
    lost = float(gap.amortisation.median()) / float(np.sum(evidence.regime.kl))
    if not high:
        return lost > AMORTISATION_WARNS[0]
    if shift is None or gap.excess_error is None:
        return shift is not None and shift > SHIFTED
    miscalibrated = noise.slope is not None and noise.slope.off(*MISCALIBRATED)
    if miscalibrated and shift > SLIGHTLY_SHIFTED and lost > AMORTISATION_WARNS[0]:
        return True
    return shift > SHIFTED and _lag(shift, gap.excess_error, lost) > LAGS


def _lags_behind_beta(evidence: Evidence) -> bool:
    """Whether posteriors are as wide as those of a high β, but because the encoder is poor."""
    noise = evidence.noise
    if noise is None or noise.beta is None or noise.beta < BETA_WRONG * noise.declared_beta:
        return False
    return _encoder_lags(evidence, noise, high=True)


def _lag(shift: float, excess_error: float, lost: float) -> float:
    """How far means are from the best ones, times what that costs in squared errors, times the share of the KL lost.

    Of models with the same widths, each is larger for the poor encoder; the product separates them best.
    """
    return shift * max(0.0, excess_error - 1) * max(0.0, lost)


def _reconstruction_loss(noise: Noise) -> str:
    """The reconstruction term of the declared likelihood, as code."""
    if noise.likelihood == "bernoulli":
        return 'F.binary_cross_entropy(p, x, reduction="none").flatten(1).sum(1)'
    half = 0.5 * (noise.declared or 1.0)
    return f"{amount(half)} * ((x - x_hat) ** 2).flatten(1).sum(1)"


def amortisation(evidence: Evidence) -> Iterator[Finding]:
    """Only if training maximised the ELBO of the posterior that is given."""
    gap = evidence.gap
    stated_beta = evidence.noise is not None and evidence.noise.declared_beta != 1
    if gap is None or not evidence.elbo_trained or stated_beta:
        return
    lost, error = gap.mean("amortisation")
    typical, low = (float(gap.amortisation.quantile(q)) for q in (0.5, 0.25))
    spread = float((gap.elbo + gap.amortisation).std()) if len(gap.elbo) > 1 else 0.0
    total = float(np.sum(evidence.regime.kl))
    poor_means = gap.excess_error is not None and gap.excess_error > POOR_MEANS
    warns = typical > max(AMORTISATION_WARNS[0] * total, AMORTISATION_WARNS[1] * spread)
    warns = warns or (poor_means and typical > AMORTISATION_POOR * total)
    warns = warns or (_lags_behind_beta(evidence) and typical > AMORTISATION_WARNS[0] * total)
    noted = typical > max(AMORTISATION_SHARE * total, AMORTISATION_SPREAD * spread)
    if low > AMORTISATION and (warns or noted):
        yield Finding(
            "amortisation",
            "warning" if warns else "note",
            "The encoder is far from optimal for its decoder.",
            f"It loses {amount(lost)} ± {amount(2 * error)} nats compared with the best posterior of its family, of a "
            f"KL of {amount(total)}; the family itself loses {round(gap.mean('family')[0], 2) + 0.0:.2f}."
            + (f" Reconstructions from its means have {times(gap.excess_error or 1)} the error." if poor_means else ""),
            "Check that encoder and decoder are of the same checkpoint; then train the encoder alone with the decoder "
            "frozen. If it loses much less on training samples (pass train=), "
            "it overfits: use more data instead.",
            "decoder.requires_grad_(False)",
        )


def reliability(evidence: Evidence) -> Iterator[Finding]:
    gap = evidence.gap
    if gap is not None and gap.pareto_k is not None and gap.pareto_k > UNRELIABLE and math.isfinite(gap.pareto_k):
        yield Finding(
            "unreliable-likelihood",
            "note",
            "The importance sampling estimate of log p(x) is unreliable.",
            f"Pareto k̂ {gap.pareto_k:.2f}, above {UNRELIABLE:g}.",
            "Treat the gap as a lower bound.",
        )
