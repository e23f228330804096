r"""The decoder in the neighbourhood covered by a posterior: a linear map, optionally followed by one non-linearity.

At one point, Δ(ε) = f(μ + ε) − f(μ) with ε ~ N(0, diag σ²) is fitted by M ε + c (exact least squares) and by
a ∘ tanh(M ε + b) + c (Levenberg–Marquardt from the linear solution, each output separately). Errors are measured on
held-out draws. Bhowal et al. 2024, Eq. 8 and Tab. 1.
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

from vaescope.core import randomness
from vaescope.core.errors import InputError
from vaescope.core.validation import integer, posterior, same_rows, tensor
from vaescope.distributions import quadrature
from vaescope.inference.derivatives import Decoder, decode_flat, jacobian

ROWS_AT_ONCE = 2**16  # decoded codes at a time: a decoder's activations may be wider than its output
HELD_OUT = 0.3  # share of the draws on which errors are measured


class TanhFit(NamedTuple):
    weights: Float[Tensor, "o i"]
    scale: Float[Tensor, "o 1"]
    offset: Float[Tensor, "o 1"]


class Draws(NamedTuple):
    """Inputs (with a row of ones last) and their pairwise products, laid out for matrix products."""

    inputs: Float[Tensor, "i R"]
    columns: Float[Tensor, "R w"]
    """The inputs as columns, padded with zeros to a multiple of 16: matrix products are slow for other widths."""
    products: Float[Tensor, "R t"]
    positions: Int[Tensor, " i2"]
    """The position of each entry of the normal matrix among the products."""

    @classmethod
    def of(cls, inputs: Float[Tensor, "i R"]) -> Draws:
        i, columns = len(inputs), F.pad(inputs.mT, (0, -len(inputs) % 16)).contiguous()
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


def fit_tanh(draws: Draws, target: Float[Tensor, "o R"], linear: Float[Tensor, "o i"], *, steps: int = 30) -> TanhFit:
    """Fit each output separately; scale and offset are always optimal for the weights (variable projection).

    The cost is in passes over o x R numbers, so finished outputs leave the batch.

    Args:
        draws: inputs.
        target: outputs at these inputs.
        linear: the linear least-squares solution.
        steps: of Levenberg–Marquardt, at most.
    """
    unit = target.abs().amax(1, keepdim=True).clamp(min=torch.finfo(target.dtype).tiny ** 0.5)
    target, linear = target / unit, linear / unit  # so that the scale of an output does not matter
    # tanh of inputs divided by 100 is linear; used if no other fit is better
    straight = _state(draws, target, torch.cat([linear[:, :-1] / 100, torch.zeros_like(unit)], dim=1))
    now = _state(draws, target, _start(draws, target, linear))
    best = [t.clone() for t in (now.weights, now.scale, now.offset, now.error)]
    rows, damping = torch.arange(len(unit), device=unit.device), torch.full_like(unit, 1e-2)
    floor = torch.finfo(target.dtype).eps ** 2
    for _ in range(steps):
        trial = _state(draws, target, _limit_centres(now.weights + _step(draws, now, damping)))
        better = trial.error < now.error
        gained = trial.error < (1 - 1e-3) * now.error
        unfinished = ((gained | (~better & (damping < 1e6))) & (trial.error > floor)).squeeze(1)
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
    largest = 3 * (1 + weights[:, :-1].norm(dim=1, keepdim=True))
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
    target, inputs = target[:, :1024], draws.inputs[:-1, :1024]
    along = direction @ inputs
    previous, power = torch.ones_like(along), along.clone()
    coefficients = []
    for order in range(1, len(table) + 1):
        coefficients.append(torch.linalg.vecdot(target, power) / along.shape[1] / math.factorial(order) ** 0.5)
        previous, power = power, (along * power).sub_(previous, alpha=order)  # He_{k+1} = x He_k - k He_{k-1}
    choice = (torch.stack(coefficients, dim=1) @ table).abs().argmax(1)
    return torch.cat([steepness[choice, None] * direction, centre[choice, None]], dim=1)


@functools.cache
def _tanh_table() -> tuple[Float[Tensor, "k g"], Float[Tensor, " g"], Float[Tensor, " g"]]:
    """Normalised Hermite coefficients of tanh(s x + c), a column per (s, c), and these s and c."""
    slopes = torch.logspace(-1.3, 1.0, 16, dtype=torch.float64)
    places = torch.linspace(-3.0, 3.0, 25, dtype=torch.float64)  # in deviations of the input
    nodes, weights = quadrature.hermite_nodes(200, slopes)
    steepness, centres = (t.flatten() for t in torch.meshgrid(slopes, places, indexing="ij"))
    offset = -steepness * centres
    values = torch.tanh(steepness[:, None] * nodes + offset[:, None])
    columns = []
    for order in range(1, 6):  # enough to choose a start
        basis = torch.from_numpy(np.polynomial.hermite_e.hermeval(nodes.numpy(), [0] * order + [1]))
        columns.append(values @ (weights * basis) / math.factorial(order) ** 0.5)
    table = torch.stack(columns)
    return table / table.norm(dim=0), steepness, offset


@dataclass(frozen=True, eq=False)
class LocalFit:
    """Both fits at each point; errors and energies are summed over outputs and averaged over held-out draws."""

    linear: Float[Tensor, "P n d"]
    matrix: Float[Tensor, "P n d"]
    """M_D: the matrix of the non-linear fit, times the scale of each output."""
    slope: Float[Tensor, "P n d"]
    """Its derivative at ε = 0."""
    linear_error: Float[Tensor, " P"]
    nonlinear_error: Float[Tensor, " P"]
    energy: Float[Tensor, " P"]
    """E‖Δ(ε)‖²: L^stoch, and the error of a constant prediction."""
    linear_energy: Float[Tensor, " P"]
    """E‖·‖² of the linear fit: its estimate of L^stoch."""
    nonlinear_energy: Float[Tensor, " P"]
    jacobian_error: Float[Tensor, " P"] | None = None
    """Error of the linearisation J ε, which is not fitted."""
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
    """Fit both local decoders at each point; 30 % of the draws are held out.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        mean: (P, d) posterior means: the points.
        variance: (P, d) posterior variances: the size of the neighbourhoods.
        draws: of ε, per point.
        linearise: also measure the decoder's own Jacobian, if torch can differentiate the decoder.
        seed: of the draws.

    >>> z = torch.zeros(1, 2)
    >>> found = local_fit(lambda z: torch.tanh(z @ torch.eye(2)), z, torch.ones(1, 2))
    >>> bool(found.nonlinear_error < 0.01 * found.linear_error)
    True
    """
    means, variances = posterior(mean, variance)
    latents = means.shape[1]
    if integer("draws", draws) * (1 - HELD_OUT) < 2 * (latents + 3):
        raise InputError(f"{draws} draws are too few for {latents} latents; use at least {4 * latents + 20}.")
    jacobians = jacobian(decoder, means) if linearise else [None] * len(means)
    changes = _changes(decoder, means, variances, draws, seed)
    rows = [(*_fit_point(*pair), *_linearisation(J, *pair)) for J, pair in zip(jacobians, changes, strict=True)]
    return LocalFit(*(torch.stack(column) for column in zip(*rows, strict=True)))


def _linearisation(
    J: Float[Tensor, "n d"] | None, epsilon: Float[Tensor, "R d"], delta: Float[Tensor, "R n"]
) -> tuple[Tensor, ...]:
    """Error and energy of J ε on the held-out draws."""
    if J is None:
        return ()
    training = round(len(epsilon) * (1 - HELD_OUT))
    predicted = epsilon[training:] @ J.mT.to(epsilon)
    error = _square_sum(predicted - delta[training:])
    return error / len(predicted), _square_sum(predicted) / len(predicted)


def _changes(
    decoder: Decoder, mean: Tensor, variance: Tensor, draws: int, seed: int
) -> Iterator[tuple[Float[Tensor, "R d"], Float[Tensor, "R n"]]]:
    """ε and Δ(ε), point by point; several points are decoded at once."""
    generator = randomness.generator(seed, "local")
    outputs = _decode(decoder, mean[:1]).shape[1]
    points = max(1, min(2**24 // (draws * outputs), ROWS_AT_ONCE // draws))
    for means, deviations in zip(mean.split(points), variance.sqrt().split(points), strict=True):
        noise = torch.randn((len(means), draws, means.shape[1]), generator=generator, dtype=mean.dtype).to(mean.device)
        z = means.unsqueeze(1) + noise * deviations.unsqueeze(1)
        epsilon = z - means.unsqueeze(1)  # after rounding, as the decoder sees it
        if not bool((epsilon.std(1) > 0).all()):
            raise InputError("a posterior is narrower than the rounding error of its mean; pass float64.")
        centre = _decode(decoder, means).unsqueeze(1)
        moved = _decode(decoder, z.flatten(0, 1)).unflatten(0, z.shape[:2])
        yield from zip(epsilon, moved - centre, strict=True)


@torch.no_grad()
def _decode(decoder: Decoder, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n"]:
    """Finite outputs in the dtype of the codes."""
    output = decode_flat(decoder, z)
    if 0 in output.shape or not bool(output.isfinite().all()):
        raise InputError(f"the decoder must return finite numbers, got shape {tuple(output.shape)}, NaN or infinity.")
    return output.to(z)


def _fit_point(epsilon: Float[Tensor, "R d"], delta: Float[Tensor, "R n"]) -> tuple[Tensor, ...]:
    """Both fits at one point, in units of the posterior's deviations, so that the solver is independent of scales."""
    width = epsilon.std(0)
    inputs = torch.cat([epsilon / width, torch.ones_like(epsilon[:, :1])], dim=1).mT.contiguous()
    training = round(len(epsilon) * (1 - HELD_OUT))
    draws = Draws.of(inputs[:, :training])
    target = delta.mT.contiguous()
    Q, R = torch.linalg.qr(inputs[:, :training].mT)
    linear = torch.linalg.solve_triangular(R.mT, target[:, :training] @ Q, upper=False, left=False)
    chunks = zip(linear.split(2048), target.split(2048), strict=True)  # fits in a shared cache
    fitted = [
        _fit_outputs(draws, inputs[:, training:], rows[:, :training], rows[:, training:], start)
        for start, rows in chunks
    ]
    matrix, slope, totals = zip(*fitted, strict=True)
    matrices = (linear[:, :-1], torch.cat(matrix), torch.cat(slope))
    return (*(M / width for M in matrices), *torch.stack(totals).sum(0))


