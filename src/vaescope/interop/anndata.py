"""Posteriors and findings in an AnnData object, where scanpy and scvi-tools look for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from vaescope import __version__, theory
from vaescope.errors import InputError
from vaescope.extras import require
from vaescope.interop.posteriors import Posteriors, posteriors_of

if TYPE_CHECKING:
    import numpy as np

    from vaescope.diagnosis import Diagnosis

JACOBIAN_SAMPLES = 256


def add_to_anndata(
    data: Any,
    model: object,
    x: object | None = None,
    *,
    auxiliary: object | None = None,
    diagnosis: Diagnosis | None = None,
    key: str = "vae",
) -> None:
    """Add posteriors, the decoder's mean Jacobian and the findings to an AnnData object.

    Writes `obsm["X_vae"]` (means), `obsm["X_vae_variance"]`, `varm["vae_jacobian"]` (how much each variable changes per
    unit of each latent, a mean over samples; only if the decoder has an output per variable), and `uns["vaescope"]`
    (the diagnosis as JSON text).

    Args:
        data: an `anndata.AnnData` with a row per sample.
        model: as for `vs.diagnose`.
        x: samples as the model takes them; not needed for posteriors alone.
        auxiliary: the auxiliary input of an iVAE.
        diagnosis: of this model.
        key: used in the names.
    """
    anndata = require("anndata", "add_to_anndata")
    if not isinstance(data, anndata.AnnData):
        raise InputError(f"data must be an AnnData object, got {type(data).__name__}.")
    found = posteriors_of(model, x, auxiliary)
    if len(found.mean) != data.n_obs:
        raise InputError(
            f"data has {data.n_obs} rows, the posteriors have {len(found.mean)}; pass the samples of data."
        )
    data.obsm[f"X_{key}"], data.obsm[f"X_{key}_variance"] = found.mean, found.variance
    if found.model.has_decoder and (jacobian := _mean_jacobian(found)) is not None and len(jacobian) == data.n_vars:
        data.varm[f"{key}_jacobian"] = jacobian
    report = {} if diagnosis is None else {"diagnosis": json.dumps(diagnosis.to_data(), ensure_ascii=False)}
    data.uns["vaescope"] = {"version": __version__, "model": found.model.name, **report}


def _mean_jacobian(found: Posteriors) -> np.ndarray | None:
    """Mean over samples of ∂x/∂z, (n, d); None for a decoder that cannot be differentiated."""
    codes = torch.as_tensor(found.mean[:JACOBIAN_SAMPLES])
    try:
        return theory.jacobian(found.model.decode, codes).mean(0).detach().cpu().numpy()
    except (RuntimeError, NotImplementedError, InputError):
        return None
