"""The linear VAE's phase diagram: parity with the exact linear model, laws, and trained stacks."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from benchmarks.preflight import linear

from vaescope.inference import linear as exact

EIGENVALUES = np.array([5.0, 2.0, 0.7, 0.2])


def decoder(variance: float) -> torch.Tensor:
    """The optimal decoder of the used latents, on the coordinate axes."""
    used = EIGENVALUES[variance < EIGENVALUES]
    return torch.from_numpy(np.vstack([np.diag(np.sqrt(used - variance)), np.zeros((4 - len(used), len(used)))]))


@pytest.mark.parametrize("variance", [0.1, 0.5, 1.0, 3.0])
def test_kl_and_explained_variance_are_those_of_the_exact_posterior(variance):
    """Rows ±√(4 λ_i) e_i have exactly this covariance, so that means over them are expectations."""
    x = torch.from_numpy(np.vstack([np.diag(np.sqrt(4 * EIGENVALUES)), -np.diag(np.sqrt(4 * EIGENVALUES))]))
    W = decoder(variance)
    mean, covariance = exact.posterior(x, W, 1 / variance)
    kl = 0.5 * (mean.square().mean(0) + covariance.diag() - 1 - covariance.diag().log())
    assert exact.latent_kl(EIGENVALUES, variance)[: W.shape[1]] == pytest.approx(kl.numpy())
    error = float((x - mean @ W.T).square().sum(1).mean())
    assert exact.explained_share(EIGENVALUES, variance) == pytest.approx(1 - error / EIGENVALUES.sum())


def test_no_other_linear_decoder_has_a_higher_elbo():
    """ELBO at the predicted decoder against scaled, rotated and pruned ones."""
    x = torch.from_numpy(np.vstack([np.diag(np.sqrt(4 * EIGENVALUES)), -np.diag(np.sqrt(4 * EIGENVALUES))]))
    W, variance = decoder(0.5), 0.5
    best = float(exact.elbo(x, W, 1 / variance).mean())
    rotation = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    one_more = torch.cat([W, torch.tensor([[0.0], [0.0], [0.0], [0.3]], dtype=torch.float64)], dim=1)
    for other in (0.9 * W, 1.1 * W, W @ rotation, W[:, :2], one_more):
        assert float(exact.elbo(x, other, 1 / variance).mean()) < best - 1e-4


def test_laws():
    grid = np.geomspace(0.01, 20, 40)
    for quantity in (exact.used_count, exact.total_kl, exact.explained_share):
        values = [quantity(EIGENVALUES, v) for v in grid]
        assert all(a >= b for a, b in pairwise(values))  # falls with β/γ²
        assert quantity(EIGENVALUES, 0.5) == pytest.approx(quantity(EIGENVALUES[::-1], 0.5))
        assert quantity(EIGENVALUES, 0.5, 1) <= quantity(EIGENVALUES, 0.5, 3)
    assert exact.used_count(EIGENVALUES, exact.collapse_variance(EIGENVALUES)) == 0
    assert exact.used_count(EIGENVALUES, 0.999 * exact.collapse_variance(EIGENVALUES)) == 1
    assert exact.noise_variance(EIGENVALUES, 2, columns=4) == pytest.approx(0.45)


@pytest.mark.long
def test_two_spectra_against_trained_stacks():
    found = linear(spectra=2, columns=3, steps=2000)
    assert found["equal"] == found["cells"]
    assert found["boundary, largest factor"] < 1.15


@pytest.mark.long
def test_twenty_spectra_against_trained_stacks():
    found = linear()
    assert found["equal"] == found["cells"] == found["converged"]
    assert found["boundary, largest factor"] < 1.15