def _fit_outputs(
    draws: Draws,
    held_out: Float[Tensor, "i T"],
    target: Float[Tensor, "o R"],
    truth: Float[Tensor, "o T"],
    linear: Float[Tensor, "o i"],
) -> tuple[Float[Tensor, "o d"], Float[Tensor, "o d"], Float[Tensor, " 5"]]:
    """The non-linear fit of some outputs: its matrix, its slope, and five means over held-out draws."""
    fit = fit_tanh(draws, target, linear)
    straight = linear @ held_out
    nonlinear = fit.scale * torch.tanh(fit.weights @ held_out) + fit.offset
    sums = torch.stack([_square_sum(t) for t in (straight - truth, nonlinear - truth, truth, straight, nonlinear)])
    matrix = fit.scale * fit.weights[:, :-1]
    return matrix, (1 - torch.tanh(fit.weights[:, -1:]) ** 2) * matrix, sums / truth.shape[1]


def _square_sum(t: Tensor) -> Tensor:
    return torch.linalg.vecdot(t, t).sum()


@dataclass(frozen=True, eq=False)
class LossSplit:
    """The parts of each sample, summed over outputs; `mean` + `stochastic` - `cross` = `total` up to rounding."""

    total: Float[Tensor, " N"]
    mean: Float[Tensor, " N"]
    stochastic: Float[Tensor, " N"]
    cross: Float[Tensor, " N"]

    @property
    def cross_share(self) -> float:
        """The mean cross term as a share of the mean loss: what the paper neglects."""
        return float(self.cross.mean() / self.total.mean())


