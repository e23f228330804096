"""Collapse, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vaescope.regime.tally import Tally

NOTABLE = 0.01  # relative variance over samples: what the usual rule takes for an active latent


@dataclass(frozen=True)
class Collapse:
    """`none`, `partial`, `full`, or `repeats prior`: all latents follow u, and x adds nothing."""

    kind: str
    words: str


def judge_collapse(kinds: Sequence[str], tally: Tally) -> Collapse:
    """What the verdicts mean for the model as a whole."""
    used = sum(kind != "passive" for kind in kinds)
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
        "Full collapse: every posterior is its prior, so the decoder can know nothing of x (lower β, raise the "
        "decoder's precision, or warm up).",
    )


def _follows_u(tally: Tally) -> bool:
    """Whether the prior itself differs between samples, in mean or in variance."""
    scale = tally.prior_variance.mean
    by_mean = tally.prior_mean.variance > NOTABLE * scale
    by_variance = tally.prior_variance.variance > NOTABLE * scale**2
    return bool((by_mean | by_variance).any())
