"""`vs.preflight`: from data alone, what to train and what would collapse."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vaescope.core import validation
from vaescope.core.budget import Budget, Progress, to_stderr
from vaescope.core.errors import InputError
from vaescope.core.serialization import to_plain
from vaescope.core.tables import Table
from vaescope.inference import linear
from vaescope.inference.linear import Spectrum
from vaescope.products.preflight.data import (
    DataKind,
    Profile,
    bernoulli_scales,
    column_scales,
    judge_kind,
    mapped,
    profile,
    source_of,
)
from vaescope.products.preflight.recommend import (
    Cell,
    Confirmation,
    Convention,
    Recommendation,
    conventions,
    expected_count,
    recommend,
    snippets,
)
from vaescope.products.preflight.recommend import confirm as train_grid
from vaescope.products.preflight.rules import Facts, findings
from vaescope.products.preflight.spectrum import IntrinsicDimension, intrinsic_dimension
from vaescope.report import figures
from vaescope.report.findings import Finding, by_severity
from vaescope.report.page import Drawing, number, render
from vaescope.report.report import Report
from vaescope.training import ProgressBar

Array = np.ndarray


def drawings(found: Preflight) -> list[Drawing]:
    """The figures; none for data that do not vary."""
    if found.scaled_spectrum.total <= 0:
        return []
    approximate = (
        "The Bernoulli likelihood is approximated to second order in the logits: only the collapse line is exact."
        if found.kind.likelihood == "bernoulli"
        else "Exact for linear decoders; the collapse line holds for all."
    )
    does = f"What a VAE with d latents does at decoder variance 1/γ² and KL weight β. {approximate}"
    leading = "" if found.scaled_spectrum.exact else " Leading eigenvalues by a randomised method."
    signal = f"{found.scaled_spectrum.signal} eigenvalues stand out of the noise (Tracy-Widom, 99.5 %).{leading}"
    trained = "Latents that small trained models use, and what the linear theory predicts for them."
    drawn: list[tuple[str, Figure | list[Figure], str]] = [("phase", _phase(found), does)]
    drawn += [] if found.confirmation is None else [("confirmed", _trained(found, found.confirmation.cells), trained)]
    drawn += [("spectrum", _spectrum(found), signal)]
    return [figures.drawing(name, figure, caption) for name, figure, caption in drawn]


def _phase(found: Preflight) -> list[Figure]:
    """Used latents, KL and explained variance over (β/γ², d)."""
    recommended = found.recommended
    label = "β = 1" if recommended.precision is None else "recommended start"
    start = 1 / (recommended.precision or 1.0)
    return figures.phase_diagram(found.scaled_spectrum.eigenvalues, start, recommended.latent_dim, label=label)


def _trained(found: Preflight, cells: Sequence[Cell]) -> Figure:
    """Latents in use over β/γ²: a line per d predicted, dots trained."""
    eigenvalues = found.scaled_spectrum.eigenvalues
    limit = None if found.dimension is None else found.dimension.limit
    span = [c.variance for c in cells]
    variances = np.geomspace(min(span) / 1.5, max(span) * 1.5, 400)
    figure, (axis,) = figures.row_of_panels(1, width=8.2, height=3.8)
    for index, d in enumerate(sorted({c.latents for c in cells})):
        colour = figures.COLOURS[index]
        counts = [expected_count(eigenvalues, float(v), d, limit=limit) for v in variances]
        axis.step(variances, counts, color=colour, label=f"predicted, d = {d}")
        for done, fill in ((True, colour), (False, "white")):
            own = [c for c in cells if c.latents == d and c.converged == done]
            if own:
                label = f"trained, d = {d}" + ("" if done else " (still improving)")
                axis.plot([c.variance for c in own], [c.used for c in own], "o", mfc=fill, mec=colour, label=label)
    axis.axvline(float(eigenvalues[0]), color="#b3382c", lw=1.5, ls="--", label="collapse line λ₁")
    figures.format_axis(axis, title="latents in use", x="β/γ²", y="latents", log="")
    axis.set_xscale("log")
    return figure


def _spectrum(found: Preflight) -> Figure:
    """Eigenvalues with the noise floor, beside the variance that leading axes hold."""
    spectrum = found.scaled_spectrum
    shown = spectrum.eigenvalues[: max(2, min(len(spectrum.eigenvalues), 100))]
    positive = shown[shown > 1e-9 * shown[0]]
    index = np.arange(1, len(positive) + 1)
    figure, (left, right) = figures.row_of_panels(2, width=5.6, height=3.4)
    left.plot(index, positive, "o-", ms=3.5, label="eigenvalues of the covariance")
    if spectrum.noise > 1e-9 * shown[0]:
        left.axhline(spectrum.noise, color=figures.COLOURS[2], ls="--", label="noise floor")
    precision = found.recommended.precision
    label = "β = 1" if precision is None else "recommended decoder variance"
    left.axhline(1 / (precision or 1.0), color=figures.COLOURS[1], label=label)
    figures.format_axis(left, title="spectrum", x="latent", y="λ", log="y")
    held = np.cumsum(spectrum.eigenvalues)[: len(positive)] / spectrum.total
    right.plot(index, held, "o-", ms=3.5, color=figures.COLOURS[0], label="principal axes")
    _mark_dimension(right, found)
    right.set_ylim(0, 1.03)
    figures.format_axis(right, title="variance held", x="latents", y="share", log="")
    return figure


def _mark_dimension(axis: Axes, found: Preflight) -> None:
    if found.dimension is not None:
        label = f"intrinsic dimension {found.dimension.value:.1f}"
        axis.axvspan(found.dimension.low, found.dimension.high, color=figures.COLOURS[3], alpha=0.18, lw=0)
        axis.axvline(found.dimension.value, color=figures.COLOURS[3], ls=":", label=label)
    axis.axvline(found.recommended.latent_dim, color=figures.COLOURS[1], label="latents recommended")


def facts(found: Preflight) -> list[tuple[str, str]]:
    """Single numbers with their labels; what to set first."""
    recommended, dimension = found.recommended, found.dimension
    low, high = recommended.beta
    precision = "" if recommended.precision is None else number(recommended.precision)
    interval = "" if dimension is None else f"{dimension.value:.1f} ({dimension.low:.1f}–{dimension.high:.1f})"
    chosen = [
        ("latents", str(recommended.latent_dim)),
        ("likelihood", recommended.likelihood),
        ("scaling", recommended.scaling),
        ("precision γ², at the start", precision),
        ("β that keeps the latents needed", f"{low:.3g} to {high:.3g}"),
        ("β that collapses everything", f"from {recommended.collapse_beta:.3g}"),
        ("batch size, epochs", f"{recommended.batch_size}, {recommended.epochs}"),
        ("intrinsic dimension", interval),
    ]
    return [(label, value) for label, value in chosen if value]


@dataclass(frozen=True, eq=False)
class Preflight(Report):
    """What the data are, how many latents they feed, and what to start with.

    `active`, `kl`, `explained` and `collapse_variance` are about the data as given; `recommended` and `summary` are
    about the data after the recommended scaling.
    """

    name: str
    """What the report calls the data."""
    rows: int
    """Samples that were analysed: complete ones, or all if missing values were replaced."""
    columns: int
    """Columns that were analysed: without those that are mostly missing."""
    kind: DataKind
    """What the values are, and how to model them."""
    spectrum: Spectrum
    """Of the data as given; under a Bernoulli likelihood of columns divided by √(p(1 - p))."""
    scaled_spectrum: Spectrum
    """After the recommended scaling; the same if there is none."""
    dimension: IntrinsicDimension | None
    """Of the scaled data; None for fewer than 50 different samples."""
    recommended: Recommendation
    """Settings to start with."""
    conventions: list[Convention]
    """Common ways to write the loss, and what each does to the scaled data."""
    findings: list[Finding]
    """Most severe first."""
    latent_dim: int | None = None
    """Number of latents that was given; None if it was left open."""
    confirmation: Confirmation | None = None
    """Trained models beside their predictions; None unless models were trained."""

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        verdicts = {
            None: "No problems found.",
            "note": "No problems found; see the notes.",
            "warning": "Read the warnings before you train.",
            "error": "Repair the data before you train.",
        }
        return verdicts[self.worst]

    @property
    def collapse_variance(self) -> float:
        """λ_1: all latents collapse if β/γ² is at least this."""
        return linear.collapse_variance(self.spectrum.eigenvalues)

    def active(self, precision: float = 1.0, beta: float = 1.0, *, least_kl: float | None = None) -> int:
        """How many latents are used: #{λ_i > β/γ²}, at most `latent_dim`; corrected if models were trained.

        Exact for linear decoders. Curved data use at most their dimension at the largest scale (`dimension.limit`), and
        of them latents that carry at least 0.15 nats: with less, a latent gains so little that training seldom finds
        it. Under a Bernoulli likelihood `precision` is a weight on the log-likelihood.

        Args:
            precision: γ² = 1 / decoder variance.
            beta: weight of the KL.
            least_kl: nats that a latent must carry to count, instead of 0.15 for curved data and 0 for others.
        """
        least = None if least_kl is None else validation.number("least_kl", least_kl, minimum=0.0)
        used = expected_count(
            self.spectrum.eigenvalues,
            _variance(precision, beta),
            self.latent_dim,
            limit=None if self.dimension is None else self.dimension.limit,
            least_kl=least,
        )
        return used if self.confirmation is None else self.confirmation.corrected(used)

    def kl(self, precision: float = 1.0, beta: float = 1.0) -> float:
        """KL of the code of a linear VAE, in nats per sample.

        Args:
            precision: γ² = 1 / decoder variance.
            beta: weight of the KL.
        """
        return linear.total_kl(self.spectrum.eigenvalues, _variance(precision, beta), self.latent_dim)

    def explained(self, precision: float = 1.0, beta: float = 1.0) -> float:
        """Share of the variance of x that reconstructions of a linear VAE explain.

        Args:
            precision: γ² = 1 / decoder variance.
            beta: weight of the KL.
        """
        return linear.explained_share(self.spectrum.eigenvalues, _variance(precision, beta), self.latent_dim)

    @property
    def code(self) -> dict[str, str]:
        """The recommended settings as code for PyTorch, pythae and `vs.fit`."""
        return snippets(self.recommended, self.columns)

    def summary(self) -> Table:
        """A row per latent, at most 50: the β/γ² below which it is used, the variance held; of scaled data."""
        spectrum, variance = self.scaled_spectrum, 1 / (self.recommended.precision or 1.0)
        held = np.cumsum(spectrum.eigenvalues) / max(spectrum.total, 1e-300)
        kl = linear.latent_kl(spectrum.eigenvalues, variance)
        return Table(
            {
                "latent": k + 1,
                "used if β/γ² <": float(spectrum.eigenvalues[k]),
                "variance held": float(held[k]),
                "KL at start": float(kl[k]),
                "stands out": "yes" if k < spectrum.signal else "no",
            }
            for k in range(min(len(spectrum.eigenvalues), 50))
        )

    def content(self) -> dict[str, object]:
        """Everything that `to_json` writes."""
        spectrum = self.scaled_spectrum
        data = {
            "name": self.name,
            "rows": self.rows,
            "columns": self.columns,
            "kind": self.kind,
            "collapse_variance": self.collapse_variance,
            "eigenvalues": self.spectrum.eigenvalues.tolist(),
            "scaled": {
                "eigenvalues": spectrum.eigenvalues.tolist(),
                "noise": spectrum.noise,
                "signal": spectrum.signal,
            },
            "dimension": self.dimension,
            "recommended": self.recommended,
            "conventions": self.conventions,
            "findings": self.findings,
            "confirmation": self.confirmation,
            "code": self.code,
        }
        return {key: to_plain(value) for key, value in data.items()}

    def figures(self) -> list[Drawing]:
        """The phase diagram, the spectrum, and trained models if there are any, as SVG with captions."""
        return drawings(self)

    def page(self) -> str:
        """The HTML page; text from users is escaped."""
        return render("preflight.html", **self.page_values(), found=self, start=facts(self))

    def _repr_html_(self) -> str:
        frame = Markup('<iframe srcdoc="{}" style="width: 100%; height: 50rem; border: 0"></iframe>')
        return str(frame.format(self.page()))

    def __repr__(self) -> str:
        dimension = "" if self.dimension is None else f", intrinsic dimension {self.dimension.value:.1f}"
        lines = [f"Preflight of {self.name}: {self.rows} x {self.columns}, {self.kind.name}{dimension}"]
        lines += [f"  collapse at β/γ² = {self.collapse_variance:.4g}"]
        lines += [f"  {key}: {sentence}" for key, sentence in self.recommended.sentences.items()]
        lines += [f"  {f.severity}: {f.title} {f.advice}" for f in self.findings]
        return "\n".join(lines)


def _variance(precision: float, beta: float) -> float:
    return validation.number("beta", beta, minimum=0.0) / validation.precision(precision)


def preflight(
    x: object,
    *,
    latent_dim: int | None = None,
    likelihood: str | None = None,
    confirm: bool = False,
    name: str | None = None,
    progress: Progress | None = None,
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
    say, say_rows = _progress_lines(progress)
    if latent_dim is not None:
        validation.integer("latent_dim", latent_dim)
    source = source_of(x, name)
    say(f"reading {source.rows} rows")
    read = profile(source, say_rows)
    kind = judge_kind(read, likelihood)
    scaled, scale = read, _scale(read, kind)
    spectrum = read.spectrum(scale if kind.likelihood == "bernoulli" else None)
    if kind.likelihood != "bernoulli" and kind.scaling == "log1p":
        say("reading the data again, as log(1 + x)")
        scaled = profile(mapped(read.source, np.log1p), say_rows)
        scale = np.full(len(scaled.mean), math.sqrt(max(float(scaled.variance.mean()), 1e-300)))
    scaled_spectrum = scaled.spectrum(scale)
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


def _scale(read: Profile, kind: DataKind) -> Array | None:
    """What columns are divided by before they are modelled."""
    if kind.likelihood == "bernoulli":
        return bernoulli_scales(read)
    return column_scales(read) if kind.scaling == "standardise" else None


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


def _progress_lines(
    progress: Callable[[str], object] | None,
) -> tuple[Callable[[str], None], Callable[[int, int], None]]:
    """Functions that report a line, and rows read, from the first second on; to a terminal if nobody listens."""
    budget = Budget(math.inf, progress or (to_stderr if sys.stderr.isatty() else None), name="preflight")
    shown = budget.started

    def say(line: str) -> None:
        nonlocal shown
        if time.monotonic() - budget.started > 1:
            budget.say(line)
            shown = time.monotonic()

    def say_rows(done: int, total: int) -> None:
        if time.monotonic() - shown > 1:
            say(f"{done} of {total} rows read")

    return say, say_rows
