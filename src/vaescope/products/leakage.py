"""`vs.leakage`: how many nats of batch, pose or class the latents hold, where, and what removing them costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from sklearn.decomposition import PCA

from vaescope.analysis.encoding import EncodedSample, encode_chunks
from vaescope.analysis.likelihood import UNKNOWN, draw_posterior, mean_and_error
from vaescope.analysis.models import RepairedModel, as_models, likelihood_is_known, repair, sample_log_likelihood
from vaescope.analysis.samples import ModelInputs, read_samples, spread_rows
from vaescope.core.budget import Budget, Progress, to_stderr
from vaescope.core.checks import choice, integer, number
from vaescope.core.errors import Attempts, InputError, Skipped
from vaescope.core.serialization import to_plain
from vaescope.core.tables import Table
from vaescope.metrics.nats import (
    Limits,
    Nats,
    Null,
    Variable,
    nats_held,
    permutation_null,
    read_variable,
    telling_directions,
    without_directions,
)
from vaescope.report import figures
from vaescope.report.findings import Finding, by_severity
from vaescope.report.page import Drawing
from vaescope.report.report import Report


@dataclass(frozen=True)
class Thresholds:
    """When a leak is reported. All are conventions."""

    level: float = 0.05  # of the permutation test
    small: float = 0.02  # nats from which a leak is a warning
    ignored: float = 0.05  # nats per sample that the condition adds to log p(x|z), below which it is ignored
    lost: float = 0.05  # nats of what should be kept that x has and the latents do not
    most_removed: int = 4  # directions
    components: int = 20  # principal components of x from which a variable to keep is predicted
    bars: int = 24  # latents that are drawn


@dataclass(frozen=True)
class Removal:
    """What is left after codes lose the directions in which a nuisance shows most."""

    directions: int
    nuisance: Nats
    """Given the first variable to keep, if there is one."""
    keep: dict[str, Nats]


@dataclass(frozen=True, eq=False)
class Leak:
    """What the latents hold of one nuisance variable."""

    name: str
    entropy: float | None
    """H(N) in nats; None for a continuous variable."""
    held: Nats
    """I(Z; N)."""
    null: Null
    beyond: dict[str, Nats]
    """I(Z; N | K) for every K to keep: what remains where the nuisance and K are associated."""
    beyond_null: dict[str, Null]
    shared: dict[str, Nats]
    """I(N; K)."""
    latents: tuple[Nats, ...]
    """I(Z_k; N) of each latent."""
    removals: tuple[Removal, ...] = ()
    """After 1, 2, … directions were removed."""

    @property
    def significant(self) -> bool:
        return self.null.p_value <= Thresholds.level

    @property
    def confounded(self) -> str | None:
        """The variable to keep that explains all that latents hold of the nuisance."""
        return next((k for k, null in self.beyond_null.items() if null.p_value > Thresholds.level), None)

    @property
    def removal(self) -> Removal | None:
        """The fewest directions after which little is left, or the best of those that were tried."""
        enough = (r for r in self.removals if r.nuisance.low <= Thresholds.small)
        return next(enough, min(self.removals, key=lambda r: r.nuisance.value, default=None))


@dataclass(frozen=True)
class Condition:
    """Nats per sample by which a conditional decoder explains x better with its own condition than with another."""

    gain: float
    stderr: float

    @property
    def ignored(self) -> bool:
        return self.gain + 2 * self.stderr < Thresholds.ignored


@dataclass(frozen=True)
class Kept:
    """A variable that the latents should hold."""

    name: str
    entropy: float | None
    held: Nats
    """I(Z; K)."""
    in_x: Nats | None
    """I(X; K), at least; None without x."""
    condition: Nats | None
    """I(Y; K) of a conditional model's auxiliary input Y; None without one."""

    @property
    def lost(self) -> tuple[float, float]:
        """I(X; K) - I(Z; K) with its standard error."""
        if self.in_x is None:
            return 0.0, math.nan
        errors = [(n.high - n.low) / 3.92 for n in (self.held, self.in_x)]
        return self.in_x.value - self.held.value, math.hypot(*errors)


