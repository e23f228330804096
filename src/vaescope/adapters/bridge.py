"""Functions of JAX as functions of tensors that torch differentiates, forward and in reverse, any number of times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from vaescope.core.errors import require


@runtime_checkable
class Array(Protocol):
    """What tensors and arrays of JAX have in common."""

    def __len__(self) -> int: ...

    def __getitem__(self: A, index: Any) -> A: ...

    def reshape(self: A, *shape: int) -> A: ...

    def tolist(self) -> object: ...


A = TypeVar("A", bound=Array)


class JaxFunction:
    """A function of arrays with the same number of rows, each row on its own, as a function of tensors.

    Its derivatives are functions of this kind too, so forward and reverse mode of torch may be nested. It is compiled
    for row counts that are powers of two, or multiples of 1,024, and computes in float64 if an input has float64.
    """

    def __init__(self, function: Callable[..., object], params: Callable[[], object] = lambda: None) -> None:
        self.jax = require("jax", "adapting functions of JAX")
        self.function, self.params = function, params
        """(params, *arrays) -> an array or several; parameters are read at every call."""
        self._compiled = self.jax.jit(function)
        self._derivatives: dict[tuple[str, tuple[bool, ...]], JaxFunction] = {}

    def __call__(self, *values: Tensor) -> object:
        """The result as a tensor, or as a tuple of tensors."""
        found = _Call.apply(self, *values)
        return found[0] if len(found) == 1 else found

    def evaluate(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The results for plain tensors."""
        rows = len(values[0]) if values else 0
        padded = -(-rows // 1024) * 1024 if rows > 1024 else 1 << max(0, rows - 1).bit_length()
        index = np.minimum(np.arange(padded), rows - 1)
        arrays = [value.detach().cpu().numpy()[index] for value in values]
        owner = self.jax if hasattr(self.jax, "enable_x64") else self.jax.experimental  # before JAX 0.8
        double = any(array.dtype == np.float64 for array in arrays) or bool(self.jax.config.jax_enable_x64)
        with owner.enable_x64(double):
            try:
                found = self._compiled(self.params(), *arrays)
            except self.jax.errors.JAXTypeError:  # a function that looks at values cannot be compiled
                found = self.function(self.params(), *map(self.jax.numpy.asarray, arrays))
        outputs = [np.array(output) for output in (found if isinstance(found, tuple | list) else [found])]
        return tuple(torch.from_numpy(out[:rows] if out.shape[:1] == (padded,) else out) for out in outputs)

    def along(self, values: tuple[Tensor, ...], tangents: tuple[Tensor, ...]) -> object:
        """The derivative in a direction: a tangent for each value in floating point."""
        floating = tuple(value.is_floating_point() for value in values)

        def derivative(params: object, *given: object) -> object:
            primal, fill = _without_integers(given[: len(values)], floating)
            return self.jax.jvp(lambda *moved: self.function(params, *fill(moved)), primal, given[len(values) :])[1]

        moving = (t for t, moves in zip(tangents, floating, strict=True) if moves)
        return self._derivative("jvp", floating, derivative)(*values, *moving)

    def back(self, values: tuple[Tensor, ...], cotangents: tuple[Tensor, ...]) -> Iterator[Tensor | None]:
        """Cotangents of the values; None for integers."""
        floating = tuple(value.is_floating_point() for value in values)

        def derivative(params: object, *given: object) -> object:
            primal, fill = _without_integers(given[: len(values)], floating)
            outputs, pull = self.jax.vjp(lambda *moved: self.function(params, *fill(moved)), *primal)
            return pull(self.jax.tree.unflatten(self.jax.tree.structure(outputs), given[len(values) :]))

        found = self._derivative("vjp", floating, derivative)(*values, *cotangents)
        parts = iter(found if isinstance(found, tuple) else (found,))
        return (next(parts) if moves else None for moves in floating)

    def _derivative(self, kind: str, floating: tuple[bool, ...], function: Callable[..., object]) -> JaxFunction:
        if (kind, floating) not in self._derivatives:
            self._derivatives[kind, floating] = JaxFunction(function, self.params)
        return self._derivatives[kind, floating]


def _without_integers(
    given: tuple[object, ...], floating: tuple[bool, ...]
) -> tuple[tuple[object, ...], Callable[[tuple[object, ...]], list[object]]]:
    """The values in floating point, and a function that puts changed ones back among all values."""

    def fill(moved: tuple[object, ...]) -> list[object]:
        parts = iter(moved)
        return [next(parts) if moves else value for value, moves in zip(given, floating, strict=True)]

    return tuple(value for value, moves in zip(given, floating, strict=True) if moves), fill


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(function: JaxFunction, *values: Tensor) -> tuple[Tensor, ...]:
        return function.evaluate(*values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[JaxFunction, *tuple[Tensor, ...]], output: object) -> None:
        ctx.function = inputs[0]
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.function.back(ctx.saved_tensors, cotangents)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        values = ctx.saved_tensors
        given = tuple(torch.zeros_like(v) if t is None else t for v, t in zip(values, tangents, strict=True))
        found = ctx.function.along(values, given)
        return found if isinstance(found, tuple) else (found,)

    @staticmethod
    def vmap(
        info: tuple[int, str], in_dims: tuple[int | None, ...], function: JaxFunction, *values: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Rows are independent, so a batch of them is more rows."""
        size = info[0]
        moved = [
            v.expand(size, *v.shape) if d is None else v.movedim(d, 0) for v, d in zip(values, in_dims[1:], strict=True)
        ]
        found = _Call.apply(function, *(value.flatten(0, 1) for value in moved))
        return tuple(output.unflatten(0, (size, -1)) for output in found), (0,) * len(found)


def on_jax(function: Callable[..., object], params: Callable[[], object] | None = None) -> JaxFunction:
    """A function of arrays, or of parameters and arrays, as a function of tensors."""
    return JaxFunction(lambda _, *arrays: function(*arrays)) if params is None else JaxFunction(function, params)
