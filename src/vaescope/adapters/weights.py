"""A model from a module's class and its weights in a file, which is not unpickled."""

from __future__ import annotations

import inspect
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vaescope.adapters.base import SCALES, Adapted, Decoder, from_callables
from vaescope.core.errors import InputError, first_line
from vaescope.protocol import LatentModel


@dataclass(frozen=True)
class FileOptions:
    """What a file with a model does not say about it.

    Args:
        make: of weights, the class of the module, or a function without arguments that makes it.
        decoder: file of the decoder, if the model's file has the encoder alone.
        scale: what the encoder's second output is, one of `SCALES`.
        latent_dim, precision, likelihood: as for `from_callables`.
    """

    make: Callable[..., object] | None = None
    decoder: str | None = None
    scale: str = "log_variance"
    latent_dim: int | None = None
    precision: float | None = None
    likelihood: str | None = None


def from_weights(path: Path, options: FileOptions, shape: tuple[int, ...]) -> LatentModel:
    """The module of `options.make` with these weights, and a model around it.

    Args:
        path: weights of PyTorch or safetensors, or a checkpoint of Lightning.
        options: what the file does not say.
        shape: of one sample.
    """
    if options.make is None:
        raise InputError(f"{path} has weights alone: pass --class FILE.py:Module or --class package.module:Module.")
    weights, settings = _read_weights(path)
    module = _made(options.make, settings)
    try:
        module.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise InputError(f"{path} does not fit {type(module).__name__}: {' '.join(str(error).split())[:300]}") from None
    if isinstance(module, LatentModel):
        return module
    encoder, decoder = (
        next((p for p in (getattr(module, name, None) for name in names) if callable(p)), None)
        for names in (("encode", "encoder"), ("decode", "decoder"))
    )
    if encoder is None:
        raise InputError(
            f"{type(module).__name__} has neither encode nor encoder; pass --class FILE.py:make, a function that "
            "returns a vs.LatentModel."
        )
    return around(encoder, decoder, options, shape, (module,))


def _read_weights(path: Path) -> tuple[Mapping[str, Tensor], Mapping[str, object]]:
    """Weights, and the arguments that Lightning saved with them."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path), {}
    if zipfile.is_zipfile(path) and any("/code/" in name for name in zipfile.ZipFile(path).namelist()):
        raise InputError(f"{path} is a TorchScript program: pass FILE.py:vae with torch.jit.load in that file.")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(
            f"{path} has more than weights, and nothing is unpickled; where you trust it, write its weights alone: "
            f"torch.save(torch.load({str(path)!r}, weights_only=False)['state_dict'], 'weights.pt')."
        ) from None
    except Exception as error:  # a damaged file raises anything
        raise InputError(f"{path} cannot be read: {type(error).__name__}: {first_line(error)}") from None
    settings = found.get("hyper_parameters") if isinstance(found, Mapping) else None
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not found or not all(isinstance(v, Tensor) for v in found.values()):
        raise InputError(f"{path} has no weights by name; save them with torch.save(model.state_dict(), 'weights.pt').")
    for prefix in ("module.", "_orig_mod."):  # of data-parallel and compiled modules
        if all(name.startswith(prefix) for name in found):
            found = {name.removeprefix(prefix): value for name, value in found.items()}
    return found, settings if isinstance(settings, Mapping) else {}


def _made(make: Callable[..., object], settings: Mapping[str, object]) -> nn.Module:
    """A module of the class, with the arguments that were saved with its weights."""
    name = getattr(make, "__name__", str(make))
    parameters = inspect.signature(make).parameters.values()
    free = any(p.kind is p.VAR_KEYWORD for p in parameters)
    given = {key: value for key, value in settings.items() if free or key in {p.name for p in parameters}}
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if lacking := [p.name for p in parameters if p.default is p.empty and p.kind not in kinds and p.name not in given]:
        raise InputError(
            f"{name} needs {', '.join(lacking)}, which its weights do not say; pass --class FILE.py:make, a function "
            f"without arguments that returns {name}(...)."
        )
    try:
        module = make(**given)
    except Exception as error:  # the user's own class raises anything
        raise InputError(f"{name} cannot be made: {type(error).__name__}: {first_line(error)}") from None
    if not isinstance(module, nn.Module):
        raise InputError(
            f"--class must name a torch module or a function that returns one, got {type(module).__name__}."
        )
    return module.eval()


def around(
    encoder: Callable[..., object],
    decoder: Decoder | None,
    options: FileOptions,
    shape: tuple[int, ...],
    networks: tuple[nn.Module, ...],
) -> Adapted:
    """A model from an encoder that returns means and scales, or both halves of one array."""

    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        found = encoder(x)
        parts = found.chunk(2, 1) if isinstance(found, Tensor) else found
        if not isinstance(parts, tuple | list) or len(parts) < 2 or not all(isinstance(v, Tensor) for v in parts[:2]):
            raise InputError(
                f"the encoder must return means and scales, got {type(found).__name__}; pass --class "
                "FILE.py:make, a function that returns a vs.LatentModel."
            )
        return parts[0], SCALES[options.scale](parts[1])

    return from_callables(
        encode=moments,
        decode=decoder,
        latent_dim=options.latent_dim or _latents(moments, shape, networks),
        precision=options.precision,
        likelihood=options.likelihood,
        networks=networks or None,
        image_shape=shape if len(shape) == 3 else None,
    )


def _latents(
    moments: Callable[[Tensor], tuple[Tensor, Tensor]], shape: tuple[int, ...], networks: tuple[nn.Module, ...]
) -> int:
    """The number of latents, from the codes of an empty sample, as it is or as a row."""
    failure = ""
    for form in dict.fromkeys([shape, (int(torch.Size(shape).numel()),)]):
        try:
            with torch.no_grad():
                return moments(torch.zeros(2, *form))[0][0].numel()
        except InputError:
            raise
        except Exception as error:  # the user's own module raises anything
            failure = failure or f"{type(error).__name__}: {first_line(error)}"
    raise InputError(f"samples of {shape} cannot be encoded: {failure}")
