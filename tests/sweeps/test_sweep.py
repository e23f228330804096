"""Sweeps: cells become stacks, stacks become one table; files that are wrong are explained."""

import json
import threading
import time

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.cli import dispatch
from vaescope.core.errors import InputError, RunError
from vaescope.jobs import Outcome, run_in_processes
from vaescope.runs.files import locked, read_rows
from vaescope.sweeps import Sweep, SweepOptions, read_sweep, run_sweep, sweep_status
from vaescope.sweeps.run import fit_job, free_bytes, largest_stack, member_bytes
from vaescope.sweeps.sweep import MemberCell
from vaescope.training import NoProgress, TrainSettings


@pytest.fixture
def data(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(120, 4)).astype("float32"))
    return tmp_path / "x.npy"


def here(tasks):
    return [Outcome(task.name, task.run(task.out, NoProgress())) for task in tasks]


def small(data, **grid):
    return Sweep({"data": str(data), "epochs": 2, "compile": "never"}, grid or {"latent_dim": [2, 3]})


def test_what_can_share_a_stack_does(data):
    what = small(data, latent_dim=[2, 3], precision=[1.0, 10.0], beta=[1.0, 2.0], seed=[0, 1, 2])
    assert len(what.stacks) == 2
    assert [len(stack.members) for stack in what.stacks] == [12, 12]
    assert what.members == 24
    other = small(data, latent_dim=[2], learning_rate=[1e-3, 1e-2], precision=["optimal", 3.0])
    assert len(other.stacks) == 4  # precision by maximum likelihood is another model


def test_one_table_with_a_row_per_member_as_fit_gives_them(data, tmp_path):
    what = small(data, latent_dim=[2, 3], precision=[1.0, 10.0], seed=[0, 1])
    rows = run_sweep(what, tmp_path / "out", executor=here)
    assert [(r["latent_dim"], r["precision"], r["seed"]) for r in rows] == [
        (d, p, s) for d in (2, 3) for p in (1.0, 10.0) for s in (0, 1)
    ]
    assert read_rows(tmp_path / "out" / "results.parquet") == rows
    settings = TrainSettings(epochs=2, compile="never")
    alone = vs.fit(
        np.load(data), latent_dim=3, precision=[1.0, 10.0], seeds=(0, 1), settings=settings, progress=NoProgress()
    )
    assert [row["elbo"] for row in rows[4:]] == [member.best_elbo for member in alone.members]
    assert [line["state"] for line in sweep_status(tmp_path / "out")] == ["finished", "finished"]
    again = run_sweep(what, tmp_path / "out", executor=here)
    assert again == rows


def test_large_stacks_are_cut_for_more_processes(data, tmp_path):
    common = {"data": str(data), "epochs": 2, "compile": "never", "latent_dim": 2}
    what = Sweep(common, {"seed": [0, 1, 2, 3, 4]}, max_members=2)
    assert [len(stack.members) for stack in what.stacks] == [2, 2, 1]
    assert len({stack.name for stack in what.stacks}) == 3
    rows = run_sweep(what, tmp_path / "out", executor=here)
    assert [row["seed"] for row in rows] == [0, 1, 2, 3, 4]


def test_settings_of_every_kind(data):
    np.save(data.parent / "u.npy", np.arange(120) % 3)
    settings = {
        "data": str(data),
        "latent_dim": 2,
        "hidden": [8],
        "prior": {"kind": "uniform", "low": -1, "high": 1},
        "objective": "beta-tc",
        "epochs": 3,
        "batch_size": 10,
    }
    job = fit_job(settings, [MemberCell(seed=1, beta=2.0, precision=7.0)])
    training = job.settings.training
    assert (job.model.networks.hidden, training.epochs, training.batch_size) == ((8,), 3, 10)
    assert job.model.prior.bounds == (-1.0, 1.0)
    assert (job.members[0].precision, job.members[0].beta, job.members[0].seed) == (7.0, 2.0, 1)
    conditional = {"data": str(data), "latent_dim": 2, "auxiliary": str(data.parent / "u.npy")}
    assert fit_job(conditional, [MemberCell(seed=0, beta=1.0)]).model.auxiliary.dim == 3


def test_stacks_are_sized_to_memory(data, tmp_path):
    job = fit_job({"data": str(data), "latent_dim": 2}, [MemberCell(seed=0, beta=1.0)])
    one = member_bytes(job)
    assert largest_stack(job, 20 * one) == 10
    assert largest_stack(job, 0) == 1
    assert free_bytes() > 2**20
    what = small(data, latent_dim=[2], precision=[1.0, 10.0], seed=[0, 1, 2])
    in_parts = run_sweep(what, tmp_path / "parts", executor=here, options=SweepOptions(memory=4 * one))
    whole = run_sweep(what, tmp_path / "whole", executor=here)
    assert json.loads((tmp_path / "parts" / "sweep.json").read_text())["memory"] == 4 * one
    for a, b in zip(in_parts, whole, strict=True):
        assert a["elbo"] == pytest.approx(b["elbo"], rel=1e-5)


