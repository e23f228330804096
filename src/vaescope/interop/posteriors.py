"""Posteriors of all samples, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from vaescope.adapters.arrays import Arrays
from vaescope.adapters.models import as_models
from vaescope.adapters.repaired import with_normal_prior
from vaescope.encoded import encode_chunks
from vaescope.errors import InputError
from vaescope.protocol import LatentModel


@dataclass(frozen=True, eq=False)
class Posteriors:
    """Mean and variance of q(z|x) of every sample."""

    model: LatentModel
    mean: Float[np.ndarray, "N d"]
    variance: Float[np.ndarray, "N d"]

    @property
    def latents(self) -> list[str]:
        return [f"z{k}" for k in range(self.mean.shape[1])]


def posteriors_of(model: object, x: object | None, auxiliary: object | None = None) -> Posteriors:
    """Encode all of x; of several models the first.

    Args:
        model: as for `vs.diagnose`.
        x: samples; not needed for posteriors alone.
        auxiliary: the auxiliary input of an iVAE.
    """
    first = as_models(model)[0]
    if isinstance(first, Arrays):
        return Posteriors(first, np.asarray(first.mean), np.asarray(first.variance))
    if x is None:
        raise InputError("samples x are required, unless the model is posteriors alone.")
    chunks = list(encode_chunks(with_normal_prior(first), x, auxiliary))
    mean = np.concatenate([chunk.mean.cpu().numpy() for chunk in chunks])
    return Posteriors(first, mean, np.concatenate([chunk.variance.cpu().numpy() for chunk in chunks]))
