"""A model's settings as plain data, and back: what a run folder keeps so that it can be opened later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor

from vaescope.distributions.priors import PRIORS
from vaescope.errors import RunError
from vaescope.models.conv_vae import ConvVAE
from vaescope.models.vae import VAE

KINDS: dict[str, type[VAE]] = {"mlp": VAE, "conv": ConvVAE}
MAPS = ("decoder", "encoder_input")  # functions, which are not data


def describe(model: VAE) -> dict[str, Any]:
    """Settings for JSON.

    >>> describe(VAE(3, 2))["kind"]
    'mlp'
    """
    if any(getattr(model, name) is not None for name in MAPS):
        raise RunError("a model with a fixed decoder or input map cannot be kept as data.")
    plain = {f.name: getattr(model, f.name) for f in fields(model) if f.name not in (*MAPS, "prior")}
    kind = next(name for name, cls in reversed(KINDS.items()) if isinstance(model, cls))
    numbers = asdict(model.prior)  # type: ignore[call-overload]
    numbers = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in numbers.items()}
    prior = {"kind": _prior_name(model), **numbers}
    return {"kind": kind, "prior": prior} | {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}


def rebuild(data: Mapping[str, Any]) -> VAE:
    """The model that was described.

    >>> rebuild(describe(VAE(3, 2, hidden=(5,)))).hidden == (5,)
    True
    """
    try:
        rest = {name: value for name, value in data.items() if name not in ("kind", "prior")}
        prior = dict(data["prior"])
        kind = prior.pop("kind")
        chosen = PRIORS[kind](**{name: torch.tensor(v) if isinstance(v, list) else v for name, v in prior.items()})
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in rest.items()
        }
        return KINDS[data["kind"]](prior=chosen, **plain)
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"the model's description is not one of vaescope's: {error}.") from None


def _prior_name(model: VAE) -> str:
    return next(name for name, cls in PRIORS.items() if type(model.prior) is cls)
