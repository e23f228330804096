"""Planted kinds under every kind of prior, invariances of verdicts, boundaries, baseline rules, and bad input."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.format import open_memmap

import vaescope as vs
from vaescope.analysis.posteriors import Posteriors
from vaescope.core.errors import InputError
from vaescope.regime import classify, planted

kinds = st.lists(st.sampled_from(["active", "passive", "mixed"]), min_size=1, max_size=8)


def judged(q: Posteriors, **options):
    return classify(q.mean, q.variance, prior_mean=q.prior_mean, prior_variance=q.prior_variance, **options)


@settings(max_examples=200)
@given(kinds, st.sampled_from(planted.PRIORS), st.floats(0.15, 0.85), st.integers(0, 10_000))
def test_planted_kinds_are_found_under_any_prior(truth, prior, share, seed):
    q = planted.posteriors(truth, 600, prior=prior, share=share, seed=seed)
    regime = judged(q)
    assert regime.kind == truth
    for k, kind in enumerate(truth):
        expected = {"active": 0.0, "passive": 1.0, "mixed": share}[kind]
        assert regime.passive_fraction[k] == pytest.approx(expected, abs=0.02)
    assert not regime.boundary.any()


@settings(max_examples=30)
@given(kinds, st.integers(0, 1000), st.floats(0.01, 100.0), st.floats(-50.0, 50.0))
def test_verdicts_are_invariant_to_units_and_to_the_order_of_samples_and_latents(truth, seed, scale, offset):
    q = planted.posteriors(truth, 300, prior="conditional", seed=seed)
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(300), rng.permutation(len(truth))

    def permuted(a):
        return a[rows][:, columns]

    regime = classify(
        scale * permuted(q.mean) + offset,
        scale**2 * permuted(q.variance),
        prior_mean=scale * permuted(q.prior_mean) + offset,
        prior_variance=scale**2 * permuted(q.prior_variance),
    )
    before = judged(q)
    assert regime.kind == [before.kind[k] for k in columns]
    np.testing.assert_allclose(regime.kl, before.kl[columns], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(regime.variance_ratio, before.variance_ratio[columns], rtol=1e-9)


def test_kl_agrees_with_the_distributions_package():
    q = planted.posteriors(["active", "mixed", "passive"], 200, prior="conditional")
    prior = vs.Normal(torch.from_numpy(q.prior_mean), torch.from_numpy(q.prior_variance))
    expected = vs.distributions.kl_per_latent(torch.from_numpy(q.mean), torch.from_numpy(q.variance), prior)
    np.testing.assert_allclose(judged(q).kl, expected.mean(0), rtol=1e-10)


def test_rules_that_ignore_the_prior_fail_for_a_learned_prior():
    """Under a learned p(z|u) with small variances, a passive posterior has a small variance too."""
    truth = ["passive"] * 4 + ["active"] * 4
    regime = judged(planted.posteriors(truth, 1000, prior="conditional"))
    assert regime.kind == truth
    verdicts = regime.baseline_rules.verdicts()
    assert verdicts["variance near 1"][:4] != ["passive"] * 4
    assert verdicts["active units"][:4] == ["active"] * 4  # the prior's mean moves, and the posterior's with it
    assert verdicts["KL > 0.01"] == truth
    text = "\n".join(regime.disagreements())
    assert "active units calls latents 0, 1, 2, 3 active; relative to their prior they are passive." in text


def test_baseline_rules_agree_on_clear_cases_under_a_standard_prior():
    regime = judged(planted.posteriors(["passive", "active", "active"], 1000))
    assert regime.disagreements() == []


@pytest.mark.parametrize("share", [0.93, 0.955, 0.06, 0.045])
def test_a_mixture_near_the_allowed_share_is_a_boundary(share):
    regime = judged(planted.posteriors(["mixed", "active"], 2000, share=share))
    assert regime.boundary.tolist() == [True, False]
    assert "latents 0 are at a boundary" in regime.warnings[0]


def test_a_posterior_at_the_threshold_is_a_boundary_on_either_side():
    for nats in (0.045, 0.055):
        mean = np.full((100, 1), np.sqrt(2 * nats))
        regime = classify(mean, np.ones((100, 1)))
        assert regime.boundary[0]
        assert regime.kind == ["passive" if nats < 0.05 else "active"]
    assert not classify(np.zeros((100, 1)), np.ones((100, 1))).boundary[0]


def test_a_weak_latent_that_all_samples_use_is_active_not_mixed():
    """A principal component 1.3 times the noise: many samples are near the prior, but none are clearly active."""
    rng = np.random.default_rng(0)
    ratio = 1 / 1.3
    mean = rng.normal(0, np.sqrt(1 - ratio), (2000, 1))
    regime = classify(mean, np.full((2000, 1), ratio))
    assert regime.kind == ["active"]
    assert 0.1 < regime.passive_fraction[0] < 0.9


def test_a_latent_with_prior_variance_and_varying_means_is_active():
    """With a fixed variance of 1, as in some VAEs, the means carry the information."""
    mean = np.random.default_rng(0).normal(0, 3, (1000, 1))
    assert classify(mean, np.ones((1000, 1))).kind == ["active"]


def test_a_posterior_wider_than_its_prior_is_passive_with_a_warning():
    regime = classify(np.zeros((50, 2)), np.full((50, 2), [3.0, 1.0]))
    assert regime.kind == ["passive", "passive"]
    assert "latents 0 have posteriors wider than their prior" in regime.warnings[0]


@pytest.mark.parametrize("parts", [1, 7])
def test_verdicts_do_not_depend_on_chunks(parts, monkeypatch):
    q = planted.posteriors(["active", "mixed", "passive"], 1000, prior="conditional")
    once = judged(q)
    monkeypatch.setattr("vaescope.analysis.posteriors.NUMBERS_AT_ONCE", 3000 // parts)
    again = judged(q)
    assert again.kind == once.kind
    for name in ("kl", "variance_ratio", "signal", "passive_fraction"):
        np.testing.assert_allclose(getattr(again, name), getattr(once, name), rtol=1e-12)
    np.testing.assert_allclose(again.baseline_rules.variance_of_means, q.mean.var(0), rtol=1e-10)
    np.testing.assert_allclose(again.baseline_rules.variance_of_variances, q.variance.var(0), rtol=1e-10)


def test_files_are_read_from_disk(tmp_path):
    q = planted.posteriors(["active", "passive"], 500)
    for name in ("mean", "variance"):
        mapped = open_memmap(tmp_path / f"{name}.npy", mode="w+", dtype=np.float32, shape=(500, 2))
        mapped[:] = getattr(q, name)
        mapped.flush()
    regime = classify(tmp_path / "mean.npy", str(tmp_path / "variance.npy"))
    assert regime.kind == ["active", "passive"]
    assert regime.samples == 500


def test_tensors_lists_and_a_single_sample_are_accepted():
    assert classify(torch.zeros(3, 2), torch.ones(3, 2)).kind == ["passive"] * 2
    assert classify([[2.0, 0.0]], [[0.01, 1.0]]).kind == ["active", "passive"]


def test_the_text_lists_latents_by_use():
    regime = judged(planted.posteriors(["passive", "active", "mixed"], 500))
    text = str(regime)
    assert text.startswith("1 active, 1 mixed, 1 passive of 3 latents (500 samples).")
    assert [row["latent"] for row in regime.table()] == [1, 2, 0]


# collapse -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("truth", "prior", "expected"),
    [
        (["active", "mixed"], "standard", "none"),
        (["active", "passive"], "standard", "partial"),
        (["active", "passive"], "conditional", "partial"),
        (["passive", "passive"], "standard", "full"),
        (["passive", "passive"], "fixed", "full"),
        (["passive", "passive"], "conditional", "repeats prior"),
    ],
)
def test_the_kind_of_collapse_is_recognised(truth, prior, expected):
    assert judged(planted.posteriors(truth, 500, prior=prior)).collapse.kind == expected


def test_latents_that_nearly_follow_their_prior_mean_repeat_the_prior():
    """Means follow μ†(u) over a wide range, and x moves them by a fraction of the prior's width: weakly active."""
    rng = np.random.default_rng(0)
    prior_mean = rng.normal(size=(2000, 3))
    mean = prior_mean + 0.04 * rng.normal(size=(2000, 3))
    regime = classify(mean, np.full((2000, 3), 0.008), prior_mean=prior_mean, prior_variance=0.01)
    assert regime.kind == ["active"] * 3
    assert regime.collapse.kind == "repeats prior"
    informative = prior_mean + 0.4 * rng.normal(size=(2000, 3))
    regime = classify(informative, np.full((2000, 3), 0.001), prior_mean=prior_mean, prior_variance=0.2)
    assert regime.collapse.kind == "none"


