"""Common rules for counting active latents, for comparison: two assume a N(0, 1) prior, one ignores mixtures."""

from __future__ import annotations

from dataclasses import dataclass

from vaescope.regime.posteriors import Array
from vaescope.regime.statistics import PosteriorStatistics

UNIT_VARIANCE = 0.01  # Burda et al. 2016: variance of the mean over the data
USED_KL = 0.01  # nats, a common threshold
FILTER_MARGIN = 0.1  # of the variance filter of Bonheme & Grzes 2021


@dataclass(frozen=True, eq=False)
class BaselineRules:
    """What each rule measures per latent, and its verdicts."""

    variance_of_means: Array
    kl: Array
    mean_variance: Array
    variance_of_variances: Array

    @classmethod
    def of(cls, statistics: PosteriorStatistics) -> BaselineRules:
        variance = statistics.variance
        return cls(statistics.mean.variance, statistics.kl.mean, variance.mean, variance.variance)

    @property
    def active_units(self) -> list[str]:
        """Active units (Burda et al. 2016): Var_x(μ_j) > 0.01, whatever the scale of the prior."""
        return ["active" if v > UNIT_VARIANCE else "passive" for v in self.variance_of_means]

    @property
    def kl_rule(self) -> list[str]:
        """Mean KL > 0.01: relative to the prior, but without mixtures."""
        return ["active" if v > USED_KL else "passive" for v in self.kl]

    @property
    def variance_filter(self) -> list[str]:
        """Passive if the mean of σ² is near one, active if near zero (Bonheme & Grzes 2021); assumes N(0, 1)."""
        pairs = zip(self.mean_variance, self.variance_of_variances, strict=True)
        return [_filter_verdict(float(mean), float(variance)) for mean, variance in pairs]

    def verdicts(self) -> dict[str, list[str]]:
        return {
            "active units": self.active_units,
            "KL > 0.01": self.kl_rule,
            "variance near 1": self.variance_filter,
        }

    def row(self, k: int) -> dict[str, str]:
        """Verdicts about one latent."""
        return {name: verdict[k] for name, verdict in self.verdicts().items()}

    def disagreements(self, kind: list[str]) -> list[str]:
        """One sentence per rule and pair of verdicts, so that wide models stay readable."""
        lines = []
        for name, verdict in self.verdicts().items():
            cases: dict[tuple[str, str], list[int]] = {}
            for k, (theirs, ours) in enumerate(zip(verdict, kind, strict=True)):
                if theirs != ours:
                    cases.setdefault((theirs, ours), []).append(k)
            lines += [
                f"{name} calls latents {', '.join(map(str, latents))} {theirs}; relative to their prior they are "
                f"{ours}."
                for (theirs, ours), latents in cases.items()
            ]
        return lines


def _filter_verdict(mean: float, variance: float) -> str:
    if variance >= FILTER_MARGIN:
        return "mixed"
    if mean <= FILTER_MARGIN:
        return "active"
    return "passive" if abs(mean - 1) <= FILTER_MARGIN else "mixed"
