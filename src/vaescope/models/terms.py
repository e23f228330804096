"""The quantities from which every training objective is computed."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from vaescope.distributions import Posterior, Prior


class Terms(NamedTuple):
    """Reconstruction and KL of one batch, per member (E) and sample (B), in nats."""

    log_likelihood: Float[Tensor, "E B"]
    """log p(x|z) at one draw of z."""
    kl: Float[Tensor, "E B"]
    """KL[q(z|x) || p(z)], in closed form."""
    squared_error: Float[Tensor, "E B"]
    """‖x - f(z)‖², summed over observed dimensions."""
    posterior: Posterior | None = None
    """q(z|x), in the unbounded coordinate u."""
    u: Float[Tensor, "E B d"] | None = None
    """The draw of the latents in their unbounded coordinate."""
    step: Float[Tensor, ""] | None = None
    """The training step, counted from 1; None in validation."""
    prior: Prior | None = None
    """p(z), or p(z|auxiliary)."""
