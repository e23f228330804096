r"""The decoder in the neighbourhood that a posterior covers: a linear map, or one with a single non-linearity after it.

For one point, Δ(ε) = f(μ + ε) − f(μ) with ε ~ N(0, diag σ²) is fitted by M ε + c (exact least squares) and by
a ∘ tanh(M ε + b) + c (Levenberg–Marquardt from the linear solution, every output by itself). Errors are those of
draws that no fit has seen. Bhowal et al. 2024, Eq. 8 and Tab. 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vaescope import randomness
from vaescope.errors import InputError
from vaescope.orthogonality.inputs import count, posterior
from vaescope.theory.derivatives import Decoder, decode_flat, jacobian

HELD_OUT = 0.3  # the share of draws on which errors are measured
STEPS = 30  # of Levenberg–Marquardt, at most
OUTPUTS_AT_ONCE = 2048  # in a cache that cores share
STRAIGHT = 100.0  # with a scale of so many times its outputs tanh is a straight line, kept where nothing bent is better
SETTLED = 1e-3  # a relative gain below this, in a step that was hardly damped, ends an output's steps
ORDERS = 5  # Hermite coefficients by which a start is chosen,
START_DRAWS = 1024  # from at most so many draws
STEEPNESS = torch.logspace(-1.3, 1.0, 16, dtype=torch.float64)  # of the tanh among which it is chosen ...
CENTRES = torch.linspace(-3.0, 3.0, 25, dtype=torch.float64)  # ... and where they bend, in deviations of their input
WIDTH = 16
NUMBERS_AT_ONCE = 2**24  # decoded at once,
ROWS_AT_ONCE = 2**16  # and codes, whatever a decoder makes of them on its way
DAMPING = 1e-2  # at the start; divided or multiplied by five,
STUCK = 1e6  # up to here
REACH = 3.0  # a tanh bends within so many deviations, or is centred at most so far from the code
Fitted = tuple[Tensor, Tensor, Tensor]  # weights, scale and offset of every output


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
    jacobian_error: Float[Tensor, " P"] | None = None
    """Of the linearisation J ε on the same draws, which is fitted to nothing."""
    jacobian_energy: Float[Tensor, " P"] | None = None


def local_fit(
    decoder: Decoder,
    mean: object,
    variance: object,
    *,
    draws: int = 1000,
    linearise: bool = False,
    seed: int = 0,
) -> LocalFit:
    """Fit both local decoders at every point; 30 % of the draws are held out.

    `linearise` adds the decoder's own Jacobian as a third rival (for decoders that torch can differentiate).

    >>> z = torch.zeros(1, 2)
    >>> found = local_fit(lambda z: torch.tanh(z @ torch.eye(2)), z, torch.ones(1, 2))
    >>> bool(found.nonlinear_error < 0.01 * found.linear_error)
    True
    """
    centre, spread = posterior(mean, variance)
    latents = centre.shape[1]
    if count(draws, "draws", 1) * (1 - HELD_OUT) < 2 * (latents + 3):
        raise InputError(f"{draws} draws are too few for {latents} latents; use at least {4 * latents + 20}.")
    jacobians = jacobian(decoder, centre) if linearise else [None] * len(centre)
    deltas = _deltas(decoder, centre, spread, draws, seed)
    rows = [(*_fit_point(*pair), *_linearised(J, *pair)) for J, pair in zip(jacobians, deltas, strict=True)]
    return LocalFit(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _linearised(
    J: Float[Tensor, "n d"] | None, epsilon: Float[Tensor, "R d"], delta: Float[Tensor, "R n"]
) -> tuple[Tensor, ...]:
    """Error and energy of J ε on the held-out draws."""
    if J is None:
        return ()
    kept = round(len(epsilon) * (1 - HELD_OUT))
    straight = epsilon[kept:] @ J.mT.to(epsilon)
    return square_sum(straight - delta[kept:]) / len(straight), square_sum(straight) / len(straight)


def _deltas(
    decoder: Decoder, mean: Tensor, variance: Tensor, draws: int, seed: int
) -> Iterator[tuple[Float[Tensor, "R d"], Float[Tensor, "R n"]]]:
    """ε and Δ(ε), point by point; the decoder is asked for many points at once."""
    generator = randomness.generator(seed, "local")
    outputs = _decoded(decoder, mean[:1]).shape[1]
    together = max(1, min(NUMBERS_AT_ONCE // (draws * outputs), ROWS_AT_ONCE // draws))
    for some, spread in zip(mean.split(together), variance.sqrt().split(together), strict=True):
        noise = torch.randn((len(some), draws, some.shape[1]), generator=generator, dtype=mean.dtype).to(mean.device)
        z = some.unsqueeze(1) + noise * spread.unsqueeze(1)
        epsilon = z - some.unsqueeze(1)  # as the decoder sees it, after rounding
        if not bool((epsilon.std(1) > 0).all()):
            raise InputError("a posterior is narrower than the numbers of its mean can tell; give float64.")
        centre = _decoded(decoder, some).unsqueeze(1)
        moved = _decoded(decoder, z.flatten(0, 1)).unflatten(0, z.shape[:2])
        yield from zip(epsilon, moved - centre, strict=True)


@torch.no_grad()
def _decoded(decoder: Decoder, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n"]:
    """Finite outputs in the floating type of the codes."""
    out = decode_flat(decoder, z)
    if 0 in out.shape or not bool(out.isfinite().all()):
        raise InputError(f"the decoder must give finite numbers, got {tuple(out.shape)} with NaN, infinity or nothing.")
    return out.to(z)


def _fit_point(epsilon: Float[Tensor, "R d"], delta: Float[Tensor, "R n"]) -> tuple[Tensor, ...]:
    """In units of the posterior's deviations, so that latents of any width are alike to the solver."""
    width = epsilon.std(0)
    inputs = torch.cat([epsilon / width, torch.ones_like(epsilon[:, :1])], dim=1).mT.contiguous()
    kept = round(len(epsilon) * (1 - HELD_OUT))
    draws = Draws.of(inputs[:, :kept])
    target = delta.mT.contiguous()
    Q, R = torch.linalg.qr(inputs[:, :kept].mT)
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
    columns: Float[Tensor, "R w"]
    """The inputs as columns, with columns of zeros behind them: narrow products are slow at odd widths."""
    outer: Float[Tensor, "R t"]
    places: Int[Tensor, " i2"]
    """Where every number of the normal matrix stands among the products."""

    @classmethod
    def of(cls, inputs: Float[Tensor, "i R"]) -> Draws:
        i, columns = len(inputs), F.pad(inputs.mT, (0, -len(inputs) % WIDTH)).contiguous()
        first, second = torch.triu_indices(i, i, device=inputs.device)
        places = torch.empty(i, i, dtype=torch.long, device=inputs.device)
        places[first, second] = places[second, first] = torch.arange(len(first), device=inputs.device)
        return cls(inputs.contiguous(), columns, columns[:, first] * columns[:, second], places.flatten())


