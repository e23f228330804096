"""The usual rules for counting latents, beside ours: two know no prior but N(0, 1), one knows no mixtures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vaescope.regime.posteriors import Array
from vaescope.regime.statistics import Tally

UNIT_VARIANCE = 0.01  # Burda et al. 2016: variance of the mean over the data
USED_KL = 0.01  # nats, a common cut
FILTER = 0.1  # the margins of the variance filter of Bonheme & Grzes 2021


@dataclass(frozen=True, eq=False)
class Rivals:
    """What each rule looks at, per latent, and what it concludes."""

    variance_of_means: Array
    kl: Array
    mean_variance: Array
    variance_of_variances: Array

    @classmethod
    def of(cls, tally: Tally) -> Rivals:
        return cls(tally.mean.variance, tally.kl.mean, tally.variance.mean, tally.variance.variance)

    @property
    def active_units(self) -> list[str]:
        """Active units (Burda et al. 2016): Var_x(μ_j) > 0.01, whatever the prior's scale."""
        return ["active" if v > UNIT_VARIANCE else "passive" for v in self.variance_of_means]

    @property
    def kl_rule(self) -> list[str]:
        """Mean KL > 0.01: relative to the prior, but blind to mixtures."""
        return ["active" if v > USED_KL else "passive" for v in self.kl]

    @property
    def variance_filter(self) -> list[str]:
        """Mean of σ² near one is passive, near zero active (Bonheme & Grzes 2021); the prior is taken as N(0, 1)."""
        return [_filtered(m, v) for m, v in zip(self.mean_variance, self.variance_of_variances, strict=True)]

    def verdicts(self) -> dict[str, list[str]]:
        return {
            "active units": self.active_units,
            "KL > 0.01": self.kl_rule,
            "variance near 1": self.variance_filter,
        }

    def row(self, k: int) -> dict[str, Any]:
        return {name: verdict[k] for name, verdict in self.verdicts().items()}

    def disagreements(self, kind: list[str]) -> list[str]:
        """One line per rule and verdict, so that a wide model stays readable."""
        lines = []
        for name, verdict in self.verdicts().items():
            cases: dict[tuple[str, str], list[int]] = {}
            for k, (theirs, ours) in enumerate(zip(verdict, kind, strict=True)):
                if theirs != ours:
                    cases.setdefault((theirs, ours), []).append(k)
            lines += [
                f"{name} calls latents {', '.join(map(str, places))} {theirs}; relative to their prior they are {ours}."
                for (theirs, ours), places in cases.items()
            ]
        return lines


def _filtered(mean: np.floating[Any], variance: np.floating[Any]) -> str:
    if variance >= FILTER:
        return "mixed"
    if mean <= FILTER:
        return "active"
    return "passive" if abs(mean - 1) <= FILTER else "mixed"
