"""Observation models with any covariance: against closed forms, and the conjecture about isotropic posteriors."""

import pytest
import torch

import vaescope as vs
from tests.theory.decoders import Bent
from vaescope.core.errors import InputError
from vaescope.inference.anisotropic import Noise, isotropic_posterior, noise_of_residuals
from vaescope.theory import gap, ima_contrast, log_marginal, project
from vaescope_papers.statistics import slope


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def full(n: int, scale: float = 1.0, seed: int = 1) -> Noise:
    A = draw(n, n, seed=seed)
    return Noise(scale * (A @ A.T + torch.eye(n)))


def diagonal(n: int, scale: float = 1.0) -> Noise:
    return Noise(scale * torch.logspace(-1, 1, n, dtype=torch.float64))


@pytest.mark.parametrize("make", [full, diagonal])
def test_the_likelihood_agrees_with_torch(make):
    noise, x, mean = make(3), draw(4, 3), draw(4, 3, seed=3)
    precision = noise.precision if noise.precision.ndim == 2 else torch.diag(noise.precision)
    expected = torch.distributions.MultivariateNormal(mean, precision_matrix=precision).log_prob(x)
    torch.testing.assert_close(noise.log_likelihood(x, mean), expected)


@pytest.mark.parametrize(("d", "make"), [(1, full), (2, full), (2, diagonal), (3, full), (4, full)])
def test_a_linear_decoder_has_closed_forms(d, make):
    W, noise = draw(d + 1, d), make(d + 1)
    x = draw(2, d + 1, seed=4)
    precision = noise.precision if noise.precision.ndim == 2 else torch.diag(noise.precision)
    posterior = torch.eye(d) + W.T @ precision @ W
    marginal = torch.distributions.MultivariateNormal(
        torch.zeros(d + 1).double(), W @ W.T + torch.linalg.inv(precision)
    )

    def decoder(z):
        return z @ W.T

    likelihood = log_marginal(decoder, x, precision=noise, latent_dim=d)
    torch.testing.assert_close(likelihood.value, marginal.log_prob(x))
    found = project(decoder, x, precision=noise, latent_dim=d)
    torch.testing.assert_close(found.mean, torch.linalg.solve(posterior, W.T @ precision @ x.T).T)
    torch.testing.assert_close(found.variance, (1 / posterior.diagonal()).expand(2, d))
    gap = 0.5 * (posterior.diagonal().log().sum() - posterior.logdet())
    torch.testing.assert_close(marginal.log_prob(x) - found.elbo, gap.expand(2))


def test_isotropic_noise_is_the_usual_projection():
    decoder, z = Bent(2, 3), draw(3, 2)
    noise = Noise(torch.full((3,), 50.0, dtype=torch.float64))
    x = decoder(z)
    found = project(decoder, x, precision=noise, latent_dim=2, start=z)
    usual = project(decoder, x, precision=50.0, start=z)
    torch.testing.assert_close(found.elbo, usual.elbo)
    torch.testing.assert_close(found.mean, usual.mean)
    value = log_marginal(decoder, x, precision=noise, latent_dim=2, start=z).value
    torch.testing.assert_close(value, log_marginal(decoder, x, precision=50.0, start=z).value)


def test_the_gap_tends_to_the_contrast_of_the_whitened_decoder():
    decoder, z = Bent(2, 3), draw(2, 2).clamp(-1.5, 1.5)
    scales, errors = [1e3, 1e4], []
    for scale in scales:
        noise = full(3, scale)
        likelihood = log_marginal(decoder, decoder(z), precision=noise, latent_dim=2, start=z).value
        best = project(decoder, decoder(z), precision=noise, latent_dim=2, start=z).elbo
        limit = ima_contrast(noise.whitened(decoder), z)
        errors.append(float((likelihood - best - limit).abs().mean()))
    assert slope(scales, errors) == pytest.approx(-1, abs=0.05)
    assert float((limit - ima_contrast(decoder, z)).abs().min()) > 0.01  # not that of the decoder itself