class State(NamedTuple):
    """Where a fit is: tanh, the scale and offset that are best for it, what is left, and its mean square."""

    weights: Float[Tensor, "o i"]
    bent: Float[Tensor, "o R"]
    residual: Float[Tensor, "o R"]
    scale: Float[Tensor, "o 1"]
    offset: Float[Tensor, "o 1"]
    variance: Float[Tensor, "o 1"]
    """Of tanh over the draws."""
    error: Float[Tensor, "o 1"]


def _levenberg_marquardt(draws: Draws, target: Float[Tensor, "o R"], linear: Float[Tensor, "o i"]) -> Fitted:
    """a tanh(W x) + c for every output by itself, a and c always the best ones for W (variable projection).

    What costs is passing over o x R numbers, so outputs that are settled leave, and few passes are made.
    """
    unit = target.abs().amax(1, keepdim=True).clamp(min=torch.finfo(target.dtype).tiny ** 0.5)
    target, linear = target / unit, linear / unit  # so that the size of an output does not matter
    straight = _state(draws, target, torch.cat([linear[:, :-1] / STRAIGHT, torch.zeros_like(unit)], dim=1))
    now = _state(draws, target, _bent_start(draws, target, linear))
    best = [t.clone() for t in (now.weights, now.scale, now.offset, now.error)]
    rows, damping = torch.arange(len(unit), device=unit.device), torch.full_like(unit, DAMPING)
    floor = torch.finfo(target.dtype).eps ** 2
    for _ in range(STEPS):
        trial = _state(draws, target, _within_reach(now.weights + _step(draws, now, damping)))
        better = trial.error < now.error
        gained = trial.error < (1 - SETTLED) * now.error
        going = ((gained | (~better & (damping < STUCK))) & (trial.error > floor)).squeeze(1)
        damping = torch.where(better, damping / 5, damping * 5).clamp(min=1e-9)
        refused = (~better).squeeze(1).nonzero().squeeze(1)
        for new, old in zip(trial, now, strict=True):
            new[refused] = old[refused]
        now = trial
        for kept, new in zip(best, (now.weights, now.scale, now.offset, now.error), strict=True):
            kept[rows] = new
        if not bool(going.any()):
            break
        if int(going.sum()) < 0.8 * len(rows):  # taking rows out is a pass itself
            rows, damping, target = rows[going], damping[going], target[going]
            now = State(*(t[going] for t in now))
    unbent = straight.error < best[3]
    weights, scale, offset = (
        torch.where(unbent, s, b)
        for s, b in zip((straight.weights, straight.scale, straight.offset), best[:3], strict=True)
    )
    return weights, scale * unit, offset * unit


