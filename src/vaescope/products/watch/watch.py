"""`vs.Watch`: measurements of a model while anybody's loop trains it, and findings before the run is lost."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from markupsafe import Markup, escape
from torch import Tensor

from vaescope.analysis.models import as_models, with_normal_prior
from vaescope.core import checks
from vaescope.core.budget import to_stderr
from vaescope.core.errors import InputError, RunError
from vaescope.core.tables import Table
from vaescope.models import Member
from vaescope.products.watch.probe import Measured, Probe, Weights
from vaescope.products.watch.row import EarlyFinding, LatentState, Row
from vaescope.products.watch.rules import THRESHOLDS, Watched, mean_change, new_findings
from vaescope.protocol import LatentModel, ModelSpec, WrappedModel
from vaescope.report.page import COLOURS, number, render
from vaescope.report.report import Report
from vaescope.report.wording import interval
from vaescope.runs.files import write_text
from vaescope.training.progress import Observer

WIDTH, HEIGHT = 520, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 30, 34


@dataclass(frozen=True)
class Line:
    """Values at steps; those that are not finite are left out, and at most about 300 are drawn."""

    label: str
    steps: Sequence[int]
    values: Sequence[float]
    colour: str = COLOURS[0]

    @property
    def points(self) -> list[tuple[int, float]]:
        found = [(s, v) for s, v in zip(self.steps, self.values, strict=True) if math.isfinite(v)]
        stride = max(1, len(found) // 300)
        return found[::-1][::stride][::-1]  # the last point is always drawn


def chart(title: str, lines: Sequence[Line], *, marks: Sequence[int] = (), focus: bool = False) -> Markup:
    """An SVG chart.

    Args:
        title: with units.
        lines: those with the same label share one entry of the legend.
        marks: steps with findings, drawn as vertical lines.
        focus: leave the lowest tenth of the values out of the range, so that a poor start does not hide the rest.
    """
    drawn = [line.points for line in lines]
    points = [point for line in drawn for point in line]
    if not points:
        return Markup("")
    low, high = _limits([v for _, v in points], focus)
    first, last = min(s for s, _ in points), max(s for s, _ in points)

    def x(step: int | float) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / max(last - first, 1):.1f}"

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - min(max(value, low), high)) / (high - low)

    parts = [f'<text x="{LEFT}" y="16" class="title">{escape(title)}</text>']
    for value in _ticks(low, high):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="grid"/>')
        label = f'y="{y(value) + 4:.1f}" text-anchor="end" class="tick">{_short(value)}</text>'
        parts.append(f'<text x="{LEFT - 6}" {label}')
    for step, anchor in ((first, "start"), (last, "end")):
        label = f'text-anchor="{anchor}" class="tick">step {step:,}</text>'
        parts.append(f'<text x="{x(step)}" y="{HEIGHT - 12}" {label}')
    mark = '<line x1="{0}" x2="{0}" y1="{1}" y2="{2}" class="mark"/>'
    parts += [mark.format(x(step), TOP, HEIGHT - BOTTOM) for step in marks if first <= step <= last]
    for line, own in zip(lines, drawn, strict=True):
        if len(own) == 1:
            ((step, value),) = own
            parts.append(f'<circle cx="{x(step)}" cy="{y(value):.1f}" r="3" fill="{line.colour}"/>')
        else:
            path = " ".join(f"{x(s)},{y(v):.1f}" for s, v in own)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="1.8"/>')
    right = float(WIDTH - RIGHT)  # labels at the right of the title, in the colours of their lines
    for name, colour in reversed({line.label: line.colour for line in lines if line.label}.items()):
        label = f'text-anchor="end" fill="{colour}" class="key">{escape(name)}</text>'
        parts.append(f'<text x="{right:.0f}" y="16" {label}')
        right -= 7.0 * len(name) + 14
    return Markup(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>')


def _limits(values: list[float], focus: bool) -> tuple[float, float]:
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10] if focus else ordered[0], ordered[-1]
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin if low < 0 or low - margin > 0 else 0.0, high + margin


def _ticks(low: float, high: float) -> list[float]:
    """About four round numbers."""
    raw = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= raw)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _short(value: float) -> str:
    """A tick with few characters."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}"
    return f"{value:.1e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def html(watch: Watch, template: str, *, refresh: int | None = None) -> str:
    """The page (`watch.html`), or findings and charts without a page around them (`watch_fragment.html`).

    Args:
        watch: what is shown.
        template: of the page or of the fragment.
        refresh: seconds after which a browser reloads the page.
    """
    return render(
        template,
        name=watch.name,
        refresh=refresh,
        rows=len(watch.rows),
        findings=watch.findings[::-1],
        verdict=watch.verdict,
        facts=facts(watch),
        charts=charts(watch),
    )


