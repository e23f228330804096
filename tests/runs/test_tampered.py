"""Every file of a run folder, damaged or exchanged: the same members as before, or one line; never other members."""

import json
import os
import random
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import vaescope as vs
from vaescope.adapters.run import members_of
from vaescope.jobs.tracking import read_run
from vaescope.runs.files import read_rows, read_tensors, write_rows
from vaescope.training import NoProgress

X = np.random.default_rng(0).normal(size=(80, 4))
FLIPS = max(40, int(os.environ.get("VAESCOPE_FUZZ", "0")) // 100)
FILES = ["config.json", "history.parquet", "results.parquet", "weights", "unfinished.json", "unfinished.safetensors"]


class Interrupted(BaseException):
    pass


class Interrupt(NoProgress):
    def __init__(self, at):
        self.at, self.messages = at, []

    def epoch(self, done, **_):
        if done == self.at:
            raise Interrupted

    def message(self, text):
        self.messages.append(text)


def fit(folder, at=None, **options):
    progress = Interrupt(at)
    common = {"latent_dim": 2, "hidden": (4,), "seeds": 2, "epochs": 4, "compile": "never", "checkpoint_seconds": 0.0}
    return vs.fit(X, out=folder, progress=progress, **common | options).members, progress.messages


def content(members):
    return sorted(
        (m.seed, m.precision, m.best_elbo, m.model.networks.activation, dict(m.history), *bits(m)) for m in members
    )


def bits(member):
    return [member.params[name].numpy().tobytes() for name in sorted(member.params)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, content(fit(folder)[0])


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    with pytest.raises(Interrupted):
        fit(folder, at=2)
    return folder


@pytest.fixture
def copy(finished, interrupted, tmp_path):
    """A copy of the run that has a file."""
    copies = iter(range(1000))

    def make(name):
        source = interrupted if name.startswith("unfinished") else finished[0]
        folder = tmp_path / str(next(copies))
        shutil.copytree(source, folder)
        return folder, sorted((folder / "weights").glob("*.safetensors"))[0] if name == "weights" else folder / name

    return make


def outcome(folder, use):
    """`refused` with one line, or the members."""
    try:
        return content(use(folder))
    except (vs.InputError, vs.RunError) as error:
        return "refused" if "\n" not in str(error) else str(error)


def resume(folder):
    return fit(folder)[0]


def uses(name):
    return [resume] if name.startswith("unfinished") else [members_of, resume]


def flipped(file, seed):
    data, chance = bytearray(file.read_bytes()), random.Random(seed)
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


@pytest.mark.parametrize("name", FILES)
def test_no_flipped_bit_changes_a_member(copy, finished, name):
    seen = set()
    for seed in range(FLIPS // 4 if name.startswith("unfinished") else FLIPS):
        folder, file = copy(name)
        flipped(file, seed)
        found = outcome(folder, uses(name)[seed % len(uses(name))])
        assert found in ("refused", finished[1])
        seen.add(found == "refused")
        shutil.rmtree(folder)
    assert (True in seen) != name.startswith("unfinished")  # where training starts again nothing is refused


@pytest.mark.parametrize("name", FILES)
def test_files_cut_off_are_refused_or_made_again(copy, finished, name):
    for keep in (0, 1, 7, 100, -1):
        for use in uses(name):
            folder, file = copy(name)
            file.write_bytes(file.read_bytes()[:keep])
            assert outcome(folder, use) in ("refused", finished[1])


@pytest.mark.skipif(os.name == "nt", reason="pipes and links of POSIX")
@pytest.mark.parametrize("name", FILES)
def test_what_is_not_a_file_is_neither_waited_for_nor_read_without_end(copy, finished, name):
    replacements = {
        "folder": lambda file: file.mkdir(),
        "pipe": os.mkfifo,
        "device": lambda file: file.symlink_to("/dev/zero"),
        "loop": lambda file: file.symlink_to(file),
    }
    for replace in replacements.values():
        for use in uses(name):
            folder, file = copy(name)
            file.unlink()
            replace(file)
            assert outcome(folder, use) == "refused"
    for use in uses(name):
        folder, file = copy(name)
        file.rename(folder / "elsewhere")
        file.symlink_to(folder / "elsewhere")
        assert outcome(folder, use) == finished[1]


def test_weights_of_another_member_or_run_are_refused(copy, finished, tmp_path):
    folder, _ = copy("weights")
    first, second = sorted((folder / "weights").glob("*.safetensors"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(vs.RunError, match="has the weights of member precision=1_beta=1_seed=1; remove it"):
        members_of(folder)
    fit(tmp_path / "other", activation="tanh")
    for file in (first, second):
        shutil.copy(tmp_path / "other" / "weights" / file.name, file)
    for use in (members_of, resume):
        with pytest.raises(vs.RunError, match="has the weights of a run with other settings; remove it"):
            use(folder)
    first.unlink()
    second.unlink()
    assert content(resume(folder)) == finished[1]  # trained again, as the message says


@pytest.mark.parametrize("name", ["results.parquet", "history.parquet"])
def test_tables_of_a_run_with_other_settings_are_refused(copy, finished, tmp_path, name):
    fit(tmp_path / "other", activation="tanh")  # the same members, so that the rows fit
    for use in (members_of, resume, read_run):
        folder, file = copy(name)
        shutil.copy(tmp_path / "other" / name, file)
        with pytest.raises(vs.RunError, match="its rows are of a run with other settings; remove it to compute it"):
            use(folder)
    rows = read_rows(file)
    file.unlink()
    assert [member[5:] for member in content(resume(folder))] == [member[5:] for member in finished[1]]
    write_rows(file, rows)  # as version 0.2.0 wrote them
    assert [member[5:] for member in content(members_of(folder))] == [member[5:] for member in finished[1]]


def test_the_owner_of_a_table_is_part_of_its_checksum(tmp_path):
    write_rows(tmp_path / "x.parquet", [{"seed": 0}], "run 0123456789")
    assert read_rows(tmp_path / "x.parquet") == read_rows(tmp_path / "x.parquet", "run 0123456789") == [{"seed": 0}]
    content = (tmp_path / "x.parquet").read_bytes()
    (tmp_path / "x.parquet").write_bytes(content.replace(b"run 0123456789", b"run 0123456788"))
    with pytest.raises(vs.RunError, match="it does not have its checksum"):
        read_rows(tmp_path / "x.parquet", "run 0123456788")


def test_settings_that_were_edited_do_not_describe_other_weights(copy, finished):
    folder, file = copy("config.json")
    config = json.loads(file.read_text())
    config["settings"]["model"]["activation"] = "tanh"
    file.write_text(json.dumps(config))
    assert outcome(folder, members_of) == "refused"
    config["settings"]["model"]["activation"] = "smooth_leaky_relu"
    config["settings"]["samples"] = 80.0  # the same settings, written in another way and another order
    file.write_text(json.dumps(dict(reversed(config.items()))))
    assert outcome(folder, resume) == outcome(folder, members_of) == finished[1]


def without_checksum(file, change):
    tensors, metadata = read_tensors(file)
    save_file({name: value.contiguous() for name, value in change(tensors).items()}, file, metadata=metadata)


def test_weights_without_a_checksum_are_read_if_they_fit_the_model(copy, finished):
    folder, file = copy("weights")
    without_checksum(file, lambda tensors: tensors)
    with safe_open(file, framework="pt") as opened:
        assert "checksum" not in opened.metadata()
    assert outcome(folder, members_of) == finished[1]
    for change in (
        lambda value: value.half(),
        lambda value: value.double(),
        lambda value: value.int(),
        lambda value: value * float("nan"),
        lambda value: torch.cat([value, value], -1),
        lambda value: value[:0],
        lambda value: torch.tensor(1.0),
    ):
        folder, file = copy("weights")
        without_checksum(file, lambda tensors, change=change: {k: change(v) for k, v in tensors.items()})
        for use in (members_of, resume):
            with pytest.raises(vs.RunError, match=r"are not those of the model in config\.json; remove its"):
                use(folder)
    folder, file = copy("weights")
    without_checksum(file, lambda tensors: {})
    assert outcome(folder, members_of) == "refused"


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**40, 2**63, 2**64 - 1])
def test_absurd_header_lengths_are_refused(copy, length):
    folder, file = copy("weights")
    file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
    assert outcome(folder, members_of) == "refused"


ROWS = {
    "text as numbers": lambda rows: [row | {"seed": str(row["seed"])} for row in rows],
    "numbers as lists": lambda rows: [{name: [value] for name, value in row.items()} for row in rows],
    "other columns": lambda rows: [{"a": 1}],
    "every row twice": lambda rows: rows + rows,
    "no seed": lambda rows: [row | {"seed": None} for row in rows],
    "text as score": lambda rows: [row | {"elbo": "high"} for row in rows],
}


@pytest.mark.parametrize("change", ROWS)
@pytest.mark.parametrize("name", ["results.parquet", "history.parquet"])
def test_other_rows_are_refused_or_change_no_weights(copy, finished, name, change):
    expected = [member[5:] for member in finished[1]]
    for use in (members_of, resume):
        folder, file = copy(name)
        write_rows(file, ROWS[change](read_rows(file)))
        found = outcome(folder, use)
        assert found == "refused" or [member[5:] for member in found] == expected
        if name == "history.parquet" and change == "every row twice":
            assert found == "refused"


def test_a_damaged_checkpoint_is_named_and_training_starts_again(copy, finished):
    folder, file = copy("unfinished.safetensors")
    assert fit(folder)[1] == ["Resuming after epoch 1."]
    folder, file = copy("unfinished.safetensors")
    data = file.read_bytes()
    file.write_bytes(data[:-8] + bytes(8 * [data[-1] ^ 255]))
    members, messages = fit(folder)
    assert messages == ["The checkpoint cannot be read: training starts again."]
    assert content(members) == finished[1]
    folder, file = copy("unfinished.safetensors")
    without_checksum(file, lambda tensors: {name: value * 0 for name, value in tensors.items()})
    assert content(fit(folder)[0]) == finished[1]


def test_a_stack_that_names_a_member_twice_trains_it_once(copy, finished):
    folder, file = copy("unfinished.json")
    cells = json.loads(file.read_text())
    file.write_text(json.dumps(cells[:1] * 2))
    assert content(fit(folder)[0]) == finished[1]


def test_names_of_folders_are_not_columns(tmp_path):
    write_rows(tmp_path / "seed=5" / "lr=x" / "results.parquet", [{"seed": 3}])
    assert read_rows(tmp_path / "seed=5" / "lr=x" / "results.parquet") == [{"seed": 3}]


def test_rows_of_every_kind_have_a_checksum(tmp_path):
    rows = [
        {"a": 1, "b": 0.5, "c": "text", "d": True, "e": [1.0, None], "f": None, "g": {"h": 1}, "i": b"x", "j": "é"},
        {"a": None, "b": float("inf"), "c": None, "d": None, "e": [], "f": None, "g": None, "i": None, "k": [["x"]]},
    ]
    write_rows(tmp_path / "x.parquet", rows)
    names = dict.fromkeys(name for row in rows for name in row)
    assert read_rows(tmp_path / "x.parquet") == [{name: row.get(name) for name in names} for row in rows]
    write_rows(tmp_path / "x.parquet", [])
    assert read_rows(tmp_path / "x.parquet") == []
