"""`vs.identifiability`: which latents of a model mean something on their own; no factors are needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.identification import THRESHOLDS, Identification, identify
from vaescope.analysis.models import as_models, repair
from vaescope.analysis.samples import read_samples_of_each
from vaescope.core import validation
from vaescope.core.tables import Table
from vaescope.core.validation import number
from vaescope.regime.model import regime_of
from vaescope.report.report import Report


@dataclass(frozen=True, eq=False, repr=False)
class Identifiability(Identification, Report):
    """A verdict per latent of the first model. Print it for a sentence per verdict."""

    skipped: dict[str, str] = field(default_factory=dict)
    """What was not taken as the encoders returned it, and why."""

    def summary(self) -> Table:
        """A row per latent."""
        return Table(self.rows())

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        count = self.kind.count("axis")
        own = f"{count} of {len(self.kind)} latents can be read on {'its' if count == 1 else 'their'} own."
        return f"{own} {self.note}".strip()

    def page_values(self) -> dict[str, object]:
        """The page begins with a sentence per verdict, and the reasons of each latent are in its table."""
        rows = [row | {"why": text or None} for row, text in zip(self.rows(), self.reasons, strict=True)]
        return super().page_values() | {"rows": rows, "columns": list(rows[0]), "sentences": self.summaries}

    def __repr__(self) -> str:
        lines = [*self.summaries, *(f"left out: {what} ({why})" for what, why in self.skipped.items())]
        return "\n".join([f"Identifiability of {self.name}", *(f"  {line}" for line in lines)])

    def _repr_html_(self) -> str:
        rows = zip(self.kind, self.score, self.sentences, strict=True)
        body = "".join(
            f"<tr><td>{k}</td><td>{kind}</td><td>{score:.2f}</td><td>{escape(text)}</td></tr>"
            for k, (kind, score, text) in enumerate(rows)
        )
        return f"<table><tr><th>latent</th><th>kind</th><th>score</th><th>why</th></tr>{body}</table>"


def identifiability(
    models: object, x: object, *, auxiliary: object | None = None, tolerance: float = THRESHOLDS.tolerance
) -> Identifiability:
    """Which latents may be given a name: per latent an axis, part of a subspace, or neither, without known factors.

    Of one model: what a rotation of each pair of latents costs in ELBO. A pair that rotates at no cost could have come
    out rotated by any angle. Of several models, such as seeds: also whether the others have the same latents.

    Args:
        models: a model, several models of the same data (the first is judged), or a fit (its best member is judged).
        x: samples, a row or an image each; at most 2,000 of them are used.
        auxiliary: the auxiliary input of an iVAE, a label or a row of numbers per sample.
        tolerance: nats per sample up to which a rotation counts as free.

    >>> import torch
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
    samples: list[EncodedSample] = []
    corrections: dict[str, str] = {}
    listed = as_models(models)
    for model, given in zip(listed, read_samples_of_each(listed, x, auxiliary), strict=True):
        repaired = repair(model, given, None, 2000)
        samples.append(repaired.sample)
        corrections |= repaired.corrections
    validation.same_rows({f"model {index}": len(sample) for index, sample in enumerate(samples)})
    found = identify(samples, [regime_of([sample]).used for sample in samples], tolerance)
    return Identifiability(**vars(found), skipped=corrections)
