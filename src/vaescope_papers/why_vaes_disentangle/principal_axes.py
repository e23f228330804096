"""Images from sets of principal axes, in both orders (Bhowal et al. 2024, Tab. 7 and Fig. 5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from vaescope import metrics
from vaescope.core.errors import InputError
from vaescope.core.validation import choice
from vaescope.data.catalogue import find_dataset, render_dataset
from vaescope.report import figures
from vaescope_papers.claims import ClaimSpec, Statement
from vaescope_papers.criteria import Bound, above, at_least, at_most
from vaescope_papers.experiment import Context, Experiment, ReportFigure, ReportTable, Settings
from vaescope_papers.results import Result
from vaescope_papers.statistics import Comparison, compare, median, published
from vaescope_papers.why_vaes_disentangle import EXPERIMENTS, PAPER

AxisSet = tuple[int, int]
"""The first axis, and the one after the last, counted out of `PublishedErrors.axes`."""
Step = tuple[int, int, float]
"""From one number of first axes to the next: what one axis explains."""
ORDERS = {"descending": "largest first", "ascending": "smallest first"}


@dataclass(frozen=True)
class AxesSettings(Settings):
    """The paper profile has images of the published size."""

    samples: int = 20_000
    size: int = 64
    """Pixels along a side of an image."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 2 or self.size < 8:
            raise InputError(
                f"principal axes need at least 2 images of at least 8 x 8 pixels, got {self.samples} of {self.size} x "
                f"{self.size}; increase samples or size."
            )

    def scaled(self, axis_set: AxisSet) -> AxisSet:
        """A published set of axes, at this image size."""
        first, last = (round(axis * self.size**2 / PUBLISHED.axes) for axis in axis_set)
        return first, last


# principal axes -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PrincipalAxes:
    """Mean, axes and variances of a data set, in descending order of variance."""

    mean: Float[Tensor, " n"]
    axes: Float[Tensor, "r n"]
    """Orthonormal rows: the r <= n axes with non-zero variance."""
    variances: Float[Tensor, " n"]
    """Of all n axes; zero beyond r."""

    @classmethod
    def of(cls, x: Float[Tensor, "N n"]) -> PrincipalAxes:
        """Exact principal axes: from the covariance, or from the SVD of x if it has fewer rows than columns."""
        if x.ndim != 2 or len(x) < 2 or not bool(x.isfinite().all()):
            raise InputError(f"principal axes need finite rows (N, n), at least two, got {tuple(x.shape)}.")
        mean = x.double().mean(0)
        centred = x.double() - mean
        if len(x) < x.shape[1]:
            _, singular, axes = torch.linalg.svd(centred, full_matrices=False)
            found = singular.square() / len(x)
        else:
            found, vectors = torch.linalg.eigh(centred.mT @ centred / len(x))
            found, axes = found.flip(0), vectors.mT.flip(0)
        nonzero = found > found.max() * max(x.shape) * torch.finfo(torch.float64).eps
        variances = torch.zeros(x.shape[1], dtype=torch.float64)
        variances[: int(nonzero.sum())] = found[nonzero]
        return cls(mean, axes[nonzero], variances)

    def error(self, first: int, last: int, order: str = "descending") -> float:
        """Mean squared error, summed over pixels, of images reconstructed from axes `first` to `last` of this order.

        Args:
            first: number of the first axis, from 0.
            last: number after the last axis.
            order: `descending` or `ascending` variance.

        >>> axes = PrincipalAxes.of(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
        >>> axes.error(0, 1), axes.error(0, 1, "ascending")
        (0.5, 4.5)
        """
        low, high = self._range(first, last, order)
        return float(self.variances.sum() - self.variances[low:high].sum())

    def reconstruct(
        self, x: Float[Tensor, "N n"], first: int, last: int, order: str = "descending"
    ) -> Float[Tensor, "N n"]:
        """Images from these axes alone; axes with zero variance contribute nothing."""
        low, high = self._range(first, last, order)
        used = self.axes[low : min(high, len(self.axes))]
        return ((x.double() - self.mean) @ used.mT @ used + self.mean).to(x.dtype)

    def _range(self, first: int, last: int, order: str) -> tuple[int, int]:
        """The same axes, numbered in descending order of variance."""
        n = len(self.variances)
        choice("order", order, ORDERS)
        if not 0 <= first < last <= n:
            raise InputError(f"axes must satisfy 0 <= first < last <= {n}, got {first} to {last}.")
        return (first, last) if order == "descending" else (n - last, n - first)