def facts(watch: Watch) -> list[tuple[str, str]]:
    """The last row, with labels."""
    if not watch.rows:
        return []
    now, trend = watch.rows[-1], watch.trend()
    learning = None
    if trend is not None:
        sign = "yes" if trend.improving else "no"
        learning = f"{sign}: {interval(trend.change, trend.stderr, sign='+')} nats since step {trend.since:,}"
    shown: list[tuple[str, object]] = [
        ("Step", f"{now.step:,}"),
        ("ELBO", now.elbo),
        ("Validation ELBO", None if now.validation is None else now.validation.elbo),
        ("Still learning?", learning),
        ("KL", now.bound.kl),
        ("In use", f"{now.used} of {len(now.kl)} latents"),
        ("β", now.beta),
        ("σ", now.sigma),
        ("β / γ²", now.effective_beta),
        ("Explained variance", now.bound.explained),
        ("c_IMA", now.latents.contrast),
        ("Log-variance", "{:.3g} to {:.3g}".format(*now.latents.log_variance)),
    ]
    return [(label, number(value)) for label, value in shown if value is not None]


def charts(watch: Watch) -> list[Markup]:
    """What is drawn over steps, with marks at findings."""
    rows = watch.rows
    marks = sorted({f.step for f in watch.findings if f.severity != "note"})
    steps = [row.step for row in rows]

    def line(label: str, value: Callable[[Row], float | None], colour: int = 0) -> Line:
        values = [math.nan if (found := value(row)) is None else float(found) for row in rows]
        return Line(label, steps, values, COLOURS[colour % len(COLOURS)])

    def validation(row: Row) -> float | None:
        return None if row.validation is None else row.validation.elbo

    def latent_kl(latent: int) -> Callable[[Row], float]:
        return lambda row: row.kl[latent]

    latents = range(min(64, len(rows[-1].kl))) if rows else range(0)
    lines = {
        "ELBO, nats per sample": [line("training", lambda r: r.elbo), line("validation", validation, 1)],
        "KL of each latent, nats": [line("", latent_kl(k), k) for k in latents],
        "Latents in use": [line("", lambda r: r.used, 2)],
        "σ of the decoder": [line("", lambda r: r.sigma, 3)],
        "β": [line("", lambda r: r.beta, 4)] if len({row.beta for row in rows}) > 1 else [],
        "Log-variance of posteriors": [
            line("largest", lambda r: r.latents.log_variance[1], 1),
            line("smallest", lambda r: r.latents.log_variance[0]),
        ],
        "Gradient norm": [line("", lambda r: None if r.weights is None else r.weights.gradient_norm, 5)],
        "c_IMA of the decoder, nats": [line("", lambda r: r.latents.contrast, 3)],
    }
    drawn = [chart(title, shown, marks=marks, focus=title.startswith("ELBO")) for title, shown in lines.items()]
    return [one for one in drawn if one]


logger = logging.getLogger("vaescope.watch")


