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
    value_limits,
)
from vaescope.core import validation
from vaescope.core.budget import Progress, to_stderr
from vaescope.core.checks import number
from vaescope.core.errors import InputError
from vaescope.core.tables import Table
from vaescope.fitting import Fit
from vaescope.products.compare.measure import (
    Failures,
    MeasuredModel,
    Paired,
    Settings,
    combined_differences,
    common_points,
    compare_settings,
    find_failures,
    measure,
    measure_log_marginal,
    paired_differences,
)
from vaescope.protocol import LatentModel, check_model
from vaescope.report import figures
from vaescope.report.page import Drawing, render
from vaescope.report.report import Report
from vaescope.report.wording import interval

LEGEND = (
    "ELBO, log p(x), gaps and KL in nats per sample. Family gap: what the best posterior of its kind loses; "
    "amortization gap: what the encoder loses beyond it. c_IMA: how far the columns of the decoder's Jacobian are from "
    "orthogonal. Near-deterministic: whether posteriors are narrow and as Eq. 12 predicts. ±: two standard errors over "
    "samples."
)


def drawings(comparison: Comparison) -> Iterator[Drawing]:
    """Differences between models, and traversals of matched latents."""
    caption = (
        f"Difference in {comparison.quantity}, row minus column, in nats per sample, with intervals that hold for all "
        "pairs together (95 %). Grey: the interval contains zero, so that the difference could be chance"
    )
    if (settings := comparison.settings) is not None:
        matrix = difference_matrix(settings.difference, settings.half_width, settings.names)
        of_both = f"{caption} of seeds or of samples."
        yield figures.drawing("settings", matrix, of_both)
    if (paired := comparison.paired) is not None and len(comparison.names) <= 12:
        matrix = difference_matrix(paired.difference, paired.joint_half_width, comparison.names)
        yield figures.drawing("differences", matrix, f"{caption} of the samples; seeds of a model are not in it.")
    caption = (
        "One latent at a time, from -2 to 2 standard deviations of its prior, with the others fixed at a typical code. "
        "Each panel is a matched pair on one scale, the first model before the second; r is the correlation of their "
        "codes, and a minus sign marks a latent that is traversed backwards, because it is negative."
    )
    for index, (first, second) in enumerate(comparison.shown_pairs()):
        models = [comparison.models[comparison.names.index(name)] for name in (first, second)]
        figure = matched_traversals(models, comparison.matched(first, second).latents)
        if figure is not None:
            yield figures.drawing(f"matched-{index}", figure, caption)


def difference_matrix(difference: np.ndarray, half_width: np.ndarray, names: list[str]) -> Figure:
    """Differences as coloured cells: blue where the row is better, grey where the interval contains zero."""
    count = len(names)
    labels = [_short(name) for name in names]
    figure, (axis,) = figures.grid_of_panels(1, 1, width=2.2 + 1.15 * count, height=1.3 + 0.62 * count)
    largest = max(float(np.abs(difference).max()), 1e-12)
    shades = np.where(np.abs(difference) <= half_width, np.nan, difference)
    axis.set_facecolor("#e9edf0")
    axis.imshow(shades, cmap="RdBu", vmin=-1.6 * largest, vmax=1.6 * largest, aspect="auto")
    for i in range(count):
        for j in range(count):
            if i != j:
                text = interval(difference[i, j], half_width[i, j] / 2, sign="+").replace(" ±", "\n±")
                axis.text(j, i, text, ha="center", va="center", fontsize=9, color="#10151a")
    axis.set_xticks(range(count), labels, rotation=30, ha="left", fontsize=9.5)
    axis.set_yticks(range(count), labels, fontsize=9.5)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"


