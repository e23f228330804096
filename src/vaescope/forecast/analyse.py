"""`vs.preflight`: from data alone, what to train and what would collapse."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from vaescope import validation
from vaescope.errors import InputError
from vaescope.findings import Finding, by_severity
from vaescope.forecast.confirm import confirm as train_grid
from vaescope.forecast.conventions import conventions
from vaescope.forecast.dimension import intrinsic_dimension
from vaescope.forecast.kinds import DataKind, bernoulli_scales, column_scales, judge_kind
from vaescope.forecast.profile import Profile, profile
from vaescope.forecast.recommend import recommend
from vaescope.forecast.result import Preflight
from vaescope.forecast.rules import Facts, findings
from vaescope.forecast.source import Source, source_of
from vaescope.training import ProgressBar

Array = np.ndarray
SILENT_SECONDS = 1.0


def preflight(
    x: object,
    *,
    latent_dim: int | None = None,
    likelihood: str | None = None,
    confirm: bool = False,
    name: str | None = None,
    progress: Callable[[str], object] | None = None,
) -> Preflight:
    """Find out, from data alone, how many latents a VAE will use, which losses collapse, and what to start with.

    For a linear VAE the answers are exact: latent i is used exactly if λ_i > β/γ², with λ_i the eigenvalues of the
    covariance. The collapse line λ_1 holds for any decoder. Data are read in chunks: files may be larger than memory.

    Args:
        x: what `vs.fit` takes (rows, images, a path, a data set), a data frame, or a .csv file. Missing values and
            text columns are allowed, and reported.
        latent_dim: number of latents, if it is decided already.
        likelihood: gaussian or bernoulli; what fits the data if not given.
        confirm: train a grid of small models (about a minute) and compare.
        name: what the report calls the data.
        progress: called with lines that say what is being done, if it takes longer than a second.

    >>> x = np.random.default_rng(0).normal(size=(500, 4)) * [3.0, 2.0, 0.5, 0.5]
    >>> found = preflight(x)
    >>> found.active(precision=1.0, beta=1.0), found.recommended.needed
    (2, 2)
    """
    say = _Lines(progress)
    if latent_dim is not None:
        validation.whole_number("latent_dim", latent_dim)
    source = source_of(x, name)
    say(f"reading {source.rows} rows")
    read = profile(source, say.rows)
    kind = judge_kind(read, likelihood)
    scaled, scale = _scaled(read, source, kind, say)
    spectrum = read.spectrum(bernoulli_scales(read), "bernoulli") if kind.likelihood == "bernoulli" else read.spectrum()
    scaled_spectrum = scaled.spectrum(scale, kind.scaling if scale is not None else "raw")
    say("estimating the intrinsic dimension")
    rows = scaled.sample if scale is None else scaled.sample / scale
    dimension = intrinsic_dimension(rows, scaled_spectrum.eigenvalues)
    recommended = recommend(kind, scaled_spectrum, dimension, read.rows, latent_dim)
    losses = conventions(scaled_spectrum.eigenvalues, kind.likelihood, scaled_spectrum.columns, recommended.latent_dim)
    facts = Facts(source, read, kind, scaled_spectrum, dimension, recommended, losses, likelihood)
    found = Preflight(
        source.name,
        read.rows,
        scaled_spectrum.columns,
        kind,
        spectrum,
        scaled_spectrum,
        dimension,
        recommended,
        losses,
        by_severity(findings(facts)),
        latent_dim,
    )
    return found if not confirm else _confirmed(found, scaled.sample if kind.likelihood == "bernoulli" else rows)


def _scaled(read: Profile, source: Source, kind: DataKind, say: _Lines) -> tuple[Profile, Array | None]:
    """The profile of the data to be modelled, and what its columns are divided by."""
    if kind.likelihood == "bernoulli":
        return read, bernoulli_scales(read)
    if kind.scaling == "standardise":
        return read, column_scales(read)
    if kind.scaling != "log1p":
        return read, None
    say("reading the data again, as log(1 + x)")
    logs = profile(_mapped(read.source), say.rows)
    return logs, np.full(len(logs.mean), math.sqrt(max(float(logs.variance.mean()), 1e-300)))


def _mapped(source: Source) -> Source:
    def stream() -> Iterator[Array]:
        for chunk in source.stream():
            yield np.log1p(chunk)

    return replace(source, stream=stream)


def _confirmed(found: Preflight, rows: Array) -> Preflight:
    """With a grid of trained models."""
    if found.scaled_spectrum.total <= 0:
        raise InputError("confirm=True needs data that vary; all samples are the same.")
    eigenvalues, latents = found.scaled_spectrum.eigenvalues, found.recommended.latent_dim
    with ProgressBar("confirm") as progress:
        limit = None if found.dimension is None else found.dimension.limit
        grid = train_grid(rows, found.kind.likelihood, eigenvalues, latents, limit=limit, progress=progress)
    finding = Finding(
        "confirmed",
        "note",
        "Trained models agree with the prediction."
        if grid.within_one >= 0.9
        else "Trained models correct the prediction.",
        grid.sentence,
        "`active` applies the correction." if abs(grid.factor - 1) > 0.05 else "Nothing.",
    )
    return replace(found, confirmation=grid, findings=[*found.findings, finding])


class _Lines:
    """Lines of progress, from the first second on; to stderr of a terminal if nobody listens."""

    def __init__(self, progress: Callable[[str], object] | None) -> None:
        self.progress = progress or (_to_terminal if sys.stderr.isatty() else None)
        self.started = self.shown = time.monotonic()

    def __call__(self, line: str) -> None:
        if self.progress is not None and time.monotonic() - self.started > SILENT_SECONDS:
            self.progress(f"preflight: {line}")
            self.shown = time.monotonic()

    def rows(self, done: int, total: int) -> None:
        if time.monotonic() - self.shown > SILENT_SECONDS:
            self(f"{done} of {total} rows read")


def _to_terminal(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
