"""Theorem 1 of Bonheme & Grzes 2023: its limit on non-linear decoders, and the two optima of its proof."""

import math

import pytest
import torch
from tests.theory.decoders import Bent

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.distributions import DiagonalGaussian, FullGaussian, kl_per_latent
from vaescope.theory import elbo, jacobian, optimal_covariance, optimal_variance, project
from vaescope_papers.embrace_the_gap.theorems import eigenvalue_bounds
from vaescope_papers.polarised_regime.theorems import two_optima, variance_limit
from vaescope_papers.statistics import slope


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).clamp(-1.5, 1.5)


@pytest.mark.parametrize("used", [1, 2, 3])
def test_variances_of_used_latents_fall_with_the_noise_and_others_stay_at_the_prior(used):
    bent = Bent(used, 4)

    def decoder(z):
        return bent(z[:, :used])

    found = variance_limit(decoder, draw(3, 3), precisions=(1e3, 1e5))
    assert found.diagonal[:used] == pytest.approx(-1, abs=0.01)
    assert found.diagonal[used:] == pytest.approx(0, abs=1e-6)
    assert (found.active, found.directions, found.aligned) == (used, used, True)


def test_a_superfluous_direction_that_is_no_latent_leaves_no_latent_passive():
    """One direction of two is used, but both columns are non-zero: Σ* keeps an eigenvalue, a diagonal q does not."""
    bent = Bent(1, 3)
    found = variance_limit(lambda z: bent(z.sum(1, keepdim=True)), draw(3, 2), precisions=(1e3, 1e5))
    assert found.full == pytest.approx([-1, 0], abs=0.01)
    assert found.diagonal == pytest.approx([-1, -1], abs=0.05)
    assert not found.aligned
    with pytest.raises(InputError, match="converged at no point"):
        variance_limit(lambda z: z.float().double() + 1e-3 * torch.randn_like(z), draw(3, 2), precisions=(1e3, 1e5))
    with pytest.raises(InputError, match="rising"):
        variance_limit(lambda z: z, draw(3, 2), precisions=(10.0, 1.0))


def test_the_optimum_of_equation_11_is_not_that_of_the_papers_posterior():
    J = torch.tensor([[[1.0, 1.0], [0.0, 0.1]]], dtype=torch.float64)
    prior_variance = torch.ones(1, 2, dtype=torch.float64)
    found = two_optima(J, precision=100.0, prior_variance=prior_variance)
    low, high = eigenvalue_bounds(J, prior_variance=prior_variance, precision=100.0)
    torch.testing.assert_close(found.full, low)  # Eq. 12 holds for the full covariance, here with equality,
    assert bool((found.diagonal < low * 0.99).any())  # and not for the diagonal one
    assert bool((found.diagonal > high * 1.01).any())
    orthogonal = two_optima(J @ torch.linalg.svd(J[0]).Vh.T, precision=100.0, prior_variance=prior_variance)
    torch.testing.assert_close(orthogonal.diagonal, orthogonal.full)
    assert float(orthogonal.loss) == pytest.approx(0, abs=1e-12)


def test_both_optima_and_the_loss_between_them_against_the_elbo():
    decoder, z = Bent(3, 4), draw(2, 3)
    W = jacobian(decoder, z)[0]
    found = two_optima(W.expand(2, 4, 3), precision=9.0, prior_variance=torch.ones(2, 3, dtype=torch.float64))

    def linear(z):
        return z @ W.T

    x, mean = linear(z), torch.linalg.solve(torch.eye(3) + 9 * W.T @ W, 9 * W.T @ linear(z).T).T
    diagonal = optimal_variance(linear, z, precision=9.0)
    covariance = optimal_covariance(linear, z, precision=9.0)
    torch.testing.assert_close(found.diagonal, diagonal.sort(dim=1).values)
    torch.testing.assert_close(found.full, torch.linalg.eigvalsh(covariance))
    best = elbo(linear, x, FullGaussian(mean, torch.linalg.cholesky(covariance)), precision=9.0)
    own = elbo(linear, x, DiagonalGaussian(mean, diagonal), precision=9.0)
    torch.testing.assert_close(best - own, found.loss, rtol=1e-8, atol=1e-10)


@pytest.mark.long
def test_a_trained_non_linear_vae_reaches_the_limit():
    """Four latents for data on a curved surface of two dimensions: two variances vanish, two stay at the prior."""
    z = torch.randn(3000, 2, generator=torch.Generator().manual_seed(0))
    x = Bent(2, 5)(z.double()).float()
    settings = vs.training.TrainSettings(epochs=150, patience=150, learning_rate=3e-3, compile="never")
    fit = vs.fit(x, latent_dim=4, precision=20.0, hidden=(30,), seeds=(0,), settings=settings)
    member = fit.members[0]
    mean, _ = member.encode(x[:5])
    found = variance_limit(member.decode, mean.double(), precisions=(1e2, 1e3))
    assert found.active == found.directions == 2


def test_the_distortion_tends_to_half_a_nat_per_latent_in_use():
    """Eq. 15, with its constant: γ² E‖x - f(z)‖² -> d for d latents in use, whatever the decoder; unused ones add 0."""
    z = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).clamp(-1.5, 1.5)
    for decoder, used in ((Bent(3, 5), 3), (lambda z: Bent(2, 4)(z[:, :2]), 2)):
        errors = []
        for precision in (1e3, 1e4):
            best = project(decoder, decoder(z), precision=precision, start=z)
            kl = kl_per_latent(best.mean, best.variance, vs.Normal()).sum(1)
            constant = 0.5 * decoder(z).shape[1] * math.log(precision / (2 * math.pi))
            errors.append(float((-2 * (best.elbo + kl - constant) - used).abs().mean()))
        assert errors[1] < 0.02
        assert slope([1e3, 1e4], errors) == pytest.approx(-1, abs=0.05)