def matched_traversals(models: Sequence[MeasuredModel], matches: list[MatchedLatent]) -> list[Figure] | None:
    """Traversals of at most six matched latents of two models, a figure per pair on one scale; None if undrawable.

    The second is traversed in the direction of the first.
    """
    pairs = [(m.first, m.second, m.correlation) for m in matches if m.second is not None][:6]
    if not pairs or not all(can_be_drawn(model.sample) for model in models):
        return None
    shape, other = (image_shape(model.sample) for model in models)
    if shape != other:
        return None
    steps, drawn = 25 if shape is None else 7, []
    for first, second, correlation in pairs:
        backwards = correlation < 0
        outputs = [traverse(m.sample, k, steps)[1] for m, k in zip(models, (first, second), strict=True)]
        outputs[1] = outputs[1].flip(0) if backwards else outputs[1]
        labels = [f"z{first}", f"{'-' * backwards}z{second}"]
        if shape is None:
            curves = [standardise_outputs(models[0].sample, values) for values in outputs]
            chosen = most_changing(curves[0], 5)
            figure, axes = figures.grid_of_panels(1, 2, width=2.1, height=1.9)
            shown = torch.cat([values[:, chosen] for values in curves])
            low, high = float(shown.min()), float(shown.max())
            for axis, values, label, model in zip(axes, curves, labels, models, strict=True):
                draw_curves(axis, np.linspace(-2, 2, steps).tolist(), values, chosen)
                axis.set_title(f"{_short(model.name)}: {label}", fontsize=8)
                axis.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
            axes[1].set_yticklabels([])
            axes[0].legend(fontsize=6.5, ncols=2)
        else:
            figure, axes = figures.grid_of_panels(2, steps, width=0.62, height=0.66)
            limits = value_limits(torch.cat(outputs))
            for side, (values, label) in enumerate(zip(outputs, labels, strict=True)):
                draw_images(axes[side * steps : (side + 1) * steps], values, shape, label=label, limits=limits)
        figure.suptitle(f"|r| = {abs(correlation):.2f}", fontsize=8)
        drawn.append(figure)
    return drawn


def page_row(row: dict[str, object]) -> dict[str, object]:
    """A row of the table with two standard errors beside each value, and without the method."""
    found = {name: value for name, value in row.items() if not name.endswith(" stderr") and name != "method"}
    for name, value in found.items():
        error = row.get(f"{name} stderr")
        if isinstance(value, float) and isinstance(error, float):
            found[name] = interval(value, error)
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


def _of_all(paired: Paired) -> str:
    """The largest difference with its interval, in brackets."""
    i, j = np.unravel_index(int(paired.difference.argmax()), paired.difference.shape)
    return f" (the largest difference is {interval(paired.difference[i, j], paired.joint_half_width[i, j] / 2)} nats)"


