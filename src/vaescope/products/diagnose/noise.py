"""The decoder's variance and β, and what the encoder's second output is, from reconstructions and posterior widths."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.analysis.encoding import SMALLEST_VARIANCE, EncodedSample, declared_beta, output_weights
from vaescope.analysis.geometry import implied_precision
from vaescope.analysis.likelihood import log_p_slopes
from vaescope.analysis.models import SCALES, likelihood_is_known, sample_log_likelihood
from vaescope.core import randomness
from vaescope.core.errors import InputError, Skipped
from vaescope.core.serialization import plain_fields
from vaescope.distributions.likelihoods import log_likelihood
from vaescope.products.diagnose.thresholds import LIMITS
from vaescope.regime.model import regime_of

FEWEST_SAMPLES = 30  # for fewer, the standard error of a slope means nothing


@dataclass(frozen=True)
class Slope:
    """The slope of the regression of x on reconstructions, with its standard error over samples."""

    value: float
    stderr: float

    def off(self, least: float, errors: float) -> bool:
        """Whether it differs from 1 by more than this, and by more than so many standard errors."""
        return abs(self.value - 1) > max(least, errors * self.stderr)


def affordable_samples(outputs: int) -> int:
    """How many samples with this many outputs are reconstructed at once: 500, or fewer to limit the memory."""
    return max(FEWEST_SAMPLES, min(500, 20_000_000 // max(1, outputs)))


@torch.no_grad()
def reconstruct_draws(sample: EncodedSample, draws: int, purpose: str) -> tuple[float, Slope | None]:
    """E‖x - f(z)‖² for z ~ q, and the slope of x on f(z), both sides centred, over all outputs and draws.

    The slope is None if reconstructions do not differ, or for few samples.

    Args:
        sample: whose codes are drawn.
        draws: how many per sample.
        purpose: names the stream of random numbers.
    """
    x = sample.observations
    centred = x - x.mean(0)
    products, squares = torch.zeros(2, len(x), dtype=torch.float64)
    generator, deviation, error = randomness.generator(0, purpose), sample.variance.sqrt().to(sample.mean), 0.0
    for _ in range(draws):
        noise = torch.randn(sample.mean.shape, generator=generator, dtype=sample.mean.dtype)
        output = sample.decode(sample.mean + deviation * noise).double()
        if not bool(output.isfinite().all()):
            raise Skipped("the decoder returns NaN or infinity")
        sample.check_output(output)
        error += float((x - output).square().sum(1).mean()) / draws
        output = output - output.mean(0)
        products += (centred * output).sum(1)
        squares += output.square().sum(1)
    total = float(squares.sum())
    if len(x) < FEWEST_SAMPLES or not total > 0:
        return error, None
    value = float(products.sum()) / total
    return error, Slope(value, float((products - value * squares).square().sum().sqrt()) / total)


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
        names = ("precision", "declared", "implied", "explained", "shift")
        data: dict[str, object] = {name: getattr(self, name) for name in names}
        return data | {"effective_beta": self.beta, "slope": None if self.slope is None else plain_fields(self.slope)}


def measure_noise(sample: EncodedSample, used: list[int]) -> Noise:
    """Reconstruction errors of draws, and what the widths of posteriors imply."""
    model = sample.model
    subset = sample.random_subset(affordable_samples(sample.x[0].numel()))
    error, slope = reconstruct_draws(subset, 4, "diagnosis")
    x = subset.observations
    total = float((x - x.mean(0)).square().sum(1).mean())
    implied, shift = (None, None) if model.likelihood is None else _implied(sample.random_subset(64), used[:32])
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
def _implied(sample: EncodedSample, latents: list[int]) -> tuple[float | None, float | None]:
    """The γ²/β that widths of posteriors imply, and how far means are from those that it makes optimal.

    The first is the median over samples and latents of (1/σ² - 1/σ†²) / E‖c‖², c weighted by the likelihood:
    Eq. 12 with the expectation over the posterior, because at wide posteriors the slope at the mean is not
    representative. The second is the gradient of the ELBO with respect to the means, which is zero at an optimum.
    """
    slopes = expected_slopes(sample, latents)
    variance, prior_variance = (v[:, latents].double() for v in (sample.variance, sample.prior_variance))
    implied = implied_precision(variance, prior_variance, slopes.squares)
    if implied is None:
        return None, None
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


def expected_slopes(sample: EncodedSample, latents: list[int], *, draws: int = 4) -> Slopes:
    """By differences of half a posterior deviation, at pairs of opposite draws."""
    generator, deviation, x = randomness.generator(0, "slopes"), sample.variance.sqrt(), sample.observations
    likelihood = sample.model.likelihood

    def gain(above: Tensor, below: Tensor) -> Float[Tensor, " N"]:
        """log p(x | above) - log p(x | below)."""
        if likelihood == "bernoulli":
            above, below = (output.clamp(SMALLEST_VARIANCE, 1 - SMALLEST_VARIANCE) for output in (above, below))
            return (x * (above / below).log() + (1 - x) * ((1 - above) / (1 - below)).log()).sum(1)
        return 0.5 * ((x - below).square() - (x - above).square()).sum(1)

    squares = torch.zeros(len(sample), len(latents), dtype=torch.float64)
    log_likelihood = torch.zeros_like(squares)
    half = torch.randn((draws // 2, *sample.mean.shape), generator=generator, dtype=sample.mean.dtype)
    for noise in torch.cat([half, -half]):
        z = sample.mean + deviation * noise
        weights = output_weights(likelihood, sample.decode(z).double())
        for column, k in enumerate(latents):
            step = torch.zeros_like(z)
            step[:, k] = (0.5 * deviation[:, k]).clamp(min=1e-3)  # differences of smaller steps are rounding errors
            length = 2 * step[:, k].double() * draws
            above, below = (sample.decode(code).double() for code in (z + step, z - step))
            moved = (above - below) * (weights.squeeze(2) if isinstance(weights, Tensor) else weights)
            squares[:, column] += moved.square().sum(1) / length.square() * draws
            if above.shape == x.shape:
                log_likelihood[:, column] += gain(above, below) / length
    return Slopes(squares, log_likelihood)


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


@torch.no_grad()
def curvature(sample: EncodedSample, *, step: float = 0.05, user_step: float = 0.2) -> Float[Tensor, "P d"] | None:
    """-∂² log p(x|z) / ∂z_k² at the posterior means, by differences; None if that is not possible.

    Args:
        sample: at most 256 latents, else it takes too long.
        step: of differences of the decoder, in standard deviations of the prior.
        user_step: the same of a user's log-likelihood, whose second differences are noisier.
    """
    model, z = sample.model, sample.mean
    given, columns = model.log_likelihood is not None, []
    if not (model.has_decoder or given) or z.shape[1] > 256:
        return None
    log_p: Callable[[Tensor, Tensor], Tensor] | None = sample_log_likelihood(sample) if given else None
    try:
        x = sample.observations
        here = None if log_p is None else log_p(x, z).double()
        weights = 1.0 if given else output_weights(model.likelihood, sample.decode(z).double())
        weights = weights.squeeze(2) if isinstance(weights, Tensor) else weights
        for k in range(z.shape[1]):
            moved = torch.zeros_like(z)
            moved[:, k] = (user_step if given else step) * sample.prior_variance[:, k].sqrt()
            width = moved[:, k].double()
            if log_p is None or here is None:
                change = (sample.decode(z + moved).double() - sample.decode(z - moved).double()) * weights
                columns.append(change.square().sum(1) / (2 * width).square())
            else:
                sides = log_p(x, z + moved).double() + log_p(x, z - moved).double()
                columns.append((2 * here - sides) / width.square())
    except (InputError, Skipped, RuntimeError, NotImplementedError):
        return None
    found = torch.stack(columns, dim=1)
    found = found.clamp(min=0) if given else found * (model.precision or 1.0) / declared_beta(model)
    return found if bool(found.isfinite().all()) else None


def scale_fits(sample: EncodedSample, second: Float[Tensor, "N d"], *, codes: int = 48) -> list[ScaleFit]:
    """How well every possible reading of `second`, the encoder's second output, fits.

    Args:
        sample: samples of the model, with variances as stated.
        second: what the encoder returned.
        codes: at how many codes the decoder is differentiated.
    """
    curved = curvature(sample.random_subset(codes))
    index = np.random.default_rng(0).permutation(len(sample))[:codes]
    fits = []
    for name, (function, logarithmic) in SCALES.items():
        if not logarithmic and not bool((second >= 0).all()):
            continue
        variance = function(second.double()).clamp(1e-300, 1e300)
        ratio = variance / sample.prior_variance.double()
        shift = (sample.mean - sample.prior_mean).double().square() / sample.prior_variance.double()
        moment = float((ratio + shift).mean(0).clamp(1e-300, 1e300).log().abs().mean())
        scatter = factor = math.nan
        if curved is not None:  # the smallest mean distance from Eq. 12 over a common factor of the curvature
            factors = torch.logspace(-6, 30, 361, dtype=torch.float64)
            used = curved.mean(0) > 1e-2 * curved.mean(0).max()
            predicted = -torch.log1p(factors[:, None, None] * curved[:, used])
            distance = (ratio[index][:, used].log() - predicted).abs().mean((1, 2))
            scatter, factor = float(distance.min()), float(factors[int(distance.argmin())])
        fits.append(ScaleFit(name, moment, scatter, factor))
    return fits


@dataclass(frozen=True)
class VarianceScale:
    """What the encoder's second output is taken for."""

    name: str
    """One of `SCALES`."""
    expected: str
    """`variance`, or `log-variance` if there are negative numbers."""
    constant: bool
    """Whether it is the same number for all samples and latents."""
    stated: ScaleFit | None
    """How well it fits as what the caller declared it to be."""
    taken: ScaleFit | None
    """As what it is taken for."""


