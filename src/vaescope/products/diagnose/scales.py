"""The decoder's variance and β, as implied by reconstructions and by the widths of posteriors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.analysis.encoding import SMALLEST_VARIANCE, EncodedSample, declared_beta, output_weights
from vaescope.analysis.models import SCALES, sample_log_likelihood
from vaescope.core import randomness
from vaescope.core.errors import InputError, Skipped
from vaescope.core.serialization import plain_fields

SAMPLES = 500  # from which the slope is estimated
FEWEST_SAMPLES = 30
LARGEST_ARRAY = 20_000_000  # numbers of an array of reconstructions


@dataclass(frozen=True)
class Slope:
    """The slope of the regression of x on reconstructions, with its standard error over samples."""

    value: float
    stderr: float

    def off(self, least: float, errors: float) -> bool:
        """Whether it differs from 1 by more than this, and by more than so many standard errors."""
        return abs(self.value - 1) > max(least, errors * self.stderr)


class SlopeSums:
    """The sums from which the slope follows, both sides centred, over all outputs and draws.

    >>> x = torch.arange(64.0).reshape(32, 2)
    >>> sums = SlopeSums(x)
    >>> sums.add(2 * x + 1)
    >>> sums.slope()
    Slope(value=0.5, stderr=0.0)
    """

    def __init__(self, x: Float[Tensor, "N n"]) -> None:
        self._centred = x.double() - x.double().mean(0)
        self._products, self._squares = torch.zeros(2, len(x), dtype=torch.float64)

    def add(self, output: Float[Tensor, "N n"]) -> None:
        """Count one reconstruction of every sample."""
        centred = output.double() - output.double().mean(0)
        self._products += (self._centred * centred).sum(1)
        self._squares += centred.square().sum(1)

    def slope(self) -> Slope | None:
        """None if reconstructions do not differ, or for so few samples that the standard error means nothing."""
        total = float(self._squares.sum())
        if len(self._squares) < FEWEST_SAMPLES or not total > 0:
            return None
        value = float(self._products.sum()) / total
        residuals = self._products - value * self._squares
        return Slope(value, float(residuals.square().sum().sqrt()) / total)


def affordable_samples(outputs: int) -> int:
    """How many samples with this many outputs are reconstructed at once."""
    return max(FEWEST_SAMPLES, min(SAMPLES, LARGEST_ARRAY // max(1, outputs)))


def decoded_draws(sample: EncodedSample, draws: int, purpose: str) -> Iterator[Float[Tensor, "N m"]]:
    """Reconstructions of z ~ q, one of every sample at a time.

    Args:
        sample: whose codes are drawn.
        draws: how many per sample.
        purpose: names the stream of random numbers.
    """
    generator, deviation = randomness.generator(0, purpose), sample.variance.sqrt().to(sample.mean)
    for _ in range(draws):
        noise = torch.randn(sample.mean.shape, generator=generator, dtype=sample.mean.dtype)
        yield sample.decode(sample.mean + deviation * noise)


@torch.no_grad()
def slope_of_draws(sample: EncodedSample, draws: int) -> Slope | None:
    """The slope with the variances of the sample; None if outputs and x differ in shape, or are not finite."""
    sums = SlopeSums(sample.observations)
    for output in decoded_draws(sample, draws, "calibration"):
        if output.shape != sample.observations.shape or not bool(output.isfinite().all()):
            return None
        sums.add(output)
    return sums.slope()


DRAWS = 4  # of z, per sample
CODES = 64  # at whose posteriors slopes of the decoder are measured
SLOPE_DRAWS = 4
LATENTS = 32  # in use, whose slopes are measured
STEP = 0.5  # of differences, in posterior deviations
SMALLEST_STEP = 1e-3  # differences of smaller steps are rounding errors


@dataclass(frozen=True)
class Noise:
    """The decoder's precision and β, declared and estimated."""

    precision: float
    """γ² by maximum likelihood: the number of outputs over the mean squared error of z ~ q."""
    declared: float | None
    implied: float | None
    """γ²/β that the widths of posteriors imply, by Eq. 12."""
    explained: float
    """Share of the variance of x that reconstructions explain."""
    likelihood: str | None
    declared_beta: float = 1.0
    shift: float | None = None
    """Median over samples of the mean over latents of σ² g², where g is the gradient of the ELBO with the implied γ²/β
    with respect to the means: about the squared distance of means from the best ones, in posterior deviations. Zero at
    an optimum with any β."""
    slope: Slope | None = None
    """Of x on reconstructions of z ~ q: 1 if the decoder was trained with this encoder, whatever β. None with a
    likelihood of the user, since outputs need not be means of x."""

    @property
    def beta(self) -> float | None:
        """The effective β. Under a Bernoulli likelihood the declared precision is 1, since outputs are weighted."""
        return None if self.declared is None or not self.implied else self.declared / self.implied

    def to_data(self) -> dict[str, object]:
        return {
            "precision": self.precision,
            "declared": self.declared,
            "implied": self.implied,
            "effective_beta": self.beta,
            "explained": self.explained,
            "shift": self.shift,
            "slope": None if self.slope is None else plain_fields(self.slope),
        }


