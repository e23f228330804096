"""Eq. 12 against the exact posterior of a linear model, and bad arguments."""

import pytest
import torch

import vaescope as vs
from vaescope.distributions.priors import Mixture
from vaescope.theory import optimal_covariance, optimal_variance


def test_a_linear_model_has_its_exact_posterior():
    W = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = torch.zeros(4, 3, dtype=torch.float64)
    covariance = optimal_covariance(lambda p: p @ W.T, z, precision=7.0)
    exact = torch.linalg.inv(torch.eye(3, dtype=torch.float64) + 7.0 * W.T @ W)
    torch.testing.assert_close(covariance, exact.expand(4, 3, 3))
    variance = optimal_variance(lambda p: p @ W.T, z, precision=7.0)
    # the best diagonal Gaussian takes the inverse of the diagonal of the posterior's precision
    torch.testing.assert_close(variance, (1 / torch.linalg.inv(exact).diagonal()).expand(4, 3))


def test_the_prior_contributes_its_curvature():
    z = torch.full((1, 2), 0.25, dtype=torch.float64)
    flat = optimal_variance(lambda p: p, z, precision=2.0, prior=vs.Uniform(0.0, 1.0))
    torch.testing.assert_close(flat, torch.full((1, 2), 0.5, dtype=torch.float64))
    tight = optimal_variance(lambda p: p, z, precision=2.0, prior=vs.Normal(0.0, 0.1))
    torch.testing.assert_close(tight, torch.full((1, 2), 1 / 12, dtype=torch.float64))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [({"precision": -1.0}, "precision must be > 0"), ({"precision": 1.0, "prior": vs.Uniform(1.0, 2.0)}, "support")],
)
def test_bad_arguments_are_explained(keywords, message):
    with pytest.raises(vs.InputError, match=message):
        optimal_variance(lambda p: p, torch.zeros(2, 2), **keywords)


def test_where_the_optimum_does_not_exist_it_is_infinite():
    modes = Mixture(torch.tensor([-1.0, 1.0]).double(), torch.tensor([0.3, 0.3]).double())
    z = torch.zeros(2, 2, dtype=torch.float64)
    between = {"precision": 1e-3, "prior": modes}  # between two modes the curvature is negative
    assert optimal_variance(lambda z: z, z, **between).isinf().all()
    assert optimal_covariance(lambda z: z, z, **between).isinf().all()
    flat = optimal_covariance(lambda z: z.sum(1, keepdim=True), z, precision=1.0, prior=vs.Uniform(-1.0, 1.0))
    assert flat.isinf().all()
