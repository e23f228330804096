"""Everything that is measured of a model, as the basis of findings, the page and the JSON file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch

from vaescope.analysis.agreement import Agreement
from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.gap import ElboGap, affordable_points
from vaescope.analysis.geometry import Geometry, NearDeterministic, near_deterministic
from vaescope.analysis.identification import Identification
from vaescope.analysis.likelihood import (
    CodeMoments,
    ElboTerms,
    MarginalEstimate,
    OtherSources,
    Weights,
    mean_and_error,
)
from vaescope.core.budget import Budget
from vaescope.core.errors import InputError, Skipped, could_not_differentiate
from vaescope.core.serialization import plain_fields
from vaescope.distributions import Normal
from vaescope.inference.expansion import NODES, Expansion, Validity, validity
from vaescope.inference.gap import QUADRATURE_ORDERS
from vaescope.metrics.evaluate import Evaluation
from vaescope.products.diagnose.codes import CodebookUsage, LatentImage, layer_rows
from vaescope.products.diagnose.noise import Clamp, Noise, SamplingNoise, Sigmoids, VarianceScale
from vaescope.products.diagnose.reconstruction import Aggregate, Generalisation, Overlap, Reconstruction
from vaescope.products.diagnose.thresholds import LIMITS
from vaescope.regime import Regime
from vaescope.report.findings import Finding
from vaescope.report.wording import amount, interval, times


@dataclass(frozen=True, eq=False)
class Measurements:
    """All measurements; None for those that were skipped, with the reason in `skipped`."""

    regime: Regime
    groups: tuple[tuple[str, int], ...] = ()
    """Names and sizes of the layers of a hierarchical VAE."""
    latent_image: LatentImage | None = None
    """Statistics of channels and positions, if latents form an image."""
    scale: VarianceScale | None = None
    initial_weights: bool = False
    """Whether weights are where they start."""
    certainly_initial: bool = False
    """Whether weights and biases are, more of them than by chance."""
    data_range: tuple[float, float] | None = None
    """Smallest and largest x, if x is outside the range of its likelihood."""
    sizes: tuple[int, int] | None = None
    """Numbers per sample that the decoder returns and that x has, if they differ."""
    decoder_fails: str | None = None
    """What goes wrong when the codes of x are decoded."""
    elbo_trained: bool = True
    """Whether training maximised the ELBO of the posteriors that `encode` returns."""
    generative: bool = True
    """Whether the prior was meant to be sampled from: not if the likelihood is unknown."""
    declared_beta: float = 1.0
    """The weight of the KL that the caller states."""
    moments: CodeMoments | None = None
    """Of the training samples if they are given, otherwise of x."""
    favoured: CodeMoments | None = None
    """The same along the axes that the decoder favours, where latents may be rotated."""
    other_sources: OtherSources | None = None
    """What p(x|z) knows of x other than through z."""
    noise_of_draws: SamplingNoise | None = None
    """What training drew codes with; None if posteriors are as wide as an optimum makes them."""
    clamp: Clamp | None = None
    sigmoids: Sigmoids | None = None
    weights: Weights | None = None
    """The weight of the KL that posteriors imply, from derivatives of log p(x|z) alone."""
    reconstruction: Reconstruction | None = None
    aggregate: Aggregate | None = None
    generalisation: Generalisation | None = None
    overlap: Overlap | None = None
    """Rows of x among the training samples."""
    not_counts: str | None = None
    """What x are, if the likelihood is one of counts and they are none."""
    logits: bool = False
    zero_variance: bool = False
    rotatable: bool = True
    """Whether the prior is invariant to rotations of the latents."""
    likelihood: str | None = None
    geometry: Geometry | None = None
    noise: Noise | None = None
    elbo: ElboTerms | None = None
    gap: ElboGap | None = None
    validity: Validity | None = None
    """How far the gap is from c_IMA; None where that limit does not exist."""
    marginal: MarginalEstimate | None = None
    """log p(x) where the posterior or the prior is given by functions."""
    eq12: np.ndarray | None = None
    """(d,) posterior variances divided by those of Eq. 12."""
    stability: Agreement | None = None
    identifiability: Identification | None = None
    evaluation: Evaluation | None = None
    codebook: CodebookUsage | None = None
    """How often each code of a VQ-VAE was chosen, which has no latents."""
    skipped: dict[str, str] = field(default_factory=dict)

    def coverage(self) -> dict[str, str | None]:
        """What a diagnosis is about, with the reason why it was not judged; None for what was judged."""
        skipped, noise = self.skipped, self.noise
        if self.codebook is not None:
            return {"use of the codebook": None, "reconstruction": skipped.get("reconstruction")}
        unknown = None if self.generative else "the likelihood is not known"
        other = None if self.elbo_trained else "training maximised something else than the ELBO of these posteriors"
        decoder = skipped.get("decoder", "it was not measured")
        clear = self.weights is not None or (noise is not None and noise.beta is not None)
        unmoved = skipped.get("moments of codes", "the prior is not a fixed normal distribution")
        weighted = None if self.declared_beta == 1 else f"it is judged for β = 1, not {self.declared_beta:g}"
        unnamed = None if self.likelihood else "the likelihood is not a Gaussian one by name"
        wide = skipped.get("noise", "posteriors are too wide to tell")
        reasons = {
            "collapse": None,
            "convergence": other or (unmoved if self.moments is None else None),
            "β": other or unknown or (None if clear else wide),
            "decoder variance": unknown or unnamed,
            "encoder": other or (skipped.get("gap", unknown or decoder) if self.gap is None else weighted),
            "data": skipped.get("reconstruction", decoder) if self.reconstruction is None else None,
            "generalisation": skipped.get("overfitting", decoder) if self.generalisation is None else None,
        }
        return {what: reasons[what] for what in reasons if what != "decoder variance" or self.likelihood != "bernoulli"}

    def rows(self) -> list[dict[str, object]]:
        """A row per latent, highest KL first; per channel of a latent image, layer of a hierarchy, or code."""
        if self.codebook is not None:
            return self.codebook.rows()
        if self.latent_image is not None:
            return self.latent_image.rows()
        if self.groups:
            return layer_rows(self.regime, self.groups)
        regime, rows = self.regime, []
        numbers = {
            "KL": regime.kl,
            "variance ratio": regime.variance_ratio,
            "column norm": regime.column_norm,
            "σ² / Eq. 12": self.eq12,
            "effect": regime.effect,
        }
        for k in regime.latents_of_kind("active", "mixed", "passive"):
            row: dict[str, object] = {"latent": k, "kind": regime.kind[k]}
            if self.identifiability is not None:
                row["identified as"] = self.identifiability.kind[k]
            known = {name: float(values[k]) for name, values in numbers.items() if values is not None}
            rows.append(row | {name: None if math.isnan(value) else value for name, value in known.items()})
        return rows

    def near_deterministic(self) -> NearDeterministic | None:
        """Whether posteriors are narrow and as Eq. 12 predicts; None if that is unknown."""
        if self.eq12 is None or self.regime.samples < 2:
            return None
        return near_deterministic(self.eq12, self.regime.variance_ratio, self.regime.used)

    def bounds(self) -> list[tuple[str, str, str]]:
        """Name, value and meaning of ELBO, log p(x) and their parts, as far as they are known."""
        terms = self.elbo
        if terms is None:
            return []
        meaning = "what training maximises, with β = 1"
        if self.likelihood == "bernoulli":  # densities of continuous data may have any sign
            meaning += f"; {terms.bits_per_number:.3g} bits per number"
        rows = [
            ("ELBO", interval(*terms.mean("elbo")), meaning),
            ("rate", interval(*terms.mean("rate")), "KL of posteriors from the prior: what the codes cost"),
            ("distortion", interval(*terms.mean("distortion")), "-log p(x|z) of reconstructions: what they miss"),
        ]
        gap = None if self.marginal is None else self.marginal.mean
        if self.gap is not None:
            gap = mean_and_error(self.gap.log_marginal - self.gap.elbo)
        if gap is not None:
            value, error = terms.mean("elbo")
            total = math.hypot(error, gap[1]) if math.isfinite(gap[1]) else error
            rows.insert(0, ("log p(x)", interval(value + gap[0], total), "the ELBO and the gap together"))
            rows.insert(2, ("gap", interval(*gap), "log p(x) - ELBO, what a better posterior could gain"))
        return rows

    def content(self) -> dict[str, object]:
        """Everything as numbers and text, for JSON."""
        near, held_out = self.near_deterministic(), self.generalisation
        covered = self.coverage()
        names = (
            "latent_image",
            "geometry",
            "reconstruction",
            "noise",
            "elbo",
            "gap",
            "validity",
            "marginal",
            "codebook",
        )
        measured = {name: getattr(self, name) for name in names}
        return {name: None if value is None else value.to_data() for name, value in measured.items()} | {
            "latents": self.rows() if self.codebook is None else [],
            "coverage": {
                "judged": [what for what, why in covered.items() if why is None],
                "not_judged": {what: why for what, why in covered.items() if why is not None},
            },
            "skipped": self.skipped,
            "aggregate": None if self.aggregate is None else plain_fields(self.aggregate),
            "generalisation": None
            if held_out is None
            else {"train_elbo": held_out.train, "held_out_elbo": held_out.held_out, "stderr": held_out.stderr},
            "near_deterministic": None if near is None else near.applies,
            "stability": None if self.stability is None else self.stability.score,
            "identifiability": None if self.identifiability is None else self.identifiability.content(),
            "metrics": None if self.evaluation is None else self.evaluation.rows,
        }


T = TypeVar("T", Validity, Expansion)


def validity_applies(sample: EncodedSample, used: list[int]) -> bool:
    """Only a Gaussian likelihood of known precision has a near-deterministic limit; a few latents have a quadrature."""
    model = sample.model
    gaussian = model.likelihood == "gaussian" and model.precision is not None and model.log_likelihood is None
    return gaussian and len(used) in QUADRATURE_ORDERS


def measure_validity(sample: EncodedSample, used: list[int], budget: Budget) -> Validity:
    """`vs.theory.validity` at posterior means, of the latents in use; the others are held at the prior mean."""
    base, spread = sample.prior_mean.double().cpu(), sample.prior_variance.double().cpu()
    if bool((base != base[:1]).any()) or bool((spread != spread[:1]).any()):
        raise Skipped("it needs a prior that is the same for all samples")
    # a third derivative costs 8 decodings; four contractions of them in all directions
    points = affordable_points(sample, 8 * 4 * len(used) ** 2 + NODES, budget)
    index, mean = torch.tensor(used), sample.random_subset(points).mean.double().cpu()
    precision = sample.model.precision
    assert precision is not None

    def decoder(v: torch.Tensor) -> torch.Tensor:
        return sample.decode(base[0].to(v).expand(len(v), -1).index_copy(1, index, v))

    try:
        prior = Normal(base[0, index], spread[0, index])
        with torch.enable_grad():  # without it, second derivatives of some activations are not implemented
            found = validity(decoder, mean[:, index], precision=float(precision), prior=prior)
    except (RuntimeError, NotImplementedError, InputError) as error:
        raise could_not_differentiate(error) from None
    return replace(_detached(found), expansion=_detached(found.expansion))


def _detached(values: T) -> T:
    """A dataclass without the graphs of its tensors."""
    tensors: dict[str, Any] = {
        f.name: v.detach() for f in fields(values) if isinstance(v := getattr(values, f.name), torch.Tensor)
    }
    return replace(values, **tensors)


# findings about the data, the loss of training and scaled codes


def sigmoid_twice(found: Measurements) -> Finding | None:
    traces = found.sigmoids
    if traces is None:
        return None
    if traces.decoder:
        evidence = (
            f"All outputs are between {traces.low:.2f} and {traces.high:.2f}: sigmoids of numbers between 0 and 1. "
            f"With one sigmoid less, log p(x|z) changes by {traces.gain:+.3g} nats."
        )
        advice = "Apply the sigmoid once: remove it from the decoder's last layer or from decode. "
        advice += (
            "Training used it once, so nothing has to be trained again."
            if traces.gain > 0
            else "Training applied it twice too: train again."
        )
    else:
        evidence = (
            "Outputs are almost all 0 or 1, and x agree better with the sigmoids of these probabilities, by "
            f"{traces.gain:.3g} nats: the loss took probabilities for logits."
        )
        advice = (
            "Use F.binary_cross_entropy with probabilities, or F.binary_cross_entropy_with_logits with a decoder that "
            "has no sigmoid; then train again."
        )
    return Finding(
        "sigmoid-twice",
        "error",
        "The sigmoid is applied twice.",
        evidence,
        advice,
        'F.binary_cross_entropy_with_logits(logits, x, reduction="none").flatten(1).sum(1)  # and no sigmoid in decode',
    )


def sampling_noise(found: Measurements) -> Finding | None:
    noise = found.noise_of_draws
    if noise is None or not found.elbo_trained or not (noise.is_squared or noise.is_scaled):
        return None
    if noise.is_squared:
        evidence = (
            "Draws with the variance in place of the standard deviation satisfy the conditions of an optimum: expected "
            f"slopes of log p(x|z) are {noise.squared.typical:.2f} times those of that loss (1 at its optimum), and "
            f"{noise.stated.typical:.3g} times those of the right one."
        )
        advice, code = "Draw with std = exp(0.5 * log_variance), then train again.", "std = (0.5 * log_variance).exp()"
    else:
        evidence = (
            f"Posteriors are {math.sqrt(noise.stated.typical):.2g} times as wide as log p(x|z) makes them, like those "
            f"of a KL of weight {amount(noise.stated.typical)}; but the means follow a weight of "
            f"{amount(noise.scaled.pull)}. Draws with less noise than the posteriors leave such a trace."
        )
        advice = (
            "Check that z = mean + std * torch.randn_like(std), without another factor (an epsilon_std below 1), and "
            "that KL and draws use the same std; then train again. If that is right, variances are changed on the way "
            "to encode: vs.audit of the loss tells which it is."
        )
        code = "z = mean + std * torch.randn_like(std)"
    return Finding(
        "sampling-noise",
        "error",
        "Training drew codes with other noise than the KL assumes.",
        evidence,
        advice,
        code,
    )


def _trained_with_its_variance(found: Measurements, clamp: Clamp) -> bool:
    """Whether a variance that is the same for all is that of training, and not one that was made up."""
    own, drawn, noise = found.reconstruction, found.noise, found.noise_of_draws
    if own is None or (noise is not None and noise.is_scaled) or clamp.value > LIMITS.far_from_prior:
        return False
    lost = 0.0 if drawn is None else own.given.explained - drawn.explained
    return lost <= LIMITS.lost_by_draws and own.given.dispersion <= LIMITS.dispersed


def clamped_variance(found: Measurements) -> Finding | None:
    """Variances at a lower bound that keeps them wider than their optimum, in a model that was trained with them."""
    clamp, noise = found.clamp, found.noise_of_draws
    if clamp is None or noise is None or not clamp.lower:
        return None
    weights = [float(noise.stated.weight[found.regime.used.index(k)]) for k in clamp.latents]
    widest = max(weights)
    if widest < LIMITS.clamped_weight or (clamp.constant and not _trained_with_its_variance(found, clamp)):
        return None
    return Finding(
        "clamped-variance",
        "warning",
        "Posterior variances are at a bound.",
        f"{clamp.share:.0%} of the variances in use are exactly {clamp.value:.3g} times that of the prior, and the "
        f"optimum is up to {times(widest)} narrower.",
        "Lower or remove the bound of the log-variance (a clamp, or a fixed variance), and train again."
        + (" With one variance for all, this is what a fixed variance does too." if clamp.constant else ""),
        "log_variance = log_variance.clamp(-20, 10)",
    )


def no_counts(found: Measurements) -> Finding | None:
    if found.not_counts is None:
        return None
    return Finding(
        "not-counts",
        "error",
        "x are not counts.",
        f"The likelihood is one of counts, and x are {found.not_counts}.",
        "Pass the raw counts, and train on them: log-normalised values have no place in a likelihood of counts.",
        "adata.X = adata.layers['counts']  # or wherever the raw counts are",
    )


def duplicates(found: Measurements) -> Finding | None:
    same = found.overlap
    if same is None or same.rows < 2:
        return None
    error = math.sqrt(max(same.expected * (1 - same.expected), 1e-12) * same.share / same.rows)
    if same.share - same.expected < max(LIMITS.duplicates, LIMITS.overfit_score * error):
        return None
    return Finding(
        "duplicates",
        "warning",
        "Some of x are among the training samples.",
        f"{same.rows} rows of x ({same.share:.0%}) are also rows of train=; of the training samples, "
        f"{same.expected:.0%} equal another one. What is measured on x says less of new samples.",
        "Split the data before training, by subject or time if rows belong together, and diagnose rows that were not "
        "trained on.",
    )


def scaling_factor(found: Measurements) -> Finding | None:
    """Codes that a diffusion model is trained on should have a standard deviation of about one."""
    image = found.latent_image
    if image is None or image.scaled is None:
        return None
    if isinstance(image.scaling, tuple):
        return _scaling_of_channels(image, image.scaling)
    scaled = float(image.scaled[1])
    if 1 / LIMITS.scaled_std <= scaled <= LIMITS.scaled_std:
        return None
    return Finding(
        "scaling-factor",
        "note" if image.scaling == 0.18215 else "warning",  # what diffusers declares if nobody has set it
        "The scaling factor does not fit these codes.",
        f"Codes times scaling_factor = {image.scaling:g} have a standard deviation of {scaled:.2g}; a diffusion model "
        "expects about 1.",
        "Set it to 1 / standard deviation of the codes before you train a model of the codes.",
        f"vae.register_to_config(scaling_factor={1 / image.total_std:.4g})",
    )


def _scaling_of_channels(image: LatentImage, scaling: tuple[float, ...]) -> Finding | None:
    """The same for models with latents_mean and latents_std."""
    assert image.scaled is not None
    centre, spread = image.scaled
    off = (spread > LIMITS.scaled_std) | (spread < 1 / LIMITS.scaled_std) | (centre.abs() > 1)
    if not bool(off.any()):
        return None
    means, stds = (", ".join(f"{v:.4g}" for v in values.tolist()) for values in (image.mean, image.std))
    return Finding(
        "scaling-factor",
        "note" if {*scaling} == {1.0} else "warning",  # what diffusers declares if nobody has set it
        "latents_mean and latents_std do not fit these codes.",
        f"Scaled with them, {int(off.sum())} of {len(off)} channels have a mean beyond ±1 or a standard deviation "
        f"beyond a factor of {LIMITS.scaled_std:g}; means are {float(centre.min()):.2g} to {float(centre.max()):.2g}, "
        f"standard deviations {float(spread.min()):.2g} to {float(spread.max()):.2g}.",
        "Set both to those of the codes before you train a model of the codes, or pass x as in training.",
        f"vae.register_to_config(latents_mean=[{means}], latents_std=[{stds}])",
    )