def measure_noise(sample: EncodedSample, used: list[int]) -> Noise:
    """Reconstruction errors of draws, and what the widths of posteriors imply."""
    model = sample.model
    subset = sample.random_subset(affordable_samples(sample.x[0].numel()))
    error, slope = _reconstruct_draws(subset)
    x = subset.observations
    total = float((x - x.mean(0)).square().sum(1).mean())
    implied, shift = (None, None) if model.likelihood is None else _implied(sample.random_subset(CODES), used)
    return Noise(
        precision=x.shape[1] / max(error, 1e-300),
        declared=1.0 if model.likelihood == "bernoulli" else model.precision,
        implied=implied,
        explained=1 - error / total if total > 0 else math.nan,
        likelihood=model.likelihood,
        declared_beta=declared_beta(model),
        shift=shift,
        slope=slope if model.log_likelihood is None else None,
    )


@torch.no_grad()
def _reconstruct_draws(sample: EncodedSample) -> tuple[float, Slope | None]:
    """E‖x - f(z)‖² for z ~ q, and the slope of x on f(z)."""
    x = sample.observations
    sums, error = SlopeSums(x), 0.0
    for output in decoded_draws(sample, DRAWS, "diagnosis"):
        if not bool(output.isfinite().all()):
            raise Skipped("the decoder returns NaN or infinity")
        if output.shape != x.shape:
            raise Skipped(f"the decoder returns {output.shape[1]} numbers per sample, but x has {x.shape[1]}")
        error += float((x - output.double()).square().sum(1).mean()) / DRAWS
        sums.add(output)
    return error, sums.slope()


@torch.no_grad()
def _implied(sample: EncodedSample, used: list[int]) -> tuple[float | None, float | None]:
    """The γ²/β that widths of posteriors imply, and how far means are from those that it makes optimal.

    The first is the median over samples and latents in use of (1/σ² - 1/σ†²) / E‖c‖², c weighted by the likelihood:
    Eq. 12 with the expectation over the posterior, because at wide posteriors the slope at the mean is not
    representative. The second is the gradient of the ELBO with respect to the means, which is zero at an optimum.
    """
    latents = used[:LATENTS]
    slopes = expected_slopes(sample, latents)
    variance, prior_variance = (v[:, latents].double() for v in (sample.variance, sample.prior_variance))
    added = 1 / variance - 1 / prior_variance
    ratios = added / slopes.squares
    # variances above half of the prior's are determined by the prior
    reliable = (added * prior_variance > 1) & ratios.isfinite()
    if not bool(reliable.any()):
        return None, None
    implied = float(ratios[reliable].median())
    pull = (sample.mean - sample.prior_mean)[:, latents].double() / prior_variance
    shift = variance * (implied * slopes.log_likelihood - pull).square()
    return implied, float(shift.mean(1).median())


