"""Mutual information gaps: is every factor in one latent (MIG), and is every latent about one factor (MIG-sup)?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from vaescope import validation
from vaescope.metrics.information import check_estimator, information_warnings, pairwise_information
from vaescope.metrics.inputs import CodesAndFactors, is_varying, read_inputs
from vaescope.metrics.score import MetricValues, Score


def mig(
    codes: object,
    factors: object,
    *,
    estimator: str = "binned",
    binning: str = "width",
    discrete: bool | Sequence[bool] | None = None,
) -> Score:
    """Gap between the two latents with the most information about a factor, over its entropy (Chen et al. 2018).

    High only if every factor is encoded by a single latent. A latent that encodes several factors is not penalised; see
    `mig_sup`.

    Args:
        codes: (N, d).
        factors: (N, k).
        estimator: `binned` (counts in 20 bins) or `neighbours` (nearest neighbours: slower, nearly unbiased).
        binning: `width` (bins of equal width) or `mass` (bins with equally many samples).
        discrete: which factors are classes; by default those with few distinct values.

    >>> v = np.random.default_rng(0).integers(0, 4, (1000, 2))
    >>> bool(mig(v, v).score > 0.98), bool(mig(np.hstack([v, v]), v).score < 0.01)  # one copy, two copies
    (True, True)
    """
    check_estimator(estimator, binning)
    inputs = read_inputs(codes, factors, discrete=discrete)
    compute = partial(_mig, estimator=estimator, binning=binning)
    notes = partial(information_warnings, inputs, estimator=estimator, binning=binning)
    return Score("MIG", compute(inputs), notes, compute, inputs)


def mig_sup(
    codes: object,
    factors: object,
    *,
    active: Sequence[bool] | np.ndarray | None = None,
    estimator: str = "binned",
    binning: str = "width",
    discrete: bool | Sequence[bool] | None = None,
) -> Score:
    """Gap between the two factors that a latent is most informative about, averaged over latents (Li et al. 2020).

    `per_factor` is the mean over the latents that are most informative about the factor.

    Args:
        codes: (N, d).
        factors: (N, k).
        active: which latents to average over; by default all that vary.
        estimator: `binned` (counts in 20 bins) or `neighbours` (nearest neighbours: slower, nearly unbiased).
        binning: `width` (bins of equal width) or `mass` (bins with equally many samples).
        discrete: which factors are classes; by default those with few distinct values.
    """
    check_estimator(estimator, binning)
    inputs = read_inputs(codes, factors, discrete=discrete)
    mask = is_varying(inputs.codes) if active is None else validation.latent_mask(active, inputs.latents)
    compute = partial(_mig_sup, active=mask, estimator=estimator, binning=binning)
    notes = partial(information_warnings, inputs, estimator=estimator, binning=binning)
    return Score("MIG-sup", compute(inputs), notes, compute, inputs)


def top_gap(relevance: np.ndarray) -> np.ndarray:
    """Largest minus second largest entry of every column; a single row is compared with 0."""
    ordered = np.sort(relevance, axis=0)[::-1]
    return ordered[0] - (ordered[1] if len(ordered) > 1 else 0.0)


def mean_by_best_factor(per_latent: np.ndarray, relevance: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Mean of a value per latent over the latents whose most relevant factor this is; NaN if there are none."""
    best = relevance.argmax(1)
    groups = [per_latent[mask & (best == k)] for k in range(relevance.shape[1])]
    return np.array([group.mean() if group.size else np.nan for group in groups])


def _mig(inputs: CodesAndFactors, estimator: str, binning: str) -> MetricValues:
    found = pairwise_information(inputs, estimator=estimator, binning=binning)
    per_factor = top_gap(found.normalised)
    return MetricValues({"mig": float(per_factor.mean())}, per_factor, {"mutual_information": found.mutual})


def _mig_sup(inputs: CodesAndFactors, active: np.ndarray, estimator: str, binning: str) -> MetricValues:
    share = pairwise_information(inputs, estimator=estimator, binning=binning).normalised
    per_latent = top_gap(share.T)
    score = float(per_latent[active].mean()) if active.any() else 0.0
    per_factor = mean_by_best_factor(per_latent, share, active)
    return MetricValues({"mig_sup": score}, per_factor, {"per_latent": per_latent})