@dataclass(frozen=True, eq=False, repr=False)
class Leakage(Report):
    """How much of nuisance variables the latents hold, in nats."""

    name: str
    """What the report calls the model."""
    samples: int
    """How many were used."""
    leaks: tuple[Leak, ...]
    """One for each nuisance variable."""
    kept: tuple[Kept, ...] = ()
    """One for each variable to keep."""
    condition: Condition | None = None
    """Whether a conditional decoder uses its condition; None for other models."""
    findings: list[Finding] = field(default_factory=list)
    """Most severe first."""
    skipped: dict[str, str] = field(default_factory=dict)
    """What could not be measured, and why."""

    legend = (
        "Nats of the nuisance variable in each latent alone, with 95 % intervals, and p-values of permutation tests, "
        "corrected for the number of latents. Latents may hold the same nats, or hold them only together: values need "
        "not add up."
    )

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        return " ".join(_sentence(leak) for leak in self.leaks)

    @property
    def nats(self) -> dict[str, float]:
        """I(Z; N) by name of the nuisance variable."""
        return {leak.name: leak.held.value for leak in self.leaks}

    def leak(self, name: str | None = None) -> Leak:
        """What was measured of one nuisance variable.

        Args:
            name: of the variable; the first by default.
        """
        named = {leak.name: leak for leak in self.leaks}
        return self.leaks[0] if name is None else named[choice("name", name, named)]

    def summary(self) -> Table:
        """A row per latent: nats of every nuisance variable, with 95 % interval and corrected p-value."""
        rows = []
        for k in range(len(self.leaks[0].latents)):
            row: dict[str, object] = {"latent": k}
            for leak in self.leaks:
                nats = leak.latents[k]
                row |= {
                    f"{leak.name}, nats": nats.value,
                    f"{leak.name}, from": nats.low,
                    f"{leak.name}, to": nats.high,
                    f"{leak.name}, p": leak.null.per_latent[k],
                }
            rows.append(row)
        return Table(rows)

    def content(self) -> dict[str, object]:
        """Findings and numbers."""
        return {
            "name": self.name,
            "samples": self.samples,
            "worst": self.worst,
            "verdict": self.verdict,
            "findings": [finding.to_data() for finding in self.findings],
            "leaks": [to_plain(leak) for leak in self.leaks],
            "kept": to_plain(self.kept),
            "condition": to_plain(self.condition),
            "skipped": self.skipped,
        }

    def facts(self) -> list[tuple[str, str]]:
        """Single numbers with their labels."""
        found = [("samples", str(self.samples))]
        for leak in self.leaks:
            found.append((f"nats of {leak.name}", str(leak.held)))
            if leak.entropy is not None:
                found.append((f"entropy of {leak.name}", f"{leak.entropy:.2f} nats"))
            found.append((f"chance, {leak.name}: 95 %", f"{leak.null.chance:.3f} nats"))
            found += [(f"nats of {leak.name} given {keep}", str(nats)) for keep, nats in leak.beyond.items()]
            found += [(f"{leak.name} and {keep} share", f"{nats} nats") for keep, nats in leak.shared.items()]
        for kept in self.kept:
            found.append((f"nats of {kept.name}", str(kept.held)))
            if kept.in_x is not None:
                found.append((f"nats of {kept.name} in x", f"≥ {kept.in_x}"))
        if self.condition is not None:
            found.append(("the condition adds", f"{self.condition.gain:.3g} nats per sample"))
        return found

    def figures(self) -> list[Drawing]:
        """Nats per latent, and what removing directions leaves."""
        drawn = [figures.drawing("latents", _bars(self.leaks), self._caption())]
        removed = [leak for leak in self.leaks if leak.removals]
        if removed:
            caption = (
                "Nats that are left after the directions in which the nuisance shows most were removed from the codes, "
                "with 95 % intervals. Directions are found without the samples that they are judged on."
            )
            drawn.append(figures.drawing("removal", _removal_curves(removed, self.kept), caption))
        return drawn

    def _caption(self) -> str:
        shown = min(Thresholds.bars, len(self.leaks[0].latents))
        rest = len(self.leaks[0].latents) - shown
        return (
            "Nats of the nuisance variable in each latent alone, with 95 % intervals. Dashed: what all latents hold "
            "together." + (f" The {shown} latents with most; {rest} more are not drawn." if rest else "")
        )


def _sentence(leak: Leak) -> str:
    if not leak.significant:
        return (
            f"No {leak.name} was found in the latents (p = {leak.null.p_value:.2g}; at most {leak.held.high:.2g} nats)."
        )
    share = "" if leak.entropy is None else f", {leak.held.value / leak.entropy:.0%} of its entropy"
    return f"The latents hold {leak.held} nats of {leak.name}{share}."


# findings ---------------------------------------------------------------------------------------


