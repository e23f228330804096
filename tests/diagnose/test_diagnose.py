"""What a diagnosis measures and finds, on models whose faults are known in closed form."""

import numpy as np
import pytest
import torch

import vaescope as vs
from tests.diagnose.models import W, X, linear, pixels, wide
from vaescope.analysis.encoding import encode
from vaescope.analysis.gap import measure_gap
from vaescope.core.budget import Budget
from vaescope.products.diagnose.measurements import measure_validity


def test_an_optimal_model_has_no_findings_and_agrees_with_theory():
    found = vs.diagnose(linear(), X)
    assert found.findings == []
    assert found.worst is None
    assert found.evidence.noise.beta == pytest.approx(1, abs=0.02)
    assert found.evidence.noise.precision == pytest.approx(100, rel=0.1)
    assert found.evidence.geometry.contrast == pytest.approx(0, abs=1e-5)
    np.testing.assert_allclose(found.evidence.eq12, 1, rtol=1e-4)
    assert found.evidence.gap.mean("amortization")[0] == pytest.approx(0, abs=1e-3)
    assert found.evidence.gap.mean("family")[0] == pytest.approx(0, abs=1e-3)
    assert [row["latent"] for row in found.summary()] == [0, 1]
    assert set(found.skipped) == {"stability", "metrics", "overfitting"}
    assert found.to_data()["near_deterministic"] is True


def test_a_noisy_model_is_not_near_deterministic():
    variance = 1 / (1 + W.square().sum(0))
    noisy = linear(encode=lambda x: ((x @ W) * variance, variance.expand(len(x), 2)), precision=1.0)
    assert vs.diagnose(noisy, X).to_data()["near_deterministic"] is False
    assert vs.diagnose(linear(precision=None), X).to_data()["near_deterministic"] is None


def test_the_gap_of_many_latents_is_estimated_by_sampling():
    found = vs.diagnose(*wide())
    assert found.findings == []
    for part in ("family", "amortization"):
        assert found.evidence.gap.mean(part)[0] == pytest.approx(0, abs=0.02)
    assert "by sampling" in found.to_data()["gap"]["note"]
    shifted = vs.diagnose(*wide(shift=2.0))
    assert [f.code for f in shifted.findings] == ["amortization"]
    assert shifted.evidence.gap.mean("amortization")[0] == pytest.approx(12, abs=0.3)  # six latents, two nats each
    assert shifted.evidence.gap.mean("family")[0] == pytest.approx(0, abs=0.05)


def test_bernoulli_models():
    found = vs.diagnose(*pixels())
    assert found.findings == []
    assert found.evidence.noise.beta == pytest.approx(1, abs=0.3)
    assert found.evidence.geometry.contrast == pytest.approx(0, abs=1e-9)
    assert found.evidence.gap.mean("amortization")[0] < 0.1
    turn = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64) / 2**0.5
    rotated = vs.diagnose(*pixels(turn=turn))
    assert rotated.evidence.geometry.rotation.before > 0.05  # below what is worth a finding
    assert rotated.evidence.geometry.rotation.after == pytest.approx(0, abs=1e-3)
    assert [f.code for f in vs.diagnose(*pixels(shift=3.0)).findings] == ["amortization"]
    wide = vs.diagnose(*pixels(beta=20.0))  # with the decoder of β = 1, which was not trained with such posteriors
    assert wide.evidence.noise.beta == pytest.approx(20, rel=0.25)
    assert [f.code for f in wide.findings] == ["sampling-noise"]  # all are as much too wide: ε may have had less noise


def test_a_declared_beta_is_not_a_fault():
    variance = 1 / (1 + 5 * W.square().sum(0))  # β = 20 at γ² = 100
    wide_posteriors = {"encode": lambda x: (5 * (x @ W) * variance, variance.expand(len(x), 2))}
    assert [f.code for f in vs.diagnose(linear(**wide_posteriors), X).findings] == ["beta-high"]
    known = vs.diagnose(linear(**wide_posteriors, beta=20.0), X)
    assert [f for f in known.findings if f.severity != "note"] == []
    np.testing.assert_allclose(known.evidence.eq12, 1, rtol=1e-4)
    assert "β = 20" in known.evidence.gap.note


def test_several_seeds_are_compared():
    other = linear(
        encode=lambda x: (
            torch.randn(len(x), 2, generator=torch.Generator().manual_seed(1)),
            torch.full((len(x), 2), 0.1),
        )
    )
    assert [f.code for f in vs.diagnose([linear(), other], X).findings] == ["unstable"]
    assert vs.diagnose([linear(), linear()], X).findings == []


