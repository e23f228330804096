"""Every experiment end to end at toy size: complete folders, nothing computed twice, interruptions, divergence."""

import json
import shutil
from dataclasses import fields, replace

import pytest
import torch

from vaescope.core.serialization import plain_fields
from vaescope.models import TrainingSummary
from vaescope.runs import RunFolder
from vaescope.runs.files import read_rows, read_tensors, write_rows
from vaescope.training import NoProgress
from vaescope_papers.catalogue import PROFILES, experiments
from vaescope_papers.embrace_the_gap import elbo_gap
from vaescope_papers.experiment import Context, RunOptions
from vaescope_papers.results import from_rows
from vaescope_papers.run import reproduce
from vaescope_papers.trained import TrainedExperiment

TOY = {
    "seeds": 1,
    "samples": 200,
    "epochs": 3,
    "held_epochs": 2,
    "exact_points": 2,
    "precisions": (1e1, 1e5),
    "size": 16,
    "colour_size": 16,
    "hidden": (16,),
    "latents": (3, 4),
    "points": 2,
    "draws": 60,
    "step": 45.0,
    "flow_steps": 5,
    "strengths": (0.0, 1.0),
    "start": "random",  # tests/starts interrupt the other one
}
INFOS = experiments()


def toy(experiment):
    """Options that make an experiment tiny, with at least two cells."""
    names = {field.name for field in fields(experiment.quick)}
    options = RunOptions(changes={name: value for name, value in TOY.items() if name in names})
    single = len(experiment.cells(experiment.settings(options))) == 1
    return replace(options, seeds=2) if single else options


def config_of(experiment, options):
    """What `reproduce` writes to config.json."""
    settings = experiment.settings(options)
    return {"experiment": experiment.name, "profile": options.profile, "settings": plain_fields(settings)}


class NoTraining(NoProgress):
    def begin(self, members, epochs):
        raise AssertionError("trained again")


class Interrupt(NoProgress):
    """Stops the process, as Ctrl-C does, after so many epochs."""

    def __init__(self, epochs):
        self.epochs_left = epochs

    def epoch(self, done, **state):
        self.epochs_left -= 1
        if not self.epochs_left:
            raise KeyboardInterrupt


class Messages(NoProgress):
    def __init__(self):
        self.texts = []

    def message(self, text):
        self.texts.append(text)


@pytest.fixture(scope="module", autouse=True)
def few_precisions():
    """elbo-gap at every fourth of its precisions."""
    with pytest.MonkeyPatch.context() as patch:
        few = {mixing: (*values[:-1:4], values[-1]) for mixing, values in elbo_gap.PRECISIONS.items()}
        patch.setattr(elbo_gap, "PRECISIONS", few)
        yield


@pytest.fixture(scope="module", params=INFOS, ids=lambda info: info.name)
def done(request, tmp_path_factory):
    """An experiment after a complete run."""
    out = tmp_path_factory.mktemp("runs")
    experiment = request.param.load()
    options = toy(experiment)
    claims = reproduce(experiment, options, out=out, progress=NoProgress())
    return experiment, options, out, claims


def test_the_folder_is_complete_and_every_claim_has_a_verdict(done):
    experiment, options, out, claims = done
    folder = out / experiment.name
    rows = read_rows(folder / "results.parquet")
    assert len(rows) == len(experiment.cells(experiment.settings(options)))
    assert len(claims) >= 2
    stored = json.loads((folder / "claims.json").read_text())
    assert [claim["verdict"] for claim in stored] == [claim.verdict for claim in claims]
    for claim in stored:
        assert claim["sentence"].endswith(".")
        assert claim["reason"].endswith(".")
        assert claim["demand"]
        assert claim["source"]
        assert claim["measured"]
    assert list((folder / "figures").glob("*.svg"))
    assert "<svg" in (folder / "report.html").read_text()


def test_a_second_run_trains_and_measures_nothing(done, monkeypatch):
    experiment, options, out, claims = done
    before = read_rows(out / experiment.name / "results.parquet")

    def solve(*args):
        raise AssertionError("solved again")

    monkeypatch.setattr(experiment, "solve", solve)
    again = reproduce(experiment, options, out=out, progress=NoTraining())
    assert [claim.to_data() for claim in again] == [claim.to_data() for claim in claims]
    assert read_rows(out / experiment.name / "results.parquet") == before


def test_any_member_may_be_missing(done):
    experiment, options, out, _ = done
    settings = experiment.settings(options)
    rows = read_rows(out / experiment.name / "results.parquet")
    results = from_rows(rows, experiment.cell_type, experiment.measured_type).finished
    all_but_one = [[*results[:index], *results[index + 1 :]] for index in range(len(results))]
    for incomplete in (*all_but_one, *([result] for result in results)):
        if incomplete:
            assert all(spec.judged(incomplete, settings).reason for spec in experiment.claims(settings))
            experiment.tables(incomplete, settings)
            experiment.comparisons(incomplete, settings)
    for incomplete in (results[1:], results[:-1], results[:1], results[-1:]):
        assert experiment.figures(incomplete or results, settings)


