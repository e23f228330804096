"""Reconstructions of x and of inputs that people confuse with it, of held-out samples, and of codes from the prior."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.spatial import cKDTree
from scipy.stats import rankdata
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample, encode
from vaescope.analysis.models import likelihood_is_known, sample_log_likelihood
from vaescope.analysis.posteriors import posteriors_of
from vaescope.analysis.samples import ModelInputs
from vaescope.core import randomness
from vaescope.core.errors import InputError, Skipped
from vaescope.products.diagnose.thresholds import LIMITS


@dataclass(frozen=True)
class Aggregate:
    """The aggregate posterior, the mixture of q(z|x) over x, against the prior."""

    auc: float
    """Of telling codes from prior samples by their neighbours: 0.5 if they are alike, 1 if they never mix."""
    stderr: float
    """Of the AUC."""
    gain: float
    """Nats per sample that a Gaussian with the mean and covariance of the codes would save as the prior."""


def measure_aggregate(sample: EncodedSample, used: list[int], *, fewest: int = 40) -> Aggregate:
    """Draws of z ~ q(z|x), one per sample, against as many draws from the prior, in at most 32 latents in use."""
    if not used:
        raise Skipped("no latent is in use")
    if len(sample) < fewest:
        raise Skipped(f"codes are compared with the prior from {fewest} samples on")
    latents, generator = used[:32], randomness.generator(0, "aggregate")
    noise = torch.randn(2, *sample.mean.shape, generator=generator, dtype=torch.float64)

    def standardised(codes: Tensor) -> np.ndarray:
        scaled = (codes - sample.prior_mean) / sample.prior_variance.double().sqrt()
        return scaled[:, latents].numpy()

    drawn = standardised(sample.mean.double() + sample.variance.double().sqrt() * noise[0])
    prior = noise[1][:, latents].numpy()
    if sample.model.prior_density is not None:  # given by functions: in the units of its mean and variance
        prior = standardised(sample.draw_prior("aggregate prior").double())
    auc = separability(drawn, prior)
    return Aggregate(auc, math.sqrt(max(auc * (1 - auc), 0.0) / len(drawn)), gaussian_gain(drawn))


def separability(a: np.ndarray, b: np.ndarray, *, neighbours: int = 10) -> float:
    """Area under the curve of telling a from b by the share of a among the nearest neighbours.

    >>> rng = np.random.default_rng(0)
    >>> separability(rng.normal(size=(100, 2)), rng.normal(size=(100, 2)) + 20)
    1.0
    """
    points, labels = np.concatenate([a, b]), np.repeat([1.0, 0.0], [len(a), len(b)])
    nearest = cKDTree(points).query(points, k=neighbours + 1)[1][:, 1:]
    ranks = rankdata(labels[nearest].mean(1))
    return float((ranks[labels == 1].mean() - (len(a) + 1) / 2) / len(b))


def gaussian_gain(codes: np.ndarray) -> float:
    """KL[N(m, S) || N(0, I)], m and S the mean and covariance of the codes.

    >>> round(gaussian_gain(np.random.default_rng(0).normal(size=(100_000, 2))), 3)
    0.0
    """
    m, S = codes.mean(0), np.atleast_2d(np.cov(codes, rowvar=False))
    value = 0.5 * (np.trace(S) + m @ m - len(m) - np.linalg.slogdet(S + 1e-12 * np.eye(len(m)))[1])
    return float(max(0.0, value))


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


@torch.no_grad()
def measure_generalisation(train: EncodedSample, held_out: EncodedSample) -> Generalisation:
    """The ELBO of both; without a known likelihood, a Gaussian one with the errors of the training samples."""
    errors, elbos = [], []
    for sample in (train, held_out):
        generator = randomness.generator(0, "generalisation")
        noise = torch.randn(4, *sample.mean.shape, generator=generator, dtype=sample.mean.dtype)
        x, drawn = sample.observations, [sample.mean + sample.variance.sqrt() * one for one in noise]
        outputs = [sample.decode(z).double() for z in drawn]
        if any(output.shape != x.shape for output in outputs):
            raise Skipped("outputs and x differ in shape")
        errors.append(torch.stack([(x - output).square().sum(1) for output in outputs]).mean(0))
        if likelihood_is_known(sample.model):
            log_p = sample_log_likelihood(sample)
            fit = torch.stack([log_p(x.to(z), z).double() for z in drawn]).mean(0)
        else:
            precision = x.shape[1] / max(float(errors[0].mean()), 1e-300)
            fit = -0.5 * precision * errors[-1] + 0.5 * x.shape[1] * math.log(precision / (2 * math.pi))
        elbos.append(fit - torch.from_numpy(posteriors_of(sample).kl.sum(1)))
    if not all(bool(elbo.isfinite().all()) for elbo in elbos):
        raise Skipped("the ELBO of some samples is not finite")

    def stderr(groups: list[Float[Tensor, " _"]]) -> float:
        """Of the difference of two means."""
        return math.sqrt(sum(float(values.var()) / len(values) for values in groups))

    means, x = [float(error.mean()) for error in errors], train.observations
    total = float((x - x.mean(0)).square().sum(1).mean())
    return Generalisation(
        float(elbos[0].mean()),
        float(elbos[1].mean()),
        stderr(elbos),
        means[1] / max(means[0], 1e-300),
        (means[1] - means[0]) / max(stderr(errors), 1e-300),
        1 - means[0] / max(total, 1e-300),
    )


@dataclass(frozen=True)
class Overlap:
    """Rows of x that are also among the training samples."""

    rows: int
    share: float
    """Of the rows of x."""
    expected: float
    """Share of the training samples that equal another one: what data of few different rows have anyway."""


def measure_overlap(x: Tensor, train: Tensor, *, most: int = 200_000_000) -> Overlap | None:
    """Equal rows, to the precision of float32; None for more than this many numbers.

    >>> measure_overlap(torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [3.0], [4.0]]))
    Overlap(rows=1, share=0.5, expected=0.0)
    """
    if x.numel() + train.numel() > most or x[0].numel() != train[0].numel():
        return None
    own, seen = ([row.tobytes() for row in v.flatten(1).float().numpy()] for v in (x, train))
    times = Counter(seen)
    rows = sum(row in times for row in own)
    return Overlap(rows, rows / len(own), sum(times[row] > 1 for row in seen) / len(seen))


def not_counts(x: Tensor) -> str | None:
    """What x are, if they are no counts.

    >>> not_counts(torch.tensor([[0.0, 3.0]])), not_counts(torch.tensor([[0.0, 3.0, 6.0]]).mul(2.5).log1p())
    (None, 'log-normalised counts')
    """
    x = x.flatten(1).double()
    if bool((x >= 0).all()) and bool((x - x.round()).abs().max() < 1e-4):
        return None
    if bool((x < 0).any()):
        return "negative numbers or fractions"
    for values, name in ((x.expm1(), "log-normalised counts"), (x, "normalised counts")):
        rows = values[:200]
        units = torch.where(rows > 0, rows, torch.inf).amin(1, keepdim=True)
        ratio = (rows / units)[(units < torch.inf).squeeze(1)]
        if len(ratio) and float(((ratio - ratio.round()).abs() < 1e-3 * ratio.clamp(min=1)).double().mean()) > 0.95:
            return name
    return "fractions"


@dataclass(frozen=True)
class Trial:
    """x, or x changed in some way, encoded and decoded."""

    change: str
    """What to write instead of x; empty for x itself."""
    explained: float
    """1 - squared error / variance: 0 for the mean of x, negative if worse."""
    stderr: float
    dispersion: float
    """Mean over latents of |log E[(μ² + σ²)/σ†²]|: 0 at any optimum, on the data that the model was trained on."""
    formula: str = ""
    """The change as code; empty for x itself and if it is described in words."""

    @property
    def misfit(self) -> float:
        """Small if reconstructions are good and codes are where they were in training."""
        return 1 - self.explained + max(0.0, self.dispersion - 0.5)


@dataclass(frozen=True)
class OwnCodes:
    """log p(x|z) at the code of x, minus that at the code of another sample, in nats."""

    gain: float
    stderr: float


@dataclass(frozen=True)
class Reconstruction:
    """How well x is reconstructed at the posterior means, and what other inputs would do."""

    given: Trial
    best: Trial
    """The trial with the smallest misfit; `given` if nothing else was tried or nothing was better."""
    linear: float
    """Share of the variance of x that a linear map of the codes explains: whether the encoder's codes tell x."""
    centre: float
    """Squared distance of the decoder's mean output from the mean of x, as a share of the variance of x."""
    spread: float
    """Variance of the decoder's output over prior samples, as a share of the variance of x."""
    alignment: float
    """Cosine between the covariance of the decoder's output and that of x."""
    own_codes: OwnCodes | None = None
    """Of likelihoods that have no name here, whose outputs need not be a mean of x."""

    def to_data(self) -> dict[str, object]:
        return {
            "explained": self.given.explained,
            "stderr": self.given.stderr,
            "codes_mean_square": self.given.dispersion,
            "better_input": self.best.change or None,
            "explained_of_better_input": self.best.explained if self.best.change else None,
            "linear_from_codes": self.linear,
            "own_codes_gain": None if self.own_codes is None else self.own_codes.gain,
        }


