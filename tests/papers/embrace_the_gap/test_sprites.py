"""The published network on the published generator, as small as it gets."""

from dataclasses import replace

import numpy as np

from vaescope.models import ConvNetworks
from vaescope.papers.embrace_the_gap.sprites import EXPERIMENT, SpritesExperiment, source
from vaescope.papers.embrace_the_gap.sprites_results import FACTORS, STEPS
from vaescope.papers.run import reproduce
from vaescope.runs.files import read_rows
from vaescope.training import NoProgress


def test_the_paper_profile_runs(tmp_path):
    paper = EXPERIMENT.profiles["paper"]
    small = replace(paper, seeds=1, samples=120, epochs=2, size=32)
    experiment = type("Small", (SpritesExperiment,), {"profiles": {"paper": small}})()
    assert isinstance(EXPERIMENT.model({"seed": 0}, paper).networks, ConvNetworks)
    claims = reproduce(experiment, profile="paper", out=tmp_path, monitor=NoProgress())
    assert len(claims) == 5
    (row,) = read_rows(tmp_path / "sprites" / "results.parquet")
    assert len(row["along_mcc"]) == len(row["along_contrast"]) == 2
    assert len(row["interpolations"]) == len(FACTORS) * STEPS * 3 * 32 * 32
    assert 0 < row["mcc_floor"] < 0.5
    assert all(np.isfinite(row[f"mcc_{name}"]) for name in FACTORS)


def test_sources_differ_by_profile():
    published, distributions = source(0, EXPERIMENT.profiles["paper"])
    assert {(f.low, f.high) for f in published.factors} == {(0.0, 1.0)}
    assert len({(d.a, d.b) for d in distributions.values()}) == 4
    inside, _ = source(0, EXPERIMENT.profiles["quick"])
    x, y, scale, hue = inside.factors
    assert min(x.low, y.low, 1 - x.high, 1 - y.high) >= scale.high  # the circle around a sprite stays in the frame
    assert hue.high < 1
