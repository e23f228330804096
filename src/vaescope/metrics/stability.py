"""Agreement between models: would another seed give the same latents? No factors are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.metrics.correlation import CORRELATIONS, best_matching
from vaescope.metrics.inputs import is_varying, rescale_exactly
from vaescope.metrics.score import Detail, MetricValues, Score

ActiveLatents = Sequence[Sequence[bool] | None] | None
Average = Callable[[np.ndarray], float]


@dataclass(frozen=True, eq=False)
class ModelCodes:
    """Active latents of several models on the same observations, in the same random order."""

    codes: tuple[np.ndarray, ...]

    @property
    def samples(self) -> int:
        return len(self.codes[0])

    def subset(self, rows: slice | np.ndarray) -> ModelCodes:
        return ModelCodes(tuple(code[rows] for code in self.codes))

    def shuffled(self, rng: np.random.Generator) -> ModelCodes:
        """Every model's rows in their own random order, so that models are independent."""
        return ModelCodes(tuple(code[rng.permutation(self.samples)] for code in self.codes))


class Stability(Score):
    """Pairwise agreement of models."""

    pairs = Detail()
    """Agreement of every pair of models, (M, M), 1 on the diagonal."""

    @property
    def per_member(self) -> np.ndarray:
        """Agreement of every model with the others."""
        return self.values.per_factor


def stability(members: Sequence[object], *, active: ActiveLatents = None, method: str = "pearson") -> Stability:
    """Mean correlation of matched latents, averaged over pairs of models. Unmatched active latents count as 0.

    Args:
        members: codes (N, d) of every model on the same N samples.
        active: for every model, which latents are active; by default those that vary.
        method: `pearson` or `spearman` correlations.

    >>> z = np.random.default_rng(0).normal(size=(200, 2))
    >>> round(stability([z, -z[:, ::-1], 3 * z]).score, 6)
    1.0
    """
    return _agreement_score("stability", members, active, method, _matched_correlation, np.mean)


def udr(members: Sequence[object], *, active: ActiveLatents = None, method: str = "spearman") -> Stability:
    """Unsupervised disentanglement ranking (Duan et al. 2020): do models agree latent by latent?

    The score of a model is the median over the other models; the result is the mean over models. The published UDR
    excludes latents with a low KL: pass the others as `active`, or passive latents that vary lower the agreement.

    Args:
        members: codes (N, d) of every model on the same N samples.
        active: for every model, which latents are active; by default those that vary.
        method: `pearson` or `spearman` correlations.
    """
    return _agreement_score("UDR", members, active, method, _udr, np.median)


def _agreement_score(
    name: str, members: Sequence[object], active: ActiveLatents, method: str, agreement: Average, average: Average
) -> Stability:
    validation.choice("method", method, CORRELATIONS)
    inputs, notes = _read_members(members, active)
    compute = partial(_compare, method=method, agreement=agreement, average=average)
    return Stability(name, compute, inputs, lambda _: notes, resamples=50)


def _read_members(members: Sequence[object], active: ActiveLatents) -> tuple[ModelCodes, tuple[str, ...]]:
    """Codes of active latents, and warnings."""
    codes = [rescale_exactly(validation.matrix(member, "codes", minimum=20)) for member in members]
    if len(codes) < 2:
        raise InputError(f"stability needs at least two models, got {len(codes)}.")
    samples = validation.same_rows({f"model {i}": len(code) for i, code in enumerate(codes)})
    masks = [None] * len(codes) if active is None else list(active)
    if len(masks) != len(codes):
        raise InputError(f"active needs an entry per model, {len(codes)}, got {len(masks)}.")
    order = np.random.default_rng(0).permutation(samples)
    chosen = [
        is_varying(code) if mask is None else validation.latent_mask(mask, code.shape[1])
        for code, mask in zip(codes, masks, strict=True)
    ]
    notes = tuple(f"model {i} has no active latent." for i, mask in enumerate(chosen) if not mask.any())
    return ModelCodes(tuple(code[order][:, mask] for code, mask in zip(codes, chosen, strict=True))), notes


def _compare(inputs: ModelCodes, method: str, agreement: Average, average: Average) -> MetricValues:
    count = len(inputs.codes)
    pairs = np.eye(count)
    for a, b in combinations(range(count), 2):
        pairs[a, b] = pairs[b, a] = agreement(CORRELATIONS[method](inputs.codes[a], inputs.codes[b]))
    per_member = [average(np.delete(pairs[a], a)) for a in range(count)]
    return MetricValues({"agreement": float(np.mean(per_member))}, np.array(per_member), {"pairs": pairs})


def _matched_correlation(correlations: np.ndarray) -> float:
    if 0 in correlations.shape:
        return 0.0
    return float(best_matching(correlations)[0].sum() / max(correlations.shape))


def _udr(correlations: np.ndarray) -> float:
    """Eq. 4 of Duan et al. 2020: the share of every latent's similarity that is with one latent of the other model."""
    if 0 in correlations.shape:
        return 0.0
    total = 0.0
    for axis in (0, 1):
        best, summed = correlations.max(axis), correlations.sum(axis)
        total += float((np.square(best) / np.where(summed > 0, summed, 1.0)).sum())
    return total / sum(correlations.shape)
