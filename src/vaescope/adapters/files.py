"""Models in files of other frameworks, for the command line: nothing in such a file is unpickled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaescope.adapters.base import SCALES, Decoder
from vaescope.adapters.diffusers import from_diffusers
from vaescope.adapters.keras import from_keras
from vaescope.adapters.weights import FileOptions, around, from_weights
from vaescope.core import validation
from vaescope.core.errors import InputError, first_line, require
from vaescope.protocol import LatentModel

WEIGHTS = (".ckpt", ".pt", ".pth", ".bin", ".safetensors")
UNSAFE = {
    ".pt2": "torch.export.load unpickles parts of it: where you trust it, write a Python file with vae = "
    "vs.adapters.from_modules(torch.export.load('encoder.pt2').module(), torch.export.load('decoder.pt2').module(), "
    "latent_dim=...)",
    ".h5": "save the Keras model as model.keras, with model.save('model.keras')",
    ".pkl": "save the weights, torch.save(model.state_dict(), 'weights.pt')",
}


def is_model_file(path: Path) -> bool:
    """Whether it is a model in a file or folder of another framework."""
    return path.suffix in (*WEIGHTS, *UNSAFE, ".keras", ".onnx") or _folder_of(path) is not None


def _folder_of(path: Path) -> str | None:
    """Which library wrote a folder."""
    if (path / "model.pt").is_file() and not (path / "config.json").exists():
        return "scvi"
    try:
        found = json.loads((path / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return "diffusers" if isinstance(found, dict) and "_diffusers_version" in found else None


def from_file(path: Path, options: FileOptions, shape: tuple[int, ...]) -> LatentModel:
    """The model in a file.

    Args:
        path: weights of PyTorch or Lightning, a `.keras` or `.onnx` file, or a folder of diffusers.
        options: what the file does not say.
        shape: of one sample.
    """
    validation.choice("scale", options.scale, SCALES)
    if path.suffix in UNSAFE:
        raise InputError(f"{path} cannot be opened safely: {UNSAFE[path.suffix]}; pass FILE.py:vae.")
    if path.is_dir():
        return _from_folder(path, options, shape)
    if path.suffix == ".keras":
        os.environ.setdefault("KERAS_BACKEND", "torch")  # .keras files are for any backend, and this one is installed
        known = {"latent_dim": options.latent_dim, "precision": options.precision, "likelihood": options.likelihood}
        given = {name: value for name, value in known.items() if value is not None}
        return from_keras(str(path), options.decoder, scale=options.scale, **given)
    return _from_onnx(path, options, shape) if path.suffix == ".onnx" else from_weights(path, options, shape)


def _from_folder(path: Path, options: FileOptions, shape: tuple[int, ...]) -> LatentModel:
    if _folder_of(path) == "scvi":
        raise InputError(
            f"{path} is a model of scvi-tools, which saves a pickle: where you trust it, write a Python file with "
            f"vae = vs.adapters.from_scvi(scvi.model.SCVI.load({str(path)!r}, adata)), and pass FILE.py:vae."
        )
    diffusers = require("diffusers", "reading models of diffusers")
    name = str(json.loads((path / "config.json").read_text()).get("_class_name"))
    if not name.startswith("Autoencoder") or not hasattr(diffusers, name):
        raise InputError(f"{path} has a {name}; expected an autoencoder, such as the folder `vae` of a pipeline.")
    if list(path.glob("*.bin")) and not list(path.glob("*.safetensors")):
        raise InputError(f"{path} has pickled weights: where you trust them, write model.save_pretrained(...) again.")
    try:
        model = getattr(diffusers, name).from_pretrained(str(path), local_files_only=True, use_safetensors=True)
    except Exception as error:  # a damaged folder raises anything
        raise InputError(f"{path} cannot be loaded: {type(error).__name__}: {first_line(error)}") from None
    if len(shape) not in (2, 3, 4):
        raise InputError(f"{name} needs images or videos as data, got samples of {shape}.")
    channels, *sides = shape
    if len(sides) == 2:
        return from_diffusers(model, image_shape=(channels, sides[0], sides[1]))
    return from_diffusers(model, sample_shape=shape)


def _from_onnx(path: Path, options: FileOptions, shape: tuple[int, ...]) -> LatentModel:
    """Functions without gradients."""
    runtime = require("onnxruntime", "reading ONNX files")

    def opened(file: str) -> Decoder:
        if not Path(file).is_file() or not file.endswith(".onnx"):
            raise InputError(f"{file} is no .onnx file.")
        try:
            session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
        except Exception as error:  # a damaged file raises anything
            raise InputError(f"{file} cannot be read: {first_line(error)}") from None
        (taken,) = session.get_inputs()[:1]
        if isinstance(taken.shape[0], int):
            raise InputError(
                f"{file} takes {taken.shape[0]} samples at a time; export it with a batch of any size, "
                "dynamic_shapes=({0: torch.export.Dim('batch')},)."
            )
        sizes = [size if isinstance(size, int) else -1 for size in taken.shape[1:]]
        dtype = torch.float64 if "double" in taken.type else torch.float32

        def run(v: Tensor) -> Any:
            v = v.reshape(len(v), *sizes) if sizes.count(-1) <= 1 else v
            found = tuple(map(torch.from_numpy, session.run(None, {taken.name: v.to(dtype).numpy()})))
            return found if len(found) > 1 else found[0]

        return run

    decoder = None if options.decoder is None else opened(options.decoder)
    return around(opened(str(path)), decoder, options, shape, ())