def judge(found: Leakage) -> list[Finding]:
    """What deserves attention: leaks, conditions that are ignored, and what was removed with the nuisance."""
    return by_severity([*(_leak(leak, found.condition) for leak in found.leaks if leak.significant), *_kept(found)])


def _leak(leak: Leak, condition: Condition | None) -> Finding:
    evidence = f"{leak.held} nats, 95 % interval; permutation test p = {leak.null.p_value:.2g}."
    top = [k for k in np.argsort([-nats.value for nats in leak.latents]) if leak.null.per_latent[k] <= Thresholds.level]
    if top:
        most = ", ".join(f"z{k} ({leak.latents[k].value:.2f})" for k in top[:4])
        evidence += f" Most of it is in {most}{' and others' if len(top) > 4 else ''}."
    else:
        evidence += " No latent holds it alone."
    if (keep := leak.confounded) is not None:
        return Finding(
            "confounded",
            "note",
            f"What the latents hold of {leak.name} is explained by {keep}.",
            f"{evidence} Given {keep} it is {leak.beyond[keep]} nats, p = {leak.beyond_null[keep].p_value:.2g}; "
            f"the two share {leak.shared[keep]} nats.",
            f"Leave it: removing {leak.name} from the latents would remove {keep} too.",
        )
    severity = "warning" if leak.held.value > Thresholds.small else "note"
    return Finding(
        "leaks", severity, f"The latents hold {leak.name}.", evidence + _beyond(leak), _leak_advice(leak, condition)
    )


def _beyond(leak: Leak) -> str:
    return "".join(f" Given {keep}: {nats} nats." for keep, nats in leak.beyond.items())


def _leak_advice(leak: Leak, condition: Condition | None) -> str:
    if condition is None:
        advice = f"Give {leak.name} to the decoder as a condition, so that the latents need not hold it"
    elif condition.ignored:
        advice = "The decoder ignores its condition: check that it reaches the decoder's first layer"
    else:
        advice = f"Give {leak.name} to the encoder too, train for longer, or raise the weight of the KL"
    if (removal := leak.removal) is None:
        return f"{advice}."
    costs = "".join(f", and {nats.value:.2f} of {keep}" for keep, nats in removal.keep.items())
    many = f"{removal.directions} direction{'s' * (removal.directions > 1)}"
    given = f" given {next(iter(removal.keep))}" if removal.keep else ""
    left = f"{removal.nuisance.value:.2f} nats of {leak.name}{given}{costs}"
    return f"{advice}. Or remove {many} from the codes: that leaves {left}."


def _kept(found: Leakage) -> Iterator[Finding]:
    condition = found.condition
    if condition is not None and condition.ignored and not any(leak.significant for leak in found.leaks):
        yield Finding(
            "condition-ignored",
            "note",
            "The decoder ignores its condition.",
            f"log p(x|z) is higher by {condition.gain:.2g} ± {2 * condition.stderr:.2g} nats per sample with the "
            "condition of the sample than with another one.",
            "x may not depend on it, given the latents. Otherwise check that it reaches the decoder's first layer.",
        )
    for kept in found.kept:
        lost, error = kept.lost
        if not lost > max(Thresholds.lost, 2 * error):
            continue
        explained = kept.condition is not None and kept.condition.low > Thresholds.small
        used = condition is not None and not condition.ignored
        evidence = f"x holds at least {kept.in_x} nats of {kept.name}, the latents hold {kept.held}."
        if explained and used and condition is not None:
            yield Finding(
                "overcorrected",
                "warning",
                f"The condition explains some of {kept.name}, which is missing in the latents.",
                f"{evidence} The condition alone tells {kept.condition} nats of it, and adds {condition.gain:.2g} nats "
                "per sample to log p(x|z).",
                f"Condition on less, or on variables that are not associated with {kept.name}.",
            )
        else:
            yield Finding(
                "lost",
                "note",
                f"The latents hold less of {kept.name} than x does.",
                evidence,
                "More latents, a smaller weight of the KL, or a higher precision keep more of x.",
            )


# figures ----------------------------------------------------------------------------------------


