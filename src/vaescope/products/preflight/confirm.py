"""Small VAEs trained over a grid of (γ², β, d), to compare what they use with what the linear theory predicts.

A Gaussian decoder sees the leading principal axes of a random sample of rows: a rotation changes nothing for an MLP,
and axes below all decoder variances of the grid are not used by anybody. They are trained in units of λ₁: what is used
depends on λ_i γ²/β alone, but networks learn slowly from numbers far from one. All members of one d are one stack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vaescope.models import VAE
from vaescope.products.preflight.recommend import expected_count
from vaescope.regime import of_model
from vaescope.settings import TrainSettings
from vaescope.training import MemberSpec, Progress, train

Array = np.ndarray
VARIANCES = 8  # values of β/γ²
STEPS = 1500  # of training


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
        sample: random rows, scaled as recommended; at most 3000 are used, and a fifth of them is held out.
        likelihood: gaussian or bernoulli.
        eigenvalues: of the covariance, as the prediction uses them.
        latents: the largest d.
        limit: dimension of curved data; None for linear ones.
        progress: where progress is reported.
    """
    leading = np.sort(eigenvalues)[::-1][:40]
    unit = 1.0 if likelihood == "bernoulli" else float(leading[0])
    columns = sample[:3000]
    if likelihood != "bernoulli":  # scores on the leading principal axes
        centred = columns - columns.mean(0)
        columns = centred @ np.linalg.svd(centred, full_matrices=False)[2][: len(leading)].T
    rows = torch.from_numpy(columns / math.sqrt(unit)).float()
    held_out = max(1, len(rows) // 5)
    scaled, batch = leading / unit, min(100, len(rows) - held_out)
    last = float(scaled[min(latents, len(scaled)) - 1])  # from below the last latent to above the collapse line
    specs = []
    for k, variance in enumerate(
        np.geomspace(max(last / 4, float(scaled[0]) * 1e-4), 2 * float(scaled[0]), VARIANCES).tolist()
    ):
        if likelihood == "bernoulli":  # which has β alone
            specs.append(MemberSpec(seed=k, beta=variance))
        else:  # alternating β, so that it is tested too that β/γ² is all that matters
            beta = (1.0, 4.0)[k % 2]
            specs.append(MemberSpec(seed=k, precision=beta / variance, beta=beta))
    epochs = max(10, math.ceil(STEPS * batch / (len(rows) - held_out)))
    settings = TrainSettings(epochs=epochs, batch_size=batch, learning_rate=3e-3, decay="cosine", patience=epochs)
    cells: list[Cell] = []
    for d in sorted({max(1, latents // 2), latents}):
        model = VAE.mlp(rows.shape[1], d, hidden=(48, 48), likelihood=likelihood)
        parts = rows[held_out:].unsqueeze(0), rows[:held_out].unsqueeze(0)
        for spec, member in zip(specs, train(model, *parts, specs, settings, progress=progress), strict=True):
            regime = of_model(member, rows[:held_out], decoder=False)
            predicted = expected_count(scaled, spec.beta / spec.precision, d, limit=limit)
            done = member.status == "finished" and bool(member.converged)
            used, kl = len(regime.used), float(sum(regime.kl))
            cells.append(Cell(spec.precision / unit, spec.beta, d, predicted, used, kl, done))
    return Confirmation(cells, float(leading[0]))
