"""Tracking: what a folder holds comes back from a real MLflow server and from TensorBoard's event files."""

import json
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest

import vaescope as vs
from vaescope.cli import dispatch
from vaescope.core.errors import InputError, RunError
from vaescope.jobs.tracking import export_run
from vaescope.runs.files import read_rows
from vaescope.training import NoProgress, TrainSettings

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two members, claims and a figure."""
    folder = tmp_path_factory.mktemp("tracked") / "run"
    x = np.random.default_rng(0).normal(size=(100, 4))
    settings = TrainSettings(epochs=3, compile="never")
    vs.fit(x, latent_dim=2, precision=5.0, seeds=(0, 1), settings=settings, progress=NoProgress(), out=folder)
    (folder / "claims.json").write_text(json.dumps([{"sentence": "It holds.", "verdict": "holds", "holds": True}]))
    (folder / "figures").mkdir()
    (folder / "figures" / "a.svg").write_text("<svg/>")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files")]
    process = subprocess.Popen([*command, *store], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
    address = f"http://127.0.0.1:{port}"
    for _ in range(240):
        try:
            urllib.request.urlopen(f"{address}/health", timeout=1)
            break
        except OSError:
            assert process.poll() is None, "the server ended"
            time.sleep(0.5)
    yield address
    process.terminate()
    process.wait()


def test_a_run_per_member_with_settings_history_claims_and_figures(run, server):
    import mlflow

    assert export_run(run, server) == 2
    client = mlflow.MlflowClient(server)
    experiment = client.get_experiment_by_name("vaescope/fit")
    found = {one.info.run_name: one for one in client.search_runs([experiment.experiment_id])}
    rows, epochs = read_rows(run / "results.parquet"), read_rows(run / "history.parquet")
    assert len(found) == 3
    for row in rows:
        one = found[f"precision=5_beta=1_seed={row['seed']}"]
        assert one.data.metrics["result.elbo"] == pytest.approx(row["elbo"])
        assert one.data.params["seed"] == str(row["seed"])
        assert json.loads(one.data.params["training"])["batch_size"] == 64
        assert one.data.tags["status"] == "finished"
        history = client.get_metric_history(one.info.run_id, "elbo")
        wanted = [(e["epoch"], e["elbo"]) for e in epochs if e["seed"] == row["seed"]]
        np.testing.assert_allclose(sorted((m.step, m.value) for m in history), wanted)
    whole = found["fit"]
    assert whole.data.metrics["claims.holds"] == 1
    names = {file.path for file in client.list_artifacts(whole.info.run_id)}
    assert names == {"claims.json", "figures", "settings.json"}
    assert [f.path for f in client.list_artifacts(whole.info.run_id, "figures")] == ["figures/a.svg"]
    assert export_run(run, server) == 0  # not twice
    assert len(client.search_runs([experiment.experiment_id])) == 3


def test_the_command_line_tracks_what_it_trains(server, tmp_path, capsys):
    import mlflow

    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(80, 4)).astype("float32"))
    file = tmp_path / "s.yaml"
    file.write_text(f"fit: {{data: {tmp_path / 'x.npy'}, epochs: 2, compile: never}}\nsweep: {{latent_dim: [2, 3]}}\n")
    before = mlflow.MlflowClient(server)
    assert dispatch(["sweep", str(file), "--out", str(tmp_path / "out"), "--track", server]) == 0
    experiment = before.get_experiment_by_name("vaescope/fit")
    mine = [
        one
        for one in before.search_runs([experiment.experiment_id])
        if str(tmp_path) in one.data.tags["vaescope.folder"] and one.data.tags["vaescope.member"]
    ]
    assert len(mine) == 2


def test_a_server_that_is_not_there_is_one_line(run, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    with pytest.raises(RunError, match="cannot log to"):
        export_run(run, "http://127.0.0.1:9")


def test_tensorboard_reads_what_was_written(run, tmp_path, capsys):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    place = tmp_path / "events"
    assert dispatch(["track", str(run), "--to", f"tensorboard:{place}"]) == 0
    assert "2 members exported" in capsys.readouterr().out
    rows, epochs = read_rows(run / "results.parquet"), read_rows(run / "history.parquet")
    for row in rows:
        (own,) = place.glob(f"fit/run-*/precision=5_beta=1_seed={row['seed']}")
        events = EventAccumulator(str(own))
        events.Reload()
        wanted = [(e["epoch"], e["elbo"]) for e in epochs if e["seed"] == row["seed"]]
        np.testing.assert_allclose([(s.step, s.value) for s in events.Scalars("elbo")], wanted, rtol=1e-5)
        assert events.Scalars("result/elbo")[0].value == pytest.approx(row["elbo"], rel=1e-5)
        assert "claims/text_summary" in events.Tags()["tensors"]
    assert export_run(run, f"tensorboard:{place}") == 0


def test_every_stack_of_a_sweep_is_logged(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(80, 4)).astype("float32"))
    file = tmp_path / "s.yaml"
    file.write_text(f"fit: {{data: {tmp_path / 'x.npy'}, epochs: 2, compile: never}}\nsweep: {{latent_dim: [2, 3]}}\n")
    to = f"tensorboard:{tmp_path / 'events'}"
    assert dispatch(["sweep", str(file), "--out", str(tmp_path / "out"), "--track", to]) == 0
    assert len(list((tmp_path / "events").rglob("finished.txt"))) == 2
    assert dispatch(["track", str(tmp_path / "out"), "--to", to]) == 0
    assert "0 members exported" in capsys.readouterr().out


def test_an_interrupted_log_is_completed_and_not_doubled(run, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    from vaescope.jobs import tracking as ours

    to = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.chdir(tmp_path)
    whole = ours.MLflowWriter.member
    monkeypatch.setattr(ours.MLflowWriter, "member", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        export_run(run, to)
    monkeypatch.setattr(ours.MLflowWriter, "member", whole)
    assert export_run(run, to) == 2
    client = mlflow.MlflowClient(to)
    experiment = client.get_experiment_by_name("vaescope/fit")
    found = client.search_runs([experiment.experiment_id])
    assert sorted(one.info.status for one in found) == ["FINISHED"] * 3
    (parent,) = {one.data.tags["mlflow.parentRunId"] for one in found if one.data.tags["vaescope.member"]}
    assert parent in {one.info.run_id for one in found}


@pytest.mark.parametrize(
    ("to", "message"),
    [("tensorboard:", "needs a folder, such as"), ("nonsense://x", "--track must be tensorboard:FOLDER")],
)
def test_a_wrong_target_is_told_before_anything_is_trained(tmp_path, to, message):
    np.save(tmp_path / "x.npy", np.zeros((30, 3)))
    with pytest.raises(InputError, match=message):
        dispatch(["train", str(tmp_path / "x.npy"), "--latent-dim", "1", "--out", str(tmp_path / "o"), "--track", to])
    assert not (tmp_path / "o").exists()


def test_what_is_no_run_is_refused(tmp_path):
    pytest.importorskip("tensorboard")
    with pytest.raises(InputError, match="is not a run folder"):
        export_run(tmp_path, "tensorboard:x")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="does not describe a run"):
        export_run(tmp_path, "tensorboard:x")
