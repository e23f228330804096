"""`vs.identifiability`: which latents of a model mean something on their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components

from vaescope.adapters.arrays import Arrays
from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.models import as_models, repair
from vaescope.core import validation
from vaescope.core.checks import number
from vaescope.core.errors import InputError
from vaescope.metrics.correlation import spearman_correlations
from vaescope.products.identifiability.measure import (
    TOLERANCE,
    PlaneCosts,
    SeedAgreement,
    free_planes,
    measure_planes,
    seed_agreement,
)
from vaescope.protocol import LatentModel
from vaescope.regime.model import regime_of
from vaescope.runs.files import write_json

SAME_SUBSPACE = 0.8  # share of variance that is a linear function of the other model's latents
MIXED = 0.3  # correlation above which a latent of another model contains a latent


@dataclass(frozen=True, eq=False)
class Verdict:
    """What is known of each latent in use, in the order of `latents`."""

    latents: list[int]
    kind: list[str]
    score: np.ndarray
    groups: list[list[int]]
    """Latents that only mean something together."""


def axis_score(planes: PlaneCosts) -> np.ndarray:
    """Probability (u,) that each latent is within 18° of the axis that the ELBO prefers, in every plane with another.

    >>> from vaescope.products.identifiability.measure import free_planes
    >>> axis_score(free_planes([0, 1])).round(2)
    array([0.41, 0.41])
    """
    held = planes.held.copy()
    np.fill_diagonal(held, 1.0)
    return np.asarray(held.prod(1))


def judge(
    latents: list[int],
    planes: PlaneCosts | None,
    agreement: SeedAgreement | None,
    mixing: Sequence[np.ndarray] = (),
    tolerance: float = TOLERANCE,
) -> Verdict:
    """A verdict per latent in use.

    Args:
        latents: those in use.
        planes: what rotations cost; None if there is no decoder.
        agreement: with other models; None if there are none.
        mixing: (u', u) correlations of the latents of every other model with these.
        tolerance: nats per sample up to which a rotation is free.
    """
    count = len(latents)
    held = np.ones(count) if planes is None else axis_score(planes)
    credible = np.ones(count) if agreement is None else agreement.credibility
    shared = np.ones(count) if agreement is None else agreement.subspace_median
    axis = (held >= 0.5) & (True if agreement is None else agreement.same)
    kind = ["axis" if a else "subspace" if s >= SAME_SUBSPACE else "none" for a, s in zip(axis, shared, strict=True)]
    groups = _groups(planes, mixing, [k for k, name in enumerate(kind) if name == "subspace"], tolerance)
    return Verdict(latents, kind, held * credible, [sorted(latents[k] for k in group) for group in groups])


def free_groups(planes: PlaneCosts | None, count: int, tolerance: float = TOLERANCE) -> np.ndarray:
    """A label (u,) per latent, the same for latents that rotations at no cost connect.

    >>> from vaescope.products.identifiability.measure import free_planes
    >>> free_groups(free_planes([0, 1]), 2).tolist(), free_groups(None, 2).tolist()
    ([0, 0], [0, 1])
    """
    if planes is None or count < 2:
        return np.arange(count)
    return np.asarray(connected_components(_free(planes, tolerance), directed=False)[1])


def _free(planes: PlaneCosts, tolerance: float) -> np.ndarray:
    """(u, u) whether the axes of a plane are undecided."""
    return np.asarray((planes.barrier <= tolerance) | (planes.held < 0.5))


def _groups(
    planes: PlaneCosts | None, mixing: Sequence[np.ndarray], chosen: list[int], tolerance: float
) -> list[list[int]]:
    """Connected latents: rotations between them are free, or another model mixes them."""
    joined = np.zeros((len(chosen), len(chosen)), dtype=bool)
    if planes is not None and len(planes.latents) > 1:
        joined |= _free(planes, tolerance)[np.ix_(chosen, chosen)]
    for correlations in mixing:
        mixed = correlations[:, chosen] >= MIXED
        joined |= np.einsum("mi,mj->ij", mixed.astype(int), mixed.astype(int)) > 0
    if not chosen:
        return []
    _, label = connected_components(joined, directed=False)
    return [[chosen[i] for i in np.flatnonzero(label == g)] for g in range(label.max() + 1)]


EQUAL_NORMS = 0.9  # ratio of column norms that counts as equal
ROTATED = 10.0  # degrees away from the best axes that are worth a word


def sentence(
    latent: int,
    verdict: Verdict,
    planes: PlaneCosts | None,
    agreement: SeedAgreement | None,
    tolerance: float = TOLERANCE,
) -> str:
    """What may be said of a latent, and why."""
    if latent not in verdict.latents:
        return f"Latent {latent} is not in use."
    index = verdict.latents.index(latent)
    kind = verdict.kind[index]
    reasons = [_rotation(index, planes, tolerance), _seeds(index, agreement)]
    reason = "; ".join(r for r in reasons if r)
    if kind == "axis":
        return f"Latent {latent} can be read on its own" + (f": {reason}." if reason else ".")
    if kind == "none":
        return f"Do not interpret latent {latent}: {reason}."
    group = next((g for g in verdict.groups if latent in g), [latent])
    together = f"Latents {_listed(group)} form a subspace: do not read them one by one"
    alone = f"Do not read latent {latent} on its own"
    return f"{together if len(group) > 1 else alone}. Latent {latent}: {reason}."


def _rotation(index: int, planes: PlaneCosts | None, tolerance: float) -> str:
    if planes is None:
        return ""
    if len(planes.latents) < 2:
        return "there is no other latent to rotate it into"
    barrier = np.where(np.arange(len(planes.latents)) == index, np.inf, planes.barrier[index])
    weakest = int(barrier.argmin())
    other, cost = planes.latents[weakest], float(barrier[weakest])
    error = planes.stderr[index, weakest]
    amount = f"{cost:.2g}" + (f" ± {2 * error:.1g}" if error > 0 else "") + " nats per sample"
    if cost <= tolerance:
        equal = planes.norm_ratio[index, weakest] >= EQUAL_NORMS
        why = ", as their columns have the same length" if equal else ""
        return f"it can be rotated into latent {other} at no cost ({amount}){why}"
    angles = np.where(np.arange(len(planes.latents)) == index, 0.0, planes.angle[index])
    most = int(np.abs(angles).argmax())
    if abs(angles[most]) > ROTATED:
        turn = f"{abs(angles[most]):.0f}° into latent {planes.latents[most]}"
        return f"the ELBO would gain {planes.gain[index, most]:.2g} nats per sample by rotating it {turn}"
    return f"rotating it costs {amount} or more (least into latent {other})"


def _seeds(index: int, agreement: SeedAgreement | None) -> str:
    if agreement is None:
        return ""
    low, high = agreement.interval[:, index]
    count = len(agreement.axis)
    match = f"{count} other model{'s' * (count > 1)} agree{'s' * (count == 1)} with a rank correlation of"
    found = f"{match} {agreement.axis_median[index]:.2f} ({low:.2f} to {high:.2f})"
    shared = agreement.subspace_median[index]
    kept = "is" if shared >= SAME_SUBSPACE else "is only"
    return f"{found}, and {shared:.0%} of it {kept} a linear function of their latents"


def _listed(latents: list[int]) -> str:
    ordered = [str(k) for k in sorted(latents)]
    return f"{', '.join(ordered[:-1])} and {ordered[-1]}"


SAMPLES = 2000  # that are encoded, at most
ISOTROPIC = 1e-4  # relative difference between the variances of isotropic posteriors, at most


@dataclass(frozen=True, eq=False)
class Identifiability:
    """A verdict per latent of the first model. Print it for a sentence per latent."""

    name: str
    """What reports call the first model."""
    kind: list[str]
    """(d,) `axis`: may be read on its own; `subspace`: only together with others; `none`: neither."""
    score: np.ndarray
    """(d,) from 0 to 1: probability that the latent is within 18° (a correlation of 0.95) of the axis that the ELBO
    prefers, times a factor below 1 if most other models do not have it even up to free rotations; 0 for latents that
    are not in use."""
    groups: list[list[int]]
    """Latents that form a subspace."""
    sentences: list[str]
    """What may be said of each latent, and why."""
    planes: PlaneCosts | None
    """What rotations cost; None if the model has no decoder, or it could not be differentiated."""
    agreement: SeedAgreement | None
    """With the other models; None if there are none."""
    used: list[int]
    """Latents in use, in the order of `planes` and `agreement`."""
    note: str = ""
    """Why rotations were not measured; empty if they were."""

    def summary(self) -> list[dict[str, object]]:
        """A row per latent."""
        return [self._row(k) for k in range(len(self.kind))]

    def _row(self, k: int) -> dict[str, object]:
        row: dict[str, object] = {"latent": k, "kind": self.kind[k], "score": float(self.score[k])}
        index = self.used.index(k) if k in self.used else None
        if self.planes is not None:
            others = np.zeros(0) if index is None else np.delete(self.planes.barrier[index], index)
            row["rotation costs"] = float(np.min(others)) if len(others) else None
        if self.agreement is not None:
            row["same axis"] = None if index is None else float(self.agreement.axis_median[index])
            row["same subspace"] = None if index is None else float(self.agreement.subspace_median[index])
        return row

    def to_data(self) -> dict[str, object]:
        """Verdicts and numbers as JSON data."""
        planes = self.planes
        return {
            "name": self.name,
            "latents": [row | {"sentence": s} for row, s in zip(self.summary(), self.sentences, strict=True)],
            "groups": self.groups,
            "used": self.used,
            "rotation_costs": None if planes is None else _off_diagonal(planes.barrier),
            "rotation_costs_stderr": None if planes is None else _off_diagonal(planes.stderr),
            "note": self.note,
        }

    def to_json(self, path: str | Path) -> Path:
        """Write verdicts and numbers.

        Args:
            path: the file.
        """
        write_json(Path(path), self.to_data())
        return Path(path)

    def __repr__(self) -> str:
        return "\n".join([f"Identifiability of {self.name}", *(f"  {line}" for line in self.sentences)])

    def _repr_html_(self) -> str:
        rows = zip(self.kind, self.score, self.sentences, strict=True)
        body = "".join(
            f"<tr><td>{k}</td><td>{kind}</td><td>{score:.2f}</td><td>{escape(text)}</td></tr>"
            for k, (kind, score, text) in enumerate(rows)
        )
        return f"<table><tr><th>latent</th><th>kind</th><th>score</th><th>why</th></tr>{body}</table>"


def _off_diagonal(matrix: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(v) else float(v) for v in row] for row in matrix]


@torch.no_grad()
def identifiability(
    models: object, x: object, *, auxiliary: object | None = None, tolerance: float = TOLERANCE
) -> Identifiability:
    """Which latents may be given a name: per latent an axis, part of a subspace, or neither, without known factors.

    Of one model: what a rotation of each pair of latents costs in ELBO. A pair that rotates at no cost could have come
    out rotated by any angle. Of several models, such as seeds: also whether the others have the same latents.

    Args:
        models: a model, several models of the same data (the first is judged), or a fit (its best member is judged).
        x: samples, a row or an image each; at most 2,000 of them are used.
        auxiliary: the auxiliary input of an iVAE, a label or a row of numbers per sample.
        tolerance: nats per sample up to which a rotation counts as free.

    >>> W = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> S = (W.T @ W + 0.01 * torch.eye(3)).inverse()
    >>> from vaescope.adapters import from_callables
    >>> vae = from_callables(
    ...     encode=lambda x: (x @ W @ S, (0.01 * S.diagonal()).expand(len(x), -1)),
    ...     decode=lambda z: z @ W.T, latent_dim=3, precision=100.0,
    ... )
    >>> found = identifiability(vae, torch.randn(500, 3) @ W.T)
    >>> found.kind, found.groups
    (['axis', 'subspace', 'subspace'], [[1, 2]])
    """
    number("tolerance", tolerance, above=0.0, hint="it is in nats per sample")
    listed = as_models(models)
    samples = [repair(model, _own_samples(model, x), auxiliary, SAMPLES).sample for model in listed]
    validation.same_rows({f"model {index}": len(sample) for index, sample in enumerate(samples)})
    return identify_encoded(samples, tolerance)


def _own_samples(model: LatentModel, x: object) -> object:
    """x, or the samples of a model that has posteriors alone."""
    return model.samples if isinstance(model, Arrays) else x


def identify_encoded(samples: Sequence[EncodedSample], tolerance: float = TOLERANCE) -> Identifiability:
    """The same for models whose samples are encoded already."""
    sample, used = samples[0], [regime_of([s]).used for s in samples]
    planes, note = _planes(sample, used[0], tolerance)
    codes = [s.mean[:, latents].double().cpu().numpy() for s, latents in zip(samples, used, strict=True)]
    free = free_groups(planes, len(used[0]), tolerance)
    agreement = seed_agreement(codes[0], codes[1:], free) if len(codes) > 1 and used[0] else None
    if planes is None and agreement is None and used[0]:
        raise InputError(f"rotations cannot be judged ({note.rstrip('.')}); pass several models to compare them.")
    mixing = [spearman_correlations(other, codes[0]) for other in codes[1:] if other.shape[1] and used[0]]
    verdict = judge(used[0], planes, agreement, mixing, tolerance)
    return _all_latents(sample.model, verdict, planes, agreement, note, tolerance)


def _planes(sample: EncodedSample, used: list[int], tolerance: float) -> tuple[PlaneCosts | None, str]:
    if not sample.model.has_decoder:
        return None, "the model has no decoder"
    if sample.model.posterior_family != "diagonal":
        return free_planes(used), "q(z|x) has correlations, so every rotation of the latents has the same ELBO."
    if len(used) > 1 and _is_isotropic(sample, used):
        return free_planes(used), "q(z|x) has the same variance for all latents, so every rotation has the same ELBO."
    try:
        return measure_planes(sample, used, tolerance), ""
    except (InputError, RuntimeError, NotImplementedError) as error:
        return None, (str(error).splitlines() or [""])[0]


def _is_isotropic(sample: EncodedSample, used: list[int]) -> bool:
    variance = sample.variance[:, used].double()
    return bool((variance.amax(1) <= (1 + ISOTROPIC) * variance.amin(1)).all())


def _all_latents(
    model: LatentModel,
    verdict: Verdict,
    planes: PlaneCosts | None,
    agreement: SeedAgreement | None,
    note: str,
    tolerance: float,
) -> Identifiability:
    d = model.latent_dim
    kind, score = ["none"] * d, np.zeros(d)
    for index, k in enumerate(verdict.latents):
        kind[k], score[k] = verdict.kind[index], verdict.score[index]
    sentences = [sentence(k, verdict, planes, agreement, tolerance) for k in range(d)]
    return Identifiability(model.name, kind, score, verdict.groups, sentences, planes, agreement, verdict.latents, note)