def explained_per_axis(errors: Mapping[int, float], total: float) -> list[Step]:
    """Variance explained per axis in each step, from the errors of the first k axes: (from, to, variance per axis).

    >>> explained_per_axis({1: 6.0, 3: 2.0}, 10.0)
    [(0, 1, 4.0), (1, 3, 2.0)]
    """
    left = {0: total, **dict(sorted(errors.items()))}
    return [(a, b, (left[a] - left[b]) / (b - a)) for a, b in pairwise(left)]


def direction_changes(steps: Sequence[Step]) -> int:
    """How often the explained variance per axis changes between rising and falling; never for sorted axes.

    >>> direction_changes([(0, 1, 3.0), (1, 2, 2.0), (2, 3, 1.0)]), direction_changes([(0, 1, 0.1), (1, 2, 0.4)])
    (0, 0)
    """
    directions = np.sign(np.diff([value for _, _, value in steps]))
    moving = directions[directions != 0]
    return int((moving[1:] != moving[:-1]).sum())


@dataclass(frozen=True)
class PublishedErrors:
    """Tab. 7: squared errors of sets of axes."""

    axes: int
    errors: Mapping[AxisSet, float]
    note: ClassVar[str] = (
        "Axes are orthogonal, so the errors of sets determine each other. The published entries imply the variance of "
        "the images in two ways, 24.2 and 23.5. Each of the first 1500 axes explains little, each of the next 500 nine "
        "times as much, those up to 3000 less again, and the last 1096 almost nothing. Sorted axes cannot behave like "
        "that; an unsorted decomposition (NumPy's eig) can."
    )

    @property
    def first_axes(self) -> list[int]:
        """The last axis of every set that begins with the first one."""
        return [last for first, last in self.errors if first == 0]

    @property
    def total(self) -> float:
        """The variance of the published images: sets that share axes imply it in two ways, which are averaged."""
        pairs: Sequence[tuple[AxisSet, AxisSet]] = (((2000, 3000), (0, 2000)), ((2500, 3000), (0, 2500)))
        return float(np.mean([self.errors[a] + self.errors[b] - self.errors[0, 3000] for a, b in pairs]))

    @property
    def blank(self) -> float:
        """The share of the variance that is left in the published blank image."""
        return round(self.errors[0, 1500] / self.total, 2)

    @property
    def steps(self) -> list[Step]:
        """What one axis explains between the published sets."""
        return explained_per_axis({last: self.errors[0, last] for last in self.first_axes}, self.total)

    @classmethod
    def read(cls) -> PublishedErrors:
        table = published("why_vaes_disentangle")["principal-axes"]
        return cls(table["axes"], {(a, b): e for (a, b), e in zip(table["sets"], table["errors"], strict=True)})


PUBLISHED = PublishedErrors.read()

# measurement ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class AxesCell:
    seed: int


@dataclass(frozen=True)
class InOrder:
    """Axes in one order of their variance; tuples have an entry per set of `PublishedErrors.errors`."""

    unexplained: tuple[float, ...]
    """Share of the variance."""
    images: tuple[bytes, ...]
    """The first image from each set, a byte per pixel."""


@dataclass(frozen=True)
class AxesMeasurement:
    total_variance: float
    descending: InOrder
    ascending: InOrder
    cumulative: tuple[float, ...]
    """Share of the variance that the first axes explain, descending: 1 axis, 1 + step, 1 + 2 step, …"""
    position_r2: float
    original: bytes
    """The first image."""


