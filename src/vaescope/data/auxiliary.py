"""The auxiliary u of an iVAE, from the data's own factors or from a file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from vaescope.data.files.arrays import mapped
from vaescope.data.files.dataset import Dataset
from vaescope.errors import InputError


def auxiliary_of(auxiliary: str | None, data: Dataset, rows: int | None) -> Tensor | None:
    """u: `factors` of the data, brought near one, or an .npy file's rows."""
    if auxiliary is None:
        return None
    if auxiliary == "factors":
        if data.factors is None:
            raise InputError(f"{data.name} has no factors to take as u; name an .npy file with a row per sample.")
        spread = data.factors.std(0)
        return (data.factors - data.factors.mean(0)) / spread.where(spread > 0, spread.new_ones(()))
    if rows is not None:
        raise InputError(
            "--rows takes samples at random, and the rows of a file of u would not follow; use one of both."
        )
    return torch.from_numpy(mapped(Path(auxiliary)).copy())
