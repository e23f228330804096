"""The state of a stack between two epochs, so that an interrupted run goes on where it was.

What is kept is all that training depends on: weights, Adam's moments, best weights, every member's random
stream and record. A resumed run therefore gives the numbers of one that was never interrupted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from vaescope.models import VAE
from vaescope.objectives import Objective, describe
from vaescope.training.settings import MemberSpec, TrainSettings

SHARE = 0.02  # of the time, at most, that is spent on writing: large states are written less often
SAMPLED_ROWS = 64  # of the data, by which they are recognised


@runtime_checkable
class Keeper(Protocol):
    """Where a state is kept: tensors and one text, replaced as a whole."""

    @property
    def seconds(self) -> float:
        """At least so long between two writes."""
        ...

    def save(self, tensors: Mapping[str, Tensor], text: str) -> None: ...

    def load(self) -> tuple[dict[str, Tensor], str] | None: ...

    def clear(self) -> None: ...


def fingerprint(
    model: VAE,
    objective: Objective,
    train: Tensor,
    validation: Tensor,
    members: Sequence[MemberSpec],
    settings: TrainSettings,
) -> str:
    """What a state belongs to: model (less its functions), objective, data, members and how they are trained."""
    plain = {f.name: repr(v) for f in fields(model) if not callable(v := getattr(model, f.name))}
    about = [
        type(model).__name__,
        plain,
        describe(objective),
        [asdict(m) for m in members],
        {**asdict(settings), "device": ""},
    ]
    digest = hashlib.sha256(json.dumps(about).encode())
    for data in (train, validation):
        digest.update(json.dumps(list(data.shape)).encode())
        digest.update(data[:, :: max(1, data.shape[1] // SAMPLED_ROWS)].contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def described(text: str) -> dict[str, Any]:
    """What was written beside the tensors; nothing where that cannot be read."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def flat(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of several dictionaries under one name each.

    >>> list(flat({"params": {"w": torch.zeros(1)}}))
    ['params/w']
    """
    return {f"{group}/{name}": t.contiguous() for group, tensors in groups.items() for name, t in tensors.items()}


def group(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """One of the dictionaries back."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def streams(generators: Sequence[torch.Generator]) -> dict[str, Tensor]:
    return {str(row): generator.get_state() for row, generator in enumerate(generators)}