class Clock:
    """Decides which calls of `Watch.update` measure.

    Args:
        every: steps between two measurements; None for as many as `overhead` allows.
        overhead: the share of the time since the first call that measurements may take. The first few, after 1, 2, 4,
            … and 64 calls, come whatever they cost; they are counted, and later ones wait for longer.
    """

    def __init__(self, every: int | None, overhead: float) -> None:
        self.every, self.overhead = every, overhead
        self.spent = 0.0
        self._calls = 0
        self._last: int | None = None
        self._started: float | None = None
        self._costs: dict[str, float] = {}
        self._totals: dict[str, float] = {}

    def due(self, step: int) -> bool:
        """Whether this call measures."""
        self._started = time.perf_counter() if self._started is None else self._started
        self._calls += 1
        if self.every is not None:
            return self._last is None or step - self._last >= self.every
        early = self._calls <= 64 and self._calls & (self._calls - 1) == 0
        return early or self.affords("row")

    def affords(self, what: str) -> bool:
        """Whether another measurement of this kind, at the cost of the last one, is within the share.

        Rows may take all of the time for measurements; validation, derivatives and pages a quarter each.
        """
        if self._started is None:
            return True
        allowed, cost = self.overhead * self.elapsed, self._costs.get(what, 0.0)
        own = self._totals.get(what, 0.0) + cost
        return self.spent + cost <= allowed and own <= (1.0 if what == "row" else 0.25) * allowed

    def measured(self, step: int) -> None:
        self._last = step

    def charge(self, what: str, seconds: float) -> None:
        """Count the time that a measurement took."""
        self._costs[what] = seconds
        self._totals[what] = self._totals.get(what, 0.0) + seconds
        self.spent += seconds

    @property
    def elapsed(self) -> float:
        return 0.0 if self._started is None else time.perf_counter() - self._started


