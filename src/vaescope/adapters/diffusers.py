"""A model from the autoencoders of diffusers, for images, video and audio: latents have channels and positions."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from vaescope.adapters.base import Adapted
from vaescope.core import validation
from vaescope.core.calls import evaluation_mode
from vaescope.core.errors import InputError, first_line
from vaescope.protocol import ModelSpec


def from_diffusers(
    model: Any,
    *,
    image_shape: tuple[int, int, int] | None = None,
    sample_shape: tuple[int, ...] | None = None,
    name: str | None = None,
) -> Adapted:
    """A model from any autoencoder of diffusers with a Gaussian posterior; channels and positions are reported.

    A sample is encoded and decoded to find the shape of the latents.

    Args:
        model: an `AutoencoderKL`, or another autoencoder whose `encode` returns a `latent_dist`.
        image_shape: (channels, height, width) of the images that it is used with; a model of videos takes them as
            single frames.
        sample_shape: of other samples: (channels, frames, height, width) of videos, (channels, length) of audio.
        name: what reports call the model; its class by default.
    """
    kind = type(model).__name__
    if not all(hasattr(model, part) for part in ("encode", "decode", "config")):
        raise InputError(f"from_diffusers needs an autoencoder of diffusers, got {kind}.")
    if (image_shape is None) == (sample_shape is None):
        raise InputError("specify one of image_shape=(channels, height, width) and sample_shape=(channels, ...).")
    shape = tuple(sample_shape or validation.image_shape(image_shape or ()))
    single_frame = [(shape[0], 1, *shape[1:])] if image_shape else []  # for models of videos
    given, latent = _probe(model, kind, [shape, *single_frame])
    known = {"num_frames": 1} if "num_frames" in inspect.signature(model.decode).parameters else {}

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        if x[0].numel() != math.prod(shape):
            raise InputError(f"this model is adapted to samples of {shape}, got {tuple(x.shape[1:])}.")
        moments = _moments(model.encode(x.reshape(len(x), *given)))
        assert moments is not None
        return moments[0].flatten(1), moments[1].flatten(1)

    def decode(z: Tensor) -> Tensor:
        codes = z.reshape(len(z), *latent)
        parts = codes.split(1) if known else [codes]  # frames of one video must not see each other
        decoded = [model.decode(part, **known) for part in parts]
        return torch.cat([getattr(found, "sample", found) for found in decoded])  # some return the tensor itself

    channels, positions = latent[0], latent[1:]
    folded = (channels, math.prod(positions[:-1]), positions[-1])  # frames below each other, audio in one row
    spec = ModelSpec(
        latent_dim=math.prod(latent),
        name=name or kind,
        image_shape=image_shape and (shape[0], shape[1], shape[2]),
        latent_shape=folded,
        latent_scaling=_scaling(model, channels),
    )
    adapted = Adapted(spec, encode, decode, (model,))
    try:
        with torch.no_grad():
            decoded = adapted.decode(torch.zeros(1, adapted.latent_dim, dtype=next(model.parameters()).dtype))
    except Exception as error:
        raise InputError(f"{kind} cannot decode latents of {latent}: {first_line(error)}") from None
    if decoded.shape[1] != math.prod(shape):
        raise InputError(
            f"{kind} decodes samples of {shape} to {decoded.shape[1]} numbers instead of {math.prod(shape)}; pass a "
            "shape that it can restore, such as sides that are multiples of its compression, or 4k + 1 frames."
        )
    return adapted


def _probe(model: Any, kind: str, shapes: list[tuple[int, ...]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first of these shapes of a sample that can be encoded, and (channels, positions ...) of its latents."""
    weights, failures, found = next(model.parameters()), [], None
    for given in shapes:
        try:
            with torch.no_grad(), evaluation_mode((model,)):
                found = model.encode(torch.zeros(1, *given, dtype=weights.dtype, device=weights.device))
            break
        except Exception as error:
            failures.append(f"{type(error).__name__}: {first_line(error)}")
    if found is None:
        raise InputError(
            f"{kind} cannot encode samples of {shapes[0]}: {failures[0]}; pass the shape that it takes, "
            "image_shape=(channels, height, width) or sample_shape=(channels, frames, height, width)."
        )
    moments = _moments(found)
    if hasattr(getattr(model, "quantize", None), "n_e"):
        raise InputError(f"{kind} is a VQ-VAE: pass indices of its codes, vs.adapters.from_codebook(encode, ...).")
    if moments is None:
        returned = getattr(found, "latent_dist", found)
        raise InputError(f"{kind} is no VAE: it returns latents without a variance ({type(returned).__name__}).")
    if moments[0].shape != moments[1].shape or moments[0].ndim < 3:
        listed = " and ".join(str(tuple(value.shape)) for value in moments)
        raise InputError(f"{kind} has means and variances of {listed}, not one variance per latent.")
    return given, tuple(moments[0].shape[1:])


def _moments(found: object) -> tuple[Tensor, Tensor] | None:
    """Mean and variance of the posterior in an encoder's output."""
    posterior = getattr(found, "latent_dist", None)
    mean, variance, std = (getattr(posterior, part, None) for part in ("mean", "var", "std"))
    if variance is None and isinstance(std, Tensor):
        variance = std.square()
    return (mean, variance) if isinstance(mean, Tensor) and isinstance(variance, Tensor) else None


def _scaling(model: Any, channels: int) -> tuple[float, float] | tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Scaling and shift, numbers or one per channel: a model of the codes is trained on (z - shift) · scaling."""
    mean, std = (getattr(model.config, part, None) for part in ("latents_mean", "latents_std"))
    if mean is None or std is None:
        mean, std = (getattr(model, part, None) for part in ("latents_mean", "latents_std"))
    if mean is not None and std is not None and len(mean) == len(std) == channels:
        return tuple(1 / float(value) for value in std), tuple(map(float, mean))
    scaling, shift = (getattr(model.config, part, None) for part in ("scaling_factor", "shift_factor"))
    return None if scaling is None else (float(scaling), float(shift or 0.0))
