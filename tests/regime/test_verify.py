"""Each statement on posteriors that satisfy it and on posteriors that do not."""

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance

from vaescope.analysis.posteriors import Posteriors
from vaescope.core.errors import InputError
from vaescope.regime import classify, planted, verify
from vaescope.regime.verify import _cdf, _grid

NAMES = [
    "Theorem 1",
    "Proposition 1 (i)",
    "Proposition 1 (ii)",
    "Proposition 2 (i)",
    "Proposition 2 (ii)",
    "Proposition 3 (i)",
    "Proposition 3 (ii)",
    "Theorem 2 (i)",
    "Theorem 2 (ii)",
    "Theorem 2 (iii)",
]


def verified(q: Posteriors, **options):
    return verify(q.mean, q.variance, prior_mean=q.prior_mean, prior_variance=q.prior_variance, **options)


@pytest.mark.parametrize("prior", planted.PRIORS)
@pytest.mark.parametrize("seed", range(3))
def test_polarised_posteriors_satisfy_every_statement(prior, seed):
    q = planted.posteriors(["active", "passive", "mixed", "passive"], 3000, prior=prior, share=0.3, seed=seed)
    found = verified(q)
    assert list(found.statements) == NAMES
    verdicts = {name: s.verdict for name, s in found.statements.items()}
    fixed = "no such latent" if prior == "conditional" else "holds"
    assert verdicts == dict.fromkeys(NAMES, "holds") | {"Proposition 2 (ii)": fixed}
    assert found.holds
    for s in found.statements.values():
        assert not s.latents or s.low <= s.distance <= s.high <= s.tolerance


