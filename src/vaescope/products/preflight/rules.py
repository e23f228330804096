"""Findings about the data: what would go wrong in training, the evidence, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vaescope.inference.linear import Spectrum
from vaescope.products.preflight.data import (
    THRESHOLDS,
    DataKind,
    Profile,
    Source,
    column_scales,
    duplicated_columns,
    heavy_tailed,
    identifiers,
    integer_codes,
)
from vaescope.products.preflight.recommend import Convention, Recommendation
from vaescope.products.preflight.spectrum import IntrinsicDimension, neighbour_distances
from vaescope.report.findings import Finding


@dataclass(frozen=True, eq=False)
class Facts:
    """Everything that findings are based on."""

    source: Source
    profile: Profile
    kind: DataKind
    spectrum: Spectrum
    """Of the data after the recommended scaling."""
    dimension: IntrinsicDimension | None
    recommended: Recommendation
    conventions: Sequence[Convention]
    given_likelihood: str | None

    def listed(self, columns: Sequence[int]) -> str:
        """Names of analysed columns, some of them."""
        names = [self.profile.source.column(k) for k in columns[:5]]
        return ", ".join(names) + (f" and {len(columns) - 5} more" if len(columns) > 5 else "")


def findings(facts: Facts) -> list[Finding]:
    """All findings."""
    found = (rule(facts) for rule in RULES)
    return [finding for finding in found if finding is not None]


def _missing(facts: Facts) -> Finding | None:
    ranges, source = facts.profile.ranges, facts.source
    if not ranges.incomplete_rows:
        return None
    worst = np.argsort(-ranges.missing)[: min(3, int((ranges.missing > 0).sum()))]
    shares = ", ".join(f"{source.column(int(k))} ({ranges.missing[k] / ranges.rows:.0%})" for k in worst)
    used = "missing values replaced by the mean of their column" if facts.profile.imputed else "complete rows"
    left_out = source.columns - len(facts.profile.kept)
    without = f"; {left_out} columns that are mostly missing were left out" if left_out else ""
    return Finding(
        "missing",
        "error",
        "Values are missing or infinite.",
        f"{ranges.incomplete_rows} of {ranges.rows} rows have NaN or infinity; most in {shares}. This page describes "
        f"{used}{without}.",
        "Drop these rows or columns, or impute them: one NaN in a batch makes every weight NaN.",
    )


def _range(facts: Facts) -> Finding | None:
    kept, ranges = facts.profile.kept, facts.profile.ranges
    low, high = float(ranges.low[kept].min()), float(ranges.high[kept].max())
    if facts.kind.likelihood == "bernoulli" and (low < 0 or high > 1):
        return Finding(
            "data-range",
            "error",
            "A Bernoulli likelihood needs values in [0, 1].",
            f"Values range from {low:.3g} to {high:.3g}.",
            "Use the Gaussian likelihood, or rescale to [0, 1].",
        )
    if facts.given_likelihood == "bernoulli" and facts.kind.name != "binary":
        return Finding(
            "grey-bernoulli",
            "note",
            "A Bernoulli likelihood of grey values is not a density.",
            "Values are between 0 and 1. Its variance p(1 - p) is larger than theirs, so fewer latents are used.",
            "Use the Gaussian likelihood with a learned precision, or binarise.",
        )
    return None


def _constant(facts: Facts) -> Finding | None:
    found, columns = np.flatnonzero(~facts.profile.varying).tolist(), len(facts.profile.kept)
    if not found:
        return None
    if len(found) == columns:
        evidence = f"None of {columns} columns varies."
        return Finding("constant", "error", "All samples are the same.", evidence, "Check how the data were loaded.")
    images = facts.source.image_shape is not None or facts.kind.name in ("binary", "unit interval", "pixels")
    return Finding(
        "constant-columns",
        "note",
        f"{len(found)} of {columns} columns are constant.",
        f"{facts.listed(found)}.",
        "Harmless in images." if images else "Drop them: dividing them by their standard deviation gives NaN.",
    )


def _not_numeric(facts: Facts) -> Finding | None:
    names = facts.source.not_numeric
    if not names:
        return None
    shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return Finding(
        "not-numeric",
        "warning",
        "Some columns are not numbers.",
        f"{shown}: left out here.",
        "Encode categories as one column of 0 and 1 per category; a VAE takes numbers only.",
    )


def _identifiers(facts: Facts) -> Finding | None:
    found = identifiers(facts.profile)
    if not found:
        return None
    return Finding(
        "identifier",
        "warning",
        "A column looks like a row number.",
        f"{facts.listed(found)}: integers, nearly all different, evenly spread.",
        "Drop it: a latent would be spent on the order of the rows. The recommendation still includes it.",
    )


def _integer_codes(facts: Facts) -> Finding | None:
    found = integer_codes(facts.profile)
    if not found.columns:
        return None
    sure, shown = bool(found.unordered), facts.listed(found.unordered or found.columns)
    return Finding(
        "integer-codes",
        "warning" if sure else "note",
        "Integers that stand for categories are counted as numbers." if sure else "Some integers may be categories.",
        f"{shown}: few consecutive integers in a table of real numbers"
        + (", and means of other columns are no linear function of them." if sure else "."),
        "If they are categories, replace each by a column of zeros and ones per category (one-hot), or take them out "
        "and train a conditional model. As numbers, category 2 is between 1 and 3, and a latent is spent on that "
        "order. The recommendation still counts them as numbers.",
        "x = pandas.get_dummies(table, columns=[...])  # the categories",
    )


def _unscaled(facts: Facts) -> Finding | None:
    if facts.kind.scaling == "log1p":
        return Finding(
            "counts",
            "warning",
            "The data are counts.",
            facts.kind.scaling_reason.strip(),
            "Model log(1 + x), as recommended, or use a count likelihood such as that of scvi-tools.",
        )
    if facts.kind.scaling != "standardise":
        return None
    variance = facts.profile.variance
    first = int(variance.argmax())
    share = f"{facts.profile.source.column(first)} has {variance[first] / variance.sum():.0%} of the variance."
    return Finding(
        "unscaled",
        "warning",
        "Columns have very different scales.",
        f"{facts.kind.scaling_reason}{share}",
        "Standardise the columns. The recommendation is for standardised columns.",
    )


def _collapsing_losses(facts: Facts) -> Finding | None:
    collapsing = [c for c in facts.conventions if c.collapses]
    if not collapsing or facts.spectrum.total <= 0:
        return None
    names = "; ".join(f"{c.name} (β/γ² = {c.variance:.4g})" for c in collapsing)
    verb = "collapses" if len(collapsing) == 1 else "collapse"
    return Finding(
        "collapsing-loss",
        "warning",
        f"{len(collapsing)} of {len(facts.conventions)} common losses {verb} on these data.",
        f"{names}; λ₁ = {float(facts.spectrum.eigenvalues[0]):.3g} is smaller.",
        "Sum squared errors over columns and set or learn the precision, as in the code on the page.",
    )


def _flat(facts: Facts) -> Finding | None:
    if not facts.spectrum.flat or facts.spectrum.columns == 1 or not facts.profile.varying.any():
        return None
    ratio = float(facts.spectrum.eigenvalues[0]) * facts.spectrum.rank / facts.spectrum.total
    return Finding(
        "isotropic",
        "warning",
        "No direction of the data stands out.",
        f"The largest eigenvalue is {ratio:.2f} times the mean one: noise, or whitened data. The "
        "maximum-likelihood precision of a linear VAE is then exactly at the collapse line.",
        "Set the precision (or its start) as recommended; if you whitened the data, do not.",
    )


def _heavy_tailed(facts: Facts) -> Finding | None:
    continuous = facts.kind.likelihood == "gaussian" and facts.kind.name == "continuous"
    found = heavy_tailed(facts.profile) if continuous and facts.source.image_shape is None else []
    if not found:
        return None
    return Finding(
        "heavy-tailed",
        "warning",
        f"{len(found)} of {len(facts.profile.kept)} columns are heavy-tailed.",
        f"{facts.listed(found)}: an excess kurtosis above {THRESHOLDS.excess_kurtosis:.0f}.",
        "Transform them (logarithm, quantiles) or clip outliers: squared errors of a few samples decide otherwise.",
    )


def _duplicates(facts: Facts) -> Finding | None:
    rows, same = facts.profile.ranges.rows, facts.profile.duplicates
    if same > 0.001 * rows:
        return Finding(
            "duplicates",
            "warning" if same > 0.01 * rows else "note",
            "Some samples are repeated.",
            f"{same} of {rows} rows equal an earlier row.",
            "Remove them before you split: copies in training and validation hide overfitting.",
        )
    sample = facts.profile.sample[:2000]
    if len(sample) < 50:
        return None
    nearest = neighbour_distances(sample / column_scales(facts.profile), 1)[:, 0]
    share = float((nearest < THRESHOLDS.near * np.median(nearest)).mean())
    if share <= THRESHOLDS.few_near:
        return None
    return Finding(
        "near-duplicates",
        "note",
        "Some samples are nearly the same.",
        f"{share:.0%} of samples have a neighbour at less than {THRESHOLDS.near:.0%} of the usual distance.",
        "Split by group (subject, video, document), not at random: the validation data are otherwise not held out.",
    )


def _few_samples(facts: Facts) -> Finding | None:
    needed, rows, least = facts.recommended.needed, facts.profile.rows, THRESHOLDS.samples_per_latent
    if rows >= least * needed:
        return None
    return Finding(
        "few-samples",
        "warning",
        "There are few samples for so many latents.",
        f"{rows} samples and {needed} latents: fewer than {least} per latent.",
        "Expect overfitting: hold out samples, stop early, and use a small network.",
    )


def _few_latents(facts: Facts) -> Finding | None:
    if facts.recommended.latent_dim >= facts.recommended.needed:
        return None
    return Finding(
        "few-latents",
        "warning",
        "There are fewer latents than the data need.",
        facts.recommended.sentences["latents"],
        f"Use {facts.recommended.needed} or more, or accept what the leading ones explain.",
    )


def _duplicated_columns(facts: Facts) -> Finding | None:
    pairs = [] if facts.source.image_shape is not None else duplicated_columns(facts.profile)
    if not pairs:
        return None
    column = facts.profile.source.column
    shown = ", ".join(f"{column(a)} and {column(b)}" for a, b in pairs[:3])
    more = f" and {len(pairs) - 3} more pairs" if len(pairs) > 3 else ""
    return Finding(
        "duplicated-columns",
        "note",
        "Some columns repeat others.",
        f"{shown}{more}: correlation 1 or -1.",
        "Drop one of each pair, or what they measure counts several times in the reconstruction.",
    )


def _curved(facts: Facts) -> Finding | None:
    dimension = facts.dimension
    if dimension is None or not dimension.curved:
        return None
    return Finding(
        "curved",
        "note",
        "The data are curved or clustered.",
        f"Intrinsic dimension {dimension.value:.1f} ({dimension.low:.1f} to {dimension.high:.1f}); Gaussian data "
        f"with the same covariance would give {dimension.linear_value:.1f}.",
        "The collapse line still holds, but fewer latents may be used than the linear count; confirm=True trains a "
        "few models to find out.",
    )


RULES: tuple[Callable[[Facts], Finding | None], ...] = (
    _missing,
    _range,
    _constant,
    _not_numeric,
    _identifiers,
    _integer_codes,
    _unscaled,
    _collapsing_losses,
    _flat,
    _heavy_tailed,
    _duplicates,
    _few_samples,
    _few_latents,
    _duplicated_columns,
    _curved,
)
