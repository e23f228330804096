"""Options that choose samples: which array of a file, which factors, how many rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from vaescope.data import Dataset
    from vaescope.data.files.streaming import StoredDataset


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
        from vaescope.data.auxiliary import load_auxiliary
        from vaescope.data.catalogue import open_dataset

        opened = open_dataset(data, array=self.array, factors=self.factors, rows=self.rows)
        return opened, load_auxiliary(self.auxiliary, opened, self.rows)

    def open_for_training(self, data: str) -> tuple[Dataset | StoredDataset, Tensor | None]:
        """Like `open`; without an auxiliary input, images of bytes stay bytes and large files stay on disk."""
        if self.auxiliary is not None:
            return self.open(data)
        from vaescope.data.catalogue import open_for_training

        return open_for_training(data, array=self.array, factors=self.factors, rows=self.rows), None
