r"""The decoder in the neighbourhood covered by a posterior: a linear map, optionally followed by one non-linearity.

At one point, Δ(ε) = f(μ + ε) − f(μ) with ε ~ N(0, diag σ²) is fitted by M ε + c (exact least squares) and by
a ∘ tanh(M ε + b) + c (Levenberg–Marquardt from the linear solution, each output separately). Errors are measured on
held-out draws. Bhowal et al. 2024, Eq. 8 and Tab. 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.errors import InputError
from vaescope.orthogonality.tanh_fit import Draws, fit_tanh
from vaescope.theory.derivatives import Decoder, decode_flat, jacobian
from vaescope.validation import posterior, whole_number

HELD_OUT = 0.3  # share of the draws on which errors are measured
OUTPUTS_AT_ONCE = 2048  # fits in a shared cache
NUMBERS_AT_ONCE = 2**24  # decoded numbers in memory at a time
ROWS_AT_ONCE = 2**16  # decoded codes at a time: a decoder's activations may be wider than its output


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
    if whole_number("draws", draws) * (1 - HELD_OUT) < 2 * (latents + 3):
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
    points = max(1, min(NUMBERS_AT_ONCE // (draws * outputs), ROWS_AT_ONCE // draws))
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
    chunks = zip(linear.split(OUTPUTS_AT_ONCE), target.split(OUTPUTS_AT_ONCE), strict=True)
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
