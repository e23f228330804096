"""Orthogonality of decoders and disentanglement (Bhowal et al. 2024, Tabs. 4 to 6, Fig. 4, Theorems 1 and 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
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
from vaescope.papers.claims import Claim
from vaescope.papers.comparison import Comparison
from vaescope.papers.trained import SyntheticData
from vaescope.papers.why_vaes_disentangle import orthogonality_results as results
from vaescope.papers.why_vaes_disentangle.disentangling import (
    CHANGED,
    PAPER,
    DisentanglingExperiment,
    DisentanglingSettings,
    flat,
)
from vaescope.papers.why_vaes_disentangle.orthogonality_results import VARIANTS
from vaescope.runs import Cell
from vaescope.runs.files import Row
from vaescope.theory import jacobian

NULL_DRAWS = 4  # per image
NEIGHBOURS = 1000  # test images among which neighbours are looked for


class OrthogonalityExperiment(DisentanglingExperiment):
    name = "orthogonality"
    title = "Are decoders with orthogonal columns those of disentangled codes?"
    source = f"{PAPER}, Tabs. 4 to 6, Fig. 4, Theorems 1 (c) and 2"
    about = (
        "VAE, β-VAE and β-TCVAE on images with known factors. Disentanglement is MIG and MIG-sup of mean codes (and of "
        "the posteriors, by the aggregated posterior); orthogonality is the OD-Score of the local decoder's matrix at "
        "test images, the same images and the same fit for all models, over latents in use, with V aligned to the "
        "identity before it is compared; lower is more orthogonal. As published it stands beside it, and so do the "
        "contrast c_IMA and the mean squared cosine of the Jacobian's columns, which need no alignment, and what "
        f"random directions would score. {CHANGED}"
    )
    kin: ClassVar = ("local-nonlinearity",)

    def measure(self, cell: Cell, member: Member, data: SyntheticData, settings: DisentanglingSettings) -> Row:
        x, factors = data.observations.test, data.test_sources
        mean, variance = (t.detach() for t in member.encode(x))
        judged = regime.of_model(member, x, decoder=False)
        used = [kind != "passive" for kind in judged.kind]
        row = _disentanglement(mean, variance, factors, used)
        row |= {"kl": float(judged.kl.sum()), "used": sum(used)}
        places = [k for k in np.argsort(-judged.kl).tolist() if used[k]]
        some = slice(settings.points)
        z, spread = mean[some].double(), variance[some].double()
        J = jacobian(member.decode, z)
        found = local_fit(member.decode, z, spread, draws=settings.draws)
        row |= _orthogonality(found.slope, J, places)
        row |= _inverse_squares(member.decode(z), spread, J, found.slope, places)
        return row | _neighbours(x[:NEIGHBOURS], mean[:NEIGHBOURS], variance[:NEIGHBOURS], member.seed)

    def claims(self, rows: Sequence[Row], settings: Any) -> list[Claim]:
        return results.claims([row for row in rows if row["status"] == "finished"])

    def comparisons(self, rows: Sequence[Row], settings: Any) -> list[Comparison]:
        return results.comparisons([row for row in rows if row["status"] == "finished"])

    def figures(self, rows: Sequence[Row], settings: Any) -> dict[str, tuple[Figure, str]]:
        return results.drawn([row for row in rows if row["status"] == "finished"])

    def tables(self, rows: Sequence[Row], settings: Any) -> dict[str, list[Row]]:
        return results.tables([row for row in rows if row["status"] == "finished"])


def _disentanglement(mean: Tensor, variance: Tensor, factors: Tensor, used: list[bool]) -> Row:
    """Both gaps, of means by bins and of posteriors; MIG-sup over latents in use."""
    binned, posteriors = metrics.mig(mean, factors), metrics.aggregated_mig(mean, variance, factors, active=used)
    return {
        "mig": binned.score,
        "mig_floor": binned.floor,
        "mig_sup": metrics.mig_sup(mean, factors, active=used).score,
        "aggregated_mig": posteriors.score,
        "aggregated_mig_sup": posteriors.sup,
    }


def _orthogonality(M: Float[Tensor, "P n d"], J: Float[Tensor, "P n d"], places: list[int]) -> Row:
    """Distances of every variant of the score, image by image, and what needs no alignment; latents by their KL."""
    row: Row = {"places": places}
    for variant, (own, align) in VARIANTS.items():
        matrices = M[:, :, places] if own else M
        report = od_report(matrices, align=align, null_draws=NULL_DRAWS) if matrices.shape[2] else None
        row[f"{variant}_distances"] = [] if report is None else report.distances.ravel().tolist()
        row[f"{variant}_null_distances"] = [] if report is None else report.null_distances.ravel().tolist()
        row[f"{variant}_rotated_distances"] = [] if report is None else report.rotated_distances.ravel().tolist()
    if len(places) < 2:
        return row | {"contrast": None, "gram_share": None, "local_contrast": None, "angles": []}
    used = J[:, :, places]
    return row | {
        "contrast": float(column_contrast(used).median()),
        "gram_share": float(gram_share(used).mean()),
        "local_contrast": float(column_contrast(M[:, :, places]).median()),
        "angles": flat(column_angles(used).nanmean(0)),
    }


def _inverse_squares(
    output: Float[Tensor, "P n"],
    variance: Float[Tensor, "P d"],
    J: Float[Tensor, "P n d"],
    M: Float[Tensor, "P n d"],
    places: list[int],
) -> Row:
    """Theorem 1 (c) with columns of J and of the local decoder; and as the likelihood has it.

    Under a Bernoulli likelihood an optimal posterior has 1/σ_j² - 1 = Σ_i J_ij² / (x̂_i (1 - x̂_i)) / β, to first order.
    """
    weights = 1 / (output * (1 - output)).clamp(min=1e-6)
    weighted = (J.square() * weights.unsqueeze(2)).sum(1).sqrt()
    lines = {
        "jacobian": (variance, J.norm(dim=1)),
        "local": (variance, M.norm(dim=1)),
        "weighted": (1 / (1 / variance - 1).clamp(min=1e-6), weighted),
    }
    row: Row = {}
    for name, (spread, norms) in lines.items():
        try:
            line = inverse_square(spread[:, places], norms[:, places].clamp(min=1e-12))
        except InputError:  # fewer than two latents in use
            row |= {f"{name}_slope": None, f"{name}_r2": None}
            continue
        row |= {f"{name}_slope": line.slope, f"{name}_r2": line.r2}
    first = slice(0, 16)
    row["norms"] = flat(J.norm(dim=1)[first][:, places])
    row["variances"] = flat(variance[first][:, places])
    return row


def _neighbours(x: Tensor, mean: Tensor, variance: Tensor, seed: int) -> Row:
    """Theorem 2 (b): as printed, of draws; of means; and of means relative to how far codes are apart."""
    noise = torch.randn(mean.shape, generator=randomness.generator(seed, "neighbours"))
    drawn = mean + variance.sqrt() * noise
    return {
        "neighbours_drawn": float(neighbour_distance(x, drawn, typical=False).square().mean()),
        "neighbours_mean": float(neighbour_distance(x, mean, typical=False).square().mean()),
        "neighbours_relative": float(neighbour_distance(x, mean).square().mean()),
    }


EXPERIMENT = OrthogonalityExperiment()
