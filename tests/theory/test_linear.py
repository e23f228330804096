"""Closed forms of the linear VAE against torch.distributions, and the corollaries of the paper."""

import math

import pytest
import torch
from torch import distributions as td

import vaescope as vs
from vaescope.inference import linear
from vaescope.theory import contrast_of_matrix


@pytest.fixture
def W():
    return torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_likelihood_agrees_with_torch(W):
    x = torch.randn(5, 6, dtype=torch.float64)
    covariance = W @ W.T + torch.eye(6, dtype=torch.float64) / 3.0
    expected = td.MultivariateNormal(torch.zeros(6, dtype=torch.float64), covariance).log_prob(x)
    torch.testing.assert_close(linear.log_likelihood(x, W, 3.0), expected)


def test_posterior_agrees_with_the_textbook_formula(W):
    x = torch.randn(5, 6, dtype=torch.float64)
    mean, covariance = linear.posterior(x, W, 3.0)
    exact = torch.linalg.inv(torch.eye(3, dtype=torch.float64) + 3.0 * W.T @ W)
    torch.testing.assert_close(covariance, exact)
    torch.testing.assert_close(mean, 3.0 * x @ W @ exact)


def test_elbo_agrees_with_its_definition(W):
    x = torch.randn(5, 6, dtype=torch.float64)
    mean, exact = linear.posterior(x, W, 3.0)
    D = linear.optimal_variance(W, 3.0)
    q = td.MultivariateNormal(mean, torch.diag(D).expand(5, 3, 3))
    divergence = td.kl_divergence(q, td.MultivariateNormal(mean, exact.expand(5, 3, 3)))
    torch.testing.assert_close(divergence, linear.gap(W, 3.0).expand(5))
    torch.testing.assert_close(linear.elbo(x, W, 3.0), linear.log_likelihood(x, W, 3.0) - divergence)


def test_the_gap_has_the_factor_that_the_paper_lacks(W):
    M = W.T @ W + torch.eye(3, dtype=torch.float64) / 3.0
    expected = 0.5 * (M.diagonal().log().sum() - torch.logdet(M))
    torch.testing.assert_close(linear.gap(W, 3.0), expected)


def test_the_gap_tends_to_the_contrast_and_vanishes_without_precision(W):
    torch.testing.assert_close(linear.gap(W, 1e12), contrast_of_matrix(W))
    torch.testing.assert_close(linear.limit(W), contrast_of_matrix(W))
    assert float(linear.gap(W, 1e-9)) < 1e-8


def test_the_gap_rises_with_the_precision(W):
    """d/dt ½ [Σ log M_kk - log det M] = ½ Σ [1/M_kk - (M⁻¹)_kk] <= 0 for M = WᵀW + t I, t = 1/γ²."""
    gaps = torch.stack([linear.gap(W, precision) for precision in (1e-2, 1e-1, 1.0, 1e1, 1e2)])
    assert (gaps.diff() > 0).all()


def test_the_eigenvalues_of_the_gram_matrix_are_not_the_squared_column_norms(W):
    """As the proof of Prop. 8 says; if they were, every gap would be zero."""
    lengths, eigenvalues = W.square().sum(0).sort().values, torch.linalg.eigvalsh(W.T @ W)
    torch.testing.assert_close(lengths.sum(), eigenvalues.sum())
    assert not torch.allclose(lengths, eigenvalues, rtol=0.1)


def test_orthogonal_columns_have_no_gap_at_any_precision():
    Q = torch.linalg.qr(torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))).Q
    for precision in (1e-3, 1.0, 1e6):
        assert float(linear.gap(Q * torch.tensor([0.1, 1.0, 10.0]), precision)) < 1e-12  # Corollary 1


def test_nearly_collinear_columns_lose_no_precision():
    for angle in (1e-3, 1e-5, 1e-7):
        W = torch.tensor([[1.0, 1.0], [0.0, angle]], dtype=torch.float64)
        # ½ log[(1 + 1/γ²)(1 + angle² + 1/γ²) / ((1 + 1/γ²)(1 + angle² + 1/γ²) - 1)], γ² = 1e40: -log sin
        assert float(linear.gap(W, 1e40)) == pytest.approx(-math.log(math.sin(math.atan(angle))), rel=1e-8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear.gap(torch.eye(2), 0.0), "precision must be > 0"),
        (lambda: linear.gap(torch.full((2, 2), torch.nan), 1.0), "W must be a finite matrix"),
        (lambda: linear.log_likelihood(torch.zeros(3, 5), torch.eye(2), 1.0), r"x must have shape \(N, 2\)"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_arguments_are_explained(call, message):
    with pytest.raises(vs.InputError, match=message):
        call()
