"""Conditions that hold at every optimum of the ELBO, whatever the likelihood, the networks and the weight of the KL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.models import likelihood_is_known, sample_log_likelihood
from vaescope.core import randomness
from vaescope.core.errors import InputError, Skipped

FEWEST_SAMPLES = 30  # for fewer, standard errors mean nothing


@dataclass(frozen=True, eq=False)
class CodeMoments:
    r"""First and second moments of the codes of each latent in use, in units of the prior, with standard errors.

    The decoder can absorb the scale and the mean of a latent, which leaves only the KL to choose them. So at every
    optimum

    .. math:: E_x[(\mu_k + \sigma_k^2)] = 1, \quad E_x[\mu_k] = 0 \quad\text{(prior } N(0, 1)\text{)}

    whatever β, the likelihood and the decoder.
    """

    latents: list[int]
    mean: Float[np.ndarray, " u"]
    """E[μ]."""
    mean_error: Float[np.ndarray, " u"]
    square: Float[np.ndarray, " u"]
    """E[μ² + σ²]."""
    square_error: Float[np.ndarray, " u"]

    @property
    def scores(self) -> tuple[Float[np.ndarray, " u"], Float[np.ndarray, " u"]]:
        """Distances of both from what they are at an optimum, in standard errors."""
        square, mean = (np.maximum(error, 1e-12) for error in (self.square_error, self.mean_error))
        return np.abs(self.square - 1) / square, np.abs(self.mean) / mean

    @property
    def saved(self) -> Float[np.ndarray, " u"]:
        """Nats of KL that each latent would save if its codes were shifted and scaled, at the same reconstructions."""
        spread = np.maximum(self.square - self.mean**2, 1e-300)
        return 0.5 * (self.square - 1 - np.log(spread))


def measure_moments(sample: EncodedSample, used: list[int]) -> CodeMoments:
    """Moments of codes over samples.

    Args:
        sample: encoded samples.
        used: latents in use; without any, all latents are measured.
    """
    used = used or list(range(sample.mean.shape[1]))
    if len(sample) < FEWEST_SAMPLES:
        raise Skipped(f"moments of codes are judged from {FEWEST_SAMPLES} samples on")
    mean, variance, centre, width = (
        v[:, used].double().cpu() for v in (sample.mean, sample.variance, sample.prior_mean, sample.prior_variance)
    )
    shift = (mean - centre) / width.sqrt()
    square, root = shift.square() + variance / width, len(sample) ** 0.5
    values = (shift.mean(0), shift.std(0) / root, square.mean(0), square.std(0) / root)
    return CodeMoments(list(used), *(value.numpy() for value in values))


@dataclass(frozen=True, eq=False)
class Weights:
    r"""The weight of the KL that posteriors imply, for each latent in use.

    With :math:`z = \mu + \sigma\varepsilon`, the derivatives of the objective with respect to log σ and μ are zero at
    :math:`-E[\sigma_k \varepsilon_k\, \partial_k \log p(x|z)] = \beta\,(1 - \sigma_k^2)` and
    :math:`E[\partial_k \log p(x|z)] = \beta \mu_k`.
    """

    latents: list[int]
    beta: Float[np.ndarray, " u"]
    """Ratio of the means over samples of both sides of the first equation."""
    stderr: Float[np.ndarray, " u"]
    shift: float
    """Median over samples of the mean over latents of the squared second residual, in posterior deviations, with the
    typical β."""

    @property
    def typical(self) -> float:
        """The median over latents."""
        return float(np.median(self.beta))


def measure_weights(sample: EncodedSample, used: list[int], *, samples: int = 128, draws: int = 8) -> Weights | None:
    """The weight of the KL from log p(x|z) and its derivatives alone; None if posteriors are too wide to tell.

    Args:
        sample: with a model whose likelihood is known.
        used: latents in use.
        samples: at how many of them.
        draws: of z for each, in pairs of opposite ones.
    """
    if not likelihood_is_known(sample.model):
        raise Skipped("the likelihood is not known")
    subset, latents = sample.random_subset(samples), used[:32]
    if not latents or len(subset) < FEWEST_SAMPLES:
        return None
    slope = _slopes(subset, latents)
    generator, deviation = randomness.generator(0, "weights"), subset.variance.sqrt()
    centre, width = subset.prior_mean[:, latents].double(), subset.prior_variance[:, latents].double()
    scale = deviation[:, latents].double()
    curved, pulled = torch.zeros_like(scale), torch.zeros_like(scale)
    half = torch.randn((draws // 2, *subset.mean.shape), generator=generator, dtype=subset.mean.dtype)
    for noise in torch.cat([half, -half]):
        found = slope(subset.mean + deviation * noise)
        pulled += found / draws
        curved -= found * scale * noise[:, latents].double() / draws
    if not bool(curved.isfinite().all() and pulled.isfinite().all()):
        raise Skipped("the derivatives of log p(x|z) are not finite")
    room = 1 - scale.square() / width
    told = (room.mean(0) > 0.5) & (curved.mean(0) > 0)  # wider posteriors are determined by the prior
    if not bool(told.any()):
        return None
    curved, room, pulled, scale = (v[:, told] for v in (curved, room, pulled, scale))
    beta = curved.mean(0) / room.mean(0)
    stderr = (curved - beta * room).std(0) / len(subset) ** 0.5 / room.mean(0)
    pull = ((subset.mean.double()[:, latents] - centre) / width)[:, told]
    shift = (scale / beta.median() * (pulled - beta.median() * pull)).square().mean(1).median()
    kept = [k for k, keep in zip(latents, told.tolist(), strict=True) if keep]
    return Weights(kept, beta.numpy(), stderr.numpy(), float(shift))


def _slopes(sample: EncodedSample, latents: list[int]) -> Callable[[Tensor], Float[Tensor, "N u"]]:
    """z -> ∂ log p(x|z)/∂z_k of some latents, by reverse mode; by differences if that is impossible."""
    log_p, x = sample_log_likelihood(sample), sample.observations

    def reverse(z: Tensor) -> Tensor:
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            value = log_p(x.to(z), z).sum()
            if not value.requires_grad:
                raise Skipped("log p(x|z) is not differentiable")
            return torch.autograd.grad(value, z)[0][:, latents].double()

    def differences(z: Tensor) -> Tensor:
        columns = []
        for k in latents:
            step = torch.zeros_like(z)
            step[:, k] = (0.5 * sample.variance[:, k].sqrt()).clamp(min=1e-3)
            change = log_p(x.to(z), z + step).double() - log_p(x.to(z), z - step).double()
            columns.append(change / (2 * step[:, k].double()))
        return torch.stack(columns, 1)

    try:
        reverse(sample.mean)
    except (Skipped, InputError, RuntimeError, NotImplementedError):
        return differences
    return reverse
