"""User networks: find them behind functions, and call them in evaluation mode and in any floating-point type."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def named_weights(networks: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Parameters and buffers of networks by name, shared ones once; none of compiled TorchScript, which are fixed."""
    if any(isinstance(part, torch.jit.ScriptModule) for network in networks for part in network.modules()):
        return {}
    every = nn.ModuleList(networks)
    return {**dict(every.named_parameters()), **dict(every.named_buffers())}


Slot = tuple[nn.Module, str, str]
"""A module, its name for a weight, and the name of `named_weights`."""


def weight_slots(networks: Sequence[nn.Module]) -> list[Slot]:
    """Where each of the weights of `named_weights` is, shared ones several times."""
    names = {id(value): name for name, value in named_weights(networks).items()}
    modules = {id(part): part for network in networks for part in network.modules()}.values()
    return [
        (module, name, names[id(value)])
        for module in modules
        for name, value in (*module._parameters.items(), *module._buffers.items())
        if value is not None and id(value) in names
    ]


@contextlib.contextmanager
def weights_in_place(slots: Sequence[Slot], weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Networks with other weights inside the block; their own afterwards.

    Args:
        slots: of `weight_slots`.
        weights: by name, an `nn.Parameter` in the place of each parameter; others stay.
    """
    own = [(module, name, getattr(module, name), weights[key]) for module, name, key in slots if key in weights]

    def put(module: nn.Module, name: str, value: Tensor) -> None:
        if isinstance(module, nn.RNNBase):  # it keeps a list of its weights as well
            setattr(module, name, value)
        elif name in module._parameters:
            module._parameters[name] = value if isinstance(value, nn.Parameter) else nn.Parameter(value)
        else:
            module._buffers[name] = value

    try:
        for module, name, _, value in own:
            put(module, name, value)
        yield
    finally:
        for module, name, value, _ in own:
            put(module, name, value)


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
