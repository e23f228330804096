"""Models compared as settings with seeds: intervals that count both errors, and verdicts that say what decides."""

import numpy as np
import pytest
import torch

import vaescope as vs
from tests.compare.test_compare import W, X, linear
from vaescope import theory
from vaescope.products.compare.measure import combined_differences, compare_settings, paired_differences


def seeds(precision, deviation, count, generator):
    """Seeds of a setting: columns of a linear decoder with errors of their own."""
    noise = [deviation * torch.randn(W.shape, generator=generator, dtype=torch.float64) for _ in range(count)]
    return [linear(precision, W + one, name=f"γ² = {precision:g}") for one in noise]


def draws(rng, seeds_a, seeds_b, *, between, within=0.5, samples=100, effect=0.0):
    """Values (N, M) of two settings: what is hard for all, what a setting, a seed, and a seed at a sample add."""
    count = seeds_a + seeds_b
    scale = np.array([between[0]] * seeds_a + [between[1]] * seeds_b)
    group = rng.normal(size=(samples, 2))[:, [0] * seeds_a + [1] * seeds_b]
    hard = 10 * rng.normal(size=(samples, 1))
    values = hard + group + scale * rng.normal(size=count) + within * rng.normal(size=(samples, count))
    return values + effect * np.array([0.0] * seeds_a + [1.0] * seeds_b)


@pytest.mark.parametrize(
    ("sizes", "between"),
    [(n, s) for n in ((3, 3), (5, 5)) for s in ((0.0, 0.0), (0.5, 0.5), (0.2, 0.6))]
    + [((2, 6), (0.0, 0.0)), ((2, 6), (0.5, 0.5))],  # a pooled variance needs equal spread or equal numbers
)
def test_equal_settings_are_called_different_in_at_most_5_percent(sizes, between):
    """Planted truth: no effect, seeds that differ or do not. Differences between seeds alone would be 'significant'."""
    rng, labels, wrong, naive = np.random.default_rng(0), ["A"] * sizes[0] + ["B"] * sizes[1], [], []
    for _ in range(400):
        paired = paired_differences(draws(rng, *sizes, between=between))
        wrong.append(not compare_settings(paired, labels).indistinguishable[0, 1])
        contrast = np.repeat([1 / sizes[0], -1 / sizes[1]], sizes)
        spread = np.sqrt(contrast @ paired.covariance @ contrast / paired.samples)
        naive.append(abs(contrast @ paired.difference[:, 0]) > 2 * spread)
    assert np.mean(wrong) <= 0.085
    if between != (0.0, 0.0):
        assert np.mean(naive) > 0.2


def test_a_planted_effect_is_covered_and_found():
    rng, labels, inside, seen = np.random.default_rng(1), ["A"] * 4 + ["B"] * 4, [], []
    for _ in range(300):
        found = compare_settings(paired_differences(draws(rng, 4, 4, between=(0.4, 0.4), effect=2.0)), labels)
        inside.append(abs(found.difference[1, 0] - 2.0) <= found.half_width[1, 0])
        seen.append(not found.indistinguishable[1, 0])
    assert 0.92 <= np.mean(inside) <= 0.99
    assert np.mean(seen) > 0.9


def test_without_a_spread_over_seeds_the_error_is_that_of_the_paired_samples():
    values = np.random.default_rng(0).normal(size=(50, 2)).repeat(2, axis=1)
    found = compare_settings(paired_differences(values), ["A", "A", "B", "B"])
    single = paired_differences(values[:, [0, 2]])
    assert found.difference[0, 1] == pytest.approx(single.difference[0, 1])
    assert found.stderr[0, 1] == pytest.approx(single.stderr[0, 1])
    assert found.half_width[0, 1] == pytest.approx(single.half_width[0, 1])


