"""What a command is pointed at: trained models, samples, and the auxiliary u of an iVAE."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vaescope.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


def models_of(target: str) -> list[Any]:
    """The members of a run, the best first; or the model (or models) that somebody's own Python names.

    NAME is a model from `vs.adapters`, a list of such, or a function without arguments that returns either. That code
    is run: it is the caller's own, as with any script.
    """
    from vaescope.adapters.run import members_of

    if Path(target).exists():
        return list(members_of(target))
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise InputError(f"{target} does not exist; give a run folder, FILE.py:NAME or package.module:NAME.")
    found = _named(_module(place), name, target)
    models = list(found) if isinstance(found, list | tuple) else list(getattr(found, "members", [found]))
    if not models or not all(hasattr(model, "latent_dim") and hasattr(model, "encode") for model in models):
        raise InputError(f"{target} must be a model from vs.adapters, several, or a function that returns them.")
    return models


def target_name(target: str) -> str:
    """How a page calls it."""
    return target.rpartition(":")[2] if not Path(target).exists() else Path(target).resolve().stem


def _module(place: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            return importlib.import_module(place)
        file = Path(place)
        if not file.is_file():
            raise InputError(f"{place} does not exist.")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        if spec is None or spec.loader is None:
            raise InputError(f"{place} cannot be imported.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module
        sys.path.insert(0, str(file.resolve().parent))  # its neighbours, as for a script
        spec.loader.exec_module(module)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{place} cannot be imported: {type(error).__name__}: {_first_line(error)}") from None
    return module


def _named(module: ModuleType, name: str, target: str) -> Any:
    if not hasattr(module, name):
        raise InputError(f"{target}: {module.__name__} has nothing called {name}.")
    found = getattr(module, name)
    if not callable(found) or hasattr(found, "latent_dim"):
        return found
    try:
        return found()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{target} failed: {type(error).__name__}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def check_auxiliary(models: list[Any], u: Tensor | None) -> None:
    """An iVAE has its u, and nobody else any."""
    conditional = bool(getattr(models[0], "auxiliary_dim", 0))
    if conditional and u is None:
        raise InputError("this is an iVAE: say its u by --auxiliary (factors, or an .npy file with a row per sample).")
    if not conditional and u is not None:
        raise InputError("this model takes no auxiliary u; leave --auxiliary out.")
