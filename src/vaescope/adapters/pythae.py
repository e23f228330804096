"""pythae's models: an encoder with `embedding` and `log_covariance`, a decoder with `reconstruction`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vaescope.adapters.adapted import Adapted
from vaescope.errors import InputError

PRECISION = {"mse": 1.0}  # pythae's loss is half the squared error, summed: decoder variance 1


def from_pythae(model: Any, *, name: str = "pythae model") -> Adapted:
    """A pythae VAE (or one of its kin with a Gaussian posterior and the prior N(0, I))."""
    if not all(hasattr(model, part) for part in ("encoder", "decoder", "latent_dim")):
        raise InputError(f"a pythae model has encoder, decoder and latent_dim, got {type(model).__name__}.")
    model.eval()
    config = getattr(model, "model_config", None)
    loss = getattr(config, "reconstruction_loss", None)
    shape = tuple(getattr(model, "input_dim", None) or ())

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
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
        image=(shape[0], shape[1], shape[2]) if len(shape) == 3 else None,
        beta=float(getattr(config, "beta", 1.0)),
    )
