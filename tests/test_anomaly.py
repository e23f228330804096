"""Anomaly scores against the closed form of a linear model, and on inputs that an ELBO misjudges."""

import pytest
import torch
from sklearn.datasets import load_digits

import vaescope as vs
from tests.certify.models import LinearModel
from vaescope.products.anomaly import two_sided_rank

LINEAR = LinearModel.random(3, 8, precision=10.0)


def test_parts_against_closed_forms():
    x = LINEAR.draw(60)
    found = vs.anomaly_scores(LINEAR.model(), x, reference=LINEAR.draw(100, seed=1))
    exact = vs.theory.linear.log_likelihood(x, LINEAR.W, LINEAR.precision)
    torch.testing.assert_close(found.log_marginal, exact, rtol=0, atol=0.15)
    assert bool(found.reliable.all())
    mean, variance = LINEAR.encode(x)
    misfit = 0.5 * LINEAR.precision * (x - LINEAR.decode(mean)).square().sum(1)
    torch.testing.assert_close(found.misfit - found.misfit[0], misfit - misfit[0])
    spread = 0.5 * LINEAR.precision * (variance * LINEAR.W.square().sum(0)).sum(1)
    torch.testing.assert_close(found.spread, spread, rtol=0.5, atol=0.0)
    assert found.spread.mean() == pytest.approx(float(spread.mean()), rel=0.05)
    torch.testing.assert_close(found.elbo, exact, rtol=0, atol=1.0)  # orthogonal columns: no gap


def test_typicality_is_uniform_for_normal_samples():
    found = vs.anomaly_scores(LINEAR.model(), LINEAR.draw(400), reference=LINEAR.draw(400, seed=1))
    assert (found.typicality < 0.1).double().mean() == pytest.approx(0.1, abs=0.06)
    assert found.typicality.mean() == pytest.approx(0.5, abs=0.06)


def test_a_wrong_encoder_is_unreliable():
    model = LINEAR.model(lambda mean, variance: (mean + 4 * variance.sqrt(), variance / 100))
    found = vs.anomaly_scores(model, LINEAR.draw(30), reference=LINEAR.draw(60, seed=1))
    assert (found.pareto_k > 0.7).double().mean() > 0.8


def test_a_simple_input_has_a_higher_likelihood_than_normal_ones_and_is_not_typical():
    """The mean image is more probable than any digit, and no digit looks like it."""
    x = torch.from_numpy(load_digits().data / 16)
    principal = torch.linalg.svd(x[:1400] - x[:1400].mean(0), full_matrices=False)
    noise = float(principal.S[8:].square().sum()) / (1400 * (64 - 8))
    scale = (principal.S[:8].square() / 1400 - noise).sqrt()
    linear = LinearModel(principal.Vh[:8].T * scale, 1 / noise)
    centred = x - x[:1400].mean(0)
    blank = torch.zeros(1, 64, dtype=torch.float64)
    found = vs.anomaly_scores(linear.model(), torch.cat([blank, centred[1600:1700]]), reference=centred[1400:1600])
    assert found.elbo[0] > found.elbo[1:].max()
    assert found.typicality[0] < 0.02
    assert found.summary()[0]["typicality"] <= found.typicality[0]
    assert found.verdict in found.page()
    assert repr(found).startswith("Anomaly scores of")
    assert len(found.to_data()["samples"]) == len(found.typicality)


def test_ranks():
    reference = torch.arange(1.0, 100.0)
    assert two_sided_rank(torch.tensor([0.0, 50.0, 200.0]), reference).tolist() == pytest.approx([0.02, 1.0, 0.02])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reference": torch.zeros(9, 8)}, "at least 50"),
        ({"reference": torch.zeros(60, 8), "draws": 3}, "draws must be"),
    ],
)
def test_errors_are_one_line(options, message):
    with pytest.raises(vs.InputError, match=message):
        vs.anomaly_scores(LINEAR.model(), LINEAR.draw(5), **options)
