"""Modularity and explicitness: is every latent about one factor, and can every class be separated linearly?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from vaescope.metrics.information import pairwise_information
from vaescope.metrics.input_warnings import input_warnings
from vaescope.metrics.inputs import CodesAndFactors, is_varying, read_inputs
from vaescope.metrics.linear import one_against_rest_auc
from vaescope.metrics.mig import mean_by_best_factor
from vaescope.metrics.score import MetricValues, Score


class ModularityExplicitness(Score):
    """The two scores of Ridgeway & Mozer 2018."""

    @property
    def modularity(self) -> float:
        return self.scores["modularity"]

    @property
    def explicitness(self) -> float:
        return self.scores["explicitness"]


def modularity_explicitness(
    codes: object, factors: object, *, discrete: bool | Sequence[bool] | None = None
) -> ModularityExplicitness:
    """Modularity and explicitness (Ridgeway & Mozer 2018).

    Modularity: 1 - the mean squared information about all factors but the best one, relative to that about the best
    one, averaged over latents that vary. It is high even if a latent has very little information about a single factor,
    so read it together with explicitness. Explicitness: held-out area under the ROC curve of a linear classifier, one
    class against the rest, averaged; 0.5 is chance. Continuous factors are cut into classes. `per_factor` is the
    explicitness.

    Args:
        codes: (N, d).
        factors: (N, k).
        discrete: which factors are classes; by default those with few distinct values.
    """
    inputs = read_inputs(codes, factors, discrete=discrete)
    notes = partial(input_warnings, inputs, classes=True)
    return ModularityExplicitness(
        "modularity, explicitness",
        _modularity_explicitness(inputs),
        notes,
        _modularity_explicitness,
        inputs,
        resamples=10,
        shuffles=3,
    )


def modularity_per_latent(mutual: np.ndarray) -> np.ndarray:
    """Modularity of every latent from mutual information (d, k); 0 without any information."""
    best = mutual.max(1)
    others = mutual.shape[1] - 1
    if others == 0:
        return (best > 0).astype(float)
    excess = (np.square(mutual).sum(1) - np.square(best)) / (np.square(np.where(best > 0, best, 1.0)) * others)
    return np.where(best > 0, 1 - excess, 0.0)


def _modularity_explicitness(inputs: CodesAndFactors) -> MetricValues:
    mutual = pairwise_information(inputs).mutual
    per_latent, varying = modularity_per_latent(mutual), is_varying(inputs.codes)
    auc = one_against_rest_auc(inputs)
    scores = {
        "modularity": float(per_latent[varying].mean()) if varying.any() else 0.0,
        "explicitness": float(auc.mean()),
    }
    per_factor = mean_by_best_factor(per_latent, mutual, varying)
    return MetricValues(scores, auc, {"per_latent": per_latent, "modularity_per_factor": per_factor})