def find_scale(sample: EncodedSample, second: Float[Tensor, "N d"]) -> VarianceScale:
    """Decide what the encoder's second output is.

    At any optimum, E[(μ² + σ²)/σ†²] = 1 for every latent, since the decoder can absorb the scale of a latent; and
    variances follow the curvature of the likelihood (Eq. 12), with factor 1 if the likelihood and β are as stated. A
    reading other than the stated one needs to agree with both, where the stated one does not.

    Args:
        sample: samples of the model, with variances as stated.
        second: what the encoder returned.
    """
    model = sample.model
    if model.latent_shape is not None:
        raise Skipped("codes of latent images are not trained to have the scale of the prior")
    expected = "log-variance" if bool((second < 0).any()) else "variance"
    spread = (second.double() if expected != "variance" else second.double().clamp(min=1e-300).log()).std()
    constant = bool(spread < 1e-3) and second.numel() > 1
    if not bool(second.isfinite().all()) or constant:
        return VarianceScale(expected, expected, constant, None, None)
    fits = {fit.name: fit for fit in scale_fits(sample, second)}
    stated = fits[expected]
    known = model.log_likelihood is not None or model.precision is not None or model.likelihood == "bernoulli"
    variance = SCALES[expected][0](second.double()).clamp(1e-300, 1e300) / sample.prior_variance.double()
    certain = model.returns_variances or float(variance.log().abs().mean()) < LIMITS.informative
    others = [] if certain else [f for f in fits.values() if SCALES[f.name][1] == SCALES[expected][1]]
    candidates = [f for f in others if _explains(f, stated, known)]
    if any(f is not stated for f in candidates):
        candidates = [f for f in candidates if not ruled_out(sample, second, f.name, expected)]

    def distance(fit: ScaleFit) -> float:
        return fit.moment + (0.0 if math.isnan(fit.scatter) else fit.scatter + abs(math.log(fit.factor)) / 2)

    best = min(candidates, key=distance, default=stated)
    if best.name in ("standard deviation", "log standard deviation"):  # or variances with which training drew
        noise = measure_noise_of_draws(sample, regime_of([sample]).used)
        best = stated if noise is not None and noise.is_squared else best
    return VarianceScale(best.name, expected, constant, stated, best)


