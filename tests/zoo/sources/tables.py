"""Tables and embedded manifolds of the zoo."""

from __future__ import annotations

import numpy as np
from sklearn import datasets as sk

from tests.zoo.arrays import Data, some, split, standardised


def embedded(u: np.ndarray, outputs: int, noise: float) -> np.ndarray:
    """A smooth random embedding of points into more dimensions, with noise."""
    rng = np.random.default_rng(1)
    u = standardised(u)
    hidden = np.tanh(u @ rng.normal(size=(u.shape[1], 2 * outputs)) + rng.normal(size=2 * outputs))
    linear = u @ rng.normal(size=(u.shape[1], outputs))
    x = standardised(linear + hidden @ rng.normal(size=(2 * outputs, outputs)))
    return x + noise * rng.normal(size=x.shape)


def wine() -> Data:
    return split(standardised(sk.load_wine().data), 0.3)


def blobs() -> Data:
    return split(standardised(sk.make_blobs(1500, 8, centers=6, cluster_std=1.5, random_state=0)[0]))


def moons() -> Data:
    return split(embedded(sk.make_moons(1500, noise=0.08, random_state=0)[0], 8, 0.1))


def cancer() -> Data:
    return split(standardised(sk.load_breast_cancer().data))


def diabetes() -> Data:
    return split(standardised(sk.load_diabetes().data))


def swiss() -> Data:
    return split(embedded(sk.make_swiss_roll(1600, noise=0.1, random_state=0)[0], 10, 0.1))


def survey() -> Data:
    """Answers of 2,400 persons to nine questions."""
    from statsmodels.datasets import fair

    return split(standardised(some(fair.load_pandas().data.to_numpy(), 2400)))


def health() -> Data:
    """Use of medical care by 3,000 persons, and nine properties of them."""
    from statsmodels.datasets import randhie

    return split(standardised(some(randhie.load_pandas().data.to_numpy(), 3000)))


def scurve() -> Data:
    return split(embedded(sk.make_s_curve(1800, noise=0.05, random_state=0)[0], 12, 0.1))


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


def terrain() -> Data:
    """Heights of a landscape at 4 x 4 points around 1,500 places, less their mean; it ships with matplotlib."""
    from matplotlib import cbook

    with cbook.get_sample_data("jacksboro_fault_dem.npz") as file:
        heights = file["elevation"].astype(float)
    corners = np.random.default_rng(0).integers((heights.shape[0] - 16, heights.shape[1] - 16), size=(1500, 2))
    rows = np.stack([heights[top : top + 16 : 4, left : left + 16 : 4].ravel() for top, left in corners])
    return split(standardised(rows - rows.mean(1, keepdims=True)))


def classes() -> Data:
    """Twelve correlated numbers of points in four clusters."""
    x, _ = sk.make_classification(
        1400, n_features=12, n_informative=5, n_redundant=5, n_clusters_per_class=2, class_sep=1.5, random_state=0
    )
    return split(standardised(x))


def sphere() -> Data:
    """Points on a sphere."""
    points = np.random.default_rng(0).normal(size=(1800, 3))
    return split(embedded(points / np.linalg.norm(points, axis=1, keepdims=True), 10, 0.1))
