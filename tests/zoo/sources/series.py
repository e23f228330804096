"""Time series of the zoo."""

from __future__ import annotations

import numpy as np

from tests.zoo.arrays import Data, split

LENGTH = 24


def windows(values: np.ndarray, step: int = 1) -> np.ndarray:
    """Parts of a series, starting at every `step`-th value."""
    return np.stack([values[start : start + LENGTH] for start in range(0, len(values) - LENGTH, step)])


def without_trend(x: np.ndarray) -> np.ndarray:
    """Rows without their mean and their linear trend, divided by what remains."""
    t = np.arange(LENGTH) - (LENGTH - 1) / 2
    x = x - x.mean(1, keepdims=True)
    x = x - (x @ t / (t @ t))[:, None] * t
    return x / x.std()


def waves() -> Data:
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, 24)
    frequency, phase, height = (
        rng.uniform(1, 2.5, (1600, 1)),
        rng.uniform(-1, 1, (1600, 1)),
        rng.uniform(0.6, 1.6, (1600, 1)),
    )
    return split(height * np.sin(2 * np.pi * frequency * t + phase) + 0.1 * rng.normal(size=(1600, 24)))


def elnino() -> Data:
    """Two years of monthly sea surface temperatures, at every month from 1950 to 2010."""
    from statsmodels.datasets import elnino as recorded

    series = recorded.load_pandas().data.drop(columns="YEAR").to_numpy().ravel()
    x = windows(series)
    return split((x - x.mean()) / x.std(), in_order=True)


def temperatures() -> Data:
    """The temperatures of a day, hour by hour, starting at every seventh hour of a year in two cities."""
    from vega_datasets import data

    rows = []
    for table in (data.sf_temps(), data.seattle_temps()):
        series = table["temp"].to_numpy()
        rows.append(windows(series, 7))
    x = np.concatenate(rows)
    return split((x - x.mean()) / x.std())


def co2() -> Data:
    """24 weekly concentrations of carbon dioxide, without their mean, starting at every week."""
    from statsmodels.datasets import co2 as recorded

    series = recorded.load_pandas().data["co2"].interpolate().to_numpy()
    x = windows(series)
    x = x - x.mean(1, keepdims=True)
    return split(x / x.std())


def stocks() -> Data:
    """Logarithms of prices over 24 months, without their mean, starting at every month."""
    from vega_datasets import data

    table, rows = data.stocks(), []
    for _, own in table.groupby("symbol"):
        series = np.log(own["price"].to_numpy())
        rows.append(windows(series))
    x = np.concatenate(rows)
    x = x - x.mean(1, keepdims=True)
    return split(x / x.std())


def economy() -> Data:
    """Eleven series of the economy of the United States over 24 quarters, without mean and trend, each of unit size."""
    from statsmodels.datasets import macrodata

    table, rows = macrodata.load_pandas().data.drop(columns=["year", "quarter"]), []
    for name in table.columns[:-1]:
        series = table[name].to_numpy()
        series = np.log(series) if (series > 100).all() else series
        rows.append(without_trend(windows(series)))
    return split(np.concatenate(rows))


def employment() -> Data:
    """Employment in industries of the United States over 24 months, without mean and trend, each of unit size."""
    from vega_datasets import data

    table, rows = data.us_employment(), []
    for name in table.columns:
        if name == "month" or table[name].dtype.kind not in "if":
            continue
        series = table[name].to_numpy().astype(float)
        rows.append(without_trend(windows(series)))
    return split(np.concatenate(rows))


def eeg() -> Data:
    """Parts of four channels of an electroencephalogram that ships with matplotlib, without mean and trend."""
    from matplotlib import cbook

    with cbook.get_sample_data("eeg.dat") as file:
        channels = np.fromfile(file, float).reshape(800, 4).T
    return split(np.concatenate([without_trend(windows(channel, 2)) for channel in channels]))
