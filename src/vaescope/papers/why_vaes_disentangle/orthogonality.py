"""Orthogonality of decoders and disentanglement (Bhowal et al. 2024, Tabs. 4 to 6, Fig. 4, Theorems 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import metrics, randomness, regime
from vaescope.errors import InputError
from vaescope.models import Member
from vaescope.orthogonality import (
    column_angles,
    column_contrast,
    gram_share,
    inverse_square,
    local_fit,
    neighbour_distance,
    od_report,
)
from vaescope.papers.claims import ClaimSpec
from vaescope.papers.experiment import ReportFigure, ReportTable
from vaescope.papers.published import Comparison
from vaescope.papers.trained import FactorData
from vaescope.papers.why_vaes_disentangle import ORTHOGONALITY
from vaescope.papers.why_vaes_disentangle import orthogonality_figures as drawings
from vaescope.papers.why_vaes_disentangle import orthogonality_results as report
from vaescope.papers.why_vaes_disentangle.disentangling import (
    SMALLER_CHANGES,
    DisentanglingCell,
    DisentanglingExperiment,
    DisentanglingSettings,
)
from vaescope.papers.why_vaes_disentangle.orthogonality_claims import claims
from vaescope.papers.why_vaes_disentangle.orthogonality_results import (
    ColumnStatistics,
    Disentanglement,
    Distances,
    InverseSquares,
    NeighbourDistances,
    ODDistances,
    OrthogonalityMeasurement,
    OrthogonalityResult,
    SlopeFit,
)
from vaescope.theory import jacobian

NULL_DRAWS = 4  # per image
NEIGHBOUR_SAMPLES = 1000  # test images among which nearest neighbours are searched
SHOWN_POINTS = 16  # images whose column norms and variances are drawn


class OrthogonalityExperiment(DisentanglingExperiment[OrthogonalityMeasurement]):
    info = ORTHOGONALITY
    about = (
        "VAE, β-VAE and β-TCVAE are trained on images with known factors. Disentanglement is measured by MIG and "
        "MIG-sup of mean codes, and of the posteriors through the aggregated posterior. Orthogonality is measured by "
        "the OD-Score of the local decoder's matrix at test images; lower is more orthogonal. All models use the same "
        "images and the same fit. The score is computed over latents in use, with V aligned to the identity before it "
        "is compared. The score as published is shown next to it, and so are the contrast c_IMA and the mean squared "
        "cosine of the Jacobian's columns, which need no alignment, and the scores of random directions. "
        f"{SMALLER_CHANGES}"
    )
    measured_type = OrthogonalityMeasurement
    shares_members_with = ("local-nonlinearity",)

    def measure(
        self, cell: DisentanglingCell, member: Member, data: FactorData, settings: DisentanglingSettings
    ) -> OrthogonalityMeasurement:
        x = data.observations.test
        mean, variance = (t.detach() for t in member.encode(x))
        judged = regime.of_model(member, x, decoder=False)
        in_use = [kind != "passive" for kind in judged.kind]
        latents = [k for k in np.argsort(-judged.kl).tolist() if in_use[k]]
        points = slice(settings.points)
        z, spread = mean[points].double(), variance[points].double()
        J = jacobian(member.decode, z)
        M = local_fit(member.decode, z, spread, draws=settings.draws).slope
        first, shown = slice(NEIGHBOUR_SAMPLES), slice(SHOWN_POINTS)
        return OrthogonalityMeasurement(
            disentanglement=_disentanglement(mean, variance, data.test_factors, in_use),
            kl=float(judged.kl.sum()),
            latents_in_use=tuple(latents),
            od_distances=ODDistances(
                in_use=_distances(M[:, :, latents], align=True),
                all_latents=_distances(M, align=True),
                published=_distances(M, align=False),
            ),
            columns=_columns(J[:, :, latents], M[:, :, latents]),
            inverse_squares=_inverse_squares(_pixel_weights(member, z), spread, J, M, latents),
            norms=_floats(J.norm(dim=1)[shown][:, latents]),
            variances=_floats(spread[shown][:, latents]),
            neighbours=_neighbours(x[first], mean[first], variance[first], member.seed),
            mig_curve=tuple(member.history.get("mig", ())),
        )

    def claims(
        self, settings: DisentanglingSettings
    ) -> Sequence[ClaimSpec[OrthogonalityResult, DisentanglingSettings, Any]]:
        return claims(self.image_sets(settings))

    def comparisons(self, results: Sequence[OrthogonalityResult], settings: DisentanglingSettings) -> list[Comparison]:
        return report.comparisons(results)

    def figures(self, results: Sequence[OrthogonalityResult], settings: DisentanglingSettings) -> list[ReportFigure]:
        return drawings.figures_of(results)

    def tables(self, results: Sequence[OrthogonalityResult], settings: DisentanglingSettings) -> list[ReportTable]:
        return [report.ranking_table(results), report.medians_table(results)]


def _floats(values: Tensor | np.ndarray) -> tuple[float, ...]:
    return tuple(float(v) for v in values.flatten())


def _disentanglement(mean: Tensor, variance: Tensor, factors: Tensor, in_use: list[bool]) -> Disentanglement:
    """Both gaps, of means by bins and of posteriors; MIG-sup over latents in use."""
    binned, posteriors = metrics.mig(mean, factors), metrics.aggregated_mig(mean, variance, factors, active=in_use)
    return Disentanglement(
        mig=binned.score,
        mig_floor=binned.floor,
        mig_sup=metrics.mig_sup(mean, factors, active=in_use).score,
        aggregated_mig=posteriors.score,
        aggregated_mig_sup=posteriors.sup,
    )


def _distances(matrices: Float[Tensor, "P n d"], *, align: bool) -> Distances:
    """From orthogonal columns, at every image; empty without latents in use."""
    if not matrices.shape[2]:
        return Distances((), (), ())
    found = od_report(matrices, align=align, null_draws=NULL_DRAWS)
    return Distances(_floats(found.distances), _floats(found.null_distances), _floats(found.rotated_distances))


def _columns(J: Float[Tensor, "P n d"], M: Float[Tensor, "P n d"]) -> ColumnStatistics | None:
    """Measures of orthogonality that need no alignment; None with fewer than two columns."""
    if J.shape[2] < 2:
        return None
    return ColumnStatistics(
        contrast=float(column_contrast(J).median()),
        gram_share=float(gram_share(J).mean()),
        local_contrast=float(column_contrast(M).median()),
        angles=_floats(column_angles(J).nanmean(0)),
    )


def _pixel_weights(member: Member, z: Float[Tensor, "P d"]) -> Float[Tensor, "P n"]:
    """Curvature of -log p(x|z) in the decoder's mean of every pixel, up to a factor: x̂ (1 - x̂) under Bernoulli."""
    output = member.decode(z)
    bernoulli = member.likelihood == "bernoulli"
    return 1 / (output * (1 - output)).clamp(min=1e-6) if bernoulli else torch.ones_like(output)


