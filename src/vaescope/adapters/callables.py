"""Callbacks of other training libraries that update a watch after every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vaescope.core.calls import call_user_function, dtype_and_device, evaluation_mode, networks_behind
from vaescope.core.errors import InputError
from vaescope.distributions import Normal, Prior
from vaescope.protocol import LatentModel


@runtime_checkable
class Watched(Protocol):
    """What a callback needs of a `vs.Watch`."""

    def update(self, step: int, *, loss: float | Tensor | None = None) -> Any: ...

    def close(self) -> None: ...


def lightning_callback(watch: Watched) -> Any:
    """A Lightning callback that updates a watch after every batch; new rows go to the trainer's loggers too.

    Args:
        watch: a `vs.Watch` of the module's networks.

    Use it as `Trainer(callbacks=[vs.adapters.lightning_callback(watch)])`.
    """
    base = _first_import("lightning.pytorch", "pytorch_lightning")

    class WatchCallback(base.Callback):  # type: ignore[name-defined]
        """Gradients are still there: Lightning sets them to zero before the next backward pass."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            _log(trainer, watch.update(trainer.global_step))

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            _log(trainer, watch.update(trainer.global_step, loss=loss))

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            watch.close()

    return WatchCallback()


def _log(trainer: Any, row: Any) -> None:
    if row is None:
        return
    for logger in trainer.loggers:
        logger.log_metrics({f"watch/{name}": value for name, value in row.numbers().items()}, step=row.step)


def pythae_callback(watch: Watched) -> Any:
    """A pythae callback that updates a watch after every training step.

    Args:
        watch: a `vs.Watch` of `vs.adapters.from_pythae(model)`.

    Use it as `pipeline(train_data, callbacks=[vs.adapters.pythae_callback(watch)])`.
    """
    base = _first_import("pythae.trainers.training_callbacks")

    class WatchCallback(base.TrainingCallback):  # type: ignore[name-defined]
        def __init__(self) -> None:
            self.step = 0

        def on_train_begin(self, training_config: Any, **kwargs: Any) -> None:
            watch.update(self.step)

        def on_train_step_end(self, training_config: Any, **kwargs: Any) -> None:
            self.step += 1
            watch.update(self.step)

        def on_train_end(self, training_config: Any, **kwargs: Any) -> None:
            watch.close()

    return WatchCallback()


def transformers_callback(watch: Watched) -> Any:
    """A callback of the Hugging Face `Trainer` that updates a watch after every step of the optimiser.

    Args:
        watch: a `vs.Watch` of the networks in training.

    Use it as `Trainer(..., callbacks=[vs.adapters.transformers_callback(watch)])`.
    """
    base = _first_import("transformers.trainer_callback", install="transformers accelerate")

    class WatchCallback(base.TrainerCallback):  # type: ignore[name-defined]
        """`on_step_end` comes too late: gradients are zero by then."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch.update(state.global_step)

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch.update(state.global_step + 1)  # the trainer counts the step afterwards

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            watch.close()

    return WatchCallback()


def _first_import(*names: str, install: str | None = None) -> Any:
    import importlib

    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    library = names[0].split(".")[0]
    raise InputError(f"{library} is not installed; install it with pip install {install or library}.")


Layer = tuple[Tensor, Tensor, Tensor, Tensor]
"""Mean and variance of q(z_l|x, z_above), mean and variance of p(z_l|z_above)."""


@dataclass(frozen=True, eq=False)
class Layered(LatentModel):
    """Latents of all layers in units of their priors, so that each has the prior N(0, 1) and keeps its KL."""

    layers: Callable[[Tensor], Sequence[Layer]]
    latent_groups: tuple[tuple[str, int], ...]
    name: str = "model"
    prior: Prior = field(default_factory=Normal)
    networks: tuple[nn.Module, ...] = ()

    @property
    def latent_dim(self) -> int:
        return sum(size for _, size in self.latent_groups)

    @property
    def has_decoder(self) -> bool:
        return False

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance of every latent, in units of its prior."""
        weights = dtype_and_device(self.networks)
        with evaluation_mode(self.networks):
            found = call_user_function("layers", self.layers, x if weights is None else x.to(weights[1], weights[0]))
        parts = [self._standardised(layer, k, len(x)) for k, layer in enumerate(found)]
        if [mean.shape[1] for mean, _ in parts] != [size for _, size in self.latent_groups]:
            sizes = [mean.shape[1] for mean, _ in parts]
            raise InputError(f"layers must return latents of sizes {[s for _, s in self.latent_groups]}, got {sizes}.")
        return torch.cat([mean for mean, _ in parts], dim=1), torch.cat([variance for _, variance in parts], dim=1)

    def _standardised(self, layer: object, k: int, count: int) -> tuple[Tensor, Tensor]:
        if not isinstance(layer, tuple | list) or len(layer) != 4:
            raise InputError(
                f"layer {k} must be (mean, variance, prior_mean, prior_variance), got {len(layer)} values."
                if isinstance(layer, tuple | list)
                else f"layers must return a list of layers, got {type(layer).__name__} in it."
            )
        mean, variance, prior_mean, prior_variance = (value.detach().cpu() for value in torch.broadcast_tensors(*layer))
        return ((mean - prior_mean) / prior_variance.sqrt()).flatten(1), (variance / prior_variance).flatten(1)

    def decode(self, z: Tensor) -> Tensor:
        raise InputError("a hierarchical model is diagnosed without its decoder.")


def from_layers(
    layers: Callable[[Tensor], Sequence[Layer]],
    *,
    sizes: Sequence[int],
    names: Sequence[str] | None = None,
    name: str = "hierarchical model",
    networks: Sequence[nn.Module] | None = None,
) -> Layered:
    """A hierarchical VAE from the posteriors and priors of its layers: information and latents in use of each layer.

    Args:
        layers: x -> a list with (mean, variance, prior_mean, prior_variance) of each layer, as the loss uses them.
        sizes: latents of each layer, all positions counted.
        names: of the layers; 0, 1, ... by default.
        name: what reports call the model.
        networks: modules to call in evaluation mode; by default those that the function belongs or refers to.

    >>> model = from_layers(lambda x: [(x, 0.5 + 0 * x, 0 * x, 1 + 0 * x)], sizes=[2])
    >>> model.encode(torch.ones(1, 2))[1]
    tensor([[0.5000, 0.5000]])
    """
    listed = [str(k) for k in range(len(sizes))] if names is None else [str(label) for label in names]
    if len(listed) != len(sizes) or not sizes or any(int(size) < 1 for size in sizes):
        raise InputError(f"sizes must have a number > 0 for each layer, got {list(sizes)} for {len(listed)} layers.")
    groups = tuple(zip(listed, (int(size) for size in sizes), strict=True))
    return Layered(layers, groups, name, networks=networks_behind(layers) if networks is None else tuple(networks))
