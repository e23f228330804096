"""The KL of every posterior family against torch.distributions and against sampling."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions as td

import vaescope as vs
from vaescope.distributions import DiagonalGaussian, FullGaussian, IsotropicGaussian, kl, kl_per_latent
from vaescope.distributions.posteriors import POSTERIOR_FAMILIES, posterior_family


def random_posterior(name: str, d: int = 3, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    cls = posterior_family(name)
    return cls.from_outputs(torch.randn(5, cls.output_dim(d), dtype=torch.float64, generator=generator), d)


def as_torch(posterior):
    if isinstance(posterior, FullGaussian):
        return td.MultivariateNormal(posterior.mean, scale_tril=posterior.scale)
    sd = posterior.marginal_variance.sqrt()
    return td.MultivariateNormal(posterior.mean, scale_tril=torch.diag_embed(sd))


@settings(max_examples=30)
@given(name=st.sampled_from(sorted(POSTERIOR_FAMILIES)), d=st.integers(1, 6), seed=st.integers(0, 1000))
def test_kl_from_a_normal_prior_matches_torch(name, d, seed):
    posterior = random_posterior(name, d, seed)
    prior = vs.Normal(0.3, 2.0)
    target = td.MultivariateNormal(torch.full((d,), 0.3, dtype=torch.float64), 2.0 * torch.eye(d, dtype=torch.float64))
    torch.testing.assert_close(kl(posterior, prior), td.kl_divergence(as_torch(posterior), target))


@pytest.mark.parametrize("name", POSTERIOR_FAMILIES)
def test_entropy_matches_torch(name):
    posterior = random_posterior(name)
    torch.testing.assert_close(posterior.entropy(), as_torch(posterior).entropy())


@pytest.mark.parametrize("name", POSTERIOR_FAMILIES)
@pytest.mark.parametrize(
    "prior", [vs.Uniform(-0.5, 0.5), vs.Beta(2.0, 5.0), vs.Laplace()], ids=lambda p: type(p).__name__
)
def test_kl_from_other_priors_matches_sampling(name, prior):
    posterior = random_posterior(name, seed=3)
    q = as_torch(posterior)
    noise = torch.randn(200_000, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    u = posterior.sample(noise)
    log_ratio = q.log_prob(u) - (prior.log_density(prior.to_support(u)) + prior.log_derivative(u)).sum(-1)
    error = log_ratio.std(0) / 200_000**0.5
    assert ((log_ratio.mean(0) - kl(posterior, prior)).abs() < 4.5 * error + 1e-5).all()


@pytest.mark.parametrize("name", POSTERIOR_FAMILIES)
def test_samples_have_the_covariance_of_the_posterior(name):
    posterior = random_posterior(name, seed=2)
    noise = torch.randn(100_000, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    draws = posterior.sample(noise)
    torch.testing.assert_close(draws.var(0), posterior.marginal_variance, rtol=0.03, atol=0)
    covariance = torch.cov(draws[:, 0].T)
    torch.testing.assert_close(covariance, as_torch(posterior).covariance_matrix[0], rtol=0.05, atol=0.03)


def test_families_agree_on_an_isotropic_covariance():
    mean, variance = torch.randn(4, 2), torch.full((4, 1), 0.3)
    isotropic = IsotropicGaussian(mean, variance)
    diagonal = DiagonalGaussian(mean, variance.expand(4, 2))
    full = FullGaussian(mean, torch.diag_embed(variance.sqrt().expand(4, 2)))
    for other in (diagonal, full):
        torch.testing.assert_close(kl(isotropic, vs.Normal()), kl(other, vs.Normal()))


def test_kl_per_latent_sums_to_the_kl():
    posterior = random_posterior("diagonal")
    for prior in (vs.Normal(), vs.Uniform(), vs.Laplace()):
        per_latent = kl_per_latent(posterior.mean, posterior.variance, prior)
        torch.testing.assert_close(per_latent.sum(-1), kl(posterior, prior))


def test_one_member_of_a_stack():
    posterior = random_posterior("full")
    assert torch.equal(posterior.member(2).scale, posterior.scale[2])


def test_unknown_family():
    with pytest.raises(vs.InputError, match="one of diagonal, isotropic, full, got 'banana'"):
        posterior_family("banana")
