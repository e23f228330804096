r"""The reconstruction loss in two parts: of the mean, and of the noise around it (Bhowal et al. 2024, Eq. 7).

.. math:: E\|x - f(\mu+\epsilon)\|^2 = \underbrace{\|x - f(\mu)\|^2}_{L^\mu}
    + \underbrace{E\|f(\mu+\epsilon) - f(\mu)\|^2}_{L^{stoch}}
    - \underbrace{2\, E\langle x - f(\mu),\, f(\mu+\epsilon) - f(\mu)\rangle}_{cross}

The paper takes the cross term for zero; here it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.errors import InputError
from vaescope.theory.derivatives import Decoder, decode_flat


@dataclass(frozen=True, eq=False)
class LossSplit:
    """Every part per sample, summed over outputs; `mean` + `stochastic` - `cross` is `total`, to rounding."""

    total: Float[Tensor, " N"]
    mean: Float[Tensor, " N"]
    stochastic: Float[Tensor, " N"]
    cross: Float[Tensor, " N"]

    @property
    def cross_share(self) -> float:
        """The cross term over the data, as a share of the loss: what the paper leaves out."""
        return float(self.cross.mean() / self.total.mean())


@torch.no_grad()
def loss_split(
    decoder: Decoder,
    x: Float[Tensor, "N n"],
    mean: Float[Tensor, "N d"],
    variance: Float[Tensor, "N d"],
    *,
    draws: int = 64,
    seed: int = 0,
) -> LossSplit:
    """Both parts and the cross term, with the same draws of ε for all three.

    >>> split = loss_split(lambda z: z, torch.ones(1, 2), torch.zeros(1, 2), torch.full((1, 2), 1e-6))
    >>> round(float(split.mean), 3)
    2.0
    """
    if mean.shape != variance.shape or len(x) != len(mean):
        raise InputError(
            f"x, mean and variance need a row per sample, and mean and variance one shape; got {tuple(x.shape)}, "
            f"{tuple(mean.shape)} and {tuple(variance.shape)}."
        )
    if not bool((variance > 0).all()):
        raise InputError("variance must be > 0; pass variances, not log-variances.")
    if draws < 1:
        raise InputError(f"draws must be at least 1, got {draws}.")
    generator = randomness.generator(seed, "loss split")
    target, centre = x.flatten(1), decode_flat(decoder, mean)
    missed = target - centre
    sums = torch.zeros(3, len(x), dtype=centre.dtype, device=centre.device)
    for _ in range(draws):
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype).to(mean.device)
        moved = decode_flat(decoder, mean + variance.sqrt() * noise) - centre
        parts = [(missed - moved).square().sum(1), moved.square().sum(1), 2 * (missed * moved).sum(1)]
        sums += torch.stack(parts)
    total, stochastic, cross = sums / draws
    return LossSplit(total, missed.square().sum(1), stochastic, cross)
