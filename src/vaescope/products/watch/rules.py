"""From the rows of a watch to findings: a function per fault, in the order of causes.

Thresholds were chosen on the development data sets of the zoo and scored on the others (`benchmarks/watch.py`). `DEAD`
and `ROOM` were changed after seeds 0 to 19 had been scored, and scored again on seeds 20 to 39.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from vaescope.products.watch.probe import DataFacts
from vaescope.products.watch.row import Row
from vaescope.report.findings import Finding

LARGE = 10.0  # standard deviation, or absolute mean, of a column that is not scaled
SMALL = 0.01  # standard deviation of all of x
ONE_COLUMN = 0.95  # share of the variance of x in one of at least `FEW_COLUMNS` columns
FEW_COLUMNS = 4
CHANGE = 0.3  # relative change of the weights in one step
DEAD = 0.8  # share of the units of a layer without gradient; if all inputs are alike and positive, half is chance
OVERFLOW, UNDERFLOW = 10.0, -60.0  # log-variances; float32 overflows at 88 and underflows at -87
MISFIT = 100.0  # squared error over the decoder's variance
RUNAWAY = 1e-3  # σ over the standard deviation of x
LITTLE = 0.2  # nats of all latents together
ROOM = 1.0  # nats that a linear VAE would use at a β above 1, below which β is too large
MOVED = 1.05  # factor by which β/γ² may differ between rows that count as constant
STEPS = 50  # over which something must last


@dataclass(frozen=True, eq=False)
class Watched:
    """What rules may use: all rows so far, the data, and the likelihood."""

    rows: Sequence[Row]
    facts: DataFacts
    likelihood: str | None

    @property
    def now(self) -> Row:
        return self.rows[-1]

    def lasted(self, holds: Callable[[Row], bool], steps: int = STEPS, fewest: int = 3) -> bool:
        """Whether something held in all of the last rows, at least so many, over at least so many steps."""
        first = self.now
        count = 0
        for row in reversed(self.rows):
            if not holds(row):
                break
            first, count = row, count + 1
        return count >= fewest and self.now.step - first.step >= steps


def data_range(watched: Watched) -> Iterator[Finding]:
    low, high = watched.facts.range
    if watched.likelihood == "bernoulli" and (low < 0 or high > 1):
        yield Finding(
            "data-range",
            "error",
            "x does not fit a Bernoulli likelihood.",
            f"Values from {low:.3g} to {high:.3g}; they must be between 0 and 1.",
            "Scale x to [0, 1] (divide pixels by 255), or use a Gaussian likelihood.",
        )


def unscaled(watched: Watched) -> Iterator[Finding]:
    facts = watched.facts
    if watched.likelihood != "gaussian":
        return  # counts and other likelihoods have scales of their own
    deviation, mean = float(facts.deviation.max()), float(facts.mean.abs().max())
    share = float(facts.deviation.square().max() / facts.deviation.square().sum().clamp_min(1e-300))
    overall = facts.variance**0.5
    if deviation > LARGE or mean > LARGE or overall < SMALL:
        evidence = f"Columns have standard deviations up to {deviation:.3g} and means up to {mean:.3g}."
    elif share > ONE_COLUMN and facts.dim >= FEW_COLUMNS:
        evidence = f"One of {facts.dim} columns has {share:.0%} of the variance."
    else:
        return
    yield Finding(
        "unscaled",
        "warning",
        "x is not scaled.",
        evidence,
        "Standardise the columns of x, or divide pixels by 255: networks, learning rates and σ = 1 assume numbers of "
        "about one.",
    )


def learning_rate(watched: Watched) -> Iterator[Finding]:
    weights = watched.now.weights
    if weights is None or weights.change is None or not weights.change > CHANGE:
        return
    yield Finding(
        "learning-rate",
        "error",
        "The learning rate is too high.",
        f"One step changed the weights by {weights.change:.0%} of their norm.",
        "Divide the learning rate by 10 to 100; 1e-3 is usual with Adam. A step should change weights by about 0.1 to "
        "1 %.",
    )


def dead_units(watched: Watched) -> Iterator[Finding]:
    def dead(row: Row) -> bool:
        return row.weights is not None and (row.weights.zero_units or 0.0) >= DEAD

    if not watched.lasted(dead, steps=1, fewest=2):
        return
    weights = watched.now.weights
    assert weights is not None
    yield Finding(
        "dead-units",
        "error",
        "Units of a layer receive no gradient.",
        f"The gradient of {weights.zero_units or 0:.0%} of the units of layer {weights.zero_layer or 'network'} is "
        "exactly zero: their ReLUs are off for all samples.",
        "Restart with smaller biases and a lower learning rate, or use leaky ReLU, SiLU or layer normalisation.",
    )


def log_variance(watched: Watched) -> Iterator[Finding]:
    low, high = watched.now.latents.log_variance
    if not (high > OVERFLOW or low < UNDERFLOW):
        return
    too_large = high > OVERFLOW
    yield Finding(
        "log-variance",
        "error",
        f"The posterior's log-variance is about to {'over' if too_large else 'under'}flow.",
        f"It ranges from {low:.3g} to {high:.3g}; float32 overflows at 88 and underflows at -87, and no optimal "
        "posterior is wider than its prior (0 for N(0, 1)).",
        "Clamp the encoder's log-variance, e.g. log_variance.clamp(-20, 5); start its layer with small weights; scale "
        "x; lower the learning rate.",
    )


def sigma(watched: Watched) -> Iterator[Finding]:
    now, facts = watched.now, watched.facts
    if now.precision is None or watched.likelihood == "bernoulli" or not math.isfinite(now.bound.error):
        return
    misfit = min(now.bound.error, facts.residual(len(now.kl))) * now.precision
    if misfit > MISFIT:
        yield Finding(
            "sigma-small",
            "warning",
            "The decoder's σ is far too small for this data.",
            f"σ is {now.precision**-0.5:.3g}; errors are {now.bound.error**0.5:.3g}, and {len(now.kl)} principal "
            f"components leave {facts.residual(len(now.kl)) ** 0.5:.3g}.",
            "Raise σ to the size of the errors, or learn it: with a σ this small the KL has no weight, and the model "
            "becomes an autoencoder.",
        )
    elif _is_learned(watched) and now.precision**-0.5 < RUNAWAY * facts.variance**0.5:
        yield Finding(
            "sigma-runaway",
            "warning",
            "The learned σ is running towards zero.",
            f"σ is {now.precision**-0.5:.3g}, x has a standard deviation of {facts.variance**0.5:.3g}.",
            "Bound σ from below (e.g. softplus plus 0.01), add noise to x, or look for duplicated samples: the "
            "likelihood of data without noise has no maximum.",
        )


def _is_learned(watched: Watched) -> bool:
    """Whether the precision has changed."""
    first = watched.rows[0].precision
    return first is not None and watched.now.precision is not None and not _alike(first, watched.now.precision)


def _alike(a: float, b: float) -> bool:
    return max(a, b) <= MOVED * min(a, b)


def collapse(watched: Watched) -> Iterator[Finding]:
    now = watched.now
    little = ROOM if now.beta > 1 else LITTLE
    if not (now.bound.kl < little or _is_falling(watched)) or _is_rising(watched):
        return
    critical = _critical_beta(watched)
    if critical is not None and now.beta > critical:
        ratio = f"β is {now.beta:.3g}" + (f" at σ = {now.sigma:.3g}" if now.sigma is not None else "")
        evidence = f"{ratio}; for this data every latent collapses above β = {critical:.3g}."
    elif critical is not None and now.beta > 1 and (room := _largest_kl(watched)) < ROOM:
        evidence = f"β is {now.beta:.3g}; for this data it leaves {room:.2g} nats for all latents together."
    elif watched.lasted(lambda row: row.bound.kl < LITTLE, steps=4 * STEPS, fewest=5) and _carried(watched):
        evidence = f"The KL of all latents has fallen from {_highest_kl(watched):.3g} to {now.bound.kl:.2g} nats."
    else:
        return
    yield Finding(
        "collapse",
        "error",
        "The posterior is collapsing: codes carry hardly any information about x.",
        evidence,
        "Lower β, or lower σ (a mean over pixels where a sum was meant multiplies β by the number of pixels); let β "
        "rise from 0 (kl_schedule), or use free bits.",
    )


def _critical_beta(watched: Watched) -> float | None:
    """The β above which everything collapses, if β and σ stay as they are; a σ that may be learned can still fall."""
    now, facts = watched.now, watched.facts
    if len(watched.rows) < 3 or not watched.lasted(lambda row: row.beta == now.beta, steps=2):
        return None
    critical = facts.critical_beta(watched.likelihood, now.precision)
    if now.precision is None or critical is None or watched.lasted(lambda row: row.precision == now.precision, steps=2):
        return critical
    return max(critical, float(facts.eigenvalues[0]) / facts.variance)


def _largest_kl(watched: Watched) -> float:
    """KL of a linear VAE at the present β, with the σ that it would learn if σ is learned; infinite if unknown."""
    now, facts = watched.now, watched.facts
    fixed = watched.lasted(lambda row: row.precision == now.precision, steps=2)
    return facts.linear_kl(watched.likelihood, now.precision if fixed else None, now.beta, len(now.kl))


def _same_weight(now: Row) -> Callable[[Row], bool]:
    def same(row: Row) -> bool:
        before, after = row.effective_beta, now.effective_beta
        return row.beta == now.beta and (after is None or before is None or _alike(before, after))

    return same


def _is_falling(watched: Watched) -> bool:
    """Whether the KL has halved over the last rows, falling in each."""
    last = [row.bound.kl for row in watched.rows[-3:]]
    return len(last) == 3 and last[0] > last[1] > last[2] and last[2] < last[0] / 2


def _is_rising(watched: Watched) -> bool:
    """Whether the KL has grown over the last rows."""
    last = [row.bound.kl for row in watched.rows[-3:]]
    return len(last) == 3 and last[0] < last[1] < last[2]


def _highest_kl(watched: Watched) -> float:
    return max(row.bound.kl for row in watched.rows)


def _carried(watched: Watched) -> bool:
    return _highest_kl(watched) > 3 * LITTLE


def dying_latents(watched: Watched) -> Iterator[Finding]:
    most = max(row.used for row in watched.rows)
    now = watched.now
    lost = most - now.used
    if lost >= 1 and now.used and watched.lasted(lambda row: row.used <= now.used < most, steps=2 * STEPS):
        yield Finding(
            "dying-latents",
            "note",
            f"{lost} of {most} latents have stopped carrying information.",
            f"{now.used} of {len(now.kl)} are in use, at KLs of {_largest(now.kl)} nats.",
            "Often right: the data need no more. If reconstructions are poor, lower β, or let it rise from 0.",
        )


def _largest(kl: Sequence[float]) -> str:
    return ", ".join(f"{value:.2g}" for value in sorted(kl, reverse=True)[:6])


def encoder_lag(watched: Watched) -> Iterator[Finding]:
    def lags(row: Row) -> bool:
        gap = row.latents.encoder_gap
        return gap is not None and gap > max(2.0, 0.5 * row.bound.kl)

    best = max((row.elbo for row in watched.rows), default=math.nan)
    settled = len(watched.rows) >= 6 and watched.rows[-4].elbo > best - 0.02 * abs(best)
    if settled and watched.lasted(lags, steps=4 * STEPS, fewest=4):
        yield Finding(
            "encoder-lags",
            "note",
            "The encoder lags behind the decoder.",
            f"Better posterior means would gain about {watched.now.latents.encoder_gap:.3g} nats per sample.",
            "Give the encoder more updates or capacity; with few latents in use, train it to convergence before every "
            "decoder step (He et al. 2019).",
        )


def overfit(watched: Watched) -> Iterator[Finding]:
    """The validation ELBO has fallen from its best while that of the training samples has not."""
    seen = [row for row in watched.rows if row.validation is not None and math.isfinite(row.validation.elbo)]
    if len(seen) < 5:
        return
    best = max(seen, key=lambda row: row.validation.elbo if row.validation else -math.inf)
    after = [row for row in seen if row.step > best.step][-3:]
    if len(after) < 3 or after[-1].step - best.step < STEPS or not all(_worse(row, best) for row in after):
        return
    now = seen[-1]
    assert now.validation is not None
    assert best.validation is not None
    if now.elbo < best.elbo:
        return
    yield Finding(
        "overfit",
        "warning",
        "Training and validation are moving apart.",
        f"The validation ELBO was best at step {best.step} ({best.validation.elbo:.4g}) and is now "
        f"{now.validation.elbo:.4g}; that of training samples has risen from {best.elbo:.4g} to {now.elbo:.4g}.",
        f"Stop, and use the weights of step {best.step}; or use more data, a smaller network or dropout.",
    )


def _worse(row: Row, best: Row) -> bool:
    """Whether the validation ELBO is lower than the best by more than three standard errors, and by half a nat."""
    assert row.validation is not None
    assert best.validation is not None
    change = mean_change(best.validation.per_sample, row.validation.per_sample)
    return change is not None and change[0] < -max(0.5, 3 * change[1])


def mean_change(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """Mean difference of paired values, and its standard error; None for fewer than two.

    >>> mean_change([1.0, 2.0], [2.0, 3.0])
    (1.0, 0.0)
    """
    count = len(before)
    if count < 2 or len(after) != count:
        return None
    differences = [b - a for a, b in zip(before, after, strict=True)]
    mean = sum(differences) / count
    variance = sum((d - mean) ** 2 for d in differences) / (count - 1)
    return mean, (variance / count) ** 0.5


def worse_than_start(watched: Watched) -> Iterator[Finding]:
    """The ELBO is far below what it was, at the same β and σ: steps are too large."""
    now = watched.now
    comparable = [row for row in watched.rows if _same_weight(now)(row) and math.isfinite(row.elbo)]
    if len(comparable) < 4 or not math.isfinite(now.elbo):
        return
    best, start = max(row.elbo for row in comparable), comparable[0].elbo
    fall = best - min(row.elbo for row in comparable[-3:])
    if all(row.elbo < start for row in comparable[-3:]) and fall > max(10.0, 0.5 * abs(best)):
        yield Finding(
            "learning-rate",
            "error",
            "Training diverges: the learning rate is probably too high.",
            f"The ELBO was {best:.4g} and is {now.elbo:.4g}, below its start of {start:.4g}.",
            "Divide the learning rate by 10, or clip gradients.",
        )


def not_finite(watched: Watched) -> Iterator[Finding]:
    now = watched.now
    if not now.not_finite:
        return
    yield Finding(
        "not-finite",
        "error",
        "Numbers are no longer finite.",
        f"NaN or infinity in the {', '.join(now.not_finite)} at step {now.step}.",
        "Go back to an earlier checkpoint: NaN weights never recover. Earlier findings name the cause; without any, "
        "lower the learning rate, clip gradients, and clamp log-variances.",
    )


RULES = (
    data_range,
    unscaled,
    learning_rate,
    dead_units,
    log_variance,
    sigma,
    collapse,
    worse_than_start,
    dying_latents,
    encoder_lag,
    overfit,
    not_finite,
)
EXPLAINS: dict[str, frozenset[str]] = {
    "data-range": frozenset({"collapse", "learning-rate", "log-variance"}),
    "unscaled": frozenset({"sigma-small", "log-variance", "collapse", "learning-rate", "encoder-lags"}),
    "dead-units": frozenset({"collapse", "dying-latents", "learning-rate"}),
    "learning-rate": frozenset({"log-variance", "collapse", "dead-units", "dying-latents", "sigma-small"}),
    "log-variance": frozenset({"sigma-small", "learning-rate"}),
    "sigma-small": frozenset({"encoder-lags"}),
    "collapse": frozenset({"dying-latents", "encoder-lags"}),
}
"""What a finding is the cause of; these are not reported after it."""


def new_findings(watched: Watched, known: Sequence[Finding]) -> list[Finding]:
    """Findings that are neither known nor a consequence of known ones."""
    found: list[Finding] = []
    for rule in RULES:
        codes = {finding.code for finding in (*known, *found)}
        explained = {code for cause in codes for code in EXPLAINS.get(cause, ())}
        found += [f for f in rule(watched) if f.code not in codes | explained]
    return found
