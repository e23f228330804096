"""Collapse, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vaescope.regime.statistics import LOOSER, Tally

MOVED = 0.05  # of the variance of means, at most, where x only touches up what u says
LITTLE = 5  # times passive_kl: what x may add to a latent then
NOTABLE = 0.01  # relative variance over samples: what the usual rule takes for an active latent


@dataclass(frozen=True)
class Collapse:
    """`none`, `partial`, `full`, or `repeats prior`: all latents follow u, and x adds nothing."""

    kind: str
    words: str


def judge_collapse(kinds: Sequence[str], tally: Tally) -> Collapse:
    """What the verdicts mean for the model as a whole."""
    used = sum(kind != "passive" for kind in kinds)
    if used and _only_touches_up(tally):
        return Collapse(
            "repeats prior",
            "Nearly collapsed although it does not look so: of all that the latents vary over the data, p(z|u) "
            f"varies more than {1 - MOVED:.0%} itself. They repeat what u says, and x adds little.",
        )
    if used == len(kinds):
        return Collapse("none", "No latent is passive.")
    if used:
        rest = len(kinds) - used
        return Collapse(
            "partial",
            f"The model leaves {rest} of {len(kinds)} latents at their prior: superfluous if it reconstructs as well "
            "as you need, a partial collapse if it does not (then lower β, raise the decoder's precision, or warm up).",
        )
    if _follows_u(tally):
        return Collapse(
            "repeats prior",
            "Collapsed although it need not look so: the latents vary over the data, but only as p(z|u) does. They "
            "repeat what u says, and x adds nothing.",
        )
    return Collapse(
        "full",
        "Full collapse: no posterior says more than its prior, so the decoder can know nothing of x (lower β, raise "
        "the decoder's precision, or warm up).",
    )


def _only_touches_up(tally: Tally) -> bool:
    """Whether every latent follows what its prior does with u, and x adds little to any."""
    moved = tally.moved.variance + tally.moved.mean**2
    follows = moved <= MOVED * tally.mean.variance
    passive = tally.told.mean <= tally.thresholds.passive_kl
    little = tally.told.mean <= LITTLE * tally.thresholds.passive_kl
    nowhere_active = tally.active[LOOSER.index(1.0)] <= tally.thresholds.mixed_share * tally.samples
    return _follows_u(tally) and bool(((follows & little & nowhere_active) | (passive & nowhere_active)).all())


def _follows_u(tally: Tally) -> bool:
    """Whether the prior itself differs between samples, in mean or in variance."""
    scale = tally.prior_variance.mean
    by_mean = tally.prior_mean.variance > NOTABLE * scale
    by_variance = tally.prior_variance.variance > NOTABLE * scale**2
    return bool((by_mean | by_variance).any())
