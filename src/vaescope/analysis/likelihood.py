"""The ELBO and its two terms, and log p(x), with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.models import RepairedModel, likelihood_is_known, sample_log_likelihood
from vaescope.analysis.posteriors import posteriors_of
from vaescope.core import randomness
from vaescope.core.budget import Budget
from vaescope.core.errors import Skipped
from vaescope.distributions import Prior
from vaescope.inference.joint import LikelihoodJoint
from vaescope.inference.marginal import smoothed_mean


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """Mean over samples with its standard error."""
    return float(values.mean()), float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.nan


UNKNOWN = "the likelihood is not known; pass precision=, likelihood= or log_likelihood= to the adapter"


@dataclass(frozen=True, eq=False)
class ElboTerms:
    """ELBO = -(rate + distortion) of each sample, in nats."""

    rate: Float[Tensor, " N"]
    """KL[q(z|x) || p(z)]."""
    distortion: Float[Tensor, " N"]
    """-E_q log p(x|z)."""
    numbers: int
    """Numbers per sample, for bits per number."""

    @property
    def elbo(self) -> Float[Tensor, " N"]:
        return -(self.rate + self.distortion)

    def mean(self, name: str) -> tuple[float, float]:
        """Mean of `elbo`, `rate` or `distortion`, and its standard error over samples."""
        return mean_and_error({"elbo": self.elbo, "rate": self.rate, "distortion": self.distortion}[name])

    @property
    def bits_per_number(self) -> float:
        """-ELBO in bits, divided by the numbers of a sample."""
        return -self.mean("elbo")[0] / math.log(2) / self.numbers

    def to_data(self) -> dict[str, object]:
        names = ("elbo", "rate", "distortion")
        parts: dict[str, object] = {n: dict(zip(("mean", "stderr"), self.mean(n), strict=True)) for n in names}
        return parts | {"samples": len(self.rate), "bits_per_number": self.bits_per_number}


@torch.no_grad()
def measure_elbo(sample: EncodedSample, *, draws: int = 8) -> ElboTerms:
    """Both terms at every sample: the KL in closed form where there is one, the rest by draws of z ~ q."""
    if not likelihood_is_known(sample.model):
        raise Skipped(UNKNOWN)
    # q(z|x) and p(z) must be known, not only their moments
    if isinstance(sample.model, RepairedModel) and sample.model.normal_prior is not None:
        raise Skipped("the prior is not normal; pass log_prior= and sample_prior= to the adapter")
    if sample.model.posterior_family != "diagonal" and sample.model.posterior_density is None:
        raise Skipped("encode returns the marginals of q(z|x), not q itself; pass sample= and log_q= to the adapter")
    log_p, x = sample_log_likelihood(sample), sample.observations
    ratios, fits = [], []
    with randomness.seeded("elbo"):
        for z in (draw_posterior(sample, k) for k in range(draws)):
            fits.append(log_p(x.to(z), z).double())
            ratios.append(log_ratio(sample, z) if given_by_functions(sample) else None)
    rate = [r for r in ratios if r is not None]
    closed = torch.from_numpy(posteriors_of(sample).kl.sum(1)) if not rate else torch.stack(rate).mean(0)
    found = ElboTerms(closed, -torch.stack(fits).mean(0), x.shape[1])
    if not bool(found.elbo.isfinite().all()):
        raise Skipped("the ELBO of some samples is not finite")
    return found


def joint_of(sample: EncodedSample, prior: Prior, points: int | None = None) -> LikelihoodJoint:
    """p(x, u) of the first samples.

    Args:
        sample: encoded samples, the posteriors as moments of z.
        prior: of their latents; with a row per sample, or the same for all.
        points: how many samples; all by default.
    """
    rows = torch.arange(len(sample))[:points]
    return LikelihoodJoint(
        prior,
        sample.mean.shape[1],
        lambda at, z: sample_log_likelihood(sample, at)(sample.observations[at], z),
        rows,
        smallest=0.25 / sample.prior_variance[rows].double().amax(1),
        codes_at_once=max(len(rows), 2**21 // max(1, sample.observations.shape[1])),
    )


def given_by_functions(sample: EncodedSample) -> bool:
    """Whether the posterior or the prior is a density without a closed form."""
    return sample.model.posterior_density is not None or sample.model.prior_density is not None


def draw_posterior(sample: EncodedSample, k: int) -> Float[Tensor, "N d"]:
    """The k-th draw of z ~ q(z|x), one per sample."""
    if sample.model.posterior_density is not None:
        return sample.model.posterior_density.sample(sample.x).to(sample.mean)
    generator = randomness.generator(k, "posterior")
    noise = torch.randn(sample.mean.shape, generator=generator, dtype=sample.mean.dtype)
    return sample.mean + sample.variance.sqrt() * noise


def log_ratio(sample: EncodedSample, z: Float[Tensor, "N d"]) -> Float[Tensor, " N"]:
    """log q(z|x) - log p(z) of each row."""
    posterior, prior = sample.model.posterior_density, sample.model.prior_density
    log_q = _normal(z, sample.mean, sample.variance) if posterior is None else posterior.log_prob(z, sample.x)
    log_p = _normal(z, sample.prior_mean, sample.prior_variance) if prior is None else prior.log_prob(z)
    return (log_q - log_p).double()


def _normal(z: Tensor, mean: Tensor, variance: Tensor) -> Float[Tensor, " N"]:
    return torch.distributions.Normal(mean, variance.sqrt(), validate_args=False).log_prob(z).sum(1)


@dataclass(frozen=True, eq=False)
class MarginalEstimate:
    """log p(x) by importance sampling from q(z|x), which may be any density; the gap is not split."""

    gap: Float[Tensor, " N"]
    """log p(x) - ELBO of some samples, a lower bound on average."""
    pareto_k: float

    @property
    def mean(self) -> tuple[float, float]:
        return mean_and_error(self.gap)

    def to_data(self) -> dict[str, object]:
        return {"gap": dict(zip(("mean", "stderr"), self.mean, strict=True)), "pareto_k": self.pareto_k}


@torch.no_grad()
def estimate_marginal(sample: EncodedSample, budget: Budget) -> MarginalEstimate:
    """For posteriors and priors that are given by functions."""
    if not likelihood_is_known(sample.model):
        raise Skipped(UNKNOWN)
    points, weights = sample.random_subset(64), []
    log_p, x = sample_log_likelihood(points), points.observations
    with randomness.seeded("marginal"):
        for k in range(400):
            z = draw_posterior(points, k)
            weights.append(log_p(x.to(z), z).double() - log_ratio(points, z))
            budget.need(0.0)
    values = torch.stack(weights, dim=1)
    log_marginal, _, shape = smoothed_mean(values)
    return MarginalEstimate(log_marginal - values.mean(1), float(shape.max()))
