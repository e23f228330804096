"""Options that choose samples: which array of a file, which factors, how many rows."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import tyro

from vaescope.core.errors import InputError, first_line

if TYPE_CHECKING:
    from torch import Tensor

    from vaescope.data import Dataset
    from vaescope.data.files.streaming import StoredDataset
    from vaescope.products.preflight.data import Source
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
        print_what_was_read(opened)
        return opened, load_auxiliary(self.auxiliary, opened, self.rows)

    def open_for_training(self, data: str) -> tuple[Dataset | StoredDataset, Tensor | None]:
        """Like `open`; without an auxiliary input, images of bytes stay bytes and large files stay on disk."""
        if self.auxiliary is not None:
            return self.open(data)
        from vaescope.data.catalogue import open_for_training

        opened = open_for_training(data, array=self.array, factors=self.factors, rows=self.rows)
        print_what_was_read(opened)
        return opened, None


def print_what_was_read(data: Dataset | StoredDataset | Source) -> None:
    """One line on data from a file: rows, columns, what was left out and why. Worker processes say nothing."""
    if data.what_was_read and multiprocessing.parent_process() is None:
        print(data.what_was_read, file=sys.stderr)


@dataclass(frozen=True)
class ModelOptions:
    """What a file with a model of another framework does not say about it."""

    module: Annotated[str | None, tyro.conf.arg(name="class")] = None
    """Of weights (.ckpt, .pt, .safetensors): the module's class, or a function that makes it, FILE.py:NAME."""
    decoder: str | None = None
    """File of the decoder, if the target is an encoder alone (.keras, .onnx)."""
    latent_dim: int | None = None
    """Number of latents [default: what the encoder returns]."""
    precision: float | None = None
    """γ² = 1 / decoder variance of a Gaussian likelihood."""
    likelihood: str | None = None
    """gaussian or bernoulli."""
    scale: str = "log_variance"
    """What the encoder's second output is: log_variance, variance, deviation or log_deviation."""

    def load(self, target: str, shape: tuple[int, ...]) -> LatentModel:
        """The model in a file of another framework."""
        from vaescope.adapters.files import FileOptions, from_file

        make = None if self.module is None else load_object(self.module)
        if make is not None and not callable(make):
            raise InputError(f"--class {self.module} must be a class or a function, got {type(make).__name__}.")
        options = FileOptions(make, self.decoder, self.scale, self.latent_dim, self.precision, self.likelihood)
        return from_file(Path(target), options, shape)


def load_models(
    target: str, options: ModelOptions | None = None, data: Callable[[], Dataset] | None = None
) -> list[LatentModel]:
    """The members of a run, best first; the models that a Python object names; or a model in another framework's file.

    The object is a model from `vs.adapters`, a list of models, a `Fit`, or a function without arguments that returns
    one of these. Its code is executed: it is the caller's own, as with any script.
    """
    from vaescope.adapters.files import is_model_file
    from vaescope.adapters.run import members_of

    options = options or ModelOptions()
    if data is not None and Path(target).exists() and is_model_file(Path(target)):
        opened = data()
        return [options.load(target, opened.image_shape or tuple(opened.head(1).shape[1:]))]
    if options != ModelOptions():
        given = next(name for name, value in vars(options).items() if value != vars(ModelOptions())[name])
        option = "class" if given == "module" else given.replace("_", "-")
        raise InputError(f"--{option} is for models in files (.ckpt, .pt, .safetensors, .keras, .onnx), not {target}.")
    if Path(target).exists():
        if target.endswith(".py"):
            raise InputError(f"{target} is a Python file: name the model in it, {target}:NAME.")
        return list(members_of(target))
    location, name = _split_target(target, "give a run folder, FILE.py:NAME or package.module:NAME")
    with _importable(location):
        return _models(_called(_object(_module(location), name, target), target), target)


def load_function(target: str) -> object:
    """A function, class instance or module that FILE.py:NAME or package.module:NAME names, as it is."""
    found = load_object(target)
    return _called(found, target) if isinstance(found, type) else found


