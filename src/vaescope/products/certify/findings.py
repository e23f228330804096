"""Findings of a certificate: what is the encoder's error, what is the limit of its family, and what transfers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vaescope.products.certify.measure import THRESHOLDS, Cause, Optimality, Transfer
from vaescope.products.certify.simulate import Calibration, GapBounds, JointRanks, Widths
from vaescope.report.findings import Finding
from vaescope.report.wording import listed, span, times


@dataclass(frozen=True, eq=False)
class Evidence:
    """What was measured."""

    calibration: Calibration
    optimality: Optimality | None
    cause: Cause | None
    bounds: GapBounds | None
    transfer: Transfer | None
    beta: float = 1.0
    binary: bool = False
    """Simulated x are binary and real x are not."""
    joint: tuple[JointRanks, ...] = ()
    """Quantities that depend on all latents at once."""
    at_real: Optimality | None = None
    """The encoder at real x, where these do not look like simulated ones."""

    @property
    def where(self) -> str:
        """The x at which the encoder is compared with the best posteriors."""
        return f"{len(self.calibration.ranks)} simulated x" if self.at_real is None else "your x"


def judge(evidence: Evidence) -> list[Finding]:
    """All findings; a named cause replaces those that it explains, and needs something to explain.

    Negative variances need nothing else to explain. If they are log-variances, as was assumed, they explain no other
    finding.
    """
    found, cause = [*_posteriors(evidence)], evidence.cause
    if cause is not None and (cause.negative or any(finding.severity != "note" for finding in found)):
        found = [_named(cause), *(found if cause.gain == 0 else [])]
    return [*found, *_joint(evidence), *_bounds(evidence), *_transfer(evidence)]


def _joint(evidence: Evidence) -> Iterator[Finding]:
    wrong = [one for one in evidence.joint if one.p_value * len(evidence.joint) < THRESHOLDS.joint]
    if wrong:
        named = "; ".join(f"{one.name} (mean rank {one.ranks.mean():.2f}, p = {one.p_value:.1g})" for one in wrong)
        yield Finding(
            "wrong-jointly",
            "note",
            "Posteriors are not right for all latents together.",
            f"Ranks of the true z among draws from q(z|x) are not uniform by {named}.",
            "Where no single latent is wrong, latents are correlated given x: do not use draws of several latents as "
            "posterior samples, or use a full covariance (posterior='full').",
        )


def _named(cause: Cause) -> Finding:
    evidence = (
        "Some of these numbers are negative. They were taken for log-variances in everything else."
        if cause.negative
        else f"With this undone, the true z of simulated x are more probable by {cause.gain:.2g} nats per latent."
    )
    return Finding(cause.code, "error", cause.title, evidence, cause.advice)


def _posteriors(evidence: Evidence) -> Iterator[Finding]:
    encoder, calibration = evidence.at_real or evidence.optimality, evidence.calibration
    yield from _widths(evidence, encoder or calibration, known=encoder is not None)
    yield from _means(evidence, encoder or calibration)
    if encoder is not None:
        if evidence.at_real is None:
            yield from _family(calibration, encoder)
        yield from _scatter(evidence, encoder)
    yield from _shape(calibration)


def _wrong(ratio: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Latents whose width is wrong by more than the tolerance, and surely so."""
    distance = np.abs(np.log(ratio))
    return np.flatnonzero((distance > THRESHOLDS.width) & (distance > THRESHOLDS.standard_errors * error))


def _widths(evidence: Evidence, measured: Widths, *, known: bool) -> Iterator[Finding]:
    ratio = measured.width_ratio
    wrong = _wrong(ratio, measured.width_error)
    for code, word, latents in (
        ("too-narrow", "narrow", wrong[ratio[wrong] < 1]),
        ("too-wide", "wide", wrong[ratio[wrong] > 1]),
    ):
        if len(latents):
            factor = float(np.exp(np.abs(np.log(ratio[latents])).mean()))
            whose = "those of the best posterior of its family" if known else "calibrated ones"
            covered = (100 * evidence.calibration.coverage(0.9)[latents]).round().astype(int)
            low, high = covered.min(), covered.max()
            share = f"{low} %" if low == high else f"{low} to {high} %"
            yield Finding(
                code,
                "error" if factor > THRESHOLDS.severe else "warning",
                f"Posteriors of {_named_latents(latents)} are {times(factor)} too {word}.",
                f"Ratio of standard deviations {_span(ratio[latents])} to {whose}, over {evidence.where}"
                + (f"; 90 % intervals contain {share} of the true values." if evidence.at_real is None else "."),
                _width_advice(evidence.beta),
            )


def _width_advice(beta: float) -> str:
    if beta != 1:
        return (
            f"The model was trained with β = {beta:g}: its posteriors belong to the likelihood to the power 1/β. For a "
            "Gaussian likelihood, divide the declared precision by β."
        )
    return "Train the encoder longer with the decoder fixed, or check the declared precision of the decoder."


def _means(evidence: Evidence, measured: Widths) -> Iterator[Finding]:
    bias, error = measured.bias, measured.bias_error
    latents = np.flatnonzero((np.abs(bias) > THRESHOLDS.bias) & (np.abs(bias) > THRESHOLDS.standard_errors * error))
    if len(latents):
        yield Finding(
            "biased",
            "warning",
            f"Posterior means of {_named_latents(latents)} are off in one direction.",
            f"By {_span(np.abs(bias[latents]))} standard deviations of the posterior, on average over "
            f"{evidence.where}.",
            "Train the encoder longer with the decoder fixed; check that x is scaled in the same way everywhere.",
        )