def _within_reach(weights: Float[Tensor, "o i"]) -> Float[Tensor, "o i"]:
    """Not so far out that tanh is an exponential, whose scale and offset mean nothing."""
    most = REACH * (1 + weights[:, :-1].norm(dim=1, keepdim=True))
    return torch.cat([weights[:, :-1], weights[:, -1:].clamp(-most, most)], dim=1)


def _state(draws: Draws, target: Float[Tensor, "o R"], weights: Float[Tensor, "o i"]) -> State:
    bent = (2 * weights @ draws.inputs).sigmoid_().mul_(2).sub_(1)  # tanh, in a third of its time
    level, middle = bent.mean(1, keepdim=True), target.mean(1, keepdim=True)
    variance = (torch.linalg.vecdot(bent, bent) / bent.shape[1]).unsqueeze(1) - level.square()
    shared = (torch.linalg.vecdot(bent, target) / bent.shape[1]).unsqueeze(1) - level * middle
    variance = variance.clamp(min=torch.finfo(target.dtype).eps)
    scale = shared / variance
    offset = middle - scale * level
    residual = torch.addcmul(target, scale, bent, value=-1).sub_(offset)
    error = torch.linalg.vecdot(residual, residual).unsqueeze(1) / residual.shape[1]
    return State(weights, bent, residual, scale, offset, variance, error)


def _step(draws: Draws, now: State, damping: Float[Tensor, "o 1"]) -> Float[Tensor, "o i"]:
    """The damped Gauss–Newton step of the weights, with scale and offset projected out (Kaufman 1975)."""
    i, count = draws.inputs.shape
    slope = torch.addcmul(torch.ones((), dtype=now.bent.dtype, device=now.bent.device), now.bent, now.bent, value=-1)
    gradient, by_offset, by_scale = (
        now.scale * (t @ draws.columns)[:, :i] / count for t in (slope * now.residual, slope, slope * now.bent)
    )
    by_scale = by_scale - now.bent.mean(1, keepdim=True) * by_offset
    pairs = now.scale.square() * (slope.square_() @ draws.outer)
    H = pairs[:, draws.places].unflatten(1, (i, i)) / count
    H = H - by_offset.unsqueeze(2) * by_offset.unsqueeze(1)
    H = H - (by_scale / now.variance).unsqueeze(2) * by_scale.unsqueeze(1)
    diagonal = H.diagonal(dim1=1, dim2=2)
    floor = torch.finfo(H.dtype).eps * diagonal.amax(1, keepdim=True) + torch.finfo(H.dtype).tiny
    diagonal.copy_(diagonal.clamp(min=0) * (1 + damping) + floor)
    return torch.linalg.solve_ex(H, gradient.unsqueeze(-1)).result.squeeze(-1)


def _bent_start(draws: Draws, target: Float[Tensor, "o R"], linear: Float[Tensor, "o i"]) -> Float[Tensor, "o i"]:
    """The weights of a tanh near the best one: direction from the linear solution, the rest by Hermite coefficients.

    For normal inputs the linear solution of a function of w·x is along w (Stein's lemma). Along it, steepness and
    centre are those of the table's tanh whose Hermite coefficients are most alike.
    """
    table, steepness, centre = (t.to(target) for t in _tanh_table())
    direction = linear[:, :-1] / linear[:, :-1].norm(dim=1, keepdim=True).clamp(min=torch.finfo(target.dtype).tiny)
    target, inputs = target[:, :START_DRAWS], draws.inputs[:-1, :START_DRAWS]
    along = direction @ inputs
    before, power = torch.ones_like(along), along.clone()
    coefficients = []
    for order in range(1, ORDERS + 1):
        coefficients.append(torch.linalg.vecdot(target, power) / along.shape[1] / math.factorial(order) ** 0.5)
        before, power = power, (along * power).sub_(before, alpha=order)  # He_{k+1} = x He_k - k He_{k-1}
    choice = (torch.stack(coefficients, dim=1) @ table).abs().argmax(1)
    return torch.cat([steepness[choice, None] * direction, centre[choice, None]], dim=1)


@functools.cache
def _tanh_table() -> tuple[Float[Tensor, "k g"], Float[Tensor, " g"], Float[Tensor, " g"]]:
    """Hermite coefficients of tanh(s x + c), each column of length one, with s and c; by quadrature."""
    nodes, node_weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(200))
    steepness, places = (t.flatten() for t in torch.meshgrid(STEEPNESS, CENTRES, indexing="ij"))
    centre = -steepness * places
    values = torch.tanh(steepness[:, None] * nodes + centre[:, None])
    columns = []
    for order in range(1, ORDERS + 1):
        basis = torch.from_numpy(np.polynomial.hermite_e.hermeval(nodes.numpy(), [0] * order + [1]))
        columns.append(values @ (node_weights * basis) / math.sqrt(2 * math.pi) / math.factorial(order) ** 0.5)
    table = torch.stack(columns)
    return table / table.norm(dim=0), steepness, centre
