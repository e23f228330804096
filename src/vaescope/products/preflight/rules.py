"""Findings about the data: what would go wrong in training, the evidence, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vaescope.inference.linear import Spectrum
from vaescope.products.preflight import data as kinds
from vaescope.products.preflight.data import DataKind, Profile, Source
from vaescope.products.preflight.phase import Convention
from vaescope.products.preflight.recommend import Recommendation
from vaescope.products.preflight.spectrum import IntrinsicDimension, neighbour_distances
from vaescope.report.findings import Finding

NEAR = 0.01  # of the median distance to the nearest neighbour, below which two samples are nearly the same
FEW_NEAR = 0.01  # share of samples with a near-duplicate that is not worth a finding
SAMPLES_PER_LATENT = 50
NEAR_ROWS = 2000


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
    return [finding for rule in RULES for finding in rule(facts)]


def _missing(facts: Facts) -> Iterator[Finding]:
    ranges, source = facts.profile.ranges, facts.source
    if not ranges.incomplete_rows:
        return
    worst = np.argsort(-ranges.missing)[: min(3, int((ranges.missing > 0).sum()))]
    shares = ", ".join(f"{source.column(int(k))} ({ranges.missing[k] / ranges.rows:.0%})" for k in worst)
    used = "missing values replaced by the mean of their column" if facts.profile.imputed else "complete rows"
    left_out = source.columns - len(facts.profile.kept)
    without = f"; {left_out} columns that are mostly missing were left out" if left_out else ""
    yield Finding(
        "missing",
        "error",
        "Values are missing or infinite.",
        f"{ranges.incomplete_rows} of {ranges.rows} rows have NaN or infinity; most in {shares}. This page describes "
        f"{used}{without}.",
        "Drop these rows or columns, or impute them: one NaN in a batch makes every weight NaN.",
    )


def _not_numeric(facts: Facts) -> Iterator[Finding]:
    names = facts.source.not_numeric
    if names:
        shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        yield Finding(
            "not-numeric",
            "warning",
            "Some columns are not numbers.",
            f"{shown}: left out here.",
            "Encode categories as one column of 0 and 1 per category; a VAE takes numbers only.",
        )


def _identifiers(facts: Facts) -> Iterator[Finding]:
    found = kinds.identifiers(facts.profile)
    if found:
        yield Finding(
            "identifier",
            "warning",
            "A column looks like a row number.",
            f"{facts.listed(found)}: whole numbers, nearly all different, evenly spread.",
            "Drop it: a latent would be spent on the order of the rows. The recommendation still includes it.",
        )


def _constant(facts: Facts) -> Iterator[Finding]:
    found = np.flatnonzero(~facts.profile.varying).tolist()
    if found and len(found) == len(facts.profile.kept):
        yield Finding(
            "constant",
            "error",
            "All samples are the same.",
            f"None of {len(found)} columns varies.",
            "Check how the data were loaded.",
        )
    elif found:
        images = facts.source.image_shape is not None or facts.kind.name in ("binary", "unit interval", "pixels")
        yield Finding(
            "constant-columns",
            "note",
            f"{len(found)} of {len(facts.profile.kept)} columns are constant.",
            f"{facts.listed(found)}.",
            "Harmless in images." if images else "Drop them: dividing them by their standard deviation gives NaN.",
        )


def _duplicated_columns(facts: Facts) -> Iterator[Finding]:
    pairs = kinds.duplicated_columns(facts.profile)
    if pairs and facts.source.image_shape is None:
        column = facts.profile.source.column
        shown = ", ".join(f"{column(a)} and {column(b)}" for a, b in pairs[:3])
        yield Finding(
            "duplicated-columns",
            "note",
            "Some columns repeat others.",
            f"{shown}{f' and {len(pairs) - 3} more pairs' if len(pairs) > 3 else ''}: correlation 1 or -1.",
            "Drop one of each pair, or what they measure counts several times in the reconstruction.",
        )


def _unscaled(facts: Facts) -> Iterator[Finding]:
    if facts.kind.scaling == "standardise":
        variance = facts.profile.variance
        first = int(variance.argmax())
        yield Finding(
            "unscaled",
            "warning",
            "Columns have very different scales.",
            f"{facts.kind.scaling_reason}{facts.profile.source.column(first)} has "
            f"{variance[first] / variance.sum():.0%} of the variance.",
            "Standardise the columns. The recommendation is for standardised columns.",
        )
    elif facts.kind.scaling == "log1p":
        yield Finding(
            "counts",
            "warning",
            "The data are counts.",
            facts.kind.scaling_reason.strip(),
            "Model log(1 + x), as recommended, or use a count likelihood such as that of scvi-tools.",
        )


def _heavy_tailed(facts: Facts) -> Iterator[Finding]:
    found = kinds.heavy_tailed(facts.profile)
    images = facts.source.image_shape is not None
    if found and facts.kind.likelihood == "gaussian" and facts.kind.name == "continuous" and not images:
        yield Finding(
            "heavy-tailed",
            "warning",
            f"{len(found)} of {len(facts.profile.kept)} columns are heavy-tailed.",
            f"{facts.listed(found)}: an excess kurtosis above {kinds.HEAVY_TAIL:.0f}.",
            "Transform them (logarithm, quantiles) or clip outliers: squared errors of a few samples decide otherwise.",
        )


def _duplicates(facts: Facts) -> Iterator[Finding]:
    rows, same = facts.profile.ranges.rows, facts.profile.duplicates
    if same > 0.001 * rows:
        yield Finding(
            "duplicates",
            "warning" if same > 0.01 * rows else "note",
            "Some samples are repeated.",
            f"{same} of {rows} rows equal an earlier row.",
            "Remove them before you split: copies in training and validation hide overfitting.",
        )
    elif (near := near_duplicates(facts.profile)) > FEW_NEAR:
        yield Finding(
            "near-duplicates",
            "note",
            "Some samples are nearly the same.",
            f"{near:.0%} of samples have a neighbour at less than {NEAR:.0%} of the usual distance.",
            "Split by group (subject, video, document), not at random: the validation data are otherwise not held out.",
        )


def near_duplicates(profile: Profile) -> float:
    """Share of sampled rows with a neighbour at less than a hundredth of the median distance."""
    rows = profile.sample[:NEAR_ROWS]
    if len(rows) < 50:
        return 0.0
    nearest = neighbour_distances(rows / kinds.column_scales(profile), 1)[:, 0]
    return float((nearest < NEAR * np.median(nearest)).mean())


def _outside_range(facts: Facts) -> Iterator[Finding]:
    kept, ranges = facts.profile.kept, facts.profile.ranges
    low, high = float(ranges.low[kept].min()), float(ranges.high[kept].max())
    if facts.kind.likelihood == "bernoulli" and (low < 0 or high > 1):
        yield Finding(
            "data-range",
            "error",
            "A Bernoulli likelihood needs values in [0, 1].",
            f"Values range from {low:.3g} to {high:.3g}.",
            "Use the Gaussian likelihood, or rescale to [0, 1].",
        )
    elif facts.given_likelihood == "bernoulli" and facts.kind.name != "binary":
        yield Finding(
            "grey-bernoulli",
            "note",
            "A Bernoulli likelihood of grey values is not a density.",
            "Values are between 0 and 1. Its variance p(1 - p) is larger than theirs, so fewer latents are used.",
            "Use the Gaussian likelihood with a learned precision, or binarise.",
        )


def _collapsing_losses(facts: Facts) -> Iterator[Finding]:
    collapsing = [c for c in facts.conventions if c.collapses]
    if collapsing and facts.spectrum.total > 0:
        names = "; ".join(f"{c.name} (β/γ² = {c.variance:.4g})" for c in collapsing)
        yield Finding(
            "collapsing-loss",
            "warning",
            f"{len(collapsing)} of {len(facts.conventions)} common losses "
            f"{'collapses' if len(collapsing) == 1 else 'collapse'} on these data.",
            f"{names}; λ₁ = {float(facts.spectrum.eigenvalues[0]):.3g} is smaller.",
            "Sum squared errors over columns and set or learn the precision, as in the code on the page.",
        )


def _flat(facts: Facts) -> Iterator[Finding]:
    if facts.spectrum.flat and facts.spectrum.columns > 1 and bool(facts.profile.varying.any()):
        ratio = float(facts.spectrum.eigenvalues[0]) * facts.spectrum.rank / facts.spectrum.total
        yield Finding(
            "isotropic",
            "warning",
            "No direction of the data stands out.",
            f"The largest eigenvalue is {ratio:.2f} times the mean one: noise, or whitened data. The "
            "maximum-likelihood precision of a linear VAE is then exactly at the collapse line.",
            "Set the precision (or its start) as recommended; if you whitened the data, do not.",
        )


def _few_samples(facts: Facts) -> Iterator[Finding]:
    needed = facts.recommended.needed
    if facts.profile.rows < SAMPLES_PER_LATENT * needed:
        yield Finding(
            "few-samples",
            "warning",
            "There are few samples for so many latents.",
            f"{facts.profile.rows} samples and {needed} latents: fewer than {SAMPLES_PER_LATENT} per latent.",
            "Expect overfitting: hold out samples, stop early, and use a small network.",
        )


def _curved(facts: Facts) -> Iterator[Finding]:
    dimension = facts.dimension
    if dimension is not None and dimension.curved:
        yield Finding(
            "curved",
            "note",
            "The data are curved or clustered.",
            f"Intrinsic dimension {dimension.value:.1f} ({dimension.low:.1f} to {dimension.high:.1f}); Gaussian data "
            f"with the same covariance would give {dimension.linear_value:.1f}.",
            "The collapse line still holds, but fewer latents may be used than the linear count; confirm=True trains a "
            "few models to find out.",
        )


def _latents(facts: Facts) -> Iterator[Finding]:
    chosen, needed = facts.recommended.latent_dim, facts.recommended.needed
    if chosen < needed:
        yield Finding(
            "few-latents",
            "warning",
            "There are fewer latents than the data need.",
            facts.recommended.sentences["latents"],
            f"Use {needed} or more, or accept what the leading ones explain.",
        )


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _missing,
    _outside_range,
    _constant,
    _not_numeric,
    _identifiers,
    _unscaled,
    _collapsing_losses,
    _flat,
    _heavy_tailed,
    _duplicates,
    _few_samples,
    _latents,
    _duplicated_columns,
    _curved,
)
