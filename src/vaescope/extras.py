"""Libraries that only some features need: imported on first use, with one line that says how to install them."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from vaescope.errors import InputError

EXTRAS = {
    "PIL": ("Pillow", "images"),
    "h5py": ("h5py", "hdf5"),
    "yaml": ("PyYAML", "sweep"),
    "pandas": ("pandas", "interop"),
    "anndata": ("anndata", "interop"),
    "polars": ("polars", "interop"),
    "xarray": ("xarray", "interop"),
    "ray": ("Ray", "ray"),
    "mlflow": ("MLflow", "track"),
    "tensorboard": ("TensorBoard", "track"),
    "wandb": ("wandb", "track"),
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
