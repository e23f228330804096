"""Other people's networks: found behind functions, asked in evaluation mode and in any precision, left as they were."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vaescope.errors import InputError


def networks_behind(*functions: object) -> tuple[nn.Module, ...]:
    """Modules that functions are, belong to (bound methods), or name: closures and globals of a function."""
    found: dict[int, nn.Module] = {}
    for function in functions:
        candidates = [function, getattr(function, "__self__", None)]
        if inspect.isfunction(function):
            named = inspect.getclosurevars(function)
            candidates += [*named.nonlocals.values(), *named.globals.values()]
        found |= {id(value): value for value in candidates if isinstance(value, nn.Module)}
    return tuple(found.values())


@contextlib.contextmanager
def evaluating(networks: Sequence[nn.Module]) -> Iterator[None]:
    """No dropout and no running averages meanwhile; afterwards every part is as it was."""
    training = [part for network in networks for part in network.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


def home_of(networks: Sequence[nn.Module]) -> tuple[torch.dtype, torch.device] | None:
    """Where their weights are, and in which precision; None where there are none."""
    for network in networks:
        for weights in network.parameters():
            if weights.is_floating_point():
                return weights.dtype, weights.device
    return None


def any_precision(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """The network as a function that computes in float64 where it is given float64, by a copy of its present self."""
    copies: dict[torch.dtype, tuple[Any, nn.Module]] = {}

    def call(z: Tensor) -> Tensor:
        kinds = {p.dtype for p in network.parameters() if p.is_floating_point()}
        if kinds <= {z.dtype}:
            out: Tensor = network(z)
            return out
        weights = [*network.parameters(), *network.buffers()]
        present = tuple((id(w), w._version, w.data_ptr()) for w in weights)
        if z.dtype not in copies or copies[z.dtype][0] != present:
            copies[z.dtype] = present, copy.deepcopy(network).to(z.dtype)
        copied = copies[z.dtype][1]
        with evaluating([copied] if not network.training else []):
            return copied(z)

    return call


def asked(what: str, function: Callable[..., Any], *values: Tensor) -> Any:
    """Somebody's function; whatever it raises is one line that says who failed at what."""
    try:
        return function(*values)
    except InputError:
        raise
    except Exception as error:
        shapes = " and ".join(str(tuple(value.shape)) for value in values)
        reason = (str(error).splitlines() or [""])[0][:160]
        raise InputError(f"{what} failed on {shapes}: {type(error).__name__}: {reason}") from None
