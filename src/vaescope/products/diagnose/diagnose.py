"""Diagnose a trained model: everything that applies to it, as findings, a table, a page and data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import metrics
from vaescope.adapters.quantised import Quantised
from vaescope.analysis.agreement import Agreement, measure_agreement
from vaescope.analysis.encoding import (
    DecoderDerivatives,
    EncodedSample,
    declared_beta,
    encode_chunks,
    encode_sample,
)
from vaescope.analysis.gap import measure_gap, seconds_per_decode
from vaescope.analysis.geometry import (
    WeightedJacobian,
    differentiate_decoder,
    measure_geometry,
    near_deterministic_ratio,
)
from vaescope.analysis.identification import Identification, identify
from vaescope.analysis.likelihood import (
    CodeMoments,
    Weights,
    estimate_marginal,
    find_other_sources,
    given_by_functions,
    measure_elbo,
    measure_moments,
    measure_weights,
)
from vaescope.analysis.loss.reading import models_with_loss
from vaescope.analysis.models import Repair, likelihood_is_known, repair, weights_are_initial, with_normal_prior
from vaescope.analysis.samples import (
    ModelInputs,
    check_samples,
    read_samples,
    read_samples_of_each,
    spread_rows,
)
from vaescope.core import validation
from vaescope.core.budget import Budget, Progress, to_stderr
from vaescope.core.checks import number
from vaescope.core.errors import Advice, Attempts, InputError, Skipped, first_line
from vaescope.core.plugins import plugins
from vaescope.core.tables import Table
from vaescope.distributions import Normal
from vaescope.metrics.evaluate import Evaluation
from vaescope.products.diagnose.codes import measure_codebook, measure_latent_image, no_latents
from vaescope.products.diagnose.measurements import Measurements, measure_validity, validity_applies
from vaescope.products.diagnose.noise import (
    SamplingNoise,
    VarianceScale,
    find_clamp,
    find_scale,
    find_sigmoids,
    measure_noise,
    measure_noise_of_draws,
)
from vaescope.products.diagnose.page import LEGENDS, PICTURES, drawings, facts
from vaescope.products.diagnose.reconstruction import (
    Generalisation,
    Overlap,
    measure_aggregate,
    measure_generalisation,
    measure_overlap,
    measure_own_codes,
    measure_reconstruction,
    not_counts,
)
from vaescope.products.diagnose.rules import invalidates_gap, judge
from vaescope.protocol import LatentModel
from vaescope.regime import Regime
from vaescope.regime.model import EFFECT_SAMPLES, effect, regime_of
from vaescope.report.figures import drawing
from vaescope.report.findings import Finding, by_severity
from vaescope.report.page import Drawing, render
from vaescope.report.page import number as shown
from vaescope.report.report import Report

STABILITY_SAMPLES = 2000  # of which codes are kept to compare seeds, and that of a VQ-VAE are encoded


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis(Report):
    """The findings about a model, and the evidence for them."""

    name: str
    """What the report calls the model."""
    findings: list[Finding]
    """Most severe first."""
    evidence: Measurements
    """What was measured; None for what was skipped."""
    samples: int
    """Number of samples that were encoded."""
    sample: EncodedSample | None = None
    """The random sample that was decoded, if there is a decoder."""

    @property
    def skipped(self) -> dict[str, str]:
        """Analyses that could not be made, and why."""
        return self.evidence.skipped

    def summary(self) -> Table:
        """A row per latent, highest KL first; prints as a table."""
        return Table(self.evidence.rows(), note=self.coverage())

    def coverage(self) -> str:
        """What was judged, and what was not and why."""
        covered = self.evidence.coverage()

        def sentence(shown: Callable[[str], str]) -> str:
            judged = ", ".join(what for what, why in covered.items() if why is None)
            left = [f"{what} ({shown(why)})" for what, why in covered.items() if why is not None]
            return f"Judged: {judged or 'nothing'}." + (f" Not judged: {'; '.join(left)}." if left else "")

        found = Advice(sentence(str))
        found.as_option = sentence(lambda why: why.as_option if isinstance(why, Advice) else why)
        return found

    def content(self) -> dict[str, object]:
        """Findings and numbers."""
        head = {"name": self.name, "samples": self.samples, "worst": self.worst}
        return head | {"findings": [finding.to_data() for finding in self.findings]} | self.evidence.content()

    def facts(self) -> list[tuple[str, str]]:
        """Single numbers with their labels."""
        return facts(self.evidence)

    def figures(self) -> list[Drawing]:
        """The figures of the page, as SVG with captions."""
        return [drawing(*found) for found in drawings(self.evidence, self.sample)]

    def page(self) -> str:
        """The HTML page."""
        found, values = self.evidence, self.page_values()
        unit = "codes" if found.codebook is not None else "latents" if found.latent_image is None else "channels"
        drawn = self.figures()
        near, noise = found.near_deterministic(), found.noise
        declared = None if noise is None or noise.likelihood == "bernoulli" else noise.declared
        about = {} if found.validity is None else {"gap and c_IMA": found.validity.sentence()}
        if found.codebook is None:
            about |= {
                "likelihood": found.likelihood or "unknown",
                "declared precision": "unknown" if declared is None else shown(float(declared)),
                "near-deterministic": "unknown" if near is None else near.reason,
            }
        about |= {
            "samples": str(self.samples),
            "samples decoded": "0" if self.sample is None else str(len(self.sample)),
        }
        return render(
            "diagnosis.html",
            **values
            | {
                "unit": unit,
                "legend": LEGENDS[unit],
                "samples": self.samples,
                "pictures": [figure for figure in drawn if figure.name in PICTURES],
                "drawings": [figure for figure in drawn if figure.name not in PICTURES],
                "bounds": found.bounds(),
                "bounded_at": 0 if found.elbo is None else len(found.elbo.rate) % self.samples,
                "scores": [] if found.evaluation is None else found.evaluation.rows,
                "identified": [] if found.identifiability is None else found.identifiability.summaries,
                "about": about,
            },
        )

    def __repr__(self) -> str:
        validity = self.evidence.validity
        return super().__repr__() + ("" if validity is None else f"\n  theory: {validity.sentence()}")


@torch.no_grad()
def diagnose(
    model: object,
    x: object | None = None,
    *,
    factors: object | None = None,
    auxiliary: object | None = None,
    train: object | None = None,
    loss: object | None = None,
    name: str | None = None,
    budget: float = 30.0,
    progress: Progress | None = to_stderr,
) -> Diagnosis:
    """Find out what is wrong with a trained VAE, from samples that it was not trained on.

    Each row of x is encoded once, and the decoder is differentiated once. Analyses that do not apply to the model are
    skipped and listed in `skipped`.

    Args:
        model: a member of a fit, a model from `vs.adapters`, or your own `LatentModel`. Of several models of the same
            data (a list or a fit), the first (the best member) is diagnosed, and all are compared. Of a VQ-VAE
            (`vs.adapters.from_codebook`), the use of its codebook is reported.
        x: samples, a row or an image each: an array, a tensor, a data frame, a sparse matrix, AnnData, a PyTorch data
            set or loader (10,000 samples of it), or a file. Not needed for posteriors alone
            (`vs.adapters.from_arrays`).
        factors: (N, k) known factors of the samples, or (N,) labels, numbers or text, to score the codes against.
        auxiliary: the auxiliary input of an iVAE or a conditional VAE, a label or a row of numbers per sample.
        train: samples that the model was trained on, to find overfitting; (x, auxiliary) for a conditional VAE.
        loss: what the model was trained with, anything that `vs.audit` takes, or its result: the likelihood, its
            precision and β are read from it. The model may then be a pair of networks, (encoder, decoder).
        name: what the report calls the model.
        budget: seconds that this may take. Cheap analyses come first; what there is no time for is in `skipped`.
        progress: called with lines that say what is being done; None for silence.

    >>> from vaescope.adapters import from_arrays
    >>> found = diagnose(from_arrays(torch.zeros(300, 3), torch.ones(300, 3)))
    >>> [finding.code for finding in found.findings]
    ['collapsed']
    """
    clock = Budget(number("budget", budget, above=0.0, hint="it is in seconds"), progress)
    if isinstance(model, Quantised):
        return _diagnose_codebook(model, x, factors, auxiliary, name, clock)
    clock.say("reading samples")
    models = models_with_loss(model, loss, x)
    samples, *others = read_samples_of_each(models, x, auxiliary)
    clock.say(f"encoding {len(samples)} samples")
    repaired = _affordable(repair(models[0], samples, None, EFFECT_SAMPLES, samples.image_shape), clock)
    attempts = Attempts()
    scale = attempts("scale of variances", lambda: find_scale(repaired.sample, repaired.second))

    def measure(read: Repair, scale: VarianceScale | None) -> Measurements:
        own = Attempts(attempts.skipped)
        return _measure(read, scale, models, samples, others, factors=factors, train=train, attempts=own, clock=clock)

    read = repaired if scale is None else repaired.with_scale(scale.name)
    evidence = measure(read, scale)
    findings = judge(evidence)
    if scale is not None and scale.name != scale.expected and not any(f.code == "scale-of-variance" for f in findings):
        # the model is not trained or worse, so that its scale cannot be found, and nothing is read otherwise in silence
        read = repaired.with_scale(scale.expected)
        evidence = measure(read, replace(scale, name=scale.expected, taken=scale.stated))
        findings = judge(evidence)
    decoded = read.sample if read.model.has_decoder else None
    findings += _findings_of_packages(evidence)
    return Diagnosis(name or models[0].name, by_severity(findings), evidence, len(samples), decoded)


def _affordable(repaired: Repair, clock: Budget, *, share: float = 0.3, fewest: int = 64) -> Repair:
    """Fewer samples to decode if the decoder is slow: a share of the budget, or a second, for what always runs."""
    sample = repaired.sample
    if repaired.model.likelihood is None:  # posteriors alone: nothing is decoded
        return repaired
    latents = 0 if repaired.model.latent_shape is not None else sample.mean.shape[1]
    decodes = 24 + 2 * latents  # of a sample: trials of inputs, draws for the ELBO, effects and derivatives of latents
    seconds = Attempts()("time to decode", lambda: seconds_per_decode(sample))
    count = max(fewest, int(max(1.0, share * clock.left) / max(decodes * (seconds or 0.0), 1e-12)))
    if count >= len(sample):
        return repaired
    chosen = sample.random_subset(count)
    places = np.searchsorted(sample.rows, chosen.rows)
    return replace(repaired, sample=chosen, second=repaired.second[torch.from_numpy(places)])


def _findings_of_packages(evidence: Measurements) -> list[Finding]:
    """What the rules of other installed packages find; a rule that fails is named among what was left out."""
    findings = []
    for name, rule in plugins("findings").items():
        try:
            found = rule(evidence)
        except Exception as error:  # whatever another package's rule raises
            evidence.skipped[f"rule {name}"] = f"it failed with {type(error).__name__}: {first_line(error)}"
            continue
        if isinstance(found, Finding):
            findings.append(found)
        elif found is not None:
            evidence.skipped[f"rule {name}"] = f"it must return a Finding or None, not {type(found).__name__}"
    return findings


def _measure(
    repaired: Repair,
    scale: VarianceScale | None,
    models: Sequence[LatentModel],
    samples: ModelInputs,
    others: Sequence[ModelInputs],
    *,
    factors: object | None,
    train: object | None,
    attempts: Attempts,
    clock: Budget,
) -> Measurements:
    """Everything that applies to the model; `repaired` has its variances read on this scale."""
    kept = len(samples) if factors is not None else STABILITY_SAMPLES if len(models) > 1 else 0
    codes = _MeanCodes(min(kept, len(samples)))
    regime = regime_of(codes.collect(encode_chunks(repaired.model, samples, first=repaired.sample)))
    if repaired.model.normal_prior is not None:
        prior = type(models[0].prior).__name__
        attempts.skipped["exact KL"] = f"the prior is {prior}, replaced by a normal prior of its mean and variance"
    seen = None if train is None else attempts("overfitting", lambda: _training_sample(repaired, train))
    held_out = None
    if seen is not None or train is None:  # otherwise the reason is known
        held_out = attempts("overfitting", lambda: _generalisation(repaired, seen))
    # smallest and largest x, if a Bernoulli likelihood does not allow them
    x = repaired.sample.x
    low, high = float(x.min()), float(x.max())
    outside = low < -1e-4 or high > 1 + 1e-4  # by more than rounding
    first = Measurements(
        regime,
        scale=scale,
        groups=models[0].latent_groups,
        initial_weights=weights_are_initial(models[0]),
        certainly_initial=weights_are_initial(models[0], certain=True),
        data_range=(low, high) if repaired.model.likelihood == "bernoulli" and outside else None,
        elbo_trained=models[0].objective == "elbo" and models[0].posterior_family == "diagonal",
        generative=models[0].likelihood is not None or models[0].log_likelihood is not None,
        logits=repaired.model.logits,
        zero_variance=repaired.zero_variance,
        rotatable=_is_isotropic(models[0]),
        likelihood=models[0].likelihood,
        declared_beta=declared_beta(repaired.model),
        moments=attempts("moments of codes", lambda: _moments(repaired, regime.used, seen)),
        noise_of_draws=attempts("noise of draws", lambda: _noise_of_draws(repaired, regime)),
        clamp=find_clamp(repaired.sample, regime.used),
        sigmoids=attempts("sigmoids", lambda: find_sigmoids(repaired.sample)),
        weights=attempts("weight of the KL", lambda: _weights(repaired, regime)),
        other_sources=Attempts()("other sources", lambda: find_other_sources(repaired.sample)),
        generalisation=held_out,
        overlap=None if train is None else attempts("duplicates", lambda: _overlap(repaired, samples, train)),
        not_counts=not_counts(repaired.sample.x) if models[0].counts else None,
        stability=attempts("stability", lambda: _stability(codes, regime, models[1:], others)),
        evaluation=attempts("metrics", lambda: _evaluation(codes, factors)),
    )
    evidence = _decoder_evidence(first, repaired, attempts, clock)
    evidence = replace(
        evidence, favoured=attempts("moments of codes", lambda: _along_better_axes(evidence, repaired, seen))
    )
    identified = attempts("identifiability", lambda: _identifiability(repaired, evidence, models[1:], others, clock))
    return replace(evidence, identifiability=identified, skipped=attempts.skipped)


class _MeanCodes:
    """Posterior means of the first rows of x, collected while the rows are encoded."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.values: Float[Tensor, "N d"] | None = None

    def collect(self, chunks: Iterable[EncodedSample]) -> Iterator[EncodedSample]:
        for chunk in chunks:
            kept = chunk.rows < self.rows
            if self.values is None and self.rows:
                self.values = torch.zeros(self.rows, chunk.mean.shape[1], dtype=chunk.mean.dtype)
            if self.values is not None:
                self.values[torch.from_numpy(chunk.rows[kept])] = chunk.mean[torch.from_numpy(kept)]
            yield chunk


