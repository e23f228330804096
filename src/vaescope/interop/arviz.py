"""Posteriors as an `xarray.DataTree` in the schema of ArviZ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vaescope import validation
from vaescope.checks import whole_number
from vaescope.extras import require
from vaescope.interop.posteriors import posteriors_of

if TYPE_CHECKING:
    from vaescope.diagnosis import Diagnosis


def to_datatree(
    model: object,
    x: object | None = None,
    *,
    auxiliary: object | None = None,
    draws: int = 100,
    seed: int = 0,
    diagnosis: Diagnosis | None = None,
) -> Any:
    """Draws from every q(z|x), with the samples and the findings, for ArviZ.

    Groups: `posterior` with z (chain, draw, sample, latent), in one chain; `constant_data` with the mean and variance
    of every posterior; `observed_data` with x; the findings are attributes of the root.

    Args:
        model: as for `vs.diagnose`; of several models the first.
        x: samples; not needed for posteriors alone.
        auxiliary: the auxiliary input of an iVAE.
        draws: from every posterior.
        seed: of the draws.
        diagnosis: of this model, whose findings are added.

    >>> from vaescope.adapters import from_arrays
    >>> tree = to_datatree(from_arrays(np.zeros((5, 2)), np.ones((5, 2))), draws=10)
    >>> tree["posterior"]["z"].shape
    (1, 10, 5, 2)
    """
    xarray = require("xarray", "to_datatree")
    found = posteriors_of(model, x, auxiliary)
    noise = np.random.default_rng(seed).normal(size=(whole_number("draws", draws), *found.mean.shape))
    axes, latents = ("sample", "latent"), {"latent": found.latents}
    groups = {
        "posterior": {"z": (("chain", "draw", *axes), (found.mean + np.sqrt(found.variance) * noise)[None])},
        "constant_data": {"mean": (axes, found.mean), "variance": (axes, found.variance)},
    }
    data = {name: xarray.Dataset(values, coords=latents) for name, values in groups.items()}
    if x is not None:
        rows = validation.array(x, "x").reshape(len(found.mean), -1)
        data["observed_data"] = xarray.Dataset({"x": (("sample", "column"), rows)})
    tree = xarray.DataTree.from_dict(data, name=found.model.name)
    tree.attrs = {"inference_library": "vaescope"}
    if diagnosis is not None:
        tree.attrs["findings"] = [f"{f.severity}: {f.code}: {f.title}" for f in diagnosis.findings]
    return tree
