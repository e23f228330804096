"""From the rows of a watch to findings: a function per fault, in the order of causes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vaescope.products.watch.probe import DataFacts
from vaescope.products.watch.row import Row
from vaescope.report.findings import Finding


@dataclass(frozen=True)
class Thresholds:
    """Limits of the rules.

    They were chosen on the development data sets of the zoo and scored on the others (`benchmarks/watch.py`), unless
    another source is named. `dead` and `room` were changed after seeds 0 to 19 had been scored, and scored again on
    seeds 20 to 39.
    """

    large: float = 10.0  # standard deviation, or absolute mean, of a column that is not scaled
    small: float = 0.01  # standard deviation of all of x
    one_column: float = 0.95  # share of the variance of x in one of at least four columns
    change: float = 0.3  # relative change of the weights in one step
    dead: float = 0.8  # share of the units of a layer without gradient; half is chance if inputs are positive and alike
    overflow: float = 10.0  # largest log-variance; derived: float32 overflows at 88, after a few steps of growth
    underflow: float = -60.0  # smallest log-variance; derived: float32 underflows at -87
    misfit: float = 100.0  # squared error over the decoder's variance
    runaway: float = 1e-3  # σ over the standard deviation of x
    little: float = 0.2  # nats of all latents together
    room: float = 1.0  # nats that a linear VAE would use at a β above 1, below which β is too large
    moved: float = 1.05  # factor by which β/γ² may differ between rows that count as constant
    steps: int = 50  # over which something must last; convention


THRESHOLDS = Thresholds()


@dataclass(frozen=True, eq=False)
class Watched:
    """What rules may use: all rows so far, the data, and the likelihood."""

    rows: Sequence[Row]
    facts: DataFacts
    likelihood: str | None

    @property
    def now(self) -> Row:
        return self.rows[-1]

    @property
    def highest_kl(self) -> float:
        return max(row.bound.kl for row in self.rows)

    def lasted(self, holds: Callable[[Row], bool], steps: int = THRESHOLDS.steps, fewest: int = 3) -> bool:
        """Whether something held in all of the last rows, at least so many, over at least so many steps."""
        first = self.now
        count = 0
        for row in reversed(self.rows):
            if not holds(row):
                break
            first, count = row, count + 1
        return count >= fewest and self.now.step - first.step >= steps


def data_range(watched: Watched) -> Finding | None:
    low, high = watched.facts.range
    if watched.likelihood != "bernoulli" or (low >= 0 and high <= 1):
        return None
    return Finding(
        "data-range",
        "error",
        "x does not fit a Bernoulli likelihood.",
        f"Values from {low:.3g} to {high:.3g}; they must be between 0 and 1.",
        "Scale x to [0, 1] (divide pixels by 255), or use a Gaussian likelihood.",
    )


def unscaled(watched: Watched) -> Finding | None:
    facts = watched.facts
    if watched.likelihood != "gaussian":
        return None  # counts and other likelihoods have scales of their own
    deviation, mean = float(facts.deviation.max()), float(facts.mean.abs().max())
    share = float(facts.deviation.square().max() / facts.deviation.square().sum().clamp_min(1e-300))
    if deviation > THRESHOLDS.large or mean > THRESHOLDS.large or facts.variance**0.5 < THRESHOLDS.small:
        evidence = f"Columns have standard deviations up to {deviation:.3g} and means up to {mean:.3g}."
    elif share > THRESHOLDS.one_column and facts.dim >= 4:
        evidence = f"One of {facts.dim} columns has {share:.0%} of the variance."
    else:
        return None
    return Finding(
        "unscaled",
        "warning",
        "x is not scaled.",
        evidence,
        "Standardise the columns of x, or divide pixels by 255: networks, learning rates and σ = 1 assume numbers of "
        "about one.",
    )


def learning_rate(watched: Watched) -> Finding | None:
    weights = watched.now.weights
    if weights is None or weights.change is None or not weights.change > THRESHOLDS.change:
        return None
    return Finding(
        "learning-rate",
        "error",
        "The learning rate is too high.",
        f"One step changed the weights by {weights.change:.0%} of their norm.",
        "Divide the learning rate by 10 to 100; 1e-3 is usual with Adam. A step should change weights by about 0.1 to "
        "1 %.",
    )


def dead_units(watched: Watched) -> Finding | None:
    def dead(row: Row) -> bool:
        return row.weights is not None and (row.weights.zero_units or 0.0) >= THRESHOLDS.dead

    weights = watched.now.weights
    if weights is None or not watched.lasted(dead, steps=1, fewest=2):
        return None
    return Finding(
        "dead-units",
        "error",
        "Units of a layer receive no gradient.",
        f"The gradient of {weights.zero_units or 0:.0%} of the units of layer {weights.zero_layer or 'network'} is "
        "exactly zero: their ReLUs are off for all samples.",
        "Restart with smaller biases and a lower learning rate, or use leaky ReLU, SiLU or layer normalisation.",
    )


def log_variance(watched: Watched) -> Finding | None:
    low, high = watched.now.latents.log_variance
    too_large = high > THRESHOLDS.overflow
    if not (too_large or low < THRESHOLDS.underflow):
        return None
    return Finding(
        "log-variance",
        "error",
        f"The posterior's log-variance is about to {'over' if too_large else 'under'}flow.",
        f"It ranges from {low:.3g} to {high:.3g}; float32 overflows at 88 and underflows at -87, and no optimal "
        "posterior is wider than its prior (0 for N(0, 1)).",
        "Clamp the encoder's log-variance, e.g. log_variance.clamp(-20, 5); start its layer with small weights; scale "
        "x; lower the learning rate.",
    )


def sigma(watched: Watched) -> Finding | None:
    now, facts = watched.now, watched.facts
    if now.precision is None or watched.likelihood == "bernoulli" or not math.isfinite(now.bound.error):
        return None
    left, own = facts.residual(len(now.kl)), now.precision**-0.5
    if min(now.bound.error, left) * now.precision > THRESHOLDS.misfit:
        return Finding(
            "sigma-small",
            "warning",
            "The decoder's σ is far too small for this data.",
            f"σ is {own:.3g}; errors are {now.bound.error**0.5:.3g}, and {len(now.kl)} principal components leave "
            f"{left**0.5:.3g}.",
            "Raise σ to the size of the errors, or learn it: with a σ this small the KL has no weight, and the model "
            "becomes an autoencoder.",
        )
    first = watched.rows[0].precision
    learned = first is not None and not _alike(first, now.precision)
    if not learned or own >= THRESHOLDS.runaway * facts.variance**0.5:
        return None
    return Finding(
        "sigma-runaway",
        "warning",
        "The learned σ is running towards zero.",
        f"σ is {own:.3g}, x has a standard deviation of {facts.variance**0.5:.3g}.",
        "Bound σ from below (e.g. softplus plus 0.01), add noise to x, or look for duplicated samples: the likelihood "
        "of data without noise has no maximum.",
    )


def _alike(a: float, b: float) -> bool:
    return max(a, b) <= THRESHOLDS.moved * min(a, b)


def collapse(watched: Watched) -> Finding | None:
    now, facts = watched.now, watched.facts
    last = [row.bound.kl for row in watched.rows[-3:]]
    rising = len(last) == 3 and last[0] < last[1] < last[2]
    falling = len(last) == 3 and last[0] > last[1] > last[2] and last[2] < last[0] / 2
    little = now.bound.kl < (THRESHOLDS.room if now.beta > 1 else THRESHOLDS.little)
    if not (little or falling) or rising:
        return None
    fixed = watched.lasted(lambda row: row.precision == now.precision, steps=2)
    # the β above which everything collapses if β and σ stay as they are; a σ that may be learned can still fall
    critical = None
    if len(watched.rows) >= 3 and watched.lasted(lambda row: row.beta == now.beta, steps=2):
        critical = facts.critical_beta(watched.likelihood, now.precision)
        if not (now.precision is None or critical is None or fixed):
            critical = max(critical, float(facts.eigenvalues[0]) / facts.variance)
    # the KL of a linear VAE at the present β, with the σ that it would learn if σ is learned
    room, precision = math.inf, now.precision if fixed else None
    if critical is not None and now.beta > 1:
        room = facts.linear_kl(watched.likelihood, precision, now.beta, len(now.kl))
    if critical is not None and now.beta > critical:
        ratio = f"β is {now.beta:.3g}" + (f" at σ = {now.sigma:.3g}" if now.sigma is not None else "")
        evidence = f"{ratio}; for this data every latent collapses above β = {critical:.3g}."
    elif room < THRESHOLDS.room:
        evidence = f"β is {now.beta:.3g}; for this data it leaves {room:.2g} nats for all latents together."
    elif watched.highest_kl > 3 * THRESHOLDS.little and watched.lasted(
        lambda row: row.bound.kl < THRESHOLDS.little, steps=4 * THRESHOLDS.steps, fewest=5
    ):
        evidence = f"The KL of all latents has fallen from {watched.highest_kl:.3g} to {now.bound.kl:.2g} nats."
    else:
        return None
    return Finding(
        "collapse",
        "error",
        "The posterior is collapsing: codes carry hardly any information about x.",
        evidence,
        "Lower β, or lower σ (a mean over pixels where a sum was meant multiplies β by the number of pixels); let β "
        "rise from 0 (kl_schedule), or use free bits.",
    )


def dying_latents(watched: Watched) -> Finding | None:
    most, now = max(row.used for row in watched.rows), watched.now
    if not 0 < now.used < most:
        return None
    if not watched.lasted(lambda row: row.used <= now.used, steps=2 * THRESHOLDS.steps):
        return None
    largest = ", ".join(f"{value:.2g}" for value in sorted(now.kl, reverse=True)[:6])
    return Finding(
        "dying-latents",
        "note",
        f"{most - now.used} of {most} latents have stopped carrying information.",
        f"{now.used} of {len(now.kl)} are in use, at KLs of {largest} nats.",
        "Often right: the data need no more. If reconstructions are poor, lower β, or let it rise from 0.",
    )


def encoder_lag(watched: Watched) -> Finding | None:
    def lags(row: Row) -> bool:
        gap = row.latents.encoder_gap
        return gap is not None and gap > max(2.0, 0.5 * row.bound.kl)

    best = max((row.elbo for row in watched.rows), default=math.nan)
    settled = len(watched.rows) >= 6 and watched.rows[-4].elbo > best - 0.02 * abs(best)
    if not settled or not watched.lasted(lags, steps=4 * THRESHOLDS.steps, fewest=4):
        return None
    return Finding(
        "encoder-lags",
        "note",
        "The encoder lags behind the decoder.",
        f"Better posterior means would gain about {watched.now.latents.encoder_gap:.3g} nats per sample.",
        "Give the encoder more updates or capacity; with few latents in use, train it to convergence before every "
        "decoder step (He et al. 2019).",
    )


def overfit(watched: Watched) -> Finding | None:
    """The validation ELBO has fallen from its best while that of the training samples has not.

    It is lower in each of the last three rows by more than three standard errors, and by half a nat.
    """
    seen = [(row, row.validation) for row in watched.rows if row.validation and math.isfinite(row.validation.elbo)]
    if len(seen) < 5:
        return None
    best, best_bound = max(seen, key=lambda pair: pair[1].elbo)
    now, bound = seen[-1]
    after = [(row, held) for row, held in seen if row.step > best.step][-3:]
    changes = [mean_change(best_bound.per_sample, held.per_sample) for _, held in after]
    worse = [change is not None and change[0] < -max(0.5, 3 * change[1]) for change in changes]
    if len(after) < 3 or now.step - best.step < THRESHOLDS.steps or not all(worse) or now.elbo < best.elbo:
        return None
    return Finding(
        "overfit",
        "warning",
        "Training and validation are moving apart.",
        f"The validation ELBO was best at step {best.step} ({best_bound.elbo:.4g}) and is now {bound.elbo:.4g}; that "
        f"of training samples has risen from {best.elbo:.4g} to {now.elbo:.4g}.",
        f"Stop, and use the weights of step {best.step}; or use more data, a smaller network or dropout.",
    )


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


def worse_than_start(watched: Watched) -> Finding | None:
    """The ELBO is far below what it was, at the same β and σ: steps are too large."""
    now = watched.now

    def same_weight(row: Row) -> bool:
        before, after = row.effective_beta, now.effective_beta
        return row.beta == now.beta and (after is None or before is None or _alike(before, after))

    comparable = [row.elbo for row in watched.rows if same_weight(row) and math.isfinite(row.elbo)]
    if len(comparable) < 4 or not math.isfinite(now.elbo):
        return None
    best, start, last = max(comparable), comparable[0], comparable[-3:]
    if max(last) >= start or best - min(last) <= max(10.0, 0.5 * abs(best)):
        return None
    return Finding(
        "learning-rate",
        "error",
        "Training diverges: the learning rate is probably too high.",
        f"The ELBO was {best:.4g} and is {now.elbo:.4g}, below its start of {start:.4g}.",
        "Divide the learning rate by 10, or clip gradients.",
    )


def not_finite(watched: Watched) -> Finding | None:
    now = watched.now
    if not now.not_finite:
        return None
    return Finding(
        "not-finite",
        "error",
        "Numbers are no longer finite.",
        f"NaN or infinity in the {', '.join(now.not_finite)}, or negative variances, at step {now.step}.",
        "Go back to an earlier checkpoint: NaN weights never recover. Earlier findings name the cause; without any, "
        "lower the learning rate, clip gradients, and clamp log-variances.",
    )


RULES: tuple[Callable[[Watched], Finding | None], ...] = (
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
        finding = rule(watched)
        codes = {other.code for other in (*known, *found)}
        explained = {code for cause in codes for code in EXPLAINS.get(cause, ())}
        if finding is not None and finding.code not in codes | explained:
            found.append(finding)
    return found
