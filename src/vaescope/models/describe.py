"""A model's settings as plain data, and back: what a run folder stores so that its members can be opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from vaescope.distributions import PRIORS, Prior
from vaescope.errors import RunError
from vaescope.models.architectures import ConvNetworks
from vaescope.models.auxiliary import AuxiliarySettings
from vaescope.models.mlp import MLPNetworks
from vaescope.models.networks import Networks
from vaescope.models.vae import VAE, FixedMaps

NETWORKS: dict[str, type[MLPNetworks] | type[ConvNetworks]] = {"mlp": MLPNetworks, "conv": ConvNetworks}
PLAIN = ("observed_dim", "latent_dim", "posterior", "likelihood", "noise")


def describe(model: VAE) -> dict[str, Any]:
    """Settings for JSON.

    >>> describe(VAE(3, 2))["networks"]["kind"]
    'mlp'
    """
    if model.fixed != FixedMaps():
        raise RunError("a model with a fixed decoder or encoder input cannot be stored in a run folder.")
    return {
        "observed_dim": model.observed_dim,
        "latent_dim": model.latent_dim,
        "posterior": model.posterior,
        "likelihood": model.likelihood,
        "noise": model.noise,
        "networks": {"kind": _kind(model.networks, NETWORKS), **_to_json(asdict(model.networks))},  # type: ignore[call-overload]
        "prior": {"kind": _kind(model.prior, PRIORS), **_to_json(asdict(model.prior))},  # type: ignore[call-overload]
        "auxiliary": _to_json(asdict(model.auxiliary)),
    }


def rebuild(data: Mapping[str, Any]) -> VAE:
    """The model that was described.

    >>> rebuild(describe(VAE.mlp(3, 2, hidden=(5,)))).networks.hidden
    (5,)
    """
    try:
        return VAE(
            **{name: data[name] for name in PLAIN},
            networks=_build_networks(data["networks"]),
            prior=_build_prior(data["prior"]),
            auxiliary=AuxiliarySettings(**_tuples(data["auxiliary"])),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"the description of the model is not one that vaescope wrote: {error}.") from None


def _build_networks(data: Mapping[str, Any]) -> Networks:
    return NETWORKS[data["kind"]](**_tuples({name: value for name, value in data.items() if name != "kind"}))


def _build_prior(data: Mapping[str, Any]) -> Prior:
    numbers = {name: value for name, value in data.items() if name != "kind"}
    return PRIORS[data["kind"]](**{n: torch.tensor(v) if isinstance(v, list) else v for n, v in numbers.items()})


def _kind(value: object, kinds: Mapping[str, type]) -> str:
    return next(name for name, cls in kinds.items() if type(value) is cls)


def _to_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in settings.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def _tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
