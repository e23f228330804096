"""Jacobians of decoders by forward mode: d directional derivatives, whatever the number of outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.errors import InputError

Decoder = Callable[[Tensor], Tensor]
CHUNK_ELEMENTS = 2**24  # Jacobian entries held at a time where only a summary per point is wanted


def check_latents(z: Tensor, name: str = "z") -> None:
    """Latents are finite, floating, and have a row per point."""
    if not isinstance(z, Tensor) or z.ndim != 2 or not z.is_floating_point():
        shape = f"{z.dtype} of shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        raise InputError(f"{name} must be a floating-point tensor of shape (N, d), got {shape}.")
    if not bool(z.isfinite().all()):
        raise InputError(f"{name} must be finite, got NaN or infinity.")


def decode_flat(decoder: Decoder, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n"]:
    """The decoder's output with all but the first axis flattened, checked once."""
    output = decoder(z)
    if not isinstance(output, Tensor) or output.ndim < 1 or len(output) != len(z):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(f"decoder must map (N, d) to (N, ...), got {tuple(z.shape)} -> {shape}.")
    return output.reshape(len(z), -1)


def check_decoder(decoder: Decoder, z: Float[Tensor, "N d"]) -> int:
    """Try the decoder on one point; returns n, the number of outputs."""
    probe = z[:1]
    output = decode_flat(decoder, probe)
    if not bool(output.isfinite().all()):
        raise InputError("decoder returned NaN or infinity at the first point; check its inputs and weights.")
    try:
        columns = _columns(decoder, probe)
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"decoder must be differentiable in forward mode, but torch says: {reason}") from None
    if not bool(columns.any()) and bool((decode_flat(decoder, probe + 1) != output).any()):
        raise InputError("decoder moves with z, but its derivative is zero: it detaches its output from z.")
    return output.shape[1]


def differences(decoder: Decoder, z: Float[Tensor, "N d"], step: Float[Tensor, " d"]) -> Float[Tensor, "N n d"]:
    """The Jacobian by central differences, for decoders that cannot be differentiated; `step` per latent.

    >>> differences(lambda z: z**2, torch.tensor([[1.0, 3.0]]), torch.tensor([0.25, 0.25]))
    tensor([[[2., 0.],
             [0., 6.]]])
    """
    columns = []
    for k in range(z.shape[1]):
        moved = torch.zeros_like(z)
        moved[:, k] = step[k]
        with torch.no_grad():
            columns.append((decode_flat(decoder, z + moved) - decode_flat(decoder, z - moved)) / (2 * step[k]))
    return torch.stack(columns, dim=-1)


def _columns(decoder: Decoder, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n d"]:
    def flat(points: Tensor) -> Tensor:
        return decode_flat(decoder, points)

    columns = []
    for k in range(z.shape[1]):
        direction = torch.zeros_like(z)
        direction[:, k] = 1
        columns.append(torch.func.jvp(flat, (z,), (direction,))[1])
    return torch.stack(columns, dim=-1)


def jacobian(decoder: Decoder, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n d"]:
    """J[i, :, k] = ∂f/∂z_k at z_i, the output flattened. One forward-mode pass per latent.

    >>> jacobian(lambda z: z**2, torch.tensor([[1.0, 3.0]]))
    tensor([[[2., 0.],
             [0., 6.]]])
    """
    check_latents(z)
    check_decoder(decoder, z)
    return _columns(decoder, z)


def jacobians(decoder: Decoder, z: Float[Tensor, "N d"]) -> Iterator[Float[Tensor, "M n d"]]:
    """The same in chunks of points, so that memory is bounded whatever N is."""
    check_latents(z)
    outputs = check_decoder(decoder, z)
    for part in z.split(max(1, CHUNK_ELEMENTS // (outputs * z.shape[1]))):
        yield _columns(decoder, part)


def column_norms(decoder: Decoder, z: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
    """‖J_{:,k}(z)‖: how far the output moves per unit of every latent."""
    return torch.cat([J.norm(dim=1) for J in jacobians(decoder, z)])
