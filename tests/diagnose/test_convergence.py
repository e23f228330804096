"""Conditions of an optimum that need no likelihood by name: the scale of codes, the weight of the KL; and coverage."""

import math

import numpy as np
import pytest
import torch

import vaescope as vs
from tests.diagnose.models import X, linear
from tests.diagnose.test_kl_weight import trained_with
from vaescope.analysis.encoding import encode
from vaescope.analysis.likelihood import measure_moments, measure_weights


def declared(model, how, scale=1.0, precision=100.0):
    """The same model stated in three ways, with codes multiplied by `scale`, which the decoder undoes."""

    def moved(x):
        mean, variance = model.encode(x)
        return scale * mean, scale**2 * variance

    def decode(z):
        return model.decode(z / scale)

    def log_p(x, z):
        return (0.5 * math.log(precision / (2 * math.pi)) - 0.5 * precision * (x - decode(z)).square()).sum(1)

    known = {
        "precision": {"decode": decode, "precision": precision},
        "decode and log_likelihood": {"decode": decode, "log_likelihood": log_p},
        "log_likelihood": {"log_likelihood": log_p},
    }[how]
    return vs.adapters.from_callables(encode=moved, latent_dim=2, **known)


WAYS = ("precision", "decode and log_likelihood", "log_likelihood")


def warned(model, x, **more):
    return [f.code for f in vs.diagnose(model, x, progress=None, **more).findings if f.severity != "note"]


# planted truth ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight", "expected"), [(0.01, ["beta-low"]), (1.0, []), (2.0, ["beta-high"]), (20.0, ["beta-high"])]
)
def test_findings_do_not_depend_on_how_the_likelihood_is_stated(weight, expected):
    model, x = trained_with(weight)
    assert [warned(declared(model, how), x) for how in WAYS] == [expected] * 3


@pytest.mark.parametrize(("factor", "expected"), [(1 / 30, "beta-low"), (30.0, "beta-high")])
def test_a_wrong_variance_is_one_where_it_has_a_name_and_otherwise_a_weight_of_the_kl(factor, expected):
    """A precision of γ² with a weight of β is γ²/β with 1, so a function log p(x|z) does not tell which is wrong."""
    model, x = trained_with(1.0)
    found = [warned(declared(model, how, precision=100 * factor), x) for how in WAYS]
    assert found == [["decoder-variance"], [expected], [expected]]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("scale", [0.6, 1.5])
def test_codes_whose_scale_has_not_settled(how, scale):
    """Reconstructions and log p(x|z) are those of the optimum; only the KL is not."""
    model, x = trained_with(1.0)
    assert warned(declared(model, how, scale), x) == ["not-converged"]


def test_it_is_named_before_what_it_causes():
    model, x = trained_with(1.0)
    found = vs.diagnose(declared(model, "precision", 1.9), x, progress=None)
    codes = {f.code for f in found.findings if f.severity != "note"}
    assert codes == {"not-converged"}
    assert found.evidence.aggregate.gain > 0.6  # nats, with which the codes alone would have been reported
    assert "larger β would make it worse" in found.findings[0].advice


def test_a_low_weight_of_the_kl_is_the_cause_of_codes_of_another_scale():
    model, x = trained_with(0.01)
    assert warned(declared(model, "log_likelihood", 1.5), x) == ["beta-low"]
    stated = vs.adapters.from_callables(
        encode=lambda x: tuple(c * v for c, v in zip((1.5, 2.25), model.encode(x), strict=True)),
        decode=lambda z: model.decode(z / 1.5),
        latent_dim=2,
        precision=100.0,
        beta=0.01,
    )
    assert "not-converged" not in warned(stated, x)


def test_training_that_is_stopped_and_training_to_the_end():
    """A linear VAE by gradient steps, from codes of a small scale."""
    generator = torch.Generator().manual_seed(8)
    x = X[:300].double()
    known = {
        "encoder": 0.3 * torch.randn(5, 2, generator=generator, dtype=torch.float64),
        "log_variance": torch.zeros(2, dtype=torch.float64),
        "decoder": 0.3 * torch.randn(2, 5, generator=generator, dtype=torch.float64),
    }
    weights = [value.requires_grad_() for value in known.values()]
    optimiser, verdicts = torch.optim.Adam(weights, 0.02), {}
    for step in range(1, 4001):
        mean, variance = x @ known["encoder"], known["log_variance"].exp()
        # E_q of the squared error in closed form: no noise in the gradient
        error = (x - mean @ known["decoder"]).square().sum(1) + (variance[:, None] * known["decoder"].square()).sum()
        loss = 50 * error + 0.5 * (mean.square() + variance - known["log_variance"] - 1).sum(1)
        optimiser.zero_grad()
        loss.mean().backward()
        optimiser.step()
        if step in (60, 4000):
            E, D, v = (value.detach().clone() for value in (known["encoder"], known["decoder"], variance))
            model = vs.adapters.from_callables(
                encode=lambda x, E=E, v=v: (x.double() @ E, v.expand(len(x), 2)),
                decode=lambda z, D=D: z @ D.to(z),
                latent_dim=2,
                precision=100.0,
            )
            verdicts[step] = warned(model, X[300:].double())
    assert verdicts[60] == ["not-converged"]
    assert verdicts[4000] == []