def test_log_p_of_some_samples_and_the_elbo_of_all_estimate_the_mean_with_their_joint_error():
    """Law: the mean of the whole population is inside the interval as often as it should be, and more precisely."""
    rng, inside, shorter = np.random.default_rng(0), [], []
    for _ in range(400):
        hard, gap = 5 * rng.normal(size=(400, 1)), rng.gamma(2.0, 0.3, size=(400, 2)) + np.array([0.0, 0.5])
        log_p = hard + rng.normal(size=(400, 2)) + np.array([0.0, 0.3])
        few = rng.permutation(400)[:64]
        found = combined_differences(log_p - gap, (log_p - gap)[few], log_p[few])
        inside.append(abs(found.difference[1, 0] - 0.3) <= found.half_width[1, 0])
        shorter.append(found.stderr[1, 0] / paired_differences(log_p[few]).stderr[1, 0])
    assert 0.93 <= np.mean(inside) <= 0.98
    assert np.mean(shorter) < 0.8


def test_every_b_beats_every_a():
    """Two seeds each: too few for a verdict, but the order of all of them is said, and by what."""
    generator = torch.Generator().manual_seed(0)
    models = {"A": seeds(10.0, 0.07, 2, generator), "B": seeds(20.0, 0.07, 2, generator)}
    found = vs.compare(models, X, progress=None)
    assert found.names == ["A (1)", "A (2)", "B (1)", "B (2)"]
    assert found.groups == ("A", "A", "B", "B")
    settings = found.settings
    assert settings.separated[1, 0]
    assert "indistinguishable" not in found.verdict
    assert found.verdict.startswith("B is ")
    assert "log p(x) decides: the ELBO at 300 samples and the gap at" in found.verdict
    truth = [
        np.mean(
            [
                float(theory.linear.log_likelihood(X, m.sample.model.decode(torch.eye(3).double()).T, p).mean())
                for m in part
            ]
        )
        for part, p in ((found.models[:2], 10.0), (found.models[2:], 20.0))
    ]
    assert settings.difference[1, 0] == pytest.approx(truth[1] - truth[0], abs=0.05)


def test_more_seeds_decide():
    generator = torch.Generator().manual_seed(0)
    models = {"A": seeds(10.0, 0.05, 4, generator), "B": seeds(20.0, 0.05, 4, generator)}
    found = vs.compare(models, X, progress=None)
    assert found.verdict.startswith("B is the best setting by log p(x): ")
    assert "(4 and 4 models)" in found.verdict
    page = found.page()
    assert ">Settings<" in page
    assert 'id="settings"' in page
    assert found.to_data()["settings"][0]["models"] == 4


@pytest.mark.parametrize("groups", [["a", "b", "b"], {"first": "a", "second": "b", "third": "b"}])
def test_groups_of_a_list_or_a_mapping(groups):
    models = {"first": linear(), "second": linear(5.0), "third": linear(5.0)}
    found = vs.compare(models if isinstance(groups, dict) else [*models.values()], X, groups=groups, progress=None)
    assert found.groups == ("a", "b", "b")
    assert [row["setting"] for row in found.summary()] == ["a", "b", "b"]


@pytest.mark.parametrize("groups", [["a"], ["a", "a", "a"], ["a", "b", "c"], {"other": "a"}])
def test_groups_that_do_not_fit_are_refused(groups):
    models = {"first": linear(), "second": linear(5.0), "third": linear(5.0)}
    with pytest.raises(vs.InputError, match="groups must"):
        vs.compare(models, X, groups=groups, progress=None)


def test_the_verdict_says_why_the_elbo_decides():
    models = {"good": linear(), "bad": linear(5.0)}
    found = vs.compare(models, X, budget=1e-9, progress=None)
    assert found.quantity == "ELBO"
    assert "The ELBO at 300 samples decides, as there is no log p(x) of all models" in found.verdict
    assert "it would take longer" in found.verdict


def test_cells_are_grey_exactly_if_their_interval_contains_zero():
    rng = np.random.default_rng(0)
    for _ in range(40):
        found = paired_differences(rng.normal(size=(40, 5)) + 0.25 * np.arange(5))
        contains = np.abs(found.difference) <= found.joint_half_width
        assert (contains == found.indistinguishable).all()
