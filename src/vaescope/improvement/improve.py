"""`vs.improve`: the advice of a diagnosis carried out on a model, each change measured on held-out samples."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample, encode_sample
from vaescope.analysis.gap import check_gap, decodes_per_point, gap_at, seconds_per_decode
from vaescope.analysis.likelihood import UNKNOWN, draw_observations, estimate_marginal, given_by_functions
from vaescope.analysis.models import RepairedModel, as_models, likelihood_is_known
from vaescope.analysis.samples import ModelInputs, read_samples, spread_rows
from vaescope.analysis.traversals import can_be_drawn, draw_images, image_shape
from vaescope.core.budget import Budget, Progress, to_stderr
from vaescope.core.checks import number
from vaescope.core.errors import Attempts, InputError, RunError, Skipped
from vaescope.core.tables import Table
from vaescope.distributions import Normal
from vaescope.improvement.changes import Change, Removal, restored
from vaescope.improvement.interventions import (
    ALWAYS,
    Intervention,
    Limits,
    Setting,
    asked_for,
    elbo_values,
)
from vaescope.inference.gap import QUADRATURE_ORDERS
from vaescope.products.compare.measure import mirrored_noise, paired_differences
from vaescope.products.diagnose.diagnose import Diagnosis, diagnose
from vaescope.protocol import LatentModel
from vaescope.regime.model import regime_of
from vaescope.report import figures
from vaescope.report.findings import Finding
from vaescope.report.page import Drawing, render
from vaescope.report.report import Report
from vaescope.report.wording import interval
from vaescope.runs.files import exists, locked, read_json, read_tensors, write_json, write_tensors


@dataclass(frozen=True)
class Gain:
    """Mean difference over samples, in nats per sample, and half the width of its 95 % interval."""

    value: float
    half_width: float

    @property
    def low(self) -> float:
        return self.value - self.half_width

    @property
    def high(self) -> float:
        return self.value + self.half_width

    def __str__(self) -> str:
        return interval(self.value, self.half_width / 2)

    @classmethod
    def between(cls, before: Float[Tensor, " N"], after: Float[Tensor, " N"]) -> Gain:
        """Of paired values of the same samples.

        Args:
            before: a value per sample.
            after: the same of the changed model.
        """
        paired = paired_differences(np.stack([before.numpy(), after.numpy()], 1))
        return cls(float(paired.difference[1, 0]), float(paired.half_width[1, 0]))


@dataclass(frozen=True)
class Step:
    """One intervention: why it was tried, what it gained, and whether it was kept."""

    name: str
    title: str
    reason: str
    """Code of the finding that asks for it."""
    round: int
    """How many diagnoses had been made before it."""
    kept: bool
    why: str
    """Why it was kept or not, from the samples of the selection part."""
    gain: Gain | None
    """In the ELBO of held-out samples, which decided nothing; None if it could not be applied or measured."""
    selected: Gain | None
    """In the ELBO of the selection part, by which it was decided."""
    seconds: float
    code: str
    """What to write to get the same in your own training."""
    change: Change | None = None

    def row(self) -> dict[str, object]:
        """As a row of the summary."""
        return {
            "step": self.title,
            "finding": self.reason,
            "kept": "yes" if self.kept else "no",
            "gain in nats": None if self.gain is None else str(self.gain),
            "seconds": round(self.seconds, 1),
            "why": self.why,
        }

    def to_data(self) -> dict[str, object]:
        """Everything but the change itself."""
        data: dict[str, object] = {name: getattr(self, name) for name in ("name", "title", "reason", "round", "kept")}
        data |= {name: getattr(self, name) for name in ("why", "seconds", "code")}
        for name in ("gain", "selected"):
            found: Gain | None = getattr(self, name)
            data[name] = None if found is None else [found.value, found.half_width]
        return data


@dataclass(frozen=True)
class Outcome:
    """What is measured of the original and of the best model, on the held-out samples."""

    elbo: Float[Tensor, " N"] | None
    """Per sample."""
    sample: EncodedSample | None
    in_use: str
    kl: float
    log_marginal: Float[Tensor, " P"] | None = None
    """Of some of the samples, the same of both models."""
    method: str = ""
    """How log p(x) was computed."""


@dataclass(frozen=True, eq=False, repr=False)
class Improvement(Report):
    """What was tried, what it gained on held-out samples, and the best model that was found."""

    name: str
    """What the report calls the model."""
    model: LatentModel
    """The best model; the original one if nothing was kept."""
    original: LatentModel
    """The model that was given, which stays as it is."""
    steps: list[Step]
    """In the order in which they were tried."""
    findings: list[Finding]
    """What a diagnosis of the best model still finds."""
    before: Outcome
    """The original model on the held-out samples."""
    after: Outcome
    """The best model on the same samples."""
    stopped: str
    """Why nothing more was tried."""
    sizes: dict[str, int]
    """Samples of each part."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Interventions and measurements that do not apply, and why."""

    unit = "steps"
    file: ClassVar[str] = "improvement.json"
    """Of the folder in which steps are stored."""
    legend = (
        "Steps in the order in which they were tried, cheapest first. Gain: of the ELBO of held-out samples, in nats "
        "per sample, with two standard errors; these samples decided nothing. A step is kept if its gain on the "
        "selection part, which is separate, is above 0 by a 95 % interval."
    )

    @property
    def kept(self) -> list[Step]:
        """The steps from the original to the best model."""
        return [step for step in self.steps if step.kept]

    @property
    def gain(self) -> Gain | None:
        """Of the ELBO of held-out samples, all kept steps together; None if the original has no finite ELBO."""
        if self.before.elbo is None or self.after.elbo is None:
            return None
        return Gain.between(self.before.elbo, self.after.elbo)

    @property
    def log_marginal_gain(self) -> Gain | None:
        """Of log p(x), at the samples where it was computed for both models."""
        if self.before.log_marginal is None or self.after.log_marginal is None:
            return None
        return Gain.between(self.before.log_marginal, self.after.log_marginal)

    @property
    def verdict(self) -> str:
        if not self.steps:
            return "Nothing was changed: the diagnosis asks for nothing that can be carried out on the model."
        if not self.kept:
            return f"Nothing that was tried is better: the model stays as it is ({len(self.steps)} tried)."
        gain, marginal = self.gain, self.log_marginal_gain
        if gain is None:
            return f"The original model has no finite ELBO; that of the best model is {self._mean(self.after)}."
        change = f"{self._mean(self.before)} before, {self._mean(self.after)} after"
        found = f"Held-out ELBO: {gain} nats per sample more, {change}."
        if marginal is None:
            return found
        same = abs(marginal.value) < 1e-6 * abs(self._log_marginal())
        change = "the same" if same else f"{marginal} more"
        return f"{found} log p(x): {change}, at {self._points()} samples."

    def _mean(self, outcome: Outcome) -> str:
        return "unknown" if outcome.elbo is None else f"{float(outcome.elbo.mean()):.2f}"

    def _log_marginal(self) -> float:
        return math.nan if self.after.log_marginal is None else float(self.after.log_marginal.mean())

    def _points(self) -> int:
        return 0 if self.after.log_marginal is None else len(self.after.log_marginal)

    def summary(self) -> Table:
        """A row per step; prints as a table."""
        return Table([step.row() for step in self.steps], note=self.stopped)

    def content(self) -> dict[str, object]:
        gains = {"elbo_gain": self.gain, "log_marginal_gain": self.log_marginal_gain}
        return {
            "name": self.name,
            "verdict": self.verdict,
            "steps": [step.to_data() for step in self.steps],
            "stopped": self.stopped,
            "samples": self.sizes,
            "findings": [finding.to_data() for finding in self.findings],
            "skipped": self.skipped,
            **{name: None if gain is None else [gain.value, gain.half_width] for name, gain in gains.items()},
            **{f"{name}_elbo": None if one.elbo is None else float(one.elbo.mean()) for name, one in self._both()},
        }

    def _both(self) -> list[tuple[str, Outcome]]:
        return [("before", self.before), ("after", self.after)]

    def facts(self) -> list[tuple[str, str]]:
        """Single numbers with their labels, of the original and of the best model."""
        both = self.before, self.after
        rows = [
            ("ELBO", " → ".join(self._mean(one) for one in both)),
            ("KL", " → ".join(f"{one.kl:.2f}" for one in both)),
            ("latents in use", " → ".join(one.in_use for one in both)),
        ]
        values = [one.log_marginal for one in both if one.log_marginal is not None]
        if len(values) == 2:
            rows.insert(1, ("log p(x)", " → ".join(f"{float(value.mean()):.2f}" for value in values)))
        return rows + [(f"samples, {part}", str(count)) for part, count in self.sizes.items()]

    def figures(self) -> list[Drawing]:
        return [figures.drawing(*found) for found in _drawings(self)]

    def page(self) -> str:
        """The HTML page."""
        values = self.page_values()
        drawn = self.figures()
        own = {"drawings": [], "pictures": drawn, "steps": self.steps, "stopped": self.stopped}
        return render("improvement.html", **values | own)

    def __repr__(self) -> str:
        lines = [f"Improvement of {self.name}: {self.verdict}"]
        for step in self.steps:
            gain = "not measured" if step.gain is None else f"{step.gain} nats"
            lines.append(f"  {'kept' if step.kept else 'not kept'}: {step.title} ({step.reason}): {gain}. {step.why}")
            lines += [f"      {line}" for line in step.code.splitlines()] if step.kept else []
        lines += [f"  still found: {finding.title} ({finding.code})" for finding in self.findings]
        lines += [f"  {self.stopped}"]
        return "\n".join(lines + [f"  left out: {what} ({why})" for what, why in self.skipped.items()])


