"""Near-deterministic VAEs recover the sources of conformal mixings (Reizinger et al. 2022, Fig. 3 left)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from matplotlib.figure import Figure

from vaescope.data.mixings import Mixing, Moebius
from vaescope.papers.claims import Claim, claim_over, median, rank_claim
from vaescope.papers.columns import column
from vaescope.papers.comparison import Comparison, by_precision
from vaescope.papers.embrace_the_gap.moebius import BOX, DIM, MoebiusExperiment
from vaescope.papers.trained import TrainedSettings
from vaescope.report import figures
from vaescope.runs import Cell
from vaescope.runs.files import Row

NEAR_DETERMINISTIC = 1e4  # the paper recovers the sources from here on
SOURCE = "Reizinger et al. 2022, §4.3 and Fig. 3 left"
AUTHORS = {  # medians over 20 seeds of the authors' published result files
    1e1: {"mcc_sampled": 0.150, "ima_contrast": 1.61},
    1e2: {"mcc_sampled": 0.152, "ima_contrast": 1.35},
    1e3: {"mcc_sampled": 0.761, "ima_contrast": 0.0042},
    1e4: {"mcc_sampled": 0.963, "ima_contrast": 0.0014},
    1e5: {"mcc_sampled": 0.961, "ima_contrast": 0.0038},
}


@dataclass(frozen=True)
class MoebiusPrecisionSettings(TrainedSettings):
    """The published settings are the paper profile's."""

    precisions: tuple[float, ...] = (1e1, 1e2, 1e3, 1e4, 1e5)


class MoebiusPrecision(MoebiusExperiment):
    name = "moebius-precision"
    title = "The closer to deterministic, the better a VAE recovers the sources of a conformal mixing"
    source = "Reizinger et al. 2022, §4.3 and Fig. 3 left; settings of Tab. 4 in the appendix"
    about = (
        "Möbius transforms are conformal, so they lie in the IMA class, and theory says that a near-deterministic VAE "
        "is drawn to decoders of that class. VAEs are trained on Möbius mixings of three uniform sources at five "
        "decoder precisions γ². Recovery is measured twice: by the mean encoding and by a draw from the posterior. "
        "They differ where latents are passive: the mean of a passive latent still moves a little with the "
        "observation and correlates with a source, although next to nothing gets through its noise."
    )
    profiles: ClassVar = {
        "quick": MoebiusPrecisionSettings(seeds=4, samples=12_000, epochs=300, patience=60, learning_rate=2e-3),
        "paper": MoebiusPrecisionSettings(seeds=20, samples=60_000, epochs=100, patience=30),
    }

    def cells(self, settings: MoebiusPrecisionSettings) -> list[Cell]:
        return [{"precision": p, "seed": s} for p in settings.precisions for s in range(settings.seeds)]

    def mixing(self, cell: Cell) -> Mixing:
        return Moebius(DIM, seed=cell["seed"], low=BOX.low, high=BOX.high)

    def claims(self, rows: Sequence[Row], settings: Any) -> list[Claim]:
        done = [row for row in rows if row["status"] == "finished"]
        return [
            _recovered(done, "mcc_sampled", "a draw from the posterior", published="0.963 and 0.961"),
            _recovered(done, "mcc_mean", "the mean encoding"),
            rank_claim(
                column(done, "precision"),
                column(done, "mcc_sampled"),
                sign=1,
                sentence="Recovery of the sources improves with γ².",
                source=SOURCE,
            ),
            rank_claim(
                column(done, "precision"),
                column(done, "ima_contrast"),
                sign=-1,
                sentence="The decoder's IMA contrast falls as γ² grows.",
                source=SOURCE,
            ),
            _means_flatter(done),
            _published_floor(done),
            _beyond_linear(done),
        ]

    def comparisons(self, rows: Sequence[Row], settings: Any) -> list[Comparison]:
        done = [row for row in rows if row["status"] == "finished"]
        recovery = {p: values["mcc_sampled"] for p, values in AUTHORS.items()}
        contrast = {p: values["ima_contrast"] for p, values in AUTHORS.items()}
        return [
            Comparison("Fig. 3 left", "MCC of sampled latents", by_precision(done, "mcc_sampled", recovery), _WHY_MCC),
            Comparison(
                "Fig. 3 left",
                "the same, averaged over batches of 64",
                by_precision(done, "mcc_sampled_in_batches", recovery),
                "Like for like: where nothing is transmitted both give the chance level of 64 samples.",
            ),
            Comparison(
                "Fig. 3 left", "c_IMA of the decoder", by_precision(done, "ima_contrast", contrast), _WHY_CONTRAST
            ),
        ]

    def figures(self, rows: Sequence[Row], settings: Any) -> dict[str, tuple[Figure, str]]:
        done = [row for row in rows if row["status"] == "finished"]
        return {"moebius_precision": (_panels(done), _CAPTION)}

    def tables(self, rows: Sequence[Row], settings: Any) -> dict[str, list[Row]]:
        done = [row for row in rows if row["status"] == "finished"]
        return {"Medians over seeds, beside the authors'": _medians(done)}


_CAPTION = (
    "Left: recovery of the sources by mean and by sampled latents, beside linear ICA on the observations. "
    "Right: IMA contrast of the trained decoder at the mean encodings. Lines are medians over seeds, bands reach "
    "from the lowest to the highest seed, crosses are the authors' medians (of sampled latents)."
)


