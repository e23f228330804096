"""The decoder's variance and β, as implied by reconstructions and by the widths of posteriors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.diagnosis.calibration import Slope, SlopeSums, affordable_samples, decoded_draws
from vaescope.encoded import EncodedSample
from vaescope.encoded.weights import SMALLEST_VARIANCE, declared_beta, output_weights
from vaescope.plain import plain_fields
from vaescope.skipped import Skipped

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
