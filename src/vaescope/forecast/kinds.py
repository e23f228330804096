"""What the data are (binary, values in [0, 1], counts, continuous), and which likelihood and scaling fit them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vaescope.forecast.profile import Profile
from vaescope.settings import LIKELIHOODS
from vaescope.validation import choice

Array = np.ndarray
LARGEST_RATIO = 10.0  # of standard deviations of two columns, above which columns are standardised
HEAVY_TAIL = 10.0  # kurtosis minus that of a normal distribution, above which a column is heavy-tailed
DUPLICATE_CORRELATION = 1 - 1e-9
SKEWED_COUNTS = 3.0  # variance over mean of counts, above which their logarithm is modelled


@dataclass(frozen=True)
class DataKind:
    """What the values are, and how to model them."""

    name: str
    """binary, unit interval, pixels, counts or continuous."""
    likelihood: str
    """gaussian or bernoulli."""
    scaling: str
    """none, standardise or log1p."""
    reason: str
    """Why this likelihood."""
    scaling_reason: str = ""


def judge_kind(profile: Profile, likelihood: str | None = None) -> DataKind:
    """The kind of data, with the likelihood that was asked for or the one that fits."""
    found = _by_values(profile)
    if likelihood is None:
        return found
    chosen = choice("likelihood", likelihood, LIKELIHOODS)
    scaling = "none" if chosen == "bernoulli" else found.scaling
    reason = found.reason if chosen == found.likelihood else f"the {chosen} likelihood was asked for."
    return DataKind(found.name, chosen, scaling, reason, found.scaling_reason if scaling != "none" else "")


def _by_values(profile: Profile) -> DataKind:
    kept = profile.kept
    low, high = profile.ranges.low[kept].min(), profile.ranges.high[kept].max()
    whole = bool(profile.ranges.whole[kept].all())
    images = profile.source.image_shape is not None
    if whole and low >= 0 and high <= 1:
        return DataKind("binary", "bernoulli", "none", "all values are 0 or 1.")
    if low >= 0 and high <= 1 and (images or _same_scale(profile)):
        reason = "values are in [0, 1] and not binary: a Bernoulli likelihood would not be a density of them."
        return DataKind("unit interval", "gaussian", "none", reason)
    if whole and low >= 0 and not images and _looks_like_counts(profile):
        return DataKind("counts", "gaussian", "log1p", "of log(1 + x): there is no count likelihood here.", _COUNTS)
    if images or image_like(profile):
        return DataKind("pixels", "gaussian", "none", "columns share one range, like pixels, and are not in [0, 1].")
    spread = f"Standard deviations of columns differ {_ratio(profile):.3g}-fold"
    if _same_scale(profile):
        return DataKind("continuous", "gaussian", "none", "values are continuous.", f"{spread}. ")
    decides = f"{spread}: without scaling the largest column decides. "
    return DataKind("continuous", "gaussian", "standardise", "values are continuous.", decides)


_COUNTS = "Values are non-negative whole numbers whose variance grows with their mean. "


def _looks_like_counts(profile: Profile) -> bool:
    """Whether most columns of whole numbers are overdispersed or mostly zero, as counts of events are."""
    mean, variance = profile.mean[profile.varying], profile.variance[profile.varying]
    return bool(len(mean)) and float(np.median(variance / np.maximum(mean, 1e-300))) > 0.5 and not _same_scale(profile)


def _ratio(profile: Profile) -> float:
    deviations = np.sqrt(profile.variance[profile.varying])
    return float(deviations.max() / deviations.min()) if len(deviations) else 1.0


def _same_scale(profile: Profile) -> bool:
    """Whether columns may be modelled with one noise variance; always for images, whose pixels share a unit."""
    return profile.source.image_shape is not None or _ratio(profile) <= LARGEST_RATIO or image_like(profile)


def image_like(profile: Profile) -> bool:
    """Many columns with one common range, such as flattened pixels."""
    kept = profile.kept
    high = profile.ranges.high[kept][profile.varying]
    low = profile.ranges.low[kept][profile.varying]
    common = (high > 0.5 * high.max(initial=0.0)) & (low <= low.min(initial=np.inf) + 1e-9 + 0.5 * abs(high))
    whole = bool(profile.ranges.whole[kept].all())
    unit = bool((low >= 0).all() and (high <= 1).all())
    return len(high) >= 16 and (whole or unit) and bool(common.mean() > 0.6) and float(low.min(initial=0.0)) >= 0


def column_scales(profile: Profile) -> Array:
    """Standard deviation of every column; 1 for constant ones."""
    return np.where(profile.varying, np.sqrt(profile.variance), 1.0)


def bernoulli_scales(profile: Profile) -> Array:
    """√(p(1 - p)) of every column with mean p: the curvature of the Bernoulli log-likelihood in its logit.

    Columns that are constant carry no information; they get the scale 1.
    """
    p = profile.mean.clip(0.0, 1.0)
    return np.where(profile.varying, np.sqrt(np.maximum(p * (1 - p), 1e-12)), 1.0)


# columns --------------------------------------------------------------------------------------


def heavy_tailed(profile: Profile) -> list[int]:
    """Columns with an excess kurtosis above 10, by the sample."""
    sample = profile.sample - profile.sample.mean(0)
    second = (sample**2).mean(0)
    kurtosis = (sample**4).mean(0) / np.where(profile.varying & (second > 0), second, 1.0) ** 2 - 3
    return np.flatnonzero(profile.varying & (kurtosis > HEAVY_TAIL)).tolist()


def duplicated_columns(profile: Profile) -> list[tuple[int, int]]:
    """Pairs of columns that determine each other linearly."""
    if profile.covariance is None:
        return []
    scale = column_scales(profile)
    correlation = np.triu(np.abs(profile.covariance / np.outer(scale, scale)), 1)
    pairs = np.argwhere(correlation > DUPLICATE_CORRELATION)
    return [(int(a), int(b)) for a, b in pairs if profile.varying[a] and profile.varying[b]]


def identifiers(profile: Profile) -> list[int]:
    """Columns of a table that look like a row number: whole numbers, nearly all different, evenly spread."""
    if profile.source.image_shape is not None:
        return []
    ranges, found = profile.ranges, []
    for own, column in enumerate(profile.kept):
        span = ranges.high[column] - ranges.low[column] + 1
        if ranges.whole[column] and 0.9 * ranges.rows <= span <= 1.2 * ranges.rows and ranges.rows >= 20:
            values = profile.sample[:, own]
            if len(np.unique(values)) > 0.9 * len(values):
                found.append(own)
    return found