@torch.no_grad()
def measure_reconstruction(sample: EncodedSample, *, samples: int = 256) -> Reconstruction:
    """Reconstruct x; if that is poor, also x changed in the ways in which people confuse inputs."""
    subset = sample.random_subset(samples)
    output = subset.decoded
    subset.check_output(output)
    given = _trial(subset)
    generated = subset.decode(subset.draw_prior("prior samples")).double()
    best = given
    flat = subset.observations
    total = float((flat - flat.mean(0)).square().sum(1).mean())
    centre = float((generated.mean(0) - flat.mean(0)).square().sum()) / max(total, 1e-300)
    far = given.dispersion > LIMITS.dispersed or centre > LIMITS.far_centre
    if given.explained < LIMITS.suspicious or far:
        best = min([given, *_trials(subset, generated)], key=lambda trial: trial.misfit)
    # tr(A B) / ‖A‖ ‖B‖ of the covariances, from Gram matrices of the samples
    a, b = generated - generated.mean(0), flat - flat.mean(0)
    product = (a @ b.mT).square().sum()
    norms = (a @ a.mT).square().sum().sqrt() * (b @ b.mT).square().sum().sqrt()
    return Reconstruction(
        given,
        best,
        _linear_share(subset.mean.double(), flat),
        centre,
        float((generated - generated.mean(0)).square().sum(1).mean()) / max(total, 1e-300),
        float(product / norms) if float(norms) > 0 else float(np.nan),
        None if sample.model.log_likelihood is None else _own_codes(subset),
    )


