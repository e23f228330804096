"""`vs.identifiability`: which latents of a model mean something on their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import torch

from vaescope import validation
from vaescope.adapters.arrays import Arrays
from vaescope.adapters.models import as_models
from vaescope.adapters.repaired import repair
from vaescope.checks import number
from vaescope.encoded import EncodedSample
from vaescope.errors import InputError
from vaescope.identification.planes import TOLERANCE, PlaneCosts, free_planes, measure_planes
from vaescope.identification.seeds import SeedAgreement, seed_agreement
from vaescope.identification.sentences import sentence
from vaescope.identification.verdict import Verdict, free_groups, judge
from vaescope.metrics.mcc import spearman_correlations
from vaescope.protocol import LatentModel
from vaescope.regime.model import regime_of
from vaescope.runs.files import write_json

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
