"""ELBO, rate, distortion and log p(x) against closed forms of linear Gaussian models."""

import math

import pytest
import torch

import vaescope as vs
from tests.diagnose.models import W, X, linear
from vaescope.core.errors import InputError

A = torch.tensor([[2.0, 1.6, 0.3], [0.0, 1.2, 1.0]]).T
COVARIANCE = torch.linalg.inv(torch.eye(2) + 100 * A.T @ A)
G = torch.Generator().manual_seed(0)
Y = torch.randn(300, 2, generator=G) @ A.T + 0.1 * torch.randn(300, 3, generator=G)


def log_marginal(x, columns):
    normal = torch.distributions.MultivariateNormal(
        torch.zeros(len(columns)), columns @ columns.T + 0.01 * torch.eye(len(columns))
    )
    return normal.log_prob(x)


def exact_posterior(**change):
    """The exact posterior of a decoder with columns that are not orthogonal, as functions."""
    cholesky = torch.linalg.cholesky(COVARIANCE)
    mean = lambda x: 100 * x @ A @ COVARIANCE  # noqa: E731

    def log_q(z, x):
        return torch.distributions.MultivariateNormal(mean(x), COVARIANCE).log_prob(z)

    known = {
        "sample": lambda x: mean(x) + torch.randn(len(x), 2) @ cholesky.T,
        "log_q": log_q,
        "decode": lambda z: z @ A.T.to(z),
        "latent_dim": 2,
        "precision": 100.0,
    }
    return vs.adapters.from_callables(**known | change)


def test_terms_of_an_optimal_linear_model():
    """Its ELBO is log p(x), exactly."""
    terms = vs.diagnose(linear(), X, progress=None, budget=1e-3).evidence.elbo
    value, error = terms.mean("elbo")
    expected = log_marginal(X, W)
    assert value == pytest.approx(float(expected.mean()), abs=0.05)
    assert error == pytest.approx(float(expected.std()) / 20, rel=0.2)
    assert terms.mean("rate")[0] + terms.mean("distortion")[0] == pytest.approx(-value)
    assert terms.bits_per_number == pytest.approx(-value / math.log(2) / 5)


def test_a_posterior_given_by_functions():
    """The exact posterior: the ELBO of every sample is log p(x), and importance weights are constant."""
    found = vs.diagnose(exact_posterior(), Y, progress=None)
    terms = found.evidence.elbo
    torch.testing.assert_close(terms.elbo, log_marginal(Y, A).double(), rtol=0, atol=2e-3)
    assert found.evidence.marginal.mean[0] == pytest.approx(0, abs=1e-3)
    assert "amortization" not in [f.code for f in found.findings]
    assert found.sample.variance[0] == pytest.approx(COVARIANCE.diagonal(), rel=0.8)
    assert "without the parts of the gap" in found.skipped["gap"]


def test_a_worse_posterior_has_a_gap_and_the_same_marginal():
    wider = 4 * COVARIANCE
    cholesky = torch.linalg.cholesky(wider)
    mean = lambda x: 100 * x @ A @ COVARIANCE  # noqa: E731
    model = exact_posterior(
        sample=lambda x: mean(x) + torch.randn(len(x), 2) @ cholesky.T,
        log_q=lambda z, x: torch.distributions.MultivariateNormal(mean(x), wider).log_prob(z),
    )
    found = vs.diagnose(model, Y, progress=None).evidence
    loss = 0.5 * (2 * 4 - 2 - 2 * math.log(4))  # KL between the two posteriors
    assert found.marginal.mean[0] == pytest.approx(loss, abs=0.1)
    total = found.elbo.mean("elbo")[0] + found.marginal.mean[0]
    assert total == pytest.approx(float(log_marginal(Y, A).mean()), abs=0.15)


def two_clusters():
    """A prior of two clusters, and data that follow it."""
    means = torch.tensor([[2.0, 0.0], [-2.0, 0.0]])
    mixture = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(2)),
        torch.distributions.Independent(torch.distributions.Normal(means, 0.3 * torch.ones(2, 2)), 1),
    )
    torch.manual_seed(3)
    x = mixture.sample((400,)) @ W.T + 0.1 * torch.randn(400, 5)
    return mixture, x


def test_a_prior_given_by_functions():
    """Codes follow a mixture: with it as the prior there is nothing to report, with N(0, I) there is."""
    mixture, x = two_clusters()
    density = {"log_prior": mixture.log_prob, "sample_prior": lambda count: mixture.sample((count,))}
    variance = 1 / (1 / 0.09 + 100 * W.square().sum(0))

    def encode(x):
        centre = torch.where((x @ W[:, :1]) > 0, 2.0, -2.0) * torch.tensor([1.0, 0.0])
        return (100 * (x @ W) + centre / 0.09) * variance, variance.expand(len(x), 2)

    found = vs.diagnose(linear(encode=encode, **density), x, progress=None)
    assert found.evidence.aggregate.auc < 0.65
    assert [f.code for f in found.findings if f.severity != "note"] == []
    assert vs.diagnose(linear(encode=encode), x, progress=None).evidence.aggregate.auc > 0.8
    x64 = x.double()
    clusters = [
        torch.distributions.MultivariateNormal(
            m.double() @ W.T.double(), 0.09 * W.double() @ W.T.double() + 0.01 * torch.eye(5).double()
        ).log_prob(x64)
        for m in torch.tensor([[2.0, 0.0], [-2.0, 0.0]])
    ]
    exact = torch.logsumexp(torch.stack(clusters), 0).mean() - math.log(2)
    total = found.evidence.elbo.mean("elbo")[0] + found.evidence.marginal.mean[0]
    assert total == pytest.approx(float(exact), abs=0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log_q": None}, "a posterior needs both"),
        ({"sample": None, "log_q": None}, "encode is required"),
        ({"log_prior": lambda z: z}, "a prior needs both"),
        ({"sample_prior": lambda n: torch.zeros(n, 3), "log_prior": lambda z: z}, "draws of 2 latents, got 3"),
        (
            {"sample_prior": lambda n: torch.zeros(n, 2), "log_prior": lambda z: z, "prior": vs.Normal()},
            "are two priors; specify only one",
        ),
    ],
)
def test_densities_that_are_incomplete(change, message):
    with pytest.raises(InputError, match=message):
        exact_posterior(**change)


def test_densities_of_the_wrong_shape_are_explained():
    found = vs.diagnose(exact_posterior(log_q=lambda z, x: z), Y, progress=None)
    assert "log_q must return a number per row" in found.skipped["ELBO"]
