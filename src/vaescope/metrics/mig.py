"""Mutual information gaps: is every factor in one latent (MIG), and every latent about one factor (MIG-sup)?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from vaescope.errors import InputError
from vaescope.metrics.information import binned_cautions, check_estimator, information
from vaescope.metrics.inputs import Data, alive, data
from vaescope.metrics.score import Parts, Score


def mig(
    codes: object,
    factors: object,
    *,
    estimator: str = "binned",
    binning: str = "width",
    discrete: bool | Sequence[bool] | None = None,
) -> Score:
    """Gap between the two latents that know most of a factor, over the factor's entropy (Chen et al. 2018).

    High only if one latent holds each factor alone. A latent may hold several factors unpunished:
    see `mig_sup` for the reverse.

    >>> v = np.random.default_rng(0).integers(0, 4, (1000, 2))
    >>> bool(mig(v, v).score > 0.98), bool(mig(np.hstack([v, v]), v).score < 0.01)  # a copy, two copies
    (True, True)
    """
    check_estimator(estimator, binning)
    arrays = data(codes, factors, discrete=discrete)
    compute = partial(_mig, estimator=estimator, binning=binning)
    return Score(
        "MIG",
        compute(arrays),
        partial(binned_cautions, arrays, estimator=estimator, binning=binning),
        compute,
        arrays,
    )


def mig_sup(
    codes: object,
    factors: object,
    *,
    active: Sequence[bool] | np.ndarray | None = None,
    estimator: str = "binned",
    binning: str = "width",
    discrete: bool | Sequence[bool] | None = None,
) -> Score:
    """Gap between the two factors that a latent knows most of, averaged over active latents (Li et al. 2020).

    `active` says which latents count; by default every latent that varies. `per_factor` is the mean over
    the latents whose best factor it is.
    """
    check_estimator(estimator, binning)
    arrays = data(codes, factors, discrete=discrete)
    compute = partial(_mig_sup, active=_active(active, arrays), estimator=estimator, binning=binning)
    return Score(
        "MIG-sup",
        compute(arrays),
        partial(binned_cautions, arrays, estimator=estimator, binning=binning),
        compute,
        arrays,
    )


def top_gap(relevance: np.ndarray) -> np.ndarray:
    """Largest less second largest down every column; the second is 0 where there is only one row."""
    ordered = np.sort(relevance, axis=0)[::-1]
    return ordered[0] - (ordered[1] if len(ordered) > 1 else 0.0)


def by_best_factor(per_latent: np.ndarray, relevance: np.ndarray, which: np.ndarray) -> np.ndarray:
    """The mean of a value per latent over the latents whose best factor it is; NaN where there are none."""
    best = relevance.argmax(1)
    picks = [per_latent[which & (best == k)] for k in range(relevance.shape[1])]
    return np.array([pick.mean() if pick.size else np.nan for pick in picks])


def _mig(arrays: Data, estimator: str, binning: str) -> Parts:
    shared = information(arrays, estimator=estimator, binning=binning)
    per_factor = top_gap(shared.normalised)
    return Parts({"mig": float(per_factor.mean())}, per_factor, {"mutual_information": shared.mutual})


def _mig_sup(arrays: Data, active: np.ndarray, estimator: str, binning: str) -> Parts:
    share = information(arrays, estimator=estimator, binning=binning).normalised
    per_latent = top_gap(share.T)
    score = float(per_latent[active].mean()) if active.any() else 0.0
    return Parts({"mig_sup": score}, by_best_factor(per_latent, share, active), {"per_latent": per_latent})


def _active(active: Sequence[bool] | np.ndarray | None, arrays: Data) -> np.ndarray:
    if active is None:
        return alive(arrays.codes)
    chosen = np.asarray(active)
    if chosen.shape != (arrays.latents,) or chosen.dtype != bool:
        raise InputError(f"active must hold True or False for each of {arrays.latents} latents, got {active!r}.")
    return chosen