def _decoder_evidence(evidence: Measurements, repaired: Repair, attempts: Attempts, clock: Budget) -> Measurements:
    """Everything that needs a decoder: cheap analyses first, the gap only if it can still mean something."""
    model, sample, used = repaired.model, repaired.sample, evidence.regime.used
    if not model.has_decoder:
        attempts.skipped["decoder"] = "the model has no decoder"
        return evidence if model.log_likelihood is None else _likelihood_evidence(evidence, repaired, attempts, clock)
    clock.say("reconstructing, and differentiating the decoder")

    def differentiate() -> DecoderDerivatives:
        _check_flat(sample)
        return differentiate_decoder(sample, used)

    def column_norm() -> np.ndarray:
        if derivatives is None:
            raise Skipped("the decoder could not be differentiated")
        return derivatives.column_norm.cpu().numpy()

    def effects() -> np.ndarray:
        _check_flat(sample)
        started = time.monotonic()
        _ = sample.decoded
        clock.need(sample.mean.shape[1] * (time.monotonic() - started) - 1)
        return effect(sample)

    def other_sizes() -> tuple[int, int] | None:
        sizes = sample.decoded.shape[1], sample.observations.shape[1]
        if model.log_likelihood is not None:
            return None
        if not bool(sample.decoded.isfinite().all()):
            raise Skipped("the decoder returns NaN or infinity")
        return None if sizes[0] == sizes[1] else sizes

    if model.latent_shape is not None:
        evidence = replace(evidence, latent_image=attempts("channels", lambda: measure_latent_image(sample)))
    derivatives = attempts("geometry", differentiate)
    jacobian = None if derivatives is None else attempts("geometry", lambda: WeightedJacobian.of(derivatives))
    norms = attempts("column norm", column_norm)
    sizes = attempts("decoding", other_sizes)
    evidence = replace(
        evidence,
        sizes=sizes,
        decoder_fails=attempts.skipped.get("decoding"),
        regime=replace(evidence.regime, column_norm=norms, effect=attempts("effect", effects)),
        reconstruction=attempts("reconstruction", lambda: measure_reconstruction(sample)),
        aggregate=attempts("aggregate posterior", lambda: measure_aggregate(sample, used)),
        geometry=None if jacobian is None else attempts("geometry", lambda: measure_geometry(jacobian)),
        noise=attempts("noise", lambda: measure_noise(sample, used)),
        elbo=None if evidence.data_range else attempts("ELBO", lambda: measure_elbo(sample)),
        eq12=None if derivatives is None else near_deterministic_ratio(derivatives),
    )
    evidence = _gap_evidence(evidence, repaired, attempts, clock)
    if evidence.gap is None or not validity_applies(sample, used):
        return evidence
    return replace(evidence, validity=attempts("validity", lambda: measure_validity(sample, used, clock)))


