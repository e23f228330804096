"""What can be diagnosed: kinds of models and samples, mistakes, the page, and the command line."""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vaescope as vs
from tests.diagnose.models import G, W, X, linear
from vaescope import cli
from vaescope.core.errors import InputError, RunError
from vaescope.models.member import TrainingSummary
from vaescope.training import NoProgress, TrainSettings


def test_analyses_that_do_not_apply_are_skipped_with_a_reason():
    arrays = vs.diagnose(vs.adapters.from_arrays(*(t.numpy() for t in linear().encode(X))))
    assert "decoder" in arrays.skipped
    assert set(arrays.summary()[0]) == {"latent", "kind", "KL", "variance ratio"}
    without = vs.diagnose(linear(decode=None), X)
    assert without.skipped["decoder"] == "the model has no decoder"
    unknown = vs.diagnose(linear(precision=None), X)
    assert "gap" in unknown.skipped
    assert unknown.evidence.noise.beta is None
    numpy = linear(decode=lambda z: torch.from_numpy(z.detach().numpy() @ W.numpy().T.astype(z.detach().numpy().dtype)))
    by_differences = vs.diagnose(numpy, X)
    assert by_differences.evidence.geometry.rank == 2
    assert "could not be differentiated" in by_differences.skipped["gap"]


@pytest.mark.parametrize("prior", [vs.Uniform(-2.0, 2.0), vs.Laplace(0.0, 0.7), vs.Beta(2.0, 3.0, low=-2.0, high=2.0)])
def test_analyses_that_need_a_normal_prior_are_skipped(prior):
    found = vs.diagnose(linear(prior=prior), X)
    assert type(prior).__name__ in found.skipped["exact KL"]
    assert "gap" in found.skipped
    assert found.evidence.regime.used == [0, 1]
    assert found.evidence.geometry is not None


def test_factors_are_scored():
    found = vs.diagnose(linear(), X, factors=X @ W)
    assert {row["metric"] for row in found.to_data()["metrics"]} >= {"MCC", "MIG"}


def test_the_page_and_the_json_file(tmp_path):
    found = vs.diagnose(linear(), X, factors=X @ W, name="<script>alert(1)</script>")
    page = found.to_html(tmp_path / "page.html").read_text()
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("<svg") >= 4
    assert "http://" not in page.replace("http://www.w3.org", "")
    data = json.loads(found.to_json(tmp_path / "page.json").read_text())
    assert data["latents"][0]["kind"] == "active"
    assert data["gap"]["family"]["mean"] == pytest.approx(0, abs=1e-3)


