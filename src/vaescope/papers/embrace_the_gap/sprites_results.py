"""What the rows of sprites say: claims, a table, figures, and the published values beside them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from vaescope.papers.claims import Claim, claim_over, rank_claim, show
from vaescope.papers.columns import column
from vaescope.papers.comparison import Comparison, entry
from vaescope.report import figures
from vaescope.runs.files import Row

FACTORS = ("x", "y", "scale", "hue")
STEPS = 9  # images per latent interpolation
PUBLISHED = {"x": 0.996, "y": 0.989, "scale": 0.933, "hue": 0.989}
SOURCE = "Reizinger et al. 2022, §4.3 and Fig. 5"


def best(rows: Sequence[Row]) -> Row | None:
    """The member with the highest ELBO: chosen without looking at any factor."""
    return max(rows, key=lambda row: row["elbo"], default=None)


def claims(rows: Sequence[Row]) -> list[Claim]:
    chosen = best(rows)
    along = chosen or {"along_epoch": [], "along_mcc": [], "along_contrast": []}
    peak = int(np.argmax(along["along_contrast"])) if along["along_contrast"] else 0
    return [
        claim_over(
            [row["mcc"] - row["mcc_pca"] for row in rows],
            pick=lambda _: chosen["mcc"] - chosen["mcc_pca"] if chosen else float("nan"),
            holds=lambda v: v > 0,
            sentence="The best VAE recovers the factors better than principal components do.",
            source=SOURCE,
            demand="MCC of the member with the highest ELBO above that of PCA",
            note="With the range over members.",
        ),
        claim_over(
            column(rows, "mcc"),
            pick=lambda _: chosen["mcc"] if chosen else float("nan"),
            holds=lambda v: v >= 0.9,
            sentence="The best VAE recovers the factors.",
            source=SOURCE,
            demand="MCC of the member with the highest ELBO at least 0.9",
            published="0.977 (mean of 0.996, 0.989, 0.933, 0.989)",
            note="With the range over members. Demanded of the published settings; at quick it is shown all the same.",
        ),
        rank_claim(
            [float(e) for e in along["along_epoch"]],
            along["along_mcc"],
            sign=1,
            over="epochs of the best member",
            sentence="Recovery improves along training.",
            source=f"{SOURCE} left",
        ),
        rank_claim(
            along["along_contrast"][peak:],
            along["along_mcc"][peak:],
            sign=-1,
            over="epochs of the best member",
            sentence="After its first peak the decoder's contrast falls as recovery improves.",
            source=f"{SOURCE} left",
        ),
        claim_over(
            column(rows, "renderer_contrast"),
            holds=lambda v: v <= 0.05,
            sentence="The renderer itself is close to the IMA class.",
            source="Reizinger et al. 2022, §4.3 assumes it; computed here through the renderer",
            demand="median c_IMA of the renderer at most 0.05 nats",
            note=_fine_note(rows),
        ),
    ]


def _fine_note(rows: Sequence[Row]) -> str:
    fine = column(rows, "fine_renderer_contrast")
    if not fine:
        return ""
    return f"Pixels mix factors: the same ranges rendered at 64 x 64 have {show(float(np.median(fine)))} in the median."


def comparisons(rows: Sequence[Row]) -> list[Comparison]:
    chosen = best(rows)
    if chosen is None:
        return []
    ours = [entry(name, [chosen[f"mcc_{name}"]], PUBLISHED[name]) for name in FACTORS]
    why = (
        "The published values are of the authors' best member by inspection; ours is the member with the highest ELBO. "
        "Their data set was one draw of Beta distributions that is not published, and other draws are far from the "
        "IMA class."
    )
    return [Comparison("Fig. 5 centre and right", "MCC per factor of the best member", ours, why)]


def table(rows: Sequence[Row]) -> list[Row]:
    chosen = best(rows)
    return [
        {
            "seed": f"{row['seed']}{' (best ELBO)' if row is chosen else ''}",
            "ELBO": row["elbo"],
            "MCC": row["mcc"],
            "PCA": row["mcc_pca"],
            "floor": row["mcc_floor"],
            "MCC sampled": row["mcc_sampled"],
            **{name: row[f"mcc_{name}"] for name in FACTORS},
            "R²": row["r2"],
            "R² PCA": row["r2_pca"],
            "c_IMA": row["ima_contrast"],
            "c_IMA of the renderer": row["renderer_contrast"],
            "at 64 x 64": row["fine_renderer_contrast"],
            "MSE": row["reconstruction_mse"],
        }
        for row in rows
    ]


def drawn(rows: Sequence[Row], size: int) -> dict[str, tuple[Figure, str]]:
    chosen = best(rows)
    if chosen is None:
        return {}
    return {
        "sprites_along_training": (_along(rows, chosen), _ALONG),
        "sprites_factors": (_scatter(chosen), _SCATTER),
        "sprites_interpolations": (_interpolations(chosen, size), _INTERPOLATIONS),
    }


_ALONG = (
    "Left: recovery by the mean encoding along training, every member; dashed, what principal components reach and "
    "what codes that know nothing score. Right: median contrast of the decoder; dotted, that of the renderer itself."
)
_SCATTER = "True against estimated factors of the member with the highest ELBO, sign, scale and offset fitted."
_INTERPOLATIONS = (
    "Each row moves the latent matched to a factor through its range, the others held at one sample's code; with the "
    "MCC of that factor."
)


def _along(rows: Sequence[Row], chosen: Row) -> Figure:
    figure, axes = figures.row_of_panels(2, width=5.6)
    for row in rows:
        label = f"seed {row['seed']}{' (best ELBO)' if row is chosen else ''}"
        for axis, name in zip(axes, ("along_mcc", "along_contrast"), strict=True):
            axis.plot(row["along_epoch"], row[name], label=label, linewidth=2.2 if row is chosen else 1.2)
    axes[0].axhline(chosen["mcc_pca"], color="#6b7680", linestyle="--", linewidth=1.2, label="PCA")
    axes[0].axhline(chosen["mcc_floor"], color="#aab3bb", linestyle="--", linewidth=1.2, label="floor")
    axes[1].axhline(chosen["renderer_contrast"], color="#6b7680", linestyle=":", linewidth=1.4, label="the renderer")
    figures.finish(axes[0], title="Recovery of the factors", x="epoch", y="MCC", log="")
    axes[0].set_ylim(0, 1.02)
    figures.finish(axes[1], title="IMA contrast", x="epoch", y="c_IMA in nats", log="y")
    return figure


def _scatter(row: Row) -> Figure:
    figure, axes = figures.row_of_panels(len(FACTORS), width=3.1, height=3.4)
    for axis, name in zip(axes, FACTORS, strict=True):
        true, estimated = row[f"true_{name}"], row[f"estimated_{name}"]
        figures.dots(axis, true, estimated, label=name)
        axis.plot([min(true), max(true)], [min(true), max(true)], ":", color="#6b7680", linewidth=1.2)
        title = f"{name}: MCC {row[f'mcc_{name}']:.3f}"
        figures.finish(axis, title=title, x="true", y="estimated", log="", legend=False)
    return figure


def _interpolations(row: Row, size: int) -> Figure:
    pixels = np.frombuffer(row["interpolations"], np.uint8).reshape(len(FACTORS), STEPS, 3, size, size)
    figure, axes = figures.grid_of_panels(len(FACTORS), STEPS, width=1.1, height=1.1)
    for place, axis in enumerate(axes):
        factor, step = divmod(place, STEPS)
        axis.imshow(pixels[factor, step].transpose(1, 2, 0), interpolation="nearest")
        axis.set(xticks=[], yticks=[])
        if step == 0:
            name = FACTORS[factor]
            axis.set_ylabel(f"{name}\n{row[f'mcc_{name}']:.3f}", rotation=0, ha="right", va="center", fontsize=10)
    return figure