def _bars(leaks: tuple[Leak, ...]) -> Figure:
    figure, axes = figures.row_of_panels(len(leaks), width=max(4.1, 8.2 / len(leaks)), height=3.4)
    for axis, leak in zip(axes, leaks, strict=True):
        values = np.array([[n.value, n.low, n.high] for n in leak.latents])
        chosen = np.sort(np.argsort(-values[:, 0])[: Thresholds.bars])
        value, low, high = values[chosen].T
        sure = np.array(leak.null.per_latent)[chosen] <= Thresholds.level
        colours = np.where(sure, figures.COLOURS[1], figures.COLOURS[0])
        axis.set_axisbelow(True)
        axis.bar(range(len(chosen)), value, color=list(colours), width=0.7)
        axis.errorbar(range(len(chosen)), value, [value - low, high - value], fmt="none", ecolor="#222", lw=1)
        axis.axhline(leak.held.value, color="#222", lw=1, ls="--")
        axis.set_xticks(range(len(chosen)), [f"z{k}" for k in chosen], fontsize=9 if len(chosen) < 13 else 7)
        axis.set_ylim(0)
        axis.set_title(leak.name)
        axis.set_ylabel("nats")
    return figure


def _removal_curves(leaks: list[Leak], kept: tuple[Kept, ...]) -> Figure:
    figure, axes = figures.row_of_panels(len(leaks), width=4.6, height=3.4)
    for axis, leak in zip(axes, leaks, strict=True):
        steps = [0, *(r.directions for r in leak.removals)]
        start, label = next(
            ((nats, f"{leak.name} given {k}") for k, nats in leak.beyond.items()), (leak.held, leak.name)
        )
        curves = {label: [start, *(r.nuisance for r in leak.removals)]}
        curves |= {one.name: [one.held, *(r.keep[one.name] for r in leak.removals)] for one in kept}
        for index, (name, nats) in enumerate(curves.items()):
            colour = figures.COLOURS[1 if index == 0 else 0 if index == 1 else index]
            value = [n.value for n in nats]
            axis.plot(steps, value, "o-", color=colour, label=name)
            axis.fill_between(steps, [n.low for n in nats], [n.high for n in nats], color=colour, alpha=0.16, lw=0)
        axis.set_xticks(steps)
        axis.set_ylim(0)
        figures.format_axis(axis, title=leak.name, x="directions removed", y="nats left", log="")
    return figure


# measurement ------------------------------------------------------------------------------------


@torch.no_grad()
def leakage(
    model: object,
    x: object = None,
    *,
    nuisance: object = None,
    keep: object = None,
    auxiliary: object | None = None,
    codes: str = "draws",
    samples: int = 4000,
    permutations: int = 499,
    name: str | None = None,
    budget: float = 90.0,
    seed: int = 0,
    progress: Progress | None = to_stderr,
) -> Leakage:
    """How many nats of a nuisance variable (batch, pose, subject) the latents hold, with a 95 % interval.

    A lower bound on the information I(Z; N): the entropy of N minus the cross-entropy of the best of several
    predictors, cross-fitted and corrected for over-fitting, and a permutation test of independence. Per latent, for
    all latents together, given what should be kept, and after the directions that hold it were removed.

    Args:
        model: a member of a fit, a model from `vs.adapters`, or your own `LatentModel`; of several models or a fit, the
            first (the best member).
        x: samples that the model was not trained on, a row or an image each; None for posteriors alone.
        nuisance: a label or a number per sample; or several such by name, in a dictionary or a data frame; or names of
            columns of `x.obs` of AnnData. By default the auxiliary input of a conditional model, if it is one column.
        keep: what the latents should hold (cell type, identity), in the same forms.
        auxiliary: the auxiliary input of an iVAE or a conditional VAE, a label or a row of numbers per sample.
        codes: `draws`, one z from each posterior, or `means` of posteriors.
        samples: at most so many samples are used, drawn at random.
        permutations: of the test.
        name: what the report calls the model.
        budget: seconds; removing directions is left out if there is no time for it.
        seed: of draws, folds and permutations.
        progress: called with lines that say what is being done; None for silence.

    >>> rng = np.random.default_rng(0)
    >>> batch = rng.integers(0, 2, 1000)
    >>> mean = rng.normal(size=(1000, 2)) + np.outer(batch, [2.0, 0.0])
    >>> from vaescope.adapters import from_arrays
    >>> found = leakage(from_arrays(mean, np.full((1000, 2), 0.01)), nuisance=batch, progress=None)
    >>> found.leaks[0].held.low < 0.33 < found.leaks[0].held.high, found.findings[0].code
    (True, 'leaks')
    """
    choice("codes", codes, ("draws", "means"))
    integer("samples", samples, minimum=100)
    integer("permutations", permutations, minimum=19)
    clock = Budget(number("budget", budget, above=0.0, hint="it is in seconds"), progress, name="leakage")
    first = as_models(model)[0]
    given = read_samples(first, x, auxiliary)
    clock.say(f"encoding {min(samples, len(given))} samples")
    if nuisance is None:
        nuisance = _condition_of(given)
    rows = spread_rows(len(given), samples)
    targets = {key: _read(values, key, len(given), rows) for key, values in _by_name(nuisance, x, "nuisance").items()}
    keeps = {key: _read(values, key, len(given), rows) for key, values in _by_name(keep, x, "keep").items()}
    repaired = repair(first, given, None, 1000)
    z = _codes(repaired.model, given[rows], codes)
    attempts = Attempts(repaired.corrections)
    leaks = []
    for key, (target, kept_rows) in targets.items():
        if len(kept_rows) < len(rows):
            few = (
                f"{len(rows) - len(kept_rows)} samples of classes with fewer than {Limits.class_samples} were left out"
            )
            attempts.skipped[f"rare classes of {key}"] = few
        clock.say(f"measuring {key}")
        leaks.append(_measure(key, z, (target, kept_rows), keeps, clock, attempts, (permutations, seed)))
    condition = None
    if first.conditional:
        condition = attempts("use of the condition", lambda: _use_of_condition(repaired.sample, seed))
    kept = []
    for key, (target, kept_rows) in keeps.items():
        clock.say(f"measuring {key}")
        kept.append(_measure_kept(key, z, (target, kept_rows), None if x is None else given[rows], seed))
    found = Leakage(name or first.name, len(rows), tuple(leaks), tuple(kept), condition, [], attempts.skipped)
    return replace(found, findings=judge(found))


