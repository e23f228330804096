"""Models whose exact or best posteriors are known."""

from dataclasses import dataclass

import torch

import vaescope as vs


@dataclass(frozen=True)
class LinearModel:
    """x = W z + noise, with the best diagonal posterior and a fault planted in it."""

    W: torch.Tensor
    precision: float

    @classmethod
    def random(cls, latents=3, outputs=8, *, precision=10.0, mixing=0.0, seed=0):
        """Columns are orthogonal if there is no mixing; then the best diagonal posterior is exact."""
        generator = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
        columns = torch.linalg.qr(draw(outputs, latents))[0] * torch.linspace(0.4, 2, latents, dtype=torch.float64)
        return cls(columns @ (torch.eye(latents, dtype=torch.float64) + mixing * draw(latents, latents)), precision)

    @property
    def posterior_precision(self):
        return torch.eye(self.W.shape[1], dtype=torch.float64) + self.precision * self.W.T @ self.W

    def encode(self, x):
        mean = torch.linalg.solve(self.posterior_precision, self.precision * self.W.T @ x.double().T).T
        return mean, (1 / self.posterior_precision.diagonal()).expand_as(mean)

    def decode(self, z):
        return z @ self.W.T.to(z)

    def draw(self, count, seed=0):
        generator = torch.Generator().manual_seed(seed)
        z, noise = (
            torch.randn(count, k, generator=generator, dtype=torch.float64) for k in (self.W.shape[1], len(self.W))
        )
        return self.decode(z) + noise / self.precision**0.5

    def model(self, change=lambda mean, variance: (mean, variance), decode=None):
        """The model with its encoder's outputs changed, and perhaps another decoder."""
        return vs.adapters.from_callables(
            encode=lambda x: change(*self.encode(x)),
            decode=decode or self.decode,
            latent_dim=self.W.shape[1],
            precision=self.precision,
        )


def curved(seed=0, *, bend=0.15, precision=30.0, latents=2, outputs=5, factor=1.0):
    """A nearly linear decoder with its exact projections, whose widths are multiplied by `factor`; and its decoder."""
    base = LinearModel.random(latents, outputs, mixing=0.3, precision=precision, seed=seed)

    def decode(z):
        linear = base.decode(z)
        return linear + bend * torch.tanh(linear)

    def encode(x):
        found = vs.theory.project(decode, x.double(), precision=precision, latent_dim=latents)
        return found.mean, factor**2 * found.variance

    model = vs.adapters.from_callables(encode=encode, decode=decode, latent_dim=latents, precision=precision)
    return model, decode
