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
from vaescope.orthogonality.inputs import count, numbers, posterior
from vaescope.theory.derivatives import Decoder, decode_flat

SAMPLES_AT_ONCE = 1024


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
    x: object,
    mean: object,
    variance: object,
    *,
    draws: int = 64,
    seed: int = 0,
) -> LossSplit:
    """Both parts and the cross term, with the same draws of ε for all three.

    >>> split = loss_split(lambda z: z, torch.ones(1, 2), torch.zeros(1, 2), torch.full((1, 2), 1e-6))
    >>> round(float(split.mean), 3)
    2.0
    """
    target = numbers(x, "x").flatten(1)
    centres, spreads = posterior(mean, variance)
    if len(target) != len(centres):
        raise InputError(f"x, mean and variance need a row per sample, got {len(target)} and {len(centres)} rows.")
    count(draws, "draws", 1)
    generator = randomness.generator(seed, "loss split")
    parts = [
        _split(decoder, target[some], centres[some], spreads[some].sqrt(), draws, generator)
        for some in torch.arange(len(target)).split(SAMPLES_AT_ONCE)
    ]
    return LossSplit(*torch.cat(parts, dim=1))


def _split(
    decoder: Decoder,
    target: Float[Tensor, "N n"],
    mean: Float[Tensor, "N d"],
    deviation: Float[Tensor, "N d"],
    draws: int,
    generator: torch.Generator,
) -> Float[Tensor, "4 N"]:
    centre = decode_flat(decoder, mean)
    if centre.shape != target.shape:
        raise InputError(f"the decoder gives {centre.shape[1]} numbers per sample, but x has {target.shape[1]}.")
    missed = target.to(centre) - centre
    sums = torch.zeros(3, len(mean), dtype=centre.dtype, device=centre.device)
    for _ in range(draws):
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype).to(mean.device)
        moved = decode_flat(decoder, mean + deviation * noise) - centre
        sums += torch.stack([(missed - moved).square().sum(1), moved.square().sum(1), 2 * (missed * moved).sum(1)])
    total, stochastic, cross = sums / draws
    return torch.stack([total, missed.square().sum(1), stochastic, cross])