def _explains(other: ScaleFit, stated: ScaleFit, known: bool) -> bool:
    """Whether another reading agrees with what is true of trained VAEs, and the stated one does not."""
    if stated.moment > LIMITS.far_moment and other.moment < min(LIMITS.far_moment, stated.moment / 3):
        return True
    if not known or math.isnan(stated.factor):
        return False
    least, most = (math.log(factor) for factor in LIMITS.far_factors)
    near = abs(math.log(other.factor)) < math.log(LIMITS.near_factor)
    far = abs(math.log(stated.factor)) > min(most, max(least, LIMITS.scatters * stated.scatter))
    if not near or not far:
        return False
    if other.name not in ("squared variance", "standard deviation", "log standard deviation"):
        return other.moment + other.scatter < stated.moment + stated.scatter
    ratio = LIMITS.scatter_of_square if other.name == "squared variance" else LIMITS.scatter_of_root
    allowed = ratio * stated.scatter + 0.01
    return (
        other.moment < LIMITS.far_moment
        and other.scatter < allowed
        and other.moment + other.scatter < stated.moment + allowed
    )


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
        right = reconstruct_draws(reference, 4, "calibration")[1]
        if right is None or right.off(LIMITS.right_slope, 0.0):
            return False
        wrong = reconstruct_draws(own, 4, "calibration")[1]
    except (InputError, Skipped, RuntimeError, NotImplementedError):
        return False
    wider = bool(own.variance.log().mean() > reference.variance.log().mean())
    return wrong is not None and wrong.off(*LIMITS.wrong_slope) and wider == (wrong.value < 1)


