"""All metrics in one table."""

from __future__ import annotations

import inspect
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from numbers import Real
from typing import Any, cast

import numpy as np
import rich.table
import sklearn
import torch
from rich.console import Console
from rich.progress import Progress
from threadpoolctl import threadpool_limits

from vaescope.core.errors import InputError, first_line
from vaescope.core.plugins import Plugin, plugins
from vaescope.core.tables import Table
from vaescope.metrics.correlation import amari, linear_r2, mcc
from vaescope.metrics.importances import dci
from vaescope.metrics.information import mig, mig_sup, sap
from vaescope.metrics.informativeness import infomec, modularity_explicitness
from vaescope.metrics.inputs import CodesAndFactors, Discrete, input_warnings, read_inputs, without_fit_warnings
from vaescope.metrics.interventions import beta_vae_score, factor_vae_score, irs
from vaescope.metrics.score import MetricValues, Score, half_samples, shuffles

METRICS: dict[str, Callable[..., Score]] = {
    "mcc": mcc,
    "mcc_spearman": partial(mcc, method="spearman"),
    "r2": linear_r2,
    "dci": dci,
    "mig": mig,
    "mig_sup": mig_sup,
    "sap": sap,
    "infomec": infomec,
    "modularity": modularity_explicitness,
    "factor_vae": factor_vae_score,
    "beta_vae": beta_vae_score,
    "irs": irs,
    "amari": amari,
}
# name in the table, metric, score of the metric, question
SCORE_ROWS = (
    ("MCC", "mcc", "mcc", "Is each factor one latent, up to sign and scale?"),
    ("MCC (Spearman)", "mcc_spearman", "mcc", "Is each factor one latent, up to a monotone map?"),
    ("linear R²", "r2", "r2", "Can the factors be predicted linearly?"),
    ("DCI disentanglement", "dci", "disentanglement", "Does each latent encode one factor?"),
    ("DCI completeness", "dci", "completeness", "Is each factor encoded by one latent?"),
    ("DCI informativeness", "dci", "informativeness", "Can the factors be predicted at all?"),
    ("MIG", "mig", "mig", "Does only one latent know each factor?"),
    ("MIG-sup", "mig_sup", "mig_sup", "Does each latent know only one factor?"),
    ("SAP", "sap", "sap", "Does one latent predict each factor much better?"),
    ("InfoM (modularity)", "infomec", "modularity", "Does each latent encode one factor?"),
    ("InfoE (explicitness)", "infomec", "explicitness", "Can the factors be predicted linearly?"),
    ("InfoC (compactness)", "infomec", "compactness", "Is each factor encoded by one latent?"),
    ("modularity", "modularity", "modularity", "Does each latent encode one factor? (original form)"),
    ("explicitness", "modularity", "explicitness", "Are classes linearly separable? (AUC, 0.5 is chance)"),
    ("FactorVAE score", "factor_vae", "accuracy", "Is one latent constant when a factor is fixed?"),
    ("β-VAE score", "beta_vae", "accuracy", "Can the fixed factor be predicted?"),
    ("IRS", "irs", "irs", "Is each latent unaffected by all factors but one?"),
    ("Amari distance", "amari", "amari", "How far from a scaled permutation? (0 is best)"),
)


def all_metrics() -> dict[str, Callable[..., Score]]:
    """All metrics by name: those of `METRICS`, and those of other packages, which return a `Score` or a number."""
    return {name: partial(_score_of, name, found) for name, found in plugins("metrics").items()} | METRICS


def _score_of(name: str, metric: Plugin, codes: object, factors: object, **_: object) -> Score:
    """The result of another package's metric; a number is computed again on half-samples and shuffled codes."""
    inputs = read_inputs(codes, factors, minimum=2)
    found = metric(inputs.codes, inputs.factors)
    if isinstance(found, Score):
        return found
    if not isinstance(found, Real):
        raise InputError(f"{name} must return a number or a Score, got {type(found).__name__}")
    return Score(name, partial(_number_of, name, metric), inputs, input_warnings, bounds=(-math.inf, math.inf))


