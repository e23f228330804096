"""Run folders: atomic, resumable, tied to their settings."""

import os

import pytest
import torch

import vaescope as vs
from vaescope.runs import RunFolder, cell_key
from vaescope.runs.files import read_rows, write_bytes, write_rows

CONFIG = {"experiment": "toy", "profile": "quick", "settings": {"seeds": 2, "epochs": 5}}
CELLS = [{"precision": p, "seed": s} for p in (1.0, 10.0) for s in (0, 1)]


def test_rows_come_back_in_the_order_of_the_cells(tmp_path):
    run = RunFolder(tmp_path / "toy", CONFIG)
    run.add_rows([CELLS[2] | {"value": 2.0}, CELLS[0] | {"value": 0.0}], [CELLS[2], CELLS[0]])
    assert [row["value"] for row in run.rows(CELLS)] == [0.0, 2.0]
    assert run.unfinished(CELLS) == [CELLS[1], CELLS[3]]
    run.add_rows([CELLS[1] | {"other": "text"}], [CELLS[1]])
    assert run.rows(CELLS)[1] == CELLS[1] | {"value": None, "other": "text"}
    run.add_rows([CELLS[1] | {"other": "new"}], [CELLS[1]])
    assert [row["other"] for row in run.rows(CELLS)] == [None, "new", None]


def test_weights_keep_numbers_and_summary(tmp_path):
    run = RunFolder(tmp_path, CONFIG)
    params = {"w": torch.randn(1, 3, 2), "b": torch.randn(1, 1, 2).expand(1, 4, 2)}
    assert not run.has_weights(CELLS[0])
    run.save_member(CELLS[0], params, {"status": "finished", "elbo": -1.5})
    loaded, summary = run.load_member(CELLS[0])
    assert summary == {"status": "finished", "elbo": -1.5}
    assert all(torch.equal(loaded[name], params[name]) for name in params)


def test_a_broken_weights_file_is_one_line(tmp_path):
    run = RunFolder(tmp_path, CONFIG)
    write_bytes(tmp_path / "weights" / f"{cell_key(CELLS[0])}.safetensors", b"\x80\x04not a safe file")
    with pytest.raises(vs.RunError, match="remove it to train this member anew"):
        run.load_member(CELLS[0])


def test_other_settings_are_refused_but_more_seeds_are_not(tmp_path):
    RunFolder(tmp_path, CONFIG)
    RunFolder(tmp_path, CONFIG | {"settings": {"seeds": 9, "epochs": 5}})
    with pytest.raises(vs.RunError, match=r"other settings \(epochs was 5, is 6\); choose another --out"):
        RunFolder(tmp_path, CONFIG | {"settings": {"seeds": 2, "epochs": 6}})
    with pytest.raises(vs.RunError, match="holds a run of 'toy', not of 'other'"):
        RunFolder(tmp_path, CONFIG | {"experiment": "other"})


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file.bin"
    write_bytes(path, b"old")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(vs.RunError, match="no space left on device"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(vs.RunError, match="cannot write"):
        RunFolder(tmp_path / "file" / "run", CONFIG)


def test_a_broken_table_is_one_line(tmp_path):
    (tmp_path / "results.parquet").write_bytes(b"not parquet")
    with pytest.raises(vs.RunError, match="cannot read"):
        read_rows(tmp_path / "results.parquet")
    assert read_rows(tmp_path / "absent.parquet") == []
    write_rows(tmp_path / "results.parquet", [{"a": 1}, {"b": "x"}])
    assert read_rows(tmp_path / "results.parquet") == [{"a": 1, "b": None}, {"a": None, "b": "x"}]


def test_a_stack_that_was_killed_at_its_very_end_is_ended(tmp_path):
    run = RunFolder(tmp_path, CONFIG)
    run.begin(CELLS[:2])
    run.save_member(CELLS[0], {"w": torch.ones(1)}, {})
    run.tidy()
    assert run.pending_stack(CELLS) == CELLS[:2]  # one is missing: it goes on
    run.save_member(CELLS[1], {"w": torch.ones(1)}, {})
    run.tidy()
    assert not (tmp_path / "unfinished.json").exists()
