"""The logger `vaescope`: silent by itself, with levels; only progress and the command line print."""

import ast
import logging
import subprocess
import sys
import warnings

import torch

import vaescope as vs
from tests.test_architecture import FILES, ROOT, TREES, package_of


def calls_of(name: str) -> list[str]:
    """Where a function of this name is called in the library."""
    return [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in FILES
        if package_of(file) not in ("cli", "__main__")
        for node in ast.walk(TREES[file])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name
    ]


def test_only_the_line_of_progress_prints():
    assert [where.split(":")[0] for where in calls_of("print")] == ["vaescope/core/budget.py"]
    assert calls_of("sys.stdout.write") + calls_of("sys.stderr.write") == []


def test_warnings_have_one_category():
    given = [
        ast.unparse(node.args[1]) if len(node.args) > 1 else "none"
        for file in FILES
        for node in ast.walk(TREES[file])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn"
    ]
    assert given
    assert set(given) == {"VaescopeWarning"}
    assert issubclass(vs.VaescopeWarning, UserWarning)


def test_loggers_are_below_the_one_of_the_package():
    names = [
        ast.unparse(node.args[0])
        for file in FILES
        for node in ast.walk(TREES[file])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger" and node.args
    ]
    assert names
    assert all(name.startswith(("'vaescope", "f'vaescope.")) for name in names), names


def test_calls_are_silent_until_an_application_asks(caplog, capfd):
    x = torch.randn(80, 3)
    with caplog.at_level(logging.INFO, logger="vaescope"):
        vs.fit(x, latent_dim=2, epochs=2, precision=1.0, progress=vs.training.NoProgress())
        vs.diagnose(vs.adapters.from_arrays(x, 1 + 0 * x), progress=None)
    assert capfd.readouterr() == ("", "")
    messages = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert ("vaescope.training", "INFO", "training 1 members for at most 2 epochs") in messages
    assert ("vaescope.training", "INFO", "training has ended after epoch 2") in messages
    assert ("vaescope.diagnose", "INFO", "encoding 80 samples") in messages
    assert {level for _, level, _ in messages} == {"INFO"}


def test_divergence_is_a_warning_and_epochs_are_for_debugging(caplog):
    with caplog.at_level(logging.DEBUG, logger="vaescope"):
        x = 1e6 * torch.randn(80, 3)
        progress = vs.training.NoProgress()
        vs.fit(x, latent_dim=2, epochs=2, precision=1e8, learning_rate=1e12, hidden=(4,), progress=progress)
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        "1 members have diverged after epoch 1"
    ]
    assert any(r.levelno == logging.DEBUG and r.getMessage().startswith("epoch 1: ") for r in caplog.records)


def test_findings_of_a_watch_are_logged(caplog, capfd):
    encoder, decoder = torch.nn.Linear(3, 4), torch.nn.Linear(2, 3)
    model = vs.adapters.from_modules(encoder, decoder, latent_dim=2, precision=1.0)
    watch = vs.Watch(model, torch.randn(60, 3), every=1, show=False)
    watch.update(0)
    with torch.no_grad():
        encoder.weight.fill_(float("nan"))
    with caplog.at_level(logging.WARNING, logger="vaescope.watch"):
        watch.update(1, loss=float("nan"))
    assert capfd.readouterr() == ("", "")
    assert [record.levelname for record in caplog.records] == ["WARNING"] * len(watch.findings)
    assert "step 1: " in caplog.records[0].getMessage()


def test_an_application_that_configures_logging_sees_it():
    fit = "vs.fit(torch.randn(40, 2), latent_dim=1, epochs=1, precision=1.0, progress=vs.training.NoProgress())"
    ask = "print('asked', file=sys.stderr); logging.basicConfig(level=logging.INFO)"
    code = f"import logging, sys, torch, vaescope as vs; {fit}; {ask}; {fit}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = done.stderr.split("asked\n")
    assert (done.stdout, before) == ("", "")
    assert "INFO:vaescope.training:training 1 members" in after


def test_nothing_is_warned_of_where_all_is_well():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vs.fit(torch.randn(40, 2), latent_dim=1, epochs=1, precision=1.0, progress=vs.training.NoProgress())
