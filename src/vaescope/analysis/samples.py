"""What users pass to `diagnose`, as arrays in the layout that the model takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vaescope.adapters.arrays import Arrays
from vaescope.adapters.base import Adapted
from vaescope.analysis.encoding import Samples, check_samples
from vaescope.analysis.models import in_layout_of
from vaescope.core.containers import unwrap
from vaescope.core.errors import InputError
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
    if isinstance(model, Adapted) and model.reader is not None and x is not None:
        x, auxiliary = model.reader(x, auxiliary)
    samples, labels = check_samples(_own_samples(model, as_arrays(x)), as_arrays(auxiliary, "auxiliary"))
    if isinstance(model, Arrays):
        return Given(samples, labels, None)
    found = in_layout_of(model, samples, labels)
    return Given(found.x, labels, found.image_shape)


def _own_samples(model: LatentModel, x: object | None) -> object:
    """x, or the samples of a model that has posteriors alone."""
    if isinstance(model, Arrays):
        if x is not None and len(check_samples(x)[0]) != len(model.mean):
            raise InputError(f"x must be the {len(model.mean)} samples that these posteriors belong to; omit it.")
        return model.samples
    if x is None:
        raise InputError("diagnose needs samples x, unless the model is posteriors alone.")
    return x
