r"""The decoder in the neighbourhood that a posterior covers: a linear map, or one with a single non-linearity after it.

For one point, Δ(ε) = f(μ + ε) − f(μ) with ε ~ N(0, diag σ²) is fitted by M ε + c (exact least squares) and by
a ∘ tanh(M ε + b) + c (Levenberg–Marquardt from the linear solution, every output by itself). Errors are those of
draws that no fit has seen. Bhowal et al. 2024, Eq. 8 and Tab. 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vaescope import randomness
from vaescope.errors import InputError
from vaescope.theory.derivatives import Decoder, decode_flat

HELD_OUT = 0.3  # the share of draws on which errors are measured
STEPS = 12  # of Levenberg–Marquardt, at most
OUTPUTS_AT_ONCE = 512  # so that what a step touches stays in the cache
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
    inputs = torch.cat([epsilon / width, torch.ones_like(epsilon[:, :1])], dim=1)
    kept = round(len(epsilon) * (1 - HELD_OUT))
    fitted = [_fit_outputs(inputs, part, kept) for part in delta.mT.split(OUTPUTS_AT_ONCE)]
    matrices, totals = zip(*fitted, strict=True)
    linear, matrix, slope = (torch.cat(column) / width for column in zip(*matrices, strict=True))
    return (linear, matrix, slope, *torch.stack(totals).sum(0))


def _fit_outputs(
    inputs: Float[Tensor, "R i"], target: Float[Tensor, "o R"], kept: int
) -> tuple[tuple[Tensor, Tensor, Tensor], Float[Tensor, " 5"]]:
    """Both fits of some outputs: their matrices, and five sums over held-out draws."""
    seen, unseen, truth = inputs[:kept], inputs[kept:], target[:, kept:]
    linear = torch.linalg.lstsq(seen, target[:, :kept].mT).solution.mT
    weights, scale, offset = _levenberg_marquardt(seen, target[:, :kept], linear)
    straight = linear @ unseen.mT
    bent = scale * torch.tanh(weights @ unseen.mT) + offset
    sums = torch.stack([(straight - truth), (bent - truth), truth, straight, bent]).square().sum((1, 2))
    bend = 1 - torch.tanh(weights[:, -1:]) ** 2
    matrix = scale * weights[:, :-1]
    return (linear[:, :-1], matrix, bend * matrix), sums / truth.shape[1]


def _levenberg_marquardt(
    inputs: Float[Tensor, "R i"], target: Float[Tensor, "o R"], linear: Float[Tensor, "o i"]
) -> tuple[Float[Tensor, "o i"], Float[Tensor, "o 1"], Float[Tensor, "o 1"]]:
    """a tanh(W x) + c for every output by itself: all normal equations of a step are four matrix products."""
    unit = target.abs().amax(1, keepdim=True).clamp(min=torch.finfo(target.dtype).tiny ** 0.5)
    target, linear = target / unit, linear / unit  # so that the size of an output does not matter
    best, straight = _start(linear, SATURATION), _start(linear, STRAIGHT)
    current: Guess
    error = torch.full_like(unit, torch.inf)
    rows, upper = torch.arange(len(unit)), torch.triu_indices(inputs.shape[1], inputs.shape[1])
    outer = inputs[:, upper[0]] * inputs[:, upper[1]]
    current, damping = best, torch.full_like(unit, 1e-3)
    bent, residual, now = _state(inputs, target, *current)
    for _ in range(STEPS):
        step = _step(inputs, outer, upper, bent, residual, current[1], damping)
        trial = (current[0] + step[:, :-2], current[1] + step[:, -2:-1], current[2] + step[:, -1:])
        found = _state(inputs, target[rows], *trial)
        better = found[2] < now
        going = (~better | (found[2] < (1 - SETTLED) * now)).squeeze(1)
        damping = torch.where(better, damping * 0.1, damping * 10).clamp(1e-9, 1e9)
        before = (*current, bent, residual, now)
        after = [torch.where(better, new, old) for new, old in zip((*trial, *found), before, strict=True)]
        current, (bent, residual, now) = (after[0], after[1], after[2]), after[3:]
        best = tuple(old.index_copy(0, rows, new) for old, new in zip(best, current, strict=True))  # type: ignore[assignment]
        error = error.index_copy(0, rows, now)
        if not bool(going.any()):
            break
        if int(going.sum()) < 0.9 * len(rows):  # taking rows out costs a little itself
            rows, damping, bent, residual, now = (t[going] for t in (rows, damping, bent, residual, now))
            current = _picked(current, going)
    unbent = _state(inputs, target, *straight)[2] < error
    weights, scale, offset = (torch.where(unbent, s, b) for s, b in zip(straight, best, strict=True))
    return weights, scale * unit, offset * unit


def _picked(guess: Guess, rows: Tensor) -> Guess:
    return guess[0][rows], guess[1][rows], guess[2][rows]


def _start(linear: Float[Tensor, "o i"], times: float) -> Guess:
    """The linear solution seen through a tanh of this scale."""
    offset = linear[:, -1:]
    weights = torch.cat([linear[:, :-1] / times, torch.zeros_like(offset)], dim=1)
    return weights, torch.full_like(offset, times), offset.clone()


def _state(
    inputs: Tensor, target: Tensor, weights: Tensor, scale: Tensor, offset: Tensor
) -> tuple[Float[Tensor, "o R"], Float[Tensor, "o R"], Float[Tensor, "o 1"]]:
    """tanh, what is left to explain, and its mean square."""
    bent = torch.tanh(weights @ inputs.mT)
    residual = target - scale * bent - offset
    return bent, residual, residual.square().mean(1, keepdim=True)


def _step(
    inputs: Float[Tensor, "R i"],
    outer: Float[Tensor, "R t"],
    upper: Int[Tensor, "2 t"],
    bent: Float[Tensor, "o R"],
    residual: Float[Tensor, "o R"],
    scale: Float[Tensor, "o 1"],
    damping: Float[Tensor, "o 1"],
) -> Float[Tensor, "o p"]:
    """The damped Gauss–Newton step of weights, scale and offset."""
    i, count = inputs.shape[1], inputs.shape[0]
    slope = scale * (1 - bent * bent)
    H = inputs.new_empty(len(bent), i + 2, i + 2)
    H[:, upper[0], upper[1]] = H[:, upper[1], upper[0]] = slope * slope @ outer
    H[:, i, :i] = H[:, :i, i] = (slope * bent) @ inputs
    H[:, i + 1, :i] = H[:, :i, i + 1] = slope @ inputs
    H[:, i, i] = (bent * bent).sum(1)
    H[:, i, i + 1] = H[:, i + 1, i] = bent.sum(1)
    H[:, i + 1, i + 1] = count
    gradient = torch.cat(
        [(slope * residual) @ inputs, (bent * residual).sum(1, keepdim=True), residual.sum(1, keepdim=True)], dim=1
    )
    diagonal = H.diagonal(dim1=1, dim2=2)
    floor = torch.finfo(H.dtype).eps * diagonal.amax(1, keepdim=True) + torch.finfo(H.dtype).tiny
    H = H + torch.diag_embed(damping * diagonal + floor)
    return torch.linalg.solve_ex(H, gradient.unsqueeze(-1)).result.squeeze(-1)
