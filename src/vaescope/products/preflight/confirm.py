"""Small VAEs trained over a grid of (γ², β, d), to compare what they use with what the linear theory predicts.

A Gaussian decoder sees the leading principal axes of a random sample of rows: a rotation changes nothing for an MLP,
and axes below all decoder variances of the grid are not used by anybody. They are trained in units of λ₁: what is used
depends on λ_i γ²/β alone, but networks learn slowly from numbers far from one. All members of one d are one stack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from vaescope.models import VAE, Member
from vaescope.products.preflight.phase import expected_count
from vaescope.regime import of_model
from vaescope.settings import TrainSettings
from vaescope.training import MemberSpec, Progress, train

Array = np.ndarray
ROWS = 3000  # that are trained on, at most; a fifth is held out
AXES = 40  # leading principal axes that are trained on, at most
VARIANCES = 8  # values of β/γ²
BETAS = (1.0, 4.0)
HIDDEN = (48, 48)
BATCH, STEPS, LEARNING_RATE = 100, 1500, 3e-3


@dataclass(frozen=True)
class Cell:
    """One trained model beside its prediction."""

    precision: float
    beta: float
    latents: int
    predicted: int
    used: int
    kl: float
    converged: bool

    @property
    def variance(self) -> float:
        """β/γ²."""
        return self.beta / self.precision


@dataclass(frozen=True)
class Confirmation:
    """Trained models beside their predictions, and the correction that they suggest."""

    cells: Sequence[Cell]
    collapse_variance: float
    """λ_1, of what was trained on."""

    @property
    def converged(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.converged]

    @property
    def within_one(self) -> float:
        """Share of converged cells in which as many latents are used as predicted, or one more or less."""
        return float(np.mean([abs(c.used - c.predicted) <= 1 for c in self.converged])) if self.converged else math.nan

    @property
    def factor(self) -> float:
        """Latents used over latents predicted, in all converged cells that predict any."""
        predicted = sum(c.predicted for c in self.converged)
        return sum(c.used for c in self.converged if c.predicted) / predicted if predicted else 1.0

    @property
    def boundary(self) -> float:
        """β/γ² between the last cell that uses a latent and the first that does not; infinite if all do."""
        ordered = sorted({c.variance for c in self.converged})
        using = [v for v in ordered if any(c.used for c in self.converged if c.variance == v)]
        above = [v for v in ordered if not using or v > using[-1]]
        if not using or not above:
            return math.inf if using else 0.0
        return math.sqrt(using[-1] * above[0])

    def corrected(self, predicted: int) -> int:
        """A predicted count with the correction.

        >>> Confirmation([Cell(1.0, 1.0, 4, 4, 2, 1.0, True)], 5.0).corrected(4)
        2
        """
        return min(predicted, max(int(predicted > 0), round(self.factor * predicted)))

    @property
    def sentence(self) -> str:
        """The comparison in words."""
        right = f"In {self.within_one:.0%} of {len(self.converged)} converged models the count is right to one"
        change = f"{self.factor:.2f} times as many latents are used as predicted"
        if not 0 < self.boundary < math.inf:
            return f"{right}; {change}."
        line = f"Latents collapse around β/γ² = {self.boundary:.3g}; predicted: {self.collapse_variance:.3g}."
        return f"{right}; {change}. {line}"


def confirm(
    sample: Array,
    likelihood: str,
    eigenvalues: Array,
    latents: int,
    *,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Confirmation:
    """Train a grid of models.

    Args:
        sample: random rows, scaled as recommended.
        likelihood: gaussian or bernoulli.
        eigenvalues: of the covariance, as the prediction uses them.
        latents: the largest d.
        limit: dimension of curved data; None for linear ones.
        progress: where progress is reported.
    """
    leading = np.sort(eigenvalues)[::-1][:AXES]
    unit = 1.0 if likelihood == "bernoulli" else float(leading[0])
    rows = torch.from_numpy(_trained_columns(sample[:ROWS], likelihood) / math.sqrt(unit)).float()
    held_out = max(1, len(rows) // 5)
    variances = _grid(leading / unit, latents)
    cells: list[Cell] = []
    for d in sorted({max(1, latents // 2), latents}):
        model = VAE.mlp(rows.shape[1], d, hidden=HIDDEN, likelihood=likelihood)
        specs = _specs(variances, likelihood)
        members = train(
            model,
            rows[held_out:].unsqueeze(0),
            rows[:held_out].unsqueeze(0),
            specs,
            _settings(len(rows) - held_out),
            progress=progress,
        )
        found = [_cell(s, m, limit, leading / unit, rows[:held_out]) for s, m in zip(specs, members, strict=True)]
        cells += [replace(cell, precision=cell.precision / unit) for cell in found]
    return Confirmation(cells, float(leading[0]))


def _settings(rows: int) -> TrainSettings:
    batch = min(BATCH, rows)
    epochs = max(10, math.ceil(STEPS * batch / rows))
    return TrainSettings(epochs=epochs, batch_size=batch, learning_rate=LEARNING_RATE, decay="cosine", patience=epochs)


def _grid(eigenvalues: Array, latents: int) -> Array:
    """β/γ² from below the last latent to above the collapse line."""
    last = float(eigenvalues[min(latents, len(eigenvalues)) - 1])
    low = max(last / 4, float(eigenvalues[0]) * 1e-4)
    return np.geomspace(low, 2 * float(eigenvalues[0]), VARIANCES)


def _specs(variances: Array, likelihood: str) -> list[MemberSpec]:
    """Alternating β, so that the identity of β/γ² is tested too; a Bernoulli likelihood has β alone."""
    if likelihood == "bernoulli":
        return [MemberSpec(seed=k, beta=float(v)) for k, v in enumerate(variances)]
    betas = [BETAS[k % len(BETAS)] for k in range(len(variances))]
    return [
        MemberSpec(seed=k, precision=b / float(v), beta=b)
        for k, (v, b) in enumerate(zip(variances, betas, strict=True))
    ]


def _cell(spec: MemberSpec, member: Member, limit: int | None, eigenvalues: Array, rows: torch.Tensor) -> Cell:
    regime = of_model(member, rows, decoder=False)
    predicted = expected_count(eigenvalues, spec.beta / spec.precision, member.latent_dim, limit=limit)
    done = member.status == "finished" and bool(member.converged)
    return Cell(spec.precision, spec.beta, member.latent_dim, predicted, len(regime.used), float(sum(regime.kl)), done)


def _trained_columns(rows: Array, likelihood: str) -> Array:
    """Scores on the leading principal axes; binary columns as they are."""
    if likelihood == "bernoulli":
        return rows
    centred = rows - rows.mean(0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:AXES]
    return centred @ axes.T