def load_object(target: str) -> object:
    """What FILE.py:NAME or package.module:NAME names. Importing the file executes its code: it is the caller's own."""
    if target.endswith(".py") and Path(target).exists():
        defined = _names_in(Path(target))
        it_has = f"; it defines {', '.join(defined)}" if defined else ""
        raise InputError(f"{target} is a Python file: name the function in it, {target}:NAME{it_has}.")
    if ":" not in target and "." in target and not target.endswith(".py"):
        target = ":".join(target.rsplit(".", 1))  # package.module.Class
    location, name = _split_target(target, "give a function, FILE.py:NAME or package.module:NAME")
    with _importable(location):
        return _object(_module(location), name, target)


def _names_in(file: Path) -> list[str]:
    """Functions and classes that a file defines, without executing it."""
    with contextlib.suppress(SyntaxError, ValueError, OSError):
        kinds = ast.FunctionDef | ast.ClassDef
        return [node.name for node in ast.parse(file.read_bytes()).body if isinstance(node, kinds)][:10]
    return []


def _split_target(target: str, advice: str) -> tuple[str, str]:
    location, colon, name = target.rpartition(":")
    if not colon or not location or not name.isidentifier():
        raise InputError(f"{target} does not exist; {advice}.")
    return location, name


@contextlib.contextmanager
def _importable(location: str) -> Iterator[None]:
    """A file can import those next to it, as a script can; what is imported later comes from packages first."""
    if not location.endswith(".py"):
        yield
        return
    folder = str(Path(location).resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        sys.path.append(folder)


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
        spec = importlib.util.spec_from_file_location(_module_name(file), file)
        if spec is None or spec.loader is None:
            raise InputError(f"{location} cannot be imported.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        with _script_arguments(location):
            spec.loader.exec_module(module)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # a file that ends the program would look like a command that succeeded
        raise InputError(f"{location} cannot be imported: {type(error).__name__}: {first_line(error)}") from None
    return module


@contextlib.contextmanager
def _script_arguments(location: str) -> Iterator[None]:
    """A script that reads its command line while it is imported finds none."""
    before, sys.argv = sys.argv, [location]
    try:
        yield
    finally:
        sys.argv = before


def _module_name(file: Path) -> str:
    """The name of a file as a module: another one than that of any installed module, which it would replace."""
    name, own = file.stem, file.resolve()
    loaded = sys.modules.get(name)
    if loaded is not None:
        taken = Path(getattr(loaded, "__file__", None) or "").resolve() != own
    else:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        taken = name in sys.stdlib_module_names or (spec is not None and Path(spec.origin or "").resolve() != own)
    return f"{name}_{hashlib.sha256(str(own).encode()).hexdigest()[:8]}" if taken else name


def _object(module: ModuleType, name: str, target: str) -> object:
    """The object of that name."""
    from vaescope.protocol import LatentModel

    if name not in vars(module):
        models = [key for key, value in vars(module).items() if isinstance(value, LatentModel)]
        target_file = Path(module.__file__ or "").stem or module.__name__
        defined = f"; it defines the models {', '.join(models)}" if models else ""
        raise InputError(f"{target}: {target_file} does not define {name}{defined}.")
    found: object = vars(module)[name]
    return found


def _called(found: object, target: str) -> object:
    """What a function without arguments returns; a model as it is."""
    from vaescope.protocol import LatentModel

    if not callable(found) or isinstance(found, LatentModel):
        return found
    try:
        result: object = found()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{target} failed: {type(error).__name__}: {first_line(error)}") from None
    return result


def check_auxiliary(models: list[LatentModel], auxiliary: Tensor | None) -> None:
    """An iVAE needs an auxiliary input, a plain VAE takes none."""
    if models[0].auxiliary_dim and auxiliary is None:
        raise InputError("this is an iVAE: give --auxiliary (factors, or an .npy file with a row per sample).")
    if not models[0].auxiliary_dim and auxiliary is not None:
        raise InputError("this model takes no auxiliary input; remove --auxiliary.")
