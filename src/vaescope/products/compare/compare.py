"""`vs.compare`: several models of the same data, on the same samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from matplotlib.figure import Figure

from vaescope.analysis.agreement import MatchedLatent, MatchedLatents, match_latents
from vaescope.analysis.likelihood import mean_and_error
from vaescope.analysis.loss.reading import models_with_loss
from vaescope.analysis.models import as_models
from vaescope.analysis.samples import read_samples_of_each
from vaescope.analysis.traversals import (
    can_be_drawn,
    draw_curves,
    draw_images,
    image_shape,
    most_changing,
    standardise_outputs,
    traverse,
)
from vaescope.core import validation
from vaescope.core.budget import Progress, to_stderr
from vaescope.core.checks import number
from vaescope.core.errors import InputError
from vaescope.core.tables import Table
from vaescope.products.compare.measure import (
    Failures,
    MeasuredModel,
    Paired,
    common_points,
    find_failures,
    measure,
    measure_log_marginal,
    paired_differences,
)
from vaescope.protocol import LatentModel, check_model
from vaescope.report import figures
from vaescope.report.page import Drawing, render
from vaescope.report.report import Report

LEGEND = (
    "ELBO, log p(x), gaps and KL in nats per sample. Family gap: what the best posterior of its kind loses; "
    "amortization gap: what the encoder loses beyond it. c_IMA: how far the columns of the decoder's Jacobian are from "
    "orthogonal. Near-deterministic: whether posteriors are narrow and as Eq. 12 predicts. ±: two standard errors over "
    "samples."
)


def drawings(comparison: Comparison) -> Iterator[Drawing]:
    """Differences between models, and traversals of matched latents."""
    if comparison.paired is not None and len(comparison.names) <= 12:
        caption = (
            f"Difference in {comparison.quantity}, row minus column, in nats per sample, with its 95 % interval. Grey "
            "cells could be chance (5 % for all pairs together)."
        )
        yield figures.drawing("differences", difference_matrix(comparison.paired, comparison.names), caption)
    caption = (
        "One latent at a time, from -2 to 2 standard deviations of its prior, with the others fixed at a typical code. "
        "Each row is a matched pair; a minus sign marks a latent that is traversed backwards, because its correlation "
        "is negative."
    )
    for index, (first, second) in enumerate(comparison.shown_pairs()):
        models = [comparison.models[comparison.names.index(name)] for name in (first, second)]
        figure = matched_traversals(models, comparison.matched(first, second).latents)
        if figure is not None:
            yield figures.drawing(f"matched-{index}", figure, caption)


def difference_matrix(paired: Paired, names: list[str]) -> Figure:
    """Differences as coloured cells: blue where the row is better, grey where it could be chance."""
    count = len(names)
    labels = [_short(name) for name in names]
    figure, (axis,) = figures.grid_of_panels(1, 1, width=2.2 + 1.15 * count, height=1.3 + 0.62 * count)
    largest = max(float(np.abs(paired.difference).max()), 1e-12)
    shades = np.where(paired.indistinguishable, np.nan, paired.difference)
    axis.set_facecolor("#e9edf0")
    axis.imshow(shades, cmap="RdBu", vmin=-1.6 * largest, vmax=1.6 * largest, aspect="auto")
    for i in range(count):
        for j in range(count):
            if i != j:
                text = f"{paired.difference[i, j]:+.3g}\n± {paired.half_width[i, j]:.1g}"
                axis.text(j, i, text, ha="center", va="center", fontsize=9, color="#10151a")
    axis.set_xticks(range(count), labels, rotation=30, ha="left", fontsize=9.5)
    axis.set_yticks(range(count), labels, fontsize=9.5)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"


def matched_traversals(models: Sequence[MeasuredModel], matches: list[MatchedLatent]) -> Figure | None:
    """Traversals of at most six matched latents of two models side by side; None if they cannot be drawn.

    The second is traversed in the direction of the first.
    """
    pairs = [(m.first, m.second, m.correlation) for m in matches if m.second is not None][:6]
    if not pairs or not all(can_be_drawn(model.sample) for model in models):
        return None
    shape, other = (image_shape(model.sample) for model in models)
    if shape != other:
        return None
    steps = 25 if shape is None else 5
    if shape is None:
        figure, axes = figures.grid_of_panels(len(pairs), 2, width=3.6, height=2.2)
    else:
        figure, axes = figures.grid_of_panels(len(pairs), 2 * steps + 1, width=0.85, height=0.95)
    for row, (first, second, correlation) in enumerate(pairs):
        chosen: list[int] = []
        strength = f"|r| = {abs(correlation):.2f}"
        for side, (model, latent) in enumerate(zip(models, (first, second), strict=True)):
            reverse = side == 1 and correlation < 0
            outputs = traverse(model.sample, latent, steps)[1]
            outputs, label = (outputs.flip(0), f"-z{latent}") if reverse else (outputs, f"z{latent}")
            if shape is None:
                curves = standardise_outputs(models[0].sample, outputs)
                chosen = chosen or most_changing(curves, 5)
                axis = axes[2 * row + side]
                draw_curves(axis, np.linspace(-2, 2, steps).tolist(), curves, chosen)
                name = f"{_short(model.name)}\n" if row == 0 else ""
                axis.set_title(f"{name}{label}, {strength}", fontsize=9.5)
                continue
            start = row * (2 * steps + 1) + side * (steps + 1)
            draw_images(axes[start : start + steps], outputs, shape, label=label)
            if row == 0:
                axes[start + steps // 2].set_title(_short(model.name), fontsize=10)
        if shape is None:
            axes[2 * row].legend(fontsize=7, ncols=2)
        else:
            middle = axes[row * (2 * steps + 1) + steps]
            middle.set_axis_off()
            middle.text(0.5, 0.5, strength, ha="center", va="center", fontsize=8.5)
    return figure


def page_row(row: dict[str, object]) -> dict[str, object]:
    """A row of the table with two standard errors beside each value, and without the method."""
    found = {name: value for name, value in row.items() if not name.endswith(" stderr") and name != "method"}
    for name, value in found.items():
        error = row.get(f"{name} stderr")
        if isinstance(value, float) and isinstance(error, float):
            found[name] = f"{value:.2f} ± {2 * error:.2g}"
    return found


def match_sections(comparison: Comparison) -> list[tuple[str, str, list[dict[str, object]], str]]:
    """Title, canonical correlations, table and name of the figure of each pair of models that is shown."""
    sections = []
    for index, (first, second) in enumerate(comparison.shown_pairs()):
        found = comparison.matched(first, second)
        values = ", ".join(f"{v:.2f}" for v in found.canonical[:10]) + (", …" if len(found.canonical) > 10 else "")
        shared = f"{found.shared} direction{'s' * (found.shared != 1)}" if len(found.canonical) else "no direction"
        common = (
            f"Both models have {shared} in common, whatever their axes. Canonical correlations: {values or 'none'}."
        )
        sections.append((f"{first} and {second}", common, found.rows(), f"matched-{index}"))
    return sections


def failure_rows(comparison: Comparison) -> list[dict[str, object]]:
    """A row per pair with the best model."""
    if comparison.failures is None or comparison.best is None:
        return []
    best = comparison.names.index(comparison.best)
    return [
        {
            "models": f"{comparison.best} and {name}",
            "worst 5 % in common": float(comparison.failures.overlap[best, k]),
            "rank correlation of ELBOs": float(comparison.failures.rank_correlation[best, k]),
        }
        for k, name in enumerate(comparison.names)
        if k != best
    ]


def _model_row(model: MeasuredModel) -> dict[str, object]:
    """What is known of one model; errors are standard errors over samples."""
    gap, geometry = model.gap, model.geometry
    row: dict[str, object] = {"model": model.name}
    row["ELBO"], row["ELBO stderr"] = (
        (None, None) if model.elbo is None else mean_and_error(torch.from_numpy(model.elbo))
    )
    parts = {"log p(x)": "log_marginal", "family gap": "family", "amortization gap": "amortization"}
    for label, part in parts.items():
        row[label], error = (None, None) if gap is None else gap.mean(part)
        if label == "log p(x)":
            row["log p(x) stderr"], row["method"] = error, _method(model)
    row["KL"] = float(np.sum(model.regime.kl))
    row["in use"] = f"{len(model.regime.used)} of {model.regime.latent_dim}"
    row["c_IMA"] = None if geometry is None else geometry.contrast
    row["near-deterministic"] = None if model.near is None else "yes" if model.near.applies else "no"
    return row | {name: score.score for name, score in model.scores.items()}


def _method(model: MeasuredModel) -> str | None:
    """How log p(x) was computed, at how many samples, and whether to trust it."""
    if model.gap is None:
        return None
    points = f"at {len(model.gap.elbo)} samples"
    if model.gap.pareto_k is None:
        return f"quadrature {points}"
    trust = "reliable" if model.reliable else "unreliable"
    return f"importance sampling {points}, {trust} (largest Pareto k {model.gap.pareto_k:.2f})"


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Report):
    """Several models on the same samples. Print it for the verdict, and `summary()` for the table."""

    models: list[MeasuredModel]
    """What was measured of each model, in the order given."""
    elbo: Paired | None
    """Paired differences of the ELBO; None unless it is known of all models."""
    log_marginal: Paired | None
    """Paired differences of log p(x), at the samples where it was computed for all models."""
    failures: Failures | None
    """The samples with the lowest ELBO of each model; None unless it is known of all models."""

    @property
    def names(self) -> list[str]:
        return [model.name for model in self.models]

    @property
    def quantity(self) -> str | None:
        """What models are compared by: `log p(x)` if it is reliable for all models, else `ELBO`; None if neither."""
        if self.log_marginal is not None and all(model.reliable for model in self.models):
            return "log p(x)"
        return None if self.elbo is None else "ELBO"

    @property
    def paired(self) -> Paired | None:
        """The differences of `quantity`."""
        return self.log_marginal if self.quantity == "log p(x)" else self.elbo

    @property
    def pairwise(self) -> dict[str, np.ndarray]:
        """Matrices (M, M), row minus column, by name.

        `difference` and `stderr` of `quantity`, in nats per sample; `p_value`, adjusted for all pairs; and
        `indistinguishable`. The same with `elbo_` and `log_marginal_` in front, where these are known.
        """
        if self.paired is None:
            count = len(self.models)
            return {"difference": np.full((count, count), np.nan), "stderr": np.full((count, count), np.nan)}
        found = {"": self.paired} | {"elbo_": self.elbo, "log_marginal_": self.log_marginal}
        return {
            prefix + name: getattr(paired, name)
            for prefix, paired in found.items()
            if paired is not None
            for name in ("difference", "stderr", "p_value", "indistinguishable")
        }

    @property
    def table(self) -> list[dict[str, object]]:
        """A row per model, in the order given."""
        return [_model_row(model) for model in self.models]

    @property
    def best(self) -> str | None:
        """The name of the model with the highest `quantity`; of equal ones that with the highest ELBO."""
        if self.paired is None or self.elbo is None:
            return None
        behind, elbo = self.paired.difference.min(1), self.elbo.difference.min(1)
        return min(self.names, key=lambda name: (-behind[i := self.names.index(name)], -elbo[i], name))

    @property
    def candidates(self) -> list[str]:
        """The best model and those that are indistinguishable from it."""
        if self.paired is None or self.best is None:
            return []
        same = self.paired.indistinguishable[self.names.index(self.best)]
        return [name for name, alike in zip(self.names, same, strict=True) if alike or name == self.best]

    @cached_property
    def _matches(self) -> dict[tuple[str, str], MatchedLatents]:
        return {}

    def matched(self, first: str, second: str) -> MatchedLatents:
        """Which latents of one model are which of another.

        Args:
            first: name of a model, one of `names`.
            second: name of the other model.
        """
        for name in (first, second):
            validation.choice("model", name, self.names)
        if (first, second) not in self._matches:
            a, b = (self.models[self.names.index(name)].codes for name in (first, second))
            self._matches[first, second] = match_latents(a, b)
        return self._matches[first, second]

    @property
    def name(self) -> str:
        return f"{len(self.models)} models"

    @property
    def skipped(self) -> dict[str, str]:
        """What could not be measured, and why, as `model: analysis`."""
        return {f"{model.name}: {what}": why for model in self.models for what, why in model.skipped.items()}

    @property
    def verdict(self) -> str:
        """Which model is better, in one to three sentences."""
        paired, best = self.paired, self.best
        if paired is None or best is None:
            return "The models cannot be ranked: " + "; ".join(f"{k}: {v}" for k, v in self.skipped.items()) + "."
        others = [name for name in self.candidates if name != best]
        by = f"by {self.quantity} at {paired.samples} samples"
        if len(self.candidates) == len(self.names):
            found = f"The models are indistinguishable {by}."
        elif others:
            found = f"{best} is the best {by}, indistinguishable from {', '.join(others)}."
        else:
            index = self.names.index(best)
            row = paired.difference[index].copy()
            row[index] = np.inf
            second = int(row.argmin())
            distance = f"{row[second]:.3g} ± {paired.half_width[index, second]:.1g} nats per sample"
            found = f"{best} is the best {by}: {distance} above {self.names[second]}."
        betas = {model.name: model.sample.model.beta for model in self.models}
        weighted = [f"{name} was trained with β = {beta:.3g}" for name, beta in betas.items() if beta != 1]
        return f"{found} All models are compared with β = 1; {', '.join(weighted)}." if weighted else found

    def summary(self) -> Table:
        """A row per model, in the order given; prints as a table."""
        return Table(self.table)

    def content(self) -> dict[str, object]:
        """All numbers."""
        return {
            "quantity": self.quantity,
            "best": self.best,
            "indistinguishable_from_best": self.candidates,
            "table": self.table,
            "pairwise": {name: matrix.tolist() for name, matrix in self.pairwise.items()},
            "skipped": self.skipped,
        }

    def shown_pairs(self) -> list[tuple[str, str]]:
        """The best model (the first if there is none) with each of the next four, whose latents are shown."""
        ranked = self.names
        if self.paired is not None:
            ranked = [self.names[i] for i in np.argsort(-self.paired.difference[:, 0], kind="stable")]
        best = self.best or self.names[0]
        return [(best, name) for name in ranked if name != best][:4]

    def figures(self) -> list[Drawing]:
        """The figures of the page, as SVG with captions."""

        return list(drawings(self))

    def page(self) -> str:
        """The HTML page."""

        rows, figures = [page_row(row) for row in self.table], self.figures()
        return render(
            "models.html",
            **self.page_values()
            | {
                "unit": "models",
                "legend": LEGEND,
                "rows": rows,
                "columns": [name for name in rows[0] if any(row.get(name) is not None for row in rows)],
                "best": self.candidates,
                "samples": len(self.models[0].sample),
                "methods": {str(row["model"]): row["method"] for row in self.table if row["method"]},
                "drawings": figures[:1] if figures and figures[0].name == "differences" else [],
                "pictures": figures,
                "matches": match_sections(self),
                "failures": failure_rows(self),
                "common": [] if self.failures is None else self.failures.common.tolist(),
            },
        )

    def __repr__(self) -> str:
        return f"Comparison of {len(self.models)} models. {self.verdict}"


@torch.no_grad()
def compare(
    models: object,
    x: object,
    *,
    factors: object | None = None,
    auxiliary: object | None = None,
    loss: object | None = None,
    budget: float = 60.0,
    progress: Progress | None = to_stderr,
) -> Comparison:
    """Compare models of the same data: which is better, whether the difference is real, which latents are the same.

    All models see the same samples, and differences are paired, so that what every model finds hard does not count as
    noise. p-values hold for all pairs of models at once.

    Args:
        models: several models, a mapping from names to models, or a fit.
        x: samples that no model was trained on, anything that `vs.diagnose` takes; at most 2,000 of them are used.
        factors: (N, k) known factors of the samples, or (N,) labels, to score the codes against.
        auxiliary: the auxiliary input of iVAEs, a label or a row of numbers per sample.
        loss: what the models were trained with, as for `vs.diagnose`, or a mapping from their names to losses.
        budget: seconds for log p(x) of all models together. It is computed at up to 128 samples, fewer if that would
            take longer, and not at all if there is no time for 8.
        progress: called with lines that say what is being done; None for silence.

    >>> import torch
    >>> from vaescope.adapters import from_callables
    >>> def vae(precision):
    ...     width = 1 / (1 + precision)
    ...     return from_callables(encode=lambda x: (x * precision * width, 0 * x + width), decode=lambda z: z,
    ...                           latent_dim=1, precision=precision)
    >>> x = torch.randn(500, 1) * 1.1  # the variance of the first model is 1.2, that of the second 5
    >>> found = compare({"narrow": vae(5.0), "wide": vae(0.25)}, x, progress=None)
    >>> found.best, bool(found.pairwise["difference"][0, 1] > 0)
    ('narrow', True)
    """
    named = name_models(_with_losses(models, loss, x))
    seconds = number("budget", budget, above=0.0, hint="it is in seconds")
    inputs = read_samples_of_each([*named.values()], x, auxiliary)
    if len(inputs[0]) < 2:
        raise InputError("x needs at least 2 samples to compare models, got 1.")
    known = _read_factors(factors, len(inputs[0]))
    measured = []
    for index, (name, model) in enumerate(named.items()):
        if progress is not None:
            progress(f"compare: {name} ({index + 1} of {len(named)})")
        given = inputs[index] if model.auxiliary_dim else replace(inputs[index], auxiliary=None)
        measured.append(measure(model, name, given, None, known, given.image_shape))
    points = common_points(measured, seconds)
    if not points:
        late = {"log p(x)": f"it would take longer than budget={seconds:g}; pass a larger one"}
        measured = [found if found.elbo is None else replace(found, skipped=late | found.skipped) for found in measured]
    for index, found in enumerate(measured if points else ()):
        if progress is not None:
            progress(f"compare: log p(x) of {found.name} at {points} samples")
        measured[index] = measure_log_marginal(found, points)
    return compare_measured(measured)


def _with_losses(models: object, loss: object | None, x: object) -> object:
    """Models with what their losses say of them."""
    if loss is None:
        return models
    if not isinstance(models, Mapping):
        return models_with_loss(models, loss, x)
    losses = loss if isinstance(loss, Mapping) else dict.fromkeys(models, loss)
    if missing := [str(name) for name in models if name not in losses]:
        raise InputError(f"loss= has no loss of {', '.join(missing)}; pass one for each model, or one for all.")
    return {name: models_with_loss(model, losses[name], x)[0] for name, model in models.items()}


def compare_measured(measured: list[MeasuredModel]) -> Comparison:
    """Compare models that are measured already, on the same samples."""
    elbos = [model.elbo for model in measured if model.elbo is not None]
    if len(elbos) < len(measured):
        return Comparison(measured, None, None, None)
    values = np.stack(elbos, axis=1)
    if np.abs(values).max() > 1e100:  # their squares are out of range
        raise InputError("ELBOs must be between ±1e100 to be compared, got larger ones; rescale x as in training.")
    failures = find_failures(values, measured[0].sample.rows)
    return Comparison(measured, paired_differences(values), _log_marginal(measured), failures)


def _log_marginal(measured: Sequence[MeasuredModel], *, fewest: int = 20) -> Paired | None:
    """Paired differences at the samples whose log p(x) is known of all models, if they are enough."""
    found = [model.log_marginal for model in measured]
    common = sorted(set.intersection(*(set(rows) for rows in found)))
    if len(common) < fewest:
        return None
    return paired_differences(np.array([[rows[row] for rows in found] for row in common]))


def name_models(models: object) -> dict[str, LatentModel]:
    """Models by unique names: the given ones, or their own, numbered where they repeat."""
    if isinstance(models, Mapping):
        named = {str(name): check_model(model) for name, model in models.items()}
    else:
        listed = as_models(models)
        own = [model.name for model in listed]
        names = [n if own.count(n) == 1 else f"{n} ({own[: i + 1].count(n)})" for i, n in enumerate(own)]
        named = dict(zip(names, listed, strict=True))
    if len(named) < 2:
        raise InputError(f"compare needs at least two models, got {len(named)}; for one model use vs.diagnose.")
    return named


def _read_factors(factors: object | None, samples: int) -> np.ndarray | None:
    if factors is None:
        return None
    known = validation.array(factors, "factors")
    validation.same_rows({"x": samples, "factors": len(known)})
    return known[:, None] if known.ndim == 1 else known