def _verdict_on_settings(found: Settings, by: str) -> str:
    """Which setting is the best, counting the spread over seeds."""
    best = int(found.difference.min(1).argmax())
    others = [k for k in np.argsort(found.difference[best], kind="stable").tolist() if k != best]
    name, close = found.names[best], [k for k in others if found.indistinguishable[best, k]]
    k = others[0]
    seeds = f"{len(found.members[best])} and {len(found.members[k])} models"
    distance = interval(found.difference[best, k], found.half_width[best, k] / 2, " nats per sample")
    if not close:
        return (
            f"{name} is the best setting {by}: {distance} above {found.names[k]}, counting seeds and samples ({seeds})."
        )
    above = [k for k in close if found.separated[best, k]]
    if above == close:
        k = above[0]
        chance, size = found.chance_of_separation(best, k), [len(found.members[i]) for i in (best, k)]
        distance = interval(found.difference[best, k], found.half_width[best, k] / 2, " nats per sample")
        which = ", ".join(found.names[i] for i in above)
        return (
            f"{name} is ahead {by}: each of its models is above each of {which}, on average by {distance}. With "
            f"{size[0]} and {size[1]} models, equal settings are ordered so in {chance:.0%} of cases: more seeds would "
            "decide."
        )
    alike = ", ".join(found.names[i] for i in close)
    spread = float(np.nanmax(found.seed_deviation)) if np.isfinite(found.seed_deviation).any() else np.nan
    return (
        f"{name} is the best setting {by}, but indistinguishable from {alike}: {distance} above {found.names[k]}, "
        f"where models of a setting differ by up to {spread:.2g} (standard deviation over seeds)."
    )


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
    groups: tuple[str, ...] = ()
    """The setting of each model; empty if models are compared one by one."""

    @property
    def settings(self) -> Settings | None:
        """The settings compared, as means over seeds; None without groups or without a quantity."""
        return compare_settings(self.paired, self.groups) if self.groups and self.paired is not None else None

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
        rows = [_model_row(model) for model in self.models]
        if not self.groups:
            return rows
        return [{"model": row["model"], "setting": group, **row} for row, group in zip(rows, self.groups, strict=True)]

    @property
    def settings_table(self) -> list[dict[str, object]]:
        """A row per setting: means over its models, and how far these differ."""
        found = []
        for name in dict.fromkeys(self.groups):
            rows = [row for row, group in zip(self.table, self.groups, strict=True) if group == name]
            row: dict[str, object] = {"setting": name, "models": len(rows)}
            for column in ("log p(x)", "ELBO", "KL"):
                values = np.array([value for one in rows if isinstance(value := one[column], float)])
                if len(values) == len(rows):
                    row[column] = float(values.mean())
                    row[f"{column}, between models"] = float(values.std(ddof=1)) if len(values) > 1 else None
            found.append(row)
        return found

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
        """Which model or setting is better, by what, and why by that."""
        paired, best = self.paired, self.best
        if paired is None or best is None:
            return "The models cannot be ranked: " + "; ".join(f"{k}: {v}" for k, v in self.skipped.items()) + "."
        others, by = [name for name in self.candidates if name != best], f"by {self.quantity}"
        if self.settings is not None:
            found = _verdict_on_settings(self.settings, by)
        elif len(self.candidates) == len(self.names):
            found = f"The models are indistinguishable {by}{_of_all(paired)}."
        elif others:
            found = f"{best} is the best {by}, indistinguishable from {', '.join(others)}."
        else:
            index = self.names.index(best)
            row = paired.difference[index].copy()
            row[index] = np.inf
            second = int(row.argmin())
            distance = interval(row[second], paired.joint_half_width[index, second] / 2, " nats per sample")
            found = f"{best} is the best {by}: {distance} above {self.names[second]}."
        found = f"{found} {self.decides}".strip()
        betas = {model.name: model.sample.model.beta for model in self.models}
        weighted = [f"{name} was trained with β = {beta:.3g}" for name, beta in betas.items() if beta != 1]
        return f"{found} All models are compared with β = 1; {', '.join(weighted)}." if weighted else found

    @property
    def decides(self) -> str:
        """Which quantity the verdict is by, why, and what the other one says if that is something else."""
        if self.elbo is None:
            return ""
        count, marginal = len(self.models[0].sample), self.log_marginal
        if marginal is None:
            reasons = {why for model in self.models if (why := model.skipped.get("log p(x)"))}
            why = "; ".join(sorted(reasons)) or "it is known at too few samples"
            return f"The ELBO at {count} samples decides, as there is no log p(x) of all models ({why})."
        first = self.names[int(self.elbo.difference.min(1).argmax())]
        if self.quantity == "log p(x)":
            found = f"log p(x) decides: the ELBO at {count} samples and the gap at {marginal.samples}."
            k, index = self.names.index(self.best or first), self.names.index(first)
            if self.elbo.difference[index, k] > self.elbo.joint_half_width[index, k]:
                found += f" By the ELBO, which also counts what encoders lose, {first} is the best."
            return found
        weak = ", ".join(model.name for model in self.models if not model.reliable)
        found = f"The ELBO at {count} samples decides, as the estimates of log p(x) of {weak} are unreliable"
        leading = self.names[int(marginal.difference.min(1).argmax())]
        ahead = marginal.difference[self.names.index(leading), self.names.index(first)]
        agree = (
            "they put the same model first" if leading == first else f"they put {leading} first, by {ahead:.2g} nats"
        )
        return f"{found} ({agree})."

    def summary(self) -> Table:
        """A row per model, in the order given; prints as a table."""
        return Table(self.table, note=self.verdict)

    def content(self) -> dict[str, object]:
        """All numbers."""
        return {
            "quantity": self.quantity,
            "best": self.best,
            "indistinguishable_from_best": self.candidates,
            "verdict": self.verdict,
            "table": self.table,
            "settings": self.settings_table,
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
                "drawings": [figure for figure in figures if figure.name in ("settings", "differences")],
                "settings": self.settings_table,
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
    groups: Sequence[object] | Mapping[str, object] | None = None,
    budget: float = 60.0,
    progress: Progress | None = to_stderr,
) -> Comparison:
    """Compare models of the same data: which is better, whether the difference is real, which latents are the same.

    All models see the same samples, and differences are paired, so that what every model finds hard does not count as
    noise. p-values hold for all pairs of models at once.

    Args:
        models: several models, a mapping from names to models, or a fit. A mapping from names of settings to lists of
            models (or fits) compares settings: means over models that differ in their seed alone.
        x: samples that no model was trained on, anything that `vs.diagnose` takes; at most 2,000 of them are used.
        factors: (N, k) known factors of the samples, or (N,) labels, to score the codes against.
        auxiliary: the auxiliary input of iVAEs, a label or a row of numbers per sample.
        loss: what the models were trained with, as for `vs.diagnose`, or a mapping from their names to losses.
        groups: the setting of each model, in the order of `models` or by name: models of a setting are its seeds.
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
    named, settings = name_models(_with_losses(models, loss, x))
    settings = _read_groups(groups, [*named]) or settings
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
    return compare_measured(measured, settings)


def _with_losses(models: object, loss: object | None, x: object) -> object:
    """Models with what their losses say of them."""
    if loss is None:
        return models
    if not isinstance(models, Mapping):
        return models_with_loss(models, loss, x)
    losses = loss if isinstance(loss, Mapping) else dict.fromkeys(models, loss)
    if missing := [str(name) for name in models if name not in losses]:
        raise InputError(f"loss= has no loss of {', '.join(missing)}; pass one for each model, or one for all.")
    found = {name: models_with_loss(model, losses[name], x) for name, model in models.items()}
    return {name: own if isinstance(models[name], list | tuple | Fit) else own[0] for name, own in found.items()}


def compare_measured(measured: list[MeasuredModel], groups: tuple[str, ...] = ()) -> Comparison:
    """Compare models that are measured already, on the same samples.

    Args:
        measured: the models.
        groups: the setting of each; empty to compare them one by one.
    """
    elbos = [model.elbo for model in measured if model.elbo is not None]
    if len(elbos) < len(measured):
        return Comparison(measured, None, None, None, groups)
    values = np.stack(elbos, axis=1)
    if np.abs(values).max() > 1e100:  # their squares are out of range
        raise InputError("ELBOs must be between ±1e100 to be compared, got larger ones; rescale x as in training.")
    failures = find_failures(values, measured[0].sample.rows)
    return Comparison(measured, paired_differences(values), _log_marginal(measured, values), failures, groups)


def _log_marginal(measured: Sequence[MeasuredModel], elbo: np.ndarray, *, fewest: int = 20) -> Paired | None:
    """Paired differences from the samples whose log p(x) is known of all models, if they are enough."""
    found = [model.log_marginal for model in measured]
    common = sorted(set.intersection(*(set(rows) for rows in found)))
    if len(common) < fewest:
        return None
    place = {row: index for index, row in enumerate(measured[0].sample.rows.tolist())}
    known = np.array([[rows[row] for rows in found] for row in common])
    return combined_differences(elbo, elbo[[place[row] for row in common]], known)


def _read_groups(groups: Sequence[object] | Mapping[str, object] | None, names: list[str]) -> tuple[str, ...]:
    """The setting of each model."""
    if groups is None:
        return ()
    if isinstance(groups, Mapping) and set(map(str, groups)) != set(names):
        raise InputError(f"groups must have the models {', '.join(names)} as keys, got {', '.join(map(str, groups))}.")
    labels = [str(groups[name]) for name in names] if isinstance(groups, Mapping) else [str(label) for label in groups]
    if len(labels) != len(names) or not 1 < len({*labels}) < len(names):
        raise InputError(
            f"groups must name the setting of each of {len(names)} models, at least two settings and one with several "
            f"models, got {labels}."
        )
    return tuple(labels)


def name_models(models: object) -> tuple[dict[str, LatentModel], tuple[str, ...]]:
    """Models by unique names (given, or their own, numbered where they repeat), and the setting of each if given."""
    if isinstance(models, Mapping):
        several = {str(name): as_models(one) for name, one in models.items() if isinstance(one, list | tuple | Fit)}
        parts = {str(name): several.get(str(name)) or [check_model(one)] for name, one in models.items()}
        labels = [name for name, listed in parts.items() for _ in listed]
        numbered = {
            f"{name} ({index})" if len(listed) > 1 else name: model
            for name, listed in parts.items()
            for index, model in enumerate(listed, 1)
        }
        return _enough(numbered), tuple(labels) if 1 < len(parts) < len(labels) else ()
    listed = as_models(models)
    own = [model.name for model in listed]
    names = [n if own.count(n) == 1 else f"{n} ({own[: i + 1].count(n)})" for i, n in enumerate(own)]
    return _enough(dict(zip(names, listed, strict=True))), ()


def _enough(named: dict[str, LatentModel]) -> dict[str, LatentModel]:
    if len(named) < 2:
        raise InputError(f"compare needs at least two models, got {len(named)}; for one model use vs.diagnose.")
    return named


def _read_factors(factors: object | None, samples: int) -> np.ndarray | None:
    if factors is None:
        return None
    known = validation.array(factors, "factors")
    validation.same_rows({"x": samples, "factors": len(known)})
    return known[:, None] if known.ndim == 1 else known
