r"""The reconstruction loss in two parts: that of the mean, and that of the noise around it (Bhowal et al. 2024, Eq. 7).

.. math:: E\|x - f(\mu+\epsilon)\|^2 = \underbrace{\|x - f(\mu)\|^2}_{L^\mu}
    + \underbrace{E\|f(\mu+\epsilon) - f(\mu)\|^2}_{L^{stoch}}
    - \underbrace{2\, E\langle x - f(\mu),\, f(\mu+\epsilon) - f(\mu)\rangle}_{cross}

The paper assumes that the cross term is zero; here it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.errors import InputError
from vaescope.theory.derivatives import Decoder, decode_flat
from vaescope.validation import posterior, same_rows, tensor, whole_number

SAMPLES_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class LossSplit:
    """The parts of each sample, summed over outputs; `mean` + `stochastic` - `cross` = `total` up to rounding."""

    total: Float[Tensor, " N"]
    mean: Float[Tensor, " N"]
    stochastic: Float[Tensor, " N"]
    cross: Float[Tensor, " N"]

    @property
    def cross_share(self) -> float:
        """The mean cross term as a share of the mean loss: what the paper neglects."""
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

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        x: observations, a row or an image per sample.
        mean: (N, d) posterior means.
        variance: (N, d) posterior variances.
        draws: of ε, per sample.
        seed: of the draws.

    >>> split = loss_split(lambda z: z, torch.ones(1, 2), torch.zeros(1, 2), torch.full((1, 2), 1e-6))
    >>> round(float(split.mean), 3)
    2.0
    """
    target = tensor(x, "x").flatten(1)
    means, variances = posterior(mean, variance)
    same_rows({"x": len(target), "mean": len(means)})
    whole_number("draws", draws)
    generator = randomness.generator(seed, "loss split")
    chunks = [
        _split(decoder, target[rows], means[rows], variances[rows].sqrt(), draws, generator)
        for rows in torch.arange(len(target)).split(SAMPLES_AT_ONCE)
    ]
    return LossSplit(*torch.cat(chunks, dim=1))


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
        raise InputError(f"the decoder returns {centre.shape[1]} numbers per sample, but x has {target.shape[1]}.")
    residual = target.to(centre) - centre
    sums = torch.zeros(3, len(mean), dtype=centre.dtype, device=centre.device)
    for _ in range(draws):
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype).to(mean.device)
        change = decode_flat(decoder, mean + deviation * noise) - centre
        parts = (residual - change).square(), change.square(), 2 * (residual * change)
        sums += torch.stack([part.sum(1) for part in parts])
    total, stochastic, cross = sums / draws
    return torch.stack([total, residual.square().sum(1), stochastic, cross])