@pytest.mark.parametrize("detach", [lambda t: t.detach(), lambda t: t.data])
def test_a_decoder_that_detaches_is_differentiated_by_differences(detach):
    found = vs.diagnose(linear(decode=lambda z: detach(z @ W.T.to(z))), X)
    assert found.evidence.geometry.contrast == pytest.approx(0, abs=1e-4)
    assert found.evidence.geometry.rank == 2
    assert "detaches its output" in found.skipped["gap"]
    assert found.findings == []


@pytest.mark.parametrize("shift", [0.2, 0.5, 1.0])
def test_errors_of_the_encoder_do_not_count_as_noise(shift):
    variance = 1 / (1 + 100 * W.square().sum(0))
    shifted = linear(encode=lambda x: (100 * (x @ W) * variance + shift, variance.expand(len(x), 2)))
    assert [f.code for f in vs.diagnose(shifted, X).findings if f.severity != "note"] == ["amortization"]


def test_the_best_posterior_is_found_from_a_distant_encoder():
    model, x = wide(shift=40.0)
    found = measure_gap(encode(model, x), list(range(6)), Budget(60.0))
    assert found.mean("family")[0] == pytest.approx(0, abs=0.1)
    assert found.mean("amortization")[0] == pytest.approx(0.5 * 6 * 40**2, rel=0.01)
    assert found.pareto_k < 0.7


def test_effective_beta_does_not_depend_on_the_scale_of_the_prior():
    """A prior N(0, 1e4) and codes a hundred times as large."""
    variance = 1e4 / (1 + 5 * W.square().sum(0))  # β = 20 at γ² = 100
    model = linear(
        encode=lambda x: (5 * (x @ W) * variance / 100, variance.expand(len(x), 2)),
        decode=lambda z: z @ W.T.to(z) / 100,
        prior=vs.Normal(0.0, 1e4),
    )
    found = vs.diagnose(model, X)
    assert [f.code for f in found.findings] == ["beta-high"]
    assert found.evidence.noise.beta == pytest.approx(20, rel=1e-3)


def test_zero_variances_are_not_log_variances():
    variance = 1 / (1 + 100 * W.square().sum(0))

    def encode(x):
        spread = variance.expand(len(x), 2).clone()
        spread[-1, 0] = 0.0
        return 100 * (x @ W) * variance, spread

    found = vs.diagnose(linear(encode=encode), X)
    assert "zero-variance" in [f.code for f in found.findings]
    assert "negative-variance" not in [f.code for f in found.findings]
    assert found.summary()[0]["variance ratio"] < 0.02


def test_logits_are_found_and_converted():
    model, x = pixels()
    inner = model.decode
    logits = vs.adapters.from_callables(
        encode=model.encode, decode=lambda z: torch.logit(inner(z)), latent_dim=2, likelihood="bernoulli"
    )
    found = vs.diagnose(logits, x)
    assert [(f.code, f.severity) for f in found.findings] == [("logits", "error")]
    assert found.evidence.noise.beta == pytest.approx(1, abs=0.3)


def test_dependent_columns_are_reported():
    partly = linear(decode=lambda z: torch.where(z[:, :1] > 0, z[:, :1] @ W[:, :1].T.to(z), z @ W.T.to(z)))
    geometry = vs.diagnose(partly, X).evidence.geometry
    assert 0.2 < geometry.singular < 0.8
    everywhere = linear(decode=lambda z: (z @ torch.ones(2, 1).to(z)) @ W[:, :1].T.to(z))
    found = vs.diagnose(everywhere, X)
    assert found.evidence.geometry.singular == 1
    assert "infinite at all codes" in found.page()


def test_the_distance_of_the_gap_from_its_limit_is_shown_where_it_has_one(tmp_path):
    found = vs.diagnose(linear(), X)
    assert found.evidence.validity.valid.all()
    assert found.evidence.validity.sentence() in repr(found)
    text = found.to_html(tmp_path / "page.html").read_text()
    assert "samples with a gap within 0.1 nats of c_IMA" in text
    assert found.to_data()["validity"]["valid_share"] == 1.0
    for model, x in (pixels(), wide()):  # no Gaussian likelihood; more latents than a quadrature has
        other = vs.diagnose(model, x)
        assert other.evidence.validity is None
        assert "validity" not in other.skipped


def test_a_wide_posterior_on_a_bent_decoder_is_outside_the_near_deterministic_picture():
    bent = {"decode": lambda z: torch.sin(3 * z) @ W.T.to(z), "precision": 1.0}
    model = linear(**bent)
    found = measure_validity(encode(model, X), [0, 1], Budget(30.0))
    assert not found.valid.any()
    declared = vs.theory.validity(bent["decode"], encode(model, X).mean[:5].double(), precision=1.0)
    assert not declared.valid.any()
