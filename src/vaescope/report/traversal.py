"""Traversals: images decoded while one latent moves and the others keep their values (Bhowal et al. 2024, Fig. 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from vaescope import validation
from vaescope.errors import InputError
from vaescope.report import figures
from vaescope.theory.derivatives import Decoder, decode_flat


def traverse(decoder: Decoder, code: Float[Tensor, " d"], latent: int, values: Sequence[float]) -> Float[Tensor, "S n"]:
    """Outputs while one latent takes the given values and the others stay.

    >>> traverse(lambda z: 10 * z, torch.tensor([1.0, 2.0]), 1, [0.0, 3.0]).tolist()
    [[10.0, 0.0], [10.0, 30.0]]
    """
    codes = code.repeat(len(values), 1)
    codes[:, latent] = torch.as_tensor(values, dtype=code.dtype)
    with torch.no_grad():
        return decode_flat(decoder, codes)


def traversal_figure(
    decoder: Decoder,
    code: Float[Tensor, " d"],
    *,
    image_shape: Sequence[int],
    latents: Sequence[int] | None = None,
    values: Sequence[float] = (-2.0, -1.0, 0.0, 1.0, 2.0),
) -> Figure:
    """A row of images per latent; the number beside it is the root mean square change of a pixel over the row.

    Args:
        decoder: maps latents (N, d) to images (N, ...) with values from 0 to 1.
        code: where the latents that do not move stay, such as the mean of an image.
        image_shape: (channels, height, width), with one or three channels.
        latents: which ones to move; all by default.
        values: of the moving latent.
    """
    shape = validation.image_shape(image_shape)
    chosen = list(range(len(code))) if latents is None else list(latents)
    if shape[0] not in (1, 3) or not chosen or not all(0 <= latent < len(code) for latent in chosen):
        raise InputError(
            f"expected 1 or 3 channels and latents from 0 to {len(code) - 1}, got {shape[0]} channels and {chosen}."
        )
    figure, axes = figures.grid_of_panels(len(chosen), len(values), width=1.1, height=1.1)
    for row, latent in enumerate(chosen):
        outputs = traverse(decoder, code, latent, values)
        if outputs.shape[1] != shape[0] * shape[1] * shape[2]:
            raise InputError(
                f"image_shape {shape} needs {shape[0] * shape[1] * shape[2]} outputs, got {outputs.shape[1]}."
            )
        change = float((outputs - outputs.mean(0)).square().mean().sqrt())
        frames = outputs.reshape(-1, *shape).clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy()
        for step, frame in enumerate(frames):
            axis = axes[row * len(values) + step]
            axis.imshow(frame.squeeze(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            if row == 0:
                axis.set_title(f"{values[step]:g}", fontsize=10)
        axes[row * len(values)].set_ylabel(f"z{latent}\n{change:.2f}", rotation=0, ha="right", va="center", fontsize=10)
    return figure
