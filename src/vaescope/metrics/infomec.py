"""InfoMEC: modularity, explicitness and compactness, measured by information."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from vaescope.metrics.information import check_estimator, information_warnings, significant_information
from vaescope.metrics.inputs import CodesAndFactors, read_inputs
from vaescope.metrics.linear import predictive_information
from vaescope.metrics.score import MetricValues, Score


class InfoMEC(Score):
    """The three scores of Hsu et al. 2023."""

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
    """Modularity, explicitness and compactness (Hsu et al. 2023), each from 0 (chance) to 1.

    Modularity is the share of a latent's information that is about its best factor, averaged over informative latents.
    Compactness is the share of the information about a factor that is in its best latent. Both use significant mutual
    information, relative to the factor's entropy. Explicitness is the share of a factor's uncertainty that a linear
    predictor removes on held-out samples. `per_factor` is the compactness.

    Args:
        codes: (N, d).
        factors: (N, k).
        estimator: `binned` (counts in 20 bins) or `neighbours` (nearest neighbours: slower, nearly unbiased).
        binning: `width` (bins of equal width) or `mass` (bins with equally many samples).
        discrete: which factors are classes; by default those with few distinct values.
    """
    check_estimator(estimator, binning)
    inputs = read_inputs(codes, factors, discrete=discrete)
    compute = partial(_infomec, estimator=estimator, binning=binning)
    notes = partial(information_warnings, inputs, estimator=estimator, binning=binning)
    return InfoMEC("InfoMEC", compute(inputs), notes, compute, inputs, resamples=10, shuffles=3)


def _infomec(inputs: CodesAndFactors, estimator: str, binning: str) -> MetricValues:
    share = significant_information(inputs, estimator=estimator, binning=binning)
    informative = share.any(1)
    explicitness = predictive_information(inputs)
    modularity, compactness = top_share(share[informative]), top_share(share[informative].T)
    scores = {
        "modularity": float(modularity.mean()) if informative.any() else 0.0,
        "explicitness": float(explicitness.mean()),
        "compactness": float(compactness.mean()) if informative.any() else 0.0,
    }
    per_latent = np.full(inputs.latents, np.nan)
    per_latent[informative] = modularity
    return MetricValues(scores, compactness, {"per_latent": per_latent, "explicitness_per_factor": explicitness})


def top_share(relevance: np.ndarray) -> np.ndarray:
    """Share of the largest entry of every row, rescaled to 0 for equal entries (or zeros) and 1 for a single entry."""
    width = relevance.shape[1]
    total = relevance.sum(1)
    if width < 2:
        return (total > 0).astype(float)
    share = np.where(total > 0, relevance.max(1, initial=0) / np.where(total > 0, total, 1.0), 1 / width)
    return (share - 1 / width) / (1 - 1 / width)
