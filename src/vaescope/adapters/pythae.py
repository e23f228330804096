"""pythae's models: an encoder with `embedding` and `log_covariance`, a decoder with `reconstruction`."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from vaescope.adapters.base import Adapted
from vaescope.core.errors import InputError

GAUSSIAN = {"VAE", "BetaVAE", "DisentangledBetaVAE", "FactorVAE", "BetaTCVAE", "INFOVAE_MMD", "IWAE", "MIWAE"}
"""pythae's models with a diagonal Gaussian posterior and the prior N(0, I)."""
ELBO = {"VAE", "BetaVAE"}  # the others maximise something else
PRECISION = {"mse": 1.0}  # pythae's loss is half the summed squared error: decoder variance 1


def from_pythae(model: Any, *, name: str = "pythae model") -> Adapted:
    """A model from pythae with a Gaussian posterior and the prior N(0, I), such as `VAE` or `BetaVAE`.

    Args:
        model: a trained pythae model. Its reconstruction loss gives the likelihood: Gaussian with precision 1
            (`mse`) or Bernoulli (`bce`).
        name: what reports call the model.
    """
    if not all(hasattr(model, part) for part in ("encoder", "decoder", "latent_dim")):
        raise InputError(f"from_pythae needs a model with encoder, decoder and latent_dim, got {type(model).__name__}.")
    kind = _kind(model)
    if kind is not None and kind not in GAUSSIAN:
        raise InputError(
            f"from_pythae supports {', '.join(sorted(GAUSSIAN))}; {kind} has another prior or posterior, so use "
            "from_callables."
        )
    config = getattr(model, "model_config", None)
    loss = getattr(config, "reconstruction_loss", None)
    shape = tuple(getattr(model, "input_dim", None) or ())

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        if shape and x[0].numel() != math.prod(shape):
            raise InputError(f"this model takes samples of shape {shape}, got {tuple(x.shape[1:])}.")
        found = model.encoder(x.reshape(len(x), *shape) if shape else x)
        if "log_covariance" not in found:
            raise InputError(f"{type(model).__name__} has no Gaussian posterior (no log_covariance in its encoder).")
        return found["embedding"], found["log_covariance"].exp()

    return Adapted(
        int(model.latent_dim),
        encode,
        lambda z: model.decoder(z)["reconstruction"],
        PRECISION.get(str(loss)),
        {"mse": "gaussian", "bce": "bernoulli"}.get(str(loss)),
        name=name,
        image_shape=(shape[0], shape[1], shape[2]) if len(shape) == 3 else None,
        beta=float(getattr(config, "beta", 1.0)) if kind == "BetaVAE" else 1.0,
        objective="elbo" if kind is None or kind in ELBO else kind,
        networks=(model,),
        returns_variances=True,
    )


def _kind(model: Any) -> str | None:
    """The first of a model's base classes that is pythae's; None if there is none."""
    return next((c.__name__ for c in type(model).__mro__ if c.__module__.startswith("pythae.models.")), None)
