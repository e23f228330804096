"""A model from pure functions of JAX: flax, equinox, haiku and others."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vaescope.adapters.base import Adapted, from_callables
from vaescope.adapters.bridge import on_jax
from vaescope.core.calls import required_arguments
from vaescope.core.errors import require

ROLES = {
    "kernel": ("weight", True),
    "w": ("weight", True),
    "weight": ("weight", False),
    "bias": ("bias", False),
    "b": ("bias", False),
    "scale": ("scale", False),
    "gamma": ("scale", False),
    "offset": ("bias", False),
    "beta": ("bias", False),
}
"""Names of weights in flax, haiku, equinox and Keras: what they are, and whether outputs are the last axis."""


def from_jax(
    encode: Callable[..., object],
    decode: Callable[..., object] | None = None,
    *,
    params: object | None = None,
    **known: Any,
) -> Adapted:
    """A model from pure functions of JAX, such as those of flax, equinox or haiku.

    Derivatives of every order go through JAX. Decoders compute in float64 where an analysis needs it, whatever
    `jax_enable_x64` is, unless they convert their input to another type themselves.

    Args:
        encode: x -> mean and variance of q(z|x), with layers such as dropout in evaluation mode; of a conditional VAE
            (x, y) -> the same. Functions are compiled, so what they refer to must not change.
        decode: z, or (z, y) -> mean of p(x|z).
        params: weights, or a function that returns them, such as `lambda: state.params` during training; `encode`,
            `decode` and `log_likelihood` then take them as their first argument.
        known: further arguments of `from_callables`, of which `latent_dim` is required.
    """
    functions = {"encode": encode, "decode": decode, "log_likelihood": known.get("log_likelihood")}
    bound = params is not None
    read = params if callable(params) and not _arrays(params) else lambda: params
    seen = [read()] if bound else [v for f in (encode, decode) if inspect.isfunction(f) for v in _variables(f)]
    wrapped = {name: on_jax(f, read if bound else None) for name, f in functions.items() if f is not None}
    known.setdefault("networks", [mirror([pair for tree in seen for pair in _arrays(tree)])])
    made = from_callables(**{**known, **wrapped})
    takes = {name: required_arguments(f) - bound > 1 for name, f in functions.items() if f is not None}
    spec = replace(made.spec, conditional=takes.get("decode", False))
    return replace(made, spec=spec, encodes_auxiliary=takes["encode"])


def _variables(function: Callable[..., object]) -> list[object]:
    found = inspect.getclosurevars(function)
    return [*found.nonlocals.values(), *found.globals.values()]


def _arrays(tree: object) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """Arrays in a tree of JAX, with their paths."""
    jax = require("jax", "adapting functions of JAX")
    try:
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    except (TypeError, ValueError):
        return []
    kept = [(path, leaf) for path, leaf in leaves if isinstance(leaf, jax.Array | np.ndarray)]
    return [(tuple(re.findall(r"\w+", jax.tree_util.keystr(path))), np.asarray(leaf)) for path, leaf in kept]


def mirror(arrays: list[tuple[tuple[str, ...], np.ndarray]]) -> nn.Module:
    """Weights of another framework as those of modules, in which it can be seen whether they are initial.

    Args:
        arrays: path, such as ("encoder", "dense", "kernel"), and values of each weight.
    """
    layers: dict[tuple[str, ...], dict[str, Tensor]] = {}
    for path, values in arrays:
        kept = [name for name in path if name not in ("value", "raw_value")]
        if kept and kept[-1] in ROLES and values.dtype.kind == "f":
            role, last = ROLES[kept[-1]]
            tensor = torch.tensor(values)
            layers.setdefault(tuple(kept[:-1]), {})[role] = (
                tensor.movedim(-1, 0) if last and values.ndim > 1 else tensor
            )
    found = nn.ModuleList()
    for parts in layers.values():
        layer = nn.LayerNorm(1) if "scale" in parts else nn.Module()
        for role, tensor in parts.items():
            layer.register_parameter("weight" if role == "scale" else role, nn.Parameter(tensor, requires_grad=False))
        found.append(layer)
    return found
