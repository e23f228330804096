"""Linear VAEs: the number of active latents is a count of principal values, in closed form."""

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.regime import classify, of_model
from vaescope.theory import used_directions

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


def observed(values: np.ndarray, samples: int = 4000) -> np.ndarray:
    directions = np.linalg.qr(np.random.default_rng(0).normal(size=(20, 20)))[0][:, : len(values)]
    return np.random.default_rng(1).normal(size=(samples, len(values))) * np.sqrt(values) @ directions.T


def exact_posterior(x: np.ndarray, W: np.ndarray, precision: float) -> tuple[np.ndarray, np.ndarray]:
    covariance = np.linalg.inv(np.eye(LATENTS) + precision * W.T @ W)
    return precision * x @ W @ covariance, np.broadcast_to(np.diag(covariance), (len(x), LATENTS))


@pytest.mark.parametrize("precision", GRID)
def test_active_latents_are_the_principal_values_above_the_noise(precision):
    W = principal_vae(VALUES, precision)
    regime = classify(*exact_posterior(observed(VALUES), W, precision))
    expected = int((1 / precision < VALUES).sum())
    assert len(regime.active) == expected
    assert len(regime.passive) == LATENTS - expected
    directions = used_directions(
        lambda z: z @ torch.from_numpy(W).T, torch.zeros(1, LATENTS, dtype=torch.float64), precision=precision
    )
    assert int(directions[0]) == expected  # Eq. 11: the rank of the Jacobian


@pytest.mark.parametrize("above", [1.06, 1.1, 1.3])
def test_the_count_is_right_close_to_the_noise(above):
    W = principal_vae(np.array([above]), 1.0)
    assert len(classify(*exact_posterior(observed(np.array([above])), W, 1.0)).active) == 1


def test_a_trained_over_wide_linear_vae_finds_the_same_number():
    """γ² fixed, seven latents for data with three principal values above the noise."""
    rng = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(10, 10, generator=rng))[0]
    values = torch.tensor([9.0, 4.0, 2.0] + [0.1] * 7)
    x = torch.randn(4000, 10, generator=rng) * values.sqrt() @ directions.T
    settings = vs.training.TrainSettings(epochs=60, patience=60, learning_rate=1e-2, batch_size=200, compile="never")
    fitted = vs.fit(x, latent_dim=7, precision=2.0, hidden=(), seeds=range(3), settings=settings)
    assert [len(of_model(member, x, decoder=False).active) for member in fitted.members] == [3, 3, 3]
