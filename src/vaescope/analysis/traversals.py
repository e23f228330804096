"""What a decoder makes of one latent at a time, drawn as images or curves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.models import drawable_shape
from vaescope.analysis.samples import shape_of_flat_images
from vaescope.core.errors import InputError

SPAN = 2.0  # of a traversal, in standard deviations of the prior


def image_shape(sample: EncodedSample) -> tuple[int, int, int] | None:
    """(channels, height, width) of outputs that are images, by the model or by how their columns correlate."""
    known = drawable_shape(sample.model, sample.decoded.shape[1])
    if known is None and sample.model.image_shape is None and sample.decoded.shape == sample.observations.shape:
        return shape_of_flat_images(sample.observations)
    return known


def value_limits(outputs: Tensor) -> tuple[float, float]:
    """What is drawn black and white: 0 and 1, or the range of the outputs if they exceed these."""
    low, high = float(outputs.min()), float(outputs.max())
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


def can_be_drawn(sample: EncodedSample) -> bool:
    """Whether outputs are finite, and images or of the shape of x."""
    try:
        output = sample.decoded
    except InputError:
        return False
    drawable = output.shape == sample.observations.shape or image_shape(sample) is not None
    return drawable and bool(output.isfinite().all())


@torch.no_grad()
def traverse(sample: EncodedSample, latent: int, steps: int) -> tuple[list[float], Float[Tensor, "S n"]]:
    """Values of a latent over the prior, and outputs with the others as those of a typical sample.

    That is the sample at the median distance from the centre of all codes; at the centre itself there may be no data.
    """
    centre = float(sample.prior_mean[:, latent].mean())
    width = float(sample.prior_variance[:, latent].mean()) ** 0.5
    values = [float(v) for v in np.linspace(centre - SPAN * width, centre + SPAN * width, steps)]
    distance = (sample.mean - sample.mean.median(0).values).norm(dim=1)
    row = int((distance - distance.median()).abs().argmin())
    codes = sample.mean[row].repeat(steps, 1)
    codes[:, latent] = torch.tensor(values, dtype=codes.dtype)
    return values, sample.decode(codes, torch.full((steps,), row)).double()


def standardise_outputs(sample: EncodedSample, outputs: Float[Tensor, "S n"]) -> Float[Tensor, "S n"]:
    """Outputs in standard deviations over the data.

    A column that hardly varies has a twentieth of the typical deviation as its scale, and zero if it is constant.
    """
    x = sample.observations
    deviation = x.std(0, correction=0)
    least = 0.05 * float(deviation.square().mean().sqrt())
    return ((outputs - x.mean(0)) / deviation.clamp(min=max(least, 1e-12))).where(deviation > 0, 0.0)


def draw_images(
    axes: Sequence[Axes],
    outputs: Float[Tensor, "S n"],
    image: tuple[int, int, int],
    *,
    label: str,
    limits: tuple[float, float] | None = None,
) -> None:
    """A row of images.

    Args:
        axes: an axis per image.
        outputs: flattened images.
        image: (channels, height, width).
        label: what is written before the row.
        limits: values of black and white; by default 0 and 1, or the range of the outputs if they exceed these.
    """
    low, high = limits or value_limits(outputs)
    frames = ((outputs.double() - low) / max(high - low, 1e-12)).clamp(0, 1).reshape(-1, *image).permute(0, 2, 3, 1)
    for axis, frame in zip(axes, frames.cpu().numpy(), strict=True):
        axis.imshow(frame[..., 0] if image[0] == 1 else frame[..., :3], cmap="gray", vmin=0, vmax=1)
        axis.set_xticks([])
        axis.set_yticks([])
    axes[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)


def draw_curves(axis: Axes, values: Sequence[float], curves: Float[Tensor, "S n"], outputs: Sequence[int]) -> None:
    """Some outputs as functions of a latent."""
    for output in outputs:
        axis.plot(values, curves[:, output].numpy(), lw=1.3, label=f"x{output}")
    axis.grid(visible=True, alpha=0.4)


def most_changing(curves: Float[Tensor, "S n"], count: int) -> list[int]:
    """The outputs that change most."""
    return [int(k) for k in curves.std(0, correction=0).argsort(descending=True)[:count]]
