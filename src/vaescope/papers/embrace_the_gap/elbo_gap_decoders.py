"""Decoders of elbo-gap: known, so that log p and c_IMA are known too."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from scipy.optimize import brentq
from torch import Tensor

from vaescope import randomness, theory
from vaescope.data.invertible import Affine
from vaescope.data.mixings import Compose, Mixing, OrthogonalMLP, TriangularMLP
from vaescope.distributions import Normal, Prior, Uniform
from vaescope.papers.embrace_the_gap.elbo_gap_results import (
    DIM,
    ORTHOGONAL,
    PUBLISHED_CONTRAST,
    PUBLISHED_LOG_P,
    TRIANGULAR,
    WIDE,
    WIDE_NOISY,
)

WIDE_OUTPUTS = 5
TRIANGULAR_SEED = 1
CALIBRATION_SAMPLES = 20_000


@dataclass(frozen=True)
class Case:
    """A decoder with its prior."""

    decoder: Callable[[], Callable[[Tensor], Tensor]]
    prior: Prior
    invertible: bool = True
    """Whether log p has a limit as γ → ∞, given by the change of variables."""
    noisy: bool = False
    """Whether observations have noise of variance 1/γ²; otherwise they are outputs of the decoder."""


@cache
def triangular() -> Mixing:
    """A two-layer triangular MLP with the published C_IMA and mean log-likelihood.

    Its first output is scaled to match the contrast, then both outputs to match the likelihood. Both scalings can be
    absorbed into the second triangular weight matrix.
    """
    base = TriangularMLP(DIM, layers=2, seed=TRIANGULAR_SEED)
    z = Normal().sample(CALIBRATION_SAMPLES, DIM, generator=randomness.generator(0, "calibration"))
    J = theory.jacobian(base, z)

    def excess(log_scale: float) -> float:
        scaled = J * torch.tensor([[math.exp(log_scale)], [1.0]], dtype=torch.float64)
        return float(theory.contrast_of_matrix(scaled).mean()) - PUBLISHED_CONTRAST

    log_first = float(brentq(excess, -20.0, 0.0))
    log_p = float((Normal().log_density(z).sum(1) - base.log_abs_det(z)).mean()) - log_first
    both = math.exp((log_p - PUBLISHED_LOG_P) / DIM)
    weight = torch.diag(torch.tensor([both * math.exp(log_first), both], dtype=torch.float64))
    return Compose(base, Mixing(DIM, [Affine(weight)]))


@cache
def orthogonal() -> Mixing:
    """x = W σ(z): a sigmoid and an orthogonal layer, in the IMA class."""
    return OrthogonalMLP(DIM, layers=1, seed=0, activation="sigmoid", activate_input=True)


@cache
def wide() -> Callable[[Tensor], Tensor]:
    """A smooth decoder with more outputs than latents, which the paper's proofs do not cover."""
    generator = randomness.generator(0, "wide")
    first = torch.randn(DIM, 8, dtype=torch.float64, generator=generator)
    second = torch.randn(8, WIDE_OUTPUTS, dtype=torch.float64, generator=generator) / 2
    return lambda z: torch.tanh(z @ first.to(z)) @ second.to(z)


CASES = {
    TRIANGULAR: Case(triangular, Normal()),
    ORTHOGONAL: Case(orthogonal, Uniform(-1.0, 1.0)),
    WIDE: Case(wide, Normal(), invertible=False),
    WIDE_NOISY: Case(wide, Normal(), invertible=False, noisy=True),
}
