"""Convolutions with 4 x 4 kernels, stride 2 and padding 1 in bfloat16, and their gradients (`convolution.cpp`).

oneDNN reaches half of the speed of AVX512-BF16 processors for gradients of weights and for transposed convolutions, and
a tenth for transposed convolutions to one or three channels. Its convolutions are at full speed, and are used here.

Images have the shape (N, channels, height, width) with channels last in memory, weights (coarse, 4, 4, fine), where the
coarse image has half the sides of the fine one. Weights and their gradients are float32.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vaescope.core.errors import InputError
from vaescope.kernels.instructions import cpu_supports
from vaescope.kernels.library import load_library

KERNEL, STRIDE, PADDING = 4, 2, 1
SOURCE = Path(__file__).with_name("convolution.cpp")
INSTRUCTIONS = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512bf16")
GROUP = 32  # numbers of channels are multiples of this
FEW = 4  # except that a fine image may have at most this many


def has_kernel(fine: tuple[int, int, int], coarse: int) -> bool:
    """Whether there is a kernel for these sizes, and this processor can run it.

    Args:
        fine: channels, height and width of the fine image.
        coarse: channels of the coarse image.
    """
    return _fits(fine, coarse) and is_available()


def _fits(fine: tuple[int, int, int], coarse: int) -> bool:
    channels, height, width = fine
    few = channels <= FEW and width % 4 == 0
    even = height % 2 == width % 2 == 0
    return min(*fine, coarse) > 0 and even and coarse % GROUP == 0 and (few or channels % GROUP == 0)


def is_available() -> bool:
    """Whether kernels can run: on Linux, with a compiler, and with AVX512-BF16 but not AMX, which is faster."""
    return _library() is not None


@cache
def _library() -> ctypes.CDLL | None:
    if cpu_supports("amx_tile") or not cpu_supports("avx512_bf16") or not sys.platform.startswith("linux"):
        return None
    return load_library(SOURCE, *INSTRUCTIONS)


# with gradients of any order: each of these is linear in both arguments, and its gradients are the other two ---------


class _Bilinear(torch.autograd.Function):
    """A function of two tensors that is linear in each. It has no forward-mode derivative, which cannot be compiled."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)


class Downsample(_Bilinear):
    """The convolution from a fine to a coarse image: `Downsample.apply(fine, weight)`."""

    @staticmethod
    def forward(fine: Tensor, weight: Tensor) -> Tensor:
        return downsample(fine, weight)

    @staticmethod
    def backward(ctx: Any, coarse: Tensor) -> tuple[Tensor | None, Tensor]:
        fine, weight = ctx.saved_tensors
        return Upsample.apply(coarse, weight) if ctx.needs_input_grad[0] else None, WeightGradient.apply(fine, coarse)


class Upsample(_Bilinear):
    """The transposed convolution from a coarse to a fine image: `Upsample.apply(coarse, weight)`."""

    @staticmethod
    def forward(coarse: Tensor, weight: Tensor) -> Tensor:
        return upsample(coarse, weight)

    @staticmethod
    def backward(ctx: Any, fine: Tensor) -> tuple[Tensor, Tensor]:
        coarse, weight = ctx.saved_tensors
        return Downsample.apply(fine, weight), WeightGradient.apply(fine, coarse)


class WeightGradient(_Bilinear):
    """The gradient of the weights: `WeightGradient.apply(fine, coarse)`."""

    @staticmethod
    def forward(fine: Tensor, coarse: Tensor) -> Tensor:
        return weight_gradient(fine, coarse)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor, Tensor]:
        fine, coarse = ctx.saved_tensors
        return Upsample.apply(coarse, weight), Downsample.apply(fine, weight)


# without gradients ---------------------------------------------------------------------------


def downsample(fine: Tensor, weight: Tensor) -> Tensor:
    """The convolution from a fine to a coarse image.

    Args:
        fine: bfloat16, (N, fine, H, W).
        weight: (coarse, 4, 4, fine).
    """
    return _OPERATIONS.downsample(fine, weight)


def upsample(coarse: Tensor, weight: Tensor) -> Tensor:
    """The transposed convolution from a coarse to a fine image.

    Args:
        coarse: bfloat16, (N, coarse, H / 2, W / 2).
        weight: (coarse, 4, 4, fine).
    """
    return _OPERATIONS.upsample(coarse, weight)


