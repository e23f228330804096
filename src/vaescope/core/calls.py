"""User networks: find them behind functions, and call them in evaluation mode and in any floating-point type."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from vaescope.core.errors import InputError, first_line

T = TypeVar("T")


def networks_behind(*functions: object) -> tuple[nn.Module, ...]:
    """Modules among the functions, the objects of bound methods, and the variables that functions refer to."""
    found: dict[int, nn.Module] = {}
    for function in functions:
        candidates = [function, getattr(function, "__self__", None)]
        if inspect.isfunction(function):
            variables = inspect.getclosurevars(function)
            candidates += [*variables.nonlocals.values(), *variables.globals.values()]
        found |= {id(value): value for value in candidates if isinstance(value, nn.Module)}
    return tuple(found.values())


@contextlib.contextmanager
def evaluation_mode(networks: Sequence[nn.Module]) -> Iterator[None]:
    """Evaluation mode inside the block (no dropout, no running averages); the previous mode afterwards."""
    training = [part for network in networks for part in network.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


def dtype_and_device(networks: Sequence[nn.Module]) -> tuple[torch.dtype, torch.device] | None:
    """The floating-point type and the device of the weights; None without weights."""
    for network in networks:
        for weights in network.parameters():
            if weights.is_floating_point():
                return weights.dtype, weights.device
    return None


class DtypeCopies:
    """Copies of a network in other floating-point types, made when needed and updated with its weights."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._copies: dict[torch.dtype, tuple[tuple[tuple[int, int, int], ...], nn.Module]] = {}

    def in_dtype(self, dtype: torch.dtype) -> nn.Module:
        """The network itself if its weights have this type, otherwise a copy."""
        network = self.network
        if {p.dtype for p in network.parameters() if p.is_floating_point()} <= {dtype}:
            return network
        weights = [*network.parameters(), *network.buffers()]
        version = tuple((id(w), w._version, w.data_ptr()) for w in weights)
        if dtype not in self._copies or self._copies[dtype][0] != version:
            self._copies[dtype] = version, copy.deepcopy(network).to(dtype)
        return self._copies[dtype][1]


def any_dtype(network: nn.Module) -> Callable[..., Tensor]:
    """The network as a function that computes in the floating-point type of its input."""
    copies = DtypeCopies(network)

    def call(z: Tensor, *given: Tensor) -> Tensor:
        converted = copies.in_dtype(z.dtype)
        with evaluation_mode([converted] if not network.training else []):
            output: Tensor = converted(z, *(v.to(z.dtype) if v.is_floating_point() else v for v in given))
        return output

    return call


def required_arguments(function: object) -> int:
    """How many positional arguments a function or a module needs.

    >>> required_arguments(lambda z, y: z), required_arguments(lambda z, y=None: z)
    (2, 1)
    """
    target = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = inspect.signature(target).parameters.values() if callable(target) else ()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)


def call_with_tokens(name: str, function: Callable[..., T], x: Tensor, *others: Tensor) -> T:
    """Call a user's function of samples; if it needs integers, such as tokens to embed, x is converted."""
    try:
        return call_user_function(name, function, x, *others)
    except InputError as error:
        needs_integers = r"scalar types?:? ?(Long|Int)|one_hot|int64|must be (long|int)|IntTensor"  # PyTorch's messages
        if not re.search(needs_integers, str(error)) or not bool((x == x.round()).all()):
            raise
        return call_user_function(name, function, x.long(), *others)


def call_user_function(name: str, function: Callable[..., T], *values: Tensor) -> T:
    """Call a user's function; any exception becomes a one-line `InputError` that names the function."""
    try:
        return function(*values)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        shapes = " and ".join(str(tuple(value.shape)) for value in values)
        raise InputError(f"{name} failed on {shapes}: {type(error).__name__}: {first_line(error)}") from None
