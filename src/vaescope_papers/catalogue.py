"""Which experiments there are. Nothing heavy is imported here, so that listing them is instant."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vaescope.core.errors import InputError

if TYPE_CHECKING:
    from vaescope_papers.experiment import Experiment, Settings
    from vaescope_papers.results import SeedCell

PROFILES = ("quick", "laptop", "paper")


@dataclass(frozen=True)
class ExperimentInfo:
    """An experiment's name, what it shows, and which figure or table of which paper it reproduces."""

    name: str
    module: str
    """The module below `vaescope_papers` that defines `EXPERIMENT`."""
    title: str
    source: str

    def load(self) -> Experiment[Settings, SeedCell, object]:
        """The experiment itself."""
        experiment: Experiment[Settings, SeedCell, object]
        experiment = importlib.import_module(f"vaescope_papers.{self.module}").EXPERIMENT
        return experiment


def experiments() -> tuple[ExperimentInfo, ...]:
    """All experiments, fast ones first; those that share members are kept apart, so that one trains for the other."""
    from vaescope_papers import embrace_the_gap as gap
    from vaescope_papers import polarised_regime as regime
    from vaescope_papers import why_vaes_disentangle as why

    return (
        gap.EXPERIMENTS["beta-precision"],
        gap.EXPERIMENTS["linear-vae"],
        why.EXPERIMENTS["principal-axes"],
        why.EXPERIMENTS["rotation"],
        gap.EXPERIMENTS["self-consistency"],
        gap.EXPERIMENTS["encoder-rate"],
        gap.EXPERIMENTS["elbo-gap"],
        gap.EXPERIMENTS["moebius-precision"],
        gap.EXPERIMENTS["moebius-linear-map"],
        gap.EXPERIMENTS["ima-flow"],
        gap.EXPERIMENTS["diagonal-posterior"],
        regime.EXPERIMENTS["ivae-sources"],
        regime.EXPERIMENTS["linear-ivae"],
        why.EXPERIMENTS["local-nonlinearity"],
        regime.EXPERIMENTS["polarised-regime"],
        why.EXPERIMENTS["orthogonality"],
        gap.EXPERIMENTS["sprites"],
        gap.EXPERIMENTS["covariance-structure"],
    )


def find_experiment(name: str) -> ExperimentInfo:
    """The experiment of that name."""
    known = {info.name: info for info in experiments()}
    if name not in known:
        raise InputError(f"there is no experiment {name!r}; choose from: {', '.join(known)}.")
    return known[name]