def weight_gradient(fine: Tensor, coarse: Tensor) -> Tensor:
    """The gradient of the weights, float32: the product of both images at all places that a weight connects.

    Args:
        fine: bfloat16, (N, fine, H, W): the input of a convolution, or the gradient of a transposed one's output.
        coarse: bfloat16, (N, coarse, H / 2, W / 2).
    """
    return _OPERATIONS.weight_gradient(fine, coarse)


# what these operations compute; the compiler does not look into them


def _downsample(fine: Tensor, weight: Tensor) -> Tensor:
    kernels = weight.to(torch.bfloat16).permute(0, 3, 1, 2)
    with torch.autocast("cpu", enabled=False):
        return _channels_last(F.conv2d(_channels_last(fine), kernels, None, STRIDE, PADDING))


def _upsample(coarse: Tensor, weight: Tensor) -> Tensor:
    fine = _new_fine(coarse, weight)
    _check(fine, coarse, weight)
    _call("vaescope_upsample", _channels_last(coarse), weight.to(torch.bfloat16).contiguous(), fine, fine, coarse)
    return fine


def _weight_gradient(fine: Tensor, coarse: Tensor) -> Tensor:
    gradient = _new_weight(fine, coarse)
    _check(fine, coarse, gradient)
    _call("vaescope_weight_gradient", _channels_last(fine), _channels_last(coarse), gradient, fine, coarse)
    return gradient


def _channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def _check(fine: Tensor, coarse: Tensor, weight: Tensor) -> None:
    """Kernels trust their sizes, so nothing else may reach them."""
    images, channels, height, width = fine.shape
    expected = (images, coarse.shape[1], height // 2, width // 2), (coarse.shape[1], KERNEL, KERNEL, channels)
    if not _fits((channels, height, width), coarse.shape[1]) or (coarse.shape, weight.shape) != expected:
        shapes = ", ".join(str(tuple(t.shape)) for t in (fine, coarse, weight))
        raise InputError(f"no kernel for a fine image, a coarse image and weights of the shapes {shapes}.")
    if fine.dtype != torch.bfloat16 or coarse.dtype != torch.bfloat16:
        raise InputError(f"images must be bfloat16, got {fine.dtype} and {coarse.dtype}.")


def _call(name: str, first: Tensor, second: Tensor, output: Tensor, fine: Tensor, coarse: Tensor) -> None:
    """Call a kernel with two inputs and an output, and the sizes of a fine and a coarse image."""
    images, channels, height, width = fine.shape
    pointers = (ctypes.c_void_p(t.data_ptr()) for t in (first, second, output))
    sizes = (ctypes.c_int64(n) for n in (images, height, width, channels, coarse.shape[1]))
    getattr(_library(), name)(*pointers, *sizes, ctypes.c_int(torch.get_num_threads()))


# shapes of their results


def _new_fine(coarse: Tensor, weight: Tensor) -> Tensor:
    return _new_images(coarse, weight.shape[3], 2 * coarse.shape[2], 2 * coarse.shape[3])


def _new_coarse(fine: Tensor, weight: Tensor) -> Tensor:
    return _new_images(fine, len(weight), fine.shape[2] // 2, fine.shape[3] // 2)


def _new_images(like: Tensor, *size: int | torch.SymInt) -> Tensor:
    return torch.empty((len(like), *size), dtype=torch.bfloat16, device=like.device, memory_format=torch.channels_last)


def _new_weight(fine: Tensor, coarse: Tensor) -> Tensor:
    return torch.empty(coarse.shape[1], KERNEL, KERNEL, fine.shape[1], dtype=torch.float32, device=fine.device)


def _define(name: str, arguments: str, compute: Callable[..., Tensor], new_result: Callable[..., Tensor]) -> None:
    """Register an operation of two tensors with PyTorch."""
    torch.library.define(f"vaescope::{name}", f"({arguments}) -> Tensor")
    torch.library.impl(f"vaescope::{name}", "cpu", compute)
    torch.library.register_fake(f"vaescope::{name}", new_result)


_define("downsample", "Tensor fine, Tensor weight", _downsample, _new_coarse)
_define("upsample", "Tensor coarse, Tensor weight", _upsample, _new_fine)
_define("weight_gradient", "Tensor fine, Tensor coarse", _weight_gradient, _new_weight)
_OPERATIONS = torch.ops.vaescope
