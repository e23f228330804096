"""Models of pythae, which is not imported here, and a callback for its training."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from vaescope.adapters.base import Adapted
from vaescope.adapters.callbacks import Watched, first_import
from vaescope.core.errors import InputError
from vaescope.protocol import ModelSpec

PYTHAE = {"VAE", "BetaVAE", "DisentangledBetaVAE", "FactorVAE", "BetaTCVAE", "INFOVAE_MMD", "IWAE", "MIWAE"}
"""pythae's models with a diagonal Gaussian posterior and the prior N(0, I)."""


def from_pythae(model: Any, *, name: str = "pythae model") -> Adapted:
    """A model from pythae with a Gaussian posterior and the prior N(0, I), such as `VAE` or `BetaVAE`.

    Args:
        model: a trained pythae model. Its reconstruction loss gives the likelihood: Gaussian with precision 1
            (`mse`) or Bernoulli (`bce`).
        name: what reports call the model.
    """
    if not all(hasattr(model, part) for part in ("encoder", "decoder", "latent_dim")):
        raise InputError(f"from_pythae needs a model with encoder, decoder and latent_dim, got {type(model).__name__}.")
    pythae_bases = (c.__name__ for c in type(model).__mro__ if c.__module__.startswith("pythae.models."))
    kind = next(pythae_bases, None)
    if kind is not None and kind not in PYTHAE:
        raise InputError(
            f"from_pythae supports {', '.join(sorted(PYTHAE))}; {kind} has another prior or posterior, so use "
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

    spec = ModelSpec(
        latent_dim=int(model.latent_dim),
        name=name,
        likelihood={"mse": "gaussian", "bce": "bernoulli"}.get(str(loss)),
        precision=1.0 if loss == "mse" else None,  # pythae's loss is half the summed squared error
        image_shape=(shape[0], shape[1], shape[2]) if len(shape) == 3 else None,
        beta=float(getattr(config, "beta", 1.0)) if kind == "BetaVAE" else 1.0,
        objective="elbo" if kind in (None, "VAE", "BetaVAE") else kind,
        returns_variances=True,
    )
    return Adapted(spec, encode, lambda z: model.decoder(z)["reconstruction"], (model,))


def pythae_callback(watch: Watched) -> Any:
    """A pythae callback that updates a watch after every training step.

    Args:
        watch: a `vs.Watch` of `vs.adapters.from_pythae(model)`.

    Use it as `pipeline(train_data, callbacks=[vs.adapters.pythae_callback(watch)])`.
    """
    base = first_import("pythae.trainers.training_callbacks")

    class WatchCallback(base.TrainingCallback):  # type: ignore[name-defined]
        def __init__(self) -> None:
            self.step = 0

        def on_train_begin(self, training_config: object, **kwargs: object) -> None:
            watch.update(self.step)

        def on_train_step_end(self, training_config: object, **kwargs: object) -> None:
            self.step += 1
            watch.update(self.step)

        def on_train_end(self, training_config: object, **kwargs: object) -> None:
            watch.close()

    return WatchCallback()
