"""DCI-ES: DCI with explicitness, how simple a predictor may be, and size, how many latents are used."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float

from vaescope.metrics.dci import DCI, compute_dci
from vaescope.metrics.features import regression_features, ridge
from vaescope.metrics.input_warnings import input_warnings
from vaescope.metrics.inputs import CodesAndFactors, read_inputs, standardise
from vaescope.metrics.score import MetricValues

CAPACITIES = (0, 16, 32, 64, 128, 256)  # random features in addition to the linear ones
STRENGTH = 1e-4  # of the ridge penalty
EXACT = 0.02  # loss, as a share of that of a constant, that counts as none


class DCIES(DCI):
    """The five scores of Eastwood et al. 2023."""

    @property
    def explicitness(self) -> float:
        return self.scores["explicitness"]

    @property
    def size(self) -> float:
        return self.scores["size"]

    @property
    def losses(self) -> np.ndarray:
        """Held-out loss of every capacity and factor, as a share of that of a constant, (capacities, k)."""
        return self.values.details["losses"]


def dci_es(codes: object, factors: object, *, discrete: bool | Sequence[bool] | None = None) -> DCIES:
    """DCI, explicitness and size (Eastwood, Nicolicioiu, von Kügelgen, Kekić, Träuble, Dittadi & Schölkopf 2023).

    Explicitness is 1 minus the area under the loss-capacity curve over that of a straight line from the loss of a
    constant to the smallest loss: 1 if the simplest predictor is already the best, 0 if the loss falls linearly,
    negative if only the largest predictors help. Predictors are ridge regressions on the latents and on more and more
    random Fourier features of them; each step of capacity doubles their number, and the first has none. A factor that
    no predictor explains scores 0. Size is the number of factors over that of latents, at most 1.

    Args:
        codes: (N, d).
        factors: (N, k).
        discrete: which factors are classes, for DCI; explicitness predicts indicators of their classes.

    >>> v = np.random.default_rng(0).uniform(-1, 1, (400, 2))
    >>> found = dci_es(v, v)
    >>> bool(found.explicitness > 0.95), found.size
    (True, 1.0)
    """
    inputs = read_inputs(codes, factors, discrete=discrete)
    notes = partial(input_warnings, inputs, classes=True)
    return DCIES("DCI-ES", _dci_es(inputs), notes, _dci_es, inputs, bounds=(-1.0, 1.0), resamples=10, shuffles=3)


def _dci_es(inputs: CodesAndFactors) -> MetricValues:
    plain = compute_dci(inputs, "forest")
    losses = np.column_stack([loss_curve(inputs, k) for k in range(inputs.factor_count)])
    explicitness = np.array([area_score(curve) for curve in losses.T])
    added = {
        "explicitness": float(explicitness.mean()),
        "size": min(1.0, inputs.factor_count / inputs.latents),
    }
    details = {**plain.details, "losses": losses, "explicitness_per_factor": explicitness}
    return MetricValues({**plain.scores, **added}, plain.per_factor, details)


def loss_curve(inputs: CodesAndFactors, k: int) -> Float[np.ndarray, " capacities"]:
    """Held-out squared error of factor k at every capacity, over that of a constant."""
    targets = _targets(inputs, k)
    middle = (inputs.samples + 1) // 2
    baseline = np.square(targets[middle:] - targets[:middle].mean(0)).sum()
    losses = []
    for count in CAPACITIES:
        features = regression_features(inputs.codes, count)
        weights = ridge(features[:middle], targets[:middle], STRENGTH)
        losses.append(np.square(targets[middle:] - features[middle:] @ weights).sum() / max(baseline, 1e-300))
    return np.minimum.accumulate(np.minimum(losses, 1.0))


def _targets(inputs: CodesAndFactors, k: int) -> np.ndarray:
    column = inputs.factors[:, k]
    return (column[:, None] == np.unique(column)).astype(float) if inputs.discrete[k] else standardise(column[:, None])


def area_score(losses: Float[np.ndarray, " capacities"]) -> float:
    """1 - area under the curve of losses above the smallest one, over the area under the straight line.

    >>> area_score(np.array([0.0, 0.0, 0.0])), round(area_score(np.array([1.0, 0.5, 0.0])), 3)
    (1.0, 0.0)
    """
    best = float(losses.min())
    if best > 1 - EXACT:
        return 0.0
    excess = np.clip(losses - best, 0.0, None)
    area = (0.5 * (excess[1:] + excess[:-1])).mean()
    return float(1 - area / (0.5 * (1 - best)))
