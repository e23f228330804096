"""Results of sprites: typed rows, claims, published values and the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vaescope.papers.claims import ClaimSpec, late_change, settled, show
from vaescope.papers.criteria import Bound, Pairs, RankCorrelation, above, at_least, at_most
from vaescope.papers.embrace_the_gap import PAPER
from vaescope.papers.experiment import ReportTable, TableRow
from vaescope.papers.published import Comparison, compare
from vaescope.papers.results import Result, grouped
from vaescope.papers.statistics import median, relative_ranks

FACTORS = ("x", "y", "scale", "hue")
STEPS = 9  # images per latent interpolation
PUBLISHED_MCC = {"x": 0.996, "y": 0.989, "scale": 0.933, "hue": 0.989}
HIGH_MCC = 0.95
SETTLED_MCC = 0.01
SOURCE = f"{PAPER}, §4.3 and Fig. 5"


@dataclass(frozen=True)
class SpriteCell:
    data_set: int
    """The draw of the authors' generator."""
    seed: int
    start: str = "random"
    """Initial weights: `random`, or `factors`, a control that starts with the true factors as latents."""
    remedy: str = ""
    """How training differs from that of the other members: a key of `REMEDIES`, or nothing."""


@dataclass(frozen=True)
class FactorRecovery:
    """One factor and the latent that is matched to it."""

    mcc: float
    mcc_pca: float
    mcc_ica: float
    true: tuple[float, ...]
    """Values of the first test images."""
    estimated: tuple[float, ...]
    """The matched latent of the same images, with scale and offset fitted to the factor."""


@dataclass(frozen=True)
class TrainingCurve:
    """Recovery and median contrast after every epoch."""

    epoch: tuple[int, ...]
    mcc: tuple[float, ...]
    contrast: tuple[float, ...]


@dataclass(frozen=True)
class SpriteMeasurement:
    """What is measured of one member."""

    mcc: float
    mcc_sampled: float
    mcc_floor: float
    """Of codes without any information."""
    mcc_pca: float
    mcc_ica: float
    """Of linear ICA on the principal components."""
    mcc_unmixed: float
    """Of the member's codes after linear ICA: higher than its MCC if the codes are rotated factors."""
    latents_in_use: int
    """Latents whose posterior means vary more over the images than their posteriors are wide."""
    r2: float
    r2_pca: float
    ima_contrast: float
    renderer_contrast: float
    """c_IMA of the renderer."""
    fine_renderer_contrast: float
    """c_IMA of the renderer at 64 x 64 pixels: coarser pixels mix factors."""
    reconstruction_mse: float
    factors: dict[str, FactorRecovery]
    curve: TrainingCurve
    interpolations: bytes
    """Pixels (factor, step, channel, row, column) of latent interpolations."""


SpriteResult = Result[SpriteCell, SpriteMeasurement]
Results = Sequence[SpriteResult]


def trained_from_random(results: Results) -> list[SpriteResult]:
    """The members that know nothing of the factors and are trained as described."""
    return [r for r in results if r.cell.start == "random" and not r.cell.remedy]


def with_remedy(results: Results, remedy: str) -> list[SpriteResult]:
    return [r for r in results if r.cell.remedy == remedy]


def controls(results: Results) -> list[SpriteResult]:
    """The members that started at the true factors."""
    return [r for r in results if r.cell.start == "factors"]


def best_members(results: Results) -> list[SpriteResult]:
    """The member of every data set with the highest ELBO: a choice that does not use the factors."""
    groups = grouped(trained_from_random(results), lambda r: r.cell.data_set).values()
    return [max(own, key=lambda r: r.elbo) for own in groups]


def shown_member(results: Results) -> SpriteResult:
    """The member of the figures: of all best members, the one with the highest MCC."""
    return max(best_members(results), key=lambda r: r.measured.mcc)


# claims ---------------------------------------------------------------------------------------


def mccs(results: Results, _: object) -> list[float]:
    """MCC of the best member of every data set."""
    return [r.measured.mcc for r in best_members(results)]


def lead_over(baseline: Callable[[FactorRecovery], float]) -> Callable[[Results, object], list[float]]:
    """For the best member of every data set: the smallest lead over a baseline among factors."""

    def measure(results: Results, _: object) -> list[float]:
        factors = [r.measured.factors.values() for r in best_members(results)]
        return [min(factor.mcc - baseline(factor) for factor in own) for own in factors]

    return measure


def leads_note(baseline: Callable[[FactorRecovery], float]) -> Callable[[Results, object], str]:
    def note(results: Results, _: object) -> str:
        best = best_members(results)
        leads = {
            n: median([r.measured.factors[n].mcc - baseline(r.measured.factors[n]) for r in best]) for n in FACTORS
        }
        return f"Median lead by factor: {', '.join(f'{name} {lead:+.2f}' for name, lead in leads.items())}."

    return note


