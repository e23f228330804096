"""Settings of sprites, and the changes of training that were tried because VAEs from random weights mix the factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from vaescope.papers.embrace_the_gap.sprites_results import FACTORS
from vaescope.papers.trained import TrainedSettings

PUBLISHED_SIZE = 64
LOW_PRECISION = 2.0
MORE_LATENTS = 10


@dataclass(frozen=True)
class SpritesSettings(TrainedSettings):
    size: int = PUBLISHED_SIZE
    """Height and width of the images."""
    precision: float = 1.0
    """γ² per pixel and channel: γ² = 1 at 64 x 64 is 4 at 32 x 32, where images have a quarter of the pixels."""
    data_sets: tuple[int, ...] = (1, 2, 4, 7, 13)
    """Draws of the authors' generator: of the first 14, those whose renderer has c_IMA at most 0.05 at 32 x 32."""
    controls: int = 0
    """Members per data set that start at the true factors."""
    remedies: tuple[str, ...] = ()
    """Keys of `REMEDIES`: one more member per data set is trained with each."""


@dataclass(frozen=True)
class Remedy:
    """A change of how a member is trained."""

    title: str
    settings: Callable[[SpritesSettings], SpritesSettings] = lambda settings: settings
    latents: int = len(FACTORS)


def _published_precision(settings: SpritesSettings) -> SpritesSettings:
    """γ² = 1 at the published size, throughout."""
    precision = (PUBLISHED_SIZE / settings.size) ** 2
    return replace(settings, precision=precision, precision_start=precision, precision_hold=0, precision_warmup=0)


def _slow_rise(settings: SpritesSettings) -> SpritesSettings:
    """γ² rises from the first step on, over as many steps as it is otherwise held and raised."""
    steps = settings.precision_hold + settings.precision_warmup
    return replace(settings, precision_start=LOW_PRECISION, precision_hold=0, precision_warmup=steps)


REMEDIES: Mapping[str, Remedy] = {
    "more-latents": Remedy(f"with {MORE_LATENTS} latents", latents=MORE_LATENTS),
    "published-precision": Remedy("at the published γ² throughout", _published_precision),
    "slow-rise": Remedy(f"with a γ² that rises from {LOW_PRECISION:g} on", _slow_rise),
}
NO_REMEDY = Remedy("as described")
