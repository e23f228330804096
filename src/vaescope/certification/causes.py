"""Mistakes in what encoder and decoder exchange, found by undoing each: does the true z become more probable?

Each correction turns the encoder's outputs into other means and variances. It is named if the simulated z are more
probable under it than under the outputs as they are, even if the latter may be multiplied by the best common factor;
otherwise a wrong width would be taken for a wrong unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from vaescope.adapters.repaired import SCALES
from vaescope.certification.simulate import Simulation, encode_simulated
from vaescope.encoded import EncodedSample
from vaescope.errors import InputError
from vaescope.skipped import Skipped

GAIN = 0.05  # nats per latent that a correction must gain
STANDARD_ERRORS = 4.0  # of that gain
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
        if mean > max(GAIN, STANDARD_ERRORS * error) and 1 / FACTOR**2 < factor < FACTOR**2:
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
