"""`vs.improve` as a whole: what it decides by, when it ends, what it stores, and what it shows."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from torch import nn

import vaescope as vs
from tests.improvement.test_changes import X, draws, linear_vae, principal_components

W, VARIANCE = principal_components(2)
TEST = X[300:]


def improve(model: vs.LatentModel, x=X[:300], test=TEST, **settings) -> vs.Improvement:
    return vs.improve(model, x, test, **{"budget": 20.0, "progress": None} | settings)


def test_a_variance_that_is_too_large_is_corrected():
    model = linear_vae(W, VARIANCE, 25 * VARIANCE)
    found = improve(model)
    assert next(step.name for step in found.kept) == "variance"
    first = found.kept[0]
    assert first.reason in ("decoder-variance", "always tried")
    assert first.gain.low > 0
    assert found.gain.value == pytest.approx(sum(step.gain.value for step in found.kept), rel=1e-6)
    assert model.precision == 1 / (25 * VARIANCE)
    assert found.model.precision == pytest.approx(1 / VARIANCE, rel=0.15)
    assert found.log_marginal_gain.value > 0
    best = vs.theory.linear.log_likelihood(TEST, W, 1 / VARIANCE).mean()
    assert float(found.after.elbo.mean()) == pytest.approx(float(best), abs=0.3)


def test_a_healthy_model_stays_as_it_is():
    found = improve(linear_vae(W, VARIANCE, VARIANCE))
    assert found.kept == []
    assert found.gain.value == 0
    assert "Nothing was changed" in found.verdict or "stays as it is" in found.verdict


def test_held_out_samples_decide_nothing():
    model = linear_vae(W, VARIANCE, 25 * VARIANCE)
    one, other = improve(model, test=TEST), improve(model, test=100 * draws(3, 50, 5))
    assert [(s.name, s.kept) for s in one.steps] == [(s.name, s.kept) for s in other.steps]
    assert one.model.precision == pytest.approx(other.model.precision)


def test_variances_that_are_read_wrongly():
    sound = linear_vae(W, VARIANCE, VARIANCE)
    logs = vs.adapters.from_callables(
        encode=lambda x: (sound.encode(x)[0], sound.encode(x)[1].log()),
        decode=sound.decode,
        latent_dim=2,
        precision=1 / VARIANCE,
    )
    found = improve(logs)
    assert found.kept[0].name == "scale"
    assert found.gain is None
    assert "no finite ELBO" in found.verdict
    assert "log_variance.exp()" in found.kept[0].code
    best = vs.theory.linear.log_likelihood(TEST, W, 1 / VARIANCE).mean()
    assert float(found.after.elbo.mean()) == pytest.approx(float(best), abs=0.05)


def test_without_weights_only_closed_forms_are_tried_and_it_says_so():
    weight = W.numpy()
    wide = (weight**2).sum(0) / VARIANCE + 1
    model = vs.adapters.from_callables(
        encode=lambda x: (np.asarray(x) @ weight / VARIANCE / wide, 0 * np.asarray(x)[:, :2] + 1 / wide),
        decode=lambda z: np.asarray(z) @ weight.T,
        latent_dim=2,
        precision=1 / (25 * VARIANCE),
    )
    found = improve(model)
    assert [step.name for step in found.kept] == ["variance"]
    assert "all" not in [step.name for step in found.steps]
    assert "only closed forms" in found.skipped["all weights trained with the ELBO"]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(5, 4), nn.Linear(2, 5)


def untrained() -> tuple[Network, vs.LatentModel]:
    torch.manual_seed(0)
    network = Network()

    def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_variance = network.encoder(x).chunk(2, dim=1)
        return mean, log_variance.exp()

    return network, vs.adapters.from_callables(
        encode=encode, decode=network.decoder, latent_dim=2, precision=1.0, networks=[network]
    )


def test_an_untrained_model_is_trained_in_a_copy_and_goes_on_from_a_folder(tmp_path):
    network, model = untrained()
    own = {name: value.clone() for name, value in network.state_dict().items()}
    x = X.float()
    found = improve(model, x[:300], x[300:], x_valid=x[:300], out=tmp_path / "run", budget=12.0)
    assert "all" in [step.name for step in found.kept]
    assert found.gain.low > 3  # in a few seconds
    assert all(torch.equal(value, own[name]) for name, value in network.state_dict().items())
    again = improve(model, x[:300], x[300:], x_valid=x[:300], out=tmp_path / "run", budget=12.0)
    assert [step.name for step in again.steps][: len(found.steps)] == [step.name for step in found.steps]
    assert torch.equal(again.model.encode(x[:3])[0], found.model.encode(x[:3])[0]) or len(again.steps) > len(
        found.steps
    )
    assert not list((tmp_path / "run").glob("*.pkl"))
    assert {file.suffix for file in (tmp_path / "run").iterdir()} <= {".json", ".safetensors", ".lock", ""}
    with pytest.raises(vs.RunError, match="another model or other samples"):
        improve(linear_vae(W, VARIANCE, 2.0), out=tmp_path / "run")
    (tmp_path / "run" / vs.Improvement.file).write_text("[]")
    with pytest.raises(vs.RunError, match="belongs to another"):
        improve(model, x[:300], x[300:], out=tmp_path / "run")


def test_ctrl_c_returns_what_was_reached(tmp_path):
    _, model = untrained()
    lines: list[str] = []

    def progress(line: str) -> None:
        lines.append(line)
        if "all weights" in line and "step" in line:
            raise KeyboardInterrupt

    x = X.float()
    found = vs.improve(model, x[:300], x[300:], x_valid=x[:300], budget=60.0, progress=progress, out=tmp_path / "run")
    assert "Interrupted" in found.stopped
    assert found.kept
    assert found.gain.low > 0
    again = improve(model, x[:300], x[300:], x_valid=x[:300], budget=5.0, out=tmp_path / "run")
    assert again.steps[0].gain == found.steps[0].gain


def test_the_report_in_every_form(tmp_path):
    found = improve(linear_vae(W, VARIANCE, 25 * VARIANCE), name="<b>")
    assert "Decoder variance of maximum likelihood" in repr(found)
    assert "kept" in repr(found)
    assert {"step", "finding", "kept", "gain in nats"} <= set(found.summary()[0])
    assert len(found.to_frame()) == len(found.steps)
    data = json.loads(found.to_json(tmp_path / "a.json").read_text())
    assert data["steps"][0]["kept"]
    assert data["elbo_gain"][0] > 0
    page = found.to_html(tmp_path / "a.html").read_text()
    assert "<b>&lt;b&gt;" not in page
    assert "&lt;b&gt;" in page
    assert {"waterfall", "samples"} <= set(re.findall(r'<figure id="(\w+)"', page))
    assert "variance = " in page
    assert "http://" not in re.sub(r"http://www\.w3\.org\S+", "", page)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: improve(linear_vae(W, 1.0, 1.0), X[:30]), "40 samples"),
        (lambda: improve(linear_vae(W, 1.0, 1.0), budget=0.0), "budget must be > 0"),
        (lambda: improve(nn.Linear(2, 2)), "expected a model"),
        (lambda: improve(vs.adapters.from_arrays(X[:, :2], X[:, :2].abs()), X, X), "decoder"),
    ],
)
def test_bad_input(call, message: str):
    with pytest.raises(vs.InputError, match=message):
        call()
