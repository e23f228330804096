"""`precision="optimal"`: the maximum-likelihood γ² = n N / Σ E_q‖x - f(z)‖² of every member."""

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.inference.linear import least_variance, spectrum_of_rows


def linear_rows(samples=4000, columns=6, latents=2, noise=0.3):
    generator = torch.Generator().manual_seed(0)
    clean = torch.randn(samples, latents, generator=generator) @ torch.randn(latents, columns, generator=generator)
    return clean + noise * torch.randn(clean.shape, generator=generator)


def test_the_variance_of_a_linear_vae_is_the_mean_of_the_discarded_eigenvalues():
    """Tipping & Bishop 1999, Eq. 8: of the training rows, which are 80 % of x."""
    x = linear_rows()
    settings = {"hidden": (), "epochs": 150, "patience": 150, "learning_rate": 1e-2, "decay": "cosine"}
    member = vs.fit(x, latent_dim=2, precision="optimal", compile="never", **settings).best
    assert member.training.precision_floor is None
    eigenvalues = np.linalg.eigvalsh(np.cov(x.T.numpy()))
    assert 1 / member.precision == pytest.approx(eigenvalues[:4].mean(), rel=0.03)


def squared_error(member, x, draws=32):
    """Mean of E_q‖x - f(z)‖² by draws."""
    mean, variance = member.encode(x)
    generator = torch.Generator().manual_seed(1)
    errors = []
    for _ in range(draws):
        z = mean + variance.sqrt() * torch.randn(mean.shape, generator=generator)
        errors.append((x - member.decode(z)).square().sum(1).mean())
    return float(torch.stack(errors).mean())


def test_members_that_are_worse_than_pca_have_their_own_precision_and_not_that_of_pca():
    generator = torch.Generator().manual_seed(0)
    x = torch.tanh(2 * torch.randn(1000, 3, generator=generator)) @ torch.randn(3, 12, generator=generator)
    x = x + 0.05 * torch.randn(x.shape, generator=generator)
    members = vs.fit(
        x, latent_dim=3, hidden=(4,), epochs=30, patience=30, learning_rate=3e-3, seeds=3, compile="never"
    ).members
    pca = 1 / least_variance(spectrum_of_rows(x.double().numpy()), 3)
    for member in members:
        assert member.precision < 0.95 * pca
        own = x.shape[1] / squared_error(member, x)
        assert member.precision == pytest.approx(own, rel=0.1)  # errors of the last epoch, while weights changed
    assert len({round(member.precision, 3) for member in members}) == 3


def test_where_latents_would_collapse_the_floor_is_kept_and_stated():
    """Isotropic data: the likelihood is highest without latents, at γ² = 1."""
    x = torch.randn(800, 4, generator=torch.Generator().manual_seed(0))
    member = vs.fit(x, latent_dim=2, epochs=20, learning_rate=3e-3, hidden=(16,), compile="never").best
    assert member.training.precision_floor == pytest.approx(member.precision)
    assert member.precision > 10
