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
from vaescope.products.diagnose.noise import Noise, VarianceScale
from vaescope.products.diagnose.reconstruction import Aggregate, Generalisation, Reconstruction
from vaescope.regime import Regime
from vaescope.report.wording import interval


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
    other_sources: OtherSources | None = None
    """What p(x|z) knows of x other than through z."""
    weights: Weights | None = None
    """The weight of the KL that posteriors imply, where the likelihood is a function of the caller."""
    reconstruction: Reconstruction | None = None
    aggregate: Aggregate | None = None
    generalisation: Generalisation | None = None
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
