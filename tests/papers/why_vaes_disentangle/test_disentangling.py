"""The members that local-nonlinearity and orthogonality share."""

from dataclasses import replace

import pytest
import torch

from tests.papers.planted import finished
from vaescope.core.errors import RunError
from vaescope.data.catalogue import official_file
from vaescope.distributions.likelihoods import gaussian_log_likelihood
from vaescope.models import ConvNetworks
from vaescope.objectives import beta_elbo
from vaescope.objectives.elbo import describe
from vaescope.training import NoProgress
from vaescope_papers.experiment import RunOptions
from vaescope_papers.run import reproduce
from vaescope_papers.why_vaes_disentangle import local_nonlinearity, orthogonality
from vaescope_papers.why_vaes_disentangle.disentangling import (
    OBJECTIVES,
    TITLES,
    DisentanglingCell,
    ImageSet,
    compare_models,
)

QUICK, LAPTOP, FULL = (orthogonality.EXPERIMENT.profile(name) for name in ("quick", "laptop", "paper"))
TINY = {"samples": 200, "epochs": 1, "size": 16, "colour_size": 16, "hidden": (20,), "points": 2, "draws": 60}
RENDERED = [ImageSet("dsprites", False), ImageSet("3dshapes", False)]


class Counting(NoProgress):
    def __init__(self):
        self.members = 0

    def begin(self, members, epochs):
        self.members += members


def test_the_published_networks_run_and_members_are_trained_once(tmp_path):
    """At toy size, with convolutions for images in colour; the second experiment imports the members of the first."""
    progress = Counting()
    options = RunOptions("paper", seeds=1, changes=TINY | {"official_files": False, "squared_error": ("dsprites",)})
    for experiment in (local_nonlinearity.EXPERIMENT, orthogonality.EXPERIMENT):
        cell = DisentanglingCell("3dshapes", False, "vae", 0)
        assert isinstance(experiment.model(cell, experiment.settings(options)).networks, ConvNetworks)
        assert len(reproduce(experiment, options, out=tmp_path, progress=progress)) >= 4
    assert progress.members == 9  # three objectives on two image sets and one of them with squared error, once
    folders = [tmp_path / name / "weights" for name in ("local-nonlinearity", "orthogonality")]
    first, second = (sorted(file.name for file in folder.iterdir()) for folder in folders)
    assert first == second


def test_official_files_are_used_if_the_settings_ask_for_them(tmp_path, monkeypatch):
    experiment = orthogonality.EXPERIMENT
    monkeypatch.delenv("VAESCOPE_DATA", raising=False)
    squared = [ImageSet(data, False, "gaussian") for data in ("dsprites", "3dshapes")]
    assert experiment.image_sets(FULL) == [*RENDERED, *squared]
    (tmp_path / "3dshapes.h5").touch()
    monkeypatch.setenv("VAESCOPE_DATA", str(tmp_path))
    assert experiment.image_sets(FULL) == [*RENDERED, *squared, ImageSet("3dshapes", True)]
    assert {cell.images for cell in experiment.cells(FULL)} == set(experiment.image_sets(FULL))
    assert experiment.image_sets(QUICK) == RENDERED
    assert official_file("mpi3d") is None
    titles = [images.title for images in experiment.image_sets(replace(FULL, squared_error=()))]
    assert titles[1:] == ["rendered 3DShapes", "official 3DShapes"]


def test_a_missing_official_file_is_named(monkeypatch):
    monkeypatch.delenv("VAESCOPE_DATA", raising=False)
    with pytest.raises(RunError, match=r"the official file of MPI3D is missing; set VAESCOPE_DATA"):
        orthogonality.EXPERIMENT.data(DisentanglingCell("mpi3d", True, "vae", 0), replace(FULL, samples=10))


def test_smaller_images_keep_the_published_balance():
    """At 32 x 32 the log-likelihood counts four times, also for the β-TCVAE; at 64 x 64 and on official files, once."""
    experiment = orthogonality.EXPERIMENT
    cells = {objective: DisentanglingCell("dsprites", False, objective, 0) for objective in OBJECTIVES}
    rise = "likelihood_weight=4.0, rise=WeightRise(start=0.125, hold=1000, warmup=1000)"
    assert {repr(experiment.objective(cells[o], 100, LAPTOP)) for o in ("vae", "beta-vae")} == {
        f"Weighted(beta_elbo, {rise})"
    }
    tc = experiment.objective(cells["beta-tcvae"], 100, LAPTOP)
    assert describe(tc) == f"Weighted(BetaTC(samples=100, sampling='stratified'), {rise})"
    assert experiment.objective(cells["vae"], 100, FULL) is beta_elbo
    official = replace(cells["vae"], official=True)
    assert experiment.objective(official, 100, replace(LAPTOP, weight_start=1.0)) is beta_elbo
    assert {experiment.member(cell, 0, LAPTOP).beta for cell in cells.values()} == {1.0, 6.0}


def test_squared_error_is_the_loss_of_the_paper():
    """Eq. 5: with γ² = 2 the negative log-likelihood is the squared error, up to a constant."""
    cell = DisentanglingCell("dsprites", False, "vae", 0, "gaussian")
    spec, model = orthogonality.EXPERIMENT.member(cell, 0, LAPTOP), orthogonality.EXPERIMENT.model(cell, LAPTOP)
    assert model.likelihood == "gaussian"
    error = torch.tensor([0.0, 3.0])
    found = gaussian_log_likelihood(error, 10, torch.tensor(spec.precision))
    torch.testing.assert_close(found[0] - found[1], torch.tensor(3.0))
    assert cell.images.title == "rendered dSprites with squared error"


def test_every_published_cell_without_official_images_has_a_row_that_says_so():
    cell = DisentanglingCell("dsprites", False, "vae", 0)
    rendered, official = finished(cell, 1.0), finished(replace(cell, official=True), 2.0)

    def values(own):
        return [r.measured for r in own]

    rows = compare_models([rendered], values, lambda data, objective: None if data == "3dfaces" else 4.0)
    missing = [row for row in rows if row.setting.endswith("needs the official file")]
    assert [row.setting.split(",")[0] for row in missing] == [
        f"official {TITLES[data]}" for data in ("dsprites", "3dshapes", "mpi3d") for _ in OBJECTIVES
    ]
    assert all((row.ours, row.published, row.ratio) == (None, 4.0, None) for row in missing)
    known = compare_models([rendered, official], values, lambda data, objective: 4.0)
    assert len([row for row in known if "needs" in row.setting]) == 9
    assert next(row for row in known if row.setting == "official dSprites, VAE").ratio == 0.5
