"""An experiment that is divided among processes gives the same results as one that is not."""

import pytest

from vaescope.cli import dispatch
from vaescope.core.errors import InputError, RunError
from vaescope.jobs import Outcome, run_in_this_process
from vaescope.runs.files import read_json, read_rows
from vaescope.runs.store import PARTS, Part
from vaescope.training import NoProgress
from vaescope_papers.catalogue import find_experiment
from vaescope_papers.experiment import RunOptions
from vaescope_papers.run import part_tasks, reproduce, solve_part

TINY = {"samples": 300, "epochs": 2, "precisions": (1e1, 1e3)}
OPTIONS = RunOptions(changes=TINY, seeds=2)
NAME = "moebius-precision"


class NoTraining(NoProgress):
    def begin(self, members, epochs):
        raise AssertionError("trained again")


class Interrupt(NoProgress):
    def epoch(self, done, **state):
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def experiment():
    return find_experiment(NAME).load()


@pytest.fixture(scope="module")
def whole(experiment, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    reproduce(experiment, OPTIONS, out=out, progress=NoProgress())
    return read_rows(out / NAME / "results.parquet")


def test_parts_have_every_cell_once(experiment):
    cells = experiment.cells(experiment.settings(OPTIONS))
    divided = [cell for index in range(3) for cell in cells[index::3]]
    assert sorted(map(str, divided)) == sorted(map(str, cells))


def test_merged_parts_equal_the_whole_and_are_deleted(experiment, whole, tmp_path):
    for index in range(2):
        assert solve_part(experiment, OPTIONS, Part(index, 2), out=tmp_path, progress=NoProgress()) == 2
    reproduce(experiment, OPTIONS, out=tmp_path, progress=NoTraining())
    merged = {(row["precision"], row["seed"]): row for row in read_rows(tmp_path / NAME / "results.parquet")}
    assert len(merged) == len(whole) == 4
    for row in whole:
        other = merged[row["precision"], row["seed"]]
        assert other["elbo"] == pytest.approx(row["elbo"], rel=1e-4)
        assert other["ima_contrast"] == pytest.approx(row["ima_contrast"], rel=1e-3)
    assert len(read_rows(tmp_path / NAME / "history.parquet")) == 4 * 2
    assert len(list((tmp_path / NAME / "weights").iterdir())) == 4
    assert not (tmp_path / NAME / PARTS).exists()
    assert read_json(tmp_path / NAME / "timing.json")["seconds"] > 0


def test_an_interrupted_part_keeps_its_checkpoint_and_the_rest_is_solved(experiment, whole, tmp_path):
    options = RunOptions(changes=TINY, seeds=2, checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        solve_part(experiment, options, Part(0, 2), out=tmp_path, progress=Interrupt())
    solve_part(experiment, options, Part(1, 2), out=tmp_path, progress=NoProgress())
    reproduce(experiment, options, out=tmp_path, progress=NoProgress())
    assert len(read_rows(tmp_path / NAME / "results.parquet")) == len(whole)
    left = [folder.name for folder in (tmp_path / NAME / PARTS).iterdir()]
    assert left == ["0-of-2"]  # when parts were merged, nothing else had its members
    reproduce(experiment, options, out=tmp_path, progress=NoTraining())
    assert not (tmp_path / NAME / PARTS).exists()


def test_a_call_with_fewer_seeds_keeps_the_parts_of_the_others(experiment, tmp_path):
    for index in range(2):
        solve_part(experiment, OPTIONS, Part(index, 2), out=tmp_path, progress=NoProgress())
    reproduce(experiment, RunOptions(changes=TINY, seeds=1), out=tmp_path, progress=NoTraining())
    assert len(read_rows(tmp_path / NAME / "results.parquet")) == 2
    reproduce(experiment, OPTIONS, out=tmp_path, progress=NoTraining())
    assert len(read_rows(tmp_path / NAME / "results.parquet")) == 4
    assert not (tmp_path / NAME / PARTS).exists()


def test_parts_do_not_repeat_what_the_experiment_has(experiment, whole, tmp_path):
    reproduce(experiment, OPTIONS, out=tmp_path, progress=NoProgress())
    (tmp_path / NAME / "results.parquet").unlink()  # members without results
    assert solve_part(experiment, OPTIONS, Part(0, 2), out=tmp_path, progress=NoTraining()) == 2
    reproduce(experiment, OPTIONS, out=tmp_path, progress=NoTraining())
    assert solve_part(experiment, OPTIONS, Part(1, 2), out=tmp_path, progress=NoTraining()) == 0


def test_each_part_begins_with_another_experiment(tmp_path):
    infos = [find_experiment(name) for name in (NAME, "self-consistency", "elbo-gap")]
    tasks = part_tasks(infos, tmp_path, OPTIONS, 2)
    assert [task.name for task in tasks] == ["3 experiments (1 of 2)", "3 experiments (2 of 2)"]
    assert [task.argument.names for task in tasks] == [
        (NAME, "self-consistency", "elbo-gap"),
        ("self-consistency", "elbo-gap", NAME),
    ]
    assert [task.name for task in part_tasks(infos[:1], tmp_path, OPTIONS, 2)] == [
        f"{NAME} (1 of 2)",
        f"{NAME} (2 of 2)",
    ]


def test_jobs_divide_a_single_experiment(tmp_path, monkeypatch):
    monkeypatch.setattr("vaescope.jobs.run_in_processes", lambda tasks, jobs: run_in_this_process(tasks))
    assert dispatch(["reproduce", "principal-axes", "--jobs", "2", "--seeds", "2", "--out", str(tmp_path)]) == 0
    assert len(read_rows(tmp_path / "principal-axes" / "results.parquet")) >= 2
    assert not (tmp_path / "principal-axes" / PARTS).exists()


def test_split_divides_several_and_one_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    given = []

    def in_this_process(tasks, jobs):
        given.extend(task.name for task in tasks)
        return run_in_this_process(tasks)

    def fails_once(experiment, options, part, **rest):
        if experiment.name == "beta-precision" and part.index == 1:
            raise ValueError("a fault of one part\nwith details")
        return solve_part(experiment, options, part, **rest)

    monkeypatch.setattr("vaescope.jobs.run_in_processes", in_this_process)
    monkeypatch.setattr("vaescope_papers.run.solve_part", fails_once)
    names = ["principal-axes", "beta-precision"]
    message = r"1 of 2 did not finish: beta-precision \(ValueError: a fault of one part\)"
    with pytest.raises(RunError, match=message):
        dispatch(["reproduce", *names, "--jobs", "2", "--split", "--seeds", "2", "--out", str(tmp_path)])
    assert given == ["2 experiments (1 of 2)", "2 experiments (2 of 2)"]
    assert (tmp_path / "principal-axes" / "report.html").exists()
    assert not (tmp_path / "principal-axes" / PARTS).exists()
    assert not (tmp_path / "beta-precision" / "report.html").exists()
    assert "principal-axes" in capsys.readouterr().out


def test_a_lost_process_is_named_after_the_others_have_finished(tmp_path, monkeypatch):
    def one_is_lost(tasks, jobs):
        yield Outcome(tasks[0].name, error=RunError("the worker process was killed by signal 9, 3 times."))
        yield from run_in_this_process(tasks[1:])

    monkeypatch.setattr("vaescope.jobs.run_in_processes", one_is_lost)
    with pytest.raises(RunError, match=r"1 of 2 did not finish: principal-axes \(1 of 2\) \(the worker process"):
        dispatch(["reproduce", "principal-axes", "--jobs", "2", "--seeds", "2", "--out", str(tmp_path)])
    assert (tmp_path / "principal-axes" / PARTS / "1-of-2" / "results.parquet").exists()


def test_split_needs_jobs(tmp_path):
    with pytest.raises(InputError, match="--split divides experiments among processes: add --jobs 2"):
        dispatch(["reproduce", "principal-axes", "--split", "--out", str(tmp_path)])


def test_a_cluster_is_given_whole_experiments(tmp_path):
    with pytest.raises(InputError, match="--split divides experiments among processes of this machine"):
        dispatch(["reproduce", "principal-axes", "--split", "--executor", "ray", "--out", str(tmp_path)])
