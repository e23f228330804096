r"""Whether the encoder's posterior is the best of its family, without searching for the best one.

The diagonal Gaussian q = N(μ, σ²) that maximises the ELBO of an x satisfies, with g = ∇ log p(x, u) and u = μ + σ ε,

.. math:: E_q[g_k] = 0, \qquad -E_q[ε_k σ_k g_k] = 1,

for every latent and any decoder, prior and likelihood. If the posterior is Gaussian with precision matrix Λ, the second
expectation is σ_k² Λ_kk, the squared ratio of σ_k to the best one. So these expectations tell errors of the encoder
from limits of the family: the best diagonal Gaussian of correlated latents is narrower than their marginals, and
simulation-based calibration alone would report it as too narrow.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
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
from vaescope.inference.joint import LikelihoodJoint
from vaescope.products.certify.simulate import Simulation, Widths, encode_simulated


@dataclass(frozen=True)
class Thresholds:
    """What a certificate calls wrong. Calibrated on the zoo of wrong and right encoders, unless it says otherwise."""

    width: float = 0.1  # |log width ratio| from which a width is wrong
    bias: float = 0.15  # standard deviations from which a mean is wrong
    scatter: float = 0.35  # root mean square of shifts from which means are wrong
    severe: float = 2.0  # factor of a width that makes it an error
    standard_errors: float = 4.0  # by which any of these must be certain
    bounds: float = 0.1  # nats between bounds from which they say little: convention
    joint: float = 0.001  # p-value, times the number of quantities, from which they are wrong jointly: convention
    alike: float = 0.6  # AUC up to which a certificate transfers: convention
    gain: float = 0.05  # nats per latent that undoing a named cause must gain
    swapped: float = 0.2  # gain in squared correlation that says a latent is another one
    unit: float = 1.25  # smallest factor between units
    shift: float = 0.25  # smallest shift between units, in standard deviations


THRESHOLDS = Thresholds()


@dataclass(frozen=True, eq=False)
class Optimality(Widths):
    """The encoder's posteriors compared with the best of their family, to first order."""

    scatter: Float[np.ndarray, " d"]
    """Root mean square shift to the best posterior over x, in standard deviations, without the noise of the draws."""


