"""PyTorch files with a tensor or a dictionary of tensors; anything else in them is rejected without running it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch

from vaescope import validation
from vaescope.data.files.stored_array import StoredArray, file_reader, stored_array
from vaescope.errors import InputError


@file_reader("tensors without running code")
def torch_arrays(path: Path) -> dict[str, np.ndarray]:
    """The tensors in a file by name, memory-mapped if the format allows it."""
    try:
        content = _load(path, mmap=True)
    except RuntimeError as error:
        if "mmap can only be used" not in str(error):
            raise
        content = _load(path, mmap=False)  # the format of PyTorch before 1.6
    tensors = {"tensor": content} if isinstance(content, torch.Tensor) else content
    if not isinstance(tensors, dict) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise InputError(f"{path.name} must hold a tensor or a dictionary of tensors, got {type(content).__name__}.")
    return {str(name): validation.array(value, f"{name} in {path.name}") for name, value in tensors.items()}


def _load(path: Path, *, mmap: bool) -> object:
    with warnings.catch_warnings():  # torch warns about files that it then rejects
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)


def open_torch(path: Path, name: str) -> StoredArray:
    """One tensor of a file."""
    arrays = torch_arrays(path)
    if name not in arrays:
        raise InputError(f"{path.name} has no tensor {name!r}; it has {', '.join(arrays) or 'none'}.")
    return stored_array(path, name, arrays[name])
