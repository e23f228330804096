"""Every metric at once, as one table."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.console import Console
from rich.table import Table

from vaescope.errors import InputError
from vaescope.metrics.amari import amari
from vaescope.metrics.dci import dci
from vaescope.metrics.infomec import infomec
from vaescope.metrics.inputs import data
from vaescope.metrics.interventions import beta_vae_score, factor_vae_score
from vaescope.metrics.irs import irs
from vaescope.metrics.mcc import mcc
from vaescope.metrics.mig import mig, mig_sup
from vaescope.metrics.modularity import modularity_explicitness
from vaescope.metrics.r2 import linear_r2
from vaescope.metrics.sap import sap
from vaescope.metrics.score import Score


@dataclass(frozen=True)
class Line:
    """One score of the table: its name, its key among the metric's scores, and what it asks."""

    name: str
    metric: str
    key: str
    question: str
    higher_is_better: bool = True


LINES = (
    Line("MCC", "mcc", "mcc", "Is each factor one latent, up to scale?"),
    Line("MCC (Spearman)", "mcc_spearman", "mcc", "The same, up to any monotone map?"),
    Line("linear R²", "r2", "r2", "Are the factors there, up to linear mixing?"),
    Line("DCI disentanglement", "dci", "disentanglement", "Does each latent serve one factor?"),
    Line("DCI completeness", "dci", "completeness", "Is each factor in one latent?"),
    Line("DCI informativeness", "dci", "informativeness", "Are the factors there, however encoded?"),
    Line("MIG", "mig", "mig", "Does one latent know each factor, and no other?"),
    Line("MIG-sup", "mig_sup", "mig_sup", "Does each latent know one factor, and no other?"),
    Line("SAP", "sap", "sap", "Is one latent the better predictor by far?"),
    Line("InfoM (modularity)", "infomec", "modularity", "Is each latent about one factor?"),
    Line("InfoE (explicitness)", "infomec", "explicitness", "Can the factors be read off linearly?"),
    Line("InfoC (compactness)", "infomec", "compactness", "Is each factor held by one latent?"),
    Line("modularity", "modularity", "modularity", "Is each latent about one factor? (published form)"),
    Line("explicitness", "modularity", "explicitness", "Can classes be told apart linearly? (area, 0.5 is none)"),
    Line("FactorVAE score", "factor_vae", "accuracy", "Does one latent keep still when a factor is held?"),
    Line("β-VAE score", "beta_vae", "accuracy", "Can one tell which factor was held?"),
    Line("IRS", "irs", "irs", "Does each latent ignore all factors but one?"),
    Line("Amari distance", "amari", "amari", "How far from a scaled permutation? (0 is best)", higher_is_better=False),
)


def _metrics(codes: object, factors: object, discrete: Any) -> dict[str, Callable[[], Score]]:
    return {
        "mcc": lambda: mcc(codes, factors),
        "mcc_spearman": lambda: mcc(codes, factors, method="spearman"),
        "r2": lambda: linear_r2(codes, factors),
        "dci": lambda: dci(codes, factors, discrete=discrete),
        "mig": lambda: mig(codes, factors, discrete=discrete),
        "mig_sup": lambda: mig_sup(codes, factors, discrete=discrete),
        "sap": lambda: sap(codes, factors, discrete=discrete),
        "infomec": lambda: infomec(codes, factors, discrete=discrete),
        "modularity": lambda: modularity_explicitness(codes, factors, discrete=discrete),
        "factor_vae": lambda: factor_vae_score(codes, factors, discrete=discrete),
        "beta_vae": lambda: beta_vae_score(codes, factors, discrete=discrete),
        "irs": lambda: irs(codes, factors, discrete=discrete),
        "amari": lambda: amari(codes, factors),
    }


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The whole table: a row per score, the results behind them, and what was left out and why."""

    results: Mapping[str, Score]
    left_out: Mapping[str, str]
    intervals: bool

    @property
    def rows(self) -> list[dict[str, Any]]:
        """metric, score, low, high, floor, question; `low` and `high` are None without intervals."""
        return [_row(line, self.results[line.metric], self.intervals) for line in LINES if line.metric in self.results]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Every caution once."""
        notes = [note for result in self.results.values() for note in result.warnings]
        left = [f"{name} left out: {why}" for name, why in self.left_out.items()]
        return tuple(dict.fromkeys([*notes, *left]))

    def __getitem__(self, name: str) -> Score:
        return self.results[name]

    def __str__(self) -> str:
        table = Table("metric", "score", "95 % interval", "floor", "asks", box=None, pad_edge=False)
        for row in self.rows:
            table.add_row(row["metric"], *_cells(row), row["question"])
        out = io.StringIO()
        console = Console(file=out, width=120)
        console.print(table)
        for note in self.warnings:
            console.print(f"note: {note}", markup=False)
        return out.getvalue().rstrip()

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("metric", "score", "95 % interval", "floor", "asks"))
        body = "".join(
            "<tr>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in (row["metric"], *_cells(row), row["question"]))
            + "</tr>"
            for row in self.rows
        )
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.warnings)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><ul>{notes}</ul>"


def evaluate(
    codes: object, factors: object, *, discrete: bool | Sequence[bool] | None = None, intervals: bool = True
) -> Evaluation:
    """Every metric on codes (N, d) and factors (N, k), with intervals and floors.

    Without `intervals` it takes about half the time. `discrete` says which factors are classes (by default,
    those with few values that repeat).

    >>> import numpy as np
    >>> v = np.random.default_rng(0).normal(size=(500, 2))
    >>> table = evaluate(v, v, intervals=False)
    >>> table.rows[0]["metric"], round(table.rows[0]["score"], 3)
    ('MCC', 1.0)
    """
    data(codes, factors, discrete=discrete, least=40)  # one error for all
    results: dict[str, Score] = {}
    left_out: dict[str, str] = {}
    for name, measure in _metrics(codes, factors, discrete).items():
        try:
            results[name] = measure()
        except InputError as error:
            left_out[name] = str(error)
    return Evaluation(results, left_out, intervals)


def _row(line: Line, result: Score, intervals: bool) -> dict[str, Any]:
    low, high = result.intervals[line.key] if intervals else (None, None)
    return {
        "metric": line.name,
        "score": result.scores[line.key],
        "low": low,
        "high": high,
        "floor": result.floors[line.key],
        "higher_is_better": line.higher_is_better,
        "question": line.question,
    }


def _cells(row: dict[str, Any]) -> tuple[str, str, str]:
    interval = "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
    return f"{row['score']:.3f}", interval, f"{row['floor']:.3f}"
