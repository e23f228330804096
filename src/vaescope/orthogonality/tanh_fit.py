"""a tanh(W x) + c fitted to many outputs at once by Levenberg–Marquardt with variable projection."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vaescope.distributions import quadrature

STEPS = 30  # of Levenberg–Marquardt, at most
LINEAR_SCALE = 100.0  # tanh of inputs divided by this is linear; used if no other fit is better
CONVERGED = 1e-3  # relative gain of an accepted step below which an output is finished
HERMITE_ORDERS = 5  # coefficients by which the start is chosen
START_DRAWS = 1024  # draws that these are computed from, at most
STEEPNESS = torch.logspace(-1.3, 1.0, 16, dtype=torch.float64)  # of the candidate starts
CENTRES = torch.linspace(-3.0, 3.0, 25, dtype=torch.float64)  # of the candidate starts, in deviations of the input
QUADRATURE_ORDER = 200
WIDTH = 16  # matrix products are slow for other widths
DAMPING = 1e-2  # initial; divided or multiplied by five after each step
LARGEST_DAMPING = 1e6  # an output whose damping exceeds it is finished
REACH = 3.0  # largest distance of the centre of a tanh, relative to its width


class TanhFit(NamedTuple):
    weights: Float[Tensor, "o i"]
    scale: Float[Tensor, "o 1"]
    offset: Float[Tensor, "o 1"]


class Draws(NamedTuple):
    """Inputs (with a row of ones last) and their pairwise products, laid out for matrix products."""

    inputs: Float[Tensor, "i R"]
    columns: Float[Tensor, "R w"]
    """The inputs as columns, padded with zeros to a multiple of `WIDTH`."""
    products: Float[Tensor, "R t"]
    positions: Int[Tensor, " i2"]
    """The position of each entry of the normal matrix among the products."""

    @classmethod
    def of(cls, inputs: Float[Tensor, "i R"]) -> Draws:
        i, columns = len(inputs), F.pad(inputs.mT, (0, -len(inputs) % WIDTH)).contiguous()
        first, second = torch.triu_indices(i, i, device=inputs.device)
        positions = torch.empty(i, i, dtype=torch.long, device=inputs.device)
        positions[first, second] = positions[second, first] = torch.arange(len(first), device=inputs.device)
        return cls(inputs.contiguous(), columns, columns[:, first] * columns[:, second], positions.flatten())


class State(NamedTuple):
    """Weights, their tanh, the optimal scale and offset for it, the residual, and the mean squared error."""

    weights: Float[Tensor, "o i"]
    tanh: Float[Tensor, "o R"]
    residual: Float[Tensor, "o R"]
    scale: Float[Tensor, "o 1"]
    offset: Float[Tensor, "o 1"]
    variance: Float[Tensor, "o 1"]
    """Of tanh over the draws."""
    error: Float[Tensor, "o 1"]


def fit_tanh(draws: Draws, target: Float[Tensor, "o R"], linear: Float[Tensor, "o i"]) -> TanhFit:
    """Fit each output separately; scale and offset are always optimal for the weights (variable projection).

    The cost is in passes over o x R numbers, so finished outputs leave the batch.

    Args:
        draws: inputs.
        target: outputs at these inputs.
        linear: the linear least-squares solution.
    """
    unit = target.abs().amax(1, keepdim=True).clamp(min=torch.finfo(target.dtype).tiny ** 0.5)
    target, linear = target / unit, linear / unit  # so that the scale of an output does not matter
    straight = _state(draws, target, torch.cat([linear[:, :-1] / LINEAR_SCALE, torch.zeros_like(unit)], dim=1))
    now = _state(draws, target, _start(draws, target, linear))
    best = [t.clone() for t in (now.weights, now.scale, now.offset, now.error)]
    rows, damping = torch.arange(len(unit), device=unit.device), torch.full_like(unit, DAMPING)
    floor = torch.finfo(target.dtype).eps ** 2
    for _ in range(STEPS):
        trial = _state(draws, target, _limit_centres(now.weights + _step(draws, now, damping)))
        better = trial.error < now.error
        gained = trial.error < (1 - CONVERGED) * now.error
        unfinished = ((gained | (~better & (damping < LARGEST_DAMPING))) & (trial.error > floor)).squeeze(1)
        damping = torch.where(better, damping / 5, damping * 5).clamp(min=1e-9)
        refused = (~better).squeeze(1).nonzero().squeeze(1)
        for new, old in zip(trial, now, strict=True):
            new[refused] = old[refused]
        now = trial
        for stored, new in zip(best, (now.weights, now.scale, now.offset, now.error), strict=True):
            stored[rows] = new
        if not bool(unfinished.any()):
            break
        if int(unfinished.sum()) < 0.8 * len(rows):  # removing rows is a pass too
            rows, damping, target = rows[unfinished], damping[unfinished], target[unfinished]
            now = State(*(t[unfinished] for t in now))
    use_straight = straight.error < best[3]
    weights, scale, offset = (
        torch.where(use_straight, s, b)
        for s, b in zip((straight.weights, straight.scale, straight.offset), best[:3], strict=True)
    )
    return TanhFit(weights, scale * unit, offset * unit)


def _limit_centres(weights: Float[Tensor, "o i"]) -> Float[Tensor, "o i"]:
    """Keep centres near the data: far away tanh is an exponential, whose scale and offset are not determined."""
    largest = REACH * (1 + weights[:, :-1].norm(dim=1, keepdim=True))
    return torch.cat([weights[:, :-1], weights[:, -1:].clamp(-largest, largest)], dim=1)


def _state(draws: Draws, target: Float[Tensor, "o R"], weights: Float[Tensor, "o i"]) -> State:
    tanh = (2 * weights @ draws.inputs).sigmoid_().mul_(2).sub_(1)  # three times as fast as torch.tanh
    tanh_mean, target_mean = tanh.mean(1, keepdim=True), target.mean(1, keepdim=True)
    variance = (torch.linalg.vecdot(tanh, tanh) / tanh.shape[1]).unsqueeze(1) - tanh_mean.square()
    covariance = (torch.linalg.vecdot(tanh, target) / tanh.shape[1]).unsqueeze(1) - tanh_mean * target_mean
    variance = variance.clamp(min=torch.finfo(target.dtype).eps)
    scale = covariance / variance
    offset = target_mean - scale * tanh_mean
    residual = torch.addcmul(target, scale, tanh, value=-1).sub_(offset)
    error = torch.linalg.vecdot(residual, residual).unsqueeze(1) / residual.shape[1]
    return State(weights, tanh, residual, scale, offset, variance, error)


def _step(draws: Draws, now: State, damping: Float[Tensor, "o 1"]) -> Float[Tensor, "o i"]:
    """The damped Gauss–Newton step of the weights, with scale and offset projected out (Kaufman 1975)."""
    i, count = draws.inputs.shape
    slope = torch.addcmul(torch.ones((), dtype=now.tanh.dtype, device=now.tanh.device), now.tanh, now.tanh, value=-1)
    gradient, by_offset, by_scale = (
        now.scale * (t @ draws.columns)[:, :i] / count for t in (slope * now.residual, slope, slope * now.tanh)
    )
    by_scale = by_scale - now.tanh.mean(1, keepdim=True) * by_offset
    pairs = now.scale.square() * (slope.square_() @ draws.products)
    H = pairs[:, draws.positions].unflatten(1, (i, i)) / count
    H = H - by_offset.unsqueeze(2) * by_offset.unsqueeze(1)
    H = H - (by_scale / now.variance).unsqueeze(2) * by_scale.unsqueeze(1)
    diagonal = H.diagonal(dim1=1, dim2=2)
    floor = torch.finfo(H.dtype).eps * diagonal.amax(1, keepdim=True) + torch.finfo(H.dtype).tiny
    diagonal.copy_(diagonal.clamp(min=0) * (1 + damping) + floor)
    return torch.linalg.solve_ex(H, gradient.unsqueeze(-1)).result.squeeze(-1)


def _start(draws: Draws, target: Float[Tensor, "o R"], linear: Float[Tensor, "o i"]) -> Float[Tensor, "o i"]:
    """Weights of a tanh near the best one: the direction of the linear solution, the rest by Hermite coefficients.

    For normal inputs the linear solution of a function of w·x is parallel to w (Stein's lemma). Steepness and centre
    are those of the tabulated tanh with the most similar Hermite coefficients in that direction.
    """
    table, steepness, centre = (t.to(target) for t in _tanh_table())
    direction = linear[:, :-1] / linear[:, :-1].norm(dim=1, keepdim=True).clamp(min=torch.finfo(target.dtype).tiny)
    target, inputs = target[:, :START_DRAWS], draws.inputs[:-1, :START_DRAWS]
    along = direction @ inputs
    previous, power = torch.ones_like(along), along.clone()
    coefficients = []
    for order in range(1, HERMITE_ORDERS + 1):
        coefficients.append(torch.linalg.vecdot(target, power) / along.shape[1] / math.factorial(order) ** 0.5)
        previous, power = power, (along * power).sub_(previous, alpha=order)  # He_{k+1} = x He_k - k He_{k-1}
    choice = (torch.stack(coefficients, dim=1) @ table).abs().argmax(1)
    return torch.cat([steepness[choice, None] * direction, centre[choice, None]], dim=1)


@functools.cache
def _tanh_table() -> tuple[Float[Tensor, "k g"], Float[Tensor, " g"], Float[Tensor, " g"]]:
    """Normalised Hermite coefficients of tanh(s x + c), a column per (s, c), and these s and c."""
    nodes, weights = quadrature.hermite_nodes(QUADRATURE_ORDER, STEEPNESS)
    steepness, centres = (t.flatten() for t in torch.meshgrid(STEEPNESS, CENTRES, indexing="ij"))
    offset = -steepness * centres
    values = torch.tanh(steepness[:, None] * nodes + offset[:, None])
    columns = []
    for order in range(1, HERMITE_ORDERS + 1):
        basis = torch.from_numpy(np.polynomial.hermite_e.hermeval(nodes.numpy(), [0] * order + [1]))
        columns.append(values @ (weights * basis) / math.factorial(order) ** 0.5)
    table = torch.stack(columns)
    return table / table.norm(dim=0), steepness, offset