AxesResult = Result[AxesCell, AxesMeasurement]
Results = Sequence[AxesResult]


def cumulative_step(axes: int) -> int:
    """Axes from one entry of `cumulative` to the next, which has about 256."""
    return max(1, axes // 256)


def unexplained(results: Results, order: str, axis_set: AxisSet) -> list[float]:
    """The share of the variance that a set leaves unexplained, per seed."""
    return [getattr(r.measured, order).unexplained[list(PUBLISHED.errors).index(axis_set)] for r in results]


def explained(results: Results, order: str) -> list[float]:
    """The share of the variance that one of 4096 axes explains, from one set of first axes to the next."""
    left = {last: median(unexplained(results, order, (0, last))) for last in PUBLISHED.first_axes}
    return [value for _, _, value in explained_per_axis(left, 1.0)]


# claims ---------------------------------------------------------------------------------------


def blank_claim(order: str, note: str) -> ClaimSpec[AxesResult, AxesSettings, Sequence[float]]:
    return ClaimSpec(
        sentence=f"The first 1500 of 4096 axes give a blank image, in {order} order of variance.",
        source=f"{PAPER}, Fig. 5",
        measure=lambda results, _: unexplained(results, order, (0, 1500)),
        criterion=Bound(
            "share of the variance left unexplained",
            at_least(PUBLISHED.blank),
            statistic="smallest",
            over="data sets",
            exact=True,
        ),
        published=f"{PUBLISHED.errors[0, 1500]:g} of about {PUBLISHED.total:.1f}",
        note=note,
        kind=Statement.MATHEMATICAL,
        robust_over=(0.65, 0.8, PUBLISHED.blank, 0.95),
    )


def lost_without_first_axes(results: Results, _: object) -> list[float]:
    """What leaving out the first 2000 of 3000 axes costs, in shares of the variance."""
    without, with_them = (unexplained(results, "descending", axis_set) for axis_set in ((2000, 3000), (0, 3000)))
    return [a - b for a, b in zip(without, with_them, strict=True)]


# experiment -----------------------------------------------------------------------------------


class PrincipalAxesExperiment(Experiment[AxesSettings, AxesCell, AxesMeasurement]):
    info = EXPERIMENTS["principal-axes"]
    about = (
        "Images with the structure of dSprites are reconstructed from sets of their principal axes. In the paper, the "
        "first 1500 axes give a blank image. The first axes of a principal component analysis cannot, because they "
        "have the largest variance. Errors are therefore shown in both orders: from the largest variance down, and "
        "from the smallest up. The error of a set is exactly the variance of the other axes, so the published numbers "
        "can be compared with either order: from one axis to the next, the explained variance can only fall, or only "
        "rise. Errors are exact, and claims are about the rendered data sets of this run alone. The quick profile has "
        "images of 32 x 32 pixels and scales the numbers of axes in proportion."
    )
    quick = AxesSettings(seeds=1, samples=8_000, size=32)
    laptop = paper = AxesSettings(seeds=3, samples=20_000, size=64)
    cell_type = AxesCell
    measured_type = AxesMeasurement
    claim_specs = (
        blank_claim(
            "descending",
            "No data can show it in this order: the 1500 of 4096 axes with the largest variances have at least "
            "1500/4096 of the variance, so that at most 0.634 of it is left. The published image needs another order; "
            "NumPy's and SciPy's eigh return the smallest variance first.",
        ),
        blank_claim(
            "ascending",
            "For any data at least 0.63 of the variance (1 - 1500/4096) is left. How much more depends on the images.",
        ),
        ClaimSpec(
            sentence="Without the axes of largest variance the image is lost.",
            source=f"{PAPER}, §A.8.6",
            measure=lost_without_first_axes,
            criterion=Bound(
                "share of the variance lost without the first 2000 of 3000 axes (descending)",
                at_least(0.49),
                statistic="smallest",
                over="data sets",
                exact=True,
            ),
            published="0.49 (12.31 against 0.54 of about 23.9)",
            robust_over=(0.25, 0.49, 0.9),
        ),
        ClaimSpec(
            sentence="The published errors are those of sorted axes, in one order or the other.",
            source=f"{PAPER}, Tab. 7",
            measure=lambda _, __: [float(direction_changes(PUBLISHED.steps))],
            criterion=Bound(
                "number of changes between rising and falling explained variance per axis, over the published sets,",
                at_most(0.0),
                over="",
                exact=True,
            ),
            note=PUBLISHED.note,
            kind=Statement.MATHEMATICAL,
        ),
        ClaimSpec(
            sentence="The four axes of largest variance explain more than half of the sprite's position.",
            source=f"{PAPER}, §A.8.6, about the first axes",
            measure=lambda results, _: [r.measured.position_r2 for r in results],
            criterion=Bound(
                "linear R² of the position from the scores of the first 4 axes",
                above(0.5),
                statistic="smallest",
                over="data sets",
                exact=True,
            ),
            note="The paper says that the first axes are associated with the position, and gives no number.",
        ),
    )

    def cells(self, settings: AxesSettings) -> list[AxesCell]:
        return [AxesCell(seed) for seed in range(settings.seeds)]

    def solve(self, cells: Sequence[AxesCell], settings: AxesSettings, context: Context) -> Iterator[list[AxesResult]]:
        for cell in cells:
            yield [Result(cell, self.measure(cell, settings))]

    def measure(self, cell: AxesCell, settings: AxesSettings) -> AxesMeasurement:
        data = render_dataset(find_dataset("dsprites"), rows=settings.samples, seed=cell.seed, size=settings.size)
        axes = PrincipalAxes.of(data.x)
        image, total = data.x[:1], float(axes.variances.sum())
        cumulative = axes.variances.cumsum(0) / total
        sets = [settings.scaled(axis_set) for axis_set in PUBLISHED.errors]

        def pixels(image: Tensor) -> bytes:
            return (image.clamp(0, 1) * 255).round().to(torch.uint8).numpy().tobytes()

        def in_order(order: str) -> InOrder:
            return InOrder(
                unexplained=tuple(axes.error(first, last, order) / total for first, last in sets),
                images=tuple(pixels(axes.reconstruct(image, first, last, order)) for first, last in sets),
            )

        assert data.factors is not None
        position = data.factors[:, [data.factor_names.index(name) for name in ("position_x", "position_y")]]
        return AxesMeasurement(
            total_variance=total,
            descending=in_order("descending"),
            ascending=in_order("ascending"),
            cumulative=tuple(float(v) for v in cumulative[:: cumulative_step(len(cumulative))]),
            position_r2=metrics.linear_r2((data.x.double() - axes.mean) @ axes.axes[:4].mT, position).score,
            original=pixels(image),
        )

    def comparisons(self, results: Results, settings: AxesSettings) -> list[Comparison]:
        total = PUBLISHED.total

        def panel(order: str) -> Comparison:
            rows = [
                compare(f"axes {a} to {b} of {PUBLISHED.axes}", unexplained(results, order, (a, b)), error / total)
                for (a, b), error in PUBLISHED.errors.items()
            ]
            return Comparison("Tab. 7", f"share of the variance left unexplained, {order} order", rows, PUBLISHED.note)

        return [panel(order) for order in ORDERS]

    def tables(self, results: Results, settings: AxesSettings) -> list[ReportTable]:
        total, counted = PUBLISHED.total, f"axes of {PUBLISHED.axes}"
        errors = [
            {
                counted: f"{a} to {b}",
                f"here (of {settings.size**2})": "{} to {}".format(*settings.scaled((a, b))),
                **{order: median(unexplained(results, order, (a, b))) for order in ORDERS},
                "published": error / total,
            }
            for (a, b), error in PUBLISHED.errors.items()
        ]
        per_axis = {order: explained(results, order) for order in ORDERS}
        steps = [
            {
                counted: f"{a} to {b}",
                **{order: 1000 * values[k] for order, values in per_axis.items()},
                "published": 1000 * value / total,
            }
            for k, (a, b, value) in enumerate(PUBLISHED.steps)
        ]
        return [
            ReportTable("Table 7: share of the variance left unexplained", errors),
            ReportTable("What one axis explains, in thousandths of the variance", steps),
        ]

    def figures(self, results: Results, settings: AxesSettings) -> list[ReportFigure]:
        images = (
            "Figure 5 in both orders: one image from sets of principal axes, counted out of 4096. The published image "
            "from the first 1500 axes is blank, like that of the lower row."
        )
        errors = (
            "Table 7 in both orders; crosses are the published values, as shares of the variance that they imply. "
            "Right: sorted axes give curves that only fall or only rise; the published values do both."
        )
        return [
            ReportFigure("a_figure_5", draw_images(results[0].measured, settings.size), images),
            ReportFigure("b_errors", draw_errors(results, settings), errors),
        ]


# figures --------------------------------------------------------------------------------------


def draw_images(measured: AxesMeasurement, size: int) -> Figure:
    columns = ["original", *(f"{a} to {b}" for a, b in PUBLISHED.errors)]
    figure, axes = figures.grid_of_panels(len(ORDERS), len(columns), width=1.55, height=1.85)
    for row, (order, label) in enumerate(ORDERS.items()):
        images = (measured.original, *getattr(measured, order).images)
        own = axes[row * len(columns) : (row + 1) * len(columns)]
        for axis, name, image in zip(own, columns, images, strict=True):
            pixels = np.frombuffer(image, dtype=np.uint8).reshape(size, size)
            axis.imshow(pixels, cmap="gray", vmin=0, vmax=255)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_title(name if row == 0 else "", fontsize=10)
        own[0].set_ylabel(label, fontsize=10)
    return figure


def draw_errors(results: Results, settings: AxesSettings) -> Figure:
    figure, axes = figures.row_of_panels(2, width=4.8)
    draw_unexplained(axes[0], results, settings)
    steps, total = PUBLISHED.steps, PUBLISHED.total
    middles = [(a + b) / 2 for a, b, _ in steps]
    for order, label in ORDERS.items():
        axes[1].plot(middles, explained(results, order), "o-", markersize=5, label=label)
    figures.plot_published(axes[1], middles, [value / total for _, _, value in steps], label="published")
    figures.format_axis(
        axes[1], title="What one axis explains", x="axis, of 4096", y="share of the variance", log="y", legend=False
    )
    figures.shared_legend(figure, axes[0])
    return figure


def draw_unexplained(axis: Axes, results: Results, settings: AxesSettings) -> None:
    """The n - m smallest variances are what the m largest leave, so one curve gives both orders."""
    count = settings.size**2
    largest = 1 + cumulative_step(count) * np.arange(len(results[0].measured.cumulative))
    share = np.concatenate([[0.0], largest / count, [1.0]])
    held = np.concatenate([[0.0], np.median([r.measured.cumulative for r in results], axis=0), [1.0]])
    axis.plot(PUBLISHED.axes * share, 1 - held, label=ORDERS["descending"])
    axis.plot(PUBLISHED.axes * (1 - share), held, label=ORDERS["ascending"])
    errors = [PUBLISHED.errors[0, last] / PUBLISHED.total for last in PUBLISHED.first_axes]
    figures.plot_published(axis, [float(last) for last in PUBLISHED.first_axes], errors, label="published")
    title = "Variance left by the first axes"
    figures.format_axis(axis, title=title, x="axes used, of 4096", y="share left", log="", legend=False)


EXPERIMENT = PrincipalAxesExperiment()
