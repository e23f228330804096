"""Agreement between models of the same data: latents in use only, by axes and by the subspace that they span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from vaescope import metrics
from vaescope.metrics.stability import Stability


@dataclass(frozen=True, eq=False)
class Agreement:
    """How similar the codes of models are."""

    axes: Stability
    """Mean correlation of matched latents in use."""
    subspace: float
    """Mean squared canonical correlation of the latents in use, the worst pair of models: 1 if one model's codes are
    a linear function of the other's."""

    @property
    def score(self) -> float:
        return float(self.axes.score)


def measure_agreement(codes: Sequence[np.ndarray], used: Sequence[list[int]]) -> Agreement:
    """Compare models.

    Args:
        codes: posterior means (N, d) of every model on the same samples.
        used: latents in use of every model.
    """
    masks = [np.isin(np.arange(code.shape[1]), latents).tolist() for code, latents in zip(codes, used, strict=True)]
    bases = [_basis(code[:, sorted(latents)]) for code, latents in zip(codes, used, strict=True)]
    pairs = [_shared(a, b) for a, b in combinations(bases, 2)]
    return Agreement(metrics.stability(codes, active=masks), min(pairs))


def _basis(code: np.ndarray) -> np.ndarray:
    """Orthonormal columns that span the centred codes."""
    if not code.shape[1]:
        return code
    return np.asarray(np.linalg.qr((code - code.mean(0)) / np.maximum(code.std(0), 1e-12))[0])


def _shared(a: np.ndarray, b: np.ndarray) -> float:
    if not a.shape[1] or not b.shape[1]:
        return float(a.shape[1] == b.shape[1])
    return float(np.square(np.linalg.svd(a.T @ b, compute_uv=False)).sum() / max(a.shape[1], b.shape[1]))
