"""Would another seed give the same latents? Two answers that need no factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from vaescope.errors import InputError
from vaescope.metrics.inputs import alive, exactly_rescaled, matrix
from vaescope.metrics.mcc import METHODS, matched
from vaescope.metrics.score import Parts, Score

Similarity = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True, eq=False)
class Members:
    """Codes of several models on the same observations, rows shuffled together, active latents only."""

    codes: tuple[np.ndarray, ...]

    @property
    def samples(self) -> int:
        return len(self.codes[0])

    def rows(self, pick: slice | np.ndarray) -> Members:
        return Members(tuple(code[pick] for code in self.codes))

    def null(self, rng: np.random.Generator) -> Members:
        """Every model's rows in an order of their own: models that share nothing."""
        return Members(tuple(code[rng.permutation(self.samples)] for code in self.codes))


class Stability(Score):
    """Agreement of models pair by pair."""

    @property
    def pairs(self) -> np.ndarray:
        """Agreement of every pair of models, (M, M), 1 on the diagonal."""
        return self.parts.detail["pairs"]

    @property
    def per_member(self) -> np.ndarray:
        """Agreement of every model with the others."""
        return self.parts.per_factor


def stability(
    members: Sequence[object], *, active: Sequence[Sequence[bool] | None] | None = None, method: str = "pearson"
) -> Stability:
    """Mean correlation of matched latents between models, over all pairs; `members` are codes (N, d) each.

    Active latents that find no partner count as 0. A rotated copy, or a collapsed one, disagrees.

    >>> z = np.random.default_rng(0).normal(size=(200, 2))
    >>> round(stability([z, -z[:, ::-1], 3 * z]).score, 6)
    1.0
    """
    return _stability("stability", members, active, method, _matched_mcc, np.mean)


def udr(
    members: Sequence[object], *, active: Sequence[Sequence[bool] | None] | None = None, method: str = "spearman"
) -> Stability:
    """Unsupervised disentanglement ranking (Duan et al. 2020): do models agree latent by latent, one to one?

    A model's score is the median over the other models; the score is the mean over models. Published UDR leaves
    out latents by their KL: give `active` from it, or passive latents that still vary count against agreement.
    """
    return _stability("UDR", members, active, method, _udr, np.median)


def _stability(
    name: str,
    members: Sequence[object],
    active: Sequence[Sequence[bool] | None] | None,
    method: str,
    agreement: Callable[[np.ndarray], float],
    average: Callable[[np.ndarray], float],
) -> Stability:
    if method not in METHODS:
        raise InputError(f"method must be pearson or spearman, got {method!r}.")
    arrays, notes = _members(members, active)
    compute = partial(_compare, method=method, agreement=agreement, average=average)
    return Stability(name, compute(arrays), lambda: notes, compute, arrays, resamples=50)


def _members(
    members: Sequence[object], active: Sequence[Sequence[bool] | None] | None
) -> tuple[Members, tuple[str, ...]]:
    codes = [exactly_rescaled(matrix(member, "codes")) for member in members]
    if len(codes) < 2:
        raise InputError(f"stability compares two models or more, got {len(codes)}.")
    if len({len(code) for code in codes}) > 1:
        raise InputError(f"every model must encode the same samples, got {[len(code) for code in codes]} rows.")
    if len(codes[0]) < 20:
        raise InputError(f"codes need at least 20 samples, got {len(codes[0])}.")
    chosen = [None] * len(codes) if active is None else list(active)
    if len(chosen) != len(codes):
        raise InputError(f"active needs an entry per model, {len(codes)}, got {len(chosen)}.")
    order = np.random.default_rng(0).permutation(len(codes[0]))
    masks = [_mask(code, mask) for code, mask in zip(codes, chosen, strict=True)]
    notes = tuple(f"model {i} has no active latent." for i, mask in enumerate(masks) if not mask.any())
    return Members(tuple(code[order][:, mask] for code, mask in zip(codes, masks, strict=True))), notes


def _mask(code: np.ndarray, active: Sequence[bool] | None) -> np.ndarray:
    if active is None:
        return alive(code)
    mask = np.asarray(active)
    if mask.shape != (code.shape[1],) or mask.dtype != bool:
        raise InputError(f"active must hold True or False for each of {code.shape[1]} latents, got {active!r}.")
    return mask


def _compare(
    arrays: Members, method: str, agreement: Callable[[np.ndarray], float], average: Callable[[np.ndarray], float]
) -> Parts:
    count = len(arrays.codes)
    pairs = np.eye(count)
    for a, b in combinations(range(count), 2):
        pairs[a, b] = pairs[b, a] = agreement(METHODS[method](arrays.codes[a], arrays.codes[b]))
    others = [average(np.delete(pairs[a], a)) for a in range(count)]
    return Parts({"agreement": float(np.mean(others))}, np.array(others), {"pairs": pairs})


def _matched_mcc(relevance: np.ndarray) -> float:
    if 0 in relevance.shape:
        return 0.0
    return float(matched(relevance)[0].sum() / max(relevance.shape))


def _udr(relevance: np.ndarray) -> float:
    """Eq. 4 of Duan et al.: how much of every latent's similarity lies with one partner, both ways."""
    if 0 in relevance.shape:
        return 0.0
    total = 0.0
    for axis in (0, 1):
        best, whole = relevance.max(axis), relevance.sum(axis)
        total += float((np.square(best) / np.where(whole > 0, whole, 1.0)).sum())
    return total / sum(relevance.shape)
