"""Options that choose samples: which array of a file, which factors, how many rows."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from vaescope.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from vaescope.data import Dataset
    from vaescope.data.files.streaming import StoredDataset
    from vaescope.protocol import LatentModel


@dataclass(frozen=True)
class DataOptions:
    """Which part of the data to use."""

    array: str | None = None
    """Name of the array with observations, if the file has several."""
    factors: str | None = None
    """Name of the array with factors (for Parquet: columns, separated by commas)."""
    rows: int | None = None
    """Number of samples, drawn at random [default: all, or 20,000 rendered images]."""
    auxiliary: str | None = None
    """Auxiliary input of an iVAE: `factors`, or an .npy file with a label or a row of numbers per sample."""

    def open(self, data: str) -> tuple[Dataset, Tensor | None]:
        """The data set, and the auxiliary input if there is one."""
        from vaescope.data.catalogue import load_auxiliary, open_dataset

        opened = open_dataset(data, array=self.array, factors=self.factors, rows=self.rows)
        return opened, load_auxiliary(self.auxiliary, opened, self.rows)

    def open_for_training(self, data: str) -> tuple[Dataset | StoredDataset, Tensor | None]:
        """Like `open`; without an auxiliary input, images of bytes stay bytes and large files stay on disk."""
        if self.auxiliary is not None:
            return self.open(data)
        from vaescope.data.catalogue import open_for_training

        return open_for_training(data, array=self.array, factors=self.factors, rows=self.rows), None


def load_models(target: str) -> list[LatentModel]:
    """The members of a run, best first; or the models that a Python object names.

    The object is a model from `vs.adapters`, a list of models, a `Fit`, or a function without arguments that returns
    one of these. Its code is executed: it is the caller's own, as with any script.
    """
    from vaescope.adapters.run import members_of

    if Path(target).exists():
        if target.endswith(".py"):
            raise InputError(f"{target} is a Python file: name the model in it, {target}:NAME.")
        return list(members_of(target))
    location, colon, name = target.rpartition(":")
    if not colon or not location or not name.isidentifier():
        raise InputError(f"{target} does not exist; give a run folder, FILE.py:NAME or package.module:NAME.")
    return _models(_object(_module(location), name, target), target)


def _models(found: object, target: str) -> list[LatentModel]:
    from vaescope.fitting import Fit
    from vaescope.protocol import LatentModel

    candidates = found.members if isinstance(found, Fit) else found if isinstance(found, list | tuple) else [found]
    models = [model for model in candidates if isinstance(model, LatentModel)]
    if not models or len(models) < len(candidates):
        raise InputError(
            f"{target} must be a model from vs.adapters, a list of models, or a function that returns them."
        )
    return models


def target_name(target: str) -> str:
    """The name of a target in a report."""
    return target.rpartition(":")[2] if not Path(target).exists() else Path(target).resolve().stem


def _module(location: str) -> ModuleType:
    try:
        if not location.endswith(".py"):
            return importlib.import_module(location)
        file = Path(location)
        if not file.is_file():
            raise InputError(f"{location} does not exist.")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        if spec is None or spec.loader is None:
            raise InputError(f"{location} cannot be imported.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module
        sys.path.insert(0, str(file.resolve().parent))  # so that it can import the files next to it, as a script can
        spec.loader.exec_module(module)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{location} cannot be imported: {type(error).__name__}: {_first_line(error)}") from None
    return module


def _object(module: ModuleType, name: str, target: str) -> object:
    """The object of that name; a function is called."""
    from vaescope.protocol import LatentModel

    if name not in vars(module):
        models = [key for key, value in vars(module).items() if isinstance(value, LatentModel)]
        defined = f"; it defines the models {', '.join(models)}" if models else ""
        raise InputError(f"{target}: {module.__name__} does not define {name}{defined}.")
    found: object = vars(module)[name]
    if not callable(found) or isinstance(found, LatentModel):
        return found
    try:
        result: object = found()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{target} failed: {type(error).__name__}: {_first_line(error)}") from None
    return result


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def check_auxiliary(models: list[LatentModel], auxiliary: Tensor | None) -> None:
    """An iVAE needs an auxiliary input, a plain VAE takes none."""
    if models[0].auxiliary_dim and auxiliary is None:
        raise InputError("this is an iVAE: give --auxiliary (factors, or an .npy file with a row per sample).")
    if not models[0].auxiliary_dim and auxiliary is not None:
        raise InputError("this model takes no auxiliary input; remove --auxiliary.")