def test_a_plain_vae_never_repeats_the_prior():
    weak = 0.09 * np.random.default_rng(0).normal(size=(500, 2))
    assert classify(weak, np.full((500, 2), 0.58)).collapse.kind == "none"


def test_latents_that_add_nats_to_a_wide_prior_mean_are_not_collapsed():
    rng = np.random.default_rng(0)
    prior_mean = rng.uniform(-5, 5, (1000, 20))
    mean = prior_mean + 0.22 * rng.normal(size=(1000, 20))
    regime = classify(mean, np.full((1000, 20), 0.052), prior_mean=prior_mean, prior_variance=0.1)
    assert regime.kl.sum() > 5
    assert regime.collapse.kind == "none"


# bad input ------------------------------------------------------------------------------------

ok = np.ones((5, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variance": -3 * ok}, "they look like log-variances: pass np.exp of them"),
        ({"variance": ok - 1}, r"variance must be > 0, got 0 at sample 0, latent 0; clamp variances that underflow"),
        ({"variance": ok[:, :1]}, r"variance must have the shape of mean, \(5, 2\), got \(5, 1\)"),
        ({"mean": np.full((5, 2), np.nan)}, "mean must be finite, got nan at sample 0, latent 0"),
        ({"mean": np.ones(5)}, r"mean must have a row per sample and a column per latent, \(N, d\), got shape \(5,\)"),
        ({"mean": np.ones((0, 2)), "variance": np.ones((0, 2))}, "mean must have a row per sample"),
        ({"mean": "there-is-no.npy"}, "mean: there-is-no.npy does not exist"),
        ({"mean": [[1.0], [1.0, 2.0]]}, "mean must be an array of numbers"),
        ({"mean": np.array([["a", "b"]])}, "mean must be an array of numbers"),
        ({"prior_variance": np.ones(3)}, r"prior_variance must be a number, \(2,\) or \(5, 2\), got shape \(3,\)"),
        ({"prior_variance": -1.0}, "prior_variance must be > 0, got -1"),
        ({"prior_mean": np.ones((4, 2))}, "for an iVAE pass the prior of each sample"),
        ({"mean": np.ma.masked_less(ok, 2)}, "mean has masked values; drop or impute those samples"),
        ({"mean": torch.ones(5, 2, dtype=torch.complex64)}, "mean must be real, got complex numbers"),
        ({"prior_variance": 1e-310}, "too far apart for float64"),
        ({"passive_kl": 0.0}, "passive_kl must be > 0, got 0.0; it is in nats"),
        ({"active_ratio": 1.0}, "active_ratio must be between 0 and 1"),
        ({"mixed_share": 0.5}, "mixed_share must be between 0 and 0.5"),
    ],
)
def test_bad_input_is_explained(arguments, message):
    with pytest.raises(InputError, match=message):
        classify(**{"mean": 0 * ok, "variance": ok} | arguments)