def test_images_are_shown_as_images(tmp_path):
    W8 = torch.linalg.qr(torch.randn(64, 2, generator=G))[0]
    model = vs.adapters.from_callables(
        encode=lambda x: (x.flatten(1) @ W8, torch.full((len(x), 2), 0.1)),
        decode=lambda z: (z @ W8.T.to(z)).reshape(-1, 1, 8, 8),
        latent_dim=2,
        image_shape=(1, 8, 8),
    )
    x = (torch.randn(100, 2, generator=G) @ W8.T).reshape(-1, 1, 8, 8)
    assert vs.diagnose(model, x).to_html(tmp_path / "page.html").read_text().count("<image") >= 14


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vs.diagnose(linear()), "samples x are needed"),
        (lambda: vs.diagnose(torch.nn.Linear(2, 2), X), "inherit from vs.LatentModel"),
        (lambda: vs.diagnose([], X), "got an empty list"),
        (lambda: vs.diagnose(linear(encode=lambda x: (x[:, :2] * torch.nan, x[:, :2])), X), "NaN or infinity"),
        (lambda: vs.diagnose(linear(), X[0]), r"x must have a row per sample, shape \(N, n\), got shape \(5,\)"),
    ],
)
def test_bad_arguments_are_explained(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_posteriors_without_a_model():
    generator = torch.Generator().manual_seed(0)
    arrays = [torch.rand(9000, 3, generator=generator, dtype=torch.float64) for _ in range(2)]
    posteriors = vs.adapters.from_arrays(*arrays)
    assert vs.diagnose(posteriors).samples == 9000
    two = vs.diagnose([posteriors, vs.adapters.from_arrays(*arrays)])
    assert two.evidence.stability.score == pytest.approx(1)


@pytest.mark.parametrize("kind", ["float64", "float16", "list", "uint8"])
def test_samples_of_any_numeric_type(kind):
    network = torch.nn.Linear(5, 4)
    model = vs.adapters.from_modules(network, torch.nn.Linear(2, 5), latent_dim=2, precision=1.0)
    x = X[:40].tolist() if kind == "list" else X[:40].abs().numpy().astype(kind)
    assert len(vs.diagnose(model, x).summary()) == 2


@pytest.mark.parametrize(
    ("change", "x", "message"),
    [
        ({}, X[:, :3], r"encode failed on \(400, 3\)"),
        ({"encode": lambda x: {}["w"]}, X, "encode failed"),
        ({}, [["a", "b"]], "x must be an array of numbers, got text"),
        ({}, [[1.0], [1.0, 2.0]], "x must be an array of numbers, got rows of different lengths"),
        ({}, iter([X]), "collect its batches into one array first"),
        ({}, X[:, :0], "x must have at least one row and one column"),
        ({}, torch.where(torch.arange(400)[:, None] == 399, torch.inf, X), "NaN or infinity at sample 399"),
        (
            {"prior": vs.Normal(torch.zeros(3), torch.ones(3))},
            X,
            r"prior is for latents of shape \(3,\), but the model has 2",
        ),
    ],
)
def test_bad_models_and_samples_are_explained(change, x, message):
    with pytest.raises(InputError, match=message):
        vs.diagnose(linear(**change), x)


def test_an_auxiliary_input_of_a_plain_model_is_refused():
    with pytest.raises(InputError, match="takes no auxiliary input"):
        vs.diagnose(linear(), X, auxiliary=np.zeros(400, dtype=int))


@pytest.mark.parametrize("decode", [lambda z: {}["w"], lambda z: z @ W, lambda z: torch.nan * (z @ W.T.to(z))])
def test_a_decoder_that_fails_is_a_finding_and_what_needs_it_is_left_out(decode):
    found = vs.diagnose(linear(decode=decode), X)
    assert set(found.skipped) >= {"geometry", "noise", "gap"}
    assert [finding.code for finding in found.findings] == ["decoder-fails"]
    assert found.worst == "error"


def test_another_model_that_fails_only_skips_the_comparison():
    found = vs.diagnose([linear(), linear(encode=lambda x: {}["w"])], X)
    assert "encode failed" in found.skipped["stability"]
    assert found.findings == []


def test_the_best_finished_member_of_a_fit_is_diagnosed():
    settings = TrainSettings(epochs=4, compile="never")
    fitted = vs.fit(X, latent_dim=2, precision=100.0, seeds=range(4), settings=settings, progress=NoProgress())
    found = vs.diagnose(fitted, X)
    best = vs.diagnose(fitted.best, X)
    assert found.summary() == best.summary()
    diverged = TrainingSummary("diverged", epochs=2, best_epoch=0)
    fit = vs.fitting.Fit([replace(member, training=diverged) for member in fitted.members])
    with pytest.raises(RunError, match="no member of this fit has finished"):
        vs.diagnose(fit, X)


def test_images_as_in_training():
    x = torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    settings = TrainSettings(epochs=2, compile="never")
    fitted = vs.fit(x, latent_dim=2, settings=settings, progress=NoProgress())
    assert len(vs.diagnose(fitted, x).summary()) == 2
    assert len(vs.diagnose(fitted, (255 * x).byte().numpy()).summary()) == 2


def test_a_single_sample_gives_a_page(tmp_path):
    found = vs.diagnose(linear(), X[:1])
    text = found.to_html(tmp_path / "page.html").read_text()
    assert ">nan" not in text
    assert "NaN" not in found.to_json(tmp_path / "page.json").read_text()
    assert found.to_data()["near_deterministic"] is None


def test_the_best_axes_are_in_the_json_file():
    turn = torch.tensor([[1.0, -1.0], [1.0, 1.0]]) / 2**0.5
    variance = 1 / (1 + 100 * W.square().sum(0) @ turn.T**2)
    rotated = linear(
        encode=lambda x: (100 * (x @ W) @ turn.T * variance, variance.expand(len(x), 2)),
        decode=lambda z: z @ turn.to(z) @ W.T.to(z),
    )
    found = vs.diagnose(rotated, X).to_data()["geometry"]
    axes = torch.tensor(found["axes"], dtype=torch.float64)
    assert sorted(found["latents"]) == [0, 1]
    gram = axes.T @ (W @ turn.T)[:, found["latents"]].T.double() @ (W @ turn.T)[:, found["latents"]].double() @ axes
    assert float(gram[0, 1].abs()) < 1e-3


# the command line -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diagnosis")
    np.save(folder / "x.npy", X.numpy())
    settings = TrainSettings(epochs=30, learning_rate=5e-3, compile="never")
    vs.fit(
        X, latent_dim=5, precision=100.0, seeds=range(2), settings=settings, progress=NoProgress(), out=folder / "run"
    )
    return folder


def test_a_run_is_diagnosed(run, capsys):
    page = run / "page.html"
    arguments = ["diagnose", str(run / "run"), "--data", str(run / "x.npy")]
    assert cli.dispatch([*arguments, "--html", str(page), "--fail-on", "error"]) == 0
    printed = capsys.readouterr().out
    assert "What to do" in printed
    assert "passive" in printed
    assert "skipped: metrics" in printed
    assert page.exists()
    assert json.loads(page.with_suffix(".json").read_text())["worst"] == "warning"
    assert cli.dispatch([*arguments, "--fail-on", "warning"]) == 1


def test_posteriors_on_disk_are_diagnosed(run, capsys):
    np.savez(run / "posteriors.npz", mean=np.zeros((50, 3)), variance=np.ones((50, 3)))
    assert cli.dispatch(["diagnose", str(run / "posteriors.npz"), "--fail-on", "error"]) == 1
    assert "collapsed" in capsys.readouterr().out


MODEL = """
import torch, vaescope as vs
W = torch.linalg.qr(torch.randn(5, 2, generator=torch.Generator().manual_seed(0)))[0] * torch.tensor([2.0, 1.0])
v = 1 / (1 + 100 * W.square().sum(0))
def vae():
    return vs.adapters.from_callables(encode=lambda x: (100 * (x @ W) * v, v.expand(len(x), 2)),
                                      decode=lambda z: z @ W.T.to(z), latent_dim=2, precision=100.0)
several = [vae(), vae()]
def broken():
    raise KeyError("weights")
number = 3
"""


def test_a_model_from_a_users_python_file(run, capsys, monkeypatch):
    (run / "own_model.py").write_text(MODEL)
    data = ["--data", str(run / "x.npy")]
    assert cli.dispatch(["diagnose", f"{run}/own_model.py:vae", *data, "--fail-on", "note"]) == 0
    assert "No issues found" in capsys.readouterr().out
    monkeypatch.syspath_prepend(str(run))
    assert cli.dispatch(["diagnose", "own_model:several", *data]) == 0
    assert "skipped: stability" not in capsys.readouterr().out
    for name, message in (
        ("nothing", "own_model does not define nothing"),
        ("broken", "failed: KeyError: 'weights'"),
        ("number", "must be a model from vs.adapters"),
    ):
        with pytest.raises(InputError, match=message):
            cli.dispatch(["diagnose", f"{run}/own_model.py:{name}", *data])
    (run / "bad.py").write_text("import nonsense_that_is_not_there")
    with pytest.raises(InputError, match="cannot be imported: ModuleNotFoundError"):
        cli.dispatch(["diagnose", f"{run}/bad.py:vae", *data])


def test_a_model_that_ends_the_program_is_not_a_diagnosis(run, capsys):
    """Exit code 0 would say that there is no finding."""
    (run / "ends.py").write_text("import sys\nsys.exit(0)")
    (run / "ends_later.py").write_text("import sys\ndef ends():\n    sys.exit(0)\n")
    (run / "encodes.py").write_text(ENDS_WHILE_IT_ENCODES)
    data = ["--data", str(run / "x.npy"), "--fail-on", "note"]
    with pytest.raises(InputError, match="cannot be imported: SystemExit: 0"):
        cli.dispatch(["diagnose", f"{run}/ends.py:vae", *data])
    with pytest.raises(InputError, match="failed: SystemExit: 0"):
        cli.dispatch(["diagnose", f"{run}/ends_later.py:ends", *data])
    with pytest.raises(InputError, match=r"encode failed on .*: SystemExit: 0"):
        cli.dispatch(["diagnose", f"{run}/encodes.py:model", *data])


EXIT = "import os\n"
EXITS = {
    "at import": EXIT + "os._exit(0)",
    "in a function": EXIT + "def vae():\n    os._exit(0)",
    "while it encodes": EXIT
    + "import vaescope as vs\nvae = vs.adapters.from_callables(encode=lambda x: os._exit(0), latent_dim=2)",
}


@pytest.mark.parametrize("case", EXITS)
def test_no_exit_of_a_model_gives_code_0(run, monkeypatch, case):
    left = []

    def leave(status):
        left.append(status)
        sys.exit()

    monkeypatch.setattr(os, "_exit", leave)
    (run / "leaves.py").write_text(EXITS[case])
    monkeypatch.setattr(
        sys, "argv", ["vaescope", "diagnose", f"{run}/leaves.py:vae", "--data", str(run / "x.npy"), "--fail-on", "note"]
    )
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert left == [2]
    assert ended.value.code == 2
    with pytest.raises(SystemExit):
        os._exit(0)  # later, as functions of `atexit` and other threads can
    assert left == [2, 2]
    monkeypatch.setattr(os, "getpid", lambda: -1)  # in a fork
    with pytest.raises(SystemExit):
        os._exit(0)
    assert left == [2, 2, 0]


def test_a_file_that_exits_at_once_ends_the_command_with_code_2(tmp_path):
    (tmp_path / "leaves.py").write_text("import os\nos._exit(0)")
    np.save(tmp_path / "x.npy", np.zeros((9, 3)))
    call = [sys.executable, "-m", "vaescope", "diagnose", "leaves.py:vae", "--data", "x.npy", "--fail-on", "note"]
    done = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "vaescope: the command did not finish: a model or its imports called os._exit; remove that.\n"


def test_exceptions_that_are_no_errors_are_one_line(run):
    (run / "cancelled.py").write_text("import asyncio\nraise asyncio.CancelledError\n")
    with pytest.raises(RunError, match="a model or its imports raised CancelledError; remove that"):
        cli.dispatch(["diagnose", f"{run}/cancelled.py:vae", "--data", str(run / "x.npy")])


ENDS_WHILE_IT_ENCODES = """
import sys
import vaescope as vs
def encode(x):
    sys.exit(0)
model = vs.adapters.from_callables(encode=encode, latent_dim=2)
"""


@pytest.mark.parametrize("name", ["random", "torch", "vaescope", "colorsys", "yaml"])
def test_a_model_file_replaces_no_module(run, tmp_path, name):
    (tmp_path / f"{name}.py").write_text(MODEL)
    loaded = sys.modules.get(name)
    before = list(sys.path)
    try:
        assert cli.dispatch(["diagnose", f"{tmp_path}/{name}.py:vae", "--data", str(run / "x.npy")]) == 0
        assert sys.modules.get(name) is loaded
        assert Path(importlib.import_module(name).__file__).parent != tmp_path
    finally:
        sys.path[:] = before


def test_commands_say_what_was_read(tmp_path, capsys):
    (tmp_path / "model.py").write_text(MODEL)
    rows = [";".join([*(f"{value:.6f}".replace(".", ",") for value in row), "red", ""]) for row in X[:40].tolist()]
    (tmp_path / "x.csv").write_text("\n".join(["a;b;c;d;e;species;empty", *rows, ""]))
    data, model = str(tmp_path / "x.csv"), f"{tmp_path}/model.py:several"
    for command in (
        ["train", data, "--latent-dim", "1", "--epochs", "1", "--compile", "never", "--out", str(tmp_path / "run")],
        ["preflight", data],
        ["diagnose", model, "--data", data],
        ["compare", model, "--data", data, "--budget", "1"],
        ["certify", model, "--data", data, "--simulations", "200", "--budget", "1"],
    ):
        cli.dispatch(command)
        assert (
            "read x.csv: 40 rows x 5 columns (a, b, c, d, e); left out: species (text), empty (no values); "
            "separated by semicolons, decimal comma\n"
        ) in capsys.readouterr().err, command


def test_a_page_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    for command in (["diagnose"], ["certify"], ["compare"]):
        with pytest.raises(RunError, match="it is a folder, not a file"):
            cli.dispatch([*command, "no model", "--data", "no data", "--html", str(tmp_path)])
    with pytest.raises(RunError, match="it is a folder, not a file"):
        cli.dispatch(["diagnose", "no model", "--data", "no data", "--html", "."])
    (tmp_path / "page.json").mkdir()
    with pytest.raises(RunError, match=r"page.json: it is a folder"):
        cli.dispatch(["preflight", "no data", "--html", str(tmp_path / "page.html")])
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot write"):
        cli.dispatch(["preflight", "no data", "--html", str(tmp_path / "file" / "page.html")])


def test_an_ivae_is_diagnosed_with_its_auxiliary_input(tmp_path, capsys):
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 4, (300,), generator=generator)
    z = torch.randn(300, 2, generator=generator) * (0.3 + 0.6 * torch.rand(4, 2, generator=generator))[labels]
    np.save(tmp_path / "x.npy", (z @ W.T + 0.1 * torch.randn(300, 5, generator=generator)).numpy())
    np.save(tmp_path / "u.npy", labels.numpy())
    data = ["--data", str(tmp_path / "x.npy")]
    settings = TrainSettings(epochs=10, learning_rate=5e-3, compile="never")
    vs.fit(
        np.load(tmp_path / "x.npy"),
        model="ivae",
        auxiliary=labels,
        latent_dim=2,
        precision=100.0,
        settings=settings,
        progress=NoProgress(),
        out=tmp_path / "run",
    )
    with pytest.raises(InputError, match="this is an iVAE: give --auxiliary"):
        cli.dispatch(["diagnose", str(tmp_path / "run"), *data])
    html = tmp_path / "page.html"
    u = ["--auxiliary", str(tmp_path / "u.npy")]
    assert cli.dispatch(["diagnose", str(tmp_path / "run"), *data, *u, "--html", str(html)]) == 0
    found = json.loads(html.with_suffix(".json").read_text())
    assert found["gap"]["family"]["mean"] > -0.5
    assert "KL" in capsys.readouterr().out
    members = vs.adapters.run.members_of(tmp_path / "run")
    session = vs.explorer.Session.of(members, np.load(tmp_path / "x.npy"), auxiliary=labels)
    assert len(session.decode(0, [0.0, 0.0])["values"]) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere does not exist"),
        (
            ["{run}/run", "--data", "{run}/x.npy", "--auxiliary", "{run}/x.npy"],
            "takes no auxiliary input; remove --auxiliary",
        ),
        (["{run}/run"], "--data is required"),
        (["{run}"], "is not a run folder"),
        (
            ["{run}/run", "--data", "{run}/x.npy", "--html", "{run}/out.json"],
            "is the file for the numbers; use another suffix",
        ),
        (["{run}/run", "--fail-on", "all"], "--fail-on must be one of note, warning, error"),
    ],
)
def test_mistakes_on_the_command_line(run, arguments, message):
    with pytest.raises(InputError, match=message):
        cli.dispatch(["diagnose", *(a.format(run=run) for a in arguments)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"encode": lambda x: (x[:, :2], x[:, :2], x[:, :2])},
            r"got 3 values .* if it is \(z, mean, log_variance\), write",
        ),
        ({"encode": lambda x: {"mu": x}}, "got a dictionary with mu"),
    ],
)
def test_ambiguous_returns_of_the_encoder_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        vs.diagnose(linear(**change), X, progress=None)


