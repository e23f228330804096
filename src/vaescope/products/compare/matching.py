"""Which latents of one model are which of another: one by one, and as subspaces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist, pdist

from vaescope.metrics.correlation import best_matching, held_out_r2, pearson_correlations
from vaescope.metrics.inputs import CodesAndFactors, standardise

SHARED = 0.9  # canonical correlation of a direction that both models have
KERNEL_SAMPLES = 1000  # on which non-linear predictions are fitted and scored, at most
RIDGE = 1e-2


@dataclass(frozen=True)
class MatchedLatent:
    """A latent of the first model with its match in the second."""

    first: int
    second: int | None
    """None if the second model has fewer latents in use."""
    correlation: float
    """Signed Pearson correlation with the match."""
    r2: float
    """Share of variance that a linear function of the match explains, held out."""
    nonlinear_r2: float
    """Of a smooth function of the match, held out; at least the linear one."""
    r2_of_all: float
    """Of a linear function of all latents of the second model."""
    nonlinear_r2_of_all: float


@dataclass(frozen=True, eq=False)
class MatchedLatents:
    """The latents in use of two models."""

    names: tuple[str, str]
    latents: list[MatchedLatent]
    """Highest correlation first."""
    canonical: np.ndarray
    """Canonical correlations of the two sets of latents in use, highest first."""

    @property
    def shared(self) -> int:
        """Directions that both models have, whatever their axes: canonical correlations of at least 0.9."""
        return int((self.canonical >= SHARED).sum())

    def rows(self) -> list[dict[str, object]]:
        """A row per latent in use of the first model."""
        first, second = self.names
        return [
            {
                f"latent of {first}": m.first,
                f"latent of {second}": m.second,
                "correlation": m.correlation,
                "linear R²": m.r2,
                "non-linear R²": m.nonlinear_r2,
                "linear R², all latents": m.r2_of_all,
                "non-linear R², all latents": m.nonlinear_r2_of_all,
            }
            for m in self.latents
        ]


@dataclass(frozen=True, eq=False)
class UsedCodes:
    """Posterior means (N, u) of the latents in use."""

    name: str
    latents: list[int]
    values: np.ndarray


def match_latents(first: UsedCodes, second: UsedCodes) -> MatchedLatents:
    """Match the latents of two models of the same samples by their correlations."""
    assignment = _assign(first.values, second.values)
    matches = [_matched(first, second, k, int(assignment[k])) for k in range(len(first.latents))]
    matches.sort(key=lambda m: (-abs(m.correlation), m.first))
    return MatchedLatents((first.name, second.name), matches, canonical_correlations(first.values, second.values))


def _assign(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The latent of the second model that is matched to each of the first; -1 for none."""
    if not first.shape[1] or not second.shape[1]:
        return np.full(first.shape[1], -1)
    return best_matching(pearson_correlations(second, first))[1]


def _matched(first: UsedCodes, second: UsedCodes, k: int, match: int) -> MatchedLatent:
    code, everything = first.values[:, [k]], second.values
    r2_of_all, smooth_of_all = _both_r2(everything, code)
    if match < 0:
        return MatchedLatent(first.latents[k], None, 0.0, 0.0, 0.0, r2_of_all, smooth_of_all)
    partner = everything[:, [match]]
    correlation = float((standardise(partner) * standardise(code)).mean())
    return MatchedLatent(
        first.latents[k], second.latents[match], correlation, *_both_r2(partner, code), r2_of_all, smooth_of_all
    )


def _both_r2(codes: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Held-out R² of a linear and of a smooth function; 0 at least."""
    if not codes.shape[1]:
        return 0.0, 0.0
    linear = _held_out(codes, target)
    return linear, max(linear, _smooth_r2(codes[:KERNEL_SAMPLES], target[:KERNEL_SAMPLES, 0]))


def _held_out(codes: np.ndarray, target: np.ndarray) -> float:
    first, second = CodesAndFactors(codes, target, (False,)).halves
    return max(0.0, float((held_out_r2(first, second)[0] + held_out_r2(second, first)[0]) / 2))


def _smooth_r2(codes: np.ndarray, target: np.ndarray) -> float:
    """Held-out R² of kernel ridge regression, with the median distance as bandwidth."""
    inputs, middle = standardise(codes), len(codes) // 2
    width = float(np.median(pdist(inputs[:200]))) or 1.0
    kernel = np.exp(-0.5 * cdist(inputs, inputs[:middle], "sqeuclidean") / width**2)
    centre = target[:middle].mean()
    weights = np.linalg.solve(kernel[:middle] + RIDGE * np.eye(middle), target[:middle] - centre)
    residual = target[middle:] - centre - kernel[middle:] @ weights
    total = float(np.square(target[middle:] - centre).mean())
    return max(0.0, 1 - float(np.square(residual).mean()) / total) if total > 0 else 0.0


def canonical_correlations(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Canonical correlations of two sets of codes, highest first: 1 for directions that both contain.

    >>> z = np.random.default_rng(0).normal(size=(300, 3))
    >>> canonical_correlations(z[:, :2], z[:, 1:] @ np.array([[1.0, 2.0], [0.5, -1.0]])).round(1)
    array([1., 0.])
    """
    if not first.shape[1] or not second.shape[1]:
        return np.zeros(0)
    bases = [np.linalg.qr(standardise(codes))[0] for codes in (first, second)]
    return np.asarray(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False).clip(0.0, 1.0))
