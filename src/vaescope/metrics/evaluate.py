"""All metrics in one table."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.table import Table

from vaescope.core.errors import InputError
from vaescope.core.tables import to_frame
from vaescope.metrics.correlation import amari, linear_r2, mcc
from vaescope.metrics.importances import dci
from vaescope.metrics.information import mig, mig_sup, sap
from vaescope.metrics.informativeness import infomec, modularity_explicitness
from vaescope.metrics.inputs import read_inputs
from vaescope.metrics.interventions import beta_vae_score, factor_vae_score, irs
from vaescope.metrics.score import Resampling, Score, worker_threads


@dataclass(frozen=True)
class ScoreRow:
    """One row of the table: the score's name, where to find it, and the question it answers."""

    name: str
    metric: str
    key: str
    question: str
    higher_is_better: bool = True


SCORE_ROWS = (
    ScoreRow("MCC", "mcc", "mcc", "Is each factor one latent, up to sign and scale?"),
    ScoreRow("MCC (Spearman)", "mcc_spearman", "mcc", "Is each factor one latent, up to a monotone map?"),
    ScoreRow("linear R²", "r2", "r2", "Can the factors be predicted linearly?"),
    ScoreRow("DCI disentanglement", "dci", "disentanglement", "Does each latent encode one factor?"),
    ScoreRow("DCI completeness", "dci", "completeness", "Is each factor encoded by one latent?"),
    ScoreRow("DCI informativeness", "dci", "informativeness", "Can the factors be predicted at all?"),
    ScoreRow("MIG", "mig", "mig", "Does only one latent know each factor?"),
    ScoreRow("MIG-sup", "mig_sup", "mig_sup", "Does each latent know only one factor?"),
    ScoreRow("SAP", "sap", "sap", "Does one latent predict each factor much better?"),
    ScoreRow("InfoM (modularity)", "infomec", "modularity", "Does each latent encode one factor?"),
    ScoreRow("InfoE (explicitness)", "infomec", "explicitness", "Can the factors be predicted linearly?"),
    ScoreRow("InfoC (compactness)", "infomec", "compactness", "Is each factor encoded by one latent?"),
    ScoreRow("modularity", "modularity", "modularity", "Does each latent encode one factor? (original form)"),
    ScoreRow("explicitness", "modularity", "explicitness", "Are classes linearly separable? (AUC, 0.5 is chance)"),
    ScoreRow("FactorVAE score", "factor_vae", "accuracy", "Is one latent constant when a factor is fixed?"),
    ScoreRow("β-VAE score", "beta_vae", "accuracy", "Can the fixed factor be predicted?"),
    ScoreRow("IRS", "irs", "irs", "Is each latent unaffected by all factors but one?"),
    ScoreRow(
        "Amari distance", "amari", "amari", "How far from a scaled permutation? (0 is best)", higher_is_better=False
    ),
)
COLUMNS = ("metric", "score", "95 % interval", "floor", "question")


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
    """The scores of all metrics. Print it for a table."""

    results: Mapping[str, Score]
    skipped: Mapping[str, str]
    """Reasons why metrics could not be computed."""
    intervals: bool

    @property
    def rows(self) -> list[dict[str, Any]]:
        """metric, score, low, high, floor, question; `low` and `high` are None without intervals."""
        return [_row(row, self.results[row.metric], self.intervals) for row in SCORE_ROWS if row.metric in self.results]

    def to_frame(self, kind: str = "pandas") -> Any:
        """The rows as a data frame.

        Args:
            kind: pandas, polars or arrow.
        """
        return to_frame(self.rows, kind)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all metrics, without repetition."""
        found = [warning for result in self.results.values() for warning in result.warnings]
        skipped = [f"{name} was skipped: {reason}" for name, reason in self.skipped.items()]
        return tuple(dict.fromkeys([*found, *skipped]))

    def __getitem__(self, name: str) -> Score:
        return self.results[name]

    def __str__(self) -> str:
        table = Table(*COLUMNS, box=None, pad_edge=False)
        for row in self.rows:
            table.add_row(row["metric"], *_cells(row), row["question"])
        out = io.StringIO()
        console = Console(file=out, width=120)
        console.print(table)
        for warning in self.warnings:
            console.print(f"warning: {warning}", markup=False)
        return out.getvalue().rstrip()

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in COLUMNS)
        body = "".join(
            "<tr>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in (row["metric"], *_cells(row), row["question"]))
            + "</tr>"
            for row in self.rows
        )
        notes = "".join(f"<li>{escape(warning)}</li>" for warning in self.warnings)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><ul>{notes}</ul>"


def evaluate(
    codes: object,
    factors: object,
    *,
    discrete: bool | Sequence[bool] | None = None,
    intervals: bool = True,
    progress: bool = True,
) -> Evaluation:
    """Compute all metrics, with intervals and floors.

    Metrics share half-samples, shuffles, bins and fits. The work is divided among as many threads as PyTorch uses; the
    result does not depend on their number.

    Args:
        codes: (N, d).
        factors: (N, k).
        discrete: which factors are classes; by default those with few distinct values.
        intervals: whether to compute confidence intervals, which take about half of the time.
        progress: whether to show a progress bar in a terminal.

    >>> import numpy as np
    >>> v = np.random.default_rng(0).normal(size=(500, 2))
    >>> table = evaluate(v, v, intervals=False)
    >>> table.rows[0]["metric"], round(table.rows[0]["score"], 3)
    ('MCC', 1.0)
    """
    inputs = read_inputs(codes, factors, discrete=discrete, minimum=40)  # raises errors that concern all metrics
    console = Console(stderr=True)
    shown = RichProgress(console=console, disable=not (progress and console.is_terminal), transient=True)
    with shown:
        results, skipped = _scores(_metrics(codes, factors, discrete), shown)
        resampling = Resampling(results, inputs, intervals)
        bar = shown.add_task("intervals and floors" if intervals else "floors", total=resampling.tasks)
        resampling.run(lambda: shown.advance(bar))
    return Evaluation(results, skipped, intervals)


def _scores(
    computations: Mapping[str, Callable[[], Score]], shown: RichProgress
) -> tuple[dict[str, Score], dict[str, str]]:
    """Results by metric, and the reasons why others could not be computed."""
    results: dict[str, Score] = {}
    skipped: dict[str, str] = {}
    with worker_threads() as pool:
        pending = {name: pool.submit(compute) for name, compute in computations.items()}
        for name, future in shown.track(pending.items(), description="metrics"):
            try:
                results[name] = future.result()
            except InputError as error:
                skipped[name] = str(error)
    return results, skipped


def _row(row: ScoreRow, result: Score, intervals: bool) -> dict[str, Any]:
    low, high = result.intervals[row.key] if intervals else (None, None)
    return {
        "metric": row.name,
        "score": result.scores[row.key],
        "low": low,
        "high": high,
        "floor": result.floors[row.key],
        "higher_is_better": row.higher_is_better,
        "question": row.question,
    }


def _cells(row: dict[str, Any]) -> tuple[str, str, str]:
    interval = "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
    return f"{row['score']:.3f}", interval, f"{row['floor']:.3f}"
