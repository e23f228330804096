"""Every argument of every public name is described where the API reference shows it."""

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from tests.test_architecture import FILES
from tests.test_docs import load

SECTIONS = ("Args:", "Attributes:")  # headings that the API reference reads
ENTRY = re.compile(r"(?P<name>\*{0,2}\w+)(?: \([^)]*\))?: *\S")


# public names ---------------------------------------------------------------------------------


def public_names() -> list[str]:
    """Where every name in an `__all__` is defined: the entries of the API reference."""
    pages = load("_site/pages.py")
    return sorted({origin for file in FILES for origin in pages.public_names(file).values()})


def resolve(origin: str) -> object:
    module, name = origin.rsplit(".", 1)
    found = importlib.import_module(module)
    return getattr(found, name, None) or importlib.import_module(origin)


def contents(module: ModuleType) -> list[object]:
    """Functions and classes that a module without `__all__` defines; with it they are entries of their own."""
    if hasattr(module, "__all__"):
        return []
    public = (value for name, value in vars(module).items() if not name.startswith("_"))
    return [v for v in public if getattr(v, "__module__", None) == module.__name__ and callable(v)]


# descriptions ---------------------------------------------------------------------------------


def described(docstring: str | None) -> set[str]:
    """Names with a description in the sections `Args:` and `Attributes:`.

    >>> sorted(described("What it does.\\n\\nArgs:\\n    a: first.\\n    b: goes\\n        on: here.\\n    c:\\n"))
    ['a', 'b']
    """
    names: set[str] = set()
    lines = inspect.cleandoc(docstring or "").splitlines()
    for number, heading in enumerate(lines):
        if heading in SECTIONS and (number == 0 or not lines[number - 1].strip()):
            names |= _entries(lines[number + 1 :])
    return names


def _entries(lines: list[str]) -> set[str]:
    """Names of the entries of a section, which ends with the first line that is not indented."""
    body = []
    for line in lines:
        if line.strip() and not line.startswith(" "):
            break
        body.append(line)
    found = (ENTRY.match(line) for line in textwrap.dedent("\n".join(body)).splitlines())
    return {entry["name"].lstrip("*") for entry in found if entry}


def fields_with_text(cls: type) -> set[str]:
    """Fields with a string under them, of the class and the classes that it inherits from."""
    return {name for base in project_classes(cls) for name in _fields_with_text(base)}


@functools.cache
def _fields_with_text(cls: type) -> set[str]:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    return {
        field.target.id
        for field, below in zip(node.body, node.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(below)
    }


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


# what is missing ------------------------------------------------------------------------------


def project_classes(cls: type) -> list[type]:
    """The class and those that it inherits from, without other libraries' classes."""
    return [base for base in cls.__mro__ if base.__module__.startswith("vaescope.")]


def parameters(function: Callable[..., object]) -> list[str]:
    """Parameters as they are written in the source, which the API reference shows.

    `vs.fit` has `options` there; `inspect.signature` has every setting instead, and tests/test_settings.py checks that
    each is described.
    """
    found = inspect.getargs(inspect.unwrap(function).__code__)
    names = [*found.args, *filter(None, (found.varargs, found.varkw))]
    return [name for name in names if name not in ("self", "cls")]


def constructor(cls: type) -> tuple[list[str], set[str]]:
    """Arguments of a class, and those among its docstrings' entries and described fields."""
    classes = project_classes(cls)
    owner = next((base for base in classes if "__init__" in vars(base)), None)
    module = "" if owner is None else getattr(vars(owner)["__init__"], "__module__", "")
    if owner is None or not module.startswith("vaescope."):  # Python's, of a protocol, or of one that was instantiated
        return [], described(cls.__doc__)
    wanted = parameters(vars(owner)["__init__"])
    if not dataclasses.is_dataclass(owner):
        classes = classes[: classes.index(owner) + 1]  # classes above it have other arguments
    texts = [vars(owner)["__init__"].__doc__, *(vars(base).get("__doc__") for base in classes)]
    return wanted, set().union(*map(described, texts)) | (fields_with_text(cls) & set(wanted))


def methods(cls: type) -> Iterator[tuple[str, Callable[..., object]]]:
    """Methods that the project defines, inherited ones too; the site shows no names with an underscore."""
    for name in sorted({name for base in project_classes(cls) for name in vars(base) if not name.startswith("_")}):
        kind = inspect.getattr_static(cls, name)
        if inspect.isfunction(kind) or isinstance(kind, classmethod | staticmethod):
            yield name, getattr(cls, name)


def callables(value: object, name: str) -> Iterator[tuple[str, list[str], set[str]]]:
    """Everything that can be called: its name, its parameters, and what its docstring describes.

    A method without a docstring has that of the method that it overrides (`inspect.getdoc`).
    """
    if isinstance(value, ModuleType):
        for item in contents(value):
            yield from callables(item, f"{name}.{item.__name__}")
    elif inspect.isclass(value):
        yield name, *constructor(value)
        for method, function in methods(value):
            yield f"{name}.{method}", parameters(function), described(inspect.getdoc(function))
    else:
        yield name, parameters(value), described(inspect.getdoc(value))


@pytest.mark.parametrize("origin", public_names())
def test_every_argument_is_described(origin):
    found = callables(resolve(origin), origin)
    missing = [f"{name}: {argument}" for name, wanted, known in found for argument in wanted if argument not in known]
    assert missing == []


@pytest.mark.parametrize("origin", public_names())
def test_every_description_is_of_an_argument(origin):
    """A description that is left behind when an argument is renamed or removed."""
    found = callables(resolve(origin), origin)
    extra = [f"{name}: {entry}" for name, wanted, known in found for entry in known if entry not in wanted]
    assert extra == []


def test_missing_descriptions_are_found():
    def undescribed(first, *more, **rest):
        """What it does.

        Args:
            first: described.
                more: a continued line is no entry.
        """

    ((_, wanted, known),) = callables(undescribed, "name")
    assert set(wanted) - known == {"more", "rest"}
