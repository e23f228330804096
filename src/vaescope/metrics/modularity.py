"""Modularity and explicitness: is every latent about one factor, and can every class be read off linearly?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from vaescope.metrics.cautions import cautions
from vaescope.metrics.information import information
from vaescope.metrics.inputs import Data, alive, data
from vaescope.metrics.linear import one_against_rest_auc
from vaescope.metrics.mig import by_best_factor
from vaescope.metrics.score import Parts, Score


class ModularityExplicitness(Score):
    """Both scores of Ridgeway and Mozer."""

    @property
    def modularity(self) -> float:
        return self.scores["modularity"]

    @property
    def explicitness(self) -> float:
        return self.scores["explicitness"]


def modularity_explicitness(
    codes: object, factors: object, *, discrete: bool | Sequence[bool] | None = None
) -> ModularityExplicitness:
    """Modularity and explicitness (Ridgeway & Mozer 2018); the latter needs classes, so continuous factors are cut.

    Modularity: 1 less the mean squared information about all but a latent's best factor, relative to that
    best one, averaged over latents that vary. It is high for a latent that knows next to nothing of one
    factor and nothing of the others: read it beside explicitness. Explicitness: held-out area under the ROC
    curve of a linear classifier, one class against the rest, averaged; 0.5 is guessing. `per_factor` is the
    explicitness.
    """
    arrays = data(codes, factors, discrete=discrete)
    notes = partial(cautions, arrays, classes=True)
    return ModularityExplicitness(
        "modularity, explicitness",
        _modularity_explicitness(arrays),
        notes,
        _modularity_explicitness,
        arrays,
        resamples=10,
        nulls=3,
    )


def modularity(mutual: np.ndarray) -> np.ndarray:
    """Per latent, from mutual information (d, k); a latent that knows nothing scores 0."""
    best = mutual.max(1)
    others = mutual.shape[1] - 1
    if others == 0:
        return (best > 0).astype(float)
    excess = (np.square(mutual).sum(1) - np.square(best)) / (np.square(np.where(best > 0, best, 1.0)) * others)
    return np.where(best > 0, 1 - excess, 0.0)


def _modularity_explicitness(arrays: Data) -> Parts:
    mutual = information(arrays).mutual
    per_latent, living = modularity(mutual), alive(arrays.codes)
    auc = one_against_rest_auc(arrays)
    scores = {
        "modularity": float(per_latent[living].mean()) if living.any() else 0.0,
        "explicitness": float(auc.mean()),
    }
    detail = {"per_latent": per_latent, "modularity_per_factor": by_best_factor(per_latent, mutual, living)}
    return Parts(scores, auc, detail)