def _gap_evidence(evidence: Measurements, repaired: Repair, attempts: Attempts, clock: Budget) -> Measurements:
    """log p(x) and the gap, if no finding says that they mean nothing."""
    sample, used = repaired.sample, evidence.regime.used
    broken = invalidates_gap(evidence)
    if broken is not None:
        attempts.skipped["gap"] = f"it means nothing with the finding {broken}"
        return evidence
    clock.say(f"measuring the gap between ELBO and log p(x), {max(0.0, clock.left):.0f} s left")
    if given_by_functions(sample):
        evidence = replace(evidence, marginal=attempts("log p(x)", lambda: estimate_marginal(sample, clock)))
    return replace(evidence, gap=attempts("gap", lambda: measure_gap(sample, used, clock)))


def _likelihood_evidence(evidence: Measurements, repaired: Repair, attempts: Attempts, clock: Budget) -> Measurements:
    """What log p(x|z) alone shows, without the decoder's output."""
    sample, used = repaired.sample, evidence.regime.used
    evidence = replace(
        evidence,
        reconstruction=attempts("reconstruction", lambda: measure_own_codes(sample)),
        aggregate=attempts("aggregate posterior", lambda: measure_aggregate(sample, used)),
        elbo=attempts("ELBO", lambda: measure_elbo(sample)),
    )
    return _gap_evidence(evidence, repaired, attempts, clock)