def improve(
    model: object,
    x_train: object,
    x_test: object,
    *,
    x_valid: object | None = None,
    name: str | None = None,
    budget: float = 120.0,
    out: str | Path | None = None,
    progress: Progress | None = to_stderr,
) -> Improvement:
    """Carry out the advice of a diagnosis, and measure what it gains on held-out samples.

    The model is diagnosed, and each intervention that a finding asks for is tried, cheapest first: closed forms, then
    what leaves the decoder as it is, then training of all weights. It is kept if the ELBO of the selection part rises
    by a 95 % interval. Then the changed model is diagnosed again, until nothing is found that could be carried out,
    nothing is kept, or the time is over. Ctrl-C ends it too, with what was reached. The given model stays as it is.

    Args:
        model: a member of a fit, a model from `vs.adapters`, or your own `LatentModel`. Of several models of the same
            data, the first is improved. Without visible weights, only closed forms are tried.
        x_train: samples that the model was trained on; three quarters fit parameters, one decides what is kept.
        x_test: samples that the model was not trained on. They decide nothing and are only measured.
        x_valid: samples that decide what is kept, in place of a quarter of `x_train`; best if they were not trained on.
        name: what the report calls the model.
        budget: seconds that this may take.
        out: a folder where steps are stored as they are finished; the same call continues there.
        progress: called with lines that say what is being done; None for silence.

    >>> from vaescope.adapters import from_callables
    >>> W, x = torch.tensor([[2.0], [1.0]]), torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
    >>> vae = from_callables(encode=lambda x: (x @ W / 6, 0 * x[:, :1] + 1 / 6), decode=lambda z: z @ W.T,
    ...                      latent_dim=1, precision=100.0)
    >>> found = improve(vae, x[:400], x[400:], progress=None)
    >>> found.kept[0].name, found.gain.low > 0
    ('variance', True)
    """
    clock = Budget(number("budget", budget, above=0.0, hint="it is in seconds"), progress, name="improve")
    clock.say("reading samples")
    given = as_models(model)[0]
    if given.auxiliary_dim or given.conditional:
        raise InputError("improve takes models without an auxiliary input, got one that is conditional or an iVAE.")
    _check(given)
    parts = _split(given, x_train, x_test, x_valid)
    search = _Search(RepairedModel(given, sample_shape=parts["test"].image_shape), parts, clock)
    with contextlib.nullcontext() if out is None else locked(Path(out)):
        search.open(None if out is None else Path(out))
        stopped = search.run()
    return search.report(name or given.name, stopped)


