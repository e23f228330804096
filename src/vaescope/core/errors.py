"""The exceptions that users see. Both messages fit on one line; the command line prints them and exits with code 2."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TypeVar


class InputError(ValueError):
    """An argument or a file is invalid. The message says what was expected, what was given and what to do."""


class RunError(RuntimeError):
    """A run folder cannot be used. The message says why and what to do."""


class VaescopeWarning(UserWarning):
    """Something works, but not as it was meant to. All warnings of vaescope are of this category."""


class AmbiguousOutputError(InputError):
    """A user's function returns several values, and it is not known which one is meant; no analysis goes on."""


T = TypeVar("T")


class Advice(str):
    """A sentence that names an argument of a function; `as_option` is the same sentence with the command's option.

    >>> reason = Advice.naming("it would take about 40 s; pass {} to include it", "budget", 50)
    >>> reason
    'it would take about 40 s; pass budget=50 to include it'
    >>> reason.as_option
    'it would take about 40 s; pass --budget 50 to include it'
    """

    as_option: str

    @classmethod
    def naming(cls, sentence: str, argument: str, value: object = "") -> Advice:
        """The sentence with the argument in place of {}.

        Args:
            sentence: has {} where the argument is named.
            argument: its name in Python, which is also the option's.
            value: to pass; empty if it is the user's own.
        """
        advice = cls(sentence.format(f"{argument}={value}"))
        advice.as_option = sentence.format(f"--{argument} {value}".rstrip())
        return advice


class Skipped(Exception):
    """An analysis could not be made; the message says why."""


def could_not_differentiate(error: Exception) -> Skipped:
    """The reason to skip an analysis that needs derivatives of the decoder."""
    return Skipped(f"the decoder could not be differentiated ({first_line(error)})")


def first_line(error: BaseException, length: int = 160) -> str:
    """The first line of an exception's message, of at most this many characters."""
    return (str(error).splitlines() or [""])[0][:length]


class Attempts:
    """Call analyses, and collect the reasons of those that fail, after those that are known."""

    def __init__(self, skipped: Mapping[str, str] | None = None) -> None:
        self.skipped: dict[str, str] = dict(skipped or {})

    def __call__(self, name: str, analyse: Callable[[], T]) -> T | None:
        try:
            return analyse()
        except AmbiguousOutputError:
            raise
        except (Skipped, InputError) as error:
            reason = error.args[0] if error.args else ""
            self.skipped[name] = reason if isinstance(reason, Advice) else str(error).rstrip(".")
        except (RuntimeError, NotImplementedError) as error:
            self.skipped[name] = f"the decoder failed ({first_line(error)})"
        return None


EXTRAS = {
    "PIL": ("Pillow", "images"),
    "h5py": ("h5py", "hdf5"),
    "yaml": ("PyYAML", "sweep"),
    "pandas": ("pandas", "interop"),
    "anndata": ("anndata", "interop"),
    "polars": ("polars", "interop"),
    "xarray": ("xarray", "interop"),
    "torchmetrics": ("torchmetrics", "torchmetrics"),
    "ray": ("Ray", "ray"),
    "mlflow": ("MLflow", "track"),
    "tensorboard": ("TensorBoard", "track"),
    "wandb": ("wandb", "track"),
    "jax": ("JAX", "foreign"),
    "keras": ("Keras", "foreign"),
    "pyro": ("pyro-ppl", "foreign"),
    "numpyro": ("NumPyro", "foreign"),
    "onnx": ("ONNX", "foreign"),
    "onnxruntime": ("onnxruntime", "foreign"),
    "diffusers": ("diffusers", "foreign"),
    "scvi": ("scvi-tools", "foreign"),
}
"""Imported package: the library's name, and the extra of vaescope that installs it."""


def require(module: str, purpose: str) -> ModuleType:
    """Import a library that comes with an extra.

    Args:
        module: the module to import, such as `PIL.Image`; its package must be in `EXTRAS`.
        purpose: what needs the library, as the start of the message: "reading images".

    >>> require("h5py", "reading HDF5 files").__name__
    'h5py'
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise _missing(module.split(".")[0], purpose) from None


def check_installed(package: str, purpose: str) -> None:
    """Refuse early, without importing a library that is slow to import.

    Args:
        package: a key of `EXTRAS`.
        purpose: what needs the library.
    """
    if importlib.util.find_spec(package) is None:
        raise _missing(package, purpose)


def _missing(package: str, purpose: str) -> InputError:
    library, extra = EXTRAS[package]
    return InputError(f"{purpose} needs {library}, which is not installed; use pip install 'vaescope[{extra}]'.")