def measure_own_codes(sample: EncodedSample, *, samples: int = 256) -> Reconstruction:
    """For a likelihood without a decoder: log p(x|z) at own and other codes; the rest is unknown (NaN)."""
    subset, unknown = sample.random_subset(samples), math.nan
    given = Trial("", unknown, unknown, _dispersion(subset))
    linear = _linear_share(subset.mean.double(), subset.observations)
    return Reconstruction(given, given, linear, unknown, unknown, unknown, _own_codes(subset))


def _own_codes(sample: EncodedSample) -> OwnCodes | None:
    """None if some log-likelihoods are not finite."""
    log_p, x, z = sample_log_likelihood(sample), sample.observations, sample.mean
    gain = (log_p(x, z) - log_p(x, z.roll(1, 0))).double()  # samples are in random order
    finite = bool(gain.isfinite().all()) and len(gain) > 1
    return OwnCodes(float(gain.mean()), float(gain.std() / len(gain) ** 0.5)) if finite else None


def _trial(sample: EncodedSample, change: str = "", formula: str = "") -> Trial:
    x, output = sample.observations, sample.decoded.double()
    if not bool(output.isfinite().all()):
        raise Skipped("the decoder returns NaN or infinity")
    total = (x - x.mean(0)).square().sum(1)
    error = (x - output).square().sum(1)
    if not float(total.mean()) > 0:
        raise Skipped("x is constant")
    explained = 1 - float(error.mean() / total.mean())
    ratio = (total * (1 - explained) - error) / total.mean()
    return Trial(change, explained, float(ratio.std() / len(x) ** 0.5), _dispersion(sample), formula)