def ranks_along_training(
    x: Callable[[TrainingCurve], Sequence[float]], *, after_peak: bool = False
) -> Callable[[Results, object], Pairs]:
    """x and MCC along the training of the best members, as ranks within each member: levels differ between data sets.

    Args:
        x: the other quantity.
        after_peak: from the epoch with the highest contrast.
    """

    def measure(results: Results, _: object) -> Pairs:
        found = Pairs([], [])
        for curve in (r.measured.curve for r in best_members(results)):
            first = int(np.argmax(curve.contrast)) if after_peak and curve.contrast else 0
            own_x, own_y = (relative_ranks(values[first:]) for values in (x(curve), curve.mcc))
            found = Pairs([*found.x, *own_x], [*found.y, *own_y])
        return found

    return measure


def failure_note(results: Results, _: object) -> str:
    """What the members with a low MCC have: latents in use, linear R², and codes that linear ICA can unmix."""
    low = [r for r in trained_from_random(results) if r.measured.mcc < HIGH_MCC]
    if not low:
        return "Every member is above it."
    rows = [
        f"data set {r.cell.data_set}, seed {r.cell.seed}: {show(r.measured.mcc)}, {r.measured.latents_in_use} latents "
        f"in use, R² {show(r.measured.r2)}, after linear ICA of the codes {show(r.measured.mcc_unmixed)}, "
        f"c_IMA {show(r.measured.ima_contrast)}"
        for r in low
    ]
    return f"Members below it: {'; '.join(rows)}."


def renderer_contrasts(results: Results, _: object) -> list[float]:
    return [r.measured.renderer_contrast for r in results]


def fine_renderer_note(results: Results, _: object) -> str:
    fine = median([r.measured.fine_renderer_contrast for r in results])
    return f"Coarse pixels mix factors: rendered at 64 x 64, the same ranges have {show(fine)} in the median."


def elbo_leads(results: Results, _: object) -> list[float]:
    """On every data set: the ELBO of the best control minus that of the best member from random weights."""
    best = {r.cell.data_set: r.elbo for r in best_members(results)}
    groups = grouped(controls(results), lambda r: r.cell.data_set)
    return [max(r.elbo for r in own) - best[data_set] for data_set, own in groups.items() if data_set in best]


def recovery_settled(results: Results, _: object) -> str | None:
    """Claims about recovery are decided once it has settled, although the ELBO may still gain precision."""
    return _mcc_settled(trained_from_random(results), _)


def remedy_claim(remedy: str, title: str) -> ClaimSpec[SpriteResult, object, Sequence[float]]:
    """Whether members that are trained differently recover the factors.

    Args:
        remedy: its key in `REMEDIES`.
        title: what it changes, in words.
    """

    def note(results: Results, _: object) -> str:
        used = [r.measured.latents_in_use for r in with_remedy(results, remedy)]
        return f"Latents in use: {', '.join(map(str, used))}."

    return ClaimSpec(
        sentence=f"A VAE that is trained {title} recovers the factors.",
        source="Beyond the paper: remedies for members that mix the factors",
        measure=lambda results, _: [r.measured.mcc for r in with_remedy(results, remedy)],
        criterion=Bound("MCC", at_least(HIGH_MCC), over="data sets"),
        note=note,
        requires=(lambda results, _: _mcc_settled(with_remedy(results, remedy), _),),
    )


_mcc_settled = settled("MCC", lambda r: r.measured.curve.mcc, tolerance=SETTLED_MCC)


def has_controls(results: Results, _: object) -> str | None:
    return None if controls(results) else "This run has no members that start at the true factors."


CONTROLS = (
    ClaimSpec(
        sentence="A VAE that starts at the true factors keeps them.",
        source="Beyond the paper: whether the ELBO prefers the factors and training fails to find them",
        measure=lambda results, _: [r.measured.mcc for r in controls(results)],
        criterion=Bound("MCC of members that started at the factors", at_least(HIGH_MCC), over="data sets"),
        requires=(has_controls,),
    ),
    ClaimSpec(
        sentence="A VAE that starts at the true factors has a higher ELBO than VAEs from random weights.",
        source="Beyond the paper: whether the ELBO prefers the factors and training fails to find them",
        measure=elbo_leads,
        criterion=Bound("lead in nats", above(0), over="data sets"),
        requires=(has_controls,),
    ),
)
CLAIMS = (
    ClaimSpec(
        sentence="The best VAE of a data set recovers the factors.",
        source=SOURCE,
        measure=mccs,
        criterion=Bound("MCC of the member with the highest ELBO", at_least(HIGH_MCC), over="data sets"),
        published="0.977 (mean of 0.996, 0.989, 0.933, 0.989)",
        note=failure_note,
        if_refuted=(
            "Members that start at the true factors tell whether the objective or its optimisation is the reason: see "
            "the claims about them."
        ),
        requires=(recovery_settled,),
    ),
    ClaimSpec(
        sentence="The best VAE recovers every factor better than principal components.",
        source=SOURCE,
        measure=lead_over(lambda f: f.mcc_pca),
        criterion=Bound("lead for the worst factor", above(0), statistic="smallest", over="data sets"),
        note=leads_note(lambda f: f.mcc_pca),
        requires=(recovery_settled,),
    ),
    ClaimSpec(
        sentence="The best VAE recovers every factor better than linear ICA.",
        source="Beyond the paper",
        measure=lead_over(lambda f: f.mcc_ica),
        criterion=Bound("lead for the worst factor", above(0), statistic="smallest", over="data sets"),
        note=leads_note(lambda f: f.mcc_ica),
        requires=(recovery_settled,),
    ),
    ClaimSpec(
        sentence="Recovery improves during training.",
        source=f"{SOURCE} left",
        measure=ranks_along_training(lambda curve: curve.epoch),
        criterion=RankCorrelation(sign=1, over="epochs of the best members"),
    ),
    ClaimSpec(
        sentence="After its peak the contrast of the decoder falls while recovery improves.",
        source=f"{SOURCE} left",
        measure=ranks_along_training(lambda curve: curve.contrast, after_peak=True),
        criterion=RankCorrelation(sign=-1, over="epochs of the best members"),
    ),
    ClaimSpec(
        sentence="The renderer is close to the IMA class.",
        source=f"{PAPER}, §4.3 assumes it; computed here by differentiating the renderer",
        measure=renderer_contrasts,
        criterion=Bound("c_IMA of the renderer in nats", at_most(0.05)),
        note=fine_renderer_note,
    ),
    *CONTROLS,
)


