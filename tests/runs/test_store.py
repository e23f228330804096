"""Run folders: atomic, resumable, bound to their settings and to a version of the format."""

import json
import os

import pytest
import torch

import vaescope as vs
from vaescope.models import VAE, Member, TrainingSummary
from vaescope.runs import RunFolder
from vaescope.runs.files import check_writable, read_rows, write_bytes, write_rows, write_tensors
from vaescope.runs.members import pending_stacks, save_members
from vaescope.runs.store import FORMAT_VERSION, cell_key

CONFIG = {"experiment": "toy", "profile": "quick", "settings": {"seeds": 2, "epochs": 5}}
CELLS = [{"precision": p, "seed": s} for p in (1.0, 10.0) for s in (0, 1)]
SUMMARY = TrainingSummary("finished", epochs=3, best_epoch=2, elbo=-1.5, used_precision=2.0, converged=False)


def test_rows_are_in_the_order_of_the_cells(tmp_path):
    run = RunFolder(tmp_path / "toy", CONFIG)
    run.add_rows([CELLS[2] | {"value": 2.0}, CELLS[0] | {"value": 0.0}], [CELLS[2], CELLS[0]])
    assert [row["value"] for row in run.rows(CELLS)] == [0.0, 2.0]
    assert run.cells_without_results(CELLS) == [CELLS[1], CELLS[3]]
    run.add_rows([CELLS[1] | {"other": "text"}], [CELLS[1]])
    assert run.rows(CELLS)[1] == CELLS[1] | {"value": None, "other": "text"}
    run.add_rows([CELLS[1] | {"other": "new"}], [CELLS[1]])
    assert [row["other"] for row in run.rows(CELLS)] == [None, "new", None]


# members --------------------------------------------------------------------------------------


def test_a_saved_member_has_its_weights_and_summary(tmp_path):
    run = RunFolder(tmp_path, CONFIG)
    params = {"w": torch.randn(1, 3, 2), "b": torch.randn(1, 1, 2).expand(1, 4, 2)}
    assert not run.has_weights(CELLS[0])
    run.save_member(CELLS[0], params, SUMMARY)
    loaded, summary = run.load_member(CELLS[0])
    assert summary == SUMMARY
    assert all(torch.equal(loaded[name], params[name]) for name in params)


def test_a_summary_without_convergence_can_be_loaded(tmp_path):
    run = RunFolder(tmp_path, CONFIG)
    older = {name: value for name, value in SUMMARY.to_dict().items() if name != "converged"}
    file = tmp_path / "weights" / f"{cell_key(CELLS[0])}.safetensors"
    write_tensors(file, {"w": torch.ones(1)}, {"summary": json.dumps(older)})
    assert run.load_member(CELLS[0])[1].converged is None


@pytest.mark.parametrize(
    "summary", ["[]", "{", '{"status": "finished"}', '{"status": 3, "epochs": 1, "best_epoch": 1}']
)
def test_a_broken_summary_is_explained_in_one_line(summary, tmp_path):
    run = RunFolder(tmp_path, CONFIG)
    file = tmp_path / "weights" / f"{cell_key(CELLS[0])}.safetensors"
    write_tensors(file, {"w": torch.ones(1)}, {"summary": summary})
    with pytest.raises(vs.RunError, match="remove it to train this member again") as error:
        run.load_member(CELLS[0])
    assert "\n" not in str(error.value)


def test_a_broken_weights_file_is_explained_in_one_line(tmp_path):
    run = RunFolder(tmp_path, CONFIG)
    write_bytes(tmp_path / "weights" / f"{cell_key(CELLS[0])}.safetensors", b"\x80\x04not a safetensors file")
    with pytest.raises(vs.RunError, match=r"cannot read .*; remove it to train again"):
        run.load_member(CELLS[0])


def test_members_are_imported_from_a_run_with_the_same_settings(tmp_path):
    cell = {"seed": 0}
    source = RunFolder(tmp_path / "a", {"experiment": "a", "settings": {"seeds": 1, "epochs": 5}})
    source.add_rows([cell | {"epoch": 1, "loss": 1.0}], [cell], "history")
    source.save_member(cell, {"w": torch.ones(2)}, SUMMARY)
    other = RunFolder(tmp_path / "b", {"experiment": "b", "settings": {"seeds": 1, "epochs": 6}})
    other.import_members([cell], tmp_path / "a")
    assert not other.has_weights(cell)
    same = RunFolder(tmp_path / "c", {"experiment": "c", "settings": {"seeds": 3, "epochs": 5}})
    same.import_members([cell], tmp_path / "a")
    assert same.load_member(cell)[1] == SUMMARY
    assert same.rows([cell], "history") == [cell | {"epoch": 1, "loss": 1.0}]
    same.import_members([cell], tmp_path / "absent")


# stacks ---------------------------------------------------------------------------------------


def test_a_stack_killed_after_its_last_member_was_saved_is_finished(tmp_path):
    run = RunFolder(tmp_path, CONFIG)
    run.start_stack(CELLS[:2])
    run.save_member(CELLS[0], {"w": torch.ones(1)}, SUMMARY)
    run.discard_finished_stack()
    assert run.pending_stack(CELLS) == CELLS[:2]  # one is missing
    run.save_member(CELLS[1], {"w": torch.ones(1)}, SUMMARY)
    run.discard_finished_stack()
    assert not (tmp_path / "unfinished.json").exists()


