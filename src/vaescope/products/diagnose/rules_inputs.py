"""Faults in what is given: samples, outputs of the encoder and decoder, weights."""

from __future__ import annotations

import math
from collections.abc import Iterator

from vaescope.products.diagnose.data import DISPERSED, FAR_CENTRE, OwnCodes, Reconstruction, Trial
from vaescope.products.diagnose.evidence import Evidence
from vaescope.products.diagnose.rules_latents import LITTLE, WEAK_KL
from vaescope.products.diagnose.rules_likelihood import BETA_WRONG, overfits
from vaescope.report.findings import Finding
from vaescope.report.wording import times

WORSE = -0.1  # share of variance explained below which reconstructions are worse than the mean
POOR = 0.05  # share below which another input may be the right one
HALVED = 0.5  # error of another input, relative to that of x, that makes it the right one
REDUCED = 0.67  # the same if the decoder's mean output is far from the mean of x
GENERATES = 0.3  # alignment of the decoder's output with x from which on the decoder knows the data
INFORMS = 0.1  # share of x that a linear map of the codes explains from which on the encoder knows the data
SURELY = 5.0  # standard errors by which own codes of a trained model decode better; untrained ones have up to 2.5
TINY = 1e-4  # variance ratio of a deterministic code
BETA_OFF = 4.0  # factor from Eq. 12 that a made-up variance has
LOST_BY_DRAWS = 0.5  # share of the variance of x that means of posteriors explain and draws from them do not
WIDE_CODES = 2.0  # such a distance that a KL with little weight does not explain
FAR_CODES = 0.5  # |log E[(μ² + σ²)/σ†²]| of codes that were not trained with a prior
CORRECTED = {
    "standard deviation": "standard deviations: return their squares",
    "precision": "precisions: return 1 / precision",
    "squared variance": "squared variances: return their square roots",
    "log standard deviation": "logarithms of standard deviations: return exp(2 * log_std)",
}


LINES = {
    "standard deviation": "return mean, std ** 2  # in encode",
    "precision": "return mean, 1 / precision  # in encode",
    "squared variance": "return mean, variance  # in encode, not variance ** 2",
    "log standard deviation": "return mean, (2 * log_std).exp()  # in encode",
}


def explained(trial: Trial) -> str:
    """How well something is reconstructed.

    >>> explained(Trial("", 0.784, 0.01, 0.0)), explained(Trial("", -40.0, 0.1, 0.0))
    ('78 % of the variance of x explained', 'a squared error 41 times the variance of x')
    """
    if trial.explained >= 0:
        return f"{100 * trial.explained:.0f} % of the variance of x explained"
    return f"a squared error {times(1 - trial.explained)} the variance of x"


def _call(change: str) -> str:
    """The call with another x; nothing if the change is described in words."""
    formula = change.partition(" (")[0].partition(",")[0]
    return "" if formula.startswith("x with") else f"vs.diagnose(model, {formula})"


