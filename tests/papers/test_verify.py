"""Stored verdicts: registered before a run, judged again from tables, and every changed file is found."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from vaescope.cli import dispatch
from vaescope.core.errors import InputError, RunError
from vaescope.runs.files import read_json, read_rows, write_json, write_rows, write_text
from vaescope.training import NoProgress
from vaescope_papers.catalogue import find_experiment
from vaescope_papers.claims import ClaimSpec, Statement, members_converged
from vaescope_papers.criteria import Bound, at_most
from vaescope_papers.experiment import RunOptions
from vaescope_papers.registration import differences, fingerprint, protocol_of, read_registration, register
from vaescope_papers.run import redraw, reproduce, write_index
from vaescope_papers.verify import read_run, verify

NAME = "principal-axes"
OPTIONS = RunOptions(seeds=2, changes={"samples": 300})


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    out = tmp_path_factory.mktemp("quick")
    reproduce(find_experiment(NAME).load(), OPTIONS, out=out, progress=NoProgress())
    write_index(out, "quick")
    return out


@pytest.fixture
def folder(stored, tmp_path):
    """A copy of a finished run, to be damaged."""
    return shutil.copytree(stored, tmp_path / "quick")


def test_an_untouched_folder_is_identical(folder, capsys):
    found = verify(folder)
    assert found.differences == ()
    assert (found.experiments, found.claims) == (1, len(read_json(folder / NAME / "claims.json")))
    assert verify(folder / NAME).differences == ()
    assert dispatch(["verify", str(folder)]) == 0
    assert "identical" in capsys.readouterr().out


def damaged_table(folder):
    rows = read_rows(folder / NAME / "results.parquet")
    name = next(key for key, value in rows[0].items() if isinstance(value, float))
    write_rows(folder / NAME / "results.parquet", [{**rows[0], name: rows[0][name] * (1 + 1e-6)}, *rows[1:]])


def missing_row(folder):
    rows = read_rows(folder / NAME / "results.parquet")
    write_rows(folder / NAME / "results.parquet", rows[1:])


def additional_row(folder):
    rows = read_rows(folder / NAME / "results.parquet")
    write_rows(folder / NAME / "results.parquet", [*rows, {**rows[0], "seed": 99}])


def changed_json(file, change):
    def damage(folder):
        data = read_json(folder / file)
        change(data)
        write_json(folder / file, data)

    return damage


def other_verdict(claims):
    claims[0]["verdict"] = "refuted" if claims[0]["verdict"] == "holds" else "holds"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damaged_table, "results.parquet has another hash"),
        (missing_row, "results.parquet has no row for seed=0"),
        (additional_row, "results.parquet has a row that the settings do not have: seed=99"),
        (changed_json(f"{NAME}/claims.json", other_verdict), "claims.json: verdict is stored as"),
        (changed_json(f"{NAME}/claims.json", lambda claims: claims.pop()), "claims are stored, there are"),
        (changed_json(f"{NAME}/protocol.json", lambda p: p.update(hash="0")), "does not have the hash beside it"),
        (lambda folder: (folder / NAME / "protocol.json").unlink(), "protocol.json: there is none"),
        (lambda folder: write_text(folder / NAME / "report.html", "<p>All hold.</p>"), "report.html does not show"),
        (
            changed_json("verdicts.json", lambda d: other_verdict(d["experiments"][NAME]["claims"])),
            "verdicts.json: principal-axes: verdict is stored as",
        ),
        (lambda folder: (folder / "verdicts.json").unlink(), "verdicts.json: there is none"),
    ],
)
def test_every_change_is_found(folder, damage, words, capsys):
    damage(folder)
    assert any(words in line for line in verify(folder).differences)
    assert dispatch(["verify", str(folder)]) == 1
    assert words in capsys.readouterr().out


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no experiment with results\.parquet"):
        verify(tmp_path)
    with pytest.raises(InputError, match="is no folder"):
        verify(tmp_path / "none")
    with pytest.raises(RunError, match=r"has no results\.parquet"):
        read_run(tmp_path)


def test_redrawing_judges_again_trains_nothing_and_keeps_the_figure_of_training(folder, monkeypatch):
    page = folder / NAME / "report.html"
    before, claims = page.read_text(), read_json(folder / NAME / "claims.json")
    for file in (page, folder / NAME / "claims.json"):
        file.unlink()
    (folder / NAME / "figures" / "training.svg").write_text("<svg><script>alert(1)</script></svg>")
    monkeypatch.setattr("vaescope_papers.run._solve_missing", None)
    assert [claim.verdict for claim in redraw(folder / NAME)] == [claim["verdict"] for claim in claims]
    assert read_json(folder / NAME / "claims.json") == claims
    assert "data:image/svg+xml;base64" in page.read_text()
    assert "<script>alert" not in page.read_text()
    (folder / NAME / "figures" / "training.svg").unlink()
    redraw(folder / NAME)
    assert page.read_text() == before


def test_redrawing_from_the_command_line(folder, capsys):
    (folder / "verdicts.json").unlink()
    assert dispatch(["reproduce", "--all", "--redraw", "--out", str(folder)]) == 0
    assert NAME in capsys.readouterr().out
    assert verify(folder).differences == ()


# the protocol ---------------------------------------------------------------------------------


def protocol(**changes):
    defaults = {"sentence": "S.", "source": "s", "measure": lambda r, _: [], "criterion": Bound("v", at_most(1))}
    return protocol_of([ClaimSpec(**defaults | changes)], find_experiment(NAME).load().quick)


def at(hour):
    return datetime(2026, 1, 1, hour, tzinfo=UTC)


def test_the_hash_depends_on_everything_that_is_declared():
    hashes = [
        fingerprint(protocol(**changes))
        for changes in (
            {},
            {"sentence": "T."},
            {"criterion": Bound("v", at_most(2))},
            {"family": "Tab. 1"},
            {"looks": (5, 10)},
            {"robust_over": (0.5,)},
            {"requires": (members_converged(),)},
            {"kind": Statement.MATHEMATICAL},
        )
    ]
    assert len(set(hashes)) == len(hashes)
    assert fingerprint(protocol(note="Words.")) == hashes[0]


def test_a_protocol_from_before_the_results_says_when_it_was_changed(tmp_path):
    first = register(tmp_path, protocol(), after_results=False, now=at(1))
    assert first.words == "Settings and claims were registered on 2026-01-01 01:00 UTC, before there were results."
    assert register(tmp_path, protocol(), after_results=True, now=at(2)) == first  # nothing has changed
    changed = register(tmp_path, protocol(criterion=Bound("v", at_most(2))), after_results=True, now=at(3))
    assert changed.words.endswith("Changed on 2026-01-01 03:00 UTC, after results were known: demand of: S.")
    assert read_registration(tmp_path) == changed


def test_a_protocol_from_after_the_results_says_so(tmp_path):
    found = register(tmp_path, protocol(), after_results=True, now=at(1))
    assert found.words == "The claims were written after the results were known."


def test_differences_of_protocols_in_words():
    before, after = protocol(), protocol(sentence="T.")
    assert differences(before, after) == ["claim left out: S.", "claim added: T."]
    more = {**before, "settings": {**before["settings"], "seeds": 99}}
    assert differences(before, more)[0].endswith("→ 99")


def test_a_run_registers_before_it_computes(stored, tmp_path, monkeypatch):
    assert "before there were results" in read_registration(stored / NAME).words
    assert "before there were results" in (stored / NAME / "report.html").read_text()
    folder = shutil.copytree(stored, tmp_path / "copy")
    more = replace(OPTIONS, seeds=3)
    reproduce(find_experiment(NAME).load(), more, out=folder, progress=NoProgress())
    words = read_registration(folder / NAME).words
    assert "after results were known: seeds 2 → 3." in words
    assert json.loads((folder / NAME / "protocol.json").read_text())["changes"]
