"""From measurements to findings: a function per kind of fault, and which fault is the cause of which."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vaescope.analysis.likelihood import CodeMoments
from vaescope.core.errors import Advice
from vaescope.products.diagnose.codes import layer_rows
from vaescope.products.diagnose.measurements import (
    Measurements,
    clamped_variance,
    duplicates,
    no_counts,
    sampling_noise,
    scaling_factor,
    sigmoid_twice,
)
from vaescope.products.diagnose.noise import Slope
from vaescope.products.diagnose.reconstruction import Reconstruction, Trial
from vaescope.products.diagnose.thresholds import LIMITS
from vaescope.report.findings import Finding
from vaescope.report.wording import amount, interval, listed, times

Rule = Callable[[Measurements], Finding | None]
LOAD_BOTH = "model.load_state_dict(checkpoint, strict=True)  # encoder and decoder together"


def judge(found: Measurements) -> list[Finding]:
    """All findings whose cause is not another finding."""
    findings: list[Finding] = []
    explained: set[str] = set()
    seen_in_outputs = {"negative-variance", "logits", "codebook-collapsed", "dead-codes"}  # whatever else is wrong
    for rule in RULES:
        finding = rule(found)
        if finding is None or finding.code in explained or ("*" in explained and finding.code not in seen_in_outputs):
            continue
        findings.append(finding)
        explained |= EXPLAINS.get(finding.code, frozenset())
    return findings


def invalidates_gap(found: Measurements) -> str | None:
    """The code of a finding with which the gap between ELBO and log p(x) means nothing; None if there is none."""
    findings = (rule(found) for rule in BROKEN)
    return next((f.code for f in findings if f is not None and f.code != "uninformative"), None)


# samples, weights, and what encoder and decoder return


def explained(trial: Trial) -> str:
    """How well something is reconstructed.

    >>> explained(Trial("", 0.784, 0.01, 0.0)), explained(Trial("", -40.0, 0.1, 0.0))
    ('78 % of the variance of x explained', 'a squared error 41 times the variance of x')
    """
    if math.isnan(trial.explained):
        return "unknown without a decoder"
    if trial.explained >= 0:
        return f"{100 * trial.explained:.0f} % of the variance of x explained"
    return f"a squared error {times(1 - trial.explained)} the variance of x"


def untrained(found: Measurements) -> Finding | None:
    own = found.reconstruction
    works = own is not None and (own.given.explained > LIMITS.poor or _decodes(own, LIMITS.own_codes))
    if works and not found.certainly_initial:  # a few weights may be in their initial interval by chance
        return None
    behaves_untrained = (
        own is not None  # a nearly constant output that is not the mean of x, the first thing that training finds
        and own.given.explained < LIMITS.worse_than_mean
        and own.spread < LIMITS.nearly_constant
        and own.centre > LIMITS.off_centre
        and own.alignment < LIMITS.alignment
    )
    if not found.initial_weights and not behaves_untrained:
        return None
    why = (
        "Weights or biases are still where they were initialised."
        if found.initial_weights
        else "The decoder's output hardly depends on the codes and is not at the mean of x."
    )
    return Finding(
        "untrained",
        "error",
        "This model is not trained.",
        why + ("" if own is None else f" Reconstructions: {explained(own.given)}."),
        "Train it, or load its weights and check that all keys match.",
        "model.load_state_dict(torch.load(file, weights_only=True), strict=True)",
    )


def decoder_fails(found: Measurements) -> Finding | None:
    if found.decoder_fails is None:
        return None
    return Finding(
        "decoder-fails",
        "error",
        "The decoder fails at the codes of x.",
        f"With the posterior means of x, {found.decoder_fails}.",
        "Call decode with the means that encode returns, and check its arguments and weights: it must return a row of "
        "finite numbers per sample.",
    )


def output_size(found: Measurements) -> Finding | None:
    if found.sizes is None:
        return None
    decoded, observed = found.sizes
    return Finding(
        "output-size",
        "error",
        "The decoder's output has another size than x.",
        f"The decoder returns {decoded} numbers per sample, x has {observed}.",
        "Return the mean alone from decode, not the mean and the variance."
        if decoded == 2 * observed
        else "Pass x in the size and layout of training, or the decoder that belongs to this encoder. If the decoder "
        "returns something else than a mean of x, pass log_likelihood= to the adapter.",
    )


def data_range(found: Measurements) -> Finding | None:
    if found.data_range is None:
        return None
    low, high = found.data_range
    better = None if found.reconstruction is None else found.reconstruction.best
    if better is not None and not (better.change and better.explained > LIMITS.poor):
        better = None
    what = "Rescale x to [0, 1] as in training" if better is None else f"Pass {better.change}"
    return Finding(
        "data-range",
        "error",
        "x is outside [0, 1], the range of a Bernoulli likelihood.",
        f"x is between {low:.3g} and {high:.3g}; cross-entropies and ELBOs of such values mean nothing."
        + ("" if better is None else f" With {better.change}: {explained(better)}."),
        f"{what}, or leave out likelihood='bernoulli' if the loss was a squared error.",
        "" if better is None else _call(better),
    )


def not_a_vae(found: Measurements) -> Finding | None:
    scale, own, noise = found.scale, found.reconstruction, found.noise
    if (
        scale is None
        or not scale.constant
        or clamped_variance(found) is not None
        or (own is not None and own.given.explained < LIMITS.poor)
    ):
        return None
    ratio = float(found.regime.variance_ratio.max())
    effective, declared, drawn = (
        (None, 1.0, 0.0) if noise is None else (noise.beta, noise.declared_beta, noise.explained)
    )
    made_up = effective is not None and abs(math.log(effective / declared)) > math.log(LIMITS.made_up)
    dispersion, lost = (0.0, 0.0) if own is None else (own.given.dispersion, own.given.explained - drawn)
    far = dispersion > LIMITS.unregularised or lost > LIMITS.lost_by_draws
    if not (found.zero_variance or ratio < LIMITS.tiny_ratio or made_up or far):
        return None
    value = "zero" if found.zero_variance else f"{ratio:.2g} times that of the prior"
    return Finding(
        "not-a-vae",
        "error",
        "This is not a variational autoencoder.",
        f"Every posterior has the same variance for all samples and latents, {value}, and codes were not trained "
        "with it: the code is deterministic.",
        "Return the variances that the encoder was trained with. An autoencoder without them has no posterior: "
        "fit a density to its codes to generate samples, and omit KL, ELBO and β.",
    )


def reconstruction(found: Measurements) -> Finding | None:
    own = found.reconstruction
    if own is None:
        return None
    weight, decodes = _WeightOfKL.of(found), _decodes(own)  # instead of squared errors, which mean little for counts
    weak_kl = found.declared_beta < LIMITS.weak_kl or (weight is not None and weight.factor < 1 / LIMITS.beta_factor)
    unsettled = weight is not None and weight.factor > LIMITS.wide_posteriors
    if wrong_input(own, weak_kl=weak_kl, unsettled=unsettled) and not (
        decodes and own.given.dispersion <= LIMITS.dispersed
    ):
        return Finding(
            "reconstruction",
            "error",
            "x is not preprocessed as in training.",
            f"As given: {explained(own.given)}. With {own.best.change}: {explained(own.best)}.",
            f"Pass {own.best.change} instead of x, or repeat the preprocessing of the training code.",
            _call(own.best),
        )
    if own.own_codes is not None:
        if decodes or float(found.regime.kl.sum()) <= LIMITS.little_kl:
            return None
        return Finding(
            "reconstruction",
            "error",
            "Encoder and decoder do not belong together.",
            "log p(x|z) is no higher at the code of a sample than at that of another sample: the difference is "
            f"{own.own_codes.gain:.3g} ± {2 * own.own_codes.stderr:.2g} nats.",
            "Load both from the same checkpoint; check that x is preprocessed as in training.",
            LOAD_BOTH,
        )
    known = found.generalisation  # poor only on samples that it was not trained on?
    if _overfits(found, LIMITS.overfit_warning) and known is not None and known.explained > LIMITS.poor:
        return None
    if own.given.explained < LIMITS.worse_than_mean and own.given.explained < -3 * own.given.stderr:
        hardly_trained = own.given.explained > LIMITS.hardly_trained and _unsettled(found) is not None
        return None if hardly_trained else _worse_than_mean(own)
    return None


def _decodes(found: Reconstruction, errors: float = 2.0) -> bool:
    """Whether log p(x|z) is known to be higher at the code of x than at that of another sample, by standard errors."""
    return found.own_codes is not None and found.own_codes.gain > errors * found.own_codes.stderr


def _call(trial: Trial) -> str:
    """The call with another x; nothing if the change is described in words."""
    return f"vs.diagnose(model, {trial.formula})" if trial.formula else ""


def wrong_input(found: Reconstruction, *, weak_kl: bool = False, unsettled: bool = False) -> bool:
    """Whether another input is clearly the one that the model was trained on.

    Args:
        found: reconstructions of x and of other inputs.
        weak_kl: whether codes may be far from the prior for another reason.
        unsettled: whether posteriors are wider than those of a trained model, whatever its input.
    """
    given, best = found.given, found.best
    if not best.change or best.explained < max(LIMITS.poor, given.explained - LIMITS.poor):
        return False
    expected = (weak_kl and given.dispersion < LIMITS.wide_codes) or unsettled
    poor = given.explained < LIMITS.poor or (given.dispersion > LIMITS.dispersed and not expected)
    if poor and best.dispersion <= max(0.5 * given.dispersion, LIMITS.unregularised):
        return best.explained > given.explained + 0.1 or given.dispersion > LIMITS.dispersed
    reduced = LIMITS.reduced_error if found.centre > LIMITS.far_centre else LIMITS.halved_error
    return 1 - best.explained < reduced * (1 - given.explained) and best.dispersion < given.dispersion + 0.3


def _worse_than_mean(found: Reconstruction) -> Finding:
    evidence = f"{explained(found.given)}: worse than answering with the mean of x. No other scaling of x helps."
    generates = found.alignment > LIMITS.alignment and found.centre < LIMITS.far_centre
    if generates and found.linear > LIMITS.linear_share:
        return Finding(
            "reconstruction",
            "error",
            "Encoder and decoder do not belong together.",
            f"{evidence} The codes determine {found.linear:.0%} of x linearly, and the decoder generates outputs like "
            "x, but not from these codes.",
            "Load both from the same checkpoint; check the order of latents, and that codes are scaled and shifted as "
            "in training.",
            LOAD_BOTH,
        )
    weak = (
        "The codes do not tell samples apart: the encoder was trained on other data, or hardly at all."
        if generates
        else "The decoder does not generate anything like x: it was trained on other data, or hardly at all."
    )
    return Finding(
        "reconstruction",
        "error",
        "Reconstructions are worse than the mean of x.",
        f"{evidence} {weak}",
        "Check that all weights were loaded (strict=True), that x is from the data of training, and train longer.",
    )


CORRECTIONS = {
    "standard deviation": ("standard deviations: return their squares", "std ** 2  # in encode"),
    "precision": ("precisions: return 1 / precision", "1 / precision  # in encode"),
    "squared variance": (
        "squared variances: return their square roots",
        "variance  # in encode, not variance ** 2",
    ),
    "log standard deviation": (
        "logarithms of standard deviations: return exp(2 * log_std)",
        "(2 * log_std).exp()  # in encode",
    ),
}
"""What an encoder returns in place of variances: what to do about it, and the corrected value."""


def variances(found: Measurements) -> Finding | None:
    scale = found.scale
    if scale is not None and scale.name in CORRECTIONS:
        stated, taken = scale.stated, scale.taken
        numbers = otherwise = ""
        if stated is not None and taken is not None and not math.isnan(taken.factor):
            numbers = f" Read so, posteriors are {times(taken.factor)} as precise as the stated likelihood implies; as "
            numbers += f"{scale.expected}s, {times(stated.factor)}."
            if scale.name == "squared variance" and stated.factor > 1:
                otherwise = (
                    f" If they are variances after all, β is {times(1 / stated.factor)} the stated one, as with a KL "
                    "that is averaged over latents: pass that as beta=."
                )
        correction, value = CORRECTIONS[scale.name]
        return Finding(
            "scale-of-variance",
            "error",
            "The encoder does not return variances.",
            f"The numbers agree with {scale.name}s, and are treated so here.{numbers}",
            f"These are {correction}, or pass scale= to vs.adapters.from_modules.{otherwise}",
            f"return mean, {value}",
        )
    if scale is not None and scale.name == "log-variance":
        return Finding(
            "negative-variance",
            "error",
            "The encoder does not return variances.",
            "Some of the returned variances are negative; they are treated as log-variances here.",
            "Return exp(log-variance) from encode, or pass scale='log_variance' to from_modules.",
            "return mean, log_variance.exp()  # in encode",
        )
    if found.zero_variance:
        return Finding(
            "zero-variance",
            "warning",
            "Some posterior variances are exactly zero.",
            "They are replaced by the smallest positive number; the KL and everything derived from it is unbounded.",
            "Compute log-variances, or clamp variances in the encoder; a deterministic autoencoder has no posterior.",
        )
    return None


def logits(found: Measurements) -> Finding | None:
    if not found.logits:
        return None
    return Finding(
        "logits",
        "error",
        "The decoder does not return probabilities.",
        "Some outputs of the Bernoulli decoder are below 0 or above 1; they are treated as logits here.",
        "Return sigmoid(logits) from decode.",
        "return torch.sigmoid(logits)  # in decode",
    )


# latents


def collapse(found: Measurements) -> Finding | None:
    regime, total = found.regime, float(np.sum(found.regime.kl))
    if _unsettled(found) is not None:  # latents may come into use yet
        return None
    kind, what = regime.collapse.kind, regime.collapse.description
    title = "The posterior has collapsed: codes carry no information about x."
    if kind not in ("full", "repeats prior"):
        own = found.reconstruction
        if total >= LIMITS.little_kl or own is None or own.given.explained >= LIMITS.little_explained:
            return None
        title, what = "The posterior has nearly collapsed.", "All latents together carry almost no information."
    elif kind == "full":
        what = "No posterior differs from its prior, so the decoder gets no information about x."
    return Finding(
        "uninformative" if kind == "repeats prior" else "collapsed",
        "error",
        title,
        f"{what} Mean KL {total:.3g} nats.{_known_without_codes(found)}",
        *_against_collapse(found),
    )


def _known_without_codes(found: Measurements) -> str:
    """What the decoder of a collapsed model knows of x all the same, as a sentence."""
    other, own = found.other_sources, found.reconstruction
    if other is None:
        return ""
    if other.links_columns:
        return (
            " The decoder does not need them: log p(x|z) depends on how columns of x go together, by "
            f"{interval(other.lost, other.stderr)} nats at the same z, as if it reads x itself."
        )
    if other.conditional and own is not None and own.given.explained > LIMITS.told_otherwise:
        return f" The auxiliary input alone determines {own.given.explained:.0%} of the variance of x."
    return ""


def _against_collapse(found: Measurements) -> tuple[str, str]:
    """What to do about collapsed posteriors, and the changed line, for the likelihood and decoder of this model."""
    other, own = found.other_sources, found.reconstruction
    columns = "columns" if other is None or other.columns == "counts" else other.columns
    total = f"loss = (reconstruction.flatten(1).sum(1) + beta * kl.sum(1)).mean()  # sums over {columns} and latents"
    if other is not None and other.links_columns:
        return (
            "Weaken the decoder until it needs the codes: in training, replace 30 to 60 % of what it reads of x by an "
            "unknown value (word dropout), or give it fewer units or a shorter context; and leave the first nats of "
            "the KL free of charge (free bits), or raise β slowly from 0.",
            "read = torch.where(torch.rand(x.shape) < 0.4, unknown, x)  # what the decoder reads, not its targets",
        )
    if other is not None and other.conditional and own is not None and own.given.explained > LIMITS.told_otherwise:
        return (
            "If the auxiliary input contains x or something computed from x, take that out of it. If it does not, "
            "little of x is left for latents: lower β, or raise the precision of a Gaussian decoder, to encode that.",
            total,
        )
    mean = f"If the loss averages over {columns}, sum over them: a mean over n {columns} is a β of n. "
    if found.likelihood == "gaussian":
        mean += "Otherwise lower β or raise the precision; vs.preflight(x) says from which values on latents are used."
    elif found.likelihood == "bernoulli":
        mean += "Otherwise lower β, or raise it slowly from 0; a Bernoulli likelihood has no precision to raise."
    elif other is not None and other.columns in ("counts", "tokens"):
        mean += "Otherwise lower β, or raise it slowly from 0 while the decoder is trained."
    else:
        mean += "Otherwise lower β, or reduce the scale of the noise, if log p(x|z) has one."
    if other is not None and other.conditional:
        mean += " Check that the auxiliary input does not contain x."
    return mean, total


def rotated(found: Measurements) -> Finding | None:
    rotation = None if found.geometry is None else found.geometry.rotation
    used = found.regime.used
    narrow = sum(float(found.regime.variance_ratio[k]) < LIMITS.narrow for k in used)
    if rotation is None or not found.rotatable or narrow < 2:
        return None
    if rotation.gain < LIMITS.rotation_gain or rotation.gain < LIMITS.rotation_share * rotation.before:
        return None
    weak = found.declared_beta < LIMITS.weak_kl
    known = found.likelihood is not None and found.elbo_trained and not weak
    unknown = "The likelihood is unknown, so all outputs are assumed to be equally noisy. "
    return Finding(
        "rotated",
        "warning" if known else "note",
        "The latent axes are not those that the decoder favours.",
        ("" if found.likelihood else unknown)
        + f"Rotating the latents in use (by up to {rotation.largest_angle:.0f}°) would lower the mean contrast "
        f"c_IMA from {rotation.before:.2f} to {rotation.after:.2f} nats at the same likelihood.",
        "Do not interpret single latents. Train longer with diagonal posteriors, or rotate codes with the matrix "
        "in geometry.axes of the JSON file, whose columns are the better axes.",
    )


def _weak_kl(found: Measurements) -> bool:
    """Whether the KL is stated to have hardly any weight, so that codes need not follow the prior."""
    noise = found.noise
    if noise is not None and noise.likelihood == "gaussian" and noise.declared is not None:
        # a precision of 100 with β = 1 and one of 1 with β = 0.01 are the same model
        return noise.declared / noise.declared_beta > noise.precision / LIMITS.weak_kl
    return found.declared_beta < LIMITS.weak_kl


def aggregate(found: Measurements) -> Finding | None:
    codes, weak = found.aggregate, _weak_kl(found)
    if codes is None or found.latent_image is not None:  # the prior of a latent image is trained on the codes
        return None
    off = weak or codes.gain > LIMITS.apart_gain
    limit = LIMITS.nearly_apart if off else LIMITS.apart
    if codes.auc < limit or codes.auc - 2 * codes.stderr < limit - 0.06:
        return None
    return Finding(
        "aggregate",
        "warning" if found.generative and (off or codes.auc > LIMITS.entirely_apart) else "note",
        "Samples from the prior will not look like data.",
        f"Codes of data are easily distinguished from draws from the prior: AUC {codes.auc:.2f}, 0.5 if alike "
        f"(a normal distribution fitted to the codes would save {codes.gain:.1f} nats).",
        "To generate, sample from a density fitted to the codes, or use a learned prior. If the ELBO of held-out "
        "samples was still rising, train longer first: a larger β helps converged models only. For reconstructions and "
        "codes it does not matter.",
        "z = GaussianMixture(10).fit(codes).sample(100)[0]  # sklearn.mixture, instead of torch.randn",
    )


def idle_latents(found: Measurements) -> Finding | None:
    passive, d = found.regime.passive, found.regime.latent_dim
    if not passive or found.latent_image is not None or found.groups:  # latents are positions or parts of a layer
        return None
    if len(passive) >= max(2, math.ceil(d / 2)):
        return Finding(
            "too-many-latents",
            "warning",
            f"{d - len(passive)} of {d} latents are enough.",
            f"{len(passive)} latents stay at their prior; the decoder gets no information from them.",
            f"Use latent_dim={d - len(passive)}, or drop them with vs.regime.prune. If reconstructions are poor, the "
            "model is over-regularised instead: check β and the precision.",
            f"latent_dim = {d - len(passive)}",
        )
    return Finding(
        "dead-latent",
        "note",
        f"{len(passive)} of {d} latents {'is' if len(passive) == 1 else 'are'} not in use.",
        f"Latent{'s' * (len(passive) > 1)} {listed(passive)}: posterior at the prior for nearly every sample.",
        "Exclude them from downstream analyses of the codes; small variations of their means are misleading.",
    )


def unused_layers(found: Measurements) -> Finding | None:
    """Layers of a hierarchical VAE without a latent in use."""
    rows = layer_rows(found.regime, found.groups) if found.groups else []
    unused = [str(row["layer"]) for row in rows if not row["in use"]]
    if not unused or len(unused) == len(rows):
        return None
    return Finding(
        "unused-layer",
        "warning",
        f"{len(unused)} of {len(rows)} layers of latents carry no information.",
        f"Layers {', '.join(unused[:8])}: every posterior is at its prior.",
        "Use free bits or a warm-up of the KL for these layers, or remove them.",
        "kl = kl.mean(0).clamp(min=free_bits).sum()  # per layer, averaged over the batch",
    )


def wide_posteriors(found: Measurements) -> Finding | None:
    wide = np.flatnonzero(found.regime.wide_fraction > LIMITS.wide_share).tolist()
    if not wide:
        return None
    return Finding(
        "wide-posteriors",
        "note",
        "Some posteriors are wider than their prior.",
        f"Latents {listed(wide)}, for more than {LIMITS.wide_share:.0%} of samples.",
        "Train the encoder longer: no optimal posterior is wider than its prior.",
    )


def stability(found: Measurements) -> Finding | None:
    seeds = found.stability
    if seeds is None or seeds.score >= LIMITS.same_axes:
        return None
    same = seeds.subspace >= LIMITS.same_subspace
    return Finding(
        "unstable",
        "warning",
        "Other seeds give the same information on other axes." if same else "Other seeds give other latents.",
        f"Mean correlation of matched latents in use between models {seeds.score:.2f} (floor "
        f"{float(seeds.axes.floor):.2f}); of the subspaces that they span {seeds.subspace:.2f}.",
        "Do not interpret single latents; "
        + ("use methods that do not depend on axes." if same else "rely on what all seeds have in common."),
    )


# the likelihood and the fit


def _overfits(found: Measurements, factor: float) -> bool:
    """Whether errors of held-out samples are clearly larger than those of training samples, by this factor."""
    known = found.generalisation
    if known is None or known.lost < 0:
        return False
    return known.error_ratio >= factor and known.error_score >= LIMITS.overfit_score


def overfit(found: Measurements) -> Finding | None:
    known = found.generalisation
    if known is None or not _overfits(found, LIMITS.overfit):
        return None
    return Finding(
        "overfit",
        "warning" if known.error_ratio >= LIMITS.overfit_warning else "note",
        "The model overfits its training samples.",
        f"Held-out samples have {known.lost:.3g} ± {2 * known.stderr:.2g} nats less than training samples, and squared "
        f"errors {times(known.error_ratio)} as large.",
        "Train on more data, stop earlier, or use weight decay, dropout in the encoder or smaller networks; a larger "
        "encoder makes it worse.",
    )


def _unsettled(found: Measurements, moments: CodeMoments | None = None) -> np.ndarray | None:
    """Latents whose codes are clearly not at the scale and mean of the prior, if that costs enough to be a finding.

    Args:
        found: what was measured.
        moments: of the codes along some axes; by default along the latents.

    >>> from vaescope.products.diagnose.codes import no_latents
    >>> error = np.full(2, 0.02)
    >>> def of(*square):
    ...     return Measurements(no_latents(), moments=CodeMoments([0, 1], np.zeros(2), error, np.array(square), error))
    >>> _unsettled(of(2.0, 1.01)).tolist(), _unsettled(of(1.1, 0.95))
    ([True, False], None)
    """
    moments, weight = moments or found.moments, _WeightOfKL.of(found)
    if moments is None or not found.elbo_trained:
        return None
    if found.declared_beta < LIMITS.weak_kl or (weight is not None and weight.factor < 1 / LIMITS.beta_factor):
        return None  # a KL with little weight takes very long to settle the scale of codes
    distance = np.abs(np.log(np.maximum(moments.square, 1e-300)))
    scale, mean = moments.scores
    off = (scale > LIMITS.unsettled_errors) & (distance > LIMITS.unsettled)
    off |= (mean > LIMITS.unsettled_errors) & (np.abs(moments.mean) > LIMITS.unsettled_mean)
    share = float(moments.saved.sum()) / max(float(np.sum(found.regime.kl)), 1e-300)
    costs = float(distance.mean()) > LIMITS.unsettled_on_average or share > LIMITS.unsettled_share
    codes = found.aggregate  # codes of a converged model may have clusters, but not another mean and covariance
    costs |= codes is not None and codes.auc > LIMITS.nearly_apart and codes.gain > LIMITS.apart_gain
    return off if off.any() and costs else None


def _stopped(found: Measurements) -> np.ndarray | None:
    """Latents whose scale or mean has not settled because training was stopped, and not for another reason.

    The decoder is at an optimum if its best posteriors are at the prior's scale: then the encoder is at fault. Rotated
    latents are not at that scale either if codes are correlated, but the axes that the decoder favours are.
    """
    off = _unsettled(found)
    if off is None or (found.favoured is not None and _unsettled(found, found.favoured) is None):
        return None
    best = None if found.gap is None else found.gap.codes
    if best is not None and found.moments is not None and best.distance < 0.25 * found.moments.distance:
        return None
    return off


def not_converged(found: Measurements) -> Finding | None:
    """Training was stopped before scale and mean of the codes had settled, which they do last."""
    off, moments = _stopped(found), found.moments
    if off is None or moments is None:
        return None
    worst = int(np.argmax(np.where(off, moments.saved, -1.0)))
    value, error = moments.square[worst], moments.square_error[worst]
    shift, shift_error = moments.mean[worst], moments.mean_error[worst]
    saved, total = amount(float(moments.saved.sum())), amount(float(np.sum(found.regime.kl)))
    return Finding(
        "not-converged",
        "warning",
        "Training was stopped too early.",
        "At every optimum, whatever β and the likelihood, codes have the mean and scale of the prior: E[μ] = 0 and "
        f"E[μ² + σ²] = 1 in its units. {int(off.sum())} of {len(off)} latents are clearly off; latent "
        f"{moments.latents[worst]} has {interval(shift, shift_error)} and {interval(value, error)}. Shifting and "
        f"rescaling codes alone would save {saved} of {total} nats of KL.",
        Advice.naming(
            "Train several times as long with the same loss, until the ELBO of held-out samples no longer rises, and "
            "diagnose again: what else looks wrong may vanish. A larger β would make it worse. If x are not like the "
            "training samples, pass those as {}.",
            "train",
        ),
    )


def decoder_variance(found: Measurements) -> Finding | None:
    """A precision γ² with β is a precision γ²/β with β = 1: a variance is wrong only if it is in both readings."""
    noise = found.noise
    if noise is None or noise.declared is None or noise.likelihood != "gaussian":
        return None
    at_best = 0.0 if found.gap is None else found.gap.precision or 0.0
    measured = max(noise.precision, at_best)  # errors of the encoder are not noise
    wrong = sorted((noise.declared / measured, noise.declared / noise.declared_beta / measured))
    limit = LIMITS.variance_factor
    factor = wrong[0] if wrong[0] > limit else wrong[1] if wrong[1] < 1 / limit else None
    if factor is None:
        return None
    stated = f" (β / precision, β = {noise.declared_beta:g})" if noise.declared_beta != 1 else ""
    return Finding(
        "decoder-variance",
        "warning",
        f"The decoder's variance is {times(max(factor, 1 / factor))} too {'small' if factor > 1 else 'large'}.",
        f"It is declared as {amount(noise.declared_beta / noise.declared)}{stated}, but reconstruction errors imply "
        f"{amount(1 / measured)}.",
        "Train with its maximum-likelihood value (precision='optimal' in vs.fit), or divide the summed squared error "
        "by twice that variance.",
        f"loss = ((x - x_hat) ** 2).flatten(1).sum(1) / (2 * {amount(1 / measured)}) + kl",
    )


@dataclass(frozen=True)
class _WeightOfKL:
    """The weight of the KL that posteriors imply, relative to the declared one."""

    factor: float
    scatter: float | None
    """Of the logarithm of the weight between latents and samples; None if unknown."""
    shift: float | None
    slope: Slope | None

    @classmethod
    def of(cls, found: Measurements) -> _WeightOfKL | None:
        """From Eq. 12 for Gaussian and Bernoulli decoders, otherwise from derivatives of log p(x|z)."""
        noise, weights = found.noise, found.weights
        if noise is not None and noise.beta is not None:
            fit = None if found.scale is None else found.scale.taken
            scatter = None if fit is None else fit.scatter
            return cls(noise.beta / noise.declared_beta, scatter, noise.shift, noise.slope)
        if weights is None:
            return None
        scatter = float(np.std(np.log(weights.beta))) if len(weights.beta) > 1 else None
        return cls(weights.typical / found.declared_beta, scatter, weights.shift, None)


def beta(found: Measurements) -> Finding | None:
    """The weight of the KL, relative to the declared one."""
    weight, declared = _WeightOfKL.of(found), found.declared_beta
    if weight is None or not found.elbo_trained:
        return None
    factor = _far_weight(found, weight) or _doubled_weight(found)
    if factor is None:
        return None
    high, noise = factor > 1, found.noise
    if noise is not None and noise.implied is not None and noise.declared is not None and factor == weight.factor:
        evidence = (
            f"Posteriors are as {'wide' if high else 'narrow'} as those of a decoder with precision "
            f"{amount(noise.implied)} (Eq. 12), but the decoder's is {amount(noise.declared)}."
        )
    else:
        evidence = (
            f"Posteriors are as {'wide' if high else 'narrow'} as training with a KL of weight "
            f"{amount(factor * declared)} makes them, by the derivatives of log p(x|z)."
        )
    return Finding(
        "beta-high" if high else "beta-low",
        "warning",
        f"The effective weight of the KL is {times(factor)} "
        f"that {'of the likelihood' if declared == 1 else f'of β = {declared:g}'}.",
        evidence + _usual_cause(found, factor),
        "If β should not be that high: sum the loss over all numbers of a sample, average over samples only, and keep "
        "the ½ of the KL. vs.audit of the loss names the term."
        if high
        else "Samples from the prior will not look like data: raise β, sum the KL over latents, or declare the "
        "precision that the loss implies. vs.audit of the loss names the term.",
        f"loss = {_reconstruction_loss(found)} + {declared:g} * kl.sum(1)  "
        + ("# sums, not means" if high else "# KL summed over latents, not averaged"),
    )


def _far_weight(found: Measurements, weight: _WeightOfKL) -> float | None:
    """The factor, if it is far from 1 and no scatter or poor encoder explains that."""
    factor, scatter = weight.factor, LIMITS.beyond_scatter * (weight.scatter or 0.0)
    if weight.scatter is not None and abs(math.log(factor)) < min(scatter, math.log(LIMITS.certain_factor)):
        return None
    if 1 / LIMITS.beta_factor <= factor <= LIMITS.beta_factor or _encoder_lags(found, weight, high=factor > 1):
        return None
    return factor


def _doubled_weight(found: Measurements) -> float | None:
    """The factor, if it is near 2 or 1/2, known well, and the same for all latents."""
    weights, gap = found.weights, found.gap
    if weights is None or not weights.pooled > 0 or not bool((weights.beta > 0).all()):
        return None
    factor = weights.pooled / found.declared_beta
    error, spread = weights.pooled_stderr / weights.pooled, float(np.log(weights.beta).std())
    if abs(math.log(factor)) < max(LIMITS.doubled, LIMITS.doubled_errors * error) or spread > LIMITS.doubled_spread:
        return None
    if not 1 / LIMITS.beta_factor <= factor <= LIMITS.beta_factor:
        return None
    lost = 0.0 if gap is None else float(gap.amortization.median())
    own = len(found.regime.used) * (
        factor - 1 - math.log(factor)
    )  # of widths and means that are optimal for this weight
    return None if lost > max(LIMITS.lost_share * float(np.sum(found.regime.kl)), own) else factor


def _usual_cause(found: Measurements, factor: float) -> str:
    """What in a loss has such a factor."""

    def near(value: float) -> bool:
        return abs(math.log(factor / value)) < math.log(1.3)

    d = found.regime.latent_dim
    if near(2.0):
        return " A factor of 2 is that of a KL without its ½, or of a squared error that is halved once too often."
    if d > 2 and near(1 / d):
        return f" A factor of 1/{d} is that of a KL that is averaged over the {d} latents."
    if near(0.5):
        return " A factor of ½ is that of a squared error without its ½."
    return ""


def _reconstruction_loss(found: Measurements) -> str:
    """The reconstruction term of the loss as code, per sample."""
    noise = found.noise
    if found.likelihood == "bernoulli":
        return 'F.binary_cross_entropy(p, x, reduction="none").flatten(1).sum(1)'
    if noise is None or noise.declared is None:
        return "-log_likelihood(x, z)"
    return f"{amount(0.5 * noise.declared)} * ((x - x_hat) ** 2).flatten(1).sum(1)"


def _encoder_lags(found: Measurements, weight: _WeightOfKL, *, high: bool) -> bool:
    """Whether widths of posteriors are off because the encoder is poor, and not because of a high or low β.

    A high β makes posteriors wide around the right means, and the decoder is trained with these; with a low one,
    posteriors lose fewer nats than the KL. The gap is that of β = 1, so with another stated β only a large shift of the
    means counts. Dropout, too, makes a decoder return other than E[x|z], but does not shift means.
    """
    gap, shift = found.gap, weight.shift
    if found.declared_beta != 1 or gap is None:
        return high and shift is not None and shift > LIMITS.shifted
    lost = float(gap.amortization.median()) / float(np.sum(found.regime.kl))
    if not high:
        return lost > LIMITS.lost_share_warning
    if shift is None or gap.excess_error is None:
        return shift is not None and shift > LIMITS.shifted
    miscalibrated = weight.slope is not None and weight.slope.off(*LIMITS.miscalibrated)
    if miscalibrated and shift > LIMITS.slightly_shifted and lost > LIMITS.lost_share_warning:
        return True
    # of models with the same widths, each factor is larger for the poor encoder; the product separates them best
    lag = shift * max(0.0, gap.excess_error - 1) * max(0.0, lost)
    return shift > LIMITS.shifted and lag > LIMITS.lags


def amortization(found: Measurements) -> Finding | None:
    """Only if training maximised the ELBO of the posterior that is given."""
    gap, weight = found.gap, _WeightOfKL.of(found)
    if gap is None or not found.elbo_trained or found.declared_beta != 1:
        return None
    lost, error = gap.mean("amortization")
    typical, low = (float(gap.amortization.quantile(q)) for q in (0.5, 0.25))
    spread = float((gap.elbo + gap.amortization).std()) if len(gap.elbo) > 1 else 0.0
    total = float(np.sum(found.regime.kl))
    poor_means = gap.excess_error is not None and gap.excess_error > LIMITS.poor_means
    wide = weight is not None and weight.factor >= LIMITS.beta_factor
    lags = wide and weight is not None and _encoder_lags(found, weight, high=True)
    warns = (
        typical > max(LIMITS.lost_share_warning * total, LIMITS.lost_spread_warning * spread)
        or (poor_means and typical > LIMITS.lost_share_poor_means * total)
        or (lags and typical > LIMITS.lost_share_warning * total)
    )
    noted = typical > max(LIMITS.lost_share * total, LIMITS.lost_spread * spread)
    if low <= LIMITS.lost_nats or not (warns or noted):
        return None
    return Finding(
        "amortization",
        "warning" if warns else "note",
        "The encoder is far from optimal for its decoder.",
        f"It loses {amount(lost)} ± {amount(2 * error)} nats compared with the best posterior of its family, of a "
        f"KL of {amount(total)}; the family itself loses {round(gap.mean('family')[0], 2) + 0.0:.2f}."
        + (f" Reconstructions from its means have {times(gap.excess_error or 1)} the error." if poor_means else ""),
        Advice.naming(
            "Check that encoder and decoder are of the same checkpoint; then train the encoder alone with the decoder "
            "frozen. If it loses much less on training samples (pass {}), it overfits: use more data instead.",
            "train",
        ),
        "decoder.requires_grad_(False)",
    )


def reliability(found: Measurements) -> Finding | None:
    k = None if found.gap is None else found.gap.pareto_k
    if k is None or not LIMITS.pareto_k < k < math.inf:
        return None
    return Finding(
        "unreliable-likelihood",
        "note",
        "The importance sampling estimate of log p(x) is unreliable.",
        f"Pareto k̂ {k:.2f}, above {LIMITS.pareto_k:g}.",
        "Treat the gap as a lower bound.",
    )


# codebooks


def codebook_reconstruction(found: Measurements) -> Finding | None:
    explained = None if found.codebook is None else found.codebook.explained
    if explained is None or explained >= LIMITS.worse_than_mean:
        return None
    return Finding(
        "reconstruction",
        "error",
        "Reconstructions are worse than the mean of x.",
        f"The squared error is {1 - explained:.3g} times the variance of x.",
        "Check the preprocessing of x, and that all weights were loaded.",
        "model.load_state_dict(torch.load(file, weights_only=True), strict=True)",
    )


def codebook_usage(found: Measurements) -> Finding | None:
    """Collapsed codebooks, and codes that are never chosen.

    >>> import torch
    >>> from vaescope.products.diagnose.codes import CodebookUsage, no_latents
    >>> usage = CodebookUsage(torch.tensor([1000] + 511 * [0]), 4, 0.5)
    >>> [f.code for f in judge(Measurements(no_latents(), codebook=usage))]
    ['codebook-collapsed']
    """
    usage = found.codebook
    if usage is None:
        return None
    size, counted = len(usage.counts), int(usage.counts.sum())
    if usage.perplexity < max(2.0, LIMITS.collapsed_codebook * size):
        return Finding(
            "codebook-collapsed",
            "error",
            "Almost all samples have the same few codes.",
            f"Perplexity {usage.perplexity:.3g} of {size} codes.",
            "Restart unused codes at encoder outputs, update the codebook by moving averages, lower the commitment "
            "weight or use fewer dimensions per code.",
            "codebook.data[unused] = encoder_outputs[torch.randperm(len(encoder_outputs))[: unused.sum()]]",
        )
    if counted < LIMITS.counts_per_code * size or usage.dead <= LIMITS.unused_codes * size:
        return None
    return Finding(
        "dead-codes",
        "warning",
        f"{usage.dead} of {size} codes are never used.",
        f"{counted} codes of these samples were counted; perplexity {usage.perplexity:.3g}.",
        "Use a smaller codebook, or restart unused codes at encoder outputs.",
        f"codebook_size = {2 ** math.ceil(math.log2(max(2, size - usage.dead)))}",
    )


BROKEN: tuple[Rule, ...] = (
    sigmoid_twice,
    untrained,
    decoder_fails,
    output_size,
    data_range,
    no_counts,
    not_a_vae,
    reconstruction,
    collapse,
)
"""With these the gap means nothing."""
RULES: tuple[Rule, ...] = (
    sigmoid_twice,
    untrained,
    decoder_fails,
    output_size,
    data_range,
    no_counts,
    not_a_vae,
    reconstruction,
    codebook_reconstruction,
    codebook_usage,
    variances,
    logits,
    collapse,
    clamped_variance,
    sampling_noise,
    overfit,
    not_converged,
    decoder_variance,
    beta,
    amortization,
    rotated,
    aggregate,
    idle_latents,
    unused_layers,
    scaling_factor,
    wide_posteriors,
    stability,
    duplicates,
    reliability,
)
"""In the order of causes: a finding may be the reason for later ones."""
_of_training = frozenset(
    {
        "overfit",
        "not-converged",
        "decoder-variance",
        "beta-low",
        "beta-high",
        "amortization",
        "rotated",
        "aggregate",
        "too-many-latents",
        "wide-posteriors",
    }
)
EXPLAINS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        (
            "sigmoid-twice",
            "untrained",
            "decoder-fails",
            "output-size",
            "data-range",
            "not-counts",
            "reconstruction",
            "not-a-vae",
            "collapsed",
            "uninformative",
        ),
        frozenset({"*"}),
    ),
    "clamped-variance": _of_training,
    "sampling-noise": _of_training,
    "overfit": frozenset(
        {"not-converged", "amortization", "decoder-variance", "beta-low", "beta-high", "aggregate", "rotated"}
    ),
    "not-converged": _of_training - {"overfit"},
    "decoder-variance": frozenset({"beta-high", "beta-low", "amortization", "aggregate", "too-many-latents"}),
    "beta-high": frozenset({"amortization", "too-many-latents", "aggregate", "rotated"}),
    "beta-low": frozenset({"amortization", "aggregate", "rotated"}),
    "amortization": frozenset({"aggregate", "wide-posteriors", "rotated"}),
    "aggregate": frozenset({"wide-posteriors"}),
}
"""What a finding is the cause of; these are not reported beside it."""
