"""The IMA-regularised likelihood against its definition, and as the limit of ELBO*."""

import math

import pytest
import torch

import vaescope as vs
from tests.theory.decoders import Bent
from vaescope.data.mixings import LinearMap, Moebius, OrthogonalMLP, TriangularMLP
from vaescope.theory import ima_contrast, ima_likelihood, jacobian, log_marginal, project
from vaescope_papers.statistics import slope


def latents(d: int) -> torch.Tensor:
    return torch.randn(5, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).clamp(-1.5, 1.5)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("mixing", [OrthogonalMLP(3, seed=1), TriangularMLP(2, seed=4), LinearMap(4, seed=0)])
def test_it_is_the_likelihood_minus_the_weighted_contrast(mixing, strength):
    z = latents(mixing.dim)
    x = mixing(z)
    expected = log_marginal(mixing, x, precision=1.0, method="flow").value - strength * ima_contrast(mixing, z)
    torch.testing.assert_close(ima_likelihood(mixing, x, strength=strength), expected)


def test_a_decoder_without_an_inverse_is_inverted_numerically():
    mixing = OrthogonalMLP(2, seed=1)
    x = mixing(latents(2))
    found = ima_likelihood(lambda z: mixing(z), x, latent_dim=2)
    torch.testing.assert_close(found, ima_likelihood(mixing, x))


@pytest.mark.parametrize(("d", "n"), [(1, 1), (2, 4), (3, 3)])
def test_it_is_the_limit_of_the_best_elbo(d, n):
    decoder, z = Bent(d, n), latents(d)
    value = ima_likelihood(decoder, decoder(z), start=z)
    precisions = [1e3, 1e4]
    errors = []
    for precision in precisions:
        outside = 0.5 * (n - d) * math.log(precision / (2 * math.pi))  # noise in the directions without latents
        best = project(decoder, decoder(z), precision=precision, start=z).elbo - outside
        errors.append(float((best - value).abs().mean()))
    assert slope(precisions, errors) == pytest.approx(-1, abs=0.05)


@pytest.mark.parametrize("strength", [0.0, 0.5, 3.0])
def test_with_more_outputs_than_latents_it_is_a_density_on_the_image(strength):
    decoder, z = Bent(2, 4), latents(2)
    J = jacobian(decoder, z)
    density = vs.Normal().log_density(z).sum(1) - 0.5 * torch.logdet(J.mT @ J)
    found = ima_likelihood(decoder, decoder(z), strength=strength, start=z)
    torch.testing.assert_close(found, density - strength * ima_contrast(decoder, z))


def test_without_a_penalty_it_is_the_limit_of_the_likelihood():
    decoder, z = Bent(2, 4), latents(2)
    value = ima_likelihood(decoder, decoder(z), strength=0.0, start=z)
    precisions, errors = [1e3, 1e4], []
    for precision in precisions:
        likelihood = log_marginal(decoder, decoder(z), precision=precision, start=z).value
        errors.append(float((likelihood - math.log(precision / (2 * math.pi)) - value).abs().mean()))  # (n - d)/2 = 1
    assert slope(precisions, errors) == pytest.approx(-1, abs=0.05)


def test_conformal_maps_are_not_penalised():
    mixing, prior = Moebius(3, seed=0), vs.Uniform(-0.5, 0.5)
    x = mixing(0.5 * prior.sample(5, 3, generator=torch.Generator().manual_seed(0)))
    values = [ima_likelihood(mixing, x, strength=strength, prior=prior) for strength in (0.0, 10.0)]
    torch.testing.assert_close(*values)


def test_assumptions_that_fail_are_reported():
    decoder = Bent(2, 3)
    away = decoder(latents(2)) + 1.0  # outside the image
    with pytest.raises(vs.InputError, match="needs x in the decoder's image, but 5 of 5"):
        ima_likelihood(decoder, away)
    with pytest.raises(vs.InputError, match="strength"):
        ima_likelihood(decoder, away, strength=-1.0)
