"""Theorem 2 of Bhowal et al. 2024: overlap against the neighbour graph; distances that are not monotone in the KL."""

import pytest
import torch

from vaescope.core.errors import InputError
from vaescope.distributions import Normal, kl_per_latent
from vaescope.inference import linear
from vaescope.orthogonality import neighbour_distance
from vaescope.orthogonality.neighbours import expected_distance, nearest_neighbours, overlap, overlap_agreement


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_overlap_is_the_integral_of_the_root_of_both_densities():
    mean, variance = draw(3, 1), 0.1 + draw(3, 1, seed=1).abs()
    grid = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    densities = torch.exp(-((grid - mean) ** 2) / (2 * variance)) / (2 * torch.pi * variance).sqrt()
    expected = torch.einsum("ig,kg->ik", densities.sqrt(), densities.sqrt()) * float(grid[1] - grid[0])
    torch.testing.assert_close(overlap(mean, variance), expected, rtol=1e-6, atol=1e-9)
    wide = overlap(draw(4, 3), torch.ones(4, 3).double())
    torch.testing.assert_close(wide, wide.T)
    torch.testing.assert_close(wide.diagonal(), torch.ones(4).double())


def test_overlapping_posteriors_are_neighbours_of_an_isometric_encoder_only():
    x = draw(120, 2)
    variance = torch.full_like(x, 0.05)
    isometric = overlap_agreement(x, x, variance, neighbours=5)
    shuffled = overlap_agreement(
        x, x[torch.randperm(120, generator=torch.Generator().manual_seed(1))], variance, neighbours=5
    )
    assert isometric.share == pytest.approx(1, abs=1e-9)
    assert isometric.ranking == pytest.approx(1, abs=1e-9)
    assert shuffled.share == pytest.approx(shuffled.chance, abs=0.03)
    assert shuffled.ranking == pytest.approx(0.5, abs=0.05)


def test_neighbours_in_the_data_need_not_overlap_where_the_manifold_returns_to_itself():
    """A spiral: data of neighbouring turns are near, their codes (arc lengths) are not. Theorem 2 (a) fails there."""
    angle = torch.linspace(2, 12, 200, dtype=torch.float64)
    spiral = 0.02 * angle.unsqueeze(1) * torch.stack([angle.cos(), angle.sin()], dim=1)
    line = angle.unsqueeze(1)
    variance = torch.full_like(line, 0.01)
    straight = overlap_agreement(line, line, variance, neighbours=6)
    wound = overlap_agreement(spiral * torch.tensor([1.0, 0.02]).double(), line, variance, neighbours=6)
    assert straight.share > 0.95
    assert wound.share < 0.6


def test_neighbours_and_their_distances():
    x = torch.tensor([[0.0], [1.0], [3.0], [7.0]])
    assert nearest_neighbours(x, 2).tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]
    codes = 2 * x
    assert neighbour_distance(x, codes, typical=False, neighbours=2).tolist() == [4, 3, 5, 10]
    found = expected_distance(x, codes, torch.full_like(codes, 0.5), neighbours=2)
    assert found.tolist() == [4 + 36 + 2, 4 + 16 + 2, 16 + 36 + 2, 64 + 144 + 2]
    with pytest.raises(InputError, match="neighbours must be below"):
        nearest_neighbours(x, 4)


def test_the_distance_of_draws_is_its_expectation():
    x, variance = draw(50, 3), 0.1 + draw(50, 3, seed=1).abs()
    draws = [x + variance.sqrt() * draw(50, 3, seed=seed) for seed in range(2, 302)]
    nearest = nearest_neighbours(x, 1)[:, 0]
    generator = [x + variance.sqrt() * draw(50, 3, seed=seed) for seed in range(1000, 1300)]
    sampled = torch.stack([(a - b[nearest]).square().sum(1) for a, b in zip(draws, generator, strict=True)]).mean()
    assert float(expected_distance(x, x, variance).mean()) == pytest.approx(float(sampled), rel=0.03)


def test_along_beta_the_distance_of_draws_rises_while_the_kl_falls():
    """A linear VAE at its optimum for every β, in closed form: Theorem 2 (b) has the wrong sign for draws."""
    x = draw(300, 3) * torch.tensor([3.0, 2.0, 1.0]).double()
    kls, of_draws, of_means = [], [], []
    for beta in (0.03, 0.1, 0.3, 0.6, 20.0):
        precision = 1 / beta
        lengths = (torch.tensor([9.0, 4.0, 1.0]).double() - beta).clamp(min=0).sqrt()  # probabilistic PCA
        W = torch.diag(lengths)
        mean = linear.posterior(x, W, precision)[0]
        variance = linear.optimal_variance(W, precision).expand_as(mean)
        kls.append(float(kl_per_latent(mean, variance, Normal()).sum(1).mean()))
        of_draws.append(float(expected_distance(x, mean, variance, neighbours=5).mean()))
        of_means.append(float(neighbour_distance(x, mean, typical=False, neighbours=5).mean()))
    assert kls == sorted(kls, reverse=True)
    assert of_draws == sorted(of_draws)
    assert of_means == sorted(of_means, reverse=True)
    assert kls[-1] == pytest.approx(0, abs=1e-12)  # collapsed,
    assert of_draws[-1] == pytest.approx(5 * 2 * 3)  # and 2d per neighbour


def test_scaling_the_means_moves_distance_and_kl_together():
    x, variance = draw(100, 2), torch.full((100, 2), 1e-3).double()
    small, large = (
        (float(expected_distance(x, s * x, variance).mean()), float(kl_per_latent(s * x, variance, Normal()).mean()))
        for s in (1.0, 2.0)
    )
    assert small[0] < large[0]
    assert small[1] < large[1]
