"""The command line: answers at once, and every mistake is one line and exit code 2."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from vaescope import __version__, cli


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "vaescope", *arguments], capture_output=True, text=True)


def refuse(capsys, *arguments: str) -> str:
    sys.argv = ["vaescope", *arguments]
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line and not line.startswith("read ")]
    (error,) = lines  # beside what was read from which file
    return error


@pytest.fixture(autouse=True)
def keep_arguments(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["vaescope"])


def test_help_and_list():
    for arguments in (["--help"], []):
        done = run(*arguments)
        assert done.returncode == 0
        assert "reproduce" in done.stdout
    listed = run("reproduce", "--list")
    assert listed.returncode == 0
    assert "self-consistency" in listed.stdout
    assert run("--version").stdout == run("version").stdout == f"{__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reproduce"], "name experiments, or use --all; --list shows them"),
        (["reproduce", "nonsense"], "there is no experiment 'nonsense'; choose from: "),
        (
            ["reproduce", "self-consistency", "--profile", "fast"],
            "--profile must be one of quick, laptop, paper, got 'fast'",
        ),
        (["reproduce", "self-consistency", "--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["train", "x.npy", "--latent-dim", "0"], "vaescope: latent_dim must be at least 1, got 0."),
        (
            ["train", "x.npy", "--precision", "loud"],
            "vaescope: precision must be one of optimal, learned, learned-diagonal, learned-full, got 'loud'.",
        ),
        (["train", "x.npy", "--batch-size", "10", "--accumulate", "3"], "got 3 parts of a batch of 10."),
        (["train", "x.npy"], "--out is required: the folder for the run."),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
    assert message in refuse(capsys, *arguments)


def test_a_missing_device_is_one_line(capsys, tmp_path):
    error = refuse(capsys, "reproduce", "self-consistency", "--device", "warp", "--out", str(tmp_path / "o"))
    assert "device 'warp' is not available here" in error


def test_an_unwritable_folder_is_one_line(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot write" in refuse(capsys, "reproduce", "self-consistency", "--out", str(tmp_path / "file"))


def test_a_folder_of_other_settings_is_one_line_and_untouched(capsys, tmp_path):
    run_folder = tmp_path / "self-consistency"
    run_folder.mkdir()
    config = '{"version": 3, "experiment": "self-consistency", "profile": "quick", "settings": {"epochs": 1}}'
    (run_folder / "config.json").write_text(config)
    error = refuse(capsys, "reproduce", "self-consistency", "--out", str(tmp_path))
    assert "made with other settings" in error
    assert (run_folder / "config.json").read_text() == config
    assert [p.name for p in run_folder.iterdir() if p.name != ".lock"] == ["config.json"]


def succeed(capsys, *arguments: str) -> str:
    sys.argv = ["vaescope", *arguments]
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_training_on_a_file_and_going_on(capsys, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(90, 4)), factors=rng.normal(size=(90, 2)))
    call = ["train", str(tmp_path / "data.npz"), "--out", str(tmp_path / "run"), "--latent-dim", "2", "--epochs", "2"]
    shown = succeed(capsys, *call)
    assert "finished" in shown
    assert "MCC" in shown
    assert "chance" in shown
    more = succeed(capsys, *call, "--seeds", "2")
    assert more.count("finished") == 2
    assert (tmp_path / "run" / "results.parquet").exists()
    assert "made with other settings (training.batch_size was 64, is 32)" in refuse(capsys, *call, "--batch-size", "32")


def test_training_in_several_processes(capsys, tmp_path):
    call = ["train", "dsprites", "--rows", "40", "--epochs", "1", "--batch-size", "16", "--seeds", "3"]
    alone, divided = tmp_path / "alone", tmp_path / "divided"
    for extra in (["--out", str(alone)], ["--out", str(divided), "--jobs", "2"]):
        assert succeed(capsys, *call, *extra).count("finished") == 3
    assert not (divided / "parts").exists()
    names = sorted(path.name for path in (alone / "weights").iterdir())
    assert len(names) == 3
    assert names == sorted(path.name for path in (divided / "weights").iterdir())
    for name in names:
        expected, found = (load_file(folder / "weights" / name) for folder in (alone, divided))
        assert all(torch.allclose(found[key], value, atol=1e-5) for key, value in expected.items())
    assert "made with other settings" in refuse(capsys, *call, "--out", str(divided), "--jobs", "2", "--epochs", "2")
    assert "--jobs must be at least 1" in refuse(capsys, *call, "--out", str(divided), "--jobs", "0")


def test_several_processes_and_a_stack(capsys, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(80, 4)))
    call = ["train", str(tmp_path / "x.npy"), "--latent-dim", "2", "--epochs", "1", "--out", str(tmp_path / "run")]
    assert cli.dispatch([*call, "--jobs", "2"]) == 0
    assert "--jobs has no effect here: MLPs train as one stack." in capsys.readouterr().err


def test_training_an_ivae(capsys, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(90, 4)), factors=rng.normal(size=(90, 2)))
    np.save(tmp_path / "u.npy", rng.integers(0, 3, 90))
    np.save(tmp_path / "short.npy", rng.integers(0, 3, 9))
    call = ["train", str(tmp_path / "data.npz"), "--latent-dim", "2", "--epochs", "1", "--auxiliary"]
    assert "in use" in succeed(capsys, *call, "factors", "--out", str(tmp_path / "a"))
    shown = succeed(capsys, *call, str(tmp_path / "u.npy"), "--prior-mean", "learned", "--out", str(tmp_path / "b"))
    assert "finished" in shown
    out = ["--out", str(tmp_path / "c")]
    assert "got 9 rows for 90 samples" in refuse(capsys, *call, str(tmp_path / "short.npy"), *out)
    assert "nowhere.npy does not exist" in refuse(capsys, *call, "nowhere.npy", *out)
    assert "specify only one" in refuse(capsys, *call, str(tmp_path / "u.npy"), "--rows", "50", *out)
    np.save(tmp_path / "x.npy", rng.normal(size=(90, 4)))
    assert "has no factors" in refuse(capsys, "train", str(tmp_path / "x.npy"), "--auxiliary", "factors", *out)


def test_training_on_a_rendered_data_set(capsys, tmp_path):
    call = ["train", "dsprites", "--rows", "40", "--out", str(tmp_path / "run"), "--epochs", "1", "--batch-size", "16"]
    assert "finished" in succeed(capsys, *call, "--likelihood", "bernoulli", "--latent-dim", "3")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("absent.npy", "absent.npy does not exist"),
        ("cats", "data set must be one of sprites, dsprites"),
        ("mpi3d", "pass the path of real3d_complicated_shapes_ordered.npz"),
    ],
)
def test_data_that_is_not_there_is_one_line(capsys, tmp_path, data, message):
    assert message in refuse(capsys, "train", data, "--out", str(tmp_path / "run"))


def test_data_sets_are_listed_with_their_pictures(capsys, tmp_path):
    shown = succeed(capsys, "datasets", "--out", str(tmp_path))
    for word in ("sprites", "dsprites", "3dshapes", "mpi3d", "3dfaces", "3dshapes.h5"):
        assert word in shown
    page = (tmp_path / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert "http" not in page.replace("http://www.w3.org", "")


def test_advice_names_options_instead_of_arguments(capsys):
    from vaescope.cli.output import console, print_finding
    from vaescope.core.errors import Advice, Attempts, Skipped
    from vaescope.report.findings import Finding

    advice = Advice.naming("Check it (pass {}).", "train")
    assert Finding("overfit", "note", "t", "e", advice).to_data()["advice"] == "Check it (pass train=)."
    print_finding(console(), Finding("overfit", "note", "t", "e", advice))
    assert "Check it (pass --train)." in capsys.readouterr().out

    def skip():
        raise Skipped(Advice.naming("pass {} to include it", "budget", 50))

    attempts = Attempts()
    attempts("gap", skip)
    (reason,) = attempts.skipped.values()
    assert (reason, reason.as_option) == ("pass budget=50 to include it", "pass --budget 50 to include it")
