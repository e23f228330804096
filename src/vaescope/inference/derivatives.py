"""Jacobians of decoders by forward-mode differentiation: its cost grows with the latents, not with the outputs."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vaescope.core.errors import InputError, first_line

Decoder = Callable[[Tensor], Tensor]
CHUNK_ELEMENTS = 2**24  # Jacobian entries in memory at a time when only a summary per point is needed
STACKED_ELEMENTS = 2**18  # Jacobian entries up to which all columns are computed in one pass


def check_latents(z: Tensor, name: str = "z") -> None:
    """Latents must be a finite floating-point tensor with a row per point."""
    if not isinstance(z, Tensor) or z.ndim != 2 or not z.is_floating_point():
        shape = f"{z.dtype} of shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        raise InputError(f"{name} must be a floating-point tensor of shape (N, d), got {shape}.")
    if not bool(z.isfinite().all()):
        raise InputError(f"{name} must be finite, got NaN or infinity.")


def decode_flat(decoder: Decoder, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n"]:
    """The decoder's output with all axes but the first flattened."""
    output = decoder(z)
    if not isinstance(output, Tensor) or output.ndim < 1 or len(output) != len(z):
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(f"decoder must map (N, d) to (N, ...), got {tuple(z.shape)} -> {shape}.")
    return output.reshape(len(z), -1)


def check_decoder(decoder: Decoder, z: Float[Tensor, "N d"]) -> int:
    """Decode and differentiate at the first point; returns n, the number of outputs.

    No other point is decoded: a decoder with an auxiliary value per row can be checked with that of the first row.
    """
    probe = z[:1]
    output = decode_flat(decoder, probe)
    if not bool(output.isfinite().all()):
        raise InputError("decoder returned NaN or infinity at the first point; check its inputs and weights.")
    try:
        columns = _column_by_column(decoder, probe)
    except (RuntimeError, NotImplementedError) as error:
        reason = first_line(error)
        raise InputError(f"decoder must support forward-mode differentiation, but torch reports: {reason}") from None
    # compared 1e-3 away: a network of ReLUs may be constant around a point and change further away
    if not bool(columns.any()) and bool((decode_flat(decoder, probe + 1e-3) != output).any()):
        raise InputError("decoder changes with z, but its derivative is zero: it detaches its output from z.")
    return output.shape[1]


def central_differences(decoder: Decoder, z: Float[Tensor, "N d"], step: Float[Tensor, " d"]) -> Float[Tensor, "N n d"]:
    """The Jacobian by central differences, for decoders that torch cannot differentiate.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: points at which to evaluate.
        step: step size of each latent.

    >>> central_differences(lambda z: z**2, torch.tensor([[1.0, 3.0]]), torch.tensor([0.25, 0.25]))
    tensor([[[2., 0.],
             [0., 6.]]])
    """
    columns = []
    for k in range(z.shape[1]):
        offset = torch.zeros_like(z)
        offset[:, k] = step[k]
        with torch.no_grad():
            columns.append((decode_flat(decoder, z + offset) - decode_flat(decoder, z - offset)) / (2 * step[k]))
    return torch.stack(columns, dim=-1)


def hessian(
    function: Callable[[Tensor], Tensor], u: Float[Tensor, "N d"], latents: Sequence[int] | None = None
) -> tuple[Float[Tensor, " N"], Float[Tensor, "N d"], Float[Tensor, "N k d"]]:
    """Value, gradient and rows of the Hessian of a scalar function of each point, by reverse-mode differentiation.

    Args:
        function: (N, d) -> (N,); needs no forward mode.
        u: points at which to evaluate.
        latents: rows of the Hessian; all by default.

    >>> hessian(lambda u: u.prod(1), torch.tensor([[2.0, 3.0]]))[2]
    tensor([[[0., 1.],
             [1., 0.]]])
    """
    with torch.enable_grad():
        here = u.detach().clone().requires_grad_()
        value = function(here)
        if not value.requires_grad:
            raise InputError("log_likelihood detaches its output from z.")
        (slope,) = torch.autograd.grad(value.sum(), here, create_graph=True)
        rows = []
        for k in range(u.shape[1]) if latents is None else latents:
            second = None
            if slope.requires_grad:
                (second,) = torch.autograd.grad(slope[:, k].sum(), here, retain_graph=True, allow_unused=True)
            rows.append(torch.zeros_like(u) if second is None else second.detach())
    return value.detach(), slope.detach(), torch.stack(rows, dim=1)