def _condition_of(given: ModelInputs) -> object:
    """The auxiliary input, if it is one column."""
    if given.auxiliary is None or math.prod(given.auxiliary.shape[1:]) != 1:
        raise InputError("nuisance is required: a label or a number per sample, such as the batch of each.")
    return {"condition": given.auxiliary.reshape(len(given))}


def _by_name(values: object, x: object, default: str) -> dict[str, object]:
    """Variables by name, from an array, several by name, or names of columns of AnnData."""
    if values is None:
        return {}
    if isinstance(values, Mapping) or hasattr(values, "columns"):  # or a data frame
        named = cast("Mapping[str, object]", values)
        return {str(key): np.asarray(named[key]) for key in named}
    names = [values] if isinstance(values, str) else values
    if isinstance(names, list | tuple) and names and all(isinstance(key, str) for key in names):
        table = getattr(x, "obs", None)
        if table is not None and all(key in table for key in names):
            return {key: np.asarray(table[key]) for key in names}
        if isinstance(values, str):
            raise InputError(f"{default}={values!r} is no column of x.obs; pass a label or a number per sample.")
    label = getattr(values, "name", None)
    return {label if isinstance(label, str) else default: values}


def _read(values: object, name: str, count: int, rows: np.ndarray) -> tuple[Variable, np.ndarray]:
    """The variable at some rows, and which of these are kept."""
    length = len(values) if hasattr(values, "__len__") else 0
    if length != count:
        raise InputError(f"{name} must have a label or a number for each of {count} samples, got {length}.")
    return read_variable(np.asarray(values)[rows], name)


def _codes(model: RepairedModel, given: ModelInputs, kind: str) -> Float[np.ndarray, "N d"]:
    """A draw from every posterior, or its mean, a chunk of samples at a time."""
    chunks = enumerate(encode_chunks(model, given))
    found = [chunk.mean if kind == "means" else draw_posterior(chunk, k) for k, chunk in chunks]
    return torch.cat([part.double().cpu() for part in found]).numpy()


def _measure(
    key: str,
    z: Float[np.ndarray, "N d"],
    read: tuple[Variable, np.ndarray],
    keeps: Mapping[str, tuple[Variable, np.ndarray]],
    clock: Budget,
    attempts: Attempts,
    settings: tuple[int, int],
) -> Leak:
    """Everything about one nuisance variable."""
    target, rows = read
    permutations, seed = settings
    own = z[rows]
    held = nats_held(own, target, seed=seed)
    null = permutation_null(own, target, permutations=permutations, seed=seed)
    latents = tuple(nats_held(column[:, None], target, seed=seed) for column in own.T)
    beyond, beyond_null, shared = {}, {}, {}
    for name, (keep, kept_rows) in keeps.items():
        both, a, b = np.intersect1d(rows, kept_rows, return_indices=True)
        n, k = target[a], keep[b]
        beyond[name] = nats_held(z[both], n, given=k, seed=seed)
        beyond_null[name] = permutation_null(z[both], n, given=k, permutations=permutations, seed=seed)
        shared[name] = nats_held(k.columns, n, seed=seed)
    leak = Leak(key, target.entropy, held, null, beyond, beyond_null, shared, latents)
    if leak.significant and z.shape[1] > 1:
        clock.say(f"removing the directions that hold {key}")
        removals = attempts(f"removal of {key}", lambda: _removals(z, read, keeps, clock, seed))
        leak = replace(leak, removals=removals or ())
    return leak


