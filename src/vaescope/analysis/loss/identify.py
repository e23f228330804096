"""What a loss is: likelihood, weights, scale of the encoder's second output, further terms, from its derivatives.

Every term of a loss has a known derivative, so a loss that is a sum of known terms is identified by a least-squares fit
of its gradient at a few points in float64, exactly: the coefficients are the weights, and what is left is what is not
recognised. In a Gaussian model the fit is the ratio of second derivatives, β/γ² = (∂²L/∂μ²) / (∂²L/∂y²).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vaescope.analysis.loss.call import Objective, Tensors
from vaescope.analysis.loss.probe import (
    Fit,
    Space,
    derivatives,
    differences,
    fit,
    gradients,
)


def close(a: float, b: float, tolerance: float = 1e-5) -> bool:
    """Equal up to rounding and to an epsilon inside a logarithm."""
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


# reconstruction ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reconstruction:
    """The term in y.

    Args:
        likelihood: gaussian, bernoulli, and others; "other" if no known one fits, "absent" if y is not read, "swapped"
            if x is read as the prediction.
        output: how y is read: mean, probability, logit, rate, log_rate, log_probability.
        weight: of the mean over samples of the sum over a sample's numbers, at unit variance or scale.
        parameter: threshold of "huber", a of "log_cosh".
        detached: whether it changes the value and has no gradient.
        class_axis: of y, for class numbers.
    """

    likelihood: str
    output: str
    weight: float
    parameter: float = 1.0
    detached: bool = False
    class_axis: int = -1


Unit = Callable[[Tensors], Tensor]


def _mean(terms: Tensor) -> Tensor:
    """Mean over samples of the sum over everything else."""
    return terms.sum() / len(terms)


def _classes(t: Tensors, axis: int, log_probability: Callable[[Tensor, int], Tensor]) -> Tensor:
    return -_mean(log_probability(t["y"], axis).movedim(axis, -1).gather(-1, t["x"][..., None]))


def unit_likelihoods(space: Space) -> Iterator[tuple[Reconstruction, Unit]]:
    """Known likelihoods with unit variance or scale, as -log p(x|y) up to a constant in y."""
    if not space.x.is_floating_point():
        axis = -1 if space.outputs[:-1] == space.x.shape[1:] else 1
        yield Reconstruction("categorical", "logit", 1.0, class_axis=axis), lambda t: _classes(t, axis, F.log_softmax)
        yield (
            Reconstruction("categorical", "log_probability", 1.0, class_axis=axis),
            lambda t: _classes(t, axis, lambda y, _: y),
        )
        yield (
            Reconstruction("categorical", "probability", 1.0, class_axis=axis),
            lambda t: _classes(t, axis, lambda y, _: y.log()),
        )
        return

    def x(t: Tensors) -> Tensor:
        return t["x"].reshape(t["y"].shape)

    one_hot = bool((space.x.flatten(1).sort(1).values[:, :-1] == 0).all() and (space.x.sum(-1) == 1).all())
    counts = "categorical" if one_hot else "multinomial"
    table: list[tuple[str, str, Unit]] = [
        ("gaussian", "mean", lambda t: _mean((x(t) - t["y"]) ** 2) / 2),
        ("gaussian", "logit", lambda t: _mean((x(t) - t["y"].sigmoid()) ** 2) / 2),
        ("gaussian", "tanh", lambda t: _mean((x(t) - t["y"].tanh()) ** 2) / 2),
        ("laplace", "mean", lambda t: _mean((x(t) - t["y"]).abs())),
        ("laplace", "logit", lambda t: _mean((x(t) - t["y"].sigmoid()).abs())),
        ("laplace", "tanh", lambda t: _mean((x(t) - t["y"].tanh()).abs())),
        ("bernoulli", "logit", lambda t: _mean(F.softplus(t["y"]) - x(t) * t["y"])),
        ("bernoulli", "probability", lambda t: -_mean(x(t) * t["y"].log() + (1 - x(t)) * (1 - t["y"]).log())),
        ("bernoulli", "twice", lambda t: _mean(F.softplus(t["y"].sigmoid()) - x(t) * t["y"].sigmoid())),
        ("poisson", "rate", lambda t: _mean(t["y"] - x(t) * t["y"].log())),
        ("poisson", "log_rate", lambda t: _mean(t["y"].exp() - x(t) * t["y"])),
        (counts, "logit", lambda t: -_mean(x(t) * t["y"].log_softmax(-1))),
        (counts, "probability", lambda t: -_mean(x(t) * t["y"].log())),
        (counts, "log_probability", lambda t: -_mean(x(t) * t["y"])),
        ("gaussian_optimal", "mean", lambda t: t["y"][0].numel() / 2 * ((x(t) - t["y"]) ** 2).mean().log()),
        (
            "gaussian_optimal",
            "sample",
            lambda t: t["y"][0].numel() / 2 * ((x(t) - t["y"]) ** 2).flatten(1).mean(1).log().mean(),
        ),
        (
            "negative_binomial",
            "rate",
            lambda t: _mean((x(t) + t["dispersion"]) * (t["dispersion"] + t["y"]).log() - x(t) * t["y"].log()),
        ),
    ]
    for likelihood, output, unit in table:
        yield Reconstruction(likelihood, output, 1.0), unit


def _gradient_in_y(objective: Objective, tensors: Tensors, detached: bool) -> Tensor:
    return differences(objective, tensors, "y") if detached else gradients(objective, tensors, ["y"])["y"]


def _unit_gradient(unit: Unit, tensors: Tensors, *, limited: bool = False) -> Tensor:
    y = tensors["y"].detach().clone().requires_grad_()
    found = derivatives(unit({**tensors, "y": y}), {"y": y})["y"]
    if limited and found.numel() > 64:  # as `differences`
        found.flatten()[64:] = 0.0
    return found


def fit_unit(objective: Objective, space: Space, unit: Unit, *, detached: bool = False, points: int = 2) -> Fit:
    """The weight of a likelihood."""
    blocks = []
    for seed in range(points):
        tensors = space.draw(seed)
        target = _gradient_in_y(objective, tensors, detached)
        blocks.append((target, {"w": _unit_gradient(unit, tensors, limited=detached)}))
    return fit(blocks)


def find_reconstruction(objective: Objective, space: Space) -> tuple[Reconstruction, Space]:
    """The likelihood and its weight, and the space with a range of y in which it is identified."""
    readings = [replace(space, y=name) for name in ("real", "unit", "simplex", "positive", "log_simplex")]
    possible = [s for s in readings if _finite(objective, s)]
    first, second = (possible[0] if possible else space).draw(0), (possible[0] if possible else space).draw(1)
    moved = {**first, "y": second["y"]}
    changes = not close(objective.at(first), objective.at(moved), 1e-13)
    if not changes:
        return Reconstruction("absent", "mean", 0.0), (possible[0] if possible else space)
    has_gradient = any(float(gradients(objective, s.draw(0), ["y"])["y"].abs().max()) > 0 for s in possible)
    for tolerance in (Fit.tolerance, 1e-4):
        for s in possible:
            targets = [(t := s.draw(seed), _gradient_in_y(objective, t, not has_gradient)) for seed in (0, 1)]
            if all(float(g.abs().max()) == 0 for _, g in targets):
                continue
            found = _best(s, targets, limited=not has_gradient)
            special = None
            plain = None if found is None or found[1] >= tolerance else replace(found[0], detached=not has_gradient)
            learned = (
                plain is not None and plain.likelihood in ("gaussian", "laplace") and _has_parameters(objective, s)
            )
            if has_gradient and s.x.is_floating_point() and (plain is None or learned):
                special = _special(objective, s)
            if (result := special or plain) is not None:
                return result, s
    weight = _swapped(objective, possible)
    if weight is not None:
        return Reconstruction("swapped", "probability", weight[0]), weight[1]
    return Reconstruction("other", "mean", math.nan, detached=not has_gradient), (possible[0] if possible else space)


def _has_parameters(objective: Objective, space: Space) -> bool:
    """Whether the loss depends on parameters of its own, such as a variance that is learned."""
    parameters = {f"p{k}": p for k, p in enumerate(_parameters(objective))}
    found = derivatives(objective(space.draw(0)), parameters)
    return any(float(g.abs().max()) > 0 for g in found.values())


def _parameters(objective: Objective) -> list[Tensor]:
    return [p for network in objective.networks for p in network.parameters() if p.requires_grad]


def _finite(objective: Objective, space: Space) -> bool:
    try:
        return all(math.isfinite(objective.at(space.draw(seed))) for seed in (0, 1))
    except Exception:  # user code may raise anything outside the range of its arguments
        return False


def _best(
    space: Space, targets: Sequence[tuple[Tensors, Tensor]], *, limited: bool
) -> tuple[Reconstruction, float] | None:
    found: list[tuple[float, Reconstruction]] = []
    for known, unit in unit_likelihoods(space):
        try:
            fitted = fit([(g, {"w": _unit_gradient(unit, t, limited=limited)}) for t, g in targets])
        except RuntimeError:  # shapes that this likelihood cannot have
            continue
        if math.isfinite(fitted.residual):
            found.append((fitted.residual, replace(known, weight=fitted.coefficients["w"])))
    best = min(found, key=lambda pair: pair[0], default=None)
    return None if best is None else (best[1], best[0])


def _swapped(objective: Objective, spaces: Sequence[Space]) -> tuple[float, Space] | None:
    """The weight, if x is read as the prediction of a cross-entropy and y as its target."""
    for space in spaces:
        x = space.x
        if not x.is_floating_point() or x.shape[1:] != space.outputs:
            continue
        here = space.draw(0)
        g, other = (_gradient_in_y(objective, {**here, "y": space.draw(k)["y"]}, False) for k in (0, 1))
        if not torch.allclose(g, other):  # a target is linear in its cross-entropy
            continue
        for unit in (
            lambda t: -_mean(t["y"] * t["x"].log() + (1 - t["y"]) * (1 - t["x"]).log()),
            lambda t: _mean(F.softplus(t["x"]) - t["x"] * t["y"]),
            lambda t: -_mean(t["y"] * t["x"].log_softmax(-1)),
            lambda t: _mean(t["x"] - t["y"] * t["x"].log()),
            lambda t: _mean(t["x"].exp() - t["y"] * t["x"]),
        ):
            for given in (space, replace(space, x=x.clamp(1e-30, 1 - 1e-16))):
                fitted = fit_unit(objective, given, unit)
                if fitted.exact and fitted.coefficients["w"]:  # 0 where the loss clamps y, which fits everything
                    return fitted.coefficients["w"], space
    return None


def _special(objective: Objective, space: Space) -> Reconstruction | None:
    """Likelihoods with a parameter of their own: Huber, log-cosh, learned scales, columns of several kinds."""
    for find in (_saturating, _learned, _mixed):
        with contextlib.suppress(Exception):  # user code may raise anything outside the range of its arguments
            found = find(objective, space)
            if found is not None:
                return found
    return None


def _saturating(objective: Objective, space: Space) -> Reconstruction | None:
    """Huber and log-cosh: slope at 0 and limit of the gradient give weight and parameter."""
    if math.prod(space.outputs) != math.prod(space.x.shape[1:]) or space.y != "real":
        return None
    tensors = space.draw(0)
    x = space.x.reshape(tensors["y"].shape)
    entry = (0,) * x.ndim

    def slope(t: float) -> float:
        return float(gradients(objective, {**tensors, "y": x + t}, ["y"])["y"][entry]) * len(x)

    at_zero, limit = slope(1e-6) / 1e-6, slope(1e4)
    smooth = close(slope(2e-6) / 2e-6, at_zero)
    if not (smooth and at_zero > 0 and limit > 0 and limit < 0.9e4 * at_zero):
        return None
    ratio = limit / at_zero
    forms: tuple[tuple[str, float, Unit], ...] = (
        ("huber", ratio, lambda t: _mean(F.huber_loss(t["y"], x, reduction="none", delta=ratio))),
        ("log_cosh", 1 / ratio, lambda t: _mean(_log_cosh((x - t["y"]) / ratio))),
    )
    for name, parameter, unit in forms:
        fitted = fit_unit(objective, space, unit)
        if fitted.residual < 1e-5:
            return Reconstruction(name, "mean", fitted.coefficients["w"], parameter)
    return None


def _log_cosh(v: Tensor) -> Tensor:
    return v + F.softplus(-2 * v) - math.log(2)


def _learned(objective: Objective, space: Space) -> Reconstruction | None:
    """A Gaussian or Laplace whose scale is another argument or a parameter, whatever its form.

    With the curvature c = w / σ² and -log p = w (½ log σ² + ...), w = -2 (∂L/∂v) / (∂ log c/∂v) at x = y.
    """
    if math.prod(space.outputs) != math.prod(space.x.shape[1:]):
        return None
    first = space.draw(0)
    x = space.x.reshape(first["y"].shape)
    parameters = {f"p{k}": p for k, p in enumerate(_parameters(objective))}
    near = {**first, "y": x + 0.1}
    far = {**first, "y": x + 0.2}
    g, g_far = (gradients(objective, t, ["y"])["y"] for t in (near, far))
    if float(g.abs().min()) == 0:
        return None
    if torch.allclose(2 * g, g_far, rtol=1e-9):
        likelihood, power = "gaussian_learned", 2.0
    elif torch.allclose(g, g_far, rtol=1e-9):
        likelihood, power = "laplace_learned", 1.0
    else:
        return None
    leaves = {r: first[r].clone().requires_grad_() for r in objective.roles if r in ("y_scale", "dispersion")}
    y = (x + 0.1).detach().requires_grad_()
    value = objective({**near, **leaves, "y": y})
    (in_y,) = torch.autograd.grad(value, y, create_graph=True)
    scales = {**leaves, **parameters}
    logs = derivatives(in_y.abs().log().sum(), scales)  # ∂ log c of the numbers that share a scale
    same = {**near, **leaves, "y": x.clone()}
    at_x = derivatives(objective(same), scales)
    used = {name: v for name, v in logs.items() if float(v.abs().max()) > 1e-12}
    weights = torch.cat([-power * at_x[name].flatten() / v.flatten() for name, v in used.items()]) if used else None
    if weights is None or not torch.allclose(weights, weights[0].expand_as(weights), rtol=1e-6):
        return None
    w = float(weights.mean())
    return Reconstruction(likelihood, "mean", w * len(x))


def _mixed(objective: Objective, space: Space) -> Reconstruction | None:
    """Columns of several kinds: Gaussian ones with a scale of their own, and blocks with one class each."""
    if space.x.ndim != 2 or space.outputs != space.x.shape[1:] or space.x.shape[1] > 64:
        return None
    tensors = space.draw(0)
    y = tensors["y"].detach().clone().requires_grad_()
    (g,) = torch.autograd.grad(objective({**tensors, "y": y}), y, create_graph=True, allow_unused=True)
    if g is None or not g.requires_grad:
        return None
    hessian = torch.stack([torch.autograd.grad(g[0, k], y, retain_graph=True)[0][0] for k in range(len(g[0]))])
    linked = (hessian.abs() > 1e-14).numpy()
    blocks: list[list[int]] = []
    for k in range(len(linked)):
        joined = [b for b in blocks if any(linked[k, j] or linked[j, k] for j in b)]
        blocks = [b for b in blocks if b not in joined] + [sorted({k, *(j for b in joined for j in b)})]
    if all(len(b) == 1 for b in blocks) or len(blocks) == 1:
        return None
    weights = []
    for block in blocks:
        if len(block) == 1:
            weights.append(_gaussian_column(objective, tensors, block[0]))
            continue
        target = gradients(objective, tensors, ["y"])["y"][:, block]
        logits = tensors["y"][:, block]
        column = (logits.softmax(1) - tensors["x"][:, block]) / len(logits)
        fitted = fit([(target, {"w": column})])
        weights.append(fitted.coefficients["w"] if fitted.exact else math.nan)
    if any(not close(w, weights[0]) for w in weights):
        return None
    return Reconstruction("mixed", "mean", weights[0])


def _gaussian_column(objective: Objective, tensors: Tensors, column: int) -> float:
    """The weight of one column, from its curvature in x and a parameter that scales it."""
    x = tensors["x"].detach().clone().requires_grad_()
    (g,) = torch.autograd.grad(objective({**tensors, "x": x}), x, create_graph=True, allow_unused=True)
    if g is None or not g.requires_grad:
        return math.nan
    curvature = torch.autograd.grad(g[0, column], x, create_graph=True)[0][0, column]
    fitted_mean = tensors["x"].clone()
    fitted_mean[:, column] -= (g.detach() / curvature.detach())[:, column]
    parameters = {f"p{k}": p for k, p in enumerate(_parameters(objective))}
    change = derivatives(curvature.log(), parameters) if curvature.requires_grad else {}
    at_mean = derivatives(objective({**tensors, "x": fitted_mean}), parameters)
    for name, value in change.items():
        k = int(value.abs().argmax())
        if float(value.flatten()[k].abs()) > 1e-12:
            return float(-2 * at_mean[name].flatten()[k] / value.flatten()[k])
    return math.nan


def reconstruction_weight(objective: Objective, space: Space, known: Reconstruction) -> float:
    """The weight again, for the likelihood that was found; nan if another one is needed."""
    unit = unit_of(known, space)
    if unit is not None:
        fitted = fit_unit(objective, space, unit, points=1)
        return fitted.coefficients["w"] if fitted.residual < 1e-4 or fitted.residual == 0 else math.nan
    again = _special(objective, space) if known.likelihood not in ("other", "absent", "swapped") else None
    return math.nan if again is None else again.weight


def unit_of(reconstruction: Reconstruction, space: Space) -> Unit | None:
    """The likelihood again, for a fit of its weight at other shapes."""
    key = (reconstruction.likelihood, reconstruction.output)
    return next((unit for known, unit in unit_likelihoods(space) if (known.likelihood, known.output) == key), None)


# the encoder's outputs --------------------------------------------------------------------------


class Scales:
    """How the encoder's second output may be read."""

    variance: ClassVar[Mapping[str, Callable[[Tensor], Tensor]]] = {
        "log_variance": torch.exp,
        "variance": lambda s: s,
        "std": torch.square,
        "log_std": lambda s: (2 * s).exp(),
        "softplus_std": lambda s: F.softplus(s).square(),
        "log_precision": lambda s: (-s).exp(),
    }
    """From the encoder's second output to the variance."""


