r"""Taylor coefficients of the misfit V(u) = ½ ‖f(z(u)) - x‖² at x = f(z), where its first derivative is zero.

With columns J_i, second derivatives H_ij and third derivatives T_ijk of the decoder, all vectors of outputs,

.. math:: V_{ij} = J_i\cdot J_j,\quad V_{ijk} = J_i\cdot H_{jk} + J_j\cdot H_{ik} + J_k\cdot H_{ij},\quad
    \sum_{kl} V_{kkll} = \Big\|\sum_k H_{kk}\Big\|^2 + 2\sum_{kl}\|H_{kl}\|^2 + 4\sum_{kl} J_k\cdot T_{kll}.

Everything is in u, the coordinate in which posteriors are Gaussian; for an unbounded prior u is z.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.distributions import Prior
from vaescope.theory.derivatives import CHUNK_ELEMENTS, Decoder, check_decoder, check_latents, decode_flat, push_forward
from vaescope.theory.optimal import check_support

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Taylor:
    """The decoder's first two derivatives at some points, and those of the prior's log density, in u."""

    function: Function
    prior: Prior
    u: Float[Tensor, "N d"]
    J: Float[Tensor, "N n d"]
    H: Float[Tensor, "N n d d"]
    log_prior: Float[Tensor, " N"]
    slope: Float[Tensor, "N d"]
    curvature: Float[Tensor, "N d"]
    """-(log p)'', not clamped: negative where the prior is not log-concave."""

    def third(self) -> Float[Tensor, "N d d d"]:
        """V_ijk."""
        part = torch.einsum("noi,nojk->nijk", self.J, self.H)
        return part + part.permute(0, 2, 1, 3) + part.permute(0, 2, 3, 1)

    def fourth(self, frame: Float[Tensor, "N d d"]) -> Float[Tensor, " N"]:
        """V_ijkl C_ij C_kl, where C = A Aᵀ and the columns of A are given."""
        turned = torch.einsum("noij,nik,njl->nokl", self.H, frame, frame)
        trace = turned.diagonal(dim1=2, dim2=3).sum(-1)
        second = trace.square().sum(1) + 2 * turned.square().sum((1, 2, 3))
        columns = torch.einsum("noi,nik->nok", self.J, frame)

        def laplacian(u: Tensor) -> Tensor:
            parts = [along(along(self.function, column), column)(u) for column in frame.unbind(-1)]
            return torch.stack(parts).sum(0)

        third = [
            (columns[:, :, k] * along(laplacian, column)(self.u)).sum(1) for k, column in enumerate(frame.unbind(-1))
        ]
        return second + 4 * torch.stack(third).sum(0)


def along(function: Function, direction: Float[Tensor, "*shape"]) -> Function:
    """The derivative of a function in a direction of its own at each point."""

    def derivative(u: Tensor) -> Tensor:
        return push_forward(function, u, direction)[1]

    return derivative


def elementwise_derivatives(function: Function, u: Float[Tensor, "N d"]) -> tuple[Tensor, Tensor, Tensor]:
    """Value, first and second derivative of a function that acts on every entry separately."""
    ones = torch.ones_like(u)
    return function(u), along(function, ones)(u), along(along(function, ones), ones)(u)


def expand_misfit(decoder: Decoder, z: Float[Tensor, "N d"], prior: Prior) -> Iterator[Taylor]:
    """Taylor coefficients of consecutive chunks of points, so that memory does not grow with N."""
    check_latents(z)
    outputs = check_decoder(decoder, z)
    check_support(z, prior)

    def function(u: Tensor) -> Tensor:
        return decode_flat(decoder, prior.to_support(u))

    def log_density(u: Tensor) -> Tensor:
        return prior.log_density(prior.to_support(u)) + prior.log_derivative(u)

    for u in prior.from_support(z).split(max(1, CHUNK_ELEMENTS // (outputs * z.shape[1] ** 2))):
        value, slope, second = elementwise_derivatives(log_density, u)
        J, H = _first_and_second(function, u)
        yield Taylor(function, prior, u, J, H, value.sum(1), slope, -second)


def _first_and_second(function: Function, u: Float[Tensor, "N d"]) -> tuple[Tensor, Tensor]:
    d = u.shape[1]
    axes = torch.eye(d, dtype=u.dtype, device=u.device).unsqueeze(1).expand(d, *u.shape)
    first = [along(function, axis) for axis in axes]
    rows: list[list[Tensor]] = [[] for _ in range(d)]
    for i in range(d):
        for j in range(d):
            rows[i].append(rows[j][i] if j < i else along(first[i], axes[j])(u))
    J = torch.stack([column(u) for column in first], dim=-1)
    return J, torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
