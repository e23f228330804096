"""One log-likelihood of decoded means and one KL, wherever they are used."""

import numpy as np
import pytest
import torch
from torch import distributions as td

import vaescope as vs
from vaescope.analysis.encoding import encode
from vaescope.analysis.gap import _Points
from vaescope.analysis.models import sample_log_likelihood
from vaescope.core.errors import InputError
from vaescope.distributions import kl_per_latent
from vaescope.distributions.likelihoods import log_likelihood
from vaescope.regime.model import _log_likelihood as advised_log_likelihood

G = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_likelihoods_agree_with_torch(dtype):
    x, mean = torch.rand(7, 2, 3, generator=G).to(dtype), torch.rand(7, 2, 3, generator=G).to(dtype)
    expected = td.Normal(mean, 100**-0.5).log_prob(x).sum((1, 2))
    torch.testing.assert_close(log_likelihood("gaussian", x, mean, 100.0), expected)
    bits = x.round()
    expected = td.Bernoulli(mean).log_prob(bits).sum((1, 2))
    torch.testing.assert_close(log_likelihood("bernoulli", bits, mean), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certain_outputs_have_finite_likelihoods(dtype):
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=dtype)
    right, wrong = log_likelihood("bernoulli", x, torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=dtype)).tolist()
    assert right == pytest.approx(0, abs=1e-6)
    assert wrong == pytest.approx(2 * np.log(1e-7), abs=0.5)


def test_a_gaussian_likelihood_needs_its_precision():
    with pytest.raises(InputError, match="expected a gaussian likelihood with its precision, or bernoulli"):
        log_likelihood("gaussian", torch.zeros(1, 1), torch.zeros(1, 1))


@pytest.mark.parametrize("known", [{"precision": 1e6}, {"likelihood": "bernoulli"}])
def test_the_advisor_and_the_gap_use_the_same_likelihood(known):
    """Also where probabilities are 0 and 1 up to rounding."""
    model = vs.adapters.from_callables(
        encode=lambda x: (x, 0.1 + 0 * x), decode=lambda z: torch.sigmoid(40 * z), latent_dim=3, **known
    )
    sample = encode(model, torch.randn(50, 3, generator=G).sign().clamp(min=0).double())
    z = torch.randn(50, 3, generator=G).double()
    kind = model.likelihood
    by_advisor = advised_log_likelihood(sample, sample.decode(z), kind)
    torch.testing.assert_close(sample_log_likelihood(sample)(sample.observations, z), by_advisor)
    assert by_advisor.isfinite().all()


def test_the_kl_of_unused_latents_in_the_gap_is_the_kl():
    """For variances and means of very different sizes."""
    variance = torch.tensor([1e-12, 0.5, 1.0, 1 + 1e-9], dtype=torch.float64)
    model = vs.adapters.from_callables(
        encode=lambda x: (x, variance.expand(len(x), 4)), latent_dim=4, prior=vs.Normal(3.0, 1.0)
    )
    sample = encode(model, 1e3 * torch.randn(20, 4, generator=G).double())
    expected = kl_per_latent(sample.mean, sample.variance, sample.prior)
    torch.testing.assert_close(_Points.of(sample, used=[1]).unused_kl, expected[:, [0, 2, 3]].sum(1))
    torch.testing.assert_close(_Points.of(sample, used=[0, 2, 3]).unused_kl, expected[:, 1])