def _removals(
    z: Float[np.ndarray, "N d"],
    read: tuple[Variable, np.ndarray],
    keeps: Mapping[str, tuple[Variable, np.ndarray]],
    clock: Budget,
    seed: int,
) -> tuple[Removal, ...]:
    """What is left after 1, 2, … directions were removed, until little is left; given the first variable to keep."""
    clock.need(0.0)
    target, rows = read
    given = None
    if keeps:
        keep, kept_rows = next(iter(keeps.values()))
        rows, a, b = np.intersect1d(rows, kept_rows, return_indices=True)
        target, given = target[a], keep[b]
    found: list[Removal] = []
    for count in range(1, min(Thresholds.most_removed, z.shape[1] - 1) + 1):
        if clock.left < 0:
            break
        reduced = partial(_reduced, z=z, rows=rows, target=target, given=given, count=count)
        left = nats_held(partial(reduced, among=rows), target, given=given, seed=seed)
        keep_left = {
            name: nats_held(partial(reduced, among=own), kept, seed=seed) for name, (kept, own) in keeps.items()
        }
        found.append(Removal(count, left, keep_left))
        if left.low <= 0:
            break
    return tuple(found)


def _reduced(
    chosen: np.ndarray,
    *,
    among: np.ndarray,
    z: Float[np.ndarray, "N d"],
    rows: np.ndarray,
    target: Variable,
    given: Variable | None,
    count: int,
) -> Float[np.ndarray, "M d"]:
    """Codes of the rows `among` without directions, which those of them that are `chosen` and have a target show."""
    fit, _, at = np.intersect1d(among[chosen], rows, return_indices=True)
    directions = telling_directions(z[fit], target[at], given=None if given is None else given[at])
    return without_directions(z, directions[:, :count], fit)[among]


def _use_of_condition(sample: EncodedSample, seed: int) -> Condition:
    """log p(x|z, y) with the sample's own y minus that with y of another row, over z from the posteriors."""
    if not likelihood_is_known(sample.model):
        raise Skipped(UNKNOWN)
    y = sample.auxiliary
    if y is None:
        raise Skipped("the model's auxiliary input is not known")
    flat = y.reshape(len(y), -1)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
    differs = (flat != flat[order]).any(1)
    if not bool(differs.any()):
        raise Skipped("all samples have the same condition")
    other = replace(sample, auxiliary=y[order])
    x, total = sample.observations, torch.zeros(len(sample), dtype=torch.float64)
    for k in range(4):
        z = draw_posterior(sample, k)
        total += (sample_log_likelihood(sample)(x.to(z), z) - sample_log_likelihood(other)(x.to(z), z)).double() / 4
    return Condition(*mean_and_error(total[differs]))


def _measure_kept(
    key: str, z: Float[np.ndarray, "N d"], read: tuple[Variable, np.ndarray], given: ModelInputs | None, seed: int
) -> Kept:
    """A variable to keep: what the latents, x and the condition hold of it."""
    target, rows = read
    held = nats_held(z[rows], target, seed=seed)
    if given is None:
        return Kept(key, target.entropy, held, None, None)
    numbers = math.prod(given.x.shape[1:])
    few = np.arange(min(len(rows), max(200, 2**22 // numbers)))
    x = np.asarray(given[rows[few]].x, dtype=np.float64).reshape(len(few), -1)
    counts = bool((x >= 0).all()) and bool((x == np.round(x)).all()) and x.max() > 10
    components = PCA(min(Thresholds.components, numbers, len(few) // 10), random_state=0)
    in_x = nats_held(components.fit_transform(np.log1p(x) if counts else x), target[few], seed=seed)
    condition = None
    if given.auxiliary is not None:
        y = np.asarray(given.auxiliary, dtype=np.float64).reshape(len(given), -1)
        if y.shape[1] == 1 and len(np.unique(y)) < 50:
            y = (y == np.unique(y)).astype(float)
        condition = nats_held(y[rows], target, seed=seed)
    return Kept(key, target.entropy, held, in_x, condition)
