"""Training samples against held-out ones: does the model overfit?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.adapters.log_likelihood import likelihood_is_known, sample_log_likelihood
from vaescope.encoded import EncodedSample
from vaescope.regime.posteriors import posteriors_of
from vaescope.skipped import Skipped

DRAWS = 4  # of z, per sample


@dataclass(frozen=True)
class Generalisation:
    """The ELBO on training and on held-out samples, in nats per sample, and the reconstruction of both."""

    train: float
    held_out: float
    stderr: float
    """Standard error of the difference."""
    error_ratio: float
    """Squared error of z ~ q on held-out samples over that on training samples."""
    error_score: float
    """Difference of these errors, in standard errors."""
    explained: float
    """Share of the variance of the training samples that their reconstructions explain."""

    @property
    def lost(self) -> float:
        """Nats that held-out samples have less."""
        return self.train - self.held_out

    def to_data(self) -> dict[str, object]:
        return {"train_elbo": self.train, "held_out_elbo": self.held_out, "stderr": self.stderr}


@torch.no_grad()
def measure_generalisation(train: EncodedSample, held_out: EncodedSample) -> Generalisation:
    """The ELBO of both; without a known likelihood, a Gaussian one with the errors of the training samples."""
    errors = [_squared_error(sample) for sample in (train, held_out)]
    model, n = train.model, train.observations.shape[1]
    if not likelihood_is_known(model):
        precision = n / max(float(errors[0].mean()), 1e-300)
        fits = [-0.5 * precision * error + 0.5 * n * math.log(precision / (2 * math.pi)) for error in errors]
    else:
        fits = [_expected_log_likelihood(sample) for sample in (train, held_out)]
    elbos = [fit - torch.from_numpy(posteriors_of(s).kl.sum(1)) for fit, s in zip(fits, (train, held_out), strict=True)]
    if not all(bool(elbo.isfinite().all()) for elbo in elbos):
        raise Skipped("the ELBO of some samples is not finite")
    means = [float(error.mean()) for error in errors]
    x = train.observations
    total = float((x - x.mean(0)).square().sum(1).mean())
    return Generalisation(
        float(elbos[0].mean()),
        float(elbos[1].mean()),
        _stderr(elbos),
        means[1] / max(means[0], 1e-300),
        (means[1] - means[0]) / max(_stderr(errors), 1e-300),
        1 - means[0] / max(total, 1e-300),
    )


def _stderr(groups: list[Float[Tensor, " _"]]) -> float:
    """Of the difference of two means."""
    return math.sqrt(sum(float(values.var()) / len(values) for values in groups))


def _draws(sample: EncodedSample) -> list[Tensor]:
    generator = randomness.generator(0, "generalisation")
    noise = torch.randn(DRAWS, *sample.mean.shape, generator=generator, dtype=sample.mean.dtype)
    return [sample.mean + sample.variance.sqrt() * one for one in noise]


def _squared_error(sample: EncodedSample) -> Float[Tensor, " N"]:
    x = sample.observations
    outputs = [sample.decode(z).double() for z in _draws(sample)]
    if any(output.shape != x.shape for output in outputs):
        raise Skipped("outputs and x differ in shape")
    return torch.stack([(x - output).square().sum(1) for output in outputs]).mean(0)


def _expected_log_likelihood(sample: EncodedSample) -> Float[Tensor, " N"]:
    log_p = sample_log_likelihood(sample)
    return torch.stack([log_p(sample.observations.to(z), z).double() for z in _draws(sample)]).mean(0)