def _check_flat(sample: EncodedSample, most: int = 64) -> None:
    """Raise `Skipped` if latents form an image that is too large to differentiate the decoder by each of them."""
    latents = sample.mean.shape[1]
    if sample.model.latent_shape is not None and latents > most:
        raise Skipped(f"{latents} latents form an image; channels and positions are reported instead")


def _training_sample(repaired: Repair, train: object) -> EncodedSample:
    """Training samples, encoded."""
    x, auxiliary = train if isinstance(train, tuple) and repaired.model.conditional else (train, None)
    if repaired.model.auxiliary_dim and auxiliary is None:
        raise Skipped("the model takes an auxiliary input; pass train=(x, auxiliary)")
    return encode_sample(repaired.model, read_samples(repaired.model.model, x, auxiliary), None, len(repaired.sample))


def _overlap(repaired: Repair, samples: ModelInputs, train: object) -> Overlap | None:
    given = train[0] if isinstance(train, tuple) and repaired.model.conditional else train
    x, seen = (torch.as_tensor(v.x) for v in (samples, read_samples(repaired.model.model, given)))
    return measure_overlap(x, seen)


def _generalisation(repaired: Repair, seen: EncodedSample | None) -> Generalisation:
    if seen is None:
        raise Skipped(Advice.naming("no training samples were given; pass {}", "train"))
    if not repaired.model.has_decoder:
        raise Skipped("the model has no decoder")
    return measure_generalisation(seen, repaired.sample)


