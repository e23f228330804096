r"""The decoder in the neighbourhood that a posterior covers: a linear map, or one with a single non-linearity after it.

For one point, Δ(ε) = f(μ + ε) − f(μ) with ε ~ N(0, diag σ²) is fitted by M ε + c (exact least squares) and by
a ∘ tanh(M ε + b) + c (Levenberg–Marquardt from the linear solution, every output by itself). Errors are those of
draws that no fit has seen. Bhowal et al. 2024, Eq. 8 and Tab. 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vaescope import randomness
from vaescope.errors import InputError
from vaescope.theory.derivatives import Decoder, decode_flat

HELD_OUT = 0.3  # the share of draws on which errors are measured
STEPS = 12  # of Levenberg–Marquardt, at most
OUTPUTS_AT_ONCE = 2048  # in a cache that cores share
SATURATION = 1.2  # the scale starts at so many times the largest output: as bent as the draws allow
STRAIGHT = 100.0  # and with so many times it tanh is a straight line, which is kept where nothing bent is better
SETTLED = 1e-2  # a relative gain below this ends an output's steps
NUMBERS_AT_ONCE = 2**24  # decoded at once
Guess = tuple[Tensor, Tensor, Tensor]  # weights, scale and offset of every output


@dataclass(frozen=True, eq=False)
class LocalFit:
    """Both fits at every point, with errors on held-out draws, summed over outputs and averaged over draws."""

    linear: Float[Tensor, "P n d"]
    matrix: Float[Tensor, "P n d"]
    """M_D: the matrix of the non-linear fit, times the scale of every output."""
    slope: Float[Tensor, "P n d"]
    """Its derivative at ε = 0."""
    linear_error: Float[Tensor, " P"]
    nonlinear_error: Float[Tensor, " P"]
    energy: Float[Tensor, " P"]
    """E‖Δ(ε)‖² of the same held-out draws: L^stoch, and the error of predicting nothing."""
    linear_energy: Float[Tensor, " P"]
    """E‖·‖² of the linear fit: its estimate of L^stoch."""
    nonlinear_energy: Float[Tensor, " P"]


def local_fit(
    decoder: Decoder,
    mean: Float[Tensor, "P d"],
    variance: Float[Tensor, "P d"],
    *,
    draws: int = 1000,
    seed: int = 0,
) -> LocalFit:
    """Fit both local decoders at every point; 30 % of the draws are held out.

    >>> z = torch.zeros(1, 2)
    >>> found = local_fit(lambda z: torch.tanh(z @ torch.eye(2)), z, torch.ones(1, 2))
    >>> bool(found.nonlinear_error < 0.01 * found.linear_error)
    True
    """
    _check(mean, variance, draws)
    rows = [_fit_point(*pair) for pair in _deltas(decoder, mean, variance, draws, seed)]
    return LocalFit(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _check(mean: Tensor, variance: Tensor, draws: int) -> None:
    if mean.ndim != 2 or mean.shape != variance.shape or not mean.is_floating_point():
        raise InputError(
            f"mean and variance must be floating point and (P, d), got {tuple(mean.shape)} and {tuple(variance.shape)}."
        )
    if not bool((variance > 0).all()):
        raise InputError("variance must be > 0; pass variances, not log-variances.")
    if draws * (1 - HELD_OUT) < 2 * (mean.shape[1] + 3):
        raise InputError(
            f"{draws} draws are too few for {mean.shape[1]} latents; use at least {4 * mean.shape[1] + 20}."
        )


def _deltas(
    decoder: Decoder, mean: Tensor, variance: Tensor, draws: int, seed: int
) -> Iterator[tuple[Float[Tensor, "R d"], Float[Tensor, "R n"]]]:
    """ε and Δ(ε), point by point; the decoder is asked for many points at once."""
    generator = randomness.generator(seed, "local")
    outputs = decode_flat(decoder, mean[:1]).shape[1]
    together = max(1, NUMBERS_AT_ONCE // (draws * outputs))
    for some, spread in zip(mean.split(together), variance.sqrt().split(together), strict=True):
        noise = torch.randn((len(some), draws, some.shape[1]), generator=generator, dtype=mean.dtype).to(mean.device)
        epsilon = noise * spread.unsqueeze(1)
        with torch.no_grad():
            centre = decode_flat(decoder, some).unsqueeze(1)
            moved = decode_flat(decoder, (some.unsqueeze(1) + epsilon).flatten(0, 1)).unflatten(0, epsilon.shape[:2])
        yield from zip(epsilon, moved - centre, strict=True)


def _fit_point(epsilon: Float[Tensor, "R d"], delta: Float[Tensor, "R n"]) -> tuple[Tensor, ...]:
    """In units of the posterior's deviations, so that latents of any width are alike to the solver."""
    width = epsilon.std(0)
    inputs = torch.cat([epsilon / width, torch.ones_like(epsilon[:, :1])], dim=1).mT.contiguous()
    kept = round(len(epsilon) * (1 - HELD_OUT))
    draws = Draws.of(inputs[:, :kept])
    target = delta.mT.contiguous()
    Q, R = torch.linalg.qr(draws.columns)
    linear = torch.linalg.solve_triangular(R.mT, target[:, :kept] @ Q, upper=False, left=False)
    parts = zip(linear.split(OUTPUTS_AT_ONCE), target.split(OUTPUTS_AT_ONCE), strict=True)
    fitted = [_fit_outputs(draws, inputs[:, kept:], rows[:, :kept], rows[:, kept:], start) for start, rows in parts]
    matrix, slope, totals = zip(*fitted, strict=True)
    matrices = (linear[:, :-1], torch.cat(matrix), torch.cat(slope))
    return (*(M / width for M in matrices), *torch.stack(totals).sum(0))


