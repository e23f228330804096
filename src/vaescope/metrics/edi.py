"""EDI: modularity, compactness and explicitness by exclusivity."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from vaescope.metrics.dci import fit_factor
from vaescope.metrics.information import check_estimator, information_warnings, significant_information
from vaescope.metrics.inputs import CodesAndFactors, read_inputs
from vaescope.metrics.score import MetricValues, Score


class EDI(Score):
    """The three scores of Julka, Wang & Granitzer 2024."""

    @property
    def modularity(self) -> float:
        return self.scores["modularity"]

    @property
    def compactness(self) -> float:
        return self.scores["compactness"]

    @property
    def explicitness(self) -> float:
        return self.scores["explicitness"]


def edi(
    codes: object,
    factors: object,
    *,
    estimator: str = "binned",
    binning: str = "width",
    discrete: bool | Sequence[bool] | None = None,
) -> EDI:
    """Exclusivity disentanglement index (Julka, Wang & Granitzer 2024), each score from 0 to 1.

    Exclusivity of a row of relations is its largest entry minus the root mean square of the others. Modularity:
    exclusivity of each latent over factors, credited to its best factor, at most 1 per factor. Compactness: exclusivity
    of each factor over latents. The relation is the significant mutual information over the factor's entropy; the
    authors estimate it with neural networks. Explicitness: held-out accuracy or R² of trees on all latents.
    `per_factor` is the compactness.

    Args:
        codes: (N, d).
        factors: (N, k).
        estimator: `binned` (counts in 20 bins) or `neighbours` (nearest neighbours: slower, nearly unbiased).
        binning: `width` (bins of equal width) or `mass` (bins with equally many samples).
        discrete: which factors are classes; by default those with few distinct values.

    >>> v = np.random.default_rng(0).integers(0, 4, (400, 2))
    >>> found = edi(v, v)
    >>> bool(found.modularity > 0.9), bool(found.compactness > 0.9)
    (True, True)
    """
    check_estimator(estimator, binning)
    inputs = read_inputs(codes, factors, discrete=discrete)
    compute = partial(_edi, estimator=estimator, binning=binning)
    notes = partial(information_warnings, inputs, estimator=estimator, binning=binning)
    return EDI("EDI", compute(inputs), notes, compute, inputs, resamples=10, shuffles=3)


def exclusivity(relation: np.ndarray) -> np.ndarray:
    """Largest entry of every row minus the root mean square of the others.

    >>> exclusivity(np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.5]])).tolist()
    [1.0, 0.0]
    """
    ordered = np.sort(relation, axis=1)
    if relation.shape[1] < 2:
        return ordered[:, -1]
    return ordered[:, -1] - np.sqrt(np.square(ordered[:, :-1]).mean(1))


def _edi(inputs: CodesAndFactors, estimator: str, binning: str) -> MetricValues:
    relation = significant_information(inputs, estimator=estimator, binning=binning)
    per_latent = exclusivity(relation)
    credited = np.zeros_like(relation)
    credited[np.arange(len(relation)), relation.argmax(1)] = per_latent
    modularity, compactness = np.minimum(credited.sum(0), 1.0), exclusivity(relation.T)
    explicitness = np.array([fit_factor(inputs, k, "forest")[1] for k in range(inputs.factor_count)])
    scores = {
        "modularity": float(modularity.mean()),
        "compactness": float(compactness.mean()),
        "explicitness": float(explicitness.mean()),
    }
    return MetricValues(scores, compactness, {"per_latent": per_latent, "explicitness_per_factor": explicitness})
