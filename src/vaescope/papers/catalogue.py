"""What can be reproduced. Nothing heavy is imported here, so listing is instant."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vaescope.errors import InputError

if TYPE_CHECKING:
    from vaescope.papers.base import Experiment

PROFILES = ("quick", "paper")


@dataclass(frozen=True)
class Entry:
    """An experiment's name and where it comes from.

    Fast ones stand first, and those with the same members (`kin`) apart, so that one has trained them for the other.
    """

    name: str
    module: str
    title: str
    source: str

    def load(self) -> Experiment:
        """The experiment itself."""
        module = importlib.import_module(f"vaescope.papers.{self.module}")
        experiment: Experiment = module.EXPERIMENT
        return experiment


CATALOGUE = (
    Entry(
        "beta-precision",
        "embrace_the_gap.beta_precision",
        "A β-VAE is a VAE with another decoder precision",
        "Reizinger et al. 2022, appendix 6.3",
    ),
    Entry(
        "linear-vae",
        "embrace_the_gap.linear_vae",
        "Linear VAEs: the gap in closed form, and the axes it singles out",
        "Reizinger et al. 2022, appendix 10.1",
    ),
    Entry(
        "principal-axes",
        "why_vaes_disentangle.principal_axes",
        "Which principal axes hold an image depends on the order they are counted in",
        "Bhowal et al. 2024, Tab. 7 and Fig. 5",
    ),
    Entry(
        "why_vaes_disentangle.rotation",
        "why_vaes_disentangle.rotation",
        "Rotate the codes: the likelihood does not notice, the ELBO does",
        "the one-picture reason why VAEs disentangle",
    ),
    Entry(
        "self-consistency",
        "embrace_the_gap.self_consistency",
        "The encoder inverts the decoder as the decoder's noise vanishes",
        "Reizinger et al. 2022, Fig. 2",
    ),
    Entry(
        "elbo-gap",
        "embrace_the_gap.elbo_gap",
        "ELBO* tends to the IMA-regularised likelihood, not to the likelihood",
        "Reizinger et al. 2022, Fig. 4",
    ),
    Entry(
        "moebius-precision",
        "embrace_the_gap.moebius_precision",
        "The closer to deterministic, the better a VAE recovers the sources of a conformal mixing",
        "Reizinger et al. 2022, Fig. 3 left",
    ),
    Entry(
        "moebius-linear-map",
        "embrace_the_gap.moebius_linear_map",
        "The farther a mixing is from the IMA class, the less of its sources a VAE recovers",
        "Reizinger et al. 2022, Fig. 3 right",
    ),
    Entry(
        "ivae-sources",
        "polarised_regime.ivae_sources",
        "Sources that a VAE leaves rotated, an iVAE recovers",
        "Khemakhem et al. 2020, §5",
    ),
    Entry(
        "local-nonlinearity",
        "why_vaes_disentangle.local_nonlinearity",
        "Around a code, a decoder with one non-linearity is closer to the truth than a linear one",
        "Bhowal et al. 2024, Tabs. 1 and 2",
    ),
    Entry(
        "polarised-regime",
        "polarised_regime.polarised_regime",
        "Latents are active or at their prior, for VAEs and iVAEs alike",
        "Bonheme & Grzes 2023, Figs. 1-4",
    ),
    Entry(
        "why_vaes_disentangle.orthogonality",
        "why_vaes_disentangle.orthogonality",
        "Are decoders with orthogonal columns those of disentangled codes?",
        "Bhowal et al. 2024, Tabs. 4 to 6, Fig. 4",
    ),
    Entry(
        "embrace_the_gap.sprites",
        "embrace_the_gap.sprites",
        "A VAE finds position, size and colour of sprites, and its contrast falls as it does",
        "Reizinger et al. 2022, Fig. 5",
    ),
    Entry(
        "covariance-structure",
        "embrace_the_gap.covariance_structure",
        "What the posterior's covariance family asks of the decoder",
        "conjectures of Reizinger et al. 2022, §6",
    ),
)


def find(name: str) -> Entry:
    """The entry of that name."""
    for entry in CATALOGUE:
        if entry.name == name:
            return entry
    raise InputError(f"no experiment is called {name!r}; choose from: {', '.join(e.name for e in CATALOGUE)}.")


def check_profile(profile: str) -> str:
    if profile not in PROFILES:
        raise InputError(f"profile must be {' or '.join(PROFILES)}, got {profile!r}.")
    return profile