def _fit_outputs(
    draws: Draws,
    unseen: Float[Tensor, "i T"],
    target: Float[Tensor, "o R"],
    truth: Float[Tensor, "o T"],
    linear: Float[Tensor, "o i"],
) -> tuple[Float[Tensor, "o d"], Float[Tensor, "o d"], Float[Tensor, " 5"]]:
    """The non-linear fit of some outputs: its matrix and slope, and five sums over held-out draws."""
    weights, scale, offset = _levenberg_marquardt(draws, target, linear)
    straight = linear @ unseen
    bent = scale * torch.tanh(weights @ unseen) + offset
    sums = torch.stack([square_sum(t) for t in (straight - truth, bent - truth, truth, straight, bent)])
    matrix = scale * weights[:, :-1]
    return matrix, (1 - torch.tanh(weights[:, -1:]) ** 2) * matrix, sums / truth.shape[1]


def square_sum(t: Tensor) -> Tensor:
    return torch.linalg.vecdot(t, t).sum()


class Draws(NamedTuple):
    """Inputs (with a row of ones last) and their products in pairs, as matrix products want them."""

    inputs: Float[Tensor, "i R"]
    columns: Float[Tensor, "R i"]
    outer: Float[Tensor, "R t"]
    places: Int[Tensor, " p2"]
    """Where every number of the normal matrix stands among those that a step computes."""

    @classmethod
    def of(cls, inputs: Float[Tensor, "i R"]) -> Draws:
        i, columns = len(inputs), inputs.mT.contiguous()
        first, second = torch.triu_indices(i, i, device=inputs.device)
        places = torch.empty(i + 2, i + 2, dtype=torch.long, device=inputs.device)
        every = torch.arange(len(first) + 2 * i + 3, device=inputs.device)
        pairs, scales, offsets, corner = every.split([len(first), i, i, 3])
        places[first, second] = places[second, first] = pairs
        places[i, :i] = places[:i, i] = scales
        places[i + 1, :i] = places[:i, i + 1] = offsets
        places[i:, i:] = corner[torch.tensor([[0, 1], [1, 2]])]
        return cls(inputs.contiguous(), columns, columns[:, first] * columns[:, second], places.flatten())


