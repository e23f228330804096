"""Points at which a loss is evaluated, its exact derivatives there, and least-squares fits of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from vaescope.analysis.loss.call import Objective, Tensors


@dataclass(frozen=True, eq=False)
class Space:
    """Shapes and ranges of the tensors: x as given, the others drawn.

    Args:
        x: samples, float64 or integers.
        outputs, latents: shapes of one sample of y and of mu.
        y, s: which values they may take: see `in_range`.
        others: tensors for further arguments, as given.
    """

    x: Tensor
    outputs: tuple[int, ...]
    latents: tuple[int, ...]
    y: str = "real"
    s: str = "real"
    others: Mapping[str, Tensor] | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """N, n and d."""
        return {"N": len(self.x), "n": math.prod(self.x.shape[1:]), "d": math.prod(self.latents)}

    def draw(self, seed: int, *, far: bool = True) -> dict[str, Tensor]:
        """Every tensor that a loss may read, by role.

        Args:
            seed: of the draw.
            far: with means of 6 to 10 standard deviations: a KL above any threshold in use.
        """
        random = torch.Generator().manual_seed(seed)
        count = len(self.x)

        def normal(*shape: int) -> Tensor:
            return torch.randn(count, *shape, generator=random, dtype=torch.float64)

        direction = normal(*self.latents)
        mu = torch.where(direction < 0, -1.0, 1.0) * (6 + 4 * normal(*self.latents).abs().clamp(max=1))
        s = in_range(self.s, 0.5 * normal(*self.latents))
        y = in_range(self.y, normal(*self.outputs))
        drawn = {
            "x": self.x,
            "y": y,
            "mu": mu if far else direction,
            "s": s,
            "z": (mu if far else direction) + 0.7 * normal(*self.latents),
            "y_scale": 0.3 * normal(*self.outputs),
            "dispersion": 1 + normal(*self.outputs)[0].abs(),
            "labels": torch.randint(3, (count,), generator=random),
            "label_logits": normal(3),
            "discriminator": normal(2),
        }
        given = {} if self.others is None else self.others
        for role, value in given.items():
            if value.is_floating_point() and len(value) == count:
                drawn[role] = value + (0.0 if seed == 0 else 0.1) * torch.randn(value.shape, generator=random).double()
            else:
                drawn[role] = value
        return drawn

    def with_samples(self, factor: int = 2) -> Space:
        others = {
            role: torch.cat([value] * factor) if len(value) == len(self.x) else value
            for role, value in (self.others or {}).items()
        }
        return replace(self, x=torch.cat([self.x] * factor), others=others)

    def with_latents(self) -> Space:
        return replace(self, latents=(2 * self.latents[0], *self.latents[1:]), others=self._without_latents())

    def with_data(self, axis: int) -> Space | None:
        """With twice the numbers along one axis of a sample; None if y cannot follow."""
        data = self.x.shape[1:]
        if self.outputs[: len(data)] == data:
            outputs = tuple(2 * size if k == axis else size for k, size in enumerate(self.outputs))
        elif math.prod(self.outputs) == math.prod(data):
            outputs = (2 * self.outputs[0], *self.outputs[1:])
        else:
            return None
        return replace(self, x=torch.cat([self.x, self.x], axis + 1), outputs=outputs, others=None)

    def _without_latents(self) -> dict[str, Tensor]:
        return {role: value for role, value in (self.others or {}).items() if role != "z"}


def in_range(name: str, normal: Tensor) -> Tensor:
    """From standard normal numbers to numbers that an argument may take.

    Args:
        name: real, unit (between 0 and 1), simplex, log_simplex or positive.
        normal: standard normal numbers.
    """
    if name == "unit":
        return 0.05 + 0.9 * torch.special.ndtr(normal)
    if name == "positive":
        return 0.5 + torch.special.ndtr(normal)
    return {"simplex": normal.softmax, "log_simplex": normal.log_softmax}[name](-1) if "simplex" in name else normal


def gradients(objective: Objective, tensors: Tensors, roles: Sequence[str], **changed: object) -> dict[str, Tensor]:
    """Derivatives with respect to the arguments; zeros where the loss does not depend on one."""
    leaves = {role: tensors[role].detach().clone().requires_grad_() for role in roles}
    value = objective({**tensors, **leaves}, changed)
    return derivatives(value, leaves)


def derivatives(value: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of a number with respect to tensors, zeros where it has none."""
    if not value.requires_grad or not leaves:
        return {role: torch.zeros_like(leaf) for role, leaf in leaves.items()}
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, retain_graph=True)
    return {
        role: torch.zeros_like(leaf) if g is None else g.detach()
        for (role, leaf), g in zip(leaves.items(), found, strict=True)
    }


