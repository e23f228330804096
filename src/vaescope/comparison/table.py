"""The table of a comparison, and its verdict in words."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from vaescope.comparison.measured import MeasuredModel
from vaescope.report.page import number

if TYPE_CHECKING:
    from vaescope.comparison.compare import Comparison


def model_row(model: MeasuredModel) -> dict[str, object]:
    """What is known of one model; errors are standard errors over samples."""
    gap, geometry = model.gap, model.geometry
    row: dict[str, object] = {"model": model.name}
    row["ELBO"], row["ELBO stderr"] = (None, None) if model.elbo is None else _mean(model.elbo)
    parts = {"log p(x)": "log_marginal", "family gap": "family", "amortisation gap": "amortisation"}
    for label, part in parts.items():
        row[label], error = (None, None) if gap is None else gap.mean(part)
        if label == "log p(x)":
            row["log p(x) stderr"], row["method"] = error, _method(model)
    row["KL"] = float(np.sum(model.regime.kl))
    row["in use"] = f"{len(model.regime.used)} of {model.regime.latent_dim}"
    row["c_IMA"] = None if geometry is None else geometry.contrast
    row["near-deterministic"] = None if model.near is None else "yes" if model.near.applies else "no"
    return row | {name: score.score for name, score in model.scores.items()}


def _mean(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def _method(model: MeasuredModel) -> str | None:
    """How log p(x) was computed, at how many samples, and whether to trust it."""
    if model.gap is None:
        return None
    points = f"at {len(model.gap.elbo)} samples"
    if model.gap.pareto_k is None:
        return f"quadrature {points}"
    trust = "reliable" if model.reliable else "unreliable"
    return f"importance sampling {points}, {trust} (largest Pareto k {model.gap.pareto_k:.2f})"


def verdict(comparison: Comparison) -> str:
    """Which model is better, in one to three sentences."""
    return f"{_ranking(comparison)} {_beta_note(comparison)}".strip()


def _beta_note(comparison: Comparison) -> str:
    """What models are compared by that were trained with another weight on the KL."""
    betas = {model.name: model.sample.model.beta for model in comparison.models}
    weighted = [f"{name} was trained with β = {beta:.3g}" for name, beta in betas.items() if beta != 1]
    if not weighted or comparison.paired is None:
        return ""
    return f"All models are compared with β = 1; {', '.join(weighted)}."


def _ranking(comparison: Comparison) -> str:
    paired, best = comparison.paired, comparison.best
    if paired is None or best is None:
        return "The models cannot be ranked: " + "; ".join(f"{k}: {v}" for k, v in comparison.skipped.items()) + "."
    others = [name for name in comparison.candidates if name != best]
    by = f"by {comparison.quantity} at {paired.samples} samples"
    if len(comparison.candidates) == len(comparison.names):
        return f"The models are indistinguishable {by}."
    if others:
        return f"{best} is the best {by}, indistinguishable from {', '.join(others)}."
    row = paired.difference[comparison.names.index(best)].copy()
    row[comparison.names.index(best)] = np.inf
    second = int(row.argmin())
    error = paired.half_width[comparison.names.index(best), second]
    return f"{best} is the best {by}: {row[second]:.3g} ± {error:.1g} nats per sample above {comparison.names[second]}."


def short_html(comparison: Comparison) -> str:
    """The table for a notebook."""
    rows = comparison.table
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(number(v))}</td>" for v in row.values()) + "</tr>" for row in rows)
    return f"<p>{escape(comparison.summary())}</p><table><tr>{head}</tr>{body}</table>"
