"""Local parametrisations of the covariance families, relative to the current Gaussian.

The current Gaussian has mean m and lower Cholesky factor L. A step p = (a, b) moves it to mean m + L a and factor
L K(b), with K(0) the identity. Scales enter as exp(b), so they stay positive. Steps are in units of the current
posterior, so Newton's method is well scaled at every precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.validation import choice


@dataclass(frozen=True)
class Family:
    """Which parameter sets each entry of K(b): entry (rows[i], columns[i]) is set by b[owner[i]]."""

    dim: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    owner: tuple[int, ...]

    @property
    def scales(self) -> int:
        """The length of b."""
        return max(self.owner) + 1

    @property
    def size(self) -> int:
        """The length of p = (a, b)."""
        return self.dim + self.scales

    def log_scales(self) -> list[int]:
        """Indices in p of the parameters that enter as exp(b): those on the diagonal of K."""
        diagonal = [o for r, c, o in zip(self.rows, self.columns, self.owner, strict=True) if r == c]
        return [self.dim + o for o in sorted(set(diagonal))]

    def factor(self, b: Float[Tensor, "*N s"]) -> Float[Tensor, "*N d d"]:
        """K(b)."""
        d = self.dim
        on_diagonal = torch.tensor([r == c for r, c in zip(self.rows, self.columns, strict=True)], device=b.device)
        values = b[..., list(self.owner)]
        entries = torch.where(on_diagonal, values.exp(), values)
        index = torch.tensor([r * d + c for r, c in zip(self.rows, self.columns, strict=True)], device=b.device)
        flat = torch.zeros(*b.shape[:-1], d * d, dtype=b.dtype, device=b.device)
        return flat.index_add(-1, index, entries).unflatten(-1, (d, d))

    def log_det(self, b: Float[Tensor, "*N s"]) -> Float[Tensor, "*N"]:
        """log det K(b)."""
        diagonal = [o for r, c, o in zip(self.rows, self.columns, self.owner, strict=True) if r == c]
        return b[..., diagonal].sum(-1)

    def features(self, nodes: Float[Tensor, "Q d"]) -> Float[Tensor, "Q d p"]:
        """∂(a + K t)/∂p at p = 0, for each node t."""
        count, d = nodes.shape
        features = torch.zeros(count, d, self.size, dtype=nodes.dtype, device=nodes.device)
        features[:, range(d), range(d)] = 1
        for row, column, owner in zip(self.rows, self.columns, self.owner, strict=True):
            features[:, row, d + owner] += nodes[:, column]
        return features


def make_family(name: str, dim: int) -> Family:
    """The family of this name: diagonal, isotropic or full."""
    choice("family", name, ("diagonal", "isotropic", "full"))
    if name == "diagonal":
        return Family(dim, tuple(range(dim)), tuple(range(dim)), tuple(range(dim)))
    if name == "isotropic":
        return Family(dim, tuple(range(dim)), tuple(range(dim)), (0,) * dim)
    rows, columns = torch.tril_indices(dim, dim).tolist()
    return Family(dim, tuple(rows), tuple(columns), tuple(range(len(rows))))
