"""Dataclasses as plain data (for JSON, YAML and Parquet), and back with the types checked.

Plain data are numbers, text, bytes, booleans, None, and lists and dictionaries of them. Tuples become lists, paths
become text, and nested dataclasses become dictionaries.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar, Union, cast

from vaescope.core.checks import shown
from vaescope.core.errors import InputError

T = TypeVar("T")
Plain = object
"""None, bool, int, float, str, bytes, or a list or dictionary of plain data."""


def to_plain(value: object) -> Plain:
    """A dataclass, or anything made of plain data, as plain data.

    >>> to_plain((1, Path("runs")))
    [1, 'runs']
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def plain_fields(value: object) -> dict[str, Plain]:
    """The fields of a dataclass as plain data."""
    return cast(dict[str, Plain], to_plain(value))


def from_plain(cls: type[T], data: Mapping[str, Plain], *, name: str = "") -> T:
    """The dataclass with these fields; fields that are missing take their defaults, and None where they allow it.

    Args:
        cls: the dataclass to build.
        data: plain data by field name.
        name: what error messages call the whole, such as a file.
    """
    hints = field_types(cast(type, cls))
    unknown = [key for key in data if key not in hints]
    if unknown:
        raise InputError(f"{name or cls.__name__} has no setting {unknown[0]!r}; it has {', '.join(hints)}.")
    values = {key: convert(value, hints[key], f"{name}.{key}" if name else key) for key, value in data.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise InputError(f"{name or cls.__name__} is incomplete: {error}.") from None


@cache
def field_types(cls: type) -> dict[str, object]:
    """The resolved type of every field of a dataclass, in order."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def convert(value: Plain, kind: object, name: str) -> object:
    """Plain data as a value of the given type, or an error that says what was expected.

    >>> convert([64, 32], tuple[int, ...], "hidden")
    (64, 32)
    >>> convert(1, float, "beta")
    1.0
    """
    for option in _options(kind):
        fits, converted = _convert_to(option, value, name)
        if fits:
            return converted
    raise InputError(f"{name} must be {_described(kind)}, got {shown(value)}.")


def _options(kind: object) -> Sequence[object]:
    """The members of a union, else the type itself."""
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)


def _convert_to(kind: object, value: Plain, name: str) -> tuple[bool, object]:
    """Whether the value fits this type, and the value as that type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is object:
        return True, value
    if kind is None or kind is type(None):
        return value is None, None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return True, float(value)
    if kind is Path:
        return isinstance(value, str | Path), Path(value) if isinstance(value, str | Path) else None
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return isinstance(value, Mapping), from_plain(kind, value, name=name) if isinstance(value, Mapping) else None
    if origin in (list, tuple) and isinstance(value, list | tuple):
        items = _item_types(kind, len(value))
        if items is None:
            return False, None
        return True, origin(
            convert(v, item, f"{name}[{k}]") for k, (v, item) in enumerate(zip(value, items, strict=True))
        )
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return True, {str(key): convert(item, arguments[1], f"{name}.{key}") for key, item in value.items()}
    if isinstance(kind, type) and origin is None:
        return isinstance(value, kind) and (kind is bool or not isinstance(value, bool)), value
    return False, None


def _item_types(kind: object, count: int) -> Sequence[object] | None:
    """The type of each of so many items; None where the type has another number of them."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is list or arguments[-1] is Ellipsis:
        return [arguments[0]] * count
    return arguments if len(arguments) == count else None


def _described(kind: object) -> str:
    """A type for people: 'a number, or a list of integers'."""
    names = {float: "a number", int: "an integer", str: "text", bool: "true or false", type(None): "nothing"}
    found = []
    for option in _options(kind):
        origin, arguments = typing.get_origin(option), typing.get_args(option)
        if origin in (list, tuple) and arguments:
            item = _described(arguments[0]).removeprefix("an ").removeprefix("a ")
            found.append(f"a list of {item}s")
        else:
            known = names | {Path: "a path"}
            found.append(known.get(cast(type, option), getattr(option, "__name__", str(option))))
    return " or ".join(found)
