"""Weights and gradients: how large they are, how much a step changes them, and which units receive no gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from vaescope.errors import InputError
from vaescope.watch.row import WeightState

COMPARED = 4096  # numbers of a weight that are compared between two steps, at most
FEWEST_UNITS = 8  # layers with fewer units are not judged
LAYERS = (nn.Linear, nn.modules.conv._ConvNd)


class Weights:
    """The weights of some networks.

    Args:
        parameters: modules, or the tensors that the optimiser updates.
    """

    def __init__(self, parameters: object) -> None:
        self.modules, self.tensors = _split(parameters)
        self._before: tuple[int, list[Tensor]] | None = None
        self._change: float | None = None

    @torch.no_grad()
    def state(self) -> tuple[WeightState, tuple[str, ...]]:
        """The present state, and what is not finite."""
        gradients = [p.grad for p in self.tensors if p.grad is not None]
        norm, gradient_norm = _norm(self.tensors), _norm(gradients) if gradients else None
        largest = max((float(g.abs().max()) for g in gradients if g.numel()), default=None)
        share, layer = self._zero_units()
        found = [("weights", norm), ("gradients", gradient_norm)]
        broken = tuple(name for name, value in found if value is not None and not _is_finite(value))
        state = WeightState(norm, gradient_norm, largest, share, layer, self._change)
        self._change = None
        return state, broken

    def _zero_units(self) -> tuple[float | None, str]:
        """The largest share of units in a layer whose weights all have a gradient of exactly zero."""
        found: list[tuple[float, str]] = []
        for module in self.modules:
            for name, layer in module.named_modules():
                if isinstance(layer, LAYERS) and _is_judged(layer.weight):
                    zero = (layer.weight.grad.flatten(1) == 0).all(1)  # type: ignore[union-attr]
                    found.append((float(zero.float().mean()), name))
        return max(found, default=(None, ""), key=lambda pair: pair[0] or 0.0)

    # change per step --------------------------------------------------------------------------

    @torch.no_grad()
    def remember(self, step: int) -> None:
        """Keep a part of the weights, to compare it after the next step."""
        self._before = step, [_part(p).clone() for p in self._matrices]

    def compare(self, step: int) -> float | None:
        """Relative change of the weights per step since `remember`; None if there is nothing to compare."""
        nothing = self._before is None or step <= self._before[0]  # at most calls, which should cost little
        return None if nothing else self._compare(step)

    @torch.no_grad()
    def _compare(self, step: int) -> float | None:
        assert self._before is not None
        before, self._before = self._before, None
        now = [_part(p) for p in self._matrices]
        differences = [a - b for a, b in zip(now, before[1], strict=True)]
        size = _norm(before[1])
        self._change = _norm(differences) / (size * (step - before[0])) if size > 0 else None
        return self._change

    @property
    def _matrices(self) -> list[Tensor]:
        """Biases start at zero, and scales are few: matrices show the size of a step."""
        return [p for p in self.tensors if p.ndim > 1] or list(self.tensors)


def _split(parameters: object) -> tuple[list[nn.Module], list[Tensor]]:
    """Modules, and all tensors that are trained."""
    given: Iterable[object] = parameters if isinstance(parameters, Iterable) else [parameters]
    listed = [parameters] if isinstance(parameters, nn.Module | Tensor) else list(given)
    modules = [item for item in listed if isinstance(item, nn.Module)]
    tensors: list[Tensor] = [p for module in modules for p in module.parameters() if p.requires_grad]
    tensors += [item for item in listed if isinstance(item, Tensor)]
    if len(modules) + sum(isinstance(item, Tensor) for item in listed) < len(listed):
        raise InputError(
            f"parameters must be modules or tensors, got {type(listed[0]).__name__}; write parameters=network, or "
            "parameters=network.parameters()."
        )
    return modules, list({id(p): p for p in tensors}.values())


def _part(weight: Tensor) -> Tensor:
    flat = weight.detach().flatten()
    return flat[:: max(1, flat.numel() // COMPARED)]


def _norm(values: Sequence[Tensor]) -> float:
    """The Euclidean norm of all numbers together."""
    if not values:
        return 0.0
    return float(torch.stack([n.to("cpu", torch.float64) for n in torch._foreach_norm(list(values))]).norm())


def _is_finite(value: float) -> bool:
    return value - value == 0


def _is_judged(weight: Tensor) -> bool:
    return weight.grad is not None and len(weight) >= FEWEST_UNITS