class LiveLine:
    """Shows the last row in a terminal; findings are printed anywhere, each once.

    Args:
        name: of the model.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._open = False

    def __call__(self, row: Row) -> None:
        line, *findings = str(row).split("\n")
        self._open = sys.stderr.isatty()
        erase = "\r\x1b[2K" if self._open else ""
        for finding in findings:
            to_stderr(f"{erase}{self.name}, step {row.step}: {finding.strip()}")
        if self._open:
            to_stderr(erase + f"{self.name}: {line}"[:160], end="")

    def close(self) -> None:
        if self._open:
            to_stderr("")
            self._open = False


OVERHEAD = 0.01  # from outside up to twice that if steps take less than a millisecond: every call takes microseconds
RowLogger = Callable[[Row], object]
Current = float | Callable[[], float]
"""A number, or a function that returns its present value."""


@dataclass(frozen=True)
class Trend:
    """How much the ELBO has changed lately."""

    change: float
    """Mean change per sample, in nats."""
    stderr: float
    since: int
    """The step it is compared with."""

    @property
    def improving(self) -> bool:
        """Whether it has risen by more than two standard errors."""
        return self.change > 2 * self.stderr


class Watch(Report):
    """Measure a model while it is trained.

    Call `update` after every step of the optimiser, before gradients are set to zero. Most calls return at once: rows
    are measured as often as 1 % of the time allows. Neither weights nor random numbers of the training change.

    Args:
        model: a `LatentModel`, or what `vs.adapters` makes of functions or networks, with the weights in training.
        x: training samples to measure it on.
        every: steps between two rows; by default as few as `overhead` allows.
        validation: samples that are not trained on, to see whether training and validation move apart.
        auxiliary: the auxiliary input of an iVAE, one per row of x.
        validation_auxiliary: the same for `validation`.
        beta: the present weight of the KL, or a function that returns it; the model's own by default.
        precision: γ² = 1 / σ² of the decoder, or a function that returns it; the model's own by default.
        parameters: the network or tensors in training; by default the networks that the model consists of.
        page: an HTML file that is written again with new rows; open it in a browser, where it reloads itself.
        loggers: called with every row, such as `vs.jobs.tracking.live("tensorboard:runs")`.
        show: print rows to the terminal, and findings in any case; False for silence.
        samples: rows of x that are measured, at most.
        overhead: the share of time that measurements may take.

    >>> x = torch.randn(200, 5)
    >>> encoder, decoder = torch.nn.Linear(5, 4), torch.nn.Linear(2, 5)
    >>> from vaescope.adapters import from_modules
    >>> watch = Watch(from_modules(encoder, decoder, latent_dim=2, precision=1.0), x, show=False)
    >>> row = watch.update(0)
    >>> row.step, len(row.kl), watch.findings
    (0, 2, [])
    """

    name: str
    findings: list[EarlyFinding]

    def __init__(
        self,
        model: object,
        x: object,
        *,
        every: int | None = None,
        validation: object | None = None,
        auxiliary: object | None = None,
        validation_auxiliary: object | None = None,
        beta: Current | None = None,
        precision: Current | None = None,
        parameters: object | None = None,
        page: str | Path | None = None,
        loggers: Sequence[RowLogger] = (),
        show: bool = True,
        samples: int = 256,
        overhead: float = OVERHEAD,
    ) -> None:
        checks.integer("samples", samples, minimum=2)
        if every is not None:
            checks.integer("every", every)
        own = as_models(model)[0]
        self.name = own.name
        self.rows: list[Row] = []
        self.findings = []
        self._model = _CurrentModel(with_normal_prior(own), beta, precision)
        self._probe = Probe(own, x, auxiliary, count=samples)
        if validation is None and validation_auxiliary is not None:
            raise InputError("validation_auxiliary belongs to validation samples; pass validation= as well.")
        if validation is not None and validation_auxiliary is None and own.auxiliary_dim:
            raise InputError("this model is conditional: pass validation_auxiliary=, one per row of validation.")
        self._validation = (
            None
            if validation is None
            else Probe(own, validation, validation_auxiliary, count=samples, name="validation")
        )
        trained = own.trained_networks() if parameters is None else parameters
        self._weights = Weights(trained) if trained != () else None
        self._clock = Clock(every, checks.number("overhead", overhead, above=0.0))
        self._loggers: list[RowLogger] = [*loggers, *([LiveLine(self.name)] if show else [])]
        self._page_file = None if page is None else Path(page)
        self._created = time.perf_counter()
        self._extra = 0.0
        """Seconds of the present row that are charged on their own."""

    # measuring --------------------------------------------------------------------------------

    def update(self, step: int, *, loss: float | Tensor | None = None) -> Row | None:
        """Measure, if it is time to; returns the new row, or None.

        Args:
            step: of the optimiser, rising.
            loss: of this step, if at hand: it is recorded, and a loss that is not finite is reported at once.
        """
        begin = time.perf_counter()
        if not self._clock.due(step) and not self._is_urgent(step, loss):
            self._clock.charge("call", time.perf_counter() - begin)
            return None
        with _same_random_numbers():
            row = self._measured(step, None if loss is None else _scalar(loss))
        self._add(row)
        self._clock.measured(step)
        self._clock.charge("row", time.perf_counter() - begin - self._extra)
        self._extra = 0.0
        if self._page_file is not None and (len(self.rows) == 1 or self._clock.affords("page")):
            with self._charged("page"):
                self.to_html(self._page_file, refresh=5)
            self._extra = 0.0
        return self.rows[-1]

    def _is_urgent(self, step: int, loss: float | Tensor | None) -> bool:
        """Whether something cannot wait: a step that changed the weights beyond reason, a loss that is not finite."""
        change = None if self._weights is None else self._weights.compare(step)
        if change is not None and not change <= THRESHOLDS.change and not self._knows("learning-rate"):
            return True
        if loss is None or (isinstance(loss, Tensor) and loss.device.type != "cpu"):
            return False  # a number on another device is not waited for
        return not math.isfinite(_scalar(loss)) and not self._knows("not-finite")

    def _knows(self, code: str) -> bool:
        return any(finding.code == code for finding in self.findings)

    def _measured(self, step: int, loss: float | None) -> Row:
        if self._weights is not None:
            self._weights.compare(step)
        found = self._probe.measure(self._model)
        weights, broken = (None, ()) if self._weights is None else self._weights.state()
        if self._weights is not None:
            self._weights.remember(step)
        beta = self._model.beta
        latents, validation = self._with_decoder(found, beta), None
        if self._validation is not None and self._has_time("validation"):
            with self._charged("validation"):
                validation = self._validation.measure(self._model).bound
        lost = ("loss",) if loss is not None and not math.isfinite(loss) else ()
        return Row(
            step,
            time.perf_counter() - self._created,
            found.bound,
            latents,
            beta,
            found.precision,
            validation,
            weights,
            loss,
            (*found.not_finite, *broken, *lost),
        )

    def _with_decoder(self, found: Measured, beta: float) -> LatentState:
        """The latents with what needs derivatives of the decoder, if there is time for it."""
        sample, latents = found.sample, found.latents
        if sample is None or found.not_finite or not self._has_time("contrast"):
            return latents
        used = [k for k, kind in enumerate(latents.kind) if kind != "passive"]
        with self._charged("contrast"):
            return replace(
                latents,
                contrast=self._probe.contrast(sample, used),
                encoder_gap=self._probe.encoder_gap(sample, beta, found.precision),
            )

    def _has_time(self, what: str) -> bool:
        """Always with an explicit interval; otherwise within its share of the overhead."""
        return self._clock.every is not None or self._clock.affords(what)

    @contextmanager
    def _charged(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self._extra += seconds
        self._clock.charge(what, seconds)

    def _add(self, row: Row) -> None:
        if len(self.rows) >= 2000:
            self.rows = self.rows[:1000:2] + self.rows[1000:]
        watched = Watched([*self.rows, row], self._probe.facts, self._model.likelihood)
        new = tuple(EarlyFinding(**f.to_data(), step=row.step) for f in new_findings(watched, self.findings))
        self.findings += new
        self.rows.append(replace(row, findings=new))
        for finding in new:
            level = logging.INFO if finding.severity == "note" else logging.WARNING
            logger.log(level, "%s, step %d: %s %s", self.name, row.step, finding.title, finding.evidence)
        for log in self._loggers:
            log(self.rows[-1])

    # results ----------------------------------------------------------------------------------

    @property
    def verdict(self) -> str:
        """The first warning or error, in a sentence."""
        if not self.rows:
            return "No rows yet."
        return next((f.title for f in self.findings if f.severity != "note"), "No issues found so far.")

    def summary(self) -> Table:
        """A row per measurement: its step and all of its numbers that are finite in any row."""
        numbers = [row.numbers() for row in self.rows]
        names = dict.fromkeys(name for row in numbers for name in row)
        found = zip(self.rows, numbers, strict=True)
        return Table({"step": row.step, **{name: own.get(name) for name in names}} for row, own in found)

    def content(self) -> dict[str, object]:
        """Everything that `to_json` writes: rows and findings."""
        return {"name": self.name, "rows": list(self.summary()), "findings": [f.to_data() for f in self.findings]}

    def page(self) -> str:
        """The HTML page."""
        return html(self, "watch.html")

    @property
    def overhead(self) -> float:
        """The share of the time since the first update that measurements have taken."""
        return self._clock.spent / self._clock.elapsed if self._clock.elapsed else 0.0

    def trend(self) -> Trend | None:
        """The change of the ELBO (of validation samples if there are any) over the last third of the steps.

        Samples and noise are the same in both rows, so the standard error is that of paired differences.
        """
        held = [(row.step, row.validation) for row in self.rows if row.validation is not None]
        bounds = held if len(held) > 1 else [(row.step, row.bound) for row in self.rows]
        earlier = [(step, bound) for step, bound in bounds if step <= bounds[-1][0] * 2 / 3]
        if not earlier:
            return None
        found = mean_change(earlier[-1][1].per_sample, bounds[-1][1].per_sample)
        return None if found is None or not math.isfinite(found[0]) else Trend(*found, earlier[-1][0])

    def to_html(self, path: str | Path, *, refresh: int | None = None) -> Path:
        """Write the page: one file that loads nothing from the network.

        Args:
            path: the file.
            refresh: seconds after which a browser reloads it.
        """
        write_text(Path(path), html(self, "watch.html", refresh=refresh))
        return Path(path)

    def close(self) -> None:
        """Write the page for the last time, without reloading, and close loggers."""
        if self._page_file is not None:
            self.to_html(self._page_file)
        for log in self._loggers:
            if isinstance(log, Closable):
                log.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        return html(self, "watch_fragment.html")

    def __repr__(self) -> str:
        last = str(replace(self.rows[-1], findings=())) if self.rows else "no rows yet"
        return "\n".join([f"Watch of {self.name}: {last}", *(f"  step {f.step}: {f.title}" for f in self.findings)])


@runtime_checkable
class Closable(Protocol):
    """A logger that has something to close."""

    def close(self) -> None: ...


class _CurrentModel(WrappedModel):
    """The model with the present β and precision."""

    def __init__(self, model: LatentModel, beta: Current | None, precision: Current | None) -> None:
        self.model, self._beta, self._precision = model, beta, precision

    def build_spec(self) -> ModelSpec:
        spec = self.model.spec
        beta = spec.beta if self._beta is None else _value("beta", self._beta)
        precision = spec.precision if self._precision is None else _value("precision", self._precision)
        return replace(spec, beta=beta, precision=precision)


def _scalar(loss: float | Tensor) -> float:
    return float(loss.detach() if isinstance(loss, Tensor) else loss)


def _value(name: str, current: Current) -> float:
    return float(current() if callable(current) else checks.number(name, current, minimum=0.0))


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Restore the global random state of the CPU afterwards, for models that draw when they are called."""
    state = torch.random.get_rng_state()
    try:
        yield
    finally:
        torch.random.set_rng_state(state)