def differences(objective: Objective, tensors: Tensors, role: str, step: float = 1e-3) -> Tensor:
    """The same derivatives from values, for parts of a loss that have no gradient; at most 64 entries, others zero."""
    point = tensors[role].detach()
    found = torch.zeros_like(point).flatten()
    for k in range(min(found.numel(), 64)):
        direction = torch.zeros_like(found)
        direction[k] = step
        direction = direction.view_as(point)
        at = [objective.at({**tensors, role: point + c * direction}) for c in (1, -1, 2, -2)]
        found[k] = (8 * (at[0] - at[1]) - (at[2] - at[3])) / (12 * step)
    return found.view_as(point)


def changes_value(objective: Objective, tensors: Tensors, other: Tensors, role: str) -> bool:
    """Whether the loss changes when one argument does."""
    before, after = objective.at(tensors), objective.at({**tensors, role: other[role]})
    return abs(after - before) > 1e-12 * max(1.0, abs(before))


@dataclass(frozen=True, eq=False)
class Fit:
    """Coefficients of known terms in a gradient, and what is left."""

    coefficients: dict[str, float]
    residual: float
    tolerance: ClassVar[float] = 1e-6
    """Below it a fit counts as exact: what float64 and an epsilon inside a logarithm leave."""

    @property
    def exact(self) -> bool:
        return self.residual < self.tolerance


def fit(blocks: Sequence[tuple[Tensor, Mapping[str, Tensor]]]) -> Fit:
    """Least squares over blocks of entries, each scaled by the size of its target.

    Args:
        blocks: targets, and the columns by name; absent columns are zero.

    >>> found = fit([(torch.tensor([2.0, 4.0]), {"a": torch.tensor([1.0, 2.0])})])
    >>> round(found.coefficients["a"], 6), found.exact
    (2.0, True)
    """
    names = list(dict.fromkeys(name for _, columns in blocks for name in columns))
    targets, rows = [], []
    for target, columns in blocks:
        flat = target.flatten().double()
        sizes = [float(c.abs().max()) for c in columns.values()] or [1.0]
        scale = float(flat.norm()) or max(max(sizes), 1e-300)
        targets.append(flat / scale)
        zero = torch.zeros_like(flat)
        rows.append(torch.stack([columns[n].flatten().double() / scale if n in columns else zero for n in names], 1))
    target, matrix = torch.cat(targets), torch.cat(rows)
    size = matrix.norm(dim=0)
    kept = [k for k in range(len(names)) if float(size[k]) > 0 and bool(size[k].isfinite())]
    coefficients = dict.fromkeys(names, 0.0)
    if not kept or not bool(target.isfinite().all()):
        return Fit(coefficients, float(target.norm()) if bool(target.isfinite().all()) else math.inf)
    scaled = matrix[:, kept] / size[kept]
    solution = torch.linalg.lstsq(scaled, target[:, None], driver="gelsd").solution[:, 0]
    left = target - scaled @ solution
    for k, value in zip(kept, (solution / size[kept]).tolist(), strict=True):
        coefficients[names[k]] = value
    return Fit(coefficients, float(left.norm() / max(float(target.norm()), 1e-300)))