def _moments(
    repaired: Repair, used: list[int], seen: EncodedSample | None, axes: Float[Tensor, "u u"] | None = None
) -> CodeMoments | None:
    """Only where the KL alone determines the scale of codes: not with a learned prior, or hardly any KL."""
    model = repaired.model
    fixed = model.normal_prior is None and model.prior_density is None
    fixed = fixed and (not model.auxiliary_dim or model.conditional)
    if not fixed or model.latent_shape is not None or model.latent_groups:
        return None
    return measure_moments(seen or repaired.sample, used, axes)


def _along_better_axes(evidence: Measurements, repaired: Repair, seen: EncodedSample | None) -> CodeMoments | None:
    """Moments of codes along the axes that the decoder favours; None if it favours none, or the prior has axes."""
    geometry = evidence.geometry
    if geometry is None or geometry.rotation is None or not evidence.rotatable:
        return None
    return _moments(repaired, list(geometry.rotated), seen, torch.from_numpy(geometry.rotation.matrix))


def _weights(repaired: Repair, regime: Regime) -> Weights | None:
    """Where posteriors and prior are normal distributions."""
    model = repaired.model
    if not likelihood_is_known(model) or model.posterior_density is not None or model.prior_density is not None:
        return None
    if model.latent_shape is not None or model.latent_groups or len(regime.used) > 64:
        return None
    return measure_weights(repaired.sample, regime.used)


