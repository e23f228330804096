# %% [markdown]
# # A new experiment
#
# *Fifteen minutes.* Experiments end in claims with verdicts, resume where they stopped, and write a page. This one asks: does a VAE with
# more latents than sources leave the others at their prior?

# %%
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import vaescope as vs
from vaescope.core import randomness
from vaescope.data.dataset import split
from vaescope.models import VAE
from vaescope.report import figures
from vaescope.training import MemberSpec, NoProgress
from vaescope_papers.catalogue import ExperimentInfo
from vaescope_papers.claims import ClaimSpec
from vaescope_papers.criteria import Bound, at_most
from vaescope_papers.experiment import ReportFigure, RunOptions
from vaescope_papers.run import reproduce
from vaescope_papers.trained import FactorData, TrainedExperiment, TrainedSettings

# %% [markdown]
# **Settings, cells, measurements** are dataclasses: what is fixed, what varies, and what is measured of one member.


# %%
@dataclass(frozen=True)
class WidthSettings(TrainedSettings):
    latents: tuple[int, ...] = (4,)
    sources: int = 2


@dataclass(frozen=True)
class WidthCell:
    latent_dim: int
    seed: int


@dataclass(frozen=True)
class WidthMeasurement:
    in_use: int


# %% [markdown]
# **The experiment** says how a cell's model, data and measurement are made. Training, checkpoints and saving are done for you.


# %%
def surplus(results: Sequence, settings: WidthSettings) -> list[float]:
    return [abs(r.measured.in_use - settings.sources) for r in results]


class Width(TrainedExperiment[WidthSettings, WidthCell, WidthMeasurement]):
    info = ExperimentInfo("width", "", "Do unused latents stay at their prior?", "this tutorial")
    about = "Two sources, four latents."
    quick = WidthSettings(seeds=3, samples=2000, epochs=60, patience=60, learning_rate=5e-3)
    laptop = paper = quick
    cell_type = WidthCell
    measured_type = WidthMeasurement

    def cells(self, settings):
        return [WidthCell(d, seed) for d in settings.latents for seed in range(settings.seeds)]

    def model(self, cell, settings):
        return VAE.mlp(6, cell.latent_dim, hidden=(30, 30))

    def member(self, cell, data_index, settings):
        return MemberSpec(cell.seed, precision=100.0, data=data_index)

    def data(self, cell, settings):
        generator = randomness.generator(cell.seed, "sources")
        sources = vs.Normal().sample(settings.samples, settings.sources, generator=generator)
        weights = vs.Normal().sample(settings.sources, 6, generator=generator)
        noise = 0.1 * vs.Normal().sample(settings.samples, 6, generator=generator)
        parts = split(sources @ weights + noise)
        return FactorData(parts, sources[-len(parts.test) :])

    def measure(self, cell, member, data, settings):
        return WidthMeasurement(len(vs.regime.of_model(member, data.observations.test).used))

    def claims(self, settings):
        return [
            ClaimSpec(
                sentence="As many latents are in use as there are sources.",
                source="this tutorial",
                measure=surplus,
                criterion=Bound("latents too many or too few", at_most(0), statistic="largest"),
            )
        ]

    def figures(self, results, settings):
        figure, (axis,) = figures.row_of_panels(1)
        axis.bar([str(r.cell.seed) for r in results], [r.measured.in_use for r in results])
        figures.format_axis(axis, title="Latents in use", x="seed", y="latents", log="", legend=False)
        return [ReportFigure("in_use", figure, "One bar per seed.")]


# %% [markdown]
# **Run it.** The second call trains nothing: it reads the results.

# %%
for _ in range(2):
    claims = reproduce(Width(), RunOptions(), out=Path("runs"), progress=NoProgress())
for claim in claims:
    print(claim.verdict, "|", claim.sentence, "|", claim.measured)
print(sorted(file.name for file in Path("runs/width").iterdir()))

# %% [markdown]
# Next: [where it goes in the package](../add-an-experiment.md).
