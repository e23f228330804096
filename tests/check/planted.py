"""Count models whose exact posterior is on a grid, and linear models, with misfits planted in their data."""

from dataclasses import dataclass

import torch

import vaescope as vs
from tests.certify.models import LinearModel

LINEAR = LinearModel.random(3, 8, precision=10.0)


@dataclass(frozen=True)
class CountModel:
    """x_j ~ Poisson or NB with mean exp(b_j + w_j z), z ~ N(0, 1): mean and variance of the posterior by quadrature."""

    genes: int = 12
    shape: float = 0.0
    """Of the negative binomial; 0 for Poisson."""

    def rates(self, z):
        w = torch.linspace(-0.8, 0.8, self.genes, dtype=torch.float64)
        b = torch.linspace(0.0, 2.0, self.genes, dtype=torch.float64)
        return torch.exp(b + z.double() * w)

    def log_likelihood(self, x, z):
        rate = self.rates(z)
        if not self.shape:
            return torch.distributions.Poisson(rate).log_prob(x.double()).sum(-1)
        return self._negative_binomial(rate).log_prob(x.double()).sum(-1)

    def _negative_binomial(self, rate):
        shape = torch.full_like(rate, self.shape)
        return torch.distributions.NegativeBinomial(shape, probs=rate / (rate + shape), validate_args=False)

    def sample(self, z, generator):
        rate = self.rates(z)
        if self.shape:
            gamma = torch.distributions.Gamma(self.shape, self.shape)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
                rate = rate * gamma.sample(rate.shape)
        return torch.poisson(rate, generator=generator)

    def encode(self, x):
        grid = torch.linspace(-5, 5, 201, dtype=torch.float64)[:, None]
        rate = self.rates(grid)
        if self.shape:  # terms without z are left out
            log_p = x.double() @ (rate / (rate + self.shape)).log().T - self.shape * (rate + self.shape).log().sum(1)
        else:
            log_p = x.double() @ rate.log().T - rate.sum(1)
        weight = (log_p - grid.squeeze(1).square() / 2).softmax(1)
        mean = weight @ grid
        return mean, weight @ grid.square() - mean.square()

    def model(self):
        return vs.adapters.from_callables(
            encode=self.encode,
            decode=self.rates,
            latent_dim=1,
            log_likelihood=self.log_likelihood,
            sample_observations=self.sample,
        )

    def draw(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        return self.sample(torch.randn(count, 1, generator=generator, dtype=torch.float64), generator)


def too_noisy(count, seed):
    """Gaussian x whose noise has 1.3 times the declared standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, 8, generator=generator, dtype=torch.float64)
    return LINEAR.decode(z) + 1.3 * noise / LINEAR.precision**0.5


def two_modes(count, seed):
    """Gaussian x whose first code has two modes, and the mean and variance of the prior."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    side = 2.0 * torch.randint(0, 2, (count,), generator=generator) - 1
    z[:, 2] = 0.9 * side + (1 - 0.9**2) ** 0.5 * z[:, 2]
    noise = torch.randn(count, 8, generator=generator, dtype=torch.float64)
    return LINEAR.decode(z) + noise / LINEAR.precision**0.5


def zero_inflated(count, seed):
    """Poisson counts of which 10 % are replaced by zeros."""
    x = CountModel().draw(count, seed)
    return x * (torch.rand(x.shape, generator=torch.Generator().manual_seed(seed + 1)) > 0.1)


def wrong_link(count, seed):
    """Rates that are linear in z where the model has exponentials with the same value and slope at z = 0."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    plain = CountModel()
    base = plain.rates(torch.zeros(1, 1))
    slope = torch.linspace(-0.8, 0.8, plain.genes, dtype=torch.float64)
    return torch.poisson((base * (1 + slope * z)).clamp(min=0.05), generator=generator)


MISFITS = {
    "Poisson for negative binomial": (CountModel().model, lambda n, seed: CountModel(shape=8.0).draw(n, seed)),
    "missing zero inflation": (CountModel().model, zero_inflated),
    "wrong link": (CountModel().model, wrong_link),
    "too small variance": (LINEAR.model, too_noisy),
    "missing mode": (LINEAR.model, two_modes),
}
"""A model, and data that it does not make."""
TRUTHS = {
    "linear": (LINEAR.model, LINEAR.draw),
    "Poisson": (CountModel().model, CountModel().draw),
    "negative binomial": (CountModel(shape=8.0).model, CountModel(shape=8.0).draw),
}
