"""Weights at other shapes and other coefficients, and the noise of a training step."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vaescope.analysis.loss.call import Objective, Words
from vaescope.analysis.loss.identify import (
    Divergence,
    Reconstruction,
    Scales,
    close,
    divergence_weight,
    find_divergence,
    find_others,
    find_reconstruction,
    find_threshold,
    reconstruction_weight,
)
from vaescope.analysis.loss.probe import Space


@dataclass(frozen=True)
class Reductions:
    """How the weight of a term changes with the shapes: powers of N, of each axis of a sample, and of d.

    Args:
        batch: 1 for a sum over samples, 0 for a mean; None if it is no power or could not be measured.
        data: for each axis of a sample, 0 for a sum and -1 for a mean.
        latents: 0 for a sum and -1 for a mean.
    """

    batch: int | None
    data: tuple[int | None, ...]
    latents: int | None

    def divisor(self, space: Space) -> float:
        """What the weight is multiplied by because of the shapes."""
        sizes = [len(space.x), *space.x.shape[1:], math.prod(space.latents)]
        powers = [self.batch, *self.data, self.latents]
        return math.prod(float(size) ** (power or 0) for size, power in zip(sizes, powers, strict=True))

    def averaged_axes(self, space: Space) -> tuple[int, ...]:
        return tuple(k for k, power in enumerate(self.data) if power == -1 and space.x.shape[1 + k] > 1)


@dataclass(frozen=True)
class Coefficient:
    """A number that the loss is called with, and what it changes.

    Args:
        value: that it has.
        effect: nothing, the weight of the KL, of the reconstruction, of both, or another term.
        proportional: whether the weight of the KL, or of the reconstruction, is proportional to it.
    """

    value: float
    effect: str
    proportional: bool = False


@dataclass(frozen=True)
class Noise:
    """The sample z that a step decodes.

    Args:
        kind: normal, not_normal, none.
        scale: what the noise is multiplied by: std if that of the KL; otherwise another reading of s, or another.
        shared: over samples or latents, which then have the same draw; empty if they are independent.
        evaluation: whether there is the same noise in evaluation mode.
    """

    kind: str
    scale: str
    shared: str
    evaluation: bool


@dataclass(frozen=True)
class Identified:
    """Everything that was found by probing."""

    reconstruction: Reconstruction
    divergence: Divergence
    space: Space
    reductions: dict[str, Reductions]
    coefficients: dict[str, Coefficient]
    terms: dict[str, dict[str, float | str]]
    noise: Noise | None = None
    unknown: tuple[str, ...] = ()
    """Arguments whose effect is not recognised."""
    size_is_written: bool = False
    """Whether n, the numbers of a sample, is a number in the source or among the coefficients."""

    @property
    def ratio(self) -> float | None:
        """Weight of the KL over that of the reconstruction."""
        if not self.reconstruction.weight or not math.isfinite(self.reconstruction.weight):
            return None
        ratio = self.divergence.weight / self.reconstruction.weight
        return (
            ratio if math.isfinite(ratio) and not (self.reconstruction.detached or self.divergence.detached) else None
        )

    @property
    def fixes_scale(self) -> bool:
        """Whether β is defined on its own, because the likelihood has no free variance."""
        return self.reconstruction.likelihood not in (
            "gaussian",
            "laplace",
            "huber",
            "log_cosh",
            "other",
            "absent",
            "swapped",
        )


def identify(objective: Objective, space: Space) -> Identified:
    """All parts of a loss."""
    reconstruction, space = find_reconstruction(objective, space)
    divergence = find_divergence(objective, space, objective.names.get("s", ""))
    setting = _where_kl_appears(objective, space) if "kl_absent" in divergence.faults else {}
    if setting:  # the weight is zero here, such as at the first step of a warm-up
        there = replace(objective, keywords={**objective.keywords, **setting})
        divergence = replace(find_divergence(there, space, objective.names.get("s", "")), weight=0.0)
    terms, unknown = find_others(objective, space)
    terms = {**divergence.terms, **find_threshold(objective, space, divergence), **terms}
    if "total_correlation" in divergence.terms and "monte_carlo_kl" in divergence.terms:
        terms["total_correlation"] = divergence.terms["total_correlation"]
    found = Identified(reconstruction, divergence, space, {}, {}, terms, unknown=unknown)
    found = replace(found, reductions=measure_reductions(objective, found))
    found = replace(found, coefficients=measure_coefficients(objective, found))
    written = {*_constants(objective), *objective.keywords.values(), *objective.attributes.values()}
    found = replace(found, size_is_written=space.sizes["n"] in {v for v in written if isinstance(v, int | float)})
    return replace(found, noise=measure_noise(objective, found) if objective.is_step else None)


def _where_kl_appears(objective: Objective, space: Space) -> dict[str, object]:
    """A value of a keyword argument at which the loss changes with mu and s; empty if there is none."""
    first, second = space.draw(0), space.draw(1)
    moved = {**first, "mu": second["mu"], "s": second["s"]}
    for name, value in objective.keywords.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            for other in _alternatives(float(value)):
                setting: dict[str, object] = {name: other}
                with contextlib.suppress(Exception):  # user code may refuse a value
                    if not close(objective.at(first, setting), objective.at(moved, setting), 1e-12):
                        return setting
    return {}


def weights(
    objective: Objective, found: Identified, space: Space, changed: Mapping[str, object] | None = None
) -> tuple[float, float]:
    """Weights of the reconstruction and of the KL at other shapes or coefficients; nan where not identified."""
    known, kl = found.reconstruction, found.divergence
    if changed:
        objective = replace(objective, keywords={**objective.keywords, **changed})
    w_r, w_k = math.nan, math.nan
    try:
        w_r = math.nan if known.detached else reconstruction_weight(objective, space, known)
        w_k = divergence_weight(objective, space, kl) if kl.columns and not kl.detached else math.nan
    except Exception:  # user code may raise anything at shapes that it was not written for
        pass
    return w_r, w_k


def measure_reductions(objective: Objective, found: Identified) -> dict[str, Reductions]:
    """Powers of the shapes in both weights, from the weights at twice each size."""
    space = found.space
    at = found.reconstruction.weight, found.divergence.weight
    doubled = [space.with_samples(), *(space.with_data(k) for k in range(space.x.ndim - 1)), space.with_latents()]
    powers: tuple[list[int | None], list[int | None]] = ([], [])
    for other in doubled:
        new = (math.nan, math.nan) if other is None else weights(objective, found, other)
        for k in range(2):
            powers[k].append(_power(new[k], at[k]))
    names = ("reconstruction", "kl")
    for k in range(2):
        powers[k][1:-1] = _data_powers(powers[k][1:-1], at[k], powers[k][0], space)
    return {name: Reductions(p[0], tuple(p[1:-1]), p[-1]) for name, p in zip(names, powers, strict=True)}


def _data_powers(measured: list[int | None], weight: float, batch: int | None, space: Space) -> list[int | None]:
    """Where other shapes are refused, as by a `view(-1, 784)`: a mean if the weight times n is ½, 1 or 2."""
    if None not in measured:
        return measured
    own, numbers = abs(weight) / len(space.x) ** (batch or 0), space.sizes["n"]
    natural = [any(close(own * factor, v) for v in (0.5, 1.0, 2.0)) for factor in (1, numbers)]
    return [-1 if natural[1] and not natural[0] else 0 if natural[0] else None for _ in measured]


def _power(new: float, old: float) -> int | None:
    if not (math.isfinite(new) and math.isfinite(old)) or old == 0 or new / old <= 0:
        return None
    power = math.log2(new / old)
    return round(power) if abs(power - round(power)) < 1e-4 else None


# coefficients -----------------------------------------------------------------------------------


def measure_coefficients(objective: Objective, found: Identified) -> dict[str, Coefficient]:
    """What each number among the keyword arguments, and each coefficient of a module, changes."""
    numbers = {
        name: float(value)
        for name, value in objective.keywords.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    attributes = {n: v for n, v in objective.attributes.items() if re.fullmatch(Words.coefficient, n.lower())}
    made = {}
    for name, value in {**attributes, **numbers}.items():
        effect = _effect(objective, found, name, value)
        if effect is None:
            effect = Coefficient(value, _hidden_effect(objective, found, name, value))
        made[name] = effect
    return made


def _other_value(value: float) -> float:
    return 2 * value if value else 1.0


def _effect(objective: Objective, found: Identified, name: str, value: float) -> Coefficient | None:
    """What a coefficient changes with the others as they are; None if nothing."""
    if not any(_value_changes(objective, found.space, {}, {name: v}) for v in _alternatives(value)):
        return None
    w = found.reconstruction.weight, found.divergence.weight
    new = weights(objective, found, found.space, {name: _other_value(value)})
    moved = [math.isfinite(b) and not close(a, b) for a, b in zip(w, new, strict=True)]
    doubled = [m and value != 0 and close(b, 2 * a) for m, a, b in zip(moved, w, new, strict=True)]
    effect = {
        (False, False): "another term",
        (True, False): "the reconstruction",
        (False, True): "the KL",
        (True, True): "both",
    }[moved[0], moved[1]]
    return Coefficient(value, effect, any(doubled))


def _hidden_effect(objective: Objective, found: Identified, name: str, value: float) -> str:
    """nothing, or "other settings" if the coefficient has an effect where other keyword arguments have other values."""
    random = np.random.default_rng(0)
    texts = _strings(objective)
    varied = [n for n, v in objective.keywords.items() if n != name and isinstance(v, bool | int | float | str)]
    for _ in range(16 if varied else 0):
        setting: dict[str, object] = {}
        for other, current in objective.keywords.items():
            if other == name or random.random() < 0.4:
                continue
            if isinstance(current, bool):
                setting[other] = not current
            elif isinstance(current, str) and texts:
                setting[other] = texts[random.integers(len(texts))]
            elif isinstance(current, int | float):
                setting[other] = type(current)(random.choice(_alternatives(float(current))))
        try:
            if any(_value_changes(objective, found.space, setting, {name: v}) for v in _alternatives(value)):
                return "other settings"
        except Exception:  # user code may refuse a combination
            continue
    return "nothing"


def _alternatives(value: float) -> tuple[float, ...]:
    return (3 * value + 1, 0.0, value / 10, 100 * value + 100, -value - 1)


def _value_changes(
    objective: Objective, space: Space, setting: Mapping[str, object], changed: Mapping[str, object]
) -> bool:
    for far in (True, False):
        tensors = space.draw(3, far=far)
        try:
            before = objective.at(tensors, setting)
        except Exception:
            return False
        try:
            after = objective.at(tensors, {**setting, **changed})
        except Exception:  # user code may refuse a value
            continue
        if math.isfinite(after) and not close(before, after, 1e-11):
            return True
    return False


def _strings(objective: Objective) -> list[str]:
    """Texts in the source of the user's function: choices that its arguments may have."""
    return [v for v in _constants(objective) if isinstance(v, str) and re.fullmatch(r"\w{1,30}", v)]