@pytest.mark.parametrize(("make", "encoder_orthogonal"), [(diagonal, True), (full, False)])
def test_an_isotropic_posterior_closes_the_gap_for_a_decoder_outside_the_ima_class(make, encoder_orthogonal):
    """J = R⁻¹ O: no gap with an isotropic posterior. J_g has orthogonal columns for a diagonal covariance only."""
    noise = make(3, 1e4)
    rotation = torch.linalg.qr(draw(3, 3, seed=5)).Q
    W = 0.1 * torch.linalg.solve(noise.root, 1e2 * rotation)

    def decoder(z):
        return z @ W.T

    z = draw(2, 3)
    found = isotropic_posterior(decoder, z, noise=noise)
    assert float(found.gap.max()) < 1e-10
    assert float(found.decoder.min()) > 0.01
    assert (float(found.encoder.max()) < 1e-10) == encoder_orthogonal
    best = project(decoder, decoder(z), precision=noise, latent_dim=3, family="isotropic").elbo
    value = log_marginal(decoder, decoder(z), precision=noise, latent_dim=3).value
    torch.testing.assert_close(best, value, rtol=0, atol=1e-8)
    turned = isotropic_posterior(lambda z: z @ (W * torch.tensor([1.0, 2.0, 1.0])).T, z, noise=noise)
    assert float(turned.gap.min()) > 0.1  # columns of different length: the gap is open


def test_a_gaussian_prior_leaves_isotropic_posteriors_a_rotation():
    """f and f∘R have the same best ELBO with isotropic posteriors, and not with a Laplace prior."""
    bent, z = Bent(2, 2), draw(2, 2).clamp(-1, 1)
    turn = torch.linalg.qr(draw(2, 2, seed=7)).Q
    x = bent(z)

    def best(decoder, start, prior):
        return project(decoder, x, precision=50.0, prior=prior, start=start, family="isotropic").elbo

    for prior, same in ((vs.Normal(), True), (vs.Laplace(), False)):
        difference = best(bent, z, prior) - best(lambda z: bent(z @ turn.T), z @ turn, prior)
        assert (float(difference.abs().max()) < 1e-7) == same


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_a_learned_covariance_is_that_of_the_residuals(kind):
    planted = diagonal(3) if kind == "diagonal" else full(3)
    residuals = torch.linalg.solve(planted.root, draw(3, 40_000, seed=6)).T
    found = noise_of_residuals(residuals, kind)
    torch.testing.assert_close(found.precision, planted.precision, rtol=0.1, atol=0.1)
    better, worse = (n.log_likelihood(residuals, 0 * residuals).mean() for n in (found, Noise(1.1 * found.precision)))
    assert better > worse


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(2, 3), r"\(n,\) or \(n, n\)"),
        (torch.tensor([1.0, 0.0]), "> 0 for every output"),
        (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "positive definite"),
    ],
)
def test_bad_noise_is_explained(value, message):
    with pytest.raises(InputError, match=message):
        Noise(value)


def test_noise_of_another_number_of_outputs_is_explained():
    with pytest.raises(InputError, match="the noise has 2 outputs, but x or the decoder has 3"):
        project(Bent(2, 3), torch.zeros(1, 3, dtype=torch.float64), precision=diagonal(2))


def test_the_parts_of_the_gap_are_those_of_the_whitened_decoder():
    decoder, noise, z = Bent(2, 3), full(3, 50.0), draw(2, 2)
    q = vs.distributions.DiagonalGaussian(z, torch.full_like(z, 0.02))
    found = gap(decoder, decoder(z), q, precision=noise)
    whitened = gap(noise.whitened(decoder), noise.whiten(decoder(z)), q, precision=1.0)
    for part in ("family", "amortization", "contrast"):
        torch.testing.assert_close(getattr(found, part), getattr(whitened, part))
    torch.testing.assert_close(found.log_marginal, whitened.log_marginal + noise.log_volume)


def test_decoders_and_residuals_outside_the_assumptions_are_reported():
    z = torch.zeros(2, 2, dtype=torch.float64)
    flat = isotropic_posterior(lambda z: z.sum(1, keepdim=True).expand(-1, 2), z, noise=Noise(torch.ones(2).double()))
    assert flat.gap.isinf().all()
    assert flat.decoder.isinf().all()
    assert flat.encoder.isinf().all()
    with pytest.raises(InputError, match="singular"):
        noise_of_residuals(torch.randn(3, 5, dtype=torch.float64), "full")