class _Latest(WrappedModel):
    """A member as it is now."""

    def __init__(self, member: Member) -> None:
        self.model = member


class WatchedMembers(Observer):
    """An observer of `vs.fit`: a `Watch` of each of the first 32 members, all within one share of the training time.

    Args:
        logger: makes the logger of a member from its name, such as `vs.jobs.tracking.live_members(...)`.
        message: called with a line per finding.
        overhead: the share of time that all measurements together may take.

    >>> import torch, vaescope as vs
    >>> observer = WatchedMembers()
    >>> fitted = vs.fit(torch.randn(100, 3), latent_dim=2, epochs=2, observer=observer)
    >>> list(observer.watches)
    ['precision=1_beta=1_seed=0']
    """

    def __init__(
        self,
        logger: Callable[[str], RowLogger] | None = None,
        *,
        message: Callable[[str], object] | None = None,
        overhead: float = OVERHEAD,
    ) -> None:
        self.watches: dict[str, Watch] = {}
        self._logger, self._message = logger, message or (lambda _: None)
        self._clock = Clock(None, overhead)
        self._latest: dict[str, _Latest] = {}
        self._names: Mapping[int, str] = {}

    def begin(
        self, names: Mapping[int, str], train: Float[Tensor, "D N r"], validation: Float[Tensor, "D M r"]
    ) -> None:
        self._names = dict(list(names.items())[:32])
        self._train, self._validation = train, validation

    def due(self, step: int) -> bool:
        return self._clock.due(step)

    def update(self, step: int, members: Callable[[], Mapping[int, tuple[int, Member]]]) -> None:
        begin = time.perf_counter()
        for index, (data, member) in members().items():
            if index in self._names:
                self._update(self._names[index], step, data, member)
        self._clock.charge("row", time.perf_counter() - begin)

    def _update(self, name: str, step: int, data: int, member: Member) -> None:
        try:
            if name not in self.watches:
                self.watches[name] = self._watch(name, data, member)
            self._latest[name].model = member
            row = self.watches[name].update(step)
        except (InputError, RunError) as error:  # training goes on without it
            self._names = {index: other for index, other in self._names.items() if other != name}
            self._message(f"{name} is no longer watched: {error}")
            return
        for finding in () if row is None else row.findings:
            if finding.severity != "note":
                self._message(f"{name}, step {step}: {finding.title} {finding.evidence} {finding.advice}")

    def _watch(self, name: str, data: int, member: Member) -> Watch:
        latest = self._latest[name] = _Latest(member)
        x, auxiliary = member.split_auxiliary(self._train[data])
        held, held_auxiliary = member.split_auxiliary(self._validation[data])
        loggers = [] if self._logger is None else [self._logger(name)]
        return Watch(
            latest,
            x,
            every=1,
            validation=held,
            auxiliary=auxiliary,
            validation_auxiliary=held_auxiliary,
            loggers=loggers,
            show=False,
            samples=128,
        )

    def close(self) -> None:
        """Close all loggers."""
        for watch in self.watches.values():
            watch.close()
