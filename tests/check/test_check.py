"""`vs.check` finds misfits that were planted, says what they are, and accepts data of the model itself."""

import json

import numpy as np
import pytest
import torch

import vaescope as vs
from tests.check.planted import LINEAR, MISFITS, TRUTHS
from vaescope.analysis.predictive import Family, compare_families
from vaescope.cli.main import dispatch
from vaescope.core.errors import InputError


def check(model, x, **options):
    return vs.check(model, x, progress=None, **{"samples": 300, "simulations": 79} | options)


EXPECTED = {
    "Poisson for negative binomial": ("dispersion-given-codes", "negative binomial"),
    "missing zero inflation": ("zeros", "zero-inflated"),
    "wrong link": (None, ""),
    "too small variance": ("noise", "noise is too small"),
    "missing mode": ("codes", "modes"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_planted_misfit_is_found_and_named(misfit):
    model, draw = MISFITS[misfit]
    found = check(model(), draw(300, 5))
    code, advice = EXPECTED[misfit]
    assert found.findings
    assert found.p_value < 0.05
    if code is not None:
        assert advice in found.find(code).advice


@pytest.mark.parametrize("truth", TRUTHS)
def test_data_of_the_model_itself_look_like_it(truth):
    model, draw = TRUTHS[truth]
    alarms = [bool(check(model(), draw(200, seed), samples=200, simulations=39, seed=seed).findings) for seed in (1, 2)]
    assert not all(alarms)  # each with probability 5 %


def test_ranks_among_exchangeable_data_sets_are_uniform():
    """Whatever the statistics: heavy tails, dependence, ties."""
    rng = np.random.default_rng(0)
    listed = [Family("a", lambda d: d, "value {0}"), Family("b", lambda d: d, "value {0}")]
    p = []
    for _ in range(300):
        tables = rng.standard_t(1.5, size=(40, 6)), rng.integers(0, 2, size=(40, 3)).astype(float)
        values = [[tables[0][j], tables[1][j]] for j in range(40)]
        p.append([one.p_value for one in compare_families(listed, values)])
    share = (np.array(p) <= 0.05).mean(0)
    assert 0.02 < share[0] < 0.09
    assert share[1] < 0.09  # ties make it smaller, never larger


def test_a_wrong_encoder_alone_does_not_blame_the_decoder():
    """Simulated data sets go through the same encoder: means that are off are off for both."""
    model = LINEAR.model(lambda mean, variance: (mean + 0.5, variance))
    assert check(model, LINEAR.draw(300, seed=7)).findings == []


def test_statistics_of_the_user():
    x = LINEAR.draw(300, seed=4)
    model = LINEAR.model()
    own = {"largest": lambda x: x.max(), "per dimension": lambda x: np.abs(x).mean(0)}
    fine = check(model, x, statistics=own)
    assert {"largest", "per dimension"} <= {one.name for one in fine.tested}
    assert len(fine.statistic("per dimension").observed) == 8
    x[0, 0] = 50.0
    assert check(model, x, statistics=own).find("largest") is not None
    with pytest.raises(InputError, match="the statistic 'bad' failed: ZeroDivisionError"):
        check(model, x, statistics={"bad": lambda x: 1 / 0})
    with pytest.raises(InputError, match="must return finite numbers"):
        check(model, x, statistics={"bad": lambda x: np.nan})


def test_a_report(tmp_path):
    model, draw = MISFITS["too small variance"]
    found = check(model(), draw(300, 5), name="noisy")
    assert found.kind == "continuous"
    stored = json.loads(found.to_json(tmp_path / "found.json").read_text())
    assert stored["p_value"] <= 0.05
    assert stored["values"]["PIT, pooled"]["low"][0] < stored["values"]["PIT, pooled"]["high"][0]
    page = found.to_html(tmp_path / "found.html").read_text()
    assert 'id="statistics"' in page
    assert "tails" in found.find("pit-pooled").advice
    assert {row["statistic"] for row in found.summary()} >= {"noise", "PIT", "classifier (AUC)"}


def test_images_and_series_have_spectra():
    weights = torch.randn(2, 36, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = vs.adapters.from_callables(
        encode=lambda x: (x.flatten(1)[:, :2], 0.1 + 0 * x.flatten(1)[:, :2]),
        decode=lambda z: z.double() @ weights,
        latent_dim=2,
        precision=1.0,
        image_shape=(1, 6, 6),
    )
    x = torch.randn(100, 2, dtype=torch.float64) @ weights + 3 * torch.randn(100, 36, dtype=torch.float64)
    images = check(model, x.reshape(100, 1, 6, 6), simulations=39)
    assert images.kind == "images"
    assert images.statistic("power spectrum").adjusted <= 0.05
    assert [drawing.name for drawing in images.figures()] == ["statistics", "telling"]
    assert check(model, x, kind="series", simulations=39).statistic("power spectrum").adjusted <= 0.05


def test_conditional_models_are_simulated_with_the_condition_of_each_sample():
    model = vs.adapters.from_callables(
        encode=lambda x, y: ((x - 5 * y.reshape(-1, 1)) / 2, 0.5 + 0 * x),
        decode=lambda z, y: z + 5 * y.reshape(-1, 1).to(z),
        latent_dim=1,
        precision=1.0,
    )
    y = torch.arange(200) % 2
    x = 2**0.5 * torch.randn(200, 1, generator=torch.Generator().manual_seed(0)) + 5 * y[:, None]
    assert check(model, x, auxiliary=y, simulations=39).findings == []
    assert check(model, x, auxiliary=1 - y, simulations=39).findings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"simulations": 10}, "simulations must be at least 39"),
        ({"kind": "text"}, "kind must be one of counts"),
        ({"statistics": {"mean": 3}}, "statistics must be functions by name"),
    ],
)
def test_wrong_input_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        check(LINEAR.model(), LINEAR.draw(100), **options)


def test_models_that_cannot_be_simulated_are_refused():
    plain = vs.adapters.from_callables(encode=lambda x: (x, 1 + 0 * x), latent_dim=8)
    with pytest.raises(InputError, match="check needs a decoder"):
        check(plain, LINEAR.draw(100))
    unknown = vs.adapters.from_callables(encode=lambda x: (x, 1 + 0 * x), decode=lambda z: z, latent_dim=8)
    with pytest.raises(InputError, match="check cannot simulate x: the likelihood is not known"):
        check(unknown, LINEAR.draw(100))


MODEL = """
import numpy as np
import vaescope as vs
model = vs.adapters.from_callables(
    encode=lambda x: (x / 2, 0.5 + 0 * x), decode=lambda z: z, latent_dim=2, precision=1.0)
own = {"largest": lambda x: x.max()}
"""


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODEL)
    np.save("x.npy", 3 * np.random.default_rng(0).normal(size=(200, 2)))
    command = ["check", "mine.py:model", "--data", "x.npy", "--simulations", "79", "--statistics", "mine.py:own"]
    assert dispatch([*command, "--html", "page.html", "--fail-on", "warning"]) == 1
    assert (tmp_path / "page.html").exists()
    assert "x differs from what the model makes" in capsys.readouterr().out
