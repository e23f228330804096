"""Linear VAEs: the number of active latents is a count of principal values, in closed form."""

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.errors import InputError
from vaescope.regime import classify, eigenvalue_bounds, of_model, used_directions
from vaescope.theory import jacobian, optimal_covariance

LATENTS = 10
VALUES = np.array([8.0, 4.0, 2.0, 1.0, 0.5, 0.25])  # principal values of the data's covariance
GRID = [0.06, 0.2, 0.35, 0.7, 0.8, 1.4, 1.6, 2.8, 3.4, 6.0, 50.0]


def principal_vae(values: np.ndarray, precision: float) -> np.ndarray:
    """The optimum of an over-wide linear VAE (Tipping & Bishop 1999; Lucas et al. 2019): columns √(λ - 1/γ²) or 0."""
    scale = np.zeros(LATENTS)
    kept = np.maximum(values - 1 / precision, 0)
    scale[: len(values)] = np.sqrt(kept)
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.normal(size=(20, 20)))[0][:, :LATENTS]
    return directions * scale


def observed(values: np.ndarray, W: np.ndarray, samples: int = 4000) -> np.ndarray:
    directions = np.linalg.qr(np.random.default_rng(0).normal(size=(20, 20)))[0][:, : len(values)]
    return np.random.default_rng(1).normal(size=(samples, len(values))) * np.sqrt(values) @ directions.T


def exact_posterior(x: np.ndarray, W: np.ndarray, precision: float) -> tuple[np.ndarray, np.ndarray]:
    covariance = np.linalg.inv(np.eye(LATENTS) + precision * W.T @ W)
    return precision * x @ W @ covariance, np.broadcast_to(np.diag(covariance), (len(x), LATENTS))


@pytest.mark.parametrize("precision", GRID)
def test_active_latents_are_the_principal_values_above_the_noise(precision):
    W = principal_vae(VALUES, precision)
    mean, variance = exact_posterior(observed(VALUES, W), W, precision)
    regime = classify(mean, variance)
    wanted = int((1 / precision < VALUES).sum())
    assert len(regime.active) == wanted
    assert len(regime.passive) == LATENTS - wanted
    directions = used_directions(
        lambda z: z @ torch.from_numpy(W).T, torch.zeros(1, LATENTS, dtype=torch.float64), precision=precision
    )
    assert int(directions[0]) == wanted  # Eq. 11: the rank of the Jacobian


@pytest.mark.parametrize("above", [1.06, 1.1, 1.3])
def test_the_count_is_right_close_to_the_threshold(above):
    W = principal_vae(np.array([above]), 1.0)
    mean, variance = exact_posterior(observed(np.array([above]), W), W, 1.0)
    assert len(classify(mean, variance).active) == 1


def test_a_trained_over_wide_linear_vae_finds_the_same_number():
    """Trained, not solved: γ² fixed, seven latents for data with three principal values above the noise."""
    rng = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(10, 10, generator=rng))[0]
    values = torch.tensor([9.0, 4.0, 2.0] + [0.1] * 7)
    x = torch.randn(4000, 10, generator=rng) * values.sqrt() @ directions.T
    settings = vs.training.TrainSettings(epochs=150, patience=150, learning_rate=5e-3, batch_size=200)
    found = vs.fit(x, latent_dim=7, precision=2.0, hidden=(), seeds=range(3), settings=settings)
    assert [len(of_model(member, x, decoder=False).active) for member in found.members] == [3, 3, 3]


def test_the_bounds_survive_a_decoder_of_low_rank():
    """An over-wide decoder at high precision: directions that it does not use keep the prior's variance exactly."""
    for dtype, precision in ((torch.float32, 1e6), (torch.float64, 1e14)):
        generator = torch.Generator().manual_seed(0)
        J = (
            10
            * torch.randn(1, 8, 3, generator=generator, dtype=dtype)
            @ torch.randn(1, 3, 6, generator=generator, dtype=dtype)
        )
        low, high = eigenvalue_bounds(J, torch.ones(1, 6, dtype=dtype), precision)
        assert (low > 0).all()
        assert torch.allclose(high[0, :3], torch.ones(3, dtype=dtype), rtol=0.2)  # what rounding leaves of no use
        assert (high[0, 3:] < 1e-3).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": None}, "precision must be a number"),
        ({"precision": 1.0, "prior_variance": -1.0}, "prior_variance must be > 0"),
        ({"precision": 1.0, "prior_variance": torch.ones(3)}, "prior_variance must be > 0, a number or one per latent"),
    ],
)
def test_impossible_noise_is_explained(options, message, unchecked_shapes):
    with pytest.raises(InputError, match=message):
        used_directions(lambda z: z, torch.zeros(1, 2), **options)


def test_eigenvalues_of_the_optimal_covariance_keep_their_bounds():
    """Eq. 12 for conditional priors of any scale; equality for an isotropic prior."""
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    z = torch.zeros(5, 4, dtype=torch.float64)
    variance = 10 ** (2 * torch.rand(5, 4, generator=generator, dtype=torch.float64) - 2)
    for prior_variance, tight in ((variance, False), (torch.full_like(variance, 0.3), True)):
        covariance = optimal_covariance(
            lambda z: z @ W.T, z, precision=7.0, prior=vs.Normal(torch.zeros_like(z), prior_variance)
        )
        eigenvalues = torch.linalg.eigvalsh(covariance).flip(-1)
        low, high = eigenvalue_bounds(jacobian(lambda z: z @ W.T, z), prior_variance, 7.0)
        assert (eigenvalues >= low * (1 - 1e-9)).all()
        assert (eigenvalues <= high * (1 + 1e-9)).all()
        assert torch.allclose(low, high) == tight
