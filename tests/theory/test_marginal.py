"""log p(x): all methods agree."""

import math

import numpy as np
import pytest
import scipy.stats
import torch

import vaescope as vs
from tests.theory.decoders import SMOOTH, latents
from vaescope.distributions import DiagonalGaussian, IsotropicGaussian
from vaescope.inference import linear
from vaescope.inference.marginal import fit_generalised_pareto, smooth
from vaescope.theory import gap, log_marginal, project


@pytest.mark.parametrize("precision", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("name", SMOOTH)
def test_importance_sampling_agrees_with_quadrature(name, precision):
    decoder, prior = SMOOTH[name]
    z = latents(name, 30)
    options = {"precision": precision, "prior": prior, "start": z}
    exact = log_marginal(decoder, decoder(z), **options)
    sampled = log_marginal(decoder, decoder(z), method="importance", **options)
    assert sampled.pareto_k is not None
    trusted = sampled.pareto_k < 0.7
    assert float(trusted.double().mean()) > 0.8
    difference = (sampled.value - exact.value).abs()
    assert (difference <= 4 * sampled.stderr + exact.stderr)[trusted].all()


def test_one_dimension_against_a_plain_integral():
    decoder, prior = SMOOTH["orthogonal, d=1"]
    x = torch.tensor([[0.3], [-0.8], [2.0]], dtype=torch.float64)
    grid = torch.linspace(-15, 15, 400_001, dtype=torch.float64)
    for precision in (0.5, 20.0):
        joint = prior.log_density(grid) - 0.5 * precision * (x - decoder(grid[:, None]).T) ** 2
        joint = joint + 0.5 * math.log(precision / (2 * math.pi))
        expected = torch.trapezoid(joint.exp(), grid, dim=1).log()
        found = log_marginal(decoder, x, precision=precision)
        torch.testing.assert_close(found.value, expected, rtol=1e-7, atol=1e-8)


def test_the_flow_is_the_limit_of_the_others():
    for name in ("orthogonal, d=2", "moebius and linear, uniform"):
        decoder, prior = SMOOTH[name]
        z = latents(name, 20)
        x = decoder(z)
        flow = log_marginal(decoder, x, precision=1.0, prior=prior, method="flow")
        torch.testing.assert_close(flow.value, prior.log_density(z).sum(1) - decoder.log_abs_det(z))
        searched = log_marginal(lambda p, f=decoder: f(p), x, precision=10.0, prior=prior, method="flow", latent_dim=2)
        torch.testing.assert_close(searched.value, flow.value, rtol=1e-5, atol=1e-5)
        near = log_marginal(decoder, x, precision=1e8, prior=prior)
        torch.testing.assert_close(near.value, flow.value, rtol=0, atol=1e-4)


def test_many_latents_by_importance_sampling():
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(30, 12, dtype=torch.float64, generator=generator)
    x = torch.randn(3, 12, dtype=torch.float64, generator=generator) @ W.T
    found = log_marginal(lambda z: z @ W.T, x, precision=4.0, method="importance", latent_dim=12)
    assert ((found.value - linear.log_likelihood(x, W, 4.0)).abs() < 4 * found.stderr).all()
    with pytest.raises(vs.InputError, match="use method='importance'"):
        log_marginal(lambda z: z @ W.T, x, precision=4.0, latent_dim=12)


def test_pareto_k_detects_a_poor_proposal():
    decoder, _ = SMOOTH["orthogonal, d=2"]
    z = latents("orthogonal, d=2", 10)
    best = project(decoder, decoder(z), precision=1e3, family="full").posterior
    narrow = type(best)(best.mean + 0.02, 0.3 * best.scale)
    poor = log_marginal(decoder, decoder(z), precision=1e3, method="importance", proposal=narrow)
    good = log_marginal(decoder, decoder(z), precision=1e3, method="importance")
    assert (poor.pareto_k > 0.7).all()
    assert (good.pareto_k < 0.7).all()


@pytest.mark.parametrize("shape", [-0.3, 0.2, 0.6, 0.9])
def test_pareto_shapes_are_recovered(shape):
    draws = scipy.stats.genpareto(shape, scale=2.0).rvs(size=(20, 2000), random_state=0)
    k, scale = fit_generalised_pareto(torch.from_numpy(np.sort(draws, axis=1)))
    assert float(k.mean()) == pytest.approx(shape, abs=0.05)
    assert float(scale.mean()) == pytest.approx(2.0, rel=0.05)


def test_constant_weights_are_unchanged():
    weights, k = smooth(torch.full((2, 500), -3.0, dtype=torch.float64))
    assert (k == -math.inf).all()
    torch.testing.assert_close(weights, torch.full((2, 500), -3.0, dtype=torch.float64))


@pytest.mark.parametrize("name", SMOOTH)
def test_the_gap_splits_into_two_non_negative_parts(name):
    decoder, prior = SMOOTH[name]
    z = latents(name, 15)
    u = prior.from_support(z)
    posterior = DiagonalGaussian(u + 0.01, torch.full_like(u, 1e-3))
    split = gap(decoder, decoder(z), posterior, precision=1e3, prior=prior)
    assert (split.family > -1e-8).all()
    assert (split.amortization > -1e-8).all()
    torch.testing.assert_close(split.total, split.family + split.amortization)


def test_an_optimal_encoder_has_no_amortization_gap():
    decoder, _ = SMOOTH["orthogonal, d=2"]
    x = decoder(latents("orthogonal, d=2", 15))
    best = project(decoder, x, precision=1e4)
    posterior = DiagonalGaussian(best.mean, best.variance)
    split = gap(decoder, x, posterior, precision=1e4)
    assert float(split.amortization.abs().max()) < 1e-9
    torch.testing.assert_close(split.family, split.contrast, atol=2e-3, rtol=0)
    isotropic = IsotropicGaussian(best.mean, best.variance.mean(1, keepdim=True))
    wider = gap(decoder, x, isotropic, precision=1e4)
    assert (wider.family >= split.family - 1e-10).all()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"method": "guess"}, "method must be one of quadrature, importance, flow"),
        ({"method": "importance", "samples": 3}, "samples must be at least 100"),
        ({"method": "flow", "latent_dim": 1, "decoder": lambda z: torch.cat([z, z], 1)}, "as many outputs as latents"),
        ({"method": "flow", "decoder": lambda z: torch.sigmoid(z)}, "needs x in the decoder's image"),
    ],
)
def test_bad_arguments_are_explained(keywords, message):
    call = {"decoder": lambda z: z, "precision": 1.0, "latent_dim": 2} | keywords
    with pytest.raises(vs.InputError, match=message):
        log_marginal(call.pop("decoder"), torch.full((2, 2), 3.0, dtype=torch.float64), **call)
