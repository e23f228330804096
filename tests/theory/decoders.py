"""Decoders for tests of the theory."""

import torch

import vaescope as vs
from vaescope.data.mixings import Affine, Compose, LinearMap, Mixing, Moebius, OrthogonalMLP, TriangularMLP


class Wide:
    """Two latents, five outputs: n > d."""

    dim = 2

    def __init__(self, seed: int = 3) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.first = torch.randn(2, 8, dtype=torch.float64, generator=generator)
        self.second = 0.5 * torch.randn(8, 5, dtype=torch.float64, generator=generator)

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        return torch.tanh(z @ self.first.to(z)) @ self.second.to(z)


class Bent:
    """A smooth injective map of d latents to n >= d outputs: a linear map plus bends in every direction."""

    def __init__(self, dim: int, outputs: int, seed: int = 0) -> None:
        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=generator)

        generator = torch.Generator().manual_seed(seed)
        self.dim = dim
        self.linear = 3 * torch.linalg.qr(draw(outputs, dim)).Q + 0.6 * draw(outputs, dim)
        self.first, self.second = draw(dim, 6) / dim**0.5, 0.3 * draw(6, outputs)

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        return z @ self.linear.T.to(z) + torch.tanh(z @ self.first.to(z)) @ self.second.to(z)


def scaled(dim: int, scale: float) -> Mixing:
    return Mixing(dim, [Affine(scale * torch.eye(dim, dtype=torch.float64))])


SMOOTH = {
    "orthogonal, d=1": (OrthogonalMLP(1, seed=0), vs.Normal()),
    "orthogonal, d=2": (OrthogonalMLP(2, seed=0), vs.Normal()),
    "orthogonal, d=3": (OrthogonalMLP(3, seed=1), vs.Normal()),
    # scaled up, so that γ² = 1e3 is near-deterministic: their own Jacobians are small
    "triangular": (Compose(TriangularMLP(2, seed=4), scaled(2, 20.0)), vs.Normal()),
    "moebius and linear, uniform": (
        Compose(Moebius(2, seed=3, scale=20.0), LinearMap(2, contrast=0.3, seed=0)),
        vs.Uniform(-0.5, 0.5),
    ),
    "wide, n > d": (Wide(), vs.Normal()),
}


def latents(name: str, count: int = 40, seed: int = 0) -> torch.Tensor:
    """Latents away from the tails of the prior, and from the border of a bounded one, where convergence is slow."""
    decoder, prior = SMOOTH[name]
    z = prior.sample(count, decoder.dim, generator=torch.Generator().manual_seed(seed))
    return z.clamp(-1.5, 1.5) if prior.bounds is None else 0.6 * z
