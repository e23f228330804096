"""Claims of orthogonality about the paper's theorems: variances and columns, and distances between neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vaescope.papers.claims import ClaimSpec, members_converged
from vaescope.papers.criteria import Bound, Pairs, RankCorrelation, within
from vaescope.papers.statistics import median, relative_ranks
from vaescope.papers.why_vaes_disentangle.disentangling import PAPER, DisentanglingSettings, by_images
from vaescope.papers.why_vaes_disentangle.orthogonality_results import (
    InverseSquares,
    NeighbourDistances,
    OrthogonalityMeasurement,
    OrthogonalityResult,
    Results,
    SlopeFit,
)

SLOPE_TOLERANCE = 0.2
Spec = ClaimSpec[OrthogonalityResult, DisentanglingSettings, Any]


# Theorem 1 (c) --------------------------------------------------------------------------------

PickSlope = Callable[[InverseSquares], SlopeFit | None]


def slopes(pick: PickSlope) -> Callable[[Results, object], list[float]]:
    return lambda results, _: [fit.slope for r in results if (fit := pick(r.measured.inverse_squares))]


def r2_note(pick: PickSlope) -> Callable[[Results, object], str]:
    def note(results: Results, _: object) -> str:
        values = [fit.r2 for r in results if (fit := pick(r.measured.inverse_squares))]
        return f"Median R² over members: {median(values):.2f}." if values else ""

    return note


def _slope_claim(sentence: str, source: str, pick: PickSlope) -> Spec:
    return ClaimSpec(
        sentence=sentence,
        source=source,
        measure=slopes(pick),
        criterion=Bound("slope of logarithms, with a constant per image,", within(-1.0, SLOPE_TOLERANCE)),
        note=r2_note(pick),
        if_refuted=SLOPE_REFUTED,
        requires=(members_converged(),),
    )


SLOPE_REFUTED = (
    "The theorem assumes a Gaussian likelihood and columns so long that the prior does not matter: then σ_j² = "
    "β/(γ²‖c_j‖²). Under a Bernoulli likelihood every pixel has the weight 1/(x̂(1 - x̂)), and latents that are hardly "
    "used have σ² near 1 whatever their column is."
)
SLOPES = (
    _slope_claim(
        "Posterior variances σ_j² are proportional to 1/‖c_j‖², c_j the columns of the Jacobian.",
        f"{PAPER}, Theorem 1 (c)",
        lambda found: found.jacobian,
    ),
    _slope_claim(
        "Posterior variances σ_j² are proportional to 1/‖c_j‖², c_j the columns of the local decoder's matrix.",
        f"{PAPER}, Theorem 1 (c)",
        lambda found: found.local,
    ),
    _slope_claim(
        "With pixels weighted by their inverse variance, 1/(1/σ_j² - 1) is proportional to 1/‖c_j‖².",
        "Beyond the paper: Eq. 12 of Reizinger et al. 2022 for a Bernoulli likelihood",
        lambda found: found.weighted,
    ),
)


# Theorem 2 (b) --------------------------------------------------------------------------------


def neighbour_pairs(pick: Callable[[NeighbourDistances], float]) -> Callable[[Results, object], Pairs]:
    """Ranks of KL and of the distance between neighbours, both within an image set: levels differ between them."""

    def ranks(own: Results, value: Callable[[OrthogonalityMeasurement], float]) -> list[float]:
        return relative_ranks([value(r.measured) for r in own])

    def measure(results: Results, _: object) -> Pairs:
        groups = by_images(results).values()
        kl = [rank for own in groups for rank in ranks(own, lambda m: m.kl)]
        return Pairs(kl, [rank for own in groups for rank in ranks(own, lambda m: pick(m.neighbours))])

    return measure


def _neighbour_claim(
    codes: str, source: str, pick: Callable[[NeighbourDistances], float], if_refuted: str = ""
) -> Spec:
    return ClaimSpec(
        sentence=f"Codes of neighbouring images are closer in models with a lower KL: {codes}.",
        source=source,
        measure=neighbour_pairs(pick),
        criterion=RankCorrelation(1, over="members (ranked within their image set)"),
        if_refuted=if_refuted,
    )


NEIGHBOURS = (
    _neighbour_claim(
        "sampled codes",
        f"{PAPER}, Theorem 2 (b), as printed",
        lambda found: found.sampled,
        "As printed, the distance is between samples: E‖z_i - z_k‖² = ‖μ_i - μ_k‖² + Σ_j (σ_ij² + σ_kj²), and models "
        "with a lower KL have wider posteriors. A collapsed model, with KL 0, has the largest distance, 2d. The proof "
        "compares means.",
    ),
    _neighbour_claim("mean codes", f"{PAPER}, Theorem 2 (b), of means", lambda found: found.mean),
    _neighbour_claim(
        "mean codes, relative to the typical distance between codes",
        "Beyond the paper: a lower KL shrinks all distances between means",
        lambda found: found.relative,
        "A lower KL shrinks all distances between means; relative to them, neighbours are not closer.",
    ),
)
