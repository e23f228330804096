"""The decoder's variance and β, as implied by reconstructions and by the widths of posteriors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.diagnosis.skipped import Skipped
from vaescope.encoded import EncodedSample
from vaescope.encoded.weights import declared_beta, output_weights

SAMPLES = 256  # whose reconstruction error is measured
DRAWS = 16  # of z, per sample
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
        }


def measure_noise(sample: EncodedSample, used: list[int]) -> Noise:
    """Reconstruction errors of draws, and what the widths of posteriors imply."""
    model, subset = sample.model, sample.random_subset(SAMPLES)
    error, x = _mean_squared_error(subset), subset.observations
    total = float((x - x.mean(0)).square().sum(1).mean())
    return Noise(
        precision=x.shape[1] / max(error, 1e-300),
        declared=1.0 if model.likelihood == "bernoulli" else model.precision,
        implied=None if model.likelihood is None else _implied_precision(sample.random_subset(CODES), used),
        explained=1 - error / total if total > 0 else math.nan,
        likelihood=model.likelihood,
        declared_beta=declared_beta(model),
    )


@torch.no_grad()
def _mean_squared_error(sample: EncodedSample) -> float:
    """E‖x - f(z)‖² for z ~ q."""
    generator, x = randomness.generator(0, "diagnosis"), sample.observations
    errors = torch.zeros(len(x), dtype=torch.float64)
    for _ in range(DRAWS):
        noise = torch.randn(sample.mean.shape, generator=generator, dtype=sample.mean.dtype)
        output = sample.decode(sample.mean + sample.variance.sqrt() * noise).double()
        if not bool(output.isfinite().all()):
            raise Skipped("the decoder returns NaN or infinity")
        if output.shape != x.shape:
            raise Skipped(f"the decoder returns {output.shape[1]} numbers per sample, but x has {x.shape[1]}")
        errors += (x - output).square().sum(1) / DRAWS
    return float(errors.mean())


@torch.no_grad()
def _implied_precision(sample: EncodedSample, used: list[int]) -> float | None:
    """Median over samples and latents in use of (1/σ² - 1/σ†²) / E‖c‖², c weighted by the likelihood.

    Eq. 12 with the expectation over the posterior: at wide posteriors the slope at the mean is not representative.
    """
    latents = used[:LATENTS]
    slopes = expected_slopes(sample, latents)
    prior_variance = sample.prior_variance[:, latents].double()
    added = 1 / sample.variance[:, latents].double() - 1 / prior_variance
    ratios = added / slopes
    # variances above half of the prior's are determined by the prior
    reliable = (added * prior_variance > 1) & ratios.isfinite()
    return float(ratios[reliable].median()) if bool(reliable.any()) else None


def expected_slopes(sample: EncodedSample, latents: list[int]) -> Float[Tensor, "N u"]:
    """E‖∂f/∂z_k‖² over z ~ q, in units of the noise of each output, by differences of half a posterior deviation."""
    generator, deviation = randomness.generator(0, "slopes"), sample.variance.sqrt()
    total = torch.zeros(len(sample), len(latents), dtype=torch.float64)
    for _ in range(SLOPE_DRAWS):
        noise = torch.randn(sample.mean.shape, generator=generator, dtype=sample.mean.dtype)
        z = sample.mean + deviation * noise
        weights = output_weights(sample.model.likelihood, sample.decode(z).double())
        for column, k in enumerate(latents):
            step = torch.zeros_like(z)
            step[:, k] = (STEP * deviation[:, k]).clamp(min=SMALLEST_STEP)
            moved = sample.decode(z + step).double() - sample.decode(z - step).double()
            moved = moved * (weights.squeeze(2) if isinstance(weights, Tensor) else weights)
            total[:, column] += moved.square().sum(1) / (2 * step[:, k].double()).square() / SLOPE_DRAWS
    return total
