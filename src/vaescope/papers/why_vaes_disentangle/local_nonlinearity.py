"""Local decoders, linear and with one non-linearity (Bhowal et al. 2024, Tabs. 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from vaescope.models import Member
from vaescope.orthogonality import local_fit, loss_split
from vaescope.papers.claims import ClaimSpec
from vaescope.papers.experiment import ReportFigure, ReportTable
from vaescope.papers.published import Comparison
from vaescope.papers.trained import FactorData
from vaescope.papers.why_vaes_disentangle import LOCAL_NONLINEARITY
from vaescope.papers.why_vaes_disentangle import local_nonlinearity_results as report
from vaescope.papers.why_vaes_disentangle.disentangling import (
    SMALLER_CHANGES,
    DisentanglingCell,
    DisentanglingExperiment,
    DisentanglingSettings,
)
from vaescope.papers.why_vaes_disentangle.local_nonlinearity_results import (
    Fit,
    Fits,
    LocalMeasurement,
    LocalResult,
    LossParts,
)

SPLIT_SAMPLES = 256  # test images at which the loss is split


class LocalNonlinearityExperiment(DisentanglingExperiment[LocalMeasurement]):
    info = LOCAL_NONLINEARITY
    about = (
        "How a decoder varies within the posterior of a test image, Δ(ε) = f(μ + ε) - f(μ), is approximated by a "
        "linear map and by one non-linearity after a linear map. The linear map is the exact least-squares solution, "
        "and the non-linear fit starts from it. The decoder's own Jacobian, which is not fitted, is compared with "
        "them. Errors are measured on draws of ε that were not used for fitting, as a share of E‖Δ‖². Tests are paired "
        f"by image. {SMALLER_CHANGES}"
    )
    measured_type = LocalMeasurement
    shares_members_with = ("orthogonality",)

    def measure(
        self, cell: DisentanglingCell, member: Member, data: FactorData, settings: DisentanglingSettings
    ) -> LocalMeasurement:
        x = data.observations.test
        mean, variance = (t.detach() for t in member.encode(x))
        points, part = slice(settings.points), slice(SPLIT_SAMPLES)
        found = local_fit(
            member.decode, mean[points].double(), variance[points].double(), draws=settings.draws, linearise=True
        )
        parts = loss_split(member.decode, x[part], mean[part], variance[part])
        return LocalMeasurement(
            energy=_floats(found.energy),
            fits=Fits(
                jacobian=Fit(_floats(found.jacobian_error), _floats(found.jacobian_energy)),
                linear=Fit(_floats(found.linear_error), _floats(found.linear_energy)),
                nonlinear=Fit(_floats(found.nonlinear_error), _floats(found.nonlinear_energy)),
            ),
            loss=LossParts(
                total=float(parts.total.mean()),
                mean=float(parts.mean.mean()),
                stochastic=float(parts.stochastic.mean()),
                cross=float(parts.cross.mean()),
            ),
            cross_share=parts.cross_share,
        )

    def claims(self, settings: DisentanglingSettings) -> Sequence[ClaimSpec[LocalResult, DisentanglingSettings, Any]]:
        return report.claims(self.image_sets(settings))

    def comparisons(self, results: Sequence[LocalResult], settings: DisentanglingSettings) -> list[Comparison]:
        return report.comparisons(results)

    def figures(self, results: Sequence[LocalResult], settings: DisentanglingSettings) -> list[ReportFigure]:
        return report.figures_of(results)

    def tables(self, results: Sequence[LocalResult], settings: DisentanglingSettings) -> list[ReportTable]:
        return report.tables(results)


def _floats(values: Tensor | None) -> tuple[float, ...]:
    assert values is not None  # local_fit was called with linearise=True
    return tuple(float(v) for v in values)


EXPERIMENT = LocalNonlinearityExperiment()