@dataclass(frozen=True)
class Divergence:
    """The terms in mu, s and z.

    Args:
        scale: how s is read.
        weight: of the KL; of what is in its place, if a part of it is wrong.
        terms: further terms with their parameters.
        faults: what is wrong with the KL.
        coefficients: of ½ Σ μ², ½ Σ σ², ½ Σ log σ² and others, as fitted.
        recognised: whether nothing is left.
        detached: whether it changes the value and has no gradient.
        columns: the terms of the fit.
        fixed_z: whether z was held fixed in the fit.
    """

    scale: str
    weight: float
    terms: dict[str, dict[str, float | str]] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    coefficients: dict[str, float] = field(default_factory=dict)
    recognised: bool = True
    detached: bool = False
    columns: tuple[str, ...] = ()
    fixed_z: bool = False


def _columns(scale: str, t: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    """The terms that a loss may have in mu, s and z, each a mean over samples."""
    mu = t["mu"].flatten(1)
    variance = Scales.variance[scale](t["s"].flatten(1))
    count = len(mu)
    made: dict[str, Callable[[], Tensor]] = {
        "mu2": lambda: mu.square().sum() / 2 / count,
        "variance": lambda: variance.sum() / 2 / count,
        "log_variance": lambda: (
            variance.log().sum() / 2 / count if scale != "std" else t["s"].abs().log().sum() / count
        ),
        "exp_variance": lambda: variance.exp().sum() / 2 / count,
        "mu": lambda: mu.sum() / 2 / count,
        "abs_mu": lambda: mu.abs().sum() / count,
        "off_diagonal": lambda: _covariance_terms(mu, None, 0)[0],
        "diagonal": lambda: _covariance_terms(mu, None, 0)[1],
        "off_diagonal_unbiased": lambda: _covariance_terms(mu, None, 1)[0],
        "diagonal_unbiased": lambda: _covariance_terms(mu, None, 1)[1],
        "off_diagonal_total": lambda: _covariance_terms(mu, variance, 0)[0],
        "diagonal_total": lambda: _covariance_terms(mu, variance, 0)[1],
    }
    if "z" in t:
        z = t["z"].flatten(1)
        pairs = -((z[:, None] - mu[None]) ** 2 / variance[None] + variance.log()[None]) / 2
        made |= {
            "log_q": lambda: -((z - mu).square() / variance + variance.log()).sum() / 2 / count,
            "log_q_z": lambda: pairs.sum(2).logsumexp(1).mean(),
            "log_q_each": lambda: pairs.logsumexp(1).sum(1).mean(),
            "log_p": lambda: -z.square().sum() / 2 / count,
        }
    return {name: made[name]() for name in names if name in made}


def _covariance_terms(mu: Tensor, variance: Tensor | None, correction: int) -> tuple[Tensor, Tensor]:
    centred = mu - mu.mean(0)
    covariance = centred.T @ centred / max(1, len(mu) - correction)
    if variance is not None:
        covariance = covariance + variance.mean(0).diag()
    on = covariance.diagonal()
    return covariance.square().sum() - on.square().sum(), (on - 1).square().sum()


class Terms:
    """Names of the terms in mu, s and z."""

    kl = ("mu2", "variance", "log_variance")
    sampled = ("log_q", "log_q_z", "log_q_each", "log_p")
    sets: tuple[tuple[str, ...], ...] = (
        kl,
        (*kl, "exp_variance", "mu", "abs_mu"),
        (*kl, "off_diagonal", "diagonal", "abs_mu"),
        (*kl, "off_diagonal_unbiased", "diagonal_unbiased", "abs_mu"),
        (*kl, "off_diagonal_total", "diagonal_total", "abs_mu"),
    )
    """The simplest first: the first set that leaves nothing is taken."""


@dataclass(frozen=True, eq=False)
class _Point:
    """The gradient of the loss at a point, with the leaves that the terms are differentiated by."""

    leaves: dict[str, Tensor]
    target: dict[str, Tensor]
    z: Tensor | None


def _points(objective: Objective, space: Space, roles: Sequence[str], *, detached: bool = False) -> list[_Point]:
    points = []
    for seed in (0, 1):
        tensors = space.draw(seed)
        leaves = {role: tensors[role].detach().clone().requires_grad_() for role in roles}
        value, z = objective.with_sample({**tensors, **leaves})
        target = {r: differences(objective, tensors, r) for r in roles} if detached else derivatives(value, leaves)
        points.append(_Point(leaves, target, z if z is not None and z.requires_grad else None))
    return points


def _blocks(
    points: Sequence[_Point], scale: str, names: Sequence[str], *, detached: bool = False
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Gradients of the loss and of every term."""
    blocks = []
    for point in points:
        given = point.leaves if point.z is None else {**point.leaves, "z": point.z}
        own = {n: derivatives(c, point.leaves) for n, c in _columns(scale, given, names).items() if c.requires_grad}
        for role in point.leaves:
            parts = {name: g[role].clone() for name, g in own.items()}
            for g in parts.values():
                if detached and g.numel() > 64:  # as `differences`
                    g.view(-1)[64:] = 0.0
            blocks.append((point.target[role], parts))
    return blocks


def find_divergence(objective: Objective, space: Space, name_of_s: str = "") -> Divergence:
    """The KL and every further term that is recognised in mu, s and z."""
    far, other = space.draw(0), space.draw(1)
    changing = [r for r in ("mu", "s") if not _same(objective, far, {**far, r: other[r]})]
    in_z = "z" in objective.roles and not _same(objective, far, {**far, "z": other["z"]})
    if not changing:
        mmd = find_mmd(objective, space) if in_z else {}
        return Divergence(_scale_by_name(name_of_s), 0.0, mmd, ("kl_absent",), recognised=bool(mmd) or not in_z)
    target = gradients(objective, far, ["mu", "s"])
    detached = all(float(g.abs().max()) == 0 for g in target.values())
    points = _points(objective, space, ("mu", "s", "z") if in_z else ("mu", "s"), detached=detached)
    sets = list(Terms.sets)
    if in_z or objective.is_step:
        sampled = Terms.sampled if in_z else Terms.sampled[1:]
        sets = ([*Terms.sets] if objective.is_step else []) + [(*Terms.kl, *sampled), (*Terms.sets[1], *sampled)]
    # a term in z that does not read mu and s, such as an MMD, is left out of the fit, then looked for
    fixed = [] if not in_z else [replace(p, leaves=_without_z(p), z=p.leaves["z"].detach()) for p in points]
    for tolerance in (Fit.tolerance, 3e-4):
        for names in sets:
            found = _fit_scales(points, names, tolerance, name_of_s, detached)
            if found is not None:
                return replace(found, detached=detached)
        for names in [*Terms.sets, (*Terms.kl, *Terms.sampled[:3])] if fixed else []:
            found = _fit_scales(fixed, names, tolerance, name_of_s, detached)
            if found is not None:
                mmd = find_mmd(objective, space)
                return replace(found, terms={**found.terms, **mmd}, recognised=bool(mmd), fixed_z=True)
    return Divergence(_scale_by_name(name_of_s), math.nan, recognised=False, detached=detached)


def _without_z(point: _Point) -> dict[str, Tensor]:
    return {role: leaf for role, leaf in point.leaves.items() if role != "z"}


def divergence_weight(objective: Objective, space: Space, found: Divergence) -> float:
    """The weight again, for the terms that were found; nan if others are needed."""
    roles = ("mu", "s") if found.fixed_z or "z" not in objective.roles else ("mu", "s", "z")
    points = _points(objective, space, roles)
    if found.fixed_z:
        points = [replace(p, z=space.draw(seed)["z"]) for seed, p in enumerate(points)]
    fitted = fit(_blocks(points, found.scale, found.columns))
    if fitted.residual == 0 or not any(fitted.coefficients.values()):
        return 0.0
    again = interpret(found.scale, fitted.coefficients, 1e-3)
    return math.nan if again is None or fitted.residual > 3e-4 else again.weight


def _same(objective: Objective, first: Tensors, second: Tensors) -> bool:
    return close(objective.at(first), objective.at(second), 1e-13)


def _scale_by_name(name: str) -> str:
    """The reading that a name suggests, where derivatives do not decide."""
    plain = name.lower().replace("_", "")
    log = "log" in plain or plain.startswith("ln")
    if any(word in plain for word in ("std", "sigma", "sd", "scale", "deviation")) and "sigma2" not in plain:
        return "log_std" if log else "std"
    if "prec" in plain:
        return "log_precision"
    return "variance" if "var" in plain and not log else "log_variance"


def _fit_scales(
    points: Sequence[_Point], names: Sequence[str], tolerance: float, name_of_s: str, detached: bool
) -> Divergence | None:
    likely = _scale_by_name(name_of_s)
    exact: list[tuple[bool, bool, float, Divergence]] = []
    for scale in Scales.variance:
        fitted = fit(_blocks(points, scale, names, detached=detached))
        if fitted.residual < tolerance * (100 if detached else 1):
            found = interpret(
                scale, fitted.coefficients, tolerance=1e-3 if tolerance > Fit.tolerance or detached else 1e-5
            )
            if found is not None:
                found = replace(found, columns=tuple(names))
                exact.append((bool(found.faults), scale != likely, fitted.residual, found))
    return min(exact, key=lambda e: e[:3])[3] if exact else None


def interpret(scale: str, fitted: Mapping[str, float], tolerance: float = 1e-5) -> Divergence | None:
    """What coefficients of ½ Σ μ², ½ Σ σ², ½ Σ log σ² and others mean; None if they are no known form."""
    largest = max((abs(v) for v in fitted.values()), default=0.0)
    c = {name: 0.0 if abs(value) < 1e-7 * largest else value for name, value in fitted.items()}
    m, p, q = c.get("mu2", 0.0), c.get("variance", 0.0), -c.get("log_variance", 0.0)
    exp, linear = c.get("exp_variance", 0.0), c.get("mu", 0.0)

    def same(a: float, b: float) -> bool:
        return close(a, b, tolerance)

    terms: dict[str, dict[str, float | str]] = {}
    if c.get("abs_mu", 0.0):
        terms["mean_sparsity"] = {"weight": c["abs_mu"]}
    for suffix in ("", "_unbiased", "_total"):
        off, on = c.get(f"off_diagonal{suffix}", 0.0), c.get(f"diagonal{suffix}", 0.0)
        if off or on:
            terms["covariance"] = {"off_diagonal": off, "diagonal": on}
    log_q, log_q_z, log_q_each, log_p = (c.get(name, 0.0) for name in Terms.sampled)
    faults: tuple[str, ...] = ()
    if log_q_z or log_q_each:
        terms["total_correlation"] = {"weight": log_q_z or -log_q_each, "from": "z"}
    if log_p and same(log_q or q, -log_p) and not any((m, p, exp, linear)):
        terms["monte_carlo_kl"] = {"weight": -log_p}
        weight = -log_p
    elif log_p or log_q or not any((m, p, q, exp, linear)):
        return None
    elif exp:
        if not (same(exp, q) and same(m, exp) and p == 0):
            return None
        weight, faults = exp, ("kl_exp_of_exp",)
    elif linear:
        if not (same(p, q) and m == 0 and same(linear, p)):
            return None
        weight, faults = p, ("kl_mean_not_squared",)
    elif p == 0 and m == 0:
        weight, faults = q, ("kl_entropy_only",)
    elif same(p, q) and same(m, p):
        weight = m
    elif same(p, 2 * q) and same(m, p):
        weight, faults = m, ("kl_log_std_as_log_variance",)
    elif same(p, q) and m == 0:
        weight, faults = p, ("kl_missing_mean",)
    elif same(p, q) and same(m, -p):
        weight, faults = p, ("kl_sign_of_mean",)
    elif same(m, q) and same(p, -m):
        weight, faults = m, ("kl_sign_of_variance",)
    elif same(p, q) and p != 0:
        weight = p
        terms["mean_penalty"] = {"weight": (m - p) / 2}
    else:
        return None
    return Divergence(scale, weight, terms, faults, dict(c))


# terms with a threshold, and terms in other arguments -------------------------------------------


def find_threshold(objective: Objective, space: Space, found: Divergence) -> dict[str, dict[str, float | str]]:
    """Free bits or capacity, from the gradient of the KL where it is small."""
    if not math.isfinite(found.weight) or found.weight == 0 or found.detached or found.faults:
        return {}
    high, low = space.draw(0), _small(space, found.scale)
    ratio = _share_of_kl(objective, low, found)
    if ratio is None or abs(ratio - 1) < 1e-3:
        return {}
    kl_high, kl_low = (_kl(found.scale, t) for t in (high, low))
    # y is the same at both points, so that only terms in mu and s differ
    rise = objective.at({**high, "y": low["y"], "z": low["z"]}) - objective.at(low) - _others(found, high, low)
    rise /= found.weight
    total = float(kl_high.sum(1).mean())
    one = {**low, "mu": low["mu"].clone(), "s": low["s"].clone()}
    first = (0,) * one["mu"].ndim
    one["mu"][first] = 40.0 * len(one["mu"])
    share = gradients(objective, one, ["mu"])["mu"].flatten(1)
    expected = found.weight * one["mu"].flatten(1) / len(share)
    same_latent, same_sample = (float(share[i, k] / expected[i, k]) for i, k in ((1, 0), (0, share.shape[1] - 1)))
    if abs(ratio + 1) < 1e-3:
        level = (total + float(kl_low.sum(1).mean()) - rise) / 2
        over = "batch" if float(share[1, -1] / expected[1, -1]) > 0 else "sample"
        return {"capacity": {"level": level, "over": over}}
    per = "latent_mean" if same_latent > 0.5 else "sample" if same_sample > 0.5 and share.shape[1] > 1 else "latent"
    per = "batch" if same_latent > 0.5 and same_sample > 0.5 else per
    return {"free_bits": {"level": (total - rise) / (1 if per in ("sample", "batch") else share.shape[1]), "per": per}}


def _small(space: Space, scale: str) -> dict[str, Tensor]:
    """A point where the KL is almost zero."""
    tensors = space.draw(0)
    at_one = {"variance": 1.0, "std": 1.0, "softplus_std": math.log(math.e - 1)}.get(scale, 0.0)
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(tensors["mu"].shape, generator=generator, dtype=torch.float64)
    return {**tensors, "mu": 0.01 * torch.where(noise < 0, -1.0, 1.0), "s": torch.full_like(tensors["s"], at_one)}


def _kl(scale: str, t: Tensors) -> Tensor:
    variance = Scales.variance[scale](t["s"].flatten(1))
    return (t["mu"].flatten(1).square() + variance - 1 - variance.log()) / 2


def _others(found: Divergence, high: Tensors, low: Tensors) -> float:
    """The change of fitted terms other than the KL between two points."""
    names = [n for n in found.columns if n not in Terms.kl and found.coefficients.get(n)]
    at = [_columns(found.scale, {r: t[r] for r in ("mu", "s")}, names) for t in (high, low)]
    return math.fsum(found.coefficients[n] * float(at[0][n] - at[1][n]) for n in at[0])


def _share_of_kl(objective: Objective, low: Tensors, found: Divergence) -> float | None:
    """The gradient of the loss in mu at small KL, in units of that of the KL with its weight."""
    leaves = {role: low[role].detach().clone().requires_grad_() for role in ("mu", "s")}
    value, z = objective.with_sample({**low, **leaves})
    target = derivatives(value, leaves)["mu"]
    given = {**leaves, **({"z": low["z"]} if "z" in objective.roles else {})}
    if z is not None and z.requires_grad:
        given["z"] = z
    for name, column in _columns(found.scale, given, [n for n in found.columns if n != "mu2"]).items():
        weight = found.coefficients.get(name, 0.0)
        if weight and column.requires_grad:
            target = target - weight * derivatives(column, leaves)["mu"]
    penalty = float(found.terms.get("mean_penalty", {}).get("weight", 0.0))
    kl = low["mu"] / len(low["mu"])
    if "monte_carlo_kl" in found.terms:
        return None
    fitted = fit([(target, {"w": kl})])
    return (fitted.coefficients["w"] - 2 * penalty) / found.weight


def find_mmd(objective: Objective, space: Space) -> dict[str, dict[str, float | str]]:
    """A kernel between samples: what two z gain by being near each other, far from everything else."""
    base = space.draw(0)
    count, width = len(base["z"]), math.prod(space.latents)
    apart = 1e4 * (1 + torch.arange(count, dtype=torch.float64)).view(-1, *[1] * len(space.latents))
    z = apart.expand(base["z"].shape).clone()

    def pair(distance: float) -> float:
        moved = z.clone()
        moved[1] = moved[0]
        moved[1].view(-1)[0] += distance
        return objective.at({**base, "z": moved})

    try:
        alone, together, near, further = objective.at({**base, "z": z}), pair(0.0), pair(0.5), pair(1.0)
    except Exception:  # user code may raise anything
        return {}
    gain = together - alone
    if not (math.isfinite(gain) and gain > 0 and 0 < further - alone < near - alone < gain):
        return {}
    weight = gain * count**2 / 2
    shapes = [-math.log((v - alone) / gain) for v in (near, further)]
    rbf = close(shapes[1], 4 * shapes[0], 1e-4)
    return {"mmd": {"weight": weight, **({"bandwidth": 1 / shapes[1] / width} if rbf else {"kernel": "not Gaussian"})}}


def find_others(objective: Objective, space: Space) -> tuple[dict[str, dict[str, float | str]], tuple[str, ...]]:
    """Terms in a classifier's logits or a discriminator's output, and arguments whose effect is not recognised."""
    tensors, unknown = space.draw(0), []
    terms: dict[str, dict[str, float | str]] = {}
    extra = [r for r in ("label_logits", "discriminator") if r in objective.roles]
    found = gradients(objective, tensors, extra)
    for role, g in found.items():
        if float(g.abs().max()) == 0:
            continue
        leaf = tensors[role].detach().clone().requires_grad_()
        columns = {}
        if role == "label_logits":
            one = derivatives(F.cross_entropy(leaf, tensors["labels"]), {"l": leaf})["l"]
            columns = {"label": one}
        else:
            columns = {"total_correlation": torch.tensor([1.0, -1.0]).double().expand_as(leaf) / len(leaf)}
        fitted = fit([(g, columns)])
        if not fitted.exact:
            unknown.append(role)
            continue
        (name,) = columns
        terms[name] = {"weight": fitted.coefficients[name]}
        if role == "discriminator":
            terms[name]["from"] = "discriminator"
    return terms, tuple(unknown)
