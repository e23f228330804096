"""The weight of the KL, as opposed to the decoder's variance and to a poor encoder."""

from dataclasses import replace

import pytest
import torch

import vaescope as vs
from tests.diagnose.models import VARIANCE, W, X, codes, linear
from vaescope.analysis.encoding import encode
from vaescope.core.errors import InputError
from vaescope.products.diagnose.noise import reconstruct_draws, ruled_out


def slope_of_draws(sample, draws):
    return reconstruct_draws(sample, draws, "calibration")[1]


@pytest.mark.parametrize(("precision", "beta"), [(100.0, 1.0), (1.0, 0.01), (10_000.0, 100.0)])
def test_precision_and_beta_are_judged_together(precision, beta):
    assert codes(linear(precision=precision, beta=beta)) == []


def test_a_variance_that_is_wrong_in_both_readings_is_found():
    assert codes(linear(precision=1.0, beta=1.0)) == ["decoder-variance"]
    assert codes(linear(precision=1.0, beta=2.0)) == ["decoder-variance"]


def test_a_large_beta_is_not_another_quantity():
    variance = 1 / (1 + 5 * W.square().sum(0))
    assert codes(linear(encode=lambda x: (5 * (x @ W) * variance, variance.expand(len(x), 2)))) == ["beta-high"]


def widened(factor, offset=0.0, **stated):
    """The optimal linear model with wider posteriors, and means that are off by `offset` of their width."""
    generator = torch.Generator().manual_seed(3)
    directions = torch.randn(5, 2, generator=generator) * (factor * VARIANCE).sqrt()

    def encode(x):
        mean = 100 * (x @ W) * VARIANCE
        return mean + offset * (x @ directions), (factor * VARIANCE).expand(len(x), 2)

    return linear(encode=encode, **stated)


def trained_with(weight, offset=0.0, gain=1.0, **stated):
    """An exact optimum of the objective with this β: principal components with noise β/100; and samples.

    Means are off by `offset` of the width of their posteriors, as they are in trained models.
    """
    generator, scales = torch.Generator().manual_seed(6), torch.tensor([60.0, 45.0]) / 100
    directions = torch.linalg.qr(torch.randn(10, 2, generator=generator))[0]
    x = torch.randn(600, 2, generator=generator) * (scales - 0.01).sqrt() @ directions.T
    x = x + 0.1 * torch.randn(600, 10, generator=generator)
    noise = weight / 100
    decoder = directions * (scales - noise).sqrt()
    variance = noise / scales
    shift = offset * variance.sqrt()
    return linear(
        encode=lambda x: (x @ decoder / scales + shift * x[:, :2].sign(), variance.expand(len(x), 2)),
        decode=lambda z: gain * (z @ decoder.T.to(z)),
        **stated,
    ), x


@pytest.mark.parametrize("beta", [6.0, 20.0])
def test_a_high_weight_of_the_kl_is_told_from_a_poor_encoder(beta):
    model, x = trained_with(beta)
    found = vs.diagnose(model, x, progress=None)
    assert [f.code for f in found.findings if f.severity != "note"] == ["beta-high"]
    assert found.evidence.noise.beta == pytest.approx(beta, rel=0.01)
    assert found.evidence.noise.shift < 1e-6
    assert not found.evidence.noise.slope.off(0.0, 3.0)
    poor = vs.diagnose(widened(6.0, offset=0.5), X, progress=None)
    assert poor.findings[0].code == "amortization"
    assert poor.evidence.noise.shift > 0.25


@pytest.mark.parametrize("stated", [{}, {"precision": 200.0, "beta": 2.0}])
@pytest.mark.parametrize("beta", [6.0, 20.0])
def test_means_of_trained_models_are_a_little_off(beta, stated):
    model, x = trained_with(beta, offset=0.2, **stated)
    found = vs.diagnose(model, x, progress=None)
    assert 0.01 < found.evidence.noise.shift < 0.06
    assert [f.code for f in found.findings if f.severity != "note"] == ["beta-high"]


def test_with_a_stated_weight_of_the_kl_the_gap_is_no_evidence_against_the_encoder():
    stated = {"precision": 200.0, "beta": 2.0}
    assert codes(widened(1 / 20, offset=12.0, **stated)) == ["beta-low"]
    assert codes(widened(6.0, offset=0.5, precision=10.0, beta=0.1)) == []  # means are off, and so are the widths


def test_a_low_weight_of_the_kl_is_told_from_a_poor_encoder():
    """Both have narrow posteriors; those of a low weight lose less than the KL."""
    assert codes(widened(1 / 20)) == codes(widened(1 / 20, offset=2.0)) == ["beta-low"]
    assert codes(widened(1 / 20, offset=12.0)) == ["amortization"]


def test_wide_codes_of_a_stated_low_weight_are_no_fault_of_the_samples():
    """β = 0.01: posteriors and codes of a model that hardly had a prior."""
    narrow = {"encode": lambda x: (2 * (x @ W / W.square().sum(0)), torch.full((len(x), 2), 0.004))}
    model = linear(**narrow, decode=lambda z: z / 2 @ W.T.to(z), beta=0.01)
    assert "reconstruction" not in codes(model)