def _noise_of_draws(repaired: Repair, regime: Regime) -> SamplingNoise | None:
    """Where posteriors are diagonal normal distributions that draws are taken from."""
    model = repaired.model
    if model.objective != "elbo" or model.posterior_family != "diagonal" or model.posterior_density is not None:
        return None
    if model.prior_density is not None or model.latent_shape is not None or declared_beta(model) != 1:
        return None
    return measure_noise_of_draws(repaired.sample, regime.used)


def _is_isotropic(model: LatentModel) -> bool:
    """Whether the prior is invariant to rotations of the latents."""
    prior = model.prior
    if (model.auxiliary_dim and not model.conditional) or not isinstance(prior, Normal):
        return False
    return all(torch.as_tensor(v).unique().numel() == 1 for v in (prior.mean, prior.variance))


def _stability(
    codes: _MeanCodes, regime: Regime, others: Sequence[LatentModel], inputs: Sequence[ModelInputs]
) -> Agreement:
    if not others or codes.values is None:
        raise Skipped("one model was given; pass several seeds to compare them")
    means, used = [codes.values[:STABILITY_SAMPLES].double().numpy()], [regime.used]
    for other, given in zip(others, inputs, strict=True):
        samples = given[:STABILITY_SAMPLES]
        collected = _MeanCodes(len(samples))
        used.append(regime_of(collected.collect(encode_chunks(with_normal_prior(other), samples))).used)
        assert collected.values is not None
        means.append(collected.values.double().numpy())
    return measure_agreement(means, used)


def _identifiability(
    repaired: Repair,
    evidence: Measurements,
    others: Sequence[LatentModel],
    inputs: Sequence[ModelInputs],
    clock: Budget,
) -> Identification:
    if repaired.model.latent_shape is not None:
        raise Skipped("latents are channels at positions of an image")
    if not evidence.regime.used:
        raise Skipped("no latent is in use")
    if len(evidence.regime.used) > 64:
        raise Skipped("more than 64 latents in use would take too long; call vs.identifiability")
    if repaired.model.has_decoder:  # derivatives at draws from the posteriors of 128 samples
        seconds = Attempts()("time to decode", lambda: seconds_per_decode(repaired.sample)) or 0.0
        clock.need(4 * min(128, len(repaired.sample)) * len(evidence.regime.used) * seconds)
    samples = [repaired.sample]
    for other, given in zip(others, inputs, strict=True):
        samples.append(encode_sample(with_normal_prior(other), given, None, EFFECT_SAMPLES))
    return identify(samples, [regime_of([sample]).used for sample in samples])


def _evaluation(codes: _MeanCodes, factors: object | None) -> Evaluation:
    if factors is None or codes.values is None:
        raise Skipped("no factors were given")
    return metrics.evaluate(codes.values, validation.labels(factors, "factors"))


def _diagnose_codebook(
    model: Quantised, x: object, factors: object | None, auxiliary: object | None, name: str | None, clock: Budget
) -> Diagnosis:
    """Which codes a VQ-VAE uses, and how well it reconstructs."""
    if x is None or auxiliary is not None:
        raise InputError("diagnose needs samples x of a VQ-VAE, and no auxiliary input.")
    samples = check_samples(x).x
    rows = spread_rows(len(samples), STABILITY_SAMPLES)
    clock.say(f"encoding {len(rows)} samples")
    usage = measure_codebook(model, validation.tensor(samples[rows], "x"))
    skipped = {} if usage.explained is not None else {"reconstruction": "no function was given; pass reconstruct="}
    if factors is not None:
        skipped["metrics"] = "codes of a codebook are not scored against factors"
    found = Measurements(no_latents(), codebook=usage, skipped=skipped)
    return Diagnosis(name or model.name, by_severity(judge(found)), found, len(rows))
