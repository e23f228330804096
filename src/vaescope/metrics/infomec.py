"""InfoMEC: modularity, explicitness and compactness in information, each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from vaescope.metrics.information import binned_cautions, check_estimator, significant_share
from vaescope.metrics.inputs import Data, data
from vaescope.metrics.linear import predictive_information
from vaescope.metrics.score import Parts, Score


class InfoMEC(Score):
    """Three scores of Hsu et al."""

    @property
    def modularity(self) -> float:
        return self.scores["modularity"]

    @property
    def explicitness(self) -> float:
        return self.scores["explicitness"]

    @property
    def compactness(self) -> float:
        return self.scores["compactness"]


def infomec(
    codes: object,
    factors: object,
    *,
    estimator: str = "binned",
    binning: str = "width",
    discrete: bool | Sequence[bool] | None = None,
) -> InfoMEC:
    """Modularity, explicitness, compactness (Hsu et al. 2023), each from 0 (chance) to 1.

    Modularity: the share of a latent's information that concerns its best factor, over latents that know any.
    Compactness: the share of a factor's information that its best latent holds. Both on mutual information
    beyond that of independent variables, relative to the factor's entropy. Explicitness: the share of a
    factor's uncertainty that a linear predictor removes, held out. `per_factor` is the compactness.
    """
    check_estimator(estimator, binning)
    arrays = data(codes, factors, discrete=discrete)
    compute = partial(_infomec, estimator=estimator, binning=binning)
    notes = partial(binned_cautions, arrays, estimator=estimator, binning=binning)
    return InfoMEC("InfoMEC", compute(arrays), notes, compute, arrays, resamples=10, nulls=3)


def _infomec(arrays: Data, estimator: str, binning: str) -> Parts:
    shared = significant_share(arrays, estimator=estimator, binning=binning)
    informative = shared.any(1)
    explicitness = predictive_information(arrays)
    by_latent, by_factor = above_even_share(shared[informative]), above_even_share(shared[informative].T)
    scores = {
        "modularity": float(by_latent.mean()) if informative.any() else 0.0,
        "explicitness": float(explicitness.mean()),
        "compactness": float(by_factor.mean()) if informative.any() else 0.0,
    }
    per_latent = np.full(arrays.latents, np.nan)
    per_latent[informative] = by_latent
    return Parts(scores, by_factor, {"per_latent": per_latent, "explicitness_per_factor": explicitness})


def above_even_share(relevance: np.ndarray) -> np.ndarray:
    """Per row, the largest entry's share, rescaled from 0 (all equal, or nothing) to 1 (all in one place)."""
    places = relevance.shape[1]
    total = relevance.sum(1)
    if places < 2:
        return (total > 0).astype(float)
    share = np.where(total > 0, relevance.max(1, initial=0) / np.where(total > 0, total, 1.0), 1 / places)
    return (share - 1 / places) / (1 - 1 / places)