def test_a_file_without_an_array_is_refused(tmp_path):
    (tmp_path / "x.npy").write_bytes(b"not an array")
    with pytest.raises(InputError, match=r"mean: x.npy cannot be read as an .npy array"):
        classify(tmp_path / "x.npy", ok)


def test_an_archive_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", mean=ok)
    with pytest.raises(InputError, match=r"mean: x.npz is an archive, not an .npy array"):
        classify(tmp_path / "x.npz", ok)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: planted.posteriors(["pasive"]), "kinds must be active, passive or mixed"),
        (lambda: planted.posteriors(["mixed"], share=1.5), "a share between 0 and 1"),
        (lambda: planted.GatedModel(share=0.0), "share must be between 0 and 1"),
    ],
)
def test_arguments_of_planted_posteriors_are_checked(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.int64])
def test_any_numeric_type_is_accepted(kind):
    assert classify(np.zeros((4, 1), kind), np.ones((4, 1), kind)).kind == ["passive"]
    assert classify(torch.zeros(4, 1, dtype=torch.bfloat16), torch.ones(4, 1)).kind == ["passive"]


def test_log_variances_are_detected():
    """Log-variances of active latents are negative, those of passive ones are around zero."""
    q = planted.posteriors(["active", "passive"], 300)
    with pytest.raises(InputError, match="log-variances"):
        classify(q.mean, np.log(q.variance))


# larger than memory ---------------------------------------------------------------------------

ON_DISK = """
import sys
from vaescope.regime import classify
regime = classify(f"{sys.argv[1]}/mean.npy", f"{sys.argv[1]}/variance.npy")
# the peak of this process alone: getrusage includes the size of the process that started it
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(regime.samples, len(regime.active), len(regime.passive), int(peak) // 1024)
"""


def write_posteriors(folder: Path, rows: int, latents: int) -> None:
    """Posteriors of eight active latents and many passive ones, written in chunks."""
    rng, active = np.random.default_rng(0), np.arange(latents) < 8
    for name in ("mean", "variance"):
        out = open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.float32, shape=(rows, latents))
        for first in range(0, rows, 50_000):
            noise = rng.standard_normal((50_000, latents), dtype=np.float32)
            values = np.where(active, noise, 0.01 * noise) if name == "mean" else np.where(active, 0.02, 1.0)
            out[first : first + 50_000] = values


@pytest.mark.parametrize("samples", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_posteriors_are_classified_from_disk(tmp_path, samples):
    write_posteriors(tmp_path, samples, 32)
    done = subprocess.run([sys.executable, "-c", ON_DISK, str(tmp_path)], capture_output=True, text=True, check=True)
    found, active, passive, megabytes = map(int, done.stdout.split())
    assert (found, active, passive) == (samples, 8, 24)
    assert megabytes < 1000
