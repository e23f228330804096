"""What users pass to `diagnose`, as arrays in the layout that the model takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vaescope.analysis.encoding import Samples, check_samples
from vaescope.analysis.models import in_layout_of
from vaescope.core.containers import unwrap
from vaescope.data.catalogue import dataset_from
from vaescope.data.dataset import Dataset
from vaescope.protocol import LatentModel


@dataclass(frozen=True, eq=False)
class Given:
    """Samples as the model takes them."""

    x: Samples
    auxiliary: Samples | None
    image_shape: tuple[int, int, int] | None
    """(channels, height, width) if samples are images."""

    def __len__(self) -> int:
        return len(self.x)


def as_arrays(x: object, name: str = "x") -> object:
    """x with containers unwrapped and files read; None stays None."""
    if isinstance(x, str | Path):
        x = dataset_from(x)
    if isinstance(x, Dataset):
        rows = x.head(len(x))
        return rows if x.image_shape is None else rows.reshape(len(rows), *x.image_shape)
    return None if x is None else unwrap(x, name)


def read_given(model: LatentModel, x: object | None, auxiliary: object | None = None) -> Given:
    """Samples and the auxiliary input for one model.

    Args:
        model: the model to diagnose.
        x: samples in anything that holds them; None for posteriors alone.
        auxiliary: labels or rows of numbers, one per sample.
    """
    x, auxiliary = model.read_samples(x, auxiliary)
    samples, labels = check_samples(as_arrays(x), as_arrays(auxiliary, "auxiliary"))
    found = in_layout_of(model, samples, labels)
    return Given(found.x, labels, found.image_shape)
