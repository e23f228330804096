"""Priors by name, and priors as text: `normal`, `uniform(low=-1, high=1)`, `normal(mean=[0.0, 1.0], variance=1.0)`."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from vaescope import validation
from vaescope.distributions.base import Number, Prior
from vaescope.distributions.bounded import Beta, Uniform
from vaescope.distributions.unbounded import Laplace, Normal
from vaescope.errors import InputError

PRIORS: dict[str, type[Prior]] = {"normal": Normal, "uniform": Uniform, "beta": Beta, "laplace": Laplace}
EXAMPLE = "uniform(low=-1, high=1)"


def prior_from(value: Prior | str | Mapping[str, Any]) -> Prior:
    """A prior from a prior, its text or a mapping with the key `kind`.

    Args:
        value: a prior, which is returned as it is; text such as `normal` or `uniform(low=-1, high=1)`; or a mapping
            with the `kind` (`normal`, `laplace`, `uniform` or `beta`) and its parameters. Parameters that are left out
            have their defaults.

    >>> prior_from({"kind": "uniform", "low": -1, "high": 1})
    Uniform(low=-1.0, high=1.0)
    """
    if isinstance(value, Prior):
        return value
    if isinstance(value, str):
        return prior_from_text(value)
    if isinstance(value, Mapping):
        return _build(value.get("kind"), {name: entry for name, entry in value.items() if name != "kind"})
    raise _invalid(value)


def prior_from_text(text: str) -> Prior:
    """Parse a prior: a name for its default parameters, or a name with parameters; lists become tensors (float32).

    >>> prior_from_text("normal")
    Normal(mean=0.0, variance=1.0)
    >>> prior_from_text("uniform(low=-1, high=1)")
    Uniform(low=-1.0, high=1.0)
    """
    node = _parse(text)
    if isinstance(node, ast.Name):
        return _build(node.id, {})
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise _invalid(text)
    try:
        parameters = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise _invalid(text) from None
    return _build(node.func.id, parameters)


def prior_to_text(prior: Prior) -> str:
    """The text that `prior_from` reads.

    Args:
        prior: a `Normal`, `Laplace`, `Uniform` or `Beta`.

    >>> prior_to_text(Normal(torch.tensor([0.0, 1.0])))
    'normal(mean=[0.0, 1.0], variance=1.0)'
    """
    kind = next((name for name, cls in PRIORS.items() if type(prior) is cls), None)
    if kind is None:
        raise InputError(f"only {', '.join(PRIORS)} priors have a text form, got {type(prior).__name__}.")
    values = {field.name: getattr(prior, field.name) for field in fields(prior)}  # type: ignore[arg-type]
    return f"{kind}({', '.join(f'{name}={_plain(value)}' for name, value in values.items())})"


def _plain(value: Number) -> float | list[Any]:
    return value.tolist() if isinstance(value, Tensor) else float(value)


def _parse(text: str) -> ast.expr:
    try:
        with warnings.catch_warnings():  # Python warns about odd literals before it rejects them
            warnings.simplefilter("ignore")
            return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _invalid(text) from None


def _build(kind: object, parameters: Mapping[str, object]) -> Prior:
    name = kind.lower() if isinstance(kind, str) else ""
    if name not in PRIORS:
        raise _invalid(kind)
    known = [field.name for field in fields(PRIORS[name])]  # type: ignore[arg-type]
    unknown = [parameter for parameter in parameters if parameter not in known]
    if unknown:
        raise InputError(f"a {name} prior has the parameters {', '.join(known)}, got {validation.shown(unknown[0])}.")
    tensors = issubclass(PRIORS[name], Normal | Laplace)
    read = {key: _parameter(f"{key} of a {name} prior", value, tensors) for key, value in parameters.items()}
    return PRIORS[name](**read)


def _parameter(name: str, value: object, tensors: bool) -> Number:
    """Check a parameter: a finite number, or a list of finite numbers where a tensor is possible."""
    if not tensors or not isinstance(value, list):
        return validation.number(name, value)
    found = torch.from_numpy(validation.array(value, name)).to(torch.get_default_dtype())
    if not bool(found.isfinite().all()) or not found.numel():
        raise InputError(f"{name} must be finite numbers, got {validation.shown(value)}.")
    return found


def _invalid(value: object) -> InputError:
    return InputError(f"prior must be one of {', '.join(PRIORS)}, e.g. {EXAMPLE!r}, got {validation.shown(value)}.")
