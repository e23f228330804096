"""Data whose sources are known, some recoverable by a VAE and some not, for `benchmarks.identifiability`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import vaescope as vs
from vaescope.data.mixings import random_orthogonal
from vaescope.data.rendering.images import Sprites

DIM = 3
SAMPLES = 4000
SPRITE_PIXELS = 12
BOX = vs.Uniform(-0.5, 0.5)
Mix = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """A family of data sets, one per mixing seed."""

    name: str
    mixing: Callable[[int], Mix]
    sources: str
    """`uniform` in the box, with that prior; or `normal`, with a normal prior."""
    precision: float
    outputs: int = DIM
    """Numbers per observation."""
    firm: bool = False
    """Whether the ELBO holds other axes than the sources firmly, which nothing but the sources can show."""

    def data(self, seed: int) -> tuple[Tensor, Tensor]:
        """Observations and sources."""
        generator = torch.Generator().manual_seed(1000 + seed)
        if self.sources == "uniform":
            sources = BOX.sample(SAMPLES, DIM, generator=generator)
        else:
            sources = torch.randn(SAMPLES, DIM, generator=generator, dtype=torch.float64)
        x = self.mixing(seed)(sources)
        scale = (x - x.mean(0)).square().mean().sqrt()
        return ((x - x.mean(0)) / scale).float(), sources


def linear(lengths: tuple[float, ...], *, rotated: bool = False) -> Callable[[int], Mix]:
    """Orthogonal columns of these lengths, after a rotation of the sources if `rotated`."""

    def mixing(seed: int) -> Mix:
        generator = torch.Generator().manual_seed(seed)
        columns = random_orthogonal(DIM, generator) * torch.tensor(lengths, dtype=torch.float64)
        turn = random_orthogonal(DIM, generator) if rotated else torch.eye(DIM, dtype=torch.float64)
        return lambda z: z @ (columns @ turn).T

    return mixing


def conformal_of_normal(seed: int) -> Mix:
    """A Möbius transform of normal sources that stay away from its pole: every rotation of them is as likely."""
    mixing = vs.data.mixings.Moebius(DIM, seed=seed)
    return lambda z: mixing((0.12 * z).clamp(-0.5, 0.5))


def sprites(spread: float) -> Callable[[int], Mix]:
    """Circles of one colour whose horizontal position, vertical position and radius are the sources.

    Both positions move as many pixels per unit, so that only the shape of their distribution holds their axes. The
    seed has no part in the mixing, only in the sources.
    """
    renderer = Sprites(size=SPRITE_PIXELS, shapes=("circle",))
    centre = torch.tensor([0.5, 0.5, 0.175, 0.0], dtype=torch.float64)
    reach = torch.tensor([0.5, 0.5, 0.15], dtype=torch.float64)

    def mix(z: Tensor) -> Tensor:
        moved = (spread * z).clamp(-0.5, 0.5) * reach
        return renderer.render_batch(centre + torch.nn.functional.pad(moved, (0, 1)))[:, 0].flatten(1)

    return lambda seed: mix


CASES = [
    Case("Möbius, uniform sources", lambda seed: vs.data.mixings.Moebius(DIM, seed=seed), "uniform", 1e4),
    Case("Möbius, uniform sources, γ² = 30", lambda seed: vs.data.mixings.Moebius(DIM, seed=seed), "uniform", 30.0),
    Case("Möbius, normal sources", conformal_of_normal, "normal", 1e3),
    Case(
        "orthogonal MLP, one layer",
        lambda seed: vs.data.mixings.OrthogonalMLP(DIM, layers=1, seed=seed, activate_input=True),
        "uniform",
        1e4,
    ),
    Case(
        "orthogonal MLP, three layers",
        lambda seed: vs.data.mixings.OrthogonalMLP(DIM, layers=3, seed=seed),
        "uniform",
        1e4,
    ),
    Case("linear, distinct eigenvalues", linear((1.0, 2.0, 4.0)), "normal", 100.0),
    Case("linear, two equal eigenvalues", linear((1.0, 1.0, 3.0)), "normal", 100.0),
    Case("linear, equal eigenvalues", linear((1.0, 1.0, 1.0)), "normal", 100.0),
    Case("rotated normal sources", linear((1.0, 1.0, 1.0), rotated=True), "normal", 30.0),
    Case("rotated normal sources, distinct lengths", linear((1.0, 2.0, 4.0), rotated=True), "normal", 100.0, firm=True),
    Case("sprites, uniform factors", sprites(1.0), "uniform", 10.0, outputs=SPRITE_PIXELS**2),
]