def _check(model: LatentModel) -> None:
    """Raise an error unless the ELBO of the model is known."""
    if not model.has_decoder:
        raise InputError("improve needs a model with a decoder; pass decode= to the adapter.")
    if not likelihood_is_known(model):
        raise InputError(UNKNOWN + ".")
    if not isinstance(model.prior, Normal) and model.prior_density is None:
        raise InputError(
            f"improve needs a normal prior, got {type(model.prior).__name__}; pass log_prior= and sample_prior=."
        )
    if model.posterior_family != "diagonal" and model.posterior_density is None:
        raise InputError(
            "encode returns the marginals of q(z|x), not q itself; pass sample= and log_q= to the adapter."
        )


def _split(model: LatentModel, x_train: object, x_test: object, x_valid: object | None) -> dict[str, ModelInputs]:
    train, test = read_samples(model, x_train), read_samples(model, x_test)
    if len(test) < 20 or len(train) < 40:
        raise InputError(f"improve needs 40 samples in x_train and 20 in x_test, got {len(train)} and {len(test)}.")
    if x_valid is not None:
        return {"fit": train, "select": read_samples(model, x_valid), "test": test}
    chosen = spread_rows(len(train), min(4 * Limits.samples, len(train) // 4))
    others = np.setdiff1d(np.arange(len(train)), chosen)
    return {"fit": train[others], "select": train[chosen], "test": test}


def _latents_after(change: Change, latents: list[int]) -> list[int]:
    return [latents[k] for k in change.kept] if isinstance(change, Removal) else latents


@dataclass
class _Search:
    """The steps made so far, and the best model."""

    model: LatentModel
    parts: dict[str, ModelInputs]
    clock: Budget
    steps: list[Step] = field(default_factory=list)
    values: dict[str, Tensor | None] = field(default_factory=dict)
    """ELBO per sample of the selection part and of the held-out samples."""
    draws: int = Limits.draws
    diagnosis: Diagnosis | None = None
    """Of the best model."""
    folder: Path | None = None
    interrupted: bool = False
    skipped: dict[str, str] = field(default_factory=dict)
    """Interventions that do not apply, and why."""

    def __post_init__(self) -> None:
        self.original = self.model
        self.latents = list(range(self.model.latent_dim))  # of the original that are left, so that draws stay theirs
        sample = encode_sample(self.model, self.parts["test"], None, 64)
        started = time.monotonic()
        _ = sample.decoded
        per_draw = (time.monotonic() - started) / len(sample) * Limits.samples
        while self.draws > 8 and self.draws * per_draw > Limits.seconds:
            self.draws //= 2
        self.noise = mirrored_noise(Limits.samples, self.model.latent_dim, self.draws)
        attempts = Attempts()
        self.values = {part: attempts(part, partial(self._elbo, self.model, part)) for part in ("select", "test")}
        self.first = dict(self.values)
        self.unmeasured = attempts.skipped.get("test", "")

    def _elbo(self, model: LatentModel, part: str, latents: list[int] | None = None) -> Tensor:
        return elbo_values(model, self.parts[part], self.noise[:, :, self.latents if latents is None else latents])

    # the folder -------------------------------------------------------------------------------

    def open(self, folder: Path | None) -> None:
        """Take up the steps that were stored there."""
        if folder is None:
            return
        self.folder, key = folder, self._fingerprint()
        if not exists(folder / Improvement.file):
            write_json(folder / Improvement.file, {"fingerprint": key, "steps": []})
            return
        stored = read_json(folder / Improvement.file)
        if not isinstance(stored, dict) or stored.get("fingerprint") != key:
            raise RunError(f"{folder} belongs to another model or other samples; choose another out=.")
        for index, data in enumerate(stored["steps"]):
            change = None
            if data.pop("stored"):
                tensors, text = read_tensors(folder / f"step-{index}.safetensors", needs_checksum=True)
                change = restored(text["kind"], data.pop("numbers"), tensors)
            gains = {name: None if data[name] is None else Gain(*data[name]) for name in ("gain", "selected")}
            step = Step(**data | gains, change=change)
            self.steps.append(step)
            if step.kept and change is not None:
                self.model, self.latents = change.apply(self.model), _latents_after(change, self.latents)
        if any(step.kept for step in self.steps):
            self.values = {part: self._elbo(self.model, part) for part in ("select", "test")}

    def _store(self) -> None:
        if self.folder is None:
            return
        steps = []
        for index, step in enumerate(self.steps):
            change = step.change if step.kept else None
            file = self.folder / f"step-{index}.safetensors"
            if change is not None and not exists(file):
                tensors = {key: value.clone() for key, value in change.tensors().items()}
                write_tensors(file, tensors, {"kind": type(change).__name__})
            numbers = {} if change is None else {"numbers": change.numbers()}
            steps.append(step.to_data() | {"stored": change is not None} | numbers)
        write_json(self.folder / Improvement.file, {"fingerprint": self._fingerprint(), "steps": steps})

    def _fingerprint(self) -> str:
        """Of the original model's codes and outputs, and of the samples."""
        digest = hashlib.sha256()
        for part in ("fit", "select", "test"):
            sample = encode_sample(self.original, self.parts[part], None, 200)
            digest.update(str(len(self.parts[part])).encode())
            for value in (
                sample.x,
                sample.mean,
                sample.variance,
                sample.decoded if self.original.has_decoder else sample.mean,
            ):
                digest.update(value.detach().double().cpu().numpy().tobytes())
        spec = self.original.spec
        digest.update(repr((spec.latent_dim, spec.precision, spec.likelihood, spec.beta)).encode())
        return digest.hexdigest()[:32]

    # steps ------------------------------------------------------------------------------------

    def run(self) -> str:
        """Why it ended."""
        try:
            return self._rounds()
        except KeyboardInterrupt:
            self.interrupted = True
            return "Interrupted: these are the steps that were finished."

    def _rounds(self) -> str:
        first = max((step.round for step in self.steps), default=-1) + 1
        for count in range(first, first + 6):
            if self.clock.left < 0.1 * self.clock.seconds:
                break
            self.clock.say(f"diagnosing{' again' if count else ''}, {self.clock.left:.0f} s left")
            self._diagnose()
            todo = [(one, code) for one, code in self._asked()]
            if not todo:
                return "Nothing is left that a finding asks for and that was not tried."
            kept = False
            for one, code in todo:
                if one.name == "latents" and kept:
                    continue  # they may be in use now, as the next diagnosis will say
                if self.clock.left < 0.15 * self.clock.seconds:
                    return f"The time is over: pass a budget above {self.clock.seconds:g} to go on."
                step = self._try(one, code, count)
                if step is not None:
                    self.steps.append(step)
                    self._store()
                    kept |= step.kept
                if self.interrupted:
                    return "Interrupted: these are the steps that were finished."
            if not kept:
                return "Nothing more that the findings ask for was better."
        return f"The time is over: pass a budget above {self.clock.seconds:g} to go on."

    def _diagnose(self) -> None:
        seconds = max(1.0, min(10.0, 0.12 * self.clock.left))
        train, select = self.parts["fit"], self.parts["select"]
        self.diagnosis = diagnose(self.model, select, train=train.x, budget=seconds, progress=None)

    def _asked(self) -> Iterator[tuple[Intervention, str]]:
        """Interventions that were not rejected, kept at most once before, and tried after those that they need."""
        assert self.diagnosis is not None
        rejected = {step.name for step in self.steps if not step.kept}
        done = Counter(step.name for step in self.steps if step.kept)
        for one, code in asked_for(self.diagnosis):
            again = code == ALWAYS and any(step.name == one.name for step in self.steps)
            if one.name not in rejected and done[one.name] < 2 and (not one.after or done[one.after]) and not again:
                yield one, code

    def _try(self, one: Intervention, code: str, count: int) -> Step | None:
        """The intervention, fitted and measured; None if it does not apply, with the reason in `skipped`."""
        assert self.diagnosis is not None
        seconds = max(1.0, one.share * (self.clock.left - 0.12 * self.clock.seconds))
        title = one.title[0].lower() + one.title[1:]
        self.clock.say(f"{title} ({code}), {self.clock.left:.0f} s left")
        started = time.monotonic()
        setting = Setting(
            self.model,
            self.diagnosis,
            self.parts["fit"],
            self.parts["select"],
            seconds,
            lambda line: self.clock.say(f"{title}: {line}"),
        )
        step = Step(one.name, one.title, code, count, False, "", None, None, 0.0, "")
        attempts = Attempts()
        change = attempts("fit", lambda: one.fitted(setting))
        self.interrupted |= setting.interrupted
        if change is None:
            self.skipped[title] = attempts.skipped["fit"]
            return None
        self.skipped.pop(title, None)
        changed, latents = change.apply(self.model), _latents_after(change, self.latents)
        found = {part: attempts(part, partial(self._elbo, changed, part, latents)) for part in ("select", "test")}
        gains = {part: self._gain(part, values) for part, values in found.items()}
        kept, why = self._decide(one, found["select"], gains["select"])
        step = replace(
            step,
            kept=kept,
            why=why if found["select"] is not None else f"Its ELBO cannot be computed: {attempts.skipped['select']}.",
            gain=gains["test"],
            selected=gains["select"],
            seconds=time.monotonic() - started,
            code=change.code(self.model),
            change=change,
        )
        if kept:
            self.model, self.values, self.latents = changed, found, latents
        return step

    def _gain(self, part: str, values: Tensor | None) -> Gain | None:
        before = self.values[part]
        return None if values is None or before is None else Gain.between(before, values)

    def _decide(self, one: Intervention, values: Tensor | None, gain: Gain | None) -> tuple[bool, str]:
        """Whether a step is kept, from the selection part alone."""
        if values is None:
            return False, ""
        if gain is None:
            return True, "Without it the ELBO is not finite."
        if one.neutral:
            kept = gain.low > -Limits.same
            return kept, f"The ELBO of the selection part {'stays the same' if kept else 'falls'}: {gain} nats."
        return gain.low > 0 and gain.value > Limits.least, f"Gain on the selection part: {gain} nats."

    # the report -------------------------------------------------------------------------------

    def report(self, name: str, stopped: str) -> Improvement:
        """Both models measured on the held-out samples."""
        self.clock.say("measuring the original and the best model on held-out samples")
        skipped = {"ELBO of the original": self.unmeasured} if self.unmeasured else {}
        kept = any(step.kept for step in self.steps)
        before = self._outcome(self.original, self.first["test"])
        after = self._outcome(self.model, self.values["test"]) if kept else before
        attempts = Attempts(self.skipped | skipped)
        if kept and not self.interrupted:
            found = attempts("log p(x)", lambda: self._log_marginals(before, after))
            if found is not None:
                before, after = found
            if self.clock.left > 1:
                attempts("diagnosis of the best model", self._diagnose)
        findings = [] if self.diagnosis is None else self.diagnosis.findings
        sizes = {
            "fitted": len(self.parts["fit"]),
            "selection": len(self.parts["select"]),
            "held out": len(self.parts["test"]),
        }
        return Improvement(
            name, self.model, self.original, self.steps, findings, before, after, stopped, sizes, attempts.skipped
        )

    def _outcome(self, model: LatentModel, elbo: Tensor | None) -> Outcome:
        attempts = Attempts()
        sample = attempts("sample", lambda: encode_sample(model, self.parts["test"], None, Limits.samples))
        if sample is None or not bool((sample.variance > 0).all()):
            return Outcome(elbo, sample, "unknown", float("nan"))
        regime = regime_of([sample])
        return Outcome(elbo, sample, f"{len(regime.used)} of {regime.latent_dim}", float(np.sum(regime.kl)))

    def _log_marginals(self, before: Outcome, after: Outcome) -> tuple[Outcome, Outcome]:
        """log p(x) of both models at the same samples, as many as there is time for."""
        pairs = [(one, *_integrated(one)) for one in (before, after)]
        costs = [
            seconds_per_decode(sample) * (400 if given_by_functions(sample) else decodes_per_point(sample, used))
            for _, sample, used in pairs
        ]
        points = 64
        while points * sum(costs) > max(1.0, 0.7 * self.clock.left):
            points //= 2
        if points < 8:
            raise Skipped("there was no time for it; pass a larger budget")
        first, second = (_with_log_marginal(one, sample, used, points) for one, sample, used in pairs)
        return first, second


def _integrated(outcome: Outcome) -> tuple[EncodedSample, list[int]]:
    """The sample, and the latents over which log p(x) is integrated."""
    if outcome.elbo is None or outcome.sample is None:
        raise Skipped("the ELBO of the original model is not known")
    regime = regime_of([outcome.sample])
    used = regime.used or regime.passive[:1]
    if not given_by_functions(outcome.sample):
        check_gap(outcome.sample, used)
    return outcome.sample, used


def _with_log_marginal(outcome: Outcome, sample: EncodedSample, used: list[int], points: int) -> Outcome:
    if given_by_functions(sample):
        assert outcome.elbo is not None
        rows = np.random.default_rng(0).permutation(len(sample))[:points]
        estimate = estimate_marginal(sample, Budget(60.0))
        count = min(points, len(estimate.gap))
        values = outcome.elbo[torch.from_numpy(rows[:count])] + estimate.gap[:count]
        how = f"importance sampling, Pareto k {estimate.pareto_k:.2f}"
        return replace(outcome, log_marginal=values, method=how)
    gap = gap_at(sample, used, points)
    how = "quadrature" if len(used) <= max(QUADRATURE_ORDERS) else f"sampling, Pareto k {gap.pareto_k or 0:.2f}"
    return replace(outcome, log_marginal=gap.log_marginal, method=how)


# figures --------------------------------------------------------------------------------------------


def _drawings(found: Improvement) -> Iterator[tuple[str, Figure, str]]:
    if any(step.gain is not None for step in found.steps):
        caption = (
            "What each step gains on held-out samples, in nats of ELBO per sample, with 95 % intervals: kept steps in "
            "green, one after the other; others in grey, from where they were tried."
        )
        yield "waterfall", waterfall(found), caption
    samples = [outcome.sample for outcome in (found.before, found.after)]
    if all(sample is not None and can_be_drawn(sample) for sample in samples):
        both = [sample for sample in samples if sample is not None]
        if image_shape(both[0]) is not None:
            yield (
                "pictures",
                _pictures(both),
                "Held-out samples, their reconstructions, and draws from the prior, decoded.",
            )
        else:
            caption = "Held-out samples, and samples of each model, along the two principal axes of the held-out ones."
            yield "samples", _clouds(both), caption


def waterfall(found: Improvement) -> Figure:
    """Gains as bars; kept ones start where the one before ended."""
    steps = [step for step in found.steps if step.gain is not None]
    start = 0.0 if found.before.elbo is None else float(found.before.elbo.mean())
    figure, (axis,) = figures.grid_of_panels(1, 1, width=9.0, height=1.2 + 0.42 * (len(steps) + 2))
    level, labels = start, ["before"]
    axis.plot([start], [0], "o", color="#5d6b78")
    for row, step in enumerate(steps, start=1):
        assert step.gain is not None
        colour = "#2c8a5b" if step.kept else "#c3cad1"
        axis.barh(row, step.gain.value, left=level, color=colour, height=0.6)
        end = level + step.gain.value
        axis.errorbar(end, row, xerr=step.gain.half_width, color="#1c2630", capsize=3, lw=1.2)
        labels.append(f"{step.title}\n{step.gain} nats")
        level = end if step.kept else level
    axis.plot([level], [len(steps) + 1], "o", color="#2c8a5b")
    axis.axvline(start, color="#6b7680", lw=0.8, ls=":")
    axis.set_yticks(range(len(steps) + 2), [*labels, "after"], fontsize=9)
    axis.set_ylim(len(steps) + 1.6, -0.6)
    axis.margins(x=0.08)
    axis.set_xlabel("ELBO of held-out samples, nats per sample")
    axis.grid(visible=True, axis="x", alpha=0.4)
    return figure


@torch.no_grad()
def _pictures(samples: Sequence[EncodedSample]) -> Figure:
    subsets, count = [sample.random_subset(10) for sample in samples], 10
    count = len(subsets[0])
    x = subsets[0].observations
    rows = {"x": x}
    for name, subset in zip(("before", "after"), subsets, strict=True):
        rows[f"rebuilt, {name}"] = subset.decoded.double()
    for name, subset in zip(("before", "after"), subsets, strict=True):
        rows[f"prior, {name}"] = subset.decode(subset.draw_prior("pictures")).double()
    shape = image_shape(samples[0])
    assert shape is not None
    figure, axes = figures.grid_of_panels(len(rows), count, width=1.0, height=1.0)
    limits = float(x.min()), float(x.max())
    for row, (name, values) in enumerate(rows.items()):
        draw_images(axes[row * count : (row + 1) * count], values, shape, label=name, limits=limits)
    return figure


@torch.no_grad()
def _clouds(samples: Sequence[EncodedSample]) -> Figure:
    """Principal axes of x; one column alone is drawn against its rank."""
    x = samples[0].observations
    centre = x.mean(0)
    axes2 = torch.linalg.svd(x - centre, full_matrices=False)[2][:2].mT
    clouds = {"held-out samples": x}
    for name, sample in zip(("samples, before", "samples, after"), samples, strict=True):
        generator = torch.Generator().manual_seed(0)
        draw = partial(draw_observations, sample.model, sample.draw_prior("clouds"), generator)
        drawn = Attempts()(name, draw)
        if drawn is not None:
            clouds[name] = drawn.flatten(1).double()
    figure, panels = figures.grid_of_panels(1, len(clouds), width=3.4, height=3.2)
    points = {name: ((values - centre) @ axes2).numpy() for name, values in clouds.items()}
    low, high = points["held-out samples"].min(0), points["held-out samples"].max(0)
    margin = 0.25 * (high - low) + 1e-9
    for axis, (name, values) in zip(panels, points.items(), strict=True):
        second = values[:, 1] if values.shape[1] > 1 else np.zeros(len(values))
        axis.plot(values[:, 0], second, ".", ms=3, alpha=0.5)
        axis.set_xlim(low[0] - margin[0], high[0] + margin[0])
        if values.shape[1] > 1:
            axis.set_ylim(low[1] - margin[1], high[1] + margin[1])
        axis.set_title(name, fontsize=10)
    return figure
