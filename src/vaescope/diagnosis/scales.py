"""What the encoder's second output is: a variance, or another quantity in its place."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.adapters.log_likelihood import sample_log_likelihood
from vaescope.adapters.repaired import SCALES
from vaescope.diagnosis.calibration import affordable_samples, slope_of_draws
from vaescope.encoded import EncodedSample
from vaescope.encoded.weights import declared_beta, output_weights
from vaescope.errors import InputError
from vaescope.skipped import Skipped

FAR = 0.5  # |log E[(μ² + σ²)/σ†²]| that no healthy model of the zoo has
NEAR_FACTOR = 2.5  # largest factor between γ²/β as stated and as implied by a reading that is right
FAR_FACTORS = 2.0, 2.8  # smallest such factor of a reading that is wrong, without and with scatter
SCATTERS = 2.3  # times the scatter that the log of that factor exceeds
SCATTER_RATIOS = {"squared variance": 0.7, "standard deviation": 1.75, "log standard deviation": 1.75}
"""Largest scatter, relative to the stated reading's: otherwise a low β looks like squares, a high one like roots."""
RIGHT_SLOPE = 0.03  # distance of the stated reading's slope of x on reconstructions from 1, if it is right
WRONG_SLOPE = 0.06, 2.0  # least such distance of a wrong reading, absolute and in standard errors
SLOPE_DRAWS = 4
INFORMATIVE = 0.1  # mean |log σ²/σ†²| below which posteriors are at their prior, and all readings agree
CODES = 48  # at which the decoder is differentiated
LATENTS = 256  # with more latents the check is skipped
STEP = 0.05  # of differences, in standard deviations of the prior
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
    if not model.has_decoder or z.shape[1] > LATENTS:
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
                step[:, k] = STEP * sample.prior_variance[:, k].sqrt()
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
    codes = sample.random_subset(CODES)
    curved = curvature(codes)
    index = np.random.default_rng(0).permutation(len(sample))[:CODES]
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
        right = slope_of_draws(reference, SLOPE_DRAWS)
        wrong = None if right is None or right.off(RIGHT_SLOPE, 0.0) else slope_of_draws(own, SLOPE_DRAWS)
    except (InputError, Skipped, RuntimeError, NotImplementedError):
        return False
    wider = bool(own.variance.log().mean() > reference.variance.log().mean())
    return wrong is not None and wrong.off(*WRONG_SLOPE) and wider == (wrong.value < 1)


def _distance(fit: ScaleFit) -> float:
    return fit.moment + (0.0 if math.isnan(fit.scatter) else fit.scatter + abs(math.log(fit.factor)) / 2)
