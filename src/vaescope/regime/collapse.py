"""Posterior collapse: which kind, and what it means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vaescope.regime.statistics import THRESHOLD_FACTORS, PosteriorStatistics

LARGEST_DIFFERENCE = 0.05  # mean square of μ - μ†, as a share of the variance of μ, if latents repeat the prior
LITTLE_INFORMATION = 5  # times passive_kl: what x may add to such a latent
VARYING_PRIOR = 0.01  # relative variance over samples; also the threshold of the active-units rule


@dataclass(frozen=True)
class Collapse:
    """`none`, `partial`, `full`, or `repeats prior`: all latents follow p(z|u), and x adds almost nothing."""

    kind: str
    description: str


def judge_collapse(kinds: Sequence[str], statistics: PosteriorStatistics) -> Collapse:
    """What the verdicts about latents mean for the model."""
    used = sum(kind != "passive" for kind in kinds)
    if used and _nearly_repeats_prior(statistics):
        return Collapse(
            "repeats prior",
            f"Nearly collapsed, although latents vary: p(z|u) explains more than {1 - LARGEST_DIFFERENCE:.0%} of their "
            "variance over the data. They repeat the auxiliary input, and x adds little.",
        )
    if used == len(kinds):
        return Collapse("none", "No latent is passive.")
    if used:
        return Collapse(
            "partial",
            f"{len(kinds) - used} of {len(kinds)} latents stay at their prior: superfluous if reconstructions are good "
            "enough, a partial collapse if not (then lower β or raise the decoder's precision).",
        )
    if _prior_varies(statistics):
        return Collapse(
            "repeats prior",
            "Collapsed, although latents vary: they vary only as p(z|u) does. They repeat the auxiliary input, and x "
            "adds nothing.",
        )
    return Collapse(
        "full",
        "Full collapse: no posterior differs from its prior, so the decoder gets no information about x (sum the "
        "loss over pixels if it averages over them, lower β, or raise the decoder's precision).",
    )


def _nearly_repeats_prior(statistics: PosteriorStatistics) -> bool:
    """Whether each latent follows its varying prior, and x adds little to any of them."""
    limits, information = statistics.thresholds, statistics.information.mean
    follows = statistics.difference.second <= LARGEST_DIFFERENCE * statistics.mean.variance
    passive = information <= limits.passive_kl
    little = information <= LITTLE_INFORMATION * limits.passive_kl
    active = statistics.active[THRESHOLD_FACTORS.index(1.0)]
    never_active = active <= limits.mixed_share * statistics.samples
    repeats = (follows & little & never_active) | (passive & never_active)
    return _prior_varies(statistics) and bool(repeats.all())


def _prior_varies(statistics: PosteriorStatistics) -> bool:
    """Whether the prior differs between samples, in mean or in variance."""
    scale = statistics.prior_variance.mean
    by_mean = statistics.prior_mean.variance > VARYING_PRIOR * scale
    by_variance = statistics.prior_variance.variance > VARYING_PRIOR * scale**2
    return bool((by_mean | by_variance).any())