def test_ambiguous_returns_of_modules_and_decoders_are_refused():
    class Three(torch.nn.Module):
        def forward(self, x):
            return x[:, :2], x[:, :2], x[:, :2]

    with pytest.raises(InputError, match="got 3 values"):
        vs.adapters.from_modules(Three(), torch.nn.Linear(2, 5), latent_dim=2).encode(X)
    with pytest.raises(InputError, match=r"decode=lambda z: decoder\(z\)\[0\]"):
        linear(decode=lambda z: (z @ W.T.to(z), z)).decode(torch.zeros(3, 2))
    with pytest.raises(InputError, match=r"decode must return one tensor, the mean of p\(x\|z\), got 2 values"):
        vs.diagnose(linear(decode=lambda z: (z @ W.T.to(z), z)), X, progress=None)


def test_progress_and_budget():
    lines = []
    found = vs.diagnose(linear(), X, budget=1e-3, progress=lines.append)
    assert lines[:2] == ["diagnose: reading samples", "diagnose: encoding 400 samples"]
    assert "budget=" in found.skipped["gap"]
    assert found.findings == []
    with pytest.raises(InputError, match="budget must be > 0"):
        vs.diagnose(linear(), X, budget=0)


def test_labels_may_be_one_column():
    labels = (X @ W[:, 0] > 0).long()
    assert vs.diagnose(linear(), X, factors=labels, progress=None, budget=1e-3).evidence.evaluation is not None