# laws and parity --------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_moments_scale_and_what_rescaling_saves_is_the_difference_of_two_kls(scale):
    model, x = trained_with(1.0)
    own, moved = (measure_moments(encode(declared(model, "precision", s), x), [0, 1]) for s in (1.0, scale))
    assert moved.square == pytest.approx(scale**2 * own.square)
    assert moved.square_error == pytest.approx(scale**2 * own.square_error)
    mean, variance = declared(model, "precision", scale).encode(x)
    spread = (mean.square() + variance).mean(0) - mean.mean(0) ** 2
    best = (mean - mean.mean(0)) / spread.sqrt(), variance / spread

    def kl(mean, variance):
        return 0.5 * (mean.square() + variance - variance.log() - 1).mean(0).numpy()

    assert moved.saved == pytest.approx(kl(mean, variance) - kl(*best), abs=1e-6)


@pytest.mark.parametrize("weight", [0.1, 1.0, 8.0])
def test_the_weight_of_the_kl_is_that_of_the_closed_form(weight):
    """Linear decoder w, noise variance 1/100: -E[σ ε ∂ log p] = 100 w² σ², so β = 100 w² σ² / (1 - σ²)."""
    model, x = trained_with(weight)
    sample = encode(declared(model, "log_likelihood"), x.double())
    found = measure_weights(sample, [0, 1])
    squares = model.decode(torch.eye(2)).square().sum(1).numpy()
    variance = model.encode(x[:1])[1][0].numpy()
    assert 100 * squares * variance / (1 - variance) == pytest.approx(np.full(2, weight), rel=1e-4)
    assert np.abs(found.beta - weight) == pytest.approx(np.zeros(2), abs=float(4 * found.stderr.max()))
    assert found.shift < 0.01


def test_functions_that_cannot_be_differentiated_are_differenced():
    model, x = trained_with(1.0)
    known = declared(model, "log_likelihood")
    detached = vs.adapters.from_callables(
        encode=known.encode, latent_dim=2, log_likelihood=lambda x, z: known.log_likelihood(x, z).detach()
    )
    own, other = (measure_weights(encode(m, x.double()), [0, 1]) for m in (known, detached))
    assert own.beta == pytest.approx(other.beta, rel=1e-5)  # log p is quadratic, so differences are exact


def test_few_samples_give_no_verdict_on_the_scale():
    model, x = trained_with(1.0)
    assert warned(declared(model, "precision", 1.5), x[:20]) == []


# what was judged --------------------------------------------------------------------------------


def test_every_output_says_what_was_judged_and_what_was_not(tmp_path):
    found = vs.diagnose(linear(), X, progress=None)
    sentence = found.coverage()
    assert sentence.startswith("Judged: collapse, convergence, β, decoder variance, encoder, data. Not judged: gener")
    assert sentence in repr(found)
    assert sentence in repr(found.summary())
    assert sentence in found._repr_html_()
    assert 'id="coverage"' in found.to_html(tmp_path / "page.html").read_text()
    assert found.to_data()["coverage"]["judged"][:3] == ["collapse", "convergence", "β"]
    assert "--train" in sentence.as_option
    everything = vs.diagnose(linear(), X[:200], train=X[200:], progress=None)
    assert "Not judged" not in everything.coverage()


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        ({"precision": None}, ["β", "decoder variance", "encoder", "generalisation"]),
        ({"decode": None, "precision": None}, ["β", "decoder variance", "encoder", "data", "generalisation"]),
        ({"beta": 2.0}, ["encoder", "generalisation"]),
        ({"objective": "iwae"}, ["convergence", "β", "encoder", "generalisation"]),
    ],
)
def test_what_is_not_known_is_not_judged_and_that_is_said(known, missing):
    covered = vs.diagnose(linear(**known), X, progress=None).evidence.coverage()
    assert [what for what, why in covered.items() if why is not None] == missing