def test_a_diverged_member_is_reported_and_excluded(done, tmp_path):
    experiment, options, out, _ = done
    if not isinstance(experiment, TrainedExperiment):
        pytest.skip("trains nothing")
    shutil.copytree(out / experiment.name, tmp_path / experiment.name)
    victim = plant_diverged_member(experiment, options, tmp_path / experiment.name)
    claims = reproduce(experiment, options, out=tmp_path, progress=NoTraining())
    folder = tmp_path / experiment.name
    statuses = [row["status"] for row in read_rows(folder / "results.parquet")]
    assert statuses.count("diverged") == 1
    page = (folder / "report.html").read_text()
    assert "diverged at step 7; claims and figures do not include it" in page
    assert str(victim.seed) in page
    assert len(json.loads((folder / "claims.json").read_text())) == len(claims)
    assert list((folder / "figures").glob("*.svg"))


def plant_diverged_member(experiment, options, path):
    """Replace the first member of a finished run by one that diverged."""
    victim = experiment.cells(experiment.settings(options))[0]
    cell = plain_fields(victim)
    run = RunFolder(path, config_of(experiment, options))
    params, _ = run.load_member(cell)
    run.save_member(cell, params, TrainingSummary("diverged", epochs=1, best_epoch=0, diverged_at_step=7))
    rows = read_rows(path / "results.parquet")
    write_rows(path / "results.parquet", [row for row in rows if any(row[name] != cell[name] for name in cell)])
    history = read_rows(path / "history.parquet")
    later = [row for row in history if row["epoch"] > 1 and all(row[name] == cell[name] for name in cell)]
    write_rows(path / "history.parquet", [row for row in history if row not in later])
    for made in (path / "report.html", path / "claims.json", *(path / "figures").iterdir()):
        made.unlink()
    return victim


# interruptions --------------------------------------------------------------------------------


def trained_weights(experiment, folder, progress):
    """Train all cells, measure nothing, and return the weights of every file."""
    options = toy(experiment)
    settings = experiment.settings(options)
    cells = experiment.cells(settings)
    if experiment.name == "elbo-gap":
        cells = [cell for cell in cells if elbo_gap.is_trained(cell)]
    with RunFolder.locked(folder, config_of(experiment, options), checkpoint_seconds=0.0) as run:
        for _ in experiment.solve(cells, settings, Context(run, progress)):
            pass
    return {file.name: read_tensors(file)[0] for file in (folder / "weights").iterdir()}


def assert_same_weights(first, second):
    assert first.keys() == second.keys()
    for name, weights in first.items():
        assert weights.keys() == second[name].keys()
        assert all(torch.equal(weights[key], second[name][key]) for key in weights), name


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.name)
def test_an_interrupted_run_continues_to_the_same_bits(info, tmp_path, monkeypatch):
    experiment = info.load()
    if not isinstance(experiment, TrainedExperiment):
        pytest.skip("trains nothing")
    monkeypatch.setattr(experiment, "measure", lambda *_: None)
    undisturbed = trained_weights(experiment, tmp_path / "undisturbed", NoProgress())
    with pytest.raises(KeyboardInterrupt):
        trained_weights(experiment, tmp_path / "interrupted", Interrupt(2))
    resumed = Messages()
    continued = trained_weights(experiment, tmp_path / "interrupted", resumed)
    assert "Resuming after epoch 1." in resumed.texts
    assert_same_weights(undisturbed, continued)


@pytest.mark.parametrize(
    ("epochs", "message"),
    [
        (3, "Resuming after epoch 2."),  # in the second phase, before its first checkpoint: the first one is complete
        (4, "Resuming after epoch 1."),  # in the second phase
    ],
)
def test_elbo_gap_resumes_in_either_phase(epochs, message, tmp_path, monkeypatch):
    experiment = elbo_gap.EXPERIMENT
    monkeypatch.setattr(experiment, "measure", lambda *_: None)
    undisturbed = trained_weights(experiment, tmp_path / "undisturbed", NoProgress())
    with pytest.raises(KeyboardInterrupt):
        trained_weights(experiment, tmp_path / "interrupted", Interrupt(epochs))
    resumed = Messages()
    continued = trained_weights(experiment, tmp_path / "interrupted", resumed)
    assert resumed.texts[0] == message
    assert_same_weights(undisturbed, continued)


# profiles -------------------------------------------------------------------------------------


def test_all_profiles_exist_and_quick_is_the_smallest():
    for info in INFOS:
        experiment = info.load()
        assert experiment.name == info.name
        quick, laptop, paper = (experiment.profile(name) for name in PROFILES)
        sizes = [len(experiment.cells(profile)) * profile.samples for profile in (quick, laptop, paper)]
        assert sizes[0] < min(sizes[1:]), experiment.name
