"""Callbacks of other training libraries that update a watch after every step."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from vaescope.core.errors import InputError


@runtime_checkable
class LoggedRow(Protocol):
    """What a watch measured at a step."""

    @property
    def step(self) -> int: ...

    def numbers(self) -> Mapping[str, float]: ...


@runtime_checkable
class Watched(Protocol):
    """What a callback needs of a `vs.Watch`."""

    def update(self, step: int, *, loss: float | Tensor | None = None) -> LoggedRow | None: ...

    def close(self) -> None: ...


def lightning_callback(watch: Watched) -> Any:
    """A Lightning callback that updates a watch after every batch; new rows go to the trainer's loggers too.

    Args:
        watch: a `vs.Watch` of the module's networks.

    Use it as `Trainer(callbacks=[vs.adapters.lightning_callback(watch)])`.
    """
    base = first_import("lightning.pytorch", "pytorch_lightning")

    class WatchCallback(base.Callback):  # type: ignore[name-defined]
        """Gradients are still there: Lightning sets them to zero before the next backward pass."""

        def on_train_start(self, trainer: Any, pl_module: object) -> None:
            _log(trainer, watch.update(trainer.global_step))

        def on_train_batch_end(
            self,
            trainer: Any,
            pl_module: object,
            outputs: dict[str, Tensor] | Tensor | None,
            batch: object,
            batch_idx: int,
        ) -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            _log(trainer, watch.update(trainer.global_step, loss=loss))

        def on_train_end(self, trainer: object, pl_module: object) -> None:
            watch.close()

    return WatchCallback()


def _log(trainer: Any, row: LoggedRow | None) -> None:
    if row is None:
        return
    for logger in trainer.loggers:
        logger.log_metrics({f"watch/{name}": value for name, value in row.numbers().items()}, step=row.step)


def keras_callback(watch: Watched) -> object:
    """A Keras 3 callback that updates a watch after every batch; the last row joins the logs of every epoch.

    The loss that it records is the mean over the epoch so far, which Keras reports. With the JAX backend the weights
    are copied into the model for every batch.

    Args:
        watch: a `vs.Watch` of the networks in training.

    Use it as `model.fit(x, callbacks=[vs.adapters.keras_callback(watch)])`.
    """
    base = first_import("keras")

    class WatchCallback(base.callbacks.Callback):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.last: LoggedRow | None = None

        def _update(self, loss: float | None = None) -> None:
            self.last = watch.update(int(self.model.optimizer.iterations), loss=loss) or self.last

        def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
            self._update()

        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            self._update((logs or {}).get("loss"))

        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            if self.last is not None and logs is not None:
                logs.update({f"watch/{name}": value for name, value in self.last.numbers().items()})

        def on_train_end(self, logs: dict[str, float] | None = None) -> None:
            watch.close()

    return WatchCallback()


def transformers_callback(watch: Watched) -> Any:
    """A callback of the Hugging Face `Trainer` that updates a watch after every step of the optimiser.

    Args:
        watch: a `vs.Watch` of the networks in training.

    Use it as `Trainer(..., callbacks=[vs.adapters.transformers_callback(watch)])`.
    """
    base = first_import("transformers.trainer_callback", install="transformers accelerate")

    class WatchCallback(base.TrainerCallback):  # type: ignore[name-defined]
        """`on_step_end` comes too late: gradients are zero by then."""

        def on_train_begin(self, args: object, state: Any, control: object, **kwargs: object) -> None:
            watch.update(state.global_step)

        def on_optimizer_step(self, args: object, state: Any, control: object, **kwargs: object) -> None:
            watch.update(state.global_step + 1)  # the trainer counts the step afterwards

        def on_train_end(self, args: object, state: object, control: object, **kwargs: object) -> None:
            watch.close()

    return WatchCallback()


def first_import(*names: str, install: str | None = None) -> ModuleType:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    library = names[0].split(".")[0]
    raise InputError(f"{library} is not installed; install it with pip install {install or library}.")