def measure_optimality(joint: LikelihoodJoint, q: DiagonalGaussian, *, pairs: int = 4, seed: int = 0) -> Optimality:
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
    rows = torch.arange(len(joint)).repeat(2)
    scaled = torch.stack(
        [
            scale * joint.with_gradient(rows, (q.mean + scale * pair).flatten(0, 1))[1].reshape(pair.shape)
            for pair in noise
        ]
    )
    # -σ E_q[ε g] is 1 at the optimum and (σ/σ*)² near it; σ E_q[g], of two halves of the draws, 0 and (μ* - μ)/σ*
    if not float(scaled.abs().max()) < 1e150:
        raise Skipped("derivatives of log p(x, z) are too large to square")
    curvature = -(noise * scaled).mean((0, 1)).numpy()
    shifts = scaled.mean(1).unflatten(0, (2, pairs // 2)).mean(1).numpy()
    mean, count = np.clip(curvature.mean(0), 1e-12, None), math.sqrt(len(curvature))
    return Optimality(
        width_ratio=np.sqrt(mean),
        width_error=0.5 * curvature.std(0) / mean / count,
        bias=shifts.mean((0, 1)),
        bias_error=shifts.mean(0).std(0) / count,
        scatter=np.sqrt(np.clip((shifts[0] * shifts[1]).mean(0), 0, None)),
    )


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
        if self.auc + 2 * self.stderr <= THRESHOLDS.alike:
            return True
        return False if self.auc - 2 * self.stderr > THRESHOLDS.alike else None


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
    fewest = 50
    count = min(len(real), len(simulated), 1000)
    if count < fewest:
        raise Skipped(f"real and simulated x are compared from {fewest} real samples on, got {len(real)}")
    pair = real.random_subset(count), simulated.random_subset(count)
    both = np.concatenate([s.observations.numpy() for s in pair])
    components = min(30, both.shape[1], len(both) - 1)
    if both.shape[1] > components:
        both = PCA(components, svd_solver="auto", random_state=0).fit_transform(both)
    codes = [torch.cat([s.mean.double(), s.variance.double().clamp(min=1e-300).log()], dim=1).numpy() for s in pair]
    kinds = {"x": (both[:count], both[count:]), "codes": (codes[0], codes[1])}
    if real.model.log_likelihood is None and real.decoded.shape == real.observations.shape:
        errors = [(s.observations - s.decoded.double()).square().sum(1, keepdim=True).numpy() for s in pair]
        kinds["reconstruction error"] = (errors[0], errors[1])
    return Transfer(tuple(_distinguish(name, a, b) for name, (a, b) in kinds.items()))


def _distinguish(name: str, real: Float[np.ndarray, "N p"], simulated: Float[np.ndarray, "N p"]) -> Distinguishability:
    features, labels = np.concatenate([real, simulated]), np.repeat([1, 0], [len(real), len(simulated)])
    values = []
    for train, test in StratifiedKFold(3, shuffle=True, random_state=0).split(features, labels):
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


def find_cause(
    simulation: Simulation, raw: Float[Tensor, "N d"], real: EncodedSample, measured: Widths | None = None
) -> Cause | None:
    """The correction that explains the simulated z best, if there is one.

    Around means that are far off, any wide posterior makes the true z more probable. So another reading of variances
    must not take widths further away from the best of their family either.

    Args:
        simulation: draws and the encoder's outputs for them, in z.
        raw: the encoder's second output as it is, for the same draws.
        real: encoded real samples, to find other units of x.
        measured: widths over the best of their family, where they are known.
    """
    z, e = simulation.z, simulation.encoded
    if bool((raw < 0).any()):
        return _reading_of_negative(simulation, raw.double())
    here = _score(z, e.mean.double(), raw.double(), fitted=True)
    best: Cause | None = None
    mean, variance = e.mean.double(), raw.double()
    for correction in (
        *_readings(mean, variance),
        *_orders(simulation, mean, variance),
        *_latent_units(simulation, mean, variance),
        *_observed_units(simulation, real),
    ):
        there = _score(z, correction.mean, correction.variance)
        gain = (there - here)[len(z) // 2 :]
        gained, error = float(gain.mean()), float(gain.std()) / math.sqrt(len(gain))
        factor = float((((z - correction.mean) ** 2) / correction.variance).median()) / 0.4549
        if measured is not None and correction.code == "scale-of-variance":
            change = 0.5 * (correction.variance.log() - variance.log()).mean(0).numpy()
            now = np.log(measured.width_ratio.clip(1e-3, 1e3))
            if np.median(np.abs(now + change)) > np.median(np.abs(now)) + math.log(2):
                continue
        certain = gained > max(THRESHOLDS.gain, THRESHOLDS.standard_errors * error)
        if certain and 1 / 4 < factor < 4 and (best is None or gained > best.gain):
            best = Cause(correction.code, correction.title, correction.advice, gained)
    return best


def _reading_of_negative(simulation: Simulation, raw: Tensor) -> Cause:
    """What negative "variances" are: the reading under which z is most probable."""
    z, mean = simulation.z, simulation.encoded.mean.double()
    scores = [(float(_score(z, mean, c.variance).mean()), c) for c in _readings(mean, raw)]
    score, best = max(scores, key=lambda pair: pair[0])
    gain = score - float(_score(z, mean, raw.exp().clamp(1e-300, 1e300)).mean())
    return Cause(best.code, best.title, best.advice, gain, negative=True)


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
    kept = correlation[range(d), order] ** 2 - correlation.diagonal() ** 2 < THRESHOLDS.swapped
    order = np.where(kept, np.arange(d), order)
    if len(set(order.tolist())) < d:  # half of a swap is not a permutation
        return
    sign = np.where(correlation[range(d), order] < -math.sqrt(THRESHOLDS.swapped), -1.0, 1.0)
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
    changed = used & (slope > 0) & (slope.clamp(min=1e-12).log().abs() > math.log(THRESHOLDS.unit))
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
        far = (scale.log().abs() > math.log(THRESHOLDS.unit)) | (
            (observed.mean(dims) - made.mean(dims)).abs() > THRESHOLDS.shift * observed.std(dims, correction=0)
        )
        if not bool(far.any()) or not bool(scale.isfinite().all()):
            continue
        rescaled = (scale * made + shift).reshape(x.shape).to(x)
        with contextlib.suppress(Skipped, InputError):
            encoded = encode_simulated(real.model, rescaled, simulation.prior, simulation.auxiliary)
            factor = f"x ≈ {float(scale.median()):.3g} · output {float(shift.median()):+.3g}{what}"
            yield _Correction(
                "units-of-x",
                f"The decoder returns x in other units than the encoder takes ({factor}).",
                "Scale x in decode as the encoder's input is scaled, and give the precision in these units.",
                encoded.mean.double(),
                encoded.variance.double(),
            )
