"""What the rows of polarised-regime say: claims, tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vaescope.papers.claims import Claim, claim_over, median, show
from vaescope.papers.columns import column
from vaescope.regime.verify import NO_SUCH_LATENT
from vaescope.report import figures
from vaescope.runs.files import Row

MODELS = {"vae": "VAE", "ivae": "iVAE, prior mean 0", "ivae-mean": "iVAE, learned prior mean"}
STATEMENTS = {
    "Theorem 1": "Posteriors of used latents are polarised: at their prior, or clearly narrower.",
    "Proposition 1 (i)": "Sample by sample, a passive posterior is its prior.",
    "Proposition 1 (ii)": "Sample by sample, an active posterior is far narrower than its prior, so that z ≈ μ.",
    "Proposition 2 (i)": "Mean and variance of passive means over the data are those of the prior's means.",
    "Proposition 2 (ii)": "With a fixed prior mean, passive means hardly vary.",
    "Proposition 3 (i)": "Mean and variance of passive variances over the data are those of the prior's variances.",
    "Proposition 3 (ii)": "Active variances are small and hardly vary.",
    "Theorem 2 (i)": "Passive latents are distributed as their prior.",
    "Theorem 2 (ii)": "Active latents are distributed as their means.",
}
HISTOGRAMS: dict[str, tuple[str, ...]] = {
    "means": ("mean",),
    "variances": ("variance", "prior_variance"),
    "samples": ("sample", "prior_sample", "mean"),
}
LABELS = {
    "mean": "μ",
    "variance": "σ² of the posterior",
    "prior_variance": "σ†² of the prior",
    "sample": "z of the posterior",
    "prior_sample": "z† of the prior",
}
PAPER = "Bonheme & Grzes 2023"


def slug(name: str) -> str:
    """A statement's name as a column.

    >>> slug("Theorem 2 (ii)")
    'theorem_2_ii'
    """
    return name.lower().replace(" ", "_").replace("(", "").replace(")", "")


def base(rows: Sequence[Row], settings: Any) -> list[Row]:
    """The members of the figures: first width, first β."""
    return [r for r in rows if r["latents"] == settings.latents[0] and r["beta"] == settings.betas[0]]


def title(row: Row) -> str:
    """A member in words."""
    beta = "" if row["beta"] == 1 else f", β = {row['beta']:g}"
    return f"{MODELS[row['model']]}, {row['latents']} latents{beta}"


# claims ---------------------------------------------------------------------------------------


def claims(rows: Sequence[Row], settings: Any) -> list[Claim]:
    return [
        *(_statement(rows, name, sentence) for name, sentence in STATEMENTS.items()),
        claim_over(
            [float(row["mixed"]) for row in rows],
            pick=max,
            holds=lambda v: v == 0,
            sentence="No latent is mixed on this data.",
            source=f"{PAPER}, appendix B",
            demand="no mixed latent in any member",
            published="none observed",
            note=_boundary_note(rows),
        ),
        claim_over(
            _more_active(rows, settings, "latents"),
            pick=max,
            holds=lambda v: v <= 1,
            sentence="More latents do not make more active ones.",
            source=f"{PAPER}, Theorem 1",
            demand="at most one active latent more in any wider model of the same kind",
        ),
        claim_over(
            _more_active(rows, settings, "beta"),
            pick=max,
            holds=lambda v: v <= 0,
            sentence="A higher β does not make more active latents.",
            source="beyond the paper",
            demand="no more active latents at the higher β",
        ),
        _dropped(rows, "vae", "accuracy", "a VAE's mean codes", "Bonheme & Grzes 2021, cited by the paper", _LEAK),
        _dropped(rows, "ivae", "accuracy", "an iVAE's mean codes", "the same for an iVAE", _leak_note(rows)),
        _dropped(rows, "vae", "sampled_accuracy", "a VAE's sampled codes", "beyond the paper", ""),
        claim_over(
            [max(abs(e) for e in _of_kind(row, "effect", "passive")) for row in rows if row["passive"]],
            pick=max,
            holds=lambda v: v <= 0.01,
            sentence="The decoder ignores passive latents.",
            source="beyond the paper: the verdicts, seen from the decoder",
            demand="drawing any passive latent from its prior changes the error by at most 1 % of the data's variance",
            note="A decoder that does better with a draw than with the mean listens too.",
        ),
        claim_over(
            [_misjudged(row) for row in rows if row["model"] == "ivae" and row["passive"]],
            holds=lambda v: v > 0.5,
            sentence="A rule on the posterior's variance alone misjudges passive latents of an iVAE.",
            source="beyond the paper; its authors' code has such a rule",
            demand="more than half of the passive latents not called passive by 'variance near 1'",
        ),
        claim_over(
            [
                median(_of_kind(row, "prior_variance", "passive"))
                for row in rows
                if row["model"] == "ivae" and row["passive"]
            ],
            holds=lambda v: v <= 0.2,
            sentence="The prior variance of an iVAE's passive latents stays close to zero.",
            source=f"{PAPER}, appendix B, on Fig. 1",
            demand="median σ†² of passive latents at most 0.2",
            published="close to zero (Fig. 1c)",
        ),
    ]


_LEAK = "Trees know no scale: they read movements of a mean that are far below its latent's noise."


def _dropped(rows: Sequence[Row], model: str, what: str, codes: str, source: str, note: str) -> Claim:
    return claim_over(
        _accuracy_lost(rows, model, what),
        pick=max,
        holds=lambda v: v <= 0.01,
        sentence=f"Dropping passive latents does not hurt a classifier on {codes}.",
        source=source,
        demand="accuracy lost at most 0.01 for every member",
        note=note,
    )


def _statement(rows: Sequence[Row], name: str, sentence: str) -> Claim:
    key = slug(name)
    spoken = [row for row in rows if row[f"{key}_verdict"] != NO_SUCH_LATENT]
    tolerance = spoken[0][f"{key}_tolerance"] if spoken else float("nan")
    worst = max((row[f"{key}_high"] for row in spoken), default=float("nan"))
    return claim_over(
        [row[f"{key}_distance"] for row in spoken],
        pick=max,
        holds=lambda _: all(row[f"{key}_verdict"] == "holds" for row in spoken),
        sentence=sentence,
        source=f"{PAPER}, {name}",
        demand=f"distance at most {tolerance:g} for the worst latent of every member, with its 95 % interval",
        note=f"The highest upper end of an interval is {show(worst)}. {_failing(spoken, key)}".strip(),
    )


def _failing(rows: Sequence[Row], key: str) -> str:
    wrong = [f"{title(row)}: {row[f'{key}_verdict']}" for row in rows if row[f"{key}_verdict"] != "holds"]
    return f"Not so for {'; '.join(wrong)}." if wrong else ""


def _more_active(rows: Sequence[Row], settings: Any, name: str) -> list[float]:
    """How many more latents are active than at the lowest value of `name`, every other setting as in the figures."""
    low, *others = sorted({row[name] for row in rows}) or [None]
    where = {"latents": settings.latents[0], "beta": settings.betas[0]}
    found = []
    for model, other in product(("vae", "ivae"), others):
        before, after = (column(rows, "active", model=model, **where | {name: value}) for value in (low, other))
        found += [median(after) - median(before)] if before and after else []
    return found


def _accuracy_lost(rows: Sequence[Row], model: str, what: str) -> list[float]:
    mine = [row for row in rows if row["model"] == model and row["passive"] and row[f"{what}_used"] is not None]
    return [row[f"{what}_all"] - row[f"{what}_used"] for row in mine]


def _leak_note(rows: Sequence[Row]) -> str:
    """What passive latents alone tell."""
    told = {
        words: column(rows, f"{what}_passive", model=model)
        for words, what, model in (
            ("means of VAEs", "accuracy", "vae"),
            ("means of iVAEs", "accuracy", "ivae"),
            ("draws of iVAEs", "sampled_accuracy", "ivae"),
        )
    }
    if not all(told.values()):
        return ""
    listed = ", ".join(f"{show(median(values))} from {words}" for words, values in told.items())
    return (
        f"Passive latents alone give {listed} (chance is 0.25). An iVAE's follow p(z|u) in mean and in width, and here "
        "u is the factors themselves: a classifier reads u from them."
    )


def _boundary_note(rows: Sequence[Row]) -> str:
    edge = sum(row["boundary"] for row in rows)
    total = sum(row["latents"] for row in rows)
    return f"{edge} of {total} latents stand at a boundary, where other thresholds would give another verdict."


def _of_kind(row: Row, name: str, kind: str) -> list[Any]:
    return [value for value, own in zip(row[name], row["kinds"], strict=True) if own == kind]


def _misjudged(row: Row) -> float:
    verdicts = _of_kind(row, "rival variance near 1", "passive")
    return sum(v != "passive" for v in verdicts) / len(verdicts)


# tables ---------------------------------------------------------------------------------------


def tables(rows: Sequence[Row], settings: Any) -> dict[str, list[Row]]:
    return {
        "Every member": [_member(row) for row in rows],
        "Accuracy of a classifier of shape and scale (chance is 0.25) on mean and on sampled codes": [
            _classified(row) for row in rows
        ],
        "Every statement: distance and verdict, worst latent": _statements(rows),
        "Every latent of the models in the figures": [
            line for row in base(rows, settings) if row["seed"] == 0 for line in _latents(row)
        ],
    }


def _member(row: Row) -> Row:
    return {
        "model": title(row),
        "seed": row["seed"],
        "active": row["active"],
        "passive": row["passive"],
        "mixed": row["mixed"],
        "at a boundary": row["boundary"],
        "advised": row["advice"],
        "by ELBO curve": row["advice_by_curve"],
        "ELBO": row["elbo"],
        "collapse": row["collapse"],
    }


def _classified(row: Row) -> Row:
    return {
        "model": title(row),
        "seed": row["seed"],
        "means: all": row["accuracy_all"],
        "used": row["accuracy_used"],
        "passive": row["accuracy_passive"],
        "draws: all": row["sampled_accuracy_all"],
        "used ": row["sampled_accuracy_used"],
        "passive ": row["sampled_accuracy_passive"],
    }


def _statements(rows: Sequence[Row]) -> list[Row]:
    lines = []
    for row in rows:
        line: Row = {"model": title(row), "seed": row["seed"]}
        for name in (*STATEMENTS, "Theorem 2 (iii)"):  # of mixed latents: shown where there are any, claimed of none
            key = slug(name)
            short = name.replace("Proposition", "P").replace("Theorem", "T")
            distance, verdict = row[f"{key}_distance"], row[f"{key}_verdict"]
            line[short] = "no such latent" if verdict == NO_SUCH_LATENT else f"{show(distance)} {verdict}"
        lines.append(line)
    return lines


def _latents(row: Row) -> list[Row]:
    order = sorted(range(row["latents"]), key=lambda k: -row["kl"][k])
    return [
        {
            "model": MODELS[row["model"]],
            "latent": k,
            "kind": row["kinds"][k],
            "KL": row["kl"][k],
            "σ²/σ†²": row["variance_ratio"][k],
            "σ†²": row["prior_variance"][k],
            "effect": row["effect"][k],
            **{name.removeprefix("rival "): row[name][k] for name in row if name.startswith("rival ")},
        }
        for k in order
    ]


# figures --------------------------------------------------------------------------------------


def drawn(rows: Sequence[Row], settings: Any) -> dict[str, tuple[Figure, str]]:
    first = [row for row in base(rows, settings) if row["seed"] == 0]
    if not first:
        return {}
    return {
        "regime_latents": (_latent_map(rows, settings), _LATENTS),
        "regime_passive": (_histograms(first, "passive"), _PASSIVE),
        "regime_active": (_histograms(first, "active"), _ACTIVE),
        "regime_counts": (_counts(rows, settings), _COUNTS),
        "regime_truncation": (_curves(first), _CURVES),
    }


_LATENTS = (
    "Every latent of every member: how much narrower than its prior its posterior is, against its KL. A polarised "
    "model has two groups and little between them. Right, the posterior's variance by itself: an iVAE's passive "
    "latents stand where a VAE's active ones do."
)
_PASSIVE = (
    "One passive latent of each model (Figs. 1 and 4 of the paper): its means, its variances beside the prior's, and "
    "its draws beside the prior's."
)
_ACTIVE = (
    "One active latent of each model (Figs. 2 and 3): its variance has left the prior's, and its draws are its means."
)
_COUNTS = "Active latents over the number of latents and over β: medians, and a band where seeds differ."
_CURVES = (
    "What every latent adds, most used first, without retraining: squared error at the mean, and the ELBO of the "
    "shortened code. Dotted: the number of latents in use. Where the prior mean is learned from u, which here is all "
    "the factors, even a code of length 0 reconstructs: the posterior repeats its prior."
)
LEAST_KL = 1e-4  # nats; what is drawn of less
COLOURS = {"active": "#d1592b", "passive": "#1f5fa8", "mixed": "#2c8a5b"}


def _latent_map(rows: Sequence[Row], settings: Any) -> Figure:
    figure, axes = figures.row_of_panels(len(MODELS) + 1, width=3.9, height=3.8)
    for axis, (model, name) in zip(axes, MODELS.items(), strict=False):
        _points(axis, [r for r in rows if r["model"] == model], lambda row: row["variance_ratio"])
        figures.finish(axis, title=name, x="σ²/σ†²", y="KL in nats", log="xy", legend=False)
        axis.set_xlim(1e-3, 3)
    own = [r for r in rows if r["model"] == "ivae"]
    _points(
        axes[-1], own, lambda row: [r * v for r, v in zip(row["variance_ratio"], row["prior_variance"], strict=True)]
    )
    figures.finish(axes[-1], title="iVAE, not relative to its prior", x="σ²", y="KL in nats", log="xy", legend=False)
    for axis in axes:
        axis.set_ylim(LEAST_KL / 2, 10)
    figures.shared_legend(figure, axes[0])
    return figure


def _points(axis: Axes, rows: Sequence[Row], place: Any) -> None:
    for kind, colour in COLOURS.items():
        pairs = [
            (x, max(y, LEAST_KL))
            for row in rows
            for x, y, own in zip(place(row), row["kl"], row["kinds"], strict=True)
            if own == kind
        ]
        x, y = zip(*pairs, strict=True) if pairs else ((), ())
        axis.plot(x, y, "o", color=colour, markersize=5, alpha=0.6, label=kind)


def _histograms(rows: Sequence[Row], kind: str) -> Figure:
    figure, axes = figures.grid_of_panels(len(rows), len(HISTOGRAMS), width=4.0, height=2.5)
    for place, axis in enumerate(axes):
        row, panel = rows[place // len(HISTOGRAMS)], list(HISTOGRAMS)[place % len(HISTOGRAMS)]
        names = [n for n in HISTOGRAMS[panel] if kind == "active" or (panel, n) != ("samples", "mean")]
        edges = row[f"{kind}_{panel}_edges"]
        for index, name in enumerate(names if edges else ()):
            _steps(axis, row[f"{kind}_{panel}_{name}"], edges, LABELS[name], figures.COLOURS[index])
        figures.finish(
            axis, title=MODELS[row["model"]] if panel == "means" else "", x="", y="", log="", legend=bool(edges)
        )
        axis.set_yticks([])
        axis.xaxis.set_major_locator(MaxNLocator(5))
        if not edges:
            axis.text(0.5, 0.5, f"no {kind} latent", ha="center", transform=axis.transAxes)
    return figure


def _steps(axis: Axes, counts: Sequence[float], edges: Sequence[float], label: str, colour: str) -> None:
    with mpl.rc_context({"lines.linewidth": 1.4}):
        axis.stairs(counts, edges, label=label, color=colour, fill=True, alpha=0.35)
        axis.stairs(counts, edges, color=colour, linewidth=1.2)


def _counts(rows: Sequence[Row], settings: Any) -> Figure:
    figure, axes = figures.row_of_panels(2, width=4.6)
    cases = (
        (axes[0], "latents", sorted(settings.latents), {"beta": settings.betas[0]}, "number of latents"),
        (axes[1], "beta", sorted(settings.betas), {"latents": settings.latents[0]}, "β"),
    )
    for axis, name, places, where, label in cases:
        for index, model in enumerate(("vae", "ivae")):
            values = [column(rows, "active", model=model, **where, **{name: place}) for place in places]
            shifted = [place * (1 + 0.01 * (2 * index - 1)) for place in places]
            figures.spread(axis, shifted, values, label=MODELS[model], dashed=bool(index))
        figures.finish(axis, title="Active latents", x=label, y="active", log="")
        axis.set_ylim(0, max(6, *(row["active"] + 1 for row in rows if row["model"] != "ivae-mean")))
        axis.set_xticks(places)
        axis.legend(loc="lower right")
    return figure


def _curves(rows: Sequence[Row]) -> Figure:
    figure, axes = figures.row_of_panels(2, width=4.6)
    for index, row in enumerate(rows):
        colour = figures.COLOURS[index]
        steps = np.arange(len(row["curve_error"]))
        axes[0].plot(steps, row["curve_error"], "-o", markersize=4, color=colour, label=MODELS[row["model"]])
        axes[1].plot(steps, row["curve_elbo"], "-o", markersize=4, color=colour, label=MODELS[row["model"]])
        for axis in axes:
            axis.axvline(row["advice"] + 0.06 * (index - 1), color=colour, linestyle=":", linewidth=1.2)
    figures.finish(axes[0], title="Reconstruction", x="latents kept", y="squared error per image", log="")
    figures.finish(axes[1], title="ELBO", x="latents kept", y="nats", log="")
    return figure
