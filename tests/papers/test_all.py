"""Every experiment of the catalogue, end to end at toy size: complete folders, nothing trained twice."""

import json
from dataclasses import fields, replace

import pytest

from vaescope.papers.catalogue import CATALOGUE, PROFILES
from vaescope.papers.run import reproduce
from vaescope.runs.files import read_rows
from vaescope.training import NoProgress

TOY = {"seeds": 1, "samples": 200, "epochs": 2, "held_epochs": 1, "exact_points": 4, "size": 16}
TOY |= {"latents": (3, 4), "points": 2, "draws": 60, "step": 45.0}


class NoTraining(NoProgress):
    def begin(self, members, epochs):
        raise AssertionError("trained again")


def toy(entry):
    """The experiment with tiny settings; everything else as it is."""
    experiment = entry.load()
    settings = experiment.profiles["quick"]
    small = {name: value for name, value in TOY.items() if name in {f.name for f in fields(settings)}}
    cls = type(experiment)
    tiny = type(cls.__name__, (cls,), {"profiles": dict.fromkeys(PROFILES, replace(settings, **small))})
    return tiny()


@pytest.fixture(scope="module", params=CATALOGUE, ids=lambda e: e.name)
def done(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    experiment = toy(request.param)
    claims = reproduce(experiment, profile="quick", out=out, monitor=NoProgress())
    return experiment, out, claims


def test_the_folder_is_complete_and_every_claim_has_a_verdict(done):
    experiment, out, claims = done
    folder = out / experiment.name
    rows = read_rows(folder / "results.parquet")
    assert len(rows) == len(experiment.cells(experiment.profiles["quick"]))
    assert len(claims) >= 2
    stored = json.loads((folder / "claims.json").read_text())
    assert [c["holds"] for c in stored] == [c.holds for c in claims]
    for claim in stored:
        assert claim["sentence"].endswith(".")
        assert claim["demand"]
        assert claim["source"]
        assert claim["measured"]
    assert list((folder / "figures").glob("*.svg"))
    assert "<svg" in (folder / "report.html").read_text()


def test_a_second_run_trains_and_measures_nothing(done):
    experiment, out, _ = done
    before = read_rows(out / experiment.name / "results.parquet")
    experiment.measure = lambda *_: (_ for _ in ()).throw(AssertionError("measured again"))
    reproduce(experiment, profile="quick", out=out, monitor=NoTraining())
    assert read_rows(out / experiment.name / "results.parquet") == before


def test_both_profiles_exist_and_quick_is_smaller():
    for entry in CATALOGUE:
        experiment = entry.load()
        assert experiment.name == entry.name
        quick, paper = (experiment.profiles[name] for name in PROFILES)
        assert quick.seeds * quick.samples < paper.seeds * paper.samples