def _number_of(name: str, metric: Plugin, inputs: CodesAndFactors) -> MetricValues:
    return MetricValues({name: float(cast(float, metric(inputs.codes, inputs.factors)))}, np.empty(0))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The scores of all metrics. Print it for a table."""

    results: Mapping[str, Score]
    skipped: Mapping[str, str]
    """Reasons why metrics could not be computed."""
    intervals: bool

    @property
    def rows(self) -> Table:
        """metric, score, low, high, floor, higher_is_better, question; `low` and `high` are None without intervals."""
        found = Table()
        own = {name: (inspect.getdoc(metric) or name) for name, metric in plugins("metrics").items()}
        others = [(name, name, key, doc.splitlines()[0]) for name, doc in own.items() for key in self._keys(name)]
        for name, metric, key, question in (*SCORE_ROWS, *others):
            if metric in self.results:
                result = self.results[metric]
                low, high = result.intervals[key] if self.intervals else (None, None)
                numbers = {"score": result.scores[key], "low": low, "high": high, "floor": result.floors[key]}
                found.append({"metric": name, **numbers, "higher_is_better": metric != "amari", "question": question})
        return found

    def _keys(self, metric: str) -> list[str]:
        """The names of the scores of another package's metric."""
        return list(self.results[metric].scores) if metric in self.results and metric not in METRICS else []

    def to_frame(self, kind: str = "pandas") -> Any:
        """The rows as a data frame.

        Args:
            kind: pandas, polars or arrow.
        """
        return self.rows.to_frame(kind)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all metrics, without repetition."""
        found = [warning for result in self.results.values() for warning in result.warnings]
        skipped = [f"{name} was skipped: {reason}" for name, reason in self.skipped.items()]
        return tuple(dict.fromkeys([*found, *skipped]))

    def __getitem__(self, name: str) -> Score:
        return self.results[name]

    def _shown(self) -> Table:
        """The rows as strings."""
        return Table(
            {
                "metric": row["metric"],
                "score": f"{row['score']:.3f}",
                "95 % interval": "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}",
                "floor": f"{row['floor']:.3f}",
                "question": row["question"],
            }
            for row in self.rows
        )

    def __str__(self) -> str:
        shown = self._shown()
        table = rich.table.Table(*(shown[0] if shown else ()), box=None, pad_edge=False)
        for row in shown:
            table.add_row(*map(str, row.values()))
        out = io.StringIO()
        console = Console(file=out, width=120)
        console.print(table)
        for warning in self.warnings:
            console.print(f"warning: {warning}", markup=False)
        return out.getvalue().rstrip()

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{escape(warning)}</li>" for warning in self.warnings)
        return f"{self._shown().to_html()}<ul>{notes}</ul>"


def evaluate(
    codes: object, factors: object, *, discrete: Discrete = None, intervals: bool = True, progress: bool = True
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
    with Progress(console=console, disable=not (progress and console.is_terminal), transient=True) as shown:
        results: dict[str, Score] = {}
        skipped: dict[str, str] = {}
        numeric = ("mcc", "mcc_spearman", "r2", "amari")  # which take all factors as numbers
        with _worker_threads() as pool:
            pending = {
                name: pool.submit(metric, codes, factors, **({} if name in numeric else {"discrete": discrete}))
                for name, metric in all_metrics().items()
            }
            for name, future in shown.track(pending.items(), description="metrics"):
                try:
                    results[name] = future.result()
                except InputError as error:
                    skipped[name] = str(error)
                except Exception as error:
                    if name in METRICS:
                        raise
                    skipped[name] = f"{type(error).__name__}: {first_line(error)}"  # of another package
        _resample(results, inputs, intervals, shown)
    return Evaluation(results, skipped, intervals)


def _resample(results: Mapping[str, Score], inputs: CodesAndFactors, intervals: bool, shown: Progress) -> None:
    """Set floors, and intervals if wanted, of all results on the same shuffles and half-samples of the inputs."""
    shuffled: list[Future[_ScoresByMetric]] = []
    halves: list[Future[_ScoresByMetric]] = []
    with _worker_threads() as pool:
        for index, one in enumerate(shuffles(inputs, max((r.shuffles for r in results.values()), default=0))):
            chosen = [name for name, result in results.items() if index < result.shuffles]
            shuffled.append(pool.submit(lambda n, i: {k: results[k].compute(i).scores for k in n}, chosen, one))
        most = max((r.resamples for r in results.values()), default=0) if intervals else 0
        for index, half in enumerate(half_samples(inputs, most)):
            chosen = [name for name, result in results.items() if index < result.resamples]
            halves.append(pool.submit(lambda n, i: {k: results[k].resampled(i) for k in n}, chosen, half))
        bar = shown.add_task("intervals and floors" if intervals else "floors", total=len(shuffled) + len(halves))
        for done in as_completed([*shuffled, *halves]):
            done.result()
            shown.advance(bar)
    for name, result in results.items():  # values of cached properties
        vars(result)["floors"] = result.floors_from(_scores_of(name, shuffled))
        if intervals:
            vars(result)["intervals"] = result.intervals_from(_scores_of(name, halves))


_ScoresByMetric = dict[str, Mapping[str, float]]


def _scores_of(name: str, tasks: Sequence[Future[_ScoresByMetric]]) -> list[Mapping[str, float]]:
    return [task.result()[name] for task in tasks if name in task.result()]


@contextmanager
def _worker_threads() -> Iterator[ThreadPoolExecutor]:
    """As many threads as PyTorch uses, each of which computes on one core."""
    # inputs have been checked, so scikit-learn need not check them again; the setting applies to worker threads only
    skip_checks = partial(sklearn.set_config, skip_parameter_validation=True, assume_finite=True)
    workers = ThreadPoolExecutor(torch.get_num_threads(), initializer=skip_checks)
    with threadpool_limits(1, user_api="blas"), without_fit_warnings(), workers as pool:
        yield pool
