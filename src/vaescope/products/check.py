"""`vs.check`: does the model reproduce held-out data, and if not, in what?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure

from vaescope.analysis.models import RepairedModel, as_models, drawable_shape, repair
from vaescope.analysis.predictive import (
    Classified,
    Limits,
    Statistic,
    Tested,
    families,
    kind_of,
    measure,
    positions,
)
from vaescope.analysis.samples import read_samples, spread_rows
from vaescope.core import randomness
from vaescope.core.budget import Budget, Progress, to_stderr
from vaescope.core.checks import choice, integer, number
from vaescope.core.errors import InputError, Skipped
from vaescope.core.tables import Table
from vaescope.report import figures
from vaescope.report.findings import Finding, by_severity
from vaescope.report.page import Drawing
from vaescope.report.report import Report


@dataclass(frozen=True, eq=False, repr=False)
class Check(Report):
    """Statistics of held-out data beside those of data that the model makes."""

    name: str
    """What the report calls the model."""
    kind: str
    """counts, binary, continuous, images or series."""
    samples: int
    """How many held-out samples were used; simulated data sets have as many."""
    simulations: int
    """How many data sets were simulated."""
    tested: tuple[Tested, ...]
    """One for each family of statistics."""
    classified: Classified
    """Real against simulated samples."""
    image_shape: tuple[int, int, int] | None = None
    """(channels, height, width) of samples that are images."""
    likelihood: str | None = None
    """Of the model, if it has a name."""
    findings: list[Finding] = field(default_factory=list)
    """Most severe first."""
    skipped: dict[str, str] = field(default_factory=dict)
    """What was not taken as the model returned it, and why."""

    unit = "statistics"
    legend = (
        "p: how often data sets that the model makes are as unusual as x; corrected: as unusual in any statistic. "
        "Distance: largest distance of x from simulated data sets, in their standard deviations; its sign says whether "
        "x has more (+) or less (-)."
    )

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        failed = [one.name for one in self.failed]
        if not failed and not self.distinguishable:
            return f"{self.samples} samples look like those that the model makes, in every statistic."
        found = [f"a classifier (AUC {self.classified.auc:.2f})"] if self.distinguishable else []
        return f"x differs from what the model makes: {', '.join([*failed, *found])}."

    @property
    def failed(self) -> list[Tested]:
        """Families in which x differs, at 5 % over all of them and the classifier."""
        return [one for one in self.tested if one.adjusted <= Limits.level / 2]

    @property
    def distinguishable(self) -> bool:
        """Whether the classifier tells real from simulated samples."""
        return self.classified.p_value <= Limits.level / 2

    @property
    def p_value(self) -> float:
        """Of all statistics and the classifier together."""
        smallest = min(min(one.adjusted for one in self.tested), self.classified.p_value)
        return min(1.0, 2 * smallest)

    def statistic(self, name: str) -> Tested:
        """One family of statistics.

        Args:
            name: of the family, or of a statistic of your own.
        """
        named = {one.name: one for one in self.tested}
        return named[choice("name", name, named)]

    def summary(self) -> Table:
        """A row per family of statistics: p-values and the largest distance."""
        rows = []
        for one in self.tested:
            scores = one.scores
            at = int(np.abs(scores).argmax())
            rows.append(
                {
                    "statistic": one.name,
                    "p": one.p_value,
                    "corrected": one.adjusted,
                    "distance": float(scores[at]),
                    "at": one.place(at),
                    "x": float(one.observed[at]),
                    "simulated": float(one.centre[at]),
                }
            )
        auc = self.classified.auc
        row = {"statistic": "classifier (AUC)", "p": self.classified.p_value, "corrected": self.classified.p_value}
        rows.append(row | {"distance": None, "at": None, "x": auc, "simulated": 0.5})
        return Table(rows)

    def content(self) -> dict[str, object]:
        """Findings and numbers."""
        return {
            "name": self.name,
            "kind": self.kind,
            "samples": self.samples,
            "simulations": self.simulations,
            "p_value": self.p_value,
            "worst": self.worst,
            "verdict": self.verdict,
            "findings": [finding.to_data() for finding in self.findings],
            "statistics": list(self.summary()),
            "values": {
                one.name: {"x": one.observed.tolist(), "low": one.low.tolist(), "high": one.high.tolist()}
                for one in self.tested
                if len(one.observed) <= 1000
            },
            "telling": self.classified.telling,
            "skipped": self.skipped,
        }

    def facts(self) -> list[tuple[str, str]]:
        """Single numbers with their labels."""
        return [
            ("samples", str(self.samples)),
            ("simulated data sets", str(self.simulations)),
            ("kind of data", self.kind),
            ("p-value of all", f"{self.p_value:.3g}"),
            ("AUC, real against simulated", f"{self.classified.auc:.2f}"),
        ]

    def figures(self) -> list[Drawing]:
        """The pooled PIT, families that differ, and where real and simulated samples differ."""
        shown = [self.statistic("PIT, pooled")]
        wanted = ("mean-variance curve", "power spectrum", "spectrum of the covariance")
        others = sorted(self.failed, key=lambda one: one.adjusted)
        shown += [one for one in (*others, *(t for t in self.tested if t.name in wanted)) if one not in shown][:5]
        caption = (
            "x (dots) beside the simultaneous band of simulated data sets: 95 % of these stay inside it everywhere. Of "
            "families with many values, those that differ most. Orange: outside."
        )
        drawn = [figures.drawing("statistics", _bands(shown), caption)]
        separation = self.classified.separation
        if self.image_shape is not None and len(separation) == int(np.prod(self.image_shape)):
            text = (
                "Where real samples are larger (red) or smaller (blue) than simulated ones: AUC of each pixel, -1 to 1."
            )
            drawn.append(figures.drawing("telling", _map(separation, self.image_shape), text))
        return drawn


def _bands(shown: list[Tested]) -> Figure:
    columns = min(3, len(shown))
    figure, axes = figures.grid_of_panels(-(-len(shown) // columns), columns, width=3.6, height=2.7)
    for axis, one in zip(axes, shown, strict=False):
        chosen = np.arange(len(one.observed))
        if len(chosen) > 30:
            chosen = np.sort(positions(one.scores, 30))
        at = np.arange(len(chosen))
        observed, low, high = (values[chosen] for values in (one.observed, one.low, one.high))
        outside = (observed < low) | (observed > high)
        axis.fill_between(at, low, high, color="#dfe4e8", step="mid", lw=0)
        axis.plot(at, one.centre[chosen], color="#5d6b78", lw=1, drawstyle="steps-mid")
        axis.scatter(at, observed, s=14, c=np.where(outside, figures.COLOURS[1], figures.COLOURS[0]), zorder=3)
        axis.set_title(f"{one.name} (p = {one.adjusted:.2g})", fontsize=10)
        axis.set_xlabel(one.labels, fontsize=9)
        axis.set_xticks(at[:: max(1, len(at) // 5)], [str(k) for k in chosen[:: max(1, len(at) // 5)]], fontsize=8)
        axis.tick_params(axis="y", labelsize=8)
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    return figure


def _map(separation: np.ndarray, shape: tuple[int, int, int]) -> Figure:
    figure, axes = figures.grid_of_panels(1, 1, width=3.4, height=3.0)
    image = separation.reshape(shape).mean(0)
    picture = axes[0].imshow(image, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    figure.colorbar(picture, ax=axes[0], shrink=0.8)
    axes[0].set(xticks=[], yticks=[])
    return figure


# findings -----------------------------------------------------------------------------------------


def judge(found: Check) -> list[Finding]:
    """A finding for each family that differs, in the words of what it usually means."""
    failed = sorted(found.failed, key=lambda one: -float(np.abs(one.scores).max()))
    if any(one.name == "PIT, pooled" for one in failed):
        failed = [one for one in failed if one.name != "PIT"]
    findings = [_finding(one, found) for one in failed]
    if found.distinguishable:
        named = ", ".join(map(str, found.classified.telling[:5]))
        findings.append(
            Finding(
                "distinguishable",
                "warning" if found.classified.auc > 0.6 else "note",
                "A classifier tells real samples from those that the model makes.",
                f"AUC {found.classified.auc:.2f} on samples that it has not seen, p = {found.classified.p_value:.2g}. "
                f"They differ most in dimensions {named}.",
                "The other findings say in what they differ; if there are none, look at the samples themselves.",
            )
        )
    return by_severity(findings)


def _finding(one: Tested, found: Check) -> Finding:
    at = positions(one.scores, 3)
    places = ", ".join(f"{one.place(k)} ({one.observed[k]:.3g}, simulated {one.centre[k]:.3g})" for k in at)
    evidence = f"p = {one.adjusted:.2g} over {found.simulations} simulated data sets. Largest at {places}."
    title, advice = _meaning(one, found)
    code = "-".join(re.findall(r"[a-z]+", one.name.lower()))
    return Finding(code, "warning", title, evidence, advice)


def _meaning(one: Tested, found: Check) -> tuple[str, str]:
    """What is different, and what it usually means."""
    more = one.shift > 0
    word = "more" if more else "fewer"
    prior = "Codes of x do not follow the prior (train for longer, or use a more flexible prior)"
    meanings: Mapping[str, tuple[str, str]] = {
        "means": (
            "x has other means than the data that the model makes.",
            "The decoder has not learned the mean: train for longer; check that x is scaled as in training.",
        ),
        "variances": (
            f"x varies {'more' if more else 'less'} than the data that the model makes.",
            f"{prior}, or the declared noise is {'too small' if more else 'too large'}.",
        ),
        "correlations": (
            "Dimensions of x are correlated in another way than in the data that the model makes.",
            "Too few latents, or a weight of the KL that is too large; a likelihood with independent noise cannot make "
            "correlated noise.",
        ),
        "spectrum of the covariance": (
            "Principal components of x have other variances than those of the data that the model makes.",
            f"{prior}; latents may be missing.",
        ),
        "row totals": (
            "Samples have other totals than those that the model makes.",
            "For counts, check the library size; for images, the range of x.",
        ),
        "zeros": _zeros(word, more),
        "zeros, given codes": _zeros(word, more),
        "dispersion, given codes": (
            f"Counts scatter {'more' if more else 'less'} around their reconstruction than the likelihood says.",
            "Use a negative binomial likelihood in place of a Poisson one, or a dispersion per gene."
            if more
            else "The likelihood is too dispersed: use a Poisson likelihood, or learn the dispersion.",
        ),
        "mean-variance curve": (
            f"Variances are {'larger' if more else 'smaller'} for their means than in the data that the model makes.",
            "Use a likelihood with its own dispersion (negative binomial)." if more else "Learn the dispersion.",
        ),
        "noise": (
            f"x is {'further from' if more else 'closer to'} its reconstruction than the declared noise says.",
            f"The noise is too {'small' if more else 'large'}: learn the precision, or set it to 1 / residual variance."
            if found.likelihood == "gaussian"
            else "The likelihood has the wrong spread: learn its scale or dispersion.",
        ),
        "log p(x|z)": (
            f"x is reconstructed {'better' if more else 'worse'} than the data that the model makes.",
            "The declared noise is too large."
            if more
            else "The declared noise is too small, or x is unlike the training data.",
        ),
        "codes": (
            "Codes of x are distributed in another way than those of the data that the model makes.",
            f"{prior}: modes of the data may be missing in the samples of the model.",
        ),
        "quantiles": (
            "Dimensions of x have other distributions than in the data that the model makes.",
            "The likelihood has the wrong shape (tails, bounds, several modes), or the prior misses modes of the data.",
        ),
        "power spectrum": (
            f"x has {'more' if more else 'less'} power than the data that the model makes, at some frequencies.",
            "Independent noise is added to smooth reconstructions: a lower variance, or a likelihood of the residual.",
        ),
        "coefficient of variation of rows": (
            "Within samples, values vary in another way than the model makes them.",
            "Check the library size and the likelihood.",
        ),
    }
    if one.name in meanings:
        return meanings[one.name]
    if one.name.startswith("PIT"):
        return _pit(one)
    return f"The statistic {one.name} of x is not that of the data that the model makes.", "See the figure."


def _zeros(word: str, more: bool) -> tuple[str, str]:
    advice = (
        "Use a zero-inflated or a negative binomial likelihood."
        if more
        else "The likelihood makes too many zeros: without zero inflation, or with a larger dispersion parameter."
    )
    return f"x has {word} zeros than the model makes.", advice


def _pit(one: Tested) -> tuple[str, str]:
    bins = one.scores.reshape(-1, Limits.posterior_draws + 1).mean(0)
    ends, middle = (bins[0] + bins[-1]) / 2, bins[3:-3].mean()
    title = "x is not distributed as the likelihood says, given its codes."
    if ends - middle > abs(bins[0] - bins[-1]) / 2:
        return title, "Values are too often in both tails: the noise of the likelihood is too small."
    if middle - ends > abs(bins[0] - bins[-1]) / 2:
        return title, "Values are too often in the middle: the noise of the likelihood is too large."
    side = "high" if bins[-1] > bins[0] else "low"
    return title, f"Values are too often {side}: reconstructions are biased, or the likelihood has the wrong shape."


# the call -----------------------------------------------------------------------------------------


@torch.no_grad()
def check(
    model: object,
    x: object,
    *,
    statistics: Mapping[str, object] | None = None,
    auxiliary: object | None = None,
    kind: str | None = None,
    samples: int = 500,
    simulations: int = 99,
    name: str | None = None,
    budget: float = 90.0,
    seed: int = 0,
    progress: Progress | None = to_stderr,
) -> Check:
    """Whether the model makes data like held-out x, with exact p-values and a sentence for every difference.

    Data sets of the size of x are simulated from the prior and the decoder, and go through the same statistics as x,
    also those that need the encoder. If x came from the model, its rank among them is uniform: no p-value depends on
    an approximation, and none uses x twice. Statistics: means, variances, quantiles, correlations, the spectrum, ranks
    of x in its posterior predictive distribution (randomised PIT), codes, log p(x|z); zeros, dispersion and the
    mean-variance curve for counts; power spectra for images and series; and your own. A classifier is trained to tell
    real from simulated samples.

    Args:
        model: a member of a fit, a model from `vs.adapters`, or your own `LatentModel`, with a decoder and a likelihood
            that can be sampled; of several models or a fit, the first (the best member).
        x: samples that the model was not trained on, a row or an image each.
        statistics: functions of your own by name: an array (N, ...) of samples -> a number or an array of numbers.
        auxiliary: the auxiliary input of an iVAE or a conditional VAE, a label or a row of numbers per sample.
            Simulated data sets have the same.
        kind: counts, binary, continuous, images or series; by default what x looks like.
        samples: at most so many samples are used, drawn at random.
        simulations: number of simulated data sets, at least 39.
        name: what the report calls the model.
        budget: seconds, after which no further data set is simulated if there are 39.
        seed: of all draws.
        progress: called with lines that say what is being done; None for silence.

    >>> from vaescope.adapters import from_callables
    >>> model = from_callables(  # x = z + noise of variance 1
    ...     encode=lambda x: (x / 2, 0.5 + 0 * x), decode=lambda z: z, latent_dim=1, precision=1.0)
    >>> x = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    >>> found = check(model, 2.5 * x, simulations=79, progress=None)  # right would be 1.4 x
    >>> found.find("variances").title
    'x varies more than the data that the model makes.'
    """
    integer("samples", samples, minimum=50)
    integer("simulations", simulations, minimum=39)
    if kind is not None:
        choice("kind", kind, ("counts", "binary", "continuous", "images", "series"))
    own: dict[str, Statistic] = {}
    for key, function in (statistics or {}).items():
        if not callable(function):
            raise InputError(f'statistics must be functions by name, such as "{key}": lambda x: x.max().')
        own[key] = function
    clock = Budget(number("budget", budget, above=0.0, hint="it is in seconds"), progress, name="check")
    first = as_models(model)[0]
    if not first.has_decoder:
        raise InputError("check needs a decoder: it simulates x from draws of the prior.")
    given = read_samples(first, x, auxiliary)
    if len(given) < 50:
        raise InputError(f"x needs at least 50 samples, got {len(given)}.")
    clock.say(f"encoding {min(samples, len(given))} samples")
    rows = spread_rows(len(given), samples)
    repaired = repair(first, given[rows], None, len(rows))
    plain = RepairedModel(first, scale=repaired.model.scale, logits=repaired.model.logits)
    real = replace(repaired.sample, model=plain)
    shape = tuple(int(side) for side in (given.image_shape or real.x.shape[1:]))
    own_kind = kind or kind_of(real.observations.numpy(), shape)
    listed = partial(families, own_kind, shape=shape, own=own)
    try:
        with randomness.seeded(f"check {seed}"):
            tested, classified, count = measure(
                real, lambda reference: listed(reference=reference), simulations, clock, seed
            )
    except Skipped as reason:
        raise InputError(f"check cannot simulate x: {reason}.") from None
    image = drawable_shape(repaired.model, real.observations.shape[1])
    found = Check(
        name or first.name,
        own_kind,
        len(real),
        count,
        tuple(tested),
        classified,
        image,
        first.likelihood,
        [],
        repaired.corrections,
    )
    return replace(found, findings=judge(found))