def _dispersion(sample: EncodedSample) -> float:
    if sample.model.latent_shape is not None:  # latent images are trained with hardly any KL
        return 0.0
    square = ((sample.mean - sample.prior_mean).double().square() + sample.variance.double()) / sample.prior_variance
    return float(square.mean(0).clamp(1e-300, 1e300).log().abs().mean())


def _trials(sample: EncodedSample, generated: Float[Tensor, "N n"]) -> Iterator[Trial]:
    x = sample.x
    for change, formula, inputs in _changes(x.double(), generated.reshape(x.shape)):
        if not bool(inputs.isfinite().all()):
            continue
        try:
            yield _trial(encode(sample.model, ModelInputs(inputs.to(x.dtype), sample.auxiliary)), change, formula)
        except (InputError, Skipped, RuntimeError):
            continue


def _changes(x: Float[Tensor, "N ..."], generated: Float[Tensor, "N ..."]) -> Iterator[tuple[str, str, Tensor]]:
    """Inputs that people confuse with x: other ranges, standardisation, inversion, transposition, order of channels.

    A description, the change as code, and the changed samples.
    """
    low, high = float(x.min()), float(x.max())
    named: list[tuple[str, str, Callable[[], Tensor]]] = [
        ("x / 255", "", lambda: x / 255),
        ("x * 255", "", lambda: x * 255),
        ("x / 127.5 - 1", "", lambda: x / 127.5 - 1),
        ("x / x.max()", "", lambda: x / max(high, 1e-12)),
        ("2 * x - 1", "", lambda: 2 * x - 1),
        ("(x + 1) / 2", "", lambda: (x + 1) / 2),
        ("x.max() - x", "", lambda: high - x),
    ]
    if low >= 0:
        named.append(("x.log1p()", "", x.log1p))
    if high < 50:
        named.append(("x.expm1()", "", x.expm1))
    if x.ndim == 4 and x.shape[2] == x.shape[3]:
        named.append(("x.mT", ", height and width exchanged", lambda: x.mT))
    if x.ndim == 4 and x.shape[1] == 3:
        named.append(("x.flip(1)", ", channels in the other order", lambda: x.flip(1)))
    yield from ((formula + words, formula, change()) for formula, words, change in named)
    # x with the mean and spread of what the decoder generates from the prior: of all numbers, or of each column
    every, each = tuple(range(x.ndim)), (0, *range(2, x.ndim)) if x.ndim == 4 else (0,)
    column = "channel" if x.ndim == 4 else "column"
    for axes, what in ((every, ""), (each, f" of each {column}")):
        standard = (x - x.mean(axes, keepdim=True)) / x.std(axes, keepdim=True).clamp(min=1e-12)
        centre, spread = generated.mean(axes, keepdim=True), generated.std(axes, keepdim=True)
        for factor in (1.0, 2.0, 0.5, 4.0):
            for sign in (1, -1):
                moved = sign * factor * spread * standard + centre
                if what:
                    yield f"x with mean and spread{what} as in training" + ", negated" * (sign < 0), "", moved
                    continue
                a = float((sign * factor * spread / x.std(axes, keepdim=True).clamp(min=1e-12)).mean())
                b = float((centre - a * x.mean(axes, keepdim=True)).mean())
                formula = f"{a:.2g} * x {'+' if b >= 0 else '-'} {abs(b):.2g}"
                yield f"{formula} (the mean and spread that the decoder generates)", formula, moved


def _linear_share(codes: Float[Tensor, "N d"], x: Float[Tensor, "N n"]) -> float:
    """Share of the variance of x that a linear map of the codes explains, on the half that it was not fitted to."""
    if codes.shape[1] > 4096 or len(codes) < 20:
        return math.nan
    half = len(codes) // 2
    inputs = torch.cat([codes, torch.ones(len(codes), 1, dtype=codes.dtype)], dim=1)
    a, b = inputs[:half], x[:half]
    gram = a.mT @ a
    ridge = 1e-3 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    solved = torch.linalg.solve(gram + ridge, a.mT @ b)
    rest = x[half:]
    error = (rest - inputs[half:] @ solved).square().sum()
    return 1 - float(error / (rest - rest.mean(0)).square().sum().clamp(min=1e-300))
