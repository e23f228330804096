"""A real Ray cluster of several node processes on this machine: same numbers as here, also when a node is killed."""

import os
import sys
import threading
import time

import numpy as np
import pytest
import torch

from vaescope.cli import dispatch
from vaescope.core.errors import InputError, RunError
from vaescope.jobs import Outcome, Task
from vaescope.jobs import ray as on_ray
from vaescope.runs.files import read_rows
from vaescope.sweeps import Sweep, run_sweep
from vaescope.training import NoProgress

os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # every node on 127.0.0.1, as on those systems
ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")
pytestmark = pytest.mark.filterwarnings("ignore")
NODE = {"object_store_memory": 80 * 2**20}
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # nodes do not see this file


@pytest.fixture(scope="module")
def cluster():
    running = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False} | NODE
    )
    for _ in range(2):
        running.add_node(num_cpus=1, **NODE)
    ray.init(address=running.address, log_to_driver=False, logging_level="ERROR", namespace="vaescope")
    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
    yield running
    ray.shutdown()
    running.shutdown()


@pytest.fixture(scope="module")
def what(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(2000, 6)).astype("float32"))
    common = {"data": str(folder / "x.npy"), "epochs": 30, "patience": 30, "compile": "never", "seeds": 2}
    return Sweep(common, {"latent_dim": [2, 3, 4, 5], "hidden": [[8], [12]]})


def bits(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("weights/*.safetensors"))}


@pytest.fixture(scope="module")
def local(what, tmp_path_factory):
    """Rows and weights of a run in one process, with one thread, as tasks have on Ray."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("local") / "out"

    def here(tasks):
        return [Outcome(task.name, task.run(task.out, NoProgress())) for task in tasks]

    return run_sweep(what, out, executor=here), bits(out)


@pytest.mark.parametrize("returned", [False, True])
def test_the_same_as_here(cluster, what, local, tmp_path, returned):
    rows = run_sweep(what, tmp_path / "ray", executor=lambda tasks: on_ray.run_on_ray(tasks, return_files=returned))
    assert (rows, bits(tmp_path / "ray")) == local


@pytest.mark.parametrize("returned", [False, True])
def test_a_node_that_is_killed_costs_its_unfinished_stack_alone(cluster, what, local, tmp_path, returned):
    victim = cluster.add_node(num_cpus=1, **NODE)
    outcomes, killed = [], []

    def kill():
        while not outcomes:
            time.sleep(0.05)
        time.sleep(1.0)  # the victim is in the middle of a stack, as everybody is
        cluster.remove_node(victim, allow_graceful=False)
        killed.append(len(outcomes))

    killer = threading.Thread(target=kill)
    killer.start()

    def run(tasks):
        for outcome in on_ray.run_on_ray(tasks, return_files=returned):
            outcomes.append(outcome)
            yield outcome

    rows = run_sweep(what, tmp_path / "ray", executor=run)
    killer.join()
    assert killed[0] < len(what.stacks)  # in the middle of the run
    assert (rows, bits(tmp_path / "ray")) == local


def test_what_is_there_is_neither_trained_again_nor_lost(cluster, what, local, tmp_path):
    """Files come back, and go along the next time."""
    out = tmp_path / "ray"

    def run(tasks):
        return on_ray.run_on_ray(tasks, return_files=True)

    assert run_sweep(what, out, executor=run) == local[0]
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*.safetensors")}
    dropped = sorted(out.rglob("weights"))[0]
    for file in dropped.glob("*"):
        file.unlink()
    (dropped.parent / "results.parquet").unlink()
    begin = time.monotonic()
    assert run_sweep(what, out, executor=run) == local[0]
    assert bits(out) == local[1]
    assert time.monotonic() > begin
    assert set(before) == set(out.rglob("*.safetensors"))


def complain(argument, out, progress):
    progress.message("about to fail")
    raise InputError("three was expected, got two.")


def crash(argument, out, progress):
    raise KeyError("weights")


def test_failures_are_told_in_one_line_and_not_tried_again(cluster, tmp_path, capsys):
    tasks = [Task("ours", complain, None, tmp_path), Task("theirs", crash, None, tmp_path)]
    found = {outcome.name: outcome.error for outcome in on_ray.run_on_ray(tasks)}
    assert isinstance(found["ours"], InputError)
    assert str(found["ours"]) == "three was expected, got two."
    assert isinstance(found["theirs"], RunError)
    assert "KeyError" in str(found["theirs"])


def test_the_command_line(cluster, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(100, 4)).astype("float32"))
    file = tmp_path / "s.yaml"
    file.write_text(f"fit: {{data: {tmp_path / 'x.npy'}, epochs: 2, compile: never}}\nsweep: {{latent_dim: [2, 3]}}\n")
    out = str(tmp_path / "out")
    assert dispatch(["sweep", str(file), "--out", out, "--executor", "ray", "--storage", "returned"]) == 0
    assert len(read_rows(tmp_path / "out" / "results.parquet")) == 2
    assert dispatch(["reproduce", "beta-precision", "--seeds", "1", "--executor", "ray", "--out", out + "2"]) == 0
    assert "holds" in capsys.readouterr().out


def test_without_a_cluster_it_is_one_line(cluster, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def nobody(**_):
        raise ConnectionError("Could not find any running Ray instance.\nmore")

    monkeypatch.setattr(ray, "init", nobody)
    with pytest.raises(RunError, match=r"no Ray cluster at 'auto' \(Could not find any running Ray instance\.\)"):
        list(on_ray.run_on_ray([]))