@torch.no_grad()
def loss_split(
    decoder: Decoder,
    x: object,
    mean: object,
    variance: object,
    *,
    draws: int = 64,
    seed: int = 0,
) -> LossSplit:
    """Both parts and the cross term, with the same draws of ε for all three.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        x: observations, a row or an image per sample.
        mean: (N, d) posterior means.
        variance: (N, d) posterior variances.
        draws: of ε, per sample.
        seed: of the draws.

    >>> split = loss_split(lambda z: z, torch.ones(1, 2), torch.zeros(1, 2), torch.full((1, 2), 1e-6))
    >>> round(float(split.mean), 3)
    2.0
    """
    target = tensor(x, "x").flatten(1)
    means, variances = posterior(mean, variance)
    same_rows({"x": len(target), "mean": len(means)})
    integer("draws", draws)
    generator = randomness.generator(seed, "loss split")
    chunks = [
        _split(decoder, target[rows], means[rows], variances[rows].sqrt(), draws, generator)
        for rows in torch.arange(len(target)).split(1024)
    ]
    return LossSplit(*torch.cat(chunks, dim=1))


def _split(
    decoder: Decoder,
    target: Float[Tensor, "N n"],
    mean: Float[Tensor, "N d"],
    deviation: Float[Tensor, "N d"],
    draws: int,
    generator: torch.Generator,
) -> Float[Tensor, "4 N"]:
    centre = decode_flat(decoder, mean)
    if centre.shape != target.shape:
        raise InputError(f"the decoder returns {centre.shape[1]} numbers per sample, but x has {target.shape[1]}.")
    residual = target.to(centre) - centre
    sums = torch.zeros(3, len(mean), dtype=centre.dtype, device=centre.device)
    for _ in range(draws):
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype).to(mean.device)
        change = decode_flat(decoder, mean + deviation * noise) - centre
        parts = (residual - change).square(), change.square(), 2 * (residual * change)
        sums += torch.stack([part.sum(1) for part in parts])
    total, stochastic, cross = sums / draws
    return torch.stack([total, residual.square().sum(1), stochastic, cross])
