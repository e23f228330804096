"""Traces of faults of a loss, planted as exact optima of that loss in linear VAEs, and told from their neighbours."""

import numpy as np
import pytest
import torch

from tests.diagnose.models import W, X, codes, linear, pixels
from tests.diagnose.test_kl_weight import trained_with
from vaescope.analysis.encoding import encode
from vaescope.analysis.gap import measure_gap
from vaescope.analysis.likelihood import measure_moments
from vaescope.core.budget import Budget
from vaescope.products.diagnose.noise import Draws, SamplingNoise, find_clamp, measure_noise_of_draws

SCALES = torch.tensor([0.60, 0.45], dtype=torch.float64)  # variances of x along two directions; noise 1/100


def optimum(draw, variance, weight=1.0):
    """Per component: gain of the encoder, decoder, variance that is returned, at the optimum of a faulty loss.

    Args:
        draw: of the variance that is returned, the noise that training draws with.
        variance: of the decoder, the optimal variance that is returned.
        weight: of the KL.
    """
    decoder = (SCALES - 0.01).sqrt()
    for _ in range(20_000):
        gain = 100 * decoder / (100 * decoder.square() + weight)
        returned = variance(decoder)
        decoder = gain * SCALES / (gain.square() * SCALES + draw(returned).square())
    return gain, decoder, returned


def planted(draw, variance, weight=1.0, **stated):
    gain, decoder, returned = optimum(draw, variance, weight)
    generator = torch.Generator().manual_seed(6)
    directions = torch.linalg.qr(torch.randn(10, 2, generator=generator))[0].double()
    x = torch.randn(600, 2, generator=generator).double() * (SCALES - 0.01).sqrt() @ directions.T
    x = x + 0.1 * torch.randn(600, 10, generator=generator).double()
    model = linear(
        encode=lambda x: (x @ directions * gain, returned.expand(len(x), 2)),
        decode=lambda z: (z * decoder.to(z)) @ directions.T.to(z),
        **stated,
    )
    return model, x, (gain, decoder, returned)


def squared(decoder):
    """50 w² v² + ½ (v - log v) is least where 100 w² v + ½ = 1 / (2 v)."""
    a = 100 * decoder.square()
    return (-0.5 + (0.25 + 2 * a).sqrt()) / (2 * a)


def scaled(factor):
    return lambda v: factor * v.sqrt(), lambda decoder: 1 / (1 + 100 * (factor * decoder).square())


# draws ------------------------------------------------------------------------------------------


def test_draws_with_the_variance_are_found_and_have_the_moments_of_that_loss():
    model, x, (gain, _, returned) = planted(lambda v: v, squared)
    assert 2 * gain.square() * SCALES + returned == pytest.approx(torch.ones(2), abs=1e-6)
    noise = measure_noise_of_draws(encode(model, x), [0, 1])
    assert noise.squared.weight == pytest.approx(np.ones(2), abs=0.1)
    assert noise.is_squared
    assert not noise.is_scaled
    assert codes(model, x) == ["sampling-noise"]


@pytest.mark.parametrize("factor", [0.05, 0.1, 0.3])
def test_draws_with_less_noise_are_found(factor):
    model, x, _ = planted(*scaled(factor))
    noise = measure_noise_of_draws(encode(model, x), [0, 1])
    assert noise.stated.weight == pytest.approx(np.full(2, factor**-2), rel=0.15)
    assert noise.scaled.pull == pytest.approx(1, abs=0.25)
    assert codes(model, x) == ["sampling-noise"]


def test_weights_that_mean_nothing_are_no_fault_of_draws():
    """Where the curvature is negative, as with a decoder of another model."""
    odd = Draws(1.0, np.array([-3.0, -1.0, 5.0]))
    assert not SamplingNoise(odd, odd, odd, 0.1, 0.1).is_scaled


@pytest.mark.parametrize("weight", [2.0, 6.0, 20.0])
def test_a_high_weight_of_the_kl_is_no_fault_of_draws(weight):
    model, x = trained_with(weight)
    noise = measure_noise_of_draws(encode(model, x.double()), [0, 1])
    if noise is not None:
        assert noise.stated.pull == pytest.approx(weight, rel=0.15)
        assert not noise.is_squared
        assert not noise.is_scaled
    assert codes(model, x) == ["beta-high"]


def test_standard_deviations_that_are_returned_are_no_fault_of_draws():
    model, x = trained_with(1.0)

    def encode_deviation(x):
        mean, variance = model.encode(x)
        return mean, variance.sqrt()

    stated = linear(encode=encode_deviation, decode=model.decode)
    noise = measure_noise_of_draws(encode(stated, x.double()), [0, 1])
    assert not noise.is_squared
    law = 2 * (1 + encode_deviation(x)[1][0])  # ∂KL/∂log σ is 1 - σ², that of the fault ½(1 - σ)
    assert noise.squared.weight == pytest.approx(law.numpy(), rel=0.1)
    assert codes(stated, x) == ["scale-of-variance"]


# bounds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0.1, 0.2])
def test_a_model_that_was_trained_with_clamped_variances_is_a_vae(bound):
    model, x, _ = planted(lambda v: v.sqrt(), lambda decoder: torch.full((2,), bound, dtype=torch.float64))
    assert find_clamp(encode(model, x), [0, 1]).constant
    assert codes(model, x) == ["clamped-variance"]


