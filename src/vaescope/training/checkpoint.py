"""Checkpoints between epochs, so that interrupted training continues where it stopped.

A checkpoint holds everything that training depends on: weights, Adam's moments, best weights, the random generators
and the record of every member. A resumed run therefore gives the same bits as one that was never interrupted.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

from torch import Tensor

from vaescope.core.serialization import Plain, to_plain
from vaescope.models import VAE, FixedMaps
from vaescope.objectives.elbo import describe
from vaescope.training.step import Problem

MAX_SHARE = 0.02  # of the training time may be spent writing checkpoints: large ones are written less often


@runtime_checkable
class CheckpointStore(Protocol):
    """Storage for one checkpoint: tensors and a text, replaced together."""

    @property
    def interval_seconds(self) -> float:
        """Seconds between two checkpoints, at least."""
        ...

    def save(self, tensors: Mapping[str, Tensor], text: str) -> None:
        """Replace the checkpoint."""
        ...

    def load(self) -> tuple[dict[str, Tensor], str] | None:
        """The checkpoint, or None if there is none; `RunError` if it cannot be read."""
        ...

    def clear(self) -> None:
        """Delete the checkpoint."""
        ...


class Checkpoints:
    """The checkpoints of one training run, written when they are due. Without a store nothing is written or read."""

    def __init__(self, store: CheckpointStore | None, problem: Problem, *, has_initial: bool) -> None:
        self.store = store
        self.fingerprint = fingerprint(problem, has_initial=has_initial) if store else ""
        self._saved_at = time.monotonic()
        self._pause = 0.0

    def due(self) -> bool:
        """Whether the last checkpoint is old enough."""
        if self.store is None:
            return False
        return time.monotonic() - self._saved_at >= max(self.store.interval_seconds, self._pause)

    def save(self, tensors: Mapping[str, Tensor], state: Mapping[str, Plain]) -> None:
        if self.store is None:
            return
        begin = time.monotonic()
        self.store.save(tensors, json.dumps({"fingerprint": self.fingerprint, "state": state}))
        self._saved_at = time.monotonic()
        self._pause = (self._saved_at - begin) / MAX_SHARE

    def load(self) -> tuple[dict[str, Tensor], dict[str, Plain]] | None:
        """Tensors and state of an earlier checkpoint of this very run; None if there is none."""
        stored = self.store.load() if self.store else None
        if stored is None:
            return None
        tensors, text = stored
        found = json.loads(text)
        return (tensors, found["state"]) if found["fingerprint"] == self.fingerprint else None


def fingerprint(problem: Problem, *, has_initial: bool = False) -> str:
    """Identifies a run: model, objective, data (some rows), members and settings.

    Functions have no stable description: of fixed maps, only their presence enters.

    Args:
        problem: what is trained.
        has_initial: whether training starts from given weights instead of random ones.
    """
    about = [
        _describe_model(problem.model),
        describe(problem.objective),
        to_plain(list(problem.members)),
        to_plain(replace(problem.settings, device="")),
        has_initial,
    ]
    digest = hashlib.sha256(json.dumps(about).encode())
    for data in (problem.train_data, problem.validation_data):
        digest.update(json.dumps(list(data.shape)).encode())
        digest.update(data.sample(64).contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def _describe_model(model: VAE) -> list[str]:
    has_fixed = [str(fixed is not None) for fixed in (model.fixed.decoder, model.fixed.encoder_input)]
    return [type(model).__name__, repr(replace(model, fixed=FixedMaps())), *has_fixed]


def flatten(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of several dictionaries in one.

    >>> import torch
    >>> list(flatten({"params": {"w": torch.zeros(1)}}))
    ['params/w']
    """
    return {f"{group}/{name}": t.contiguous() for group, tensors in groups.items() for name, t in tensors.items()}


def unflatten(tensors: Mapping[str, Tensor], group: str) -> dict[str, Tensor]:
    """One of the dictionaries that were flattened."""
    prefix = f"{group}/"
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
