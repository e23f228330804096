"""How many directions a decoder uses: the rank of its Jacobian relative to its noise (Bonheme & Grzes 2023)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vaescope import validation
from vaescope.errors import InputError
from vaescope.theory.derivatives import Decoder, jacobians


def used_directions(
    decoder: Decoder,
    z: Float[Tensor, "N d"],
    *,
    precision: float,
    prior_variance: Tensor | float = 1.0,
    threshold: float = 0.05,
) -> Int[Tensor, " N"]:
    """The number of squared singular values of γ J Σ†^½ above `threshold`, at each point.

    Such a value is what an observation adds to the prior's precision in that direction (Bonheme & Grzes 2023, Eq. 11).
    At the optimum of a linear VAE the count is the number of active latents.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: points at which to evaluate.
        precision: γ² = 1 / decoder variance.
        prior_variance: one number, or one per latent.
        threshold: smallest squared singular value that counts.

    >>> W = torch.tensor([[3.0, 0.0], [0.0, 0.1]], dtype=torch.float64)
    >>> used_directions(lambda z: z @ W.T, torch.zeros(1, 2, dtype=torch.float64), precision=1.0)
    tensor([1])
    """
    validation.precision(precision)
    scale = torch.as_tensor(prior_variance).to(z)
    if not bool((scale > 0).all()) or scale.ndim > 2 or (scale.ndim and scale.shape[-1] not in (1, z.shape[1])):
        raise InputError(f"prior_variance must be > 0, a number or one per latent, got {prior_variance}.")
    scale = scale.sqrt().expand(z.shape)
    counts, first = [], 0
    for J in jacobians(decoder, z):
        scaled = J * scale[first : first + len(J)].unsqueeze(1)
        counts.append((precision * torch.linalg.svdvals(scaled) ** 2 > threshold).sum(-1))
        first += len(J)
    return torch.cat(counts)


def numerical_rank(J: Float[Tensor, "*batch n d"], tolerance: float = 1e-3) -> Int[Tensor, "*batch"]:
    """The number of singular values above `tolerance` times the largest.

    >>> numerical_rank(torch.tensor([[1.0, 1.0], [0.0, 1e-6]]))
    tensor(1)
    """
    singular = torch.linalg.svdvals(J)
    return (singular > tolerance * singular[..., :1]).sum(-1)
