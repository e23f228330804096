"""Everything that was measured of a model, as the basis of findings, the page and the JSON file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from vaescope.diagnosis.aggregate import Aggregate
from vaescope.diagnosis.agreement import Agreement
from vaescope.diagnosis.elbo import ElboTerms, MarginalEstimate
from vaescope.diagnosis.gap import ElboGap
from vaescope.diagnosis.generalisation import Generalisation
from vaescope.diagnosis.geometry import Geometry
from vaescope.diagnosis.latent_image import LatentImage
from vaescope.diagnosis.layers import layer_rows
from vaescope.diagnosis.noise import Noise
from vaescope.diagnosis.reconstruction import Reconstruction
from vaescope.diagnosis.scales import VarianceScale
from vaescope.identification import Identifiability
from vaescope.metrics.evaluate import Evaluation
from vaescope.regime import Regime
from vaescope.theory.validity import Validity

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
    identifiability: Identifiability | None = None
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
            "identifiability": None if self.identifiability is None else self.identifiability.to_data(),
            "metrics": None if self.evaluation is None else self.evaluation.rows,
        }
