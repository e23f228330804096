"""Samples in the layout that a model takes: rows or images, channels first or last."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from vaescope import validation
from vaescope.data.dataset import channels_first
from vaescope.encoded.sample import Samples
from vaescope.protocol import LatentModel

PROBED = 2  # samples that are encoded to see whether a layout is right
SMALLEST_SIDE = 4  # of arrays (N, H, W) that are images


@dataclass(frozen=True, eq=False)
class ModelSamples:
    """Samples as a model takes them, and their shape if they are images."""

    x: Samples
    image_shape: tuple[int, int, int] | None = None


def in_layout_of(model: LatentModel, x: Samples, auxiliary: Samples | None = None) -> ModelSamples:
    """The first layout of x that the model can encode; x as it is if there is none, or only one.

    Args:
        model: a `LatentModel`.
        x: rows or images, a sample along the first axis.
        auxiliary: labels or rows of numbers, one per sample.
    """
    image = model.image_shape or _image_shape(x)
    layouts = [] if model.flattens_images else [*_layouts(x, model.image_shape)]
    if len(layouts) < 2:
        return ModelSamples(x, image)
    labels = None if auxiliary is None else auxiliary[:PROBED]
    return ModelSamples(next((found for found in layouts if _encodes(model, found[:PROBED], labels)), x), image)


def _encodes(model: LatentModel, x: Samples, auxiliary: Samples | None) -> bool:
    inputs = validation.tensor(x, "x", finite=False)
    try:
        with torch.no_grad():
            model.encode(inputs) if auxiliary is None else model.encode(inputs, auxiliary)
    except Exception:  # a user's function may raise anything
        return False
    return True


def _layouts(x: Samples, image: tuple[int, int, int] | None) -> Iterator[Samples]:
    yield x
    numbers = math.prod(x.shape[1:])
    if image is not None and numbers == math.prod(image) and x.ndim == 2:
        yield x.reshape(len(x), *image)
    if x.ndim in (3, 4):
        moved = _moved(x)
        if moved.shape != x.shape:
            yield moved
        yield moved.reshape(len(x), -1)
    elif x.ndim > 2:
        yield x.reshape(len(x), -1)


def _moved(x: Samples) -> Samples:
    """Images with their channels first."""
    if isinstance(x, np.ndarray):
        return channels_first(x)
    found = channels_first(np.empty(x.shape[1:], np.uint8)[None])  # decides by the shape alone
    if x.ndim == 3:
        return x[:, None]
    return x if found.shape[1:] == x.shape[1:] else x.movedim(-1, 1)


def _image_shape(x: Samples) -> tuple[int, int, int] | None:
    """(channels, height, width) of samples that are images."""
    if x.ndim not in (3, 4) or min(sorted(x.shape[1:])[-2:]) < SMALLEST_SIDE:
        return None
    shape = _moved(x[:1]).shape
    return int(shape[1]), int(shape[2]), int(shape[3])