# the slope of x on reconstructions ------------------------------------------------------------


@pytest.mark.parametrize("weight", [1.0, 6.0, 20.0])
@pytest.mark.parametrize("factor", [0.25, 1.0, 4.0])
def test_draws_of_other_widths_change_the_slope(weight, factor):
    """Principal components at any β: the slope is 1 with the variances of training, and only with them.

    Per component: Cov(x, f(z)) = s - b and Var(f(z)) = (s - b)² / s + (s - b) v, where s is the variance of the data, b
    the noise β/100 and v the posterior variance, which is b/s in training.
    """
    model, x = trained_with(weight)
    scales, noise = torch.tensor([60.0, 45.0]) / 100, weight / 100
    covariance, variance = scales - noise, factor * noise / scales
    expected = float(covariance.sum() / (covariance.square() / scales + covariance * variance).sum())
    sample = encode(model, x)
    slope = slope_of_draws(replace(sample, variance=factor * sample.variance), draws=64)
    assert slope.value == pytest.approx(expected, abs=3 * slope.stderr)
    assert slope.stderr < 0.05
    assert (factor == 1.0) == (expected == pytest.approx(1))


def test_without_variation_or_with_another_shape_there_is_no_slope():
    constant = encode(linear(decode=lambda z: torch.zeros(len(z), 5)), X)
    assert slope_of_draws(constant, draws=2) is None
    wide = encode(linear(decode=lambda z: torch.zeros(len(z), 7)), X)
    with pytest.raises(InputError, match="returns 7 numbers per sample"):
        slope_of_draws(wide, draws=2)


def test_wide_posteriors_of_a_decoder_that_was_trained_with_narrow_ones_are_the_encoders_fault():
    found = vs.diagnose(widened(torch.tensor([12.0, 80.0])), X, progress=None)
    assert found.evidence.noise.beta > 10
    assert found.evidence.noise.slope.value < 0.95
    assert [f.code for f in found.findings if f.severity != "note"] == ["amortization"]


def test_if_all_are_as_much_too_wide_draws_of_training_may_have_had_less_noise():
    """No snapshot tells z = mean + 0.2 std ε from variances that encode multiplies by 25; both are named."""
    found = vs.diagnose(widened(25.0), X, progress=None)
    assert [f.code for f in found.findings if f.severity != "note"] == ["sampling-noise"]
    assert "on the way to encode" in found.findings[0].advice


@pytest.mark.parametrize(("given", "expected"), [(lambda v: v, True), (torch.sqrt, False)])
def test_a_reading_of_variances_with_which_the_decoder_was_not_trained_is_ruled_out(given, expected):
    """One latent with β = 4: its variances are as large as the standard deviations of a smaller β."""
    model, x = one_latent(weight=4.0)
    sample = encode(model, x)
    assert ruled_out(sample, given(sample.variance), "standard deviation", "variance") == expected


@pytest.mark.parametrize("gain", [0.8, 0.9])
def test_a_decoder_with_another_gain_rules_nothing_out(gain):
    """Dropout and overfitting change the slope, too; then it does not say which variances are right."""
    model, x = one_latent(weight=4.0, gain=gain)
    sample = encode(model, x)
    assert not ruled_out(sample, sample.variance.sqrt(), "standard deviation", "variance")


@pytest.mark.parametrize("gain", [0.9, 1.1])
def test_a_high_weight_is_not_blamed_on_the_encoder_for_the_gain_of_the_decoder(gain):
    model, x = trained_with(20.0, gain=gain)
    assert codes(model, x) == ["beta-high"]


@pytest.mark.parametrize("samples", [1, 2, 3, 29])
def test_few_samples_have_no_slope(samples):
    sample = encode(linear(), X[:samples])
    assert slope_of_draws(sample, draws=2) is None


def test_a_decoder_that_fails_leaves_readings_of_variances_to_other_evidence():
    def fail(z):
        raise RuntimeError("no")

    sample = encode(linear(decode=fail), X)
    assert not ruled_out(sample, sample.variance, "standard deviation", "variance")


def one_latent(weight, gain=1.0):
    """The optimum with this β of one principal component, whose noise is 0.02 of the data's variance; and samples."""
    generator, noise = torch.Generator().manual_seed(3), 0.02 * weight
    direction = torch.linalg.qr(torch.randn(10, 1, generator=generator))[0]
    x = torch.randn(600, 1, generator=generator) * 0.98**0.5 @ direction.T
    x = x + 0.02**0.5 * torch.randn(600, 10, generator=generator)
    decoder = direction * (1 - noise) ** 0.5
    return linear(
        encode=lambda x: (x @ decoder, torch.full((len(x), 1), noise)),
        decode=lambda z: gain * (z @ decoder.T.to(z)),
        latent_dim=1,
        precision=50.0,
    ), x