def test_an_experiment_is_swept(tmp_path, capsys):
    file = tmp_path / "s.yaml"
    file.write_text(
        f"experiment: beta-precision\nsettings: {{seeds: 1}}\nsweep: {{epochs: [2, 3]}}\nout: {tmp_path / 'out'}\n"
    )
    assert dispatch(["sweep", str(file), "--dry-run"]) == 0
    assert "2 members in 2 stacks" in capsys.readouterr().out
    rows = run_sweep(read_sweep(file), tmp_path / "out", executor=here)
    assert {row["epochs"] for row in rows} >= {2, 3}
    assert dispatch(["status", str(tmp_path / "out")]) == 0
    assert "2 stacks: 2 finished" in capsys.readouterr().out


def test_the_command(data, tmp_path, capsys):
    file = tmp_path / "s.yaml"
    file.write_text(f"fit: {{data: {data}, epochs: 2, compile: never}}\nsweep: {{latent_dim: [2, 3]}}\n")
    with pytest.raises(InputError, match="the folder for the results is missing: give --out"):
        dispatch(["sweep", str(file)])
    assert dispatch(["sweep", str(file), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "latent_dim" in printed
    assert "results.parquet" in printed


def test_a_stack_that_fails_stops_nobody_else(data, tmp_path):
    what = small(data)

    def one_fails(tasks):
        for place, outcome in enumerate(here(tasks[:1])):
            yield outcome._replace(name=tasks[place].name)
        yield Outcome(tasks[1].name, error=RunError("no space left on device."))

    with pytest.raises(RunError, match=r"1 of 2 stacks did not finish.*no space left"):
        run_sweep(what, tmp_path / "out", executor=one_fails)
    assert len(read_rows(tmp_path / "out" / "results.parquet")) == 1
    assert sorted(line["state"] for line in sweep_status(tmp_path / "out")) == ["finished", "waiting"]


def test_kinds_of_values_may_differ(data, tmp_path):
    rows = run_sweep(small(data, latent_dim=[2], precision=["optimal", "learned", 1.0]), tmp_path / "a", executor=here)
    assert [row["precision"] for row in rows] == ["optimal", "learned", "1.0"]
    rows = run_sweep(small(data, latent_dim=[2], hidden=[16, [16, 16]]), tmp_path / "b", executor=here)
    assert [row["hidden"] for row in rows] == ["16", "[16, 16]"]


def test_mistakes_are_told_before_anything_is_trained(data, tmp_path):
    for change in ({"latent_dim": [2, -1]}, {"latent_dim": [2], "learning_rate": [1e-3, "fast"]}):
        with pytest.raises(InputError):
            run_sweep(small(data, **change), tmp_path / "out", executor=here)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="no setting 'device'"):
        small(data, latent_dim=[2], device=["cpu"])
    with pytest.raises(InputError, match=r"seed \(a seed\) and seeds \(how many\) are both given"):
        Sweep({"data": str(data), "latent_dim": 2, "seeds": 2}, {"seed": [0]})


def test_a_number_with_an_exponent_is_a_number(tmp_path):
    (tmp_path / "s.yaml").write_text("fit: {data: x, latent_dim: 2, learning_rate: 1e-3}\n")
    assert read_sweep(tmp_path / "s.yaml").common["learning_rate"] == 1e-3


def test_the_same_cell_twice_is_one(data):
    what = Sweep({"seeds": 1}, {"epochs": [2, 2]}, experiment="beta-precision")
    assert len(what.stacks) == 1
    assert small(data, latent_dim=[2], learning_rate=[1, 1.0]).members == 1


def test_looking_does_not_disturb(data, tmp_path):
    """`status` takes the lock for a moment; who begins just then waits for it."""
    run_sweep(small(data), tmp_path / "out", executor=here)
    end = time.monotonic() + 1.0

    def look():
        while time.monotonic() < end:
            sweep_status(tmp_path / "out")

    looking = threading.Thread(target=look)
    looking.start()
    while time.monotonic() < end:
        for stack in small(data).stacks:
            with locked(tmp_path / "out" / "stacks" / stack.name):
                pass
    looking.join()


def test_runs_and_sweeps_do_not_share_a_folder(data, tmp_path):
    settings = TrainSettings(epochs=1, compile="never")
    vs.fit(np.load(data), latent_dim=2, settings=settings, progress=NoProgress(), out=tmp_path / "run")
    with pytest.raises(RunError, match="holds a run"):
        run_sweep(small(data), tmp_path / "run", executor=here)
    run_sweep(small(data), tmp_path / "sweep", executor=here)
    with pytest.raises(RunError, match="holds a sweep"):
        vs.fit(np.load(data), latent_dim=2, settings=settings, progress=NoProgress(), out=tmp_path / "sweep")


def test_a_folder_belongs_to_one_sweep_and_one_process(data, tmp_path):
    run_sweep(small(data), tmp_path / "out", executor=here)
    with pytest.raises(RunError, match="holds another sweep"):
        run_sweep(small(data, latent_dim=[4]), tmp_path / "out", executor=here)
    with locked(tmp_path / "out"), pytest.raises(RunError, match="is in use by process"):
        run_sweep(small(data), tmp_path / "out", executor=here)
    with pytest.raises(InputError, match="is not the folder of a sweep"):
        sweep_status(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have fit: or experiment:"),
        ("fit: [1", "as YAML"),
        ("fit: {}\nexperiment: rotation\n", "either fit: or experiment:"),
        ("fit: {data: x.npy, latent_dim: 2}\nswep: {}\n", "has no setting 'swep'"),
        ("fit: {data: x.npy, latent_dim: 2, layers: 3}\n", "fit has no setting 'layers'"),
        ("fit: {data: x.npy}\n", "needs data and latent_dim"),
        ("fit: {data: x.npy}\nsweep: {latent_dim: 3}\n", "must be a list of values, got 3"),
        ("fit: {data: x.npy, latent_dim: 2}\nsweep: {latent_dim: [3]}\n", "both fixed and swept; specify only one"),
        ("fit: {data: x.npy, latent_dim: 2, seeds: 0}\n", "seeds must be at least 1, got 0"),
        ("fit: {data: x.npy, latent_dim: 2, seeds: 99999999999}\n", "seeds must be 1 to 100000"),
        ("fit: {data: x.npy, latent_dim: 2026-01-01}\n", "values must be numbers, text or lists"),
        ("fit: {data: x.npy, latent_dim: 2, prior: {kind: uniform, 3: 4}}\n", "values must be numbers, text or lists"),
        ("fit: {data: x.npy, latent_dim: 2, seeds: x}\n", "seeds must be an integer, got 'x'"),
        ("fit: {data: x.npy, latent_dim: 2, beta: x}\n", "beta must be a number, got 'x'"),
        ("experiment: nonsense\n", "there is no experiment 'nonsense'"),
        ("experiment: rotation\nprofile: fast\n", "profile must be one of quick, laptop, paper"),
        ("experiment: rotation\nsettings: {colour: 3}\n", "rotation has no setting 'colour'"),
        ("experiment: rotation\nsweep: {seeds: [a]}\n", "rotation.seeds must be an integer"),
        ("experiment: rotation\nfit: {}\nsettings: {}\n", "either fit: or experiment:"),
        ("fit: {data: x, latent_dim: 2}\nsettings: {}\n", "has both fit: and settings:"),
        ("fit: {data: x, latent_dim: 2}\nmax_members: 0\n", "max_members must be at least 1"),
        ("fit: {data: x, latent_dim: 2}\nmax_members: many\n", "max_members must be an integer"),
        ("a: &a [1, 1]\nfit: {data: *a}\n", "aliases"),
        ("fit: {data: x, latent_dim: 2, latent_dim: 3}\n", "latent_dim occurs twice; write each setting once"),
        ("fit: {data: x, latent_dim: 2}\nout: a\nout: b\n", "out occurs twice"),
        ("fit: !!python/object/apply:os.system ['true']\n", "as YAML"),
        ("fit: {data: x, latent_dim: 2}\nsweep: {seed: [1, 2], beta: [" + "1, " * 60000 + "1]}\n", "combinations"),
    ],
)
def test_files_that_are_wrong_are_explained(tmp_path, text, message):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_sweep(tmp_path / "s.yaml")
    with pytest.raises(InputError, match="cannot read"):
        read_sweep(tmp_path / "absent.yaml")


def test_numbers_of_torch_do_not_depend_on_the_executor(data, tmp_path):
    """In a process of its own, with as many threads, a stack gives the same bits."""
    torch.set_num_threads(1)
    what = small(data, latent_dim=[2], seed=[0, 1])
    first = run_sweep(what, tmp_path / "here", executor=here)
    second = run_sweep(what, tmp_path / "there", executor=lambda tasks: run_in_processes(tasks, jobs=2))
    assert run_sweep(what, tmp_path / "inside") == first
    assert first == second