def _family(calibration: Calibration, encoder: Optimality) -> Iterator[Finding]:
    """Marginal widths that are wrong although the encoder's are the best of its family."""
    off = set(_wrong(calibration.width_ratio, calibration.width_error).tolist())
    own = set(_wrong(encoder.width_ratio, encoder.width_error).tolist())
    latents = sorted(k for k in off - own if calibration.width_ratio[k] < 1 and encoder.scatter[k] < THRESHOLDS.scatter)
    if latents:
        yield Finding(
            "family-limit",
            "note",
            f"True posteriors of {_named_latents(latents)} are wider than a diagonal Gaussian can be at its best.",
            f"Standard deviations are {_span(calibration.width_ratio[latents])} of the marginal ones, and "
            f"{_span(encoder.width_ratio[latents])} of the best of the family: latents are correlated given x, or the "
            "posterior is not Gaussian.",
            "Do not use these variances as marginal uncertainties; a full covariance (posterior='full') represents "
            "correlated latents.",
        )


def _scatter(evidence: Evidence, encoder: Optimality) -> Iterator[Finding]:
    latents = np.flatnonzero(encoder.scatter > THRESHOLDS.scatter)
    if len(latents):
        yield Finding(
            "scattered-means",
            "warning",
            f"Posterior means of {_named_latents(latents)} scatter around the best ones.",
            f"Root mean square distance {_span(encoder.scatter[latents])} standard deviations, over {evidence.where}. "
            f"It costs {_span(0.5 * encoder.scatter[latents] ** 2)} nats per latent.",
            "Use a larger encoder or train it longer with the decoder fixed; or refine posteriors per sample.",
        )


def _shape(calibration: Calibration) -> Iterator[Finding]:
    (low, high), counts = calibration.band, calibration.counts
    latents = np.flatnonzero(((counts < low) | (counts > high)).any(1))
    if len(latents):
        yield Finding(
            "ranks",
            "note",
            f"Ranks of the true values of {_named_latents(latents)} are not uniform.",
            "Their histograms leave the band in which those of exact posteriors are with probability 99 %.",
            "See the rank histograms: U-shaped is too narrow, a dome too wide, a slope biased.",
        )


def _bounds(evidence: Evidence) -> Iterator[Finding]:
    if evidence.bounds is None:
        return
    sandwich = evidence.bounds.sandwich
    if sandwich.contradictory:
        yield Finding(
            "contradictory-bounds",
            "warning",
            "The bounds on log p(x) contradict each other and are unreliable.",
            f"The lower one is above the upper one for {int(sandwich.crossed.sum())} of {len(sandwich.crossed)} "
            f"simulated x; mean estimates cross by {sandwich.crossing:.1f} standard errors.",
            "Check that sample_observations draws from log_likelihood; else pass a larger budget=.",
        )
    elif sandwich.width > THRESHOLDS.bounds:
        yield Finding(
            "wide-bounds",
            "note",
            f"The bounds on log p(x) are {sandwich.width:.2g} nats apart.",
            f"After annealing with {sandwich.temperatures} temperatures.",
            "Pass a larger budget=; posteriors with several modes need long annealing.",
        )


def _transfer(evidence: Evidence) -> Iterator[Finding]:
    transfer = evidence.transfer
    if transfer is None or transfer.transfers is True:
        return
    if transfer.transfers is None:
        worst = max(transfer.tests, key=lambda test: test.auc)
        yield Finding(
            "transfer-unknown",
            "note",
            "There are too few real x to say whether they look like simulated ones.",
            f"AUC {worst.auc:.2f} ± {2 * worst.stderr:.2f} by {worst.features}.",
            "Pass more samples x.",
        )
        return
    different = transfer.different
    yield Finding(
        "does-not-transfer",
        "warning",
        "Real x do not look like simulated ones: what holds for simulated x may not hold for yours.",
        "A classifier tells them apart by "
        + ", ".join(f"{t.features} (AUC {t.auc:.2f})" for t in different)
        + "."
        + (" So the encoder is judged at your x." if evidence.at_real is not None else ""),
        _transfer_advice([t.features for t in different], evidence.binary),
    )


def _transfer_advice(features: list[str], binary: bool) -> str:
    if binary:
        return "Simulated x are binary and yours are not: use a Gaussian likelihood, or binarise x."
    if "codes" in features and features[0] != "reconstruction error":
        return "Codes of real x do not follow the prior: use a more flexible prior, or fit a density to the codes."
    if "reconstruction error" in features:
        return "The declared noise is not that of the data: learn the precision, or set it to 1 / residual variance."
    return "The decoder's distribution differs from the data: a larger decoder, or another likelihood."


def _named_latents(latents: np.ndarray | list[int]) -> str:
    """`latent 3`, or `latents 1, 3`."""
    return f"latent{'s' * (len(latents) > 1)} {listed([int(k) for k in latents])}"


def _span(values: np.ndarray) -> str:
    return span(float(np.min(values)), float(np.max(values)))