def test_an_interrupted_stack_comes_first_and_stays_together(tmp_path):
    run, model = RunFolder(tmp_path, CONFIG), VAE(3, 2)
    run.start_stack(CELLS[1:3])
    run.save_member(CELLS[1], {"w": torch.ones(1)}, SUMMARY)
    stacks = pending_stacks(run, model, CELLS, max_members=1)
    assert next(stacks) == CELLS[1:3]
    save_members(run, CELLS[1:3], [Member(model, model.init([0]))] * 2)
    assert list(stacks) == [[CELLS[0]], [CELLS[3]]]


def test_a_stack_of_other_cells_is_ignored(tmp_path):
    run = RunFolder(tmp_path, CONFIG)
    run.start_stack([{"seed": 99}])
    assert run.pending_stack(CELLS) == []
    assert list(pending_stacks(run, VAE(3, 2), CELLS)) == [CELLS]
    conv = VAE.conv((1, 16, 16), latent_dim=2)
    assert [len(stack) for stack in pending_stacks(RunFolder(tmp_path / "conv", CONFIG), conv, CELLS)] == [1] * 4


# settings and format --------------------------------------------------------------------------


def test_other_settings_are_refused_but_more_seeds_are_allowed(tmp_path):
    RunFolder(tmp_path, CONFIG)
    RunFolder(tmp_path, CONFIG | {"settings": {"seeds": 9, "epochs": 5}})
    with pytest.raises(vs.RunError, match=r"other settings \(epochs was 5, is 6\); choose another --out"):
        RunFolder(tmp_path, CONFIG | {"settings": {"seeds": 2, "epochs": 6}})
    with pytest.raises(vs.RunError, match="holds a run of 'toy', not of 'other'"):
        RunFolder(tmp_path, CONFIG | {"experiment": "other"})


def test_the_format_version_is_written(tmp_path):
    RunFolder(tmp_path, CONFIG)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {"version": FORMAT_VERSION} | CONFIG
    assert FORMAT_VERSION == 3
    before = (tmp_path / "config.json").stat().st_mtime_ns
    RunFolder(tmp_path, config)  # as read from the file
    assert (tmp_path / "config.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ({}, r"was written by an earlier version of vaescope \(format 1\); choose another --out or remove it"),
        ({"version": 1}, r"an earlier version of vaescope \(format 1\)"),
        ({"version": 2}, r"an earlier version of vaescope \(format 2\)"),
        ({"version": 4}, r"a later version of vaescope \(format 4\)"),
    ],
)
def test_another_format_is_refused(version, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | version))
    with pytest.raises(vs.RunError, match=message):
        RunFolder(tmp_path, CONFIG)
    assert json.loads((tmp_path / "config.json").read_text()) == CONFIG | version
    with pytest.raises(vs.RunError, match=message):
        RunFolder(tmp_path / "other", CONFIG).import_members(CELLS, tmp_path)


# files ----------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file.bin"
    write_bytes(path, b"old")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(vs.RunError, match="no space left on device"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin"]


@pytest.mark.skipif(os.name == "nt", reason="permissions and pipes of POSIX")
def test_files_are_written_through_links_and_with_the_permissions_of_the_umask(tmp_path):
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder / "file")
    before = os.umask(0o027)
    try:
        write_bytes(link, b"first")
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert (folder / "file").read_bytes() == b"first"
    assert (folder / "file").stat().st_mode & 0o777 == 0o640
    (folder / "file").chmod(0o604)
    write_bytes(link, b"second")
    assert (folder / "file").read_bytes() == b"second"
    assert (folder / "file").stat().st_mode & 0o777 == 0o604
    assert [file.name for file in folder.iterdir()] == ["file"]


@pytest.mark.skipif(os.name == "nt", reason="permissions and pipes of POSIX")
def test_what_is_not_a_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused = {
        "pipe": "it is a device, pipe or socket, not a file; choose another path",
        "link": "it is a device, pipe or socket",
        "folder": "it is a folder, not a file",
        "loop": "too many levels",
    }
    for name, message in refused.items():
        for check in (check_writable, lambda path: write_bytes(path, b"x")):
            with pytest.raises(vs.RunError, match=message):
                check(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    os.mkfifo(tmp_path / "folder" / ".lock")
    with (
        pytest.raises(vs.RunError, match="it is a device, pipe or socket"),
        RunFolder.locked(tmp_path / "folder", CONFIG),
    ):
        pass
    check_writable(tmp_path / "absent" / "file")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "link", "loop", "pipe"]


def test_a_folder_that_cannot_be_written_is_explained_in_one_line(tmp_path):
    (tmp_path / "file").write_text("a file, not a folder")
    with pytest.raises(vs.RunError, match="cannot write"):
        RunFolder(tmp_path / "file" / "run", CONFIG)


def test_a_broken_table_is_explained_in_one_line(tmp_path):
    (tmp_path / "results.parquet").write_bytes(b"not parquet")
    with pytest.raises(vs.RunError, match="cannot read"):
        read_rows(tmp_path / "results.parquet")
    assert read_rows(tmp_path / "absent.parquet") == []
    write_rows(tmp_path / "results.parquet", [{"a": 1}, {"b": "x"}])
    assert read_rows(tmp_path / "results.parquet") == [{"a": 1, "b": None}, {"a": None, "b": "x"}]
