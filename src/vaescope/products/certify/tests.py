r"""Whether the encoder's posterior is the best of its family, without searching for the best one.

The diagonal Gaussian q = N(μ, σ²) that maximises the ELBO of an x satisfies, with g = ∇ log p(x, u) and u = μ + σ ε,

.. math:: E_q[g_k] = 0, \qquad -E_q[ε_k σ_k g_k] = 1,

for every latent and any decoder, prior and likelihood. If the posterior is Gaussian with precision matrix Λ, the second
expectation is σ_k² Λ_kk, the squared ratio of σ_k to the best one. So these expectations tell errors of the encoder
from limits of the family: the best diagonal Gaussian of correlated latents is narrower than their marginals, and
simulation-based calibration alone would report it as too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.models import SCALES
from vaescope.core import randomness
from vaescope.core.errors import InputError, Skipped
from vaescope.distributions import DiagonalGaussian
from vaescope.products.certify.bounds import Joint
from vaescope.products.certify.simulate import Simulation, encode_simulated

PAIRS = 4  # mirrored draws of q per simulated x; an even number


@dataclass(frozen=True, eq=False)
class Optimality:
    """First-order conditions of the best posterior of the family, per simulated x and latent."""

    curvature: Float[np.ndarray, "N d"]
    """-σ E_q[ε g]: 1 at the optimum, (σ/σ*)² near it."""
    shift: Float[np.ndarray, "2 N d"]
    """σ E_q[g], from two independent halves of the draws: 0 at the optimum, (μ* - μ)/σ* near it."""

    @property
    def width_ratio(self) -> Float[np.ndarray, " d"]:
        """σ of the encoder over that of the best posterior of its family, to first order."""
        return np.sqrt(np.clip(self.curvature.mean(0), 1e-12, None))

    @property
    def width_error(self) -> Float[np.ndarray, " d"]:
        """Standard error of log width_ratio."""
        mean = np.clip(self.curvature.mean(0), 1e-12, None)
        return 0.5 * self.curvature.std(0) / mean / math.sqrt(len(self.curvature))

    @property
    def bias(self) -> Float[np.ndarray, " d"]:
        """Mean shift to the best posterior, in standard deviations."""
        return self.shift.mean((0, 1))

    @property
    def bias_error(self) -> Float[np.ndarray, " d"]:
        return self.shift.mean(0).std(0) / math.sqrt(self.shift.shape[1])

    @property
    def scatter(self) -> Float[np.ndarray, " d"]:
        """Root mean square shift over x, without the noise of the draws."""
        return np.sqrt(np.clip((self.shift[0] * self.shift[1]).mean(0), 0, None))


def measure_optimality(joint: Joint, q: DiagonalGaussian, *, pairs: int = PAIRS, seed: int = 0) -> Optimality:
    """Expectations of the gradient of log p(x, u) under the encoder's posteriors.

    Args:
        joint: p(x, u) at N observations.
        q: the encoder's posteriors of these observations, in u.
        pairs: mirrored draws per observation, an even number.
        seed: of the draws.
    """
    half = torch.randn(pairs, *q.mean.shape, generator=randomness.generator(seed, "optimality"), dtype=torch.float64)
    noise = torch.stack([half, -half], dim=1)
    scale = q.variance.sqrt()
    scaled = torch.stack([_scaled_gradient(joint, q, scale, pair) for pair in noise])
    curvature = -(noise * scaled).mean((0, 1))
    shifts = scaled.mean(1).unflatten(0, (2, pairs // 2)).mean(1)
    return Optimality(curvature.numpy(), shifts.numpy())


def _scaled_gradient(joint: Joint, q: DiagonalGaussian, scale: Tensor, noise: Tensor) -> Tensor:
    """σ g at u = μ + σ ε."""
    return scale * joint.with_gradient(q.mean + scale * noise)[1]


FEWEST = 50  # real samples
LARGEST = 1000  # samples of each kind
COMPONENTS = 30  # principal components of x
FOLDS = 3
ALIKE = 0.6  # AUC up to which a certificate transfers
STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class Distinguishability:
    """How well a classifier tells real from simulated samples by some of their features."""

    features: str
    auc: float
    """Of held-out samples: 0.5 if they are alike, 1 if they never look the same."""
    stderr: float

    @property
    def alike(self) -> bool | None:
        """True, False, or None if there are too few samples to say."""
        if self.auc + STANDARD_ERRORS * self.stderr <= ALIKE:
            return True
        return False if self.auc - STANDARD_ERRORS * self.stderr > ALIKE else None


@dataclass(frozen=True)
class Transfer:
    """Real against simulated x: by x itself, by the codes, and by the reconstruction error."""

    tests: tuple[Distinguishability, ...]

    @property
    def transfers(self) -> bool | None:
        """Whether real x look like simulated ones in every respect; None if there are too few samples to say."""
        verdicts = [test.alike for test in self.tests]
        return False if False in verdicts else None if None in verdicts else True

    @property
    def different(self) -> list[Distinguishability]:
        """What tells them apart, the clearest first."""
        return sorted((t for t in self.tests if t.alike is False), key=lambda t: -t.auc)


def compare_with_real(real: EncodedSample, simulated: EncodedSample) -> Transfer:
    """Train a classifier on each kind of features."""
    count = min(len(real), len(simulated), LARGEST)
    if count < FEWEST:
        raise Skipped(f"real and simulated x are compared from {FEWEST} real samples on, got {len(real)}")
    pair = real.random_subset(count), simulated.random_subset(count)
    kinds = {"x": _components(*pair), "codes": tuple(_codes(s) for s in pair)}
    if real.model.log_likelihood is None and real.decoded.shape == real.observations.shape:
        kinds["reconstruction error"] = tuple(_errors(s) for s in pair)
    return Transfer(tuple(_distinguish(name, a, b) for name, (a, b) in kinds.items()))


def _components(real: EncodedSample, simulated: EncodedSample) -> tuple[np.ndarray, np.ndarray]:
    """Principal components of both together."""
    both = np.concatenate([real.observations.numpy(), simulated.observations.numpy()])
    count = min(COMPONENTS, both.shape[1], len(both) - 1)
    found = PCA(count, svd_solver="auto", random_state=0).fit_transform(both) if both.shape[1] > count else both
    return found[: len(real)], found[len(real) :]


def _codes(sample: EncodedSample) -> np.ndarray:
    """Posterior means and log-variances."""
    log_variance = sample.variance.double().clamp(min=1e-300).log()
    return torch.cat([sample.mean.double(), log_variance], dim=1).numpy()


def _errors(sample: EncodedSample) -> np.ndarray:
    """Squared error of the reconstruction, a column."""
    return (sample.observations - sample.decoded.double()).square().sum(1, keepdim=True).numpy()


def _distinguish(name: str, real: Float[np.ndarray, "N p"], simulated: Float[np.ndarray, "N p"]) -> Distinguishability:
    features, labels = np.concatenate([real, simulated]), np.repeat([1, 0], [len(real), len(simulated)])
    values = []
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(features, labels):
        trees = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=8, min_samples_leaf=10, random_state=0)
        scores = trees.fit(features[train], labels[train]).predict_proba(features[test])[:, 1]
        values.append(roc_auc_score(labels[test], scores))
    return Distinguishability(name, float(np.mean(values)), auc_error(float(np.mean(values)), len(real)))


def auc_error(auc: float, count: int) -> float:
    """Standard error of an AUC of `count` samples of each kind (Hanley & McNeil 1982).

    >>> round(auc_error(0.5, 300), 3)
    0.024
    """
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (count - 1) * (q1 + q2 - 2 * auc**2)
    return math.sqrt(max(variance, 0.0)) / count


GAIN = 0.05  # nats per latent that a correction must gain
CAUSE_STANDARD_ERRORS = 4.0  # of that gain
FACTOR = 2.0  # largest factor by which corrected variances may still be wrong
SWAPPED = 0.2  # gain in squared correlation that says a latent is another one
UNIT = 1.25  # smallest factor between units
SHIFT = 0.25  # smallest shift between units, in standard deviations


@dataclass(frozen=True)
class Cause:
    """A mistake that explains wrong posteriors."""

    code: str
    title: str
    advice: str
    gain: float
    """Nats per latent by which the true z become more probable if it is undone."""
    negative: bool = False
    """There are negative "variances". They were taken for log-variances, and the gain is against these."""


@dataclass(frozen=True, eq=False)
class _Correction:
    code: str
    title: str
    advice: str
    mean: Float[Tensor, "N d"]
    variance: Float[Tensor, "N d"]


def find_cause(simulation: Simulation, raw: Float[Tensor, "N d"], real: EncodedSample) -> Cause | None:
    """The correction that explains the simulated z best, if there is one.

    Args:
        simulation: draws and the encoder's outputs for them, in z.
        raw: the encoder's second output as it is, for the same draws.
        real: encoded real samples, to find other units of x.
    """
    z, e = simulation.z, simulation.encoded
    if bool((raw < 0).any()):
        return _reading_of_negative(simulation, raw.double())
    here = _score(z, e.mean.double(), raw.double(), fitted=True)
    best: Cause | None = None
    for correction in _corrections(simulation, raw.double(), real):
        there = _score(z, correction.mean, correction.variance)
        gain = (there - here)[len(z) // 2 :]
        mean, error = float(gain.mean()), float(gain.std()) / math.sqrt(len(gain))
        factor = float((((z - correction.mean) ** 2) / correction.variance).median()) / 0.4549
        if mean > max(GAIN, CAUSE_STANDARD_ERRORS * error) and 1 / FACTOR**2 < factor < FACTOR**2:
            best = _better(best, Cause(correction.code, correction.title, correction.advice, mean))
    return best


def _reading_of_negative(simulation: Simulation, raw: Tensor) -> Cause:
    """What negative "variances" are: the reading under which z is most probable."""
    z, mean = simulation.z, simulation.encoded.mean.double()
    scores = [(float(_score(z, mean, c.variance).mean()), c) for c in _readings(mean, raw)]
    score, best = max(scores, key=lambda pair: pair[0])
    gain = score - float(_score(z, mean, raw.exp().clamp(1e-300, 1e300)).mean())
    return Cause(best.code, best.title, best.advice, gain, negative=True)


def _better(best: Cause | None, found: Cause) -> Cause:
    return found if best is None or found.gain > best.gain else best


def _score(z: Tensor, mean: Tensor, variance: Tensor, *, fitted: bool = False) -> Float[Tensor, " N"]:
    """log N(z; mean, variance) per draw, mean over latents; `fitted` multiplies variances by the best common factor."""
    safe = variance.clamp(min=1e-300)
    if not bool((variance > 0).all()):
        return torch.full((len(z),), -1e6, dtype=torch.float64)
    squares = (z - mean) ** 2 / safe
    if fitted:
        factor = squares.mean().clamp(min=1e-300)
        squares, safe = squares / factor, safe * factor
    return -0.5 * (squares + safe.log() + math.log(2 * math.pi)).mean(1)


def _corrections(simulation: Simulation, raw: Tensor, real: EncodedSample) -> Iterator[_Correction]:
    mean = simulation.encoded.mean.double()
    yield from _readings(mean, raw)
    yield from _orders(simulation, mean, raw)
    yield from _latent_units(simulation, mean, raw)
    yield from _observed_units(simulation, real)


def _readings(mean: Tensor, raw: Tensor) -> Iterator[_Correction]:
    """Another quantity in place of a variance."""
    for name, (function, logarithmic) in SCALES.items():
        if name != "variance" and (logarithmic or bool((raw > 0).all())):
            variance = function(raw).clamp(1e-300, 1e300)
            yield _Correction(
                "scale-of-variance",
                f"The encoder returns a {name} where a variance is expected.",
                f"Convert the second output of encode: a variance, not a {name}.",
                mean,
                variance,
            )


def _orders(simulation: Simulation, mean: Tensor, raw: Tensor) -> Iterator[_Correction]:
    """Latents in another order, or with another sign, than the decoder takes them."""
    d = mean.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        both = np.corrcoef(simulation.z.T.numpy(), mean.T.numpy())
    correlation = np.nan_to_num(both[:d, d:])
    order = linear_sum_assignment(-(correlation**2))[1]
    kept = correlation[range(d), order] ** 2 - correlation.diagonal() ** 2 < SWAPPED
    order = np.where(kept, np.arange(d), order)
    if len(set(order.tolist())) < d:  # half of a swap is not a permutation
        return
    sign = np.where(correlation[range(d), order] < -math.sqrt(SWAPPED), -1.0, 1.0)
    moved, flipped = np.flatnonzero(order != np.arange(d)), np.flatnonzero(sign < 0)
    variance = raw[:, order]
    if len(moved):
        pairs = ", ".join(f"{order[k]} → {k}" for k in moved[:8]) + (", …" if len(moved) > 8 else "")
        yield _Correction(
            "order-of-latents",
            f"The encoder returns latents in another order than the decoder takes them ({pairs}).",
            "Permute the encoder's outputs, or the decoder's inputs.",
            mean[:, order] * torch.from_numpy(sign),
            variance,
        )
    elif len(flipped):
        yield _Correction(
            "sign-of-latents",
            f"Latents {', '.join(map(str, flipped[:8]))} have the opposite sign in encoder and decoder.",
            "Change the sign of the encoder's outputs, or of the decoder's inputs.",
            mean * torch.from_numpy(sign),
            raw,
        )


def _latent_units(simulation: Simulation, mean: Tensor, raw: Tensor) -> Iterator[_Correction]:
    """Latents multiplied or shifted between encoder and decoder: the regression of z on exact means has slope 1."""
    half = len(mean) // 2
    m, z = mean[:half], simulation.z[:half]
    centred = m - m.mean(0)
    slope = (centred * z).sum(0) / centred.square().sum(0).clamp(min=1e-300)
    used = (centred * z).sum(0) ** 2 > 0.5 * centred.square().sum(0) * (z - z.mean(0)).square().sum(0)
    changed = used & (slope > 0) & (slope.clamp(min=1e-12).log().abs() > math.log(UNIT))
    if not bool(changed.any()):
        return
    factor = torch.where(changed, slope, torch.ones_like(slope))
    offset = torch.where(changed, z.mean(0) - slope * m.mean(0), torch.zeros_like(slope))
    listed = ", ".join(f"{k} ({float(factor[k]):.2g})" for k in changed.nonzero().flatten().tolist()[:6])
    yield _Correction(
        "units-of-latents",
        f"The decoder takes latents in other units than the encoder returns; latent (factor): {listed}.",
        "Apply the same scaling of latents in encode and decode.",
        factor * mean + offset,
        factor**2 * raw,
    )


def _observed_units(simulation: Simulation, real: EncodedSample) -> Iterator[_Correction]:
    """x in other units than the decoder's output: rescale simulated x to real ones, and encode again."""
    x, observed = simulation.encoded.x, real.observations
    made = simulation.encoded.observations
    for what, dims in (("", (0, 1)), (" column by column", (0,))):
        scale = observed.std(dims, correction=0) / made.std(dims, correction=0).clamp(min=1e-300)
        shift = observed.mean(dims) - scale * made.mean(dims)
        far = (scale.log().abs() > math.log(UNIT)) | (
            (observed.mean(dims) - made.mean(dims)).abs() > SHIFT * observed.std(dims, correction=0)
        )
        if not bool(far.any()) or not bool(scale.isfinite().all()):
            continue
        rescaled = (scale * made + shift).reshape(x.shape).to(x)
        encoded = _attempt(lambda: encode_simulated(real.model, rescaled, simulation.prior, simulation.auxiliary))  # noqa: B023
        if encoded is not None:
            factor = f"x ≈ {float(scale.median()):.3g} · output {float(shift.median()):+.3g}{what}"
            yield _Correction(
                "units-of-x",
                f"The decoder returns x in other units than the encoder takes ({factor}).",
                "Scale x in decode as the encoder's input is scaled, and give the precision in these units.",
                encoded.mean.double(),
                encoded.variance.double(),
            )


def _attempt(encode: Callable[[], EncodedSample]) -> EncodedSample | None:
    try:
        return encode()
    except (Skipped, InputError):
        return None