def untrained(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.reconstruction
    if found is not None and (found.given.explained > POOR or _decodes(found, SURELY)):
        return  # a few weights may be in their initial interval by chance
    initial = evidence.initial_weights
    if not initial and (found is None or not _behaves_untrained(found)):
        return
    why = (
        "Weights or biases are still where PyTorch initialises them."
        if initial
        else "The decoder's output hardly depends on the codes and is not at the mean of x."
    )
    seen = "" if found is None else f" Reconstructions: {explained(found.given)}."
    yield Finding(
        "untrained",
        "error",
        "This model is not trained.",
        f"{why}{seen}",
        "Train it, or load its weights and check that all keys match.",
        "model.load_state_dict(torch.load(file, weights_only=True), strict=True)",
    )


def _behaves_untrained(found: Reconstruction) -> bool:
    """A decoder with a nearly constant output that is not the mean of x, the first thing that training finds."""
    return found.given.explained < WORSE and found.spread < 0.15 and found.centre > 0.1 and found.alignment < GENERATES


def data_range(evidence: Evidence) -> Iterator[Finding]:
    if evidence.data_range is None:
        return
    low, high = evidence.data_range
    better = None if evidence.reconstruction is None else evidence.reconstruction.best
    known = better is not None and better.change and better.explained > POOR
    what = f"Pass {better.change}" if known and better is not None else "Rescale x to [0, 1] as in training"
    yield Finding(
        "data-range",
        "error",
        "x is outside [0, 1], the range of a Bernoulli likelihood.",
        f"x is between {low:.3g} and {high:.3g}; cross-entropies and ELBOs of such values mean nothing."
        + (f" With {better.change}: {explained(better)}." if known and better is not None else ""),
        f"{what}, or leave out likelihood='bernoulli' if the loss was a squared error.",
        _call(better.change) if known and better is not None else "",
    )


def output_size(evidence: Evidence) -> Iterator[Finding]:
    if evidence.sizes is None:
        return
    decoded, observed = evidence.sizes
    doubled = decoded == 2 * observed
    yield Finding(
        "output-size",
        "error",
        "The decoder's output has another size than x.",
        f"The decoder returns {decoded} numbers per sample, x has {observed}.",
        "Return the mean alone from decode, not the mean and the variance."
        if doubled
        else "Pass x in the size and layout of training, or the decoder that belongs to this encoder. If the decoder "
        "returns something else than a mean of x, pass log_likelihood= to the adapter.",
    )


def reconstruction(evidence: Evidence) -> Iterator[Finding]:
    found = evidence.reconstruction
    if found is None:
        return
    own_codes, decodes = found.own_codes, _decodes(found)  # instead of squared errors, which mean little for counts
    if wrong_input(found, weak_kl=_weak_kl(evidence)) and not (decodes and found.given.dispersion <= DISPERSED):
        yield Finding(
            "reconstruction",
            "error",
            "x is not preprocessed as in training.",
            f"As given: {explained(found.given)}. With {found.best.change}: {explained(found.best)}.",
            f"Pass {found.best.change} instead of x, or repeat the preprocessing of the training code.",
            _call(found.best.change),
        )
    elif own_codes is not None:
        if float(evidence.regime.kl.sum()) > LITTLE and not decodes:
            yield _no_better_than_others(own_codes)
    elif overfits(evidence) and evidence.generalisation is not None and evidence.generalisation.explained > POOR:
        return  # poor only on samples that it was not trained on
    elif found.given.explained < WORSE and found.given.explained < -3 * found.given.stderr:
        yield _worse_than_mean(found)


def _decodes(found: Reconstruction, errors: float = 2.0) -> bool:
    """Whether log p(x|z) is known to be higher at the code of x than at that of another sample, by standard errors."""
    return found.own_codes is not None and found.own_codes.gain > errors * found.own_codes.stderr


def _no_better_than_others(found: OwnCodes) -> Finding:
    return Finding(
        "reconstruction",
        "error",
        "Encoder and decoder do not belong together.",
        "log p(x|z) is no higher at the code of a sample than at that of another sample: the difference is "
        f"{found.gain:.3g} ± {2 * found.stderr:.2g} nats.",
        "Load both from the same checkpoint; check that x is preprocessed as in training.",
        "model.load_state_dict(checkpoint, strict=True)  # encoder and decoder together",
    )


def _weak_kl(evidence: Evidence) -> bool:
    """Whether the KL had little weight, as stated or by widths of posteriors: codes are then wider than the prior."""
    noise = evidence.noise
    if noise is None:
        return False
    return noise.declared_beta < WEAK_KL or (noise.beta is not None and noise.beta < noise.declared_beta / BETA_WRONG)


def wrong_input(found: Reconstruction, *, weak_kl: bool = False) -> bool:
    """Whether another input is clearly the one that the model was trained on.

    Args:
        found: reconstructions of x and of other inputs.
        weak_kl: whether codes may be far from the prior for another reason.
    """
    given, best = found.given, found.best
    if not best.change or best.explained < max(POOR, given.explained - POOR):
        return False
    expected = weak_kl and given.dispersion < WIDE_CODES
    poor = given.explained < POOR or (given.dispersion > DISPERSED and not expected)
    if poor and best.dispersion <= max(0.5 * given.dispersion, FAR_CODES):
        return best.explained > given.explained + 0.1 or given.dispersion > DISPERSED
    reduced = REDUCED if found.centre > FAR_CENTRE else HALVED
    return 1 - best.explained < reduced * (1 - given.explained) and best.dispersion < given.dispersion + 0.3


def _worse_than_mean(found: Reconstruction) -> Finding:
    evidence = f"{explained(found.given)}: worse than answering with the mean of x. No other scaling of x helps."
    if found.linear > INFORMS and found.alignment > GENERATES and found.centre < 1:
        return Finding(
            "reconstruction",
            "error",
            "Encoder and decoder do not belong together.",
            f"{evidence} The codes determine {found.linear:.0%} of x linearly, and the decoder generates outputs like "
            "x, but not from these codes.",
            "Load both from the same checkpoint; check the order of latents, and that codes are scaled and shifted as "
            "in training.",
            "model.load_state_dict(checkpoint, strict=True)  # encoder and decoder together",
        )
    return Finding(
        "reconstruction",
        "error",
        "Reconstructions are worse than the mean of x.",
        f"{evidence} {_weak_part(found)}",
        "Check that all weights were loaded (strict=True), that x is from the data of training, and train longer.",
    )


def _weak_part(found: Reconstruction) -> str:
    if found.alignment <= GENERATES or found.centre >= 1:
        return "The decoder does not generate anything like x: it was trained on other data, or hardly at all."
    return "The codes do not tell samples apart: the encoder was trained on other data, or hardly at all."


def not_a_vae(evidence: Evidence) -> Iterator[Finding]:
    scale, found = evidence.scale, evidence.reconstruction
    if scale is None or not scale.constant or (found is not None and found.given.explained < POOR):
        return
    ratio = float(evidence.regime.variance_ratio.max())
    effective = evidence.noise.beta if evidence.noise is not None else None
    declared = evidence.noise.declared_beta if evidence.noise is not None else 1.0
    off = effective is not None and abs(math.log(effective / declared)) > math.log(BETA_OFF)
    codes = found.given.dispersion if found is not None else 0.0
    drawn = evidence.noise.explained if evidence.noise is not None else 0.0
    lost = 0.0 if found is None else found.given.explained - drawn
    if evidence.zero_variance or ratio < TINY or off or codes > FAR_CODES or lost > LOST_BY_DRAWS:
        value = "zero" if evidence.zero_variance else f"{ratio:.2g} times that of the prior"
        yield Finding(
            "not-a-vae",
            "error",
            "This is not a variational autoencoder.",
            f"Every posterior has the same variance for all samples and latents, {value}, and codes were not trained "
            "with it: the code is deterministic.",
            "Return the variances that the encoder was trained with. An autoencoder without them has no posterior: "
            "fit a density to its codes to generate samples, and omit KL, ELBO and β.",
        )


def variances(evidence: Evidence) -> Iterator[Finding]:
    scale = evidence.scale
    if scale is not None and scale.name not in ("variance", "log-variance"):
        stated, found = scale.taken, scale.found
        numbers = otherwise = ""
        if stated is not None and found is not None and not math.isnan(found.factor):
            numbers = f" Read so, posteriors are {times(found.factor)} as precise as the stated likelihood implies; as "
            numbers += f"{scale.expected}s, {times(stated.factor)}."
            if scale.name == "squared variance" and stated.factor > 1:
                otherwise = (
                    f" If they are variances after all, β is {times(1 / stated.factor)} the stated one, as with a KL "
                    "that is averaged over latents: pass that as beta=."
                )
        yield Finding(
            "scale-of-variance",
            "error",
            "The encoder does not return variances.",
            f"The numbers agree with {scale.name}s, and are treated so here.{numbers}",
            f"These are {CORRECTED[scale.name]}, or pass scale= to vs.adapters.from_modules.{otherwise}",
            LINES[scale.name],
        )
    elif scale is not None and scale.name == "log-variance":
        yield Finding(
            "log-variance",
            "error",
            "The encoder does not return variances.",
            "Some of the returned variances are negative; they are treated as log-variances here.",
            "Return exp(log-variance) from encode, or pass scale='log_variance' to from_modules.",
            "return mean, log_variance.exp()  # in encode",
        )
    elif evidence.zero_variance:
        yield Finding(
            "zero-variance",
            "warning",
            "Some posterior variances are exactly zero.",
            "They are replaced by the smallest positive number; the KL and everything derived from it is unbounded.",
            "Compute log-variances, or clamp variances in the encoder; a deterministic autoencoder has no posterior.",
        )


def logits(evidence: Evidence) -> Iterator[Finding]:
    if evidence.logits:
        yield Finding(
            "logits",
            "error",
            "The decoder does not return probabilities.",
            "Some outputs of the Bernoulli decoder are below 0 or above 1; they are treated as logits here.",
            "Return sigmoid(logits) from decode.",
            "return torch.sigmoid(logits)  # in decode",
        )