def _levenberg_marquardt(draws: Draws, target: Float[Tensor, "o R"], linear: Float[Tensor, "o i"]) -> Guess:
    """a tanh(W x) + c for every output by itself: all normal equations of a step are three matrix products.

    What costs is passing over o x R numbers, so outputs that are settled leave, and few passes are made.
    """
    unit = target.abs().amax(1, keepdim=True).clamp(min=torch.finfo(target.dtype).tiny ** 0.5)
    target, linear = target / unit, linear / unit  # so that the size of an output does not matter
    straight = _start(linear, STRAIGHT)
    straight_error = _state(draws, target, straight)[2]
    current = _start(linear, SATURATION)
    best, error = [t.clone() for t in current], torch.full_like(unit, torch.inf)
    rows, damping = torch.arange(len(unit), device=unit.device), torch.full_like(unit, 1e-3)
    bent, residual, now = _state(draws, target, current)
    for _ in range(STEPS):
        step = _step(draws, bent, residual, current[1], damping)
        trial = (current[0] + step[:, :-2], current[1] + step[:, -2:-1], current[2] + step[:, -1:])
        found = _state(draws, target, trial)
        better = found[2] < now
        going = (~better | (found[2] < (1 - SETTLED) * now)).squeeze(1)
        damping = torch.where(better, damping * 0.1, damping * 10).clamp(1e-9, 1e9)
        refused = (~better).squeeze(1).nonzero().squeeze(1)
        for new, old in zip((*trial, *found), (*current, bent, residual, now), strict=True):
            new[refused] = old[refused]
        current, (bent, residual, now) = trial, found
        for kept, new in zip((*best, error), (*current, now), strict=True):
            kept[rows] = new
        if not bool(going.any()):
            break
        if int(going.sum()) < 0.8 * len(rows):  # taking rows out is a pass itself
            rows, damping, bent, residual, now, target = (
                t[going] for t in (rows, damping, bent, residual, now, target)
            )
            current = (current[0][going], current[1][going], current[2][going])
    unbent = straight_error < error
    weights, scale, offset = (torch.where(unbent, s, b) for s, b in zip(straight, best, strict=True))
    return weights, scale * unit, offset * unit


def _start(linear: Float[Tensor, "o i"], times: float) -> Guess:
    """The linear solution seen through a tanh of this scale."""
    offset = linear[:, -1:]
    weights = torch.cat([linear[:, :-1] / times, torch.zeros_like(offset)], dim=1)
    return weights, torch.full_like(offset, times), offset.clone()


def _state(
    draws: Draws, target: Float[Tensor, "o R"], guess: Guess
) -> tuple[Float[Tensor, "o R"], Float[Tensor, "o R"], Float[Tensor, "o 1"]]:
    """tanh, what is left to explain, and its mean square."""
    weights, scale, offset = guess
    bent = (weights @ draws.inputs).tanh_()
    residual = torch.addcmul(target, scale, bent, value=-1).sub_(offset)
    return bent, residual, torch.linalg.vecdot(residual, residual).unsqueeze(1) / residual.shape[1]


def _step(
    draws: Draws,
    bent: Float[Tensor, "o R"],
    residual: Float[Tensor, "o R"],
    scale: Float[Tensor, "o 1"],
    damping: Float[Tensor, "o 1"],
) -> Float[Tensor, "o p"]:
    """The damped Gauss–Newton step of weights, scale and offset; tanh' = 1 - tanh²."""
    i, count = draws.inputs.shape
    slope = torch.addcmul(torch.ones((), dtype=bent.dtype, device=bent.device), bent, bent, value=-1)
    slopes = slope @ draws.columns
    gradient = [
        scale * ((slope * residual) @ draws.columns),
        torch.linalg.vecdot(bent, residual).unsqueeze(1),
        residual.sum(1, keepdim=True),
    ]
    scales = scale * ((slope * bent) @ draws.columns)
    # the last input is one, so the sum of tanh² is what the slopes' sum lacks
    corner = [count - slopes[:, -1:], bent.sum(1, keepdim=True), torch.full_like(scale, count)]
    pairs = scale * scale * (slope.square_() @ draws.outer)
    H = torch.cat([pairs, scales, scale * slopes, *corner], dim=1)[:, draws.places].unflatten(1, (i + 2, i + 2))
    diagonal = H.diagonal(dim1=1, dim2=2)
    floor = torch.finfo(H.dtype).eps * diagonal.amax(1, keepdim=True) + torch.finfo(H.dtype).tiny
    diagonal += damping * diagonal + floor
    return torch.linalg.solve_ex(H, torch.cat(gradient, dim=1).unsqueeze(-1)).result.squeeze(-1)