def claims(remedies: Mapping[str, str]) -> list[ClaimSpec[SpriteResult, object, Any]]:
    """All claims, with one for each remedy.

    Args:
        remedies: what each changes, in words.
    """
    return [*CLAIMS, *(remedy_claim(name, title) for name, title in remedies.items())]


# comparisons and table ------------------------------------------------------------------------

WHY = (
    "The published values are those of the member that the authors selected by inspection, on one draw of their "
    "generator, which is not published. Ours are medians and ranges over data sets, of the member with the highest "
    "ELBO on each."
)


def comparisons(results: Results) -> list[Comparison]:
    best = best_members(results)
    rows = [compare(name, [r.measured.factors[name].mcc for r in best], PUBLISHED_MCC[name]) for name in FACTORS]
    return [Comparison("Fig. 5 centre and right", "MCC per factor of the best member of each data set", rows, WHY)]


def member_label(result: SpriteResult, best: Results) -> str:
    label = f"data set {result.cell.data_set}, seed {result.cell.seed}"
    if result.cell.start == "factors":
        return f"{label}, started at the factors"
    if result.cell.remedy:
        return f"{label}, {result.cell.remedy}"
    return f"{label} (highest ELBO)" if result in best else label


def tables(results: Results) -> list[ReportTable]:
    best = best_members(results)
    groups = grouped(trained_from_random(results), lambda r: r.cell.data_set).values()
    return [
        ReportTable("Every data set", [_data_set_row(own) for own in groups]),
        ReportTable("Every member, with its baselines", [_member_row(r, best) for r in results]),
        ReportTable("Every factor of the best members", [_factor_row(r, name) for r in best for name in FACTORS]),
    ]


def _data_set_row(results: Results) -> TableRow:
    best = best_members(results)[0].measured
    return {
        "data set": results[0].cell.data_set,
        "members": len(results),
        "MCC of the highest ELBO": best.mcc,
        "median MCC": median([r.measured.mcc for r in results]),
        "highest MCC": max(r.measured.mcc for r in results),
        "PCA": best.mcc_pca,
        "linear ICA": best.mcc_ica,
        "floor": best.mcc_floor,
        "c_IMA": best.ima_contrast,
        "c_IMA of the renderer": best.renderer_contrast,
    }


def _factor_row(result: SpriteResult, name: str) -> TableRow:
    factor = result.measured.factors[name]
    return {
        "data set": result.cell.data_set,
        "factor": name,
        "MCC": factor.mcc,
        "PCA": factor.mcc_pca,
        "linear ICA": factor.mcc_ica,
        "published": PUBLISHED_MCC[name],
    }


def _member_row(result: SpriteResult, best: Results) -> TableRow:
    m = result.measured
    return {
        "member": member_label(result, best),
        "ELBO": result.elbo,
        "MCC": m.mcc,
        "PCA": m.mcc_pca,
        "linear ICA": m.mcc_ica,
        "floor": m.mcc_floor,
        "codes after linear ICA": m.mcc_unmixed,
        "change of MCC over the last third": late_change(m.curve.mcc),
        "latents in use": m.latents_in_use,
        "MCC sampled": m.mcc_sampled,
        **{name: m.factors[name].mcc for name in FACTORS},
        "R²": m.r2,
        "R² PCA": m.r2_pca,
        "c_IMA": m.ima_contrast,
        "c_IMA of the renderer": m.renderer_contrast,
        "at 64 x 64": m.fine_renderer_contrast,
        "MSE": m.reconstruction_mse,
    }
