"""Anomaly scores per sample: log p(x) with its reliability, typicality, and the parts of the ELBO.

A low ELBO is not an anomaly by itself, and a high one is no proof of the contrary: see docs/anomalies.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample, encode_chunks
from vaescope.analysis.likelihood import UNKNOWN, joint_of
from vaescope.analysis.models import RepairedModel, as_models, likelihood_is_known, sample_log_likelihood
from vaescope.analysis.posteriors import posteriors_of
from vaescope.analysis.samples import read_samples
from vaescope.core import randomness
from vaescope.core.errors import InputError, Skipped
from vaescope.core.tables import Table
from vaescope.core.validation import integer
from vaescope.distributions import DiagonalGaussian, Normal, kl
from vaescope.inference.joint import Gaussian
from vaescope.inference.marginal import FREEDOM, draw_student, marginal
from vaescope.report.report import Report


@dataclass(frozen=True, eq=False, repr=False)
class AnomalyScores(Report):
    """Scores of each sample, in nats. `elbo` is -(misfit + spread + kl)."""

    log_marginal: Float[Tensor, " N"]
    """log p(x), by importance sampling."""
    stderr: Float[Tensor, " N"]
    """Of log p(x)."""
    pareto_k: Float[Tensor, " N"]
    """k̂ of its weights; above 0.7 the estimate is unreliable and most likely too low."""
    misfit: Float[Tensor, " N"]
    """-log p(x|μ): how badly x is reconstructed from the mean of q."""
    spread: Float[Tensor, " N"]
    """log p(x|μ) - E_q log p(x|z): what the width of q adds to the reconstruction error."""
    kl: Float[Tensor, " N"]
    """KL[q(z|x) || p(z)]: how unusual the code is under the prior."""
    typicality: Float[Tensor, " N"]
    """Share of reference samples whose log p(x) is at least as extreme, on either side; small is unusual."""
    name: str = "model"
    """What the page calls the model."""

    label = "Anomaly scores"
    unit = "samples"

    @property
    def elbo(self) -> Float[Tensor, " N"]:
        return -(self.misfit + self.spread + self.kl)

    @property
    def reliable(self) -> Bool[Tensor, " N"]:
        """Where log p(x) can be trusted: k̂ up to 0.7 (Vehtari et al. 2024)."""
        return self.pareto_k <= 0.7

    def __repr__(self) -> str:
        return f"Anomaly scores of {self.name}: {self.verdict}\n{self.summary()}"

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        unusual, unreliable = int((self.typicality < 0.05).sum()), int((~self.reliable).sum())
        found = f"{unusual} of {len(self.typicality)} samples are less typical than 95 % of the reference samples."
        return found + (f" log p(x) of {unreliable} is unreliable (Pareto k̂ above 0.7)." if unreliable else "")

    def summary(self) -> Table:
        """A row per sample, the least typical first."""
        columns = {
            "typicality": self.typicality,
            "log p(x)": self.log_marginal,
            "± (standard error)": self.stderr,
            "Pareto k": self.pareto_k,
            "ELBO": self.elbo,
            "misfit": self.misfit,
            "spread": self.spread,
            "KL": self.kl,
        }
        order = torch.argsort(self.typicality, stable=True).tolist()
        return Table({"sample": row, **{name: float(v[row]) for name, v in columns.items()}} for row in order)

    def content(self) -> dict[str, object]:
        """All scores, a row per sample."""
        return {"name": self.name, "samples": list(self.summary())}


@torch.no_grad()
def anomaly_scores(model: object, x: object, *, reference: object, draws: int = 400, seed: int = 0) -> AnomalyScores:
    """Score samples by how unusual they are under a model.

    Args:
        model: a member of a fit, a model from `vs.adapters`, or your own `LatentModel`, with a normal prior, a decoder
            and a known likelihood; of several models or a fit, the first (the best member).
        x: samples to score, a row or an image each.
        reference: normal samples that the model was not trained on, for typicality.
        draws: per sample, of importance sampling.
        seed: of these draws.

    >>> from vaescope.adapters import from_callables
    >>> model = from_callables(
    ...     encode=lambda x: (x / 2, 0.5 + 0 * x), decode=lambda z: z, latent_dim=1, precision=1.0)
    >>> normal = 2**0.5 * torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    >>> found = anomaly_scores(model, [[0.5], [9.0]], reference=normal)
    >>> (found.typicality < 0.05).tolist()
    [False, True]
    """
    integer("draws", draws, minimum=100)
    first = as_models(model)[0]
    if first.auxiliary_dim:
        raise InputError("anomaly_scores supports models without an auxiliary input, and this is an iVAE.")
    if not first.has_decoder:
        raise InputError("anomaly_scores needs a decoder.")
    given, usual = read_samples(first, x), read_samples(first, reference)
    if len(usual) < 50:
        raise InputError(f"reference needs at least 50 samples, got {len(usual)}.")
    if not likelihood_is_known(first):
        raise InputError(f"{UNKNOWN}.")
    repaired = RepairedModel(first)
    scored, known = (_log_marginals(repaired, part, draws, seed) for part in (given, usual))
    typicality = two_sided_rank(scored["log_marginal"], known["log_marginal"])
    return AnomalyScores(**scored, typicality=typicality, name=first.name)


def two_sided_rank(values: Float[Tensor, " N"], reference: Float[Tensor, " M"]) -> Float[Tensor, " N"]:
    """Twice the smaller tail of the reference at each value: a p-value that is small on both sides.

    >>> two_sided_rank(torch.tensor([50.5, 1000.0]), torch.arange(1.0, 101.0)).round(decimals=2)
    tensor([1.0000, 0.0200])
    """
    ordered = np.sort(reference.numpy())
    below = np.searchsorted(ordered, values.numpy(), side="right")
    above = len(ordered) - np.searchsorted(ordered, values.numpy(), side="left")
    tail = (1 + np.minimum(below, above)) / (1 + len(ordered))
    return torch.from_numpy(np.minimum(1.0, 2 * tail)).to(values)


def _log_marginals(model: RepairedModel, x: object, draws: int, seed: int) -> dict[str, Tensor]:
    """All scores but typicality, a chunk of samples at a time."""
    generator = randomness.generator(seed, "anomaly")
    try:
        parts = [_score(sample, draws, generator) for sample in encode_chunks(model, x)]
    except Skipped as reason:
        raise InputError(f"anomaly_scores: {reason}.") from None
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _score(sample: EncodedSample, draws: int, generator: torch.Generator) -> dict[str, Tensor]:
    posteriors_of(sample)  # refuses variances that are negative
    prior, x = sample.prior, sample.observations
    q = DiagonalGaussian(sample.mean.double(), sample.variance.double())
    noise = draw_student(draws, len(sample), q.mean.shape[1], FREEDOM, generator).transpose(0, 1)
    # wider than q, since q is narrower than the posterior
    factor = torch.diag_embed(1.2 * q.variance.sqrt())
    around = Gaussian(q.mean, factor)
    found = marginal(joint_of(sample, prior), around, method="importance", samples=draws, noise=noise)
    # misfit at the mean, and what the width of q adds
    log_likelihood = sample_log_likelihood(sample)
    at_mean = log_likelihood(x, q.mean)
    total = torch.zeros_like(at_mean)
    for _ in range(draws // 8):
        half = torch.randn(q.mean.shape, generator=generator, dtype=torch.float64)
        total += sum(log_likelihood(x, q.sample(side)) for side in (half, -half))
    assert found.pareto_k is not None
    if bool((at_mean.isnan() | found.value.isnan()).any()):
        raise Skipped("the likelihood of some samples is not a number")
    return {
        "log_marginal": found.value,
        "stderr": found.stderr,
        "pareto_k": found.pareto_k,
        "misfit": -at_mean,
        "spread": at_mean - total / (2 * (draws // 8)),
        "kl": kl(q, Normal(sample.prior_mean.double(), sample.prior_variance.double())),
    }
