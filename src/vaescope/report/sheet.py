"""Contact sheets: many images in one PNG."""

from __future__ import annotations

import base64
import io

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vaescope.extras import require


def contact_sheet(images: Float[Tensor, "N c h w"], *, columns: int, gap: int = 2, zoom: int = 1) -> bytes:
    """A PNG of images in a grid on a grey background.

    Args:
        images: grey or RGB, values from 0 to 1.
        columns: images per row.
        gap: pixels between images.
        zoom: factor by which the sheet is enlarged.

    >>> import torch
    >>> contact_sheet(torch.rand(6, 1, 8, 8), columns=3)[:4]
    b'\\x89PNG'
    """
    count, channels, height, width = images.shape
    rows = -(-count // columns)
    sheet = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, 3), 118, np.uint8)
    pixels = (images.detach().clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    pixels = np.repeat(pixels, 3, axis=3) if channels == 1 else pixels[..., :3]
    for index, image in enumerate(pixels):
        top = gap + (index // columns) * (height + gap)
        left = gap + (index % columns) * (width + gap)
        sheet[top : top + height, left : left + width] = image
    if zoom > 1:
        sheet = sheet.repeat(zoom, 0).repeat(zoom, 1)
    out = io.BytesIO()
    require("PIL.Image", "drawing images").fromarray(sheet).save(out, format="PNG", optimize=True)
    return out.getvalue()


def png_data_uri(png: bytes) -> str:
    """A PNG as a data URI, for an <img> in a self-contained page."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
