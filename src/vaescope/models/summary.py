"""How the training of a member went, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vaescope.plain import from_plain, plain_fields

MIN_GAIN = 0.05  # nats
MIN_RELATIVE_GAIN = 1e-3  # of the gain after the first fifth of the epochs


@dataclass(frozen=True)
class TrainingSummary:
    """Result of training one member; stored with its weights and as its row of results."""

    status: str
    """`finished` or `diverged`."""
    epochs: int
    """Epochs trained."""
    best_epoch: int
    """The epoch, counted from 1, whose weights were kept."""
    elbo: float | None = None
    """Validation ELBO of the best epoch, in nats per sample; None unless the member finished."""
    used_precision: float | None = None
    """γ² of the trained decoder; None under a Bernoulli likelihood."""
    diverged_at_step: int | None = None
    """The step, counted from 1, at which the loss was no longer finite."""
    converged: bool | None = None
    """Whether more epochs would have changed little (`has_converged`); None if diverged or not recorded."""

    def to_dict(self) -> dict[str, object]:
        """Fields by name, for JSON and tables."""
        return plain_fields(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> TrainingSummary:
        """From `to_dict`, with types checked; a summary without `converged` has None there.

        >>> TrainingSummary.from_dict({"status": "finished", "epochs": 3, "best_epoch": 2}).converged is None
        True
        """
        return from_plain(cls, data, name="summary")


def has_converged(scores: Sequence[float]) -> bool:
    """Whether training had nearly stopped improving when it reached its last epoch.

    True if the best score rose by at most max(0.05 nats, 0.001 of its rise after the first fifth of the epochs) over
    the last fifth of them. A single epoch says nothing: False. Members stopped by patience count as converged without
    this rule, diverged ones do not converge. The first epochs do not count, because a random decoder of high precision
    starts at an ELBO of minus many thousand nats.

    Args:
        scores: validation objective after every epoch at the final precision, to be maximised: the ELBO if β = 1.

    >>> has_converged([-10.0, -5.0, -4.0, -3.99, -3.98]), has_converged([-10.0, -8.0, -6.0, -4.0, -2.0])
    (True, False)
    """
    fifth = math.ceil(len(scores) / 5)
    before = scores[: len(scores) - fifth]
    if not before:
        return False
    best = max(scores)
    return best - max(before) <= max(MIN_GAIN, MIN_RELATIVE_GAIN * (best - scores[fifth - 1]))