_WHY_MCC = (
    "At γ² = 1e1 and 1e2 all latents of most members are passive, ours and the authors': a draw from the posterior "
    "knows nothing of the sources. Our MCC is that of 6,000 independent samples; the published 0.150 and 0.152 are "
    "what independent samples score in batches of 64. Where latents are active the choice hardly matters, and both "
    "agree. At γ² = 1e3 the seeds differ most, because some latents of some members are still passive."
)
_WHY_CONTRAST = (
    "Contrasts of collapsed decoders (γ² = 1e1, 1e2) are those of columns that carry nothing, and mean little. From "
    "1e3 on contrasts are small in both; ours are larger at 1e3 and 1e4, where most of our members were still "
    "improving when training ended at 100 epochs, and both are far below those of collapsed decoders."
)


def _precisions(rows: Sequence[Row]) -> list[float]:
    return sorted({row["precision"] for row in rows})


def _recovered(rows: Sequence[Row], name: str, representation: str, published: str | None = None) -> Claim:
    medians = [median(column(rows, name, precision=p)) for p in _precisions(rows) if p >= NEAR_DETERMINISTIC]
    return claim_over(
        medians,
        pick=min,
        holds=lambda v: v >= 0.95,
        sentence=f"Near-deterministic VAEs recover the sources of Möbius mixings, judged by {representation}.",
        source=SOURCE,
        demand="median MCC over seeds at least 0.95 at every γ² from 1e4",
        published=published,
        note="The lowest median, with the range over γ².",
    )


def _means_flatter(rows: Sequence[Row]) -> Claim:
    lowest = min(_precisions(rows), default=0.0)
    pairs = zip(column(rows, "mcc_mean", precision=lowest), column(rows, "mcc_sampled", precision=lowest), strict=True)
    return claim_over(
        [mean - sampled for mean, sampled in pairs],
        holds=lambda v: v >= 0.2,
        sentence="Far from determinism mean encodings look recovered although hardly anything is transmitted.",
        source="beyond the paper; the polarised regime at work",
        demand=f"at γ² = {lowest:g}, MCC of means exceeds that of sampled latents by at least 0.2 in the median",
    )


def _published_floor(rows: Sequence[Row]) -> Claim:
    lowest = min(_precisions(rows), default=0.0)
    published = AUTHORS[1e1]["mcc_sampled"]
    return claim_over(
        column(rows, "mcc_sampled_in_batches", precision=lowest),
        holds=lambda v: abs(v - published) <= 0.01,
        sentence="The published MCC at γ² = 10 is chance: that of independent codes in batches of 64.",
        source=f"{SOURCE}; found here",
        demand=f"MCC of sampled latents at γ² = {lowest:g}, averaged over batches of 64, within 0.01 of the published",
        published=f"{published:.3f} at γ² = 1e1",
    )


def _beyond_linear(rows: Sequence[Row]) -> Claim:
    near = [row for row in rows if row["precision"] >= NEAR_DETERMINISTIC]
    return claim_over(
        [row["mcc_mean"] - row["mcc_linear_ica"] for row in near],
        holds=lambda v: v > 0,
        sentence="The near-deterministic VAE recovers more than the best linear unmixing does.",
        source="beyond the paper; a baseline",
        demand="MCC of means above that of linear ICA in the median over members with γ² from 1e4",
    )


def _medians(rows: Sequence[Row]) -> list[Row]:
    return [
        {
            "γ²": f"{p:g}",
            "MCC sampled": median(column(rows, "mcc_sampled", precision=p)),
            "authors' MCC": AUTHORS.get(p, {}).get("mcc_sampled"),
            "MCC mean": median(column(rows, "mcc_mean", precision=p)),
            "linear ICA": median(column(rows, "mcc_linear_ica", precision=p)),
            "R² sampled": median(column(rows, "r2_sampled", precision=p)),
            "R² mean": median(column(rows, "r2_mean", precision=p)),
            "c_IMA": median(column(rows, "ima_contrast", precision=p)),
            "authors' c_IMA": AUTHORS.get(p, {}).get("ima_contrast"),
            "MSE": median(column(rows, "reconstruction_mse", precision=p)),
        }
        for p in _precisions(rows)
    ]


def _panels(rows: Sequence[Row]) -> Figure:
    precisions = _precisions(rows)
    figure, axes = figures.row_of_panels(2, width=5.6)
    for name, label, dashed in (
        ("mcc_sampled", "sampled latents", False),
        ("mcc_mean", "mean latents", False),
        ("mcc_linear_ica", "linear ICA", True),
    ):
        values = [column(rows, name, precision=p) for p in precisions]
        figures.spread(axes[0], precisions, values, label=label, dashed=dashed)
    figures.spread(
        axes[1], precisions, [column(rows, "ima_contrast", precision=p) for p in precisions], label="trained decoder"
    )
    for axis, name in zip(axes, ("mcc_sampled", "ima_contrast"), strict=True):
        figures.crosses(axis, precisions, [AUTHORS.get(p, {}).get(name) for p in precisions], label="authors' median")
    figures.finish(axes[0], title="Recovery of the sources", x="decoder precision γ²", y="MCC", log="x")
    axes[0].set_ylim(0, 1.02)
    figures.finish(axes[1], title="IMA contrast", x="decoder precision γ²", y="c_IMA in nats")
    return figure


EXPERIMENT = MoebiusPrecision()