@dataclass(frozen=True, eq=False)
class Slopes:
    """Expected derivatives over z ~ q with respect to some latents."""

    squares: Float[Tensor, "N u"]
    """E‖∂f/∂z_k‖², in units of the noise of each output."""
    log_likelihood: Float[Tensor, "N u"]
    """E[∂ log p(x|z)/∂z_k], of a Gaussian likelihood with precision 1. Zero if outputs and x differ in shape."""


def expected_slopes(sample: EncodedSample, latents: list[int]) -> Slopes:
    """By differences of half a posterior deviation, at pairs of opposite draws."""
    generator, deviation, x = randomness.generator(0, "slopes"), sample.variance.sqrt(), sample.observations
    squares = torch.zeros(len(sample), len(latents), dtype=torch.float64)
    log_likelihood = torch.zeros_like(squares)
    half = torch.randn((SLOPE_DRAWS // 2, *sample.mean.shape), generator=generator, dtype=sample.mean.dtype)
    for noise in torch.cat([half, -half]):
        z = sample.mean + deviation * noise
        weights = output_weights(sample.model.likelihood, sample.decode(z).double())
        for column, k in enumerate(latents):
            step = torch.zeros_like(z)
            step[:, k] = (STEP * deviation[:, k]).clamp(min=SMALLEST_STEP)
            length = 2 * step[:, k].double() * SLOPE_DRAWS
            above, below = (sample.decode(code).double() for code in (z + step, z - step))
            moved = (above - below) * (weights.squeeze(2) if isinstance(weights, Tensor) else weights)
            squares[:, column] += moved.square().sum(1) / length.square() * SLOPE_DRAWS
            if above.shape == x.shape:
                log_likelihood[:, column] += _gain(sample.model.likelihood, x.double(), above, below) / length
    return Slopes(squares, log_likelihood)


def _gain(likelihood: str | None, x: Tensor, above: Tensor, below: Tensor) -> Float[Tensor, " N"]:
    """log p(x | above) - log p(x | below)."""
    if likelihood == "bernoulli":
        above, below = (output.clamp(SMALLEST_VARIANCE, 1 - SMALLEST_VARIANCE) for output in (above, below))
        return (x * (above / below).log() + (1 - x) * ((1 - above) / (1 - below)).log()).sum(1)
    return 0.5 * ((x - below).square() - (x - above).square()).sum(1)


FAR = 0.5  # |log E[(μ² + σ²)/σ†²]| that no healthy model of the zoo has
NEAR_FACTOR = 2.5  # largest factor between γ²/β as stated and as implied by a reading that is right
FAR_FACTORS = 2.0, 2.8  # smallest such factor of a reading that is wrong, without and with scatter
SCATTERS = 2.3  # times the scatter that the log of that factor exceeds
SCATTER_RATIOS = {"squared variance": 0.7, "standard deviation": 1.75, "log standard deviation": 1.75}
"""Largest scatter, relative to the stated reading's: otherwise a low β looks like squares, a high one like roots."""
RIGHT_SLOPE = 0.03  # distance of the stated reading's slope of x on reconstructions from 1, if it is right
WRONG_SLOPE = 0.06, 2.0  # least such distance of a wrong reading, absolute and in standard errors
SCALE_DRAWS = 4
INFORMATIVE = 0.1  # mean |log σ²/σ†²| below which posteriors are at their prior, and all readings agree
SCALE_CODES = 48  # at which the decoder is differentiated
SCALE_LATENTS = 256  # with more latents the check is skipped
SCALE_STEP = 0.05  # of differences, in standard deviations of the prior
USER_STEP = 0.2  # the same of a log-likelihood, whose second differences are noisier


@dataclass(frozen=True)
class ScaleFit:
    """How well one reading of the encoder's second output agrees with what is true of trained VAEs."""

    name: str
    moment: float
    """Mean |log E[(μ² + σ²)/σ†²]| over latents: 0 at any optimum, whatever β, likelihood and decoder."""
    scatter: float
    """Mean |log σ² - log σ²*| over codes and latents in use, σ²* by Eq. 12 with the best common factor."""
    factor: float
    """That common factor: effective over declared γ²/β."""


def curvature(sample: EncodedSample) -> Float[Tensor, "P d"] | None:
    """-∂² log p(x|z) / ∂z_k² at the posterior means, by differences of the decoder; None if that is not possible."""
    model, z = sample.model, sample.mean
    if not model.has_decoder or z.shape[1] > SCALE_LATENTS:
        return None
    if model.log_likelihood is not None:
        return _user_curvature(sample)
    columns = []
    try:
        with torch.no_grad():
            weights = output_weights(model.likelihood, sample.decode(z).double())
            weights = weights.squeeze(2) if isinstance(weights, Tensor) else weights
            for k in range(z.shape[1]):
                step = torch.zeros_like(z)
                step[:, k] = SCALE_STEP * sample.prior_variance[:, k].sqrt()
                moved = (sample.decode(z + step).double() - sample.decode(z - step).double()) * weights
                columns.append(moved.square().sum(1) / (2 * step[:, k].double()).square())
    except (InputError, RuntimeError, NotImplementedError):
        return None
    found = torch.stack(columns, dim=1) * (model.precision or 1.0) / declared_beta(model)
    return found if bool(found.isfinite().all()) else None


def _user_curvature(sample: EncodedSample) -> Float[Tensor, "P d"] | None:
    """The same from a user's log-likelihood."""
    z, log_p, columns = sample.mean, sample_log_likelihood(sample), []
    try:
        with torch.no_grad():
            x, here = sample.observations, log_p(sample.observations, z).double()
            for k in range(z.shape[1]):
                step = torch.zeros_like(z)
                step[:, k] = USER_STEP * sample.prior_variance[:, k].sqrt()
                sides = log_p(x, z + step).double() + log_p(x, z - step).double()
                columns.append((2 * here - sides) / step[:, k].double().square())
    except (InputError, Skipped, RuntimeError, NotImplementedError):
        return None
    found = torch.stack(columns, dim=1).clamp(min=0)
    return found if bool(found.isfinite().all()) else None


def scale_fits(sample: EncodedSample, second: Float[Tensor, "N d"]) -> list[ScaleFit]:
    """How well every possible reading of `second`, the encoder's second output, fits."""
    codes = sample.random_subset(SCALE_CODES)
    curved = curvature(codes)
    index = np.random.default_rng(0).permutation(len(sample))[:SCALE_CODES]
    fits = []
    for name, (function, logarithmic) in SCALES.items():
        if not logarithmic and not bool((second >= 0).all()):
            continue
        variance = function(second.double()).clamp(1e-300, 1e300)
        ratio = variance / sample.prior_variance.double()
        shift = (sample.mean - sample.prior_mean).double().square() / sample.prior_variance.double()
        moment = float((ratio + shift).mean(0).clamp(1e-300, 1e300).log().abs().mean())
        scatter, factor = (math.nan, math.nan) if curved is None else _scatter(ratio[index], curved)
        fits.append(ScaleFit(name, moment, scatter, factor))
    return fits


def _scatter(ratio: Float[Tensor, "P d"], curved: Float[Tensor, "P d"]) -> tuple[float, float]:
    """The smallest mean distance from Eq. 12 over a common factor of the curvature, and that factor."""
    factors = torch.logspace(-6, 30, 361, dtype=torch.float64)
    used = curved.mean(0) > 1e-2 * curved.mean(0).max()
    predicted = -torch.log1p(factors[:, None, None] * curved[:, used])
    distance = (ratio[:, used].log() - predicted).abs().mean((1, 2))
    best = int(distance.argmin())
    return float(distance[best]), float(factors[best])


@dataclass(frozen=True)
class VarianceScale:
    """What the encoder's second output is taken for."""

    name: str
    """One of `SCALES`."""
    expected: str
    """`variance`, or `log-variance` if there are negative numbers."""
    constant: bool
    """Whether it is the same number for all samples and latents."""
    taken: ScaleFit | None
    """What the caller declared it to be."""
    found: ScaleFit | None
    """As what it is taken for."""


def find_scale(sample: EncodedSample, second: Float[Tensor, "N d"], *, certain: bool = False) -> VarianceScale:
    """Decide what the encoder's second output is.

    At any optimum, E[(μ² + σ²)/σ†²] = 1 for every latent, since the decoder can absorb the scale of a latent; and
    variances follow the curvature of the likelihood (Eq. 12), with factor 1 if the likelihood and β are as stated. A
    reading other than the stated one needs to agree with both, where the stated one does not.

    Args:
        sample: samples of the model, with variances as stated.
        second: what the encoder returned.
        certain: whether it is known to be what it is declared to be.
    """
    expected = "log-variance" if bool((second < 0).any()) else "variance"
    spread = (second.double() if expected != "variance" else second.double().clamp(min=1e-300).log()).std()
    constant = bool(spread < 1e-3) and second.numel() > 1
    if not bool(second.isfinite().all()) or constant:
        return VarianceScale(expected, expected, constant, None, None)
    fits = {fit.name: fit for fit in scale_fits(sample, second)}
    stated = fits[expected]
    model = sample.model
    known = model.log_likelihood is not None or model.precision is not None or model.likelihood == "bernoulli"
    variance = SCALES[expected][0](second.double()).clamp(1e-300, 1e300) / sample.prior_variance.double()
    certain = certain or float(variance.log().abs().mean()) < INFORMATIVE
    others = [] if certain else [f for f in fits.values() if SCALES[f.name][1] == SCALES[expected][1]]
    candidates = [f for f in others if _explains(f, stated, known)]
    if any(f is not stated for f in candidates):
        candidates = [f for f in candidates if not ruled_out(sample, second, f.name, expected)]
    best = min(candidates, key=_distance, default=stated)
    return VarianceScale(best.name, expected, constant, stated, best)


def _explains(other: ScaleFit, stated: ScaleFit, known: bool) -> bool:
    """Whether another reading agrees with what is true of trained VAEs, and the stated one does not."""
    if stated.moment > FAR and other.moment < min(FAR, stated.moment / 3):
        return True
    if not known or math.isnan(stated.factor):
        return False
    least, most = (math.log(factor) for factor in FAR_FACTORS)
    near = abs(math.log(other.factor)) < math.log(NEAR_FACTOR)
    far = abs(math.log(stated.factor)) > min(most, max(least, SCATTERS * stated.scatter))
    if not near or not far:
        return False
    ratio = SCATTER_RATIOS.get(other.name)
    if ratio is None:
        return other.moment + other.scatter < stated.moment + stated.scatter
    allowed = ratio * stated.scatter + 0.01
    return other.moment < FAR and other.scatter < allowed and other.moment + other.scatter < stated.moment + allowed


def ruled_out(sample: EncodedSample, second: Float[Tensor, "N d"], other: str, stated: str) -> bool:
    """Whether the decoder was trained with draws of the stated variances, and not with those of another reading.

    Wider draws than those of training make the slope of x on reconstructions smaller than 1, narrower ones larger. With
    a likelihood of the user, outputs need not be means of x.
    """
    if other == stated or sample.model.log_likelihood is not None or not sample.model.has_decoder:
        return False
    count = affordable_samples(sample.x[0].numel())
    readings = (SCALES[name][0](second.double()).clamp(1e-30, 1e12) for name in (other, stated))
    own, reference = (replace(sample, variance=variance).random_subset(count) for variance in readings)
    try:
        right = slope_of_draws(reference, SCALE_DRAWS)
        wrong = None if right is None or right.off(RIGHT_SLOPE, 0.0) else slope_of_draws(own, SCALE_DRAWS)
    except (InputError, Skipped, RuntimeError, NotImplementedError):
        return False
    wider = bool(own.variance.log().mean() > reference.variance.log().mean())
    return wrong is not None and wrong.off(*WRONG_SLOPE) and wider == (wrong.value < 1)


def _distance(fit: ScaleFit) -> float:
    return fit.moment + (0.0 if math.isnan(fit.scatter) else fit.scatter + abs(math.log(fit.factor)) / 2)
