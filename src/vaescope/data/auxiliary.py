"""The auxiliary input of an identifiable VAE, from the factors of a data set or from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vaescope import validation
from vaescope.data.dataset import Dataset
from vaescope.data.files.numpy_files import open_memmap
from vaescope.errors import InputError


def load_auxiliary(source: str | None, data: Dataset, rows: int | None) -> Tensor | None:
    """The auxiliary input of every sample; None if there is no source.

    Args:
        source: `factors` for the standardised factors of the data, or the path of an .npy file with a label or a row
            per sample.
        data: the samples.
        rows: how many samples were selected at random; a file has no matching selection.
    """
    if source is None:
        return None
    if source == "factors":
        return _standardised_factors(data)
    if rows is not None:
        raise InputError("--rows selects samples at random, which an auxiliary file cannot follow; specify only one.")
    found = validation.array(open_memmap(Path(source)), source)
    return torch.from_numpy(np.array(found, dtype=found.dtype.newbyteorder("=")))


def _standardised_factors(data: Dataset) -> Tensor:
    if data.factors is None:
        raise InputError(f"{data.name} has no factors; specify an .npy file with a row per sample as auxiliary input.")
    sd = data.factors.std(0)
    return (data.factors - data.factors.mean(0)) / sd.where(sd > 0, sd.new_ones(()))
