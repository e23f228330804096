"""The ELBO and its two terms, and log p(x), with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.models import RepairedModel, likelihood_is_known, sample_log_likelihood
from vaescope.analysis.posteriors import posteriors_of
from vaescope.analysis.samples import shape_of_flat_images
from vaescope.core import randomness
from vaescope.core.budget import Budget
from vaescope.core.calls import call_user_function, evaluation_mode
from vaescope.core.errors import InputError, Skipped
from vaescope.distributions import Prior
from vaescope.inference.joint import LikelihoodJoint
from vaescope.inference.marginal import smoothed_mean
from vaescope.protocol import LatentModel


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """Mean over samples with its standard error."""
    return float(values.mean()), float(values.std() / len(values) ** 0.5) if len(values) > 1 else math.nan


UNKNOWN = "the likelihood is not known; pass precision=, likelihood= or log_likelihood= to the adapter"


@dataclass(frozen=True)
class OtherSources:
    """What the columns of x are, and what p(x|z) knows of x other than through z."""

    columns: str
    """`pixels`, `counts`, `tokens`, or `columns` of any other kind."""
    conditional: bool
    """Whether the decoder takes an auxiliary input."""
    lost: float = math.nan
    """Nats by which log p(x|z) falls, at the same z, if every second column is that of another sample: none unless
    the likelihood links columns, as an autoregressive decoder does. NaN where outputs determine the likelihood."""
    stderr: float = math.nan

    @property
    def links_columns(self) -> bool:
        """Counts are left out: p(x|z) often depends on their total."""
        return self.columns != "counts" and self.lost > max(1.0, 5 * self.stderr)


@torch.no_grad()
def find_other_sources(sample: EncodedSample, *, samples: int = 256) -> OtherSources:
    r"""With a product over columns, log p(x|z) + log p(x'|z) is the same for two samples that exchange columns."""
    subset = sample.random_subset(samples)
    x, model = subset.observations, sample.model
    plain = OtherSources("pixels" if _are_images(model, x) else _columns(x), model.conditional)
    if model.log_likelihood is None or x.shape[1] < 2:
        return plain
    log_p, z, other = sample_log_likelihood(subset), subset.mean, x.roll(1, 0)
    even = torch.arange(x.shape[1]) % 2 == 0
    both = (x, other), (x.where(even, other), other.where(even, x))
    own, mixed = (torch.stack([log_p(rows.to(z), z).double() for rows in pair]).mean(0) for pair in both)
    mean, stderr = mean_and_error(own - mixed)
    return replace(plain, lost=mean, stderr=stderr) if math.isfinite(mean) else plain


def _are_images(model: LatentModel, x: Float[Tensor, "N n"]) -> bool:
    return model.image_shape is not None or shape_of_flat_images(x) is not None


def _columns(x: Float[Tensor, "N n"]) -> str:
    """`counts` are integers whose smallest values are the most frequent, with zeros between others.

    >>> _columns(torch.tensor([[0.0, 3, 0, 1], [1, 0, 0, 2]])), _columns(torch.tensor([[5.0, 2, 7, 0], [1, 4, 2, 0]]))
    ('counts', 'tokens')
    """
    if not bool((x == x.round()).all()) or bool((x < 0).any()) or float(x.max()) <= 1:
        return "columns"
    frequency = [float((x == value).double().mean()) for value in (0, 1, 2)]
    before = (x != 0).int().flip(1).cummax(1).values.flip(1).bool()  # of a later column that is not zero
    inner = bool(((x == 0) & before & (x != 0).int().cummax(1).values.bool()).any(1).double().mean() > 0.5)
    return "counts" if frequency == sorted(frequency, reverse=True) and inner else "tokens"


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


def draw_observations(
    model: LatentModel,
    z: Float[Tensor, "N d"],
    generator: torch.Generator,
    auxiliary: Shaped[Tensor, "N ..."] | None = None,
) -> Float[Tensor, "N ..."]:
    """One draw from p(x|z), or p(x|z, auxiliary), per row of z.

    Args:
        model: with a decoder and a known likelihood, a Gaussian one with its precision.
        z: latents.
        generator: of the draws.
        auxiliary: of each row, for conditional models.

    >>> from vaescope.adapters import from_callables
    >>> plain = from_callables(encode=lambda x: (x, x), decode=lambda z: 0 * z, latent_dim=2, precision=4.0)
    >>> x = draw_observations(plain, torch.zeros(10_000, 2), torch.Generator().manual_seed(0))
    >>> round(float(x.var()), 2)
    0.25
    """
    given = () if auxiliary is None or not model.conditional else (auxiliary,)
    if model.log_likelihood is not None or model.sample_observations is not None:
        if model.sample_observations is None:
            raise Skipped("the likelihood is the model's own, and it cannot be sampled; pass sample_observations=")
        drawer: Callable[..., Tensor] = model.sample_observations
        with evaluation_mode(model.trained_networks()):
            return call_user_function("sample_observations", lambda codes: drawer(codes, generator, *given), z)
    mean = model.decode_given(z, *given) if given else model.decode(z)
    if model.likelihood == "bernoulli":
        return torch.bernoulli(mean.clamp(0, 1), generator=generator)
    if model.likelihood != "gaussian" or model.precision is None:
        raise Skipped(
            "the likelihood is not known; pass precision=, likelihood= or sample_observations= to the adapter"
        )
    noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
    return mean + noise / model.precision**0.5


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


# conditions that hold at every optimum of the ELBO, whatever the likelihood, the networks and β

FEWEST = 30  # samples, for fewer of which standard errors mean nothing


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

    @classmethod
    def of(cls, latents: list[int], mean: Float[Tensor, "N u"], variance: Float[Tensor, "N u"]) -> CodeMoments:
        """From posteriors in units of the prior."""
        square, root = mean.square() + variance, len(mean) ** 0.5
        values = (mean.mean(0), mean.std(0) / root, square.mean(0), square.std(0) / root)
        return cls(list(latents), *(value.double().cpu().numpy() for value in values))

    @property
    def scores(self) -> tuple[Float[np.ndarray, " u"], Float[np.ndarray, " u"]]:
        """Distances of both from what they are at an optimum, in standard errors."""
        square, mean = (np.maximum(error, 1e-12) for error in (self.square_error, self.mean_error))
        return np.abs(self.square - 1) / square, np.abs(self.mean) / mean

    @property
    def distance(self) -> float:
        r"""Squared distance from the prior's scale and mean, less what standard errors make of it.

        .. math:: \sum_k \tfrac14 \log^2 E[\mu_k^2 + \sigma_k^2] + \tfrac12 E[\mu_k]^2

        Near zero, these are the nats of KL that shifting and rescaling codes saves.
        """
        square = np.maximum(self.square, 1e-300)
        scale = np.log(square) ** 2 - np.minimum(self.square_error / square, 1.0) ** 2
        return float(max(0.0, (0.25 * scale + 0.5 * (self.mean**2 - self.mean_error**2)).sum()))

    @property
    def saved(self) -> Float[np.ndarray, " u"]:
        """Nats of KL that each latent would save if its codes were shifted and scaled, at the same reconstructions."""
        spread = np.maximum(self.square - self.mean**2, 1e-300)
        return 0.5 * (self.square - 1 - np.log(spread))


def measure_moments(sample: EncodedSample, used: list[int], axes: Float[Tensor, "u u"] | None = None) -> CodeMoments:
    """Moments of codes over samples.

    Args:
        sample: encoded samples.
        used: latents in use; without any, all latents are measured.
        axes: columns are the axes along which codes are measured, by default the latents themselves.
    """
    used = used or list(range(sample.mean.shape[1]))
    if len(sample) < FEWEST:
        raise Skipped(f"moments of codes are judged from {FEWEST} samples on")
    mean, variance, centre, width = (
        v[:, used].double().cpu() for v in (sample.mean, sample.variance, sample.prior_mean, sample.prior_variance)
    )
    shift, ratio = (mean - centre) / width.sqrt(), variance / width
    if axes is not None:
        shift, ratio = shift @ axes, ratio @ axes.square()
    return CodeMoments.of(used, shift, ratio)


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

    pooled: float
    """Ratio of both sides summed over all latents in use, and over samples."""
    pooled_stderr: float

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
    if not latents or len(subset) < FEWEST:
        return None
    slope = log_p_slopes(subset, latents)
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
    sides = curved.sum(1), room.sum(1)
    pooled = float(sides[0].mean() / sides[1].mean())
    pooled_stderr = float((sides[0] - pooled * sides[1]).std() / len(subset) ** 0.5 / sides[1].mean())
    clear = (room.mean(0) > 0.25) & (curved.mean(0) > 0)  # wider posteriors are determined by the prior
    if not bool(clear.any()):
        return None
    curved, room, pulled, scale = (v[:, clear] for v in (curved, room, pulled, scale))
    beta = curved.mean(0) / room.mean(0)
    stderr = (curved - beta * room).std(0) / len(subset) ** 0.5 / room.mean(0)
    pull = ((subset.mean.double()[:, latents] - centre) / width)[:, clear]
    shift = (scale / beta.median() * (pulled - beta.median() * pull)).square().mean(1).median()
    kept = [k for k, keep in zip(latents, clear.tolist(), strict=True) if keep]
    return Weights(kept, beta.numpy(), stderr.numpy(), float(shift), pooled, pooled_stderr)


def log_p_slopes(sample: EncodedSample, latents: list[int]) -> Callable[[Tensor], Float[Tensor, "N u"]]:
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
