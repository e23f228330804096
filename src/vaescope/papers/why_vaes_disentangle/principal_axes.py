"""Images from sets of principal axes, in both orders (Bhowal et al. 2024, Tab. 7 and Fig. 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vaescope import metrics
from vaescope.data import Dataset
from vaescope.data.catalogue import find_dataset, render_dataset
from vaescope.orthogonality.principal_axes import PrincipalAxes
from vaescope.papers.claims import ClaimSpec
from vaescope.papers.experiment import Context, Experiment, ReportFigure, ReportTable
from vaescope.papers.published import Comparison
from vaescope.papers.results import Result
from vaescope.papers.why_vaes_disentangle import PRINCIPAL_AXES
from vaescope.papers.why_vaes_disentangle import principal_axes_figures as drawings
from vaescope.papers.why_vaes_disentangle import principal_axes_results as report
from vaescope.papers.why_vaes_disentangle.principal_axes_results import (
    AXIS_SETS,
    LEADING_AXES,
    AxesCell,
    AxesMeasurement,
    AxesResult,
    AxesSettings,
    InOrder,
    cumulative_step,
)

POSITION = ("position_x", "position_y")


class PrincipalAxesExperiment(Experiment[AxesSettings, AxesCell, AxesMeasurement]):
    info = PRINCIPAL_AXES
    about = (
        "Images with the structure of dSprites are reconstructed from sets of their principal axes. In the paper, the "
        "first 1500 axes give a blank image. The first axes of a principal component analysis cannot, because they "
        "have the largest variance. Errors are therefore shown in both orders: from the largest variance down, and "
        "from the smallest up. The error of a set is exactly the variance of the other axes, so the published numbers "
        "can be compared with either order: from one axis to the next, the explained variance can only fall, or only "
        "rise. The quick profile has images of 32 x 32 pixels and scales the numbers of axes in proportion."
    )
    quick = AxesSettings(seeds=1, samples=8_000, size=32)
    laptop = AxesSettings(seeds=3, samples=20_000, size=64)
    paper = AxesSettings(seeds=3, samples=20_000, size=64)
    cell_type = AxesCell
    measured_type = AxesMeasurement

    def cells(self, settings: AxesSettings) -> list[AxesCell]:
        return [AxesCell(seed) for seed in range(settings.seeds)]

    def solve(self, cells: Sequence[AxesCell], settings: AxesSettings, context: Context) -> Iterator[list[AxesResult]]:
        for cell in cells:
            images = render_dataset(find_dataset("dsprites"), rows=settings.samples, seed=cell.seed, size=settings.size)
            yield [Result(cell, _measure(images, settings))]

    def claims(self, settings: AxesSettings) -> Sequence[ClaimSpec[AxesResult, AxesSettings, Sequence[float]]]:
        return report.CLAIMS

    def comparisons(self, results: Sequence[AxesResult], settings: AxesSettings) -> list[Comparison]:
        return report.comparisons(results)

    def figures(self, results: Sequence[AxesResult], settings: AxesSettings) -> list[ReportFigure]:
        return drawings.figures_of(results, settings)

    def tables(self, results: Sequence[AxesResult], settings: AxesSettings) -> list[ReportTable]:
        return report.tables(results, settings)


def _measure(images: Dataset, settings: AxesSettings) -> AxesMeasurement:
    axes = PrincipalAxes.of(images.x)
    total = float(axes.variances.sum())
    cumulative = axes.variances.cumsum(0) / total
    return AxesMeasurement(
        total_variance=total,
        descending=_in_order(axes, images.x[0], "descending", settings),
        ascending=_in_order(axes, images.x[0], "ascending", settings),
        cumulative=tuple(float(v) for v in cumulative[:: cumulative_step(len(cumulative))]),
        position_r2=_position_r2(axes, images),
        original=_bytes(images.x[0]),
    )


def _in_order(axes: PrincipalAxes, image: Tensor, order: str, settings: AxesSettings) -> InOrder:
    total = float(axes.variances.sum())
    sets = [settings.scaled(axis_set) for axis_set in AXIS_SETS]
    return InOrder(
        unexplained=tuple(axes.error(first, last, order) / total for first, last in sets),
        images=tuple(_bytes(axes.reconstruct(image.unsqueeze(0), first, last, order)) for first, last in sets),
    )


def _position_r2(axes: PrincipalAxes, images: Dataset) -> float:
    """Linear R² of the position from the scores of the leading axes."""
    assert images.factors is not None
    scores = (images.x.double() - axes.mean) @ axes.axes[:LEADING_AXES].mT
    columns = [images.factor_names.index(name) for name in POSITION]
    return metrics.linear_r2(scores, images.factors[:, columns]).score


def _bytes(image: Tensor) -> bytes:
    return (image.clamp(0, 1) * 255).round().to(torch.uint8).numpy().tobytes()


EXPERIMENT = PrincipalAxesExperiment()
