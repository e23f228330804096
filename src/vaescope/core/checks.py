"""Checks of single numbers and choices. Nothing heavy is imported here, so that the command line starts at once."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real

from vaescope.core.errors import InputError


def choice(name: str, value: object, options: Collection[str]) -> str:
    """Check that a value is one of the options.

    >>> choice("network", "mlp", ("mlp", "conv"))
    'mlp'
    """
    if not isinstance(value, str) or value not in options:
        raise InputError(f"{name} must be one of {', '.join(options)}, got {shown(value)}.")
    return value


def integer(name: str, value: object, *, minimum: int = 1, maximum: int = 2**63 - 1) -> int:
    """Check an integer and its bounds; booleans are rejected.

    Args:
        minimum: smallest valid value.
        maximum: largest valid value; that of 64-bit integers if not given.

    >>> integer("draws", 3)
    3
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name} must be an integer, got {shown(value)}.")
    if int(value) < minimum:
        raise InputError(f"{name} must be at least {minimum}, got {value}.")
    if int(value) > maximum:
        raise InputError(f"{name} must be at most {maximum}, got {value}.")
    return int(value)


def number(
    name: str, value: object, *, minimum: float = -math.inf, above: float | None = None, hint: str = ""
) -> float:
    """Check a finite number and its lower bound; booleans are rejected.

    Args:
        minimum: smallest valid value.
        above: exclusive lower bound, used instead of `minimum`.
        hint: appended to the error message.

    >>> number("beta", 2)
    2.0
    """
    end = f"; {hint}." if hint else "."
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{name} must be a number, got {shown(value)}{end}")
    try:
        found = float(value)
    except OverflowError:
        raise InputError(f"{name} must be finite, got an integer above 1e308{end}") from None
    bound = f"at least {minimum:g}" if above is None else f"> {above:g}"
    in_range = found >= minimum if above is None else found > above
    if not math.isfinite(found) or not in_range:
        limited = above is not None or minimum > -math.inf
        raise InputError(f"{name} must be {bound if limited else 'finite'}, got {value}{end}")
    return found


def shown(value: object) -> str:
    """A value for an error message, in one line of at most 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
