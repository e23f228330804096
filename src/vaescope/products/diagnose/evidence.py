"""Everything that was measured of a model, as the basis of findings, the page and the JSON file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from vaescope.analysis.agreement import Agreement
from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.gap import LARGEST_EXACT, ElboGap, affordable_points
from vaescope.analysis.geometry import Geometry
from vaescope.analysis.identification import Identification
from vaescope.analysis.likelihood import ElboTerms, MarginalEstimate
from vaescope.core.errors import InputError, Skipped, could_not_differentiate
from vaescope.distributions import Normal
from vaescope.inference.expansion import NODES, Expansion, Validity, validity
from vaescope.metrics.evaluate import Evaluation
from vaescope.products.diagnose.data import Aggregate, Generalisation, Reconstruction
from vaescope.products.diagnose.latent_image import LatentImage
from vaescope.products.diagnose.scales import Noise, VarianceScale
from vaescope.regime import Regime
from vaescope.report.budget import Budget
from vaescope.runs.files import json_data


def layer_rows(regime: Regime, groups: tuple[tuple[str, int], ...]) -> list[dict[str, object]]:
    """A row per layer, in the order of the model: its latents, those in use, and its KL.

    Args:
        regime: of all latents.
        groups: names and sizes of the layers.
    """
    ends = np.cumsum([size for _, size in groups])
    used, rows = set(regime.used), []
    for (name, size), end in zip(groups, ends, strict=True):
        latents = range(int(end) - size, int(end))
        kl = float(np.sum(regime.kl[latents.start : latents.stop]))
        share = kl / max(float(np.sum(regime.kl)), 1e-300)
        rows.append(
            {
                "layer": name,
                "latents": size,
                "in use": sum(k in used for k in latents),
                "KL": kl,
                "KL per latent": kl / size,
                "share of KL": share,
            }
        )
    return rows


NARROW = 0.1  # largest posterior over prior variance of a near-deterministic model
AS_PREDICTED = 1.25  # largest factor between the variances of a near-deterministic model and Eq. 12


class NearDeterministic(NamedTuple):
    """Whether the theory of the near-deterministic limit applies to a model."""

    applies: bool
    reason: str


@dataclass(frozen=True, eq=False)
class Evidence:
    """All measurements; None for those that were skipped, with the reason in `skipped`."""

    regime: Regime
    groups: tuple[tuple[str, int], ...] = ()
    """Names and sizes of the layers of a hierarchical VAE."""
    latent_image: LatentImage | None = None
    """Statistics of channels and positions, if latents form an image."""
    scale: VarianceScale | None = None
    initial_weights: bool = False
    """Whether weights are as PyTorch initialises them."""
    data_range: tuple[float, float] | None = None
    """Smallest and largest x, if x is outside the range of its likelihood."""
    sizes: tuple[int, int] | None = None
    """Numbers per sample that the decoder returns and that x has, if they differ."""
    elbo_trained: bool = True
    """Whether training maximised the ELBO of the posteriors that `encode` returns."""
    generative: bool = True
    """Whether the prior was meant to be sampled from: not if the likelihood is unknown."""
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
    skipped: dict[str, str] = field(default_factory=dict)

    def latents(self) -> list[dict[str, object]]:
        """A row per latent, or per channel of a latent image, highest KL first."""
        if self.latent_image is not None:
            return self.latent_image.rows()
        if self.groups:
            return layer_rows(self.regime, self.groups)
        return [self._latent(k) for k in self.regime.latents_of_kind("active", "mixed", "passive")]

    def _latent(self, k: int) -> dict[str, object]:
        regime = self.regime
        row: dict[str, object] = {"latent": k, "kind": regime.kind[k]}
        if self.identifiability is not None:
            row["identified as"] = self.identifiability.kind[k]
        numbers = {
            "KL": regime.kl,
            "variance ratio": regime.variance_ratio,
            "column norm": regime.column_norm,
            "σ² / Eq. 12": self.eq12,
            "effect": regime.effect,
        }
        known = {name: float(values[k]) for name, values in numbers.items() if values is not None}
        return row | {name: None if math.isnan(value) else value for name, value in known.items()}

    def near_deterministic(self) -> NearDeterministic | None:
        """Whether posteriors are narrow and as Eq. 12 predicts; None if that is unknown."""
        used = self.regime.used
        if self.eq12 is None or not used or self.regime.samples < 2:
            return None
        ratio = float(np.median([self.eq12[k] for k in used]))
        narrow = float(np.median([self.regime.variance_ratio[k] for k in used]))
        reason = f"posterior variances in use are {narrow:.2g} times the prior's and {ratio:.2f} times those of Eq. 12"
        return NearDeterministic(narrow <= NARROW and 1 / AS_PREDICTED <= ratio <= AS_PREDICTED, reason)

    def to_data(self) -> dict[str, object]:
        near = self.near_deterministic()
        return {
            "latents": self.latents(),
            "skipped": self.skipped,
            "latent_image": None if self.latent_image is None else self.latent_image.to_data(),
            "geometry": None if self.geometry is None else self.geometry.to_data(),
            "reconstruction": None if self.reconstruction is None else self.reconstruction.to_data(),
            "aggregate": None if self.aggregate is None else self.aggregate.to_data(),
            "generalisation": None if self.generalisation is None else self.generalisation.to_data(),
            "noise": None if self.noise is None else self.noise.to_data(),
            "elbo": None if self.elbo is None else self.elbo.to_data(),
            "gap": None if self.gap is None else self.gap.to_data(),
            "validity": None if self.validity is None else self.validity.to_data(),
            "marginal": None if self.marginal is None else self.marginal.to_data(),
            "near_deterministic": None if near is None else near.applies,
            "stability": None if self.stability is None else self.stability.score,
            "identifiability": None if self.identifiability is None else json_data(self.identifiability.content()),
            "metrics": None if self.evaluation is None else self.evaluation.rows,
        }


WIDTH = 2.0  # standard errors of every interval


def interval(value: float, stderr: float, unit: str = "") -> str:
    """A number with two standard errors, rounded to their leading digits.

    >>> interval(-12.3456, 0.0412), interval(3.0, float("nan"))
    ('-12.35 ± 0.08', '3')
    """
    if not math.isfinite(stderr) or stderr <= 0:
        return f"{value:.4g}{unit}"
    error = WIDTH * stderr
    digits = max(0, min(6, -math.floor(math.log10(error / 2))))
    return f"{value:.{digits}f} ± {error:.{digits}f}{unit}"


def bound_rows(evidence: Evidence) -> list[tuple[str, str, str]]:
    """Name, value and meaning of each quantity that is known; empty without a likelihood."""
    terms = evidence.elbo
    if terms is None:
        return []
    rows = [
        ("ELBO", interval(*terms.mean("elbo")), _per_number(evidence, terms)),
        ("rate", interval(*terms.mean("rate")), "KL of posteriors from the prior: what the codes cost"),
        (
            "distortion",
            interval(*terms.mean("distortion")),
            "-log p(x|z) of reconstructions: what they miss",
        ),
    ]
    gap = _gap(evidence)
    if gap is not None:
        value, error = terms.mean("elbo")
        total = math.hypot(error, gap[1]) if math.isfinite(gap[1]) else error
        rows.insert(0, ("log p(x)", interval(value + gap[0], total), "the ELBO and the gap together"))
        rows.insert(2, ("gap", interval(*gap), "log p(x) - ELBO, what a better posterior could gain"))
    return rows


def _per_number(evidence: Evidence, terms: ElboTerms) -> str:
    """Bits per number of discrete data; densities of continuous data may have any sign."""
    meaning = "what training maximises, with β = 1"
    return f"{meaning}; {terms.bits_per_number:.3g} bits per number" if evidence.likelihood == "bernoulli" else meaning


def _gap(evidence: Evidence) -> tuple[float, float] | None:
    """Mean of log p(x) - ELBO, and its standard error."""
    if evidence.gap is not None:
        lost = evidence.gap.log_marginal - evidence.gap.elbo
        return float(lost.mean()), float(lost.std() / len(lost) ** 0.5) if len(lost) > 1 else math.nan
    return None if evidence.marginal is None else evidence.marginal.mean


T = TypeVar("T", Validity, Expansion)
TRIPLE = 8  # decodings that a third derivative costs
PASSES = 4  # contractions of third derivatives in all directions


def validity_applies(sample: EncodedSample, used: list[int]) -> bool:
    """Only a Gaussian likelihood of known precision has a near-deterministic limit; a few latents have a quadrature."""
    model = sample.model
    gaussian = model.likelihood == "gaussian" and model.precision is not None and model.log_likelihood is None
    return gaussian and 0 < len(used) <= LARGEST_EXACT


def measure_validity(sample: EncodedSample, used: list[int], budget: Budget) -> Validity:
    """`vs.theory.validity` at posterior means, of the latents in use; the others are held at the prior mean."""
    base, spread = sample.prior_mean.double().cpu(), sample.prior_variance.double().cpu()
    if bool((base != base[:1]).any()) or bool((spread != spread[:1]).any()):
        raise Skipped("it needs a prior that is the same for all samples")
    points = affordable_points(sample, TRIPLE * PASSES * len(used) ** 2 + NODES, budget)
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