def _constants(objective: Objective) -> list[object]:
    """What is written in the source of the user's function, in the order of the text."""
    found: list[object] = []
    pending = [getattr(objective.function, "__code__", None)]
    while pending:
        for constant in getattr(pending.pop(), "co_consts", ()):
            found += constant if isinstance(constant, tuple) else (constant,)
            if hasattr(constant, "co_consts"):
                pending.append(constant)
    return list(dict.fromkeys(v for v in found if isinstance(v, str | int | float)))


# noise ------------------------------------------------------------------------------------------


def measure_noise(objective: Objective, found: Identified) -> Noise | None:
    """The noise of z = μ + σ ε: its distribution, its scale, and what shares a draw."""
    space = found.space
    count = max(64, min(12_000 // space.sizes["d"], 4_000_000 // space.sizes["n"]))
    runs = [
        _residuals(objective, space, count, value) for value in ((0.7, 1.6) if space.s == "positive" else (0.7, -0.9))
    ]
    if any(r is None for r in runs):
        return None
    eps = [r for r in runs if r is not None]
    if max(float(e.abs().max()) for e, _ in eps) < 1e-12:
        return Noise("none", "none", "", False)
    first = eps[0][0]
    shared = _shared(first)
    evaluation = _noise_at_evaluation(objective, space)
    if shared == "samples":  # too few draws to judge their distribution
        return Noise("normal", "std", shared, evaluation)
    spread = [float((e if shared == "" else e[:, 0]).std()) for e, _ in eps]
    draws = first if shared == "" else first[:, 0]
    standard, values = (draws - draws.mean()) / draws.std(), draws.numel()
    moments = (
        float(draws.mean() / draws.std()) * values**0.5,
        float((standard**3).mean()) * (values / 6) ** 0.5,
        float((standard**4).mean() - 3) * (values / 24) ** 0.5,
    )  # each about standard normal if the noise is
    if any(abs(moment) > 6 for moment in moments):
        return Noise("not_normal", "std", shared, evaluation)
    measured = [(float(s.flatten()[0]), sd) for (_, s), sd in zip(eps, spread, strict=True)]
    return Noise("normal", _noise_scale(found, measured, values), shared, evaluation)


def _residuals(objective: Objective, space: Space, count: int, value: float) -> tuple[Tensor, Tensor] | None:
    """z - mu with the encoder's second output at one value."""
    copies = -(-count // len(space.x))
    drawn = space.draw(0, far=False)
    tensors = {role: torch.cat([drawn[role]] * copies) for role in ("x", "y", "mu")}
    tensors["s"] = torch.full_like(tensors["mu"], value)
    try:
        _, z = objective.with_sample(tensors, seed=1)
    except Exception:  # user code may raise anything
        return None
    if z is None or z.numel() != tensors["mu"].numel():
        return None
    return (z.detach().reshape(tensors["mu"].shape) - tensors["mu"]).flatten(1), tensors["s"]


def _shared(eps: Tensor) -> str:
    if len(eps) > 1 and torch.allclose(eps, eps[:1].expand_as(eps)):
        return "samples"
    if eps.shape[1] > 1 and torch.allclose(eps, eps[:, :1].expand_as(eps)):
        return "latents"
    return ""


def _noise_scale(found: Identified, measured: Sequence[tuple[float, float]], values: int) -> str:
    """std if the noise has the deviation of the KL; otherwise the reading that it has."""
    tolerance = 6 / (2 * values) ** 0.5

    def fits(deviations: Iterator[float]) -> bool:
        return all(
            abs(sd / d - 1) < tolerance if d > 0 else False for d, (_, sd) in zip(deviations, measured, strict=True)
        )

    readings = {
        name: [float(f(torch.tensor(s).double())) ** 0.5 for s, _ in measured]
        for name, f in Scales.variance.items()
        if name != "variance" or min(s for s, _ in measured) >= 0
    }
    own = readings.get(found.divergence.scale)
    if own is None or fits(iter(own)) or not found.divergence.recognised:
        return "std"
    if fits(abs(s) for s, _ in measured):
        return "s itself"
    squared = fits(iter([d * d for d in own]))
    return "variance" if squared else next((n for n, d in readings.items() if fits(iter(d))), "another")


def _noise_at_evaluation(objective: Objective, space: Space) -> bool:
    modes = [(network, network.training) for network in objective.networks]
    try:
        for network, _ in modes:
            network.eval()
        tensors = space.draw(0, far=False)
        _, z = objective.with_sample(tensors, seed=1)
        return z is not None and not torch.allclose(z.detach().reshape(tensors["mu"].shape), tensors["mu"])
    except Exception:  # user code may raise anything
        return False
    finally:
        for network, training in modes:
            network.train(training)