def test_variances_at_a_bound_that_is_below_their_optimum_are_no_finding():
    model, x = trained_with(1.0)
    smallest = float(model.encode(x)[1].min())

    def bounded(x):
        mean, variance = model.encode(x)
        return mean, variance * (1 + 0.1 * x[:, :1].abs()).clamp(max=1.05)

    found = find_clamp(encode(linear(encode=bounded, decode=model.decode), x), [0, 1])
    assert found is None or found.value >= smallest
    assert codes(linear(encode=bounded, decode=model.decode), x) == []


# sigmoids ---------------------------------------------------------------------------------------


def test_sigmoids_that_are_applied_twice():
    model, x = pixels()
    assert codes(model, x) == []

    def twice(z):
        return model.decode(z).sigmoid()

    stated = linear(encode=model.encode, decode=twice, likelihood="bernoulli", precision=None)
    assert codes(stated, x) == ["sigmoid-twice"]

    def hard(z):  # what a loss that takes probabilities for logits makes of the decoder
        return (model.decode(z) > 0.5).to(z)

    trained = linear(encode=model.encode, decode=hard, likelihood="bernoulli", precision=None)
    assert codes(trained, x * 0.4 + 0.3) == ["sigmoid-twice"]


# the scale of the best posteriors -----------------------------------------------------------------


def moved(model, scale, *, decoder=True):
    """Codes times `scale`, which the decoder undoes or not."""
    return linear(
        encode=lambda x: tuple(c * v for c, v in zip((scale, scale**2), model.encode(x), strict=True)),
        decode=(lambda z: model.decode(z / scale)) if decoder else model.decode,
    )


@pytest.mark.parametrize("scale", [0.6, 1.6])
@pytest.mark.parametrize("decoder", [True, False])
def test_best_posteriors_are_at_the_scale_of_the_prior_if_the_encoder_alone_is_off(scale, decoder):
    """The best posterior of a linear decoder is known: its moments are those of the optimum if the decoder is."""
    model, x = trained_with(1.0)
    sample = encode(moved(model, scale, decoder=decoder), x.double())
    best = measure_gap(sample, [0, 1], Budget(30.0)).codes
    own = measure_moments(sample, [0, 1])
    kernel = 100 * (model.decode(torch.eye(2).double()) / (scale if decoder else 1)).square().sum(1).numpy()
    variance = 1 / (1 + kernel)
    expected = (0.6, 0.45) * kernel * 100 * variance**2 + variance
    assert best.square == pytest.approx(expected, abs=4 * float(best.square_error.max()))
    assert (best.distance < 0.25 * own.distance) == (not decoder)


@pytest.mark.parametrize("scale", [0.6, 1.6])
def test_the_encoder_is_at_fault_if_the_decoder_is_at_its_optimum(scale):
    model, x = trained_with(1.0)
    assert codes(moved(model, scale), x)[0] == "not-converged"
    assert "not-converged" not in codes(moved(model, scale, decoder=False), x)


def test_correlated_codes_that_are_rotated_have_settled():
    """Their second moments differ from one along the latents, not along the axes that the decoder favours."""
    turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]], dtype=torch.float64)
    mixing = torch.linalg.qr(torch.tensor([[1.0, 0.6], [0.0, 0.8]], dtype=torch.float64))[1].double()
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(600, 2, generator=generator).double() @ mixing
    z = (z - z.mean(0)) / z.std(0)
    x = z @ W.double().T + 0.1 * torch.randn(600, 5, generator=generator).double()
    variance = (1 / (1 + 100 * W.square().sum(0))).double()

    def encode_turned(x):
        return (100 * (x @ W.double()) * variance) @ turn, (1 / ((1 / variance) @ turn.square())).expand(len(x), 2)

    turned = linear(encode=encode_turned, decode=lambda z: (z @ turn.T.to(z)) @ W.T.to(z))
    own = measure_moments(encode(turned, x), [0, 1])
    along = measure_moments(encode(turned, x), [0, 1], turn.T.contiguous())
    assert np.abs(np.log(own.square)).max() > 0.3
    assert np.abs(np.log(along.square)).max() < 0.1
    assert codes(turned, x) == ["rotated"]
    assert codes(linear(), X) == []


# data -------------------------------------------------------------------------------------------


def test_rows_of_x_among_the_training_samples():
    model, other = linear(), torch.cat([X[200:], X[:20]])
    assert codes(model, X[:200], train=X[200:]) == []
    assert codes(model, X[:200], train=other) == ["duplicates"]
    assert codes(model, X[:200].double(), train=other.double().numpy()) == ["duplicates"]


def test_data_of_few_different_rows_share_them_anyway():
    few = X[torch.randint(20, (400,), generator=torch.Generator().manual_seed(0))]
    assert "duplicates" not in codes(linear(), few[:200], train=few[200:])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda n: n, []),
        (lambda n: (1e4 * n / n.sum(1, keepdim=True)).log1p(), ["not-counts"]),
        (lambda n: n / n.sum(1, keepdim=True), ["not-counts"]),
        (lambda n: n - n.mean(0), ["not-counts"]),
    ],
)
def test_a_likelihood_of_counts_needs_counts(change, expected):
    rate = (0.5 * torch.randn(300, 2, generator=torch.Generator().manual_seed(0)) @ W.T).exp() * 3
    x = torch.poisson(rate, generator=torch.Generator().manual_seed(1))

    def log_p(x, z):
        mean = (0.5 * z @ W.T.to(z)).exp() * 3
        return (x * mean.log() - mean).sum(1)

    model = linear(decode=None, precision=None, log_likelihood=log_p, counts=True)
    found = [code for code in codes(model, change(x)) if code == "not-counts"]
    assert found == expected