def _inverse_squares(
    weights: Float[Tensor, "P n"],
    variance: Float[Tensor, "P d"],
    J: Float[Tensor, "P n d"],
    M: Float[Tensor, "P n d"],
    latents: list[int],
) -> InverseSquares:
    """Theorem 1 (c) with columns of J and of the local decoder, and in the form of the likelihood.

    Under a Bernoulli likelihood an optimal posterior has 1/σ_j² - 1 = Σ_i J_ij² / (x̂_i (1 - x̂_i)) / β, to first order.
    """
    weighted_norms = (J.square() * weights.unsqueeze(2)).sum(1).sqrt()
    weighted_variance = 1 / (1 / variance - 1).clamp(min=1e-6)
    return InverseSquares(
        jacobian=_slope(variance[:, latents], J.norm(dim=1)[:, latents]),
        local=_slope(variance[:, latents], M.norm(dim=1)[:, latents]),
        weighted=_slope(weighted_variance[:, latents], weighted_norms[:, latents]),
    )


def _slope(variance: Float[Tensor, "P u"], norms: Float[Tensor, "P u"]) -> SlopeFit | None:
    """None if no slope is defined: fewer than two latents in use, or columns of equal norm."""
    try:
        line = inverse_square(variance, norms.clamp(min=1e-12))
    except InputError:
        return None
    return SlopeFit(line.slope, line.r2)


def _neighbours(x: Tensor, mean: Tensor, variance: Tensor, seed: int) -> NeighbourDistances:
    """Theorem 2 (b): of samples, as printed; of means; and of means relative to typical distances between codes."""
    noise = torch.randn(mean.shape, generator=randomness.generator(seed, "neighbours"))
    sampled = mean + variance.sqrt() * noise
    return NeighbourDistances(
        sampled=float(neighbour_distance(x, sampled, typical=False).square().mean()),
        mean=float(neighbour_distance(x, mean, typical=False).square().mean()),
        relative=float(neighbour_distance(x, mean).square().mean()),
    )


EXPERIMENT = OrthogonalityExperiment()