# traces that faults of a loss leave in a trained model


@dataclass(frozen=True)
class Draws:
    r"""Conditions of an optimum at draws z = μ + τε, for some noise τ.

    An encoder that was trained with this noise, and a KL of weight β, has

    .. math:: E[\partial_k \log p(x|z)] = \beta \mu_k, \quad
        -E[\tau_k \varepsilon_k\, \partial_k \log p(x|z)] = \beta\, \partial\,\mathrm{KL} / \partial \log \tau_k.
    """

    pull: float
    """Σ E[μ ∂] / Σ E[μ²]: the weight of the KL that means imply."""
    weight: Float[np.ndarray, " u"]
    """-E[τ ε ∂] / ∂KL/∂log τ of each latent: β with the noise of training."""

    @property
    def typical(self) -> float:
        """The median weight."""
        return float(np.median(self.weight))

    @property
    def spread(self) -> float:
        """Mean distance of log weights from that of the typical one."""
        return float(np.abs(np.log(np.maximum(self.weight, 1e-6) / max(self.typical, 1e-6))).mean())


@dataclass(frozen=True)
class SamplingNoise:
    """The noise that training drew with, relative to the deviations of the posteriors."""

    stated: Draws
    scaled: Draws
    """With as much less noise as makes the typical weight one."""
    squared: Draws
    r"""With τ = σ², which is what `std = exp(log_variance)` draws; then ∂KL/∂log τ = ½(1 - σ²)."""
    settled: float
    """Mean |log E[μ² + σ²]|, which is 0 at an optimum of the ELBO, and of an ELBO with less noise."""
    moment: float
    """Mean |log E[2μ² + σ²]|, which is 0 at an optimum of that loss: rescaling codes changes σ with the scale of τ."""

    @property
    def is_squared(self) -> bool:
        """Whether training drew with σ² in place of σ."""
        law = max(abs(math.log(max(self.squared.typical, 1e-6))), self.squared.spread)
        return max(law, self.moment) < LIMITS.law_of_draws

    @property
    def is_scaled(self) -> bool:
        """Whether training drew with less than σ, by one factor for all latents.

        Means then follow a KL of weight 1, and the widths of posteriors one of 1/factor². With a KL of a high weight,
        both follow that.
        """
        weight = self.stated.typical
        if not weight > LIMITS.less_noise**2:  # also if it is negative
            return False
        means = self.stated.pull < LIMITS.not_followed * weight and abs(self.scaled.pull) < math.sqrt(weight)
        means = means and self.settled < LIMITS.law_of_draws
        return means and not self.is_squared and self.stated.spread < LIMITS.spread_of_draws


@torch.no_grad()
def measure_noise_of_draws(sample: EncodedSample, used: list[int], *, samples: int = 192) -> SamplingNoise | None:
    """Which noise the decoder was trained with; None if the posteriors are as wide as an optimum makes them.

    Args:
        sample: of a model with a known likelihood, variances as they are returned.
        used: latents in use.
        samples: at how many of them.
    """
    if not likelihood_is_known(sample.model) or not used or len(used) > 32:
        return None
    subset = sample.random_subset(samples)
    slope, deviation = log_p_slopes(subset, used), subset.variance.sqrt()
    centre, prior = (v[:, used].double() for v in (subset.prior_mean, subset.prior_variance))
    mean, variance = (subset.mean[:, used].double() - centre), subset.variance[:, used].double()
    half = torch.randn(
        (4, *subset.mean.shape), generator=randomness.generator(0, "training draws"), dtype=subset.mean.dtype
    )

    def at(noise: Float[Tensor, "N d"], law: Float[Tensor, "N u"]) -> Draws:
        pulled, curved = torch.zeros_like(mean), torch.zeros_like(mean)
        for epsilon in torch.cat([half, -half]):
            found = slope(subset.mean + noise * epsilon) / len(half) / 2
            pulled += mean * found
            curved -= (noise * epsilon)[:, used].double() * found
        if not bool(pulled.isfinite().all() and curved.isfinite().all()):
            raise Skipped("the derivatives of log p(x|z) are not finite")
        width = curved.mean(0)
        pull = float((pulled.mean(0) * prior.mean(0)).sum() / mean.square().mean(0).sum().clamp(min=1e-12))
        return Draws(pull, (width / law.mean(0).clamp(min=1e-12)).numpy())

    law = 1 - variance / prior
    stated = at(deviation, law)
    if not stated.weight.max() > 2:  # draws that were narrower in training make posteriors look too wide
        return None
    squared = at(subset.variance, 0.5 * law)
    squares, ratio = mean.square() / prior, variance / prior
    moment, settled = (float((c * squares + ratio).mean(0).log().abs().mean()) for c in (2, 1))
    scaled = at(deviation / max(1.0, stated.typical) ** 0.5, law)
    return SamplingNoise(stated, scaled, squared, settled, moment)