BROKEN = {
    # every posterior is half way between prior and data
    "Theorem 1": ("active", 0.7, 0.55),
    # called passive, but its means follow x
    "Proposition 1 (i)": ("passive", 0.3, 0.9),
    "Proposition 2 (i)": ("passive", 0.3, 0.9),
    "Proposition 2 (ii)": ("passive", 0.3, 0.9),
    # called passive, but narrow
    "Proposition 3 (i)": ("passive", 0.3, 0.0),
    "Theorem 2 (i)": ("passive", 0.3, 0.0),
    # called active, but as wide as the prior
    "Proposition 1 (ii)": ("active", 0.8, 0.5),
    "Proposition 3 (ii)": ("active", 0.8, 0.5),
    "Theorem 2 (ii)": ("active", 0.8, 0.5),
    # called mixed, but half active everywhere: neither prior nor mean
    "Theorem 2 (iii)": ("mixed", 0.6, 0.5),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prior_variance", [1.0, 0.05])
def test_a_violated_statement_fails(name, prior_variance):
    """With one latent of this kind, ratio and spread of means; whatever the scale of the prior."""
    kind, ratio, spread = BROKEN[name]
    mean = spread * np.random.default_rng(0).normal(size=(2000, 1)) * prior_variance**0.5
    variance = np.full((2000, 1), ratio * prior_variance)
    found = verify(mean, variance, prior_variance=prior_variance, kind=[kind])
    assert found[name].verdict == "fails"
    assert not found.holds


def test_small_variances_do_not_imply_activity():
    """Under p(z|u) of variance 0.05 a latent with σ² = 0.04 is ≪ 1, yet passive: σ² ≪ 1 as printed would hold."""
    mean, variance = np.zeros((500, 1)), np.full((500, 1), 0.04)
    found = verify(mean, variance, prior_variance=0.05, kind=["active"])
    assert variance.mean() < 0.1
    assert found["Proposition 3 (ii)"].verdict == "fails"


def test_passive_latents_do_not_hide_a_model_that_is_not_polarised():
    rng = np.random.default_rng(0)
    mean = np.concatenate([0.55 * rng.normal(size=(1000, 9)), np.zeros((1000, 91))], axis=1)
    variance = np.broadcast_to([0.7] * 9 + [1.0] * 91, (1000, 100))
    assert verify(mean, variance)["Theorem 1"].verdict == "fails"


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("r", [0.01, 0.1])
def test_equal_variances_are_equal_in_proposition_3_however_different_those_of_the_prior_are(spread, r):
    """With every σ² within a factor of 1 ± r of its σ†², the distance is at most 4r + 2r². The worst case: the largest
    σ†² have the largest factors, which in units of the squared mean of σ†² would grow with their spread."""
    prior_variance = np.exp(spread * np.random.default_rng(0).normal(size=(4000, 1)))
    factor = np.where(prior_variance > np.median(prior_variance), 1 + r, 1 - r)
    found = verify(np.zeros((4000, 1)), factor * prior_variance, prior_variance=prior_variance, kind=["passive"])
    assert found["Proposition 3 (i)"].distance <= 4 * r + 2 * r**2
    in_units_of_the_mean = abs((factor * prior_variance).var() - prior_variance.var()) / prior_variance.mean() ** 2
    assert found["Proposition 3 (i)"].distance <= in_units_of_the_mean + r
    assert spread < 3 or in_units_of_the_mean > 4 * r + 2 * r**2


def test_narrow_posteriors_are_distributed_as_their_means_even_if_these_are_discrete():
    """The distribution of z tends to that of μ, whether or not it has atoms."""
    rng = np.random.default_rng(0)
    for atoms in ([-1.0, 1.0], np.linspace(-1.5, 1.5, 6)):
        mean = rng.choice(atoms, (2000, 1))
        for variance in (1e-8, 1e-4, 1e-3):
            assert verify(mean, np.full((2000, 1), variance))["Theorem 2 (ii)"].verdict == "holds"


def test_distances_agree_with_scipy():
    """Exact distributions against many draws."""
    q = planted.posteriors(["active", "passive"], 300, prior="conditional")
    rng = np.random.default_rng(0)
    found = verified(q, kind=["passive", "active"])  # swapped, so that distances are large
    z = (q.mean + np.sqrt(q.variance) * rng.normal(size=(1000, 300, 2))).reshape(-1, 2)
    prior = (q.prior_mean + np.sqrt(q.prior_variance) * rng.normal(size=(1000, 300, 2))).reshape(-1, 2)
    scale = np.sqrt(q.prior_variance.mean(0) + q.prior_mean.var(0))
    expected = [wasserstein_distance(z[:, 0], prior[:, 0]), wasserstein_distance(z[:, 1], q.mean[:, 1])]
    got = [found["Theorem 2 (i)"].distance, found["Theorem 2 (ii)"].distance]
    assert got == pytest.approx(np.array(expected) / scale, rel=0.03, abs=0.002)


@pytest.mark.parametrize("variance", [0.3, 0.8, 2.0])
@pytest.mark.parametrize("prior_variance", [1.0, 0.05])
def test_distances_between_normal_distributions_have_a_closed_form(variance, prior_variance):
    """Around one mean: |σ - σ†| E|N(0, 1)|, in units of σ†. A tenth of it is in the tails beyond two deviations."""
    shape = (50, 1)
    found = verify(
        np.zeros(shape), np.full(shape, variance * prior_variance), prior_variance=prior_variance, kind=["passive"]
    )
    expected = abs(variance**0.5 - 1) * (2 / np.pi) ** 0.5
    assert found["Theorem 2 (i)"].distance == pytest.approx(expected, rel=2e-3)


def test_equal_moments_over_the_data_do_not_imply_equal_distributions():
    """The proof of Theorem 2 (i) uses Props. 2 and 3 alone. Here they hold, and z is not distributed as z†."""
    rng = np.random.default_rng(0)
    prior_mean = rng.permutation(np.repeat([-1.0, 1.0], 2000))[:, None]
    mean = rng.normal(size=(4000, 1))
    mean = (mean - mean.mean()) / mean.std()
    found = verify(mean, np.full((4000, 1), 0.04), prior_mean=prior_mean, prior_variance=0.04, kind=["passive"])
    assert abs(mean.mean() - prior_mean.mean()) < 1e-9
    assert abs(mean.var() - prior_mean.var()) < 1e-9
    assert found["Proposition 3 (i)"].distance == 0
    assert found["Proposition 2 (i)"].distance < 1e-9
    assert found["Theorem 2 (i)"].verdict == "fails"
    assert found["Proposition 1 (i)"].verdict == "fails"


def test_the_distribution_function_of_z_is_exact():
    """Against draws: the Kolmogorov distance of a million samples from the mixture's function is of their noise."""
    q = planted.posteriors(["mixed"], 500, prior="conditional")
    at = _grid(q, 0)
    exact = _cdf(q.mean[:, 0], q.variance[:, 0], at).mean(0)
    rng = np.random.default_rng(0)
    draws = q.mean + np.sqrt(q.variance) * rng.normal(size=(500, 2000))
    empirical = np.searchsorted(np.sort(draws.ravel()), at, side="right") / draws.size
    assert np.abs(exact - empirical).max() < 0.003


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_the_gated_model_has_an_active_a_mixed_and_a_passive_latent(share):
    model = planted.GatedModel(share=share)
    mean, variance = model.encode(model.observe(4000, seed=0))
    regime = classify(mean, variance)
    assert regime.kind == ["active", "mixed", "passive"]
    found = verify(mean, variance)
    assert found.holds
    c, low, high = found.mixture_weights[1]
    assert low < share < high
    assert c == pytest.approx(share, abs=0.03)


def test_theorem_2_iii_holds_with_the_means_of_active_samples_only():
    """As printed, with p(μ) over all samples, the passive ones are counted twice: once as prior, once as means."""
    model = planted.GatedModel(share=0.5)
    mean, variance = (t.numpy()[:, 1:2] for t in model.encode(model.observe(4000, seed=0)))
    at = np.linspace(-3, 3, 301)
    z = _cdf(mean[:, 0], variance[:, 0], at).mean(0)
    prior = _cdf(np.zeros(1), np.ones(1), at)[0]
    below = mean <= at
    active = variance[:, 0] < 0.5
    ours = 0.5 * prior + 0.5 * below[active].mean(0)
    printed = 0.5 * prior + 0.5 * below.mean(0)
    assert np.abs(z - ours).max() < 0.03
    assert np.abs(z - printed).max() > 0.1


def test_the_gated_posterior_is_that_of_its_decoder():
    """Against importance-free numerical integration of p(x|z) p(z) over z₂, at points away from the gate."""
    model = planted.GatedModel()
    z2 = torch.linspace(-6, 6, 20001, dtype=torch.float64)
    for x in ([4.0, 2.5], [-4.0, 0.03]):
        z1 = torch.full_like(z2, x[0] / model.slope)
        decoded = model.decode(torch.stack([z1, z2, 0 * z2], dim=1))
        log_weight = -0.5 * model.precision * (decoded[:, 1] - x[1]) ** 2 - 0.5 * z2**2
        weight = torch.softmax(log_weight, 0)
        mean = (weight * z2).sum()
        variance = (weight * (z2 - mean) ** 2).sum()
        found = model.encode(torch.tensor([x], dtype=torch.float64))
        torch.testing.assert_close(found[0][0, 1], mean, atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(found[1][0, 1], variance, atol=1e-6, rtol=1e-4)


def test_intervals_shrink_with_samples_and_are_reproducible():
    few, many = (verified(planted.posteriors(["passive"], n, seed=1)) for n in (200, 5000))
    width = [s["Proposition 2 (i)"].high - s["Proposition 2 (i)"].low for s in (few, many)]
    assert width[1] < width[0]
    again = verified(planted.posteriors(["passive"], 200, seed=1))
    assert str(again) == str(few)


def test_too_few_samples_are_refused():
    with pytest.raises(InputError, match="need at least 2 samples, got 1"):
        verify(np.zeros((1, 2)), np.ones((1, 2)))
    with pytest.raises(InputError, match="resamples must be at least 20"):
        verify(np.zeros((5, 2)), np.ones((5, 2)), resamples=0)


def test_kinds_of_the_wrong_number_are_refused():
    with pytest.raises(InputError, match="kind must be one of active, passive, mixed for each of the 2 latents"):
        verify(np.zeros((5, 2)), np.ones((5, 2)), kind=["active"])


@pytest.mark.parametrize("deviation", [0.05, 0.2])
@pytest.mark.parametrize("spread", [0.1, 1.0, 30.0])
def test_moments_of_passive_means_deviate_little_however_much_the_prior_means_vary(spread, deviation):
    """The distance from Prop. 2 (i) is at most r + r², where r is that from Prop. 1 (i). Deviations along the prior
    means are the worst case.
    """
    prior_mean = spread * np.random.default_rng(0).standard_normal((5000, 1))
    shift = deviation * prior_mean / prior_mean.std()  # in prior deviations, growing with the prior mean
    found = verify(prior_mean + shift, np.ones((5000, 1)), prior_mean=prior_mean, kind=["passive"], prior_variance=1.0)
    r, moments = (found[name].distance for name in ("Proposition 1 (i)", "Proposition 2 (i)"))
    assert r == pytest.approx(deviation, rel=0.05)
    assert moments == pytest.approx((2 * deviation * spread + deviation**2) / (1 + spread**2), rel=0.05)
    assert moments <= r + r**2


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_passive_means_that_vary_more_than_learned_prior_means_fail(spread):
    prior_mean = spread * np.random.default_rng(0).standard_normal((5000, 1))
    for mean in (1.2 * prior_mean, 0.8 * prior_mean, prior_mean + 0.5 * np.hypot(1, spread)):
        found = verify(mean, np.ones((5000, 1)), prior_mean=prior_mean, kind=["passive"], prior_variance=1.0)
        assert found["Proposition 2 (i)"].verdict == "fails"