def push_forward(function: Decoder, z: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """The value of a function, and its derivative in a direction, by forward-mode differentiation."""
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no forward mode
        try:
            found = torch.func.jvp(function, (z,), (direction,))
        except (NotImplementedError, RuntimeError, ValueError) as error:
            if "mkldnn_rnn_layer" not in str(error):
                raise
            with _native_recurrence():
                found = torch.func.jvp(function, (z,), (direction,))
    return found[0], found[1]


@contextlib.contextmanager
def _native_recurrence() -> Iterator[None]:
    """LSTM layers as PyTorch computes them without oneDNN, whose layers have no forward mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TF32 on other devices, about any use of these flags
        flags = torch.backends.mkldnn.flags(enabled=False)
        flags.__enter__()
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flags.__exit__(None, None, None)


def along(function: Decoder, direction: Float[Tensor, "*shape"]) -> Decoder:
    """The derivative of a function in a direction of its own at each point."""

    def derivative(u: Tensor) -> Tensor:
        return push_forward(function, u, direction)[1]

    return derivative


def elementwise_derivatives(function: Decoder, u: Float[Tensor, "N d"]) -> tuple[Tensor, Tensor, Tensor]:
    """Value, first and second derivative of a function that acts on every entry separately."""
    ones = torch.ones_like(u)
    return function(u), along(function, ones)(u), along(along(function, ones), ones)(u)


def along_axes(z: Float[Tensor, "N *Q d"]) -> tuple[Float[Tensor, "M *Q d"], Float[Tensor, "M *Q d"]]:
    """All points once for each latent, and its direction: `push_forward` then gives all columns of a Jacobian at once.

    Forward-mode differentiation takes about 0.2 ms per operation however few the points are, so one pass is faster.

    >>> points, directions = along_axes(torch.tensor([[5.0, 6.0]]))
    >>> points.tolist(), directions.tolist()
    ([[5.0, 6.0], [5.0, 6.0]], [[1.0, 0.0], [0.0, 1.0]])
    """
    d = z.shape[-1]
    axes = torch.eye(d, dtype=z.dtype, device=z.device).repeat_interleave(len(z), dim=0)
    points = z.repeat(d, *[1] * (z.ndim - 1))
    return points, axes.reshape(len(points), *[1] * (z.ndim - 2), d).expand_as(points)


def as_columns(stacked: Float[Tensor, "M ..."], d: int) -> Float[Tensor, "N ... d"]:
    """What `push_forward` gives at the points and directions of `along_axes`, with the latents as the last axis."""
    return stacked.unflatten(0, (d, -1)).movedim(0, -1)


def jacobian_column(decoder: Decoder, z: Float[Tensor, "N d"], k: int) -> Float[Tensor, "N n"]:
    """∂f/∂z_k at every point, the output flattened; `check_decoder` explains decoders that fail here."""

    def flat(points: Tensor) -> Tensor:
        return decode_flat(decoder, points)

    direction = torch.zeros_like(z)
    direction[:, k] = 1
    return push_forward(flat, z, direction)[1]


def jacobian_columns(decoder: Decoder, z: Float[Tensor, "N d"], outputs: int) -> Float[Tensor, "N n d"]:
    """All columns of the Jacobian, in one pass if they are small."""
    if outputs * z.numel() > STACKED_ELEMENTS:
        return _column_by_column(decoder, z)
    return as_columns(push_forward(lambda points: decode_flat(decoder, points), *along_axes(z))[1], z.shape[1])


def _column_by_column(decoder: Decoder, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n d"]:
    return torch.stack([jacobian_column(decoder, z, k) for k in range(z.shape[1])], dim=-1)


def jacobian(decoder: Decoder, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n d"]:
    """J[i, :, k] = ∂f/∂z_k at z_i, the output flattened, by forward-mode differentiation.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: points at which to evaluate.

    >>> jacobian(lambda z: z**2, torch.tensor([[1.0, 3.0]]))
    tensor([[[2., 0.],
             [0., 6.]]])
    """
    check_latents(z)
    return jacobian_columns(decoder, z, check_decoder(decoder, z))


def jacobians(decoder: Decoder, z: Float[Tensor, "N d"]) -> Iterator[Float[Tensor, "M n d"]]:
    """The Jacobians of consecutive chunks of points, so that memory does not grow with N."""
    check_latents(z)
    outputs = check_decoder(decoder, z)
    for chunk in z.split(max(1, CHUNK_ELEMENTS // (outputs * z.shape[1]))):
        yield jacobian_columns(decoder, chunk, outputs)


def column_norms(decoder: Decoder, z: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
    """‖J_{:,k}(z)‖: how far the output moves per unit of each latent.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: points at which to evaluate.
    """
    return torch.cat([J.norm(dim=1) for J in jacobians(decoder, z)])
