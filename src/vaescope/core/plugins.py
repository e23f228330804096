"""What other installed packages add to vaescope: metrics, adapters, objectives and findings, as entry points.

A package declares them in its `pyproject.toml`, under `[project.entry-points."vaescope.metrics"]` and so on, as a name
and the function that it stands for. They are loaded when they are first needed. See docs/questions/plugins.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from vaescope.core.errors import InputError, VaescopeWarning, first_line

Plugin = Callable[..., object]


@cache
def plugins(group: str) -> Mapping[str, Plugin]:
    """The functions of a group by name; those that cannot be loaded are left out with a warning.

    Args:
        group: metrics, adapters, objectives or findings.
    """
    found: dict[str, Plugin] = {}
    for name in sorted({entry.name for entry in _declared(group)}):
        try:
            function = plugin(group, name)
        except InputError as error:
            warnings.warn(str(error), VaescopeWarning, stacklevel=2)
            continue
        if function is not None:
            found[name] = function
    return found


def plugin(group: str, name: str) -> Plugin | None:
    """The function of this name; None if no installed package declares it.

    Args:
        group: metrics, adapters, objectives or findings.
        name: as it was declared.
    """
    declared = {entry.value: entry for entry in _declared(group) if entry.name == name}
    if not declared:
        return None
    if len(declared) > 1:
        raise InputError(f"two installed packages add {name!r} to vaescope.{group}: {' and '.join(declared)}.")
    ((where, entry),) = declared.items()
    try:
        found = entry.load()
    except Exception as error:  # whatever importing a user's package raises
        reason = f"{type(error).__name__}: {first_line(error)}"
    else:
        if callable(found):
            function: Plugin = found
            return function
        reason = f"it is not a function, but {type(found).__name__}"
    raise InputError(f"{name!r} of vaescope.{group} ({where}) cannot be loaded: {reason}.")


@cache
def _declared(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=f"vaescope.{group}"))
