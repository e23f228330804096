"""A model from its settings and the shape of its data, for `vs.fit` and for run folders that are opened later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from vaescope.core.checks import choice
from vaescope.core.errors import InputError
from vaescope.core.serialization import Plain, convert, from_plain
from vaescope.distributions.priors import prior_from
from vaescope.models.architectures import ARCHITECTURES
from vaescope.models.auxiliary import AuxiliarySettings
from vaescope.models.vae import VAE
from vaescope.settings import ModelSettings


@dataclass(frozen=True)
class DataShape:
    """What a model has to know of its data."""

    observed_dim: int
    image_shape: tuple[int, int, int] | None = None
    auxiliary_dim: int = 0


def build_model(settings: ModelSettings, shape: DataShape, *, noise: str = "fixed") -> VAE:
    """The model that these settings describe.

    >>> build_model(ModelSettings(latent_dim=2, hidden=(8,)), DataShape(3)).observed_dim
    3
    """
    if settings.network == "conv" and shape.image_shape is None:
        raise InputError("network='conv' needs images (N, H, W[, C]), got rows; use network='mlp'.")
    choice("architecture", settings.architecture, ARCHITECTURES)
    image = shape.image_shape
    halved = image is not None and all(side % 16 == 0 for side in image[1:])  # four times, by the convolutions
    make = partial(VAE.mlp, shape.observed_dim, hidden=settings.hidden, activation=settings.activation)
    if image is not None and (settings.network == "conv" or (settings.network == "auto" and halved)):
        make = partial(VAE.conv, image, architecture=settings.architecture)
    return make(
        latent_dim=settings.latent_dim,
        prior=prior_from(settings.prior),
        posterior=settings.posterior,
        likelihood=settings.likelihood,
        noise=noise,
        auxiliary=AuxiliarySettings(shape.auxiliary_dim, settings.prior_mean),
        prior_shape=settings.prior_shape,
    )


def model_from_config(settings: Mapping[str, Plain]) -> VAE:
    """The model of a run folder, from the `settings` of its `config.json`."""
    model = from_plain(ModelSettings, _mapping(settings, "model"), name="config.json: model")
    shape = from_plain(DataShape, _mapping(settings, "shape"), name="config.json: shape")
    return build_model(model, shape, noise=str(convert(settings.get("noise"), str, "config.json: noise")))


def _mapping(settings: Mapping[str, Plain], key: str) -> Mapping[str, Plain]:
    found = settings.get(key)
    if not isinstance(found, Mapping):
        raise InputError(f"config.json must have {key!r} among its settings; is this a run of `vaescope train`?")
    return found