@dataclass(frozen=True)
class Clamp:
    """Posterior variances of latents in use that are at a bound."""

    lower: bool
    """Whether it is the smallest variance."""
    value: float
    """In units of the prior."""
    share: float
    """Of all variances of latents in use."""
    constant: bool
    """Whether all of them are."""
    latents: list[int]
    """With variances at the bound."""


def find_clamp(sample: EncodedSample, used: list[int], *, least: float = 0.1) -> Clamp | None:
    """The bound at which at least this share of variances is, to the last bit; None without one.

    A latent with one variance for all samples may be meant to have it, so it counts only beside others with a part of
    theirs at the same number.
    """
    values = sample.variance[:, used]
    if values.numel() < 50:
        return None
    constant = bool((values == values[0, 0]).all())
    for lower, value in ((True, values.min()), (False, values.max())):
        at = values == value
        share, columns = float(at.double().mean()), at.double().mean(0)
        some = int((columns > 0.01).sum())
        if share >= least and (constant or some > 1 or bool(((columns > 0.01) & (columns < 1)).any())):
            latents = [k for k, one in zip(used, columns.tolist(), strict=True) if one > 0.01]
            bound = float(value / sample.prior_variance[:, used].double().mean())
            return Clamp(lower, bound, share, constant, latents)
    return None


@dataclass(frozen=True)
class Sigmoids:
    """A sigmoid that was applied to probabilities: by the decoder, or by the loss of training."""

    decoder: bool
    """Whether the decoder's outputs are sigmoids of probabilities."""
    low: float
    high: float
    """Of the decoder's outputs."""
    gain: float
    """Nats of log p(x|z) with one sigmoid less (decoder) or more (loss) than stated."""


HALF, TOP = 0.5, 1 / (1 + math.exp(-1))  # sigmoids of 0 and 1


@torch.no_grad()
def find_sigmoids(sample: EncodedSample) -> Sigmoids | None:
    """Whether outputs of a Bernoulli decoder are sigmoids of probabilities, or were taken for logits in training."""
    model = sample.model
    if model.likelihood != "bernoulli" or not model.has_decoder or model.log_likelihood is not None:
        return None
    subset = sample.random_subset(256)
    x, p = subset.observations, subset.decoded.double()
    if p.shape != x.shape or bool((x < 0).any() or (x > 1).any()):
        return None

    def fit(means: Tensor) -> float:
        return float(log_likelihood("bernoulli", x, means).mean())

    low, high, rounding = float(p.min()), float(p.max()), 1e-4
    at_edge = low < HALF + LIMITS.edge or high > TOP - LIMITS.edge
    if low >= HALF - rounding and high <= TOP + rounding and at_edge:
        inside = p.clamp(HALF + rounding, TOP - rounding)
        gain = fit((inside / (1 - inside)).log().clamp(1e-3, 1 - 1e-3)) - fit(p)
        return Sigmoids(True, low, high, gain) if gain > 0 else None  # outputs may be 0.5 for another reason
    extreme = float(((p < 0.02) | (p > 0.98)).double().mean())
    gain = fit(p.sigmoid()) - fit(p.clamp(1e-3, 1 - 1e-3))
    return Sigmoids(False, low, high, gain) if low >= 0 and high <= 1 and extreme > 0.5 and gain > 0 else None
