"""scvi-tools: counts in, a Gaussian posterior, and the share of every gene out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vaescope.adapters.adapted import Adapted
from vaescope.errors import InputError


def from_scvi(model: Any, *, batch: int = 0, name: str = "scvi model") -> Adapted:
    """A trained `SCVI` (or kin): x are rows of raw counts, as the model was set up with; all of one batch.

    The decoder gives expected shares of expression, scaled to the median library of the model's own data, so that
    outputs do not differ by sequencing depth. Its likelihood of counts serves for the gap.
    """
    module = getattr(model, "module", None)
    if module is None or not hasattr(module, "inference") or not hasattr(module, "generative"):
        raise InputError(f"from_scvi needs an scvi-tools model with a module, got {type(model).__name__}.")
    _refuse_covariates(model)
    if not 0 <= batch < max(1, int(getattr(module, "n_batch", 1))):
        raise InputError(f"this scvi model has batches 0 to {max(1, int(module.n_batch)) - 1}, got {batch}.")
    depth = _median_library(model)
    transform = getattr(getattr(module, "z_encoder", None), "z_transformation", None) or (lambda z: z)

    def batches(count: int) -> Tensor:
        return torch.full((count, 1), batch, dtype=torch.long)

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        found = module.inference(x=x.float(), batch_index=batches(len(x)))
        posterior = found["qz"]
        return posterior.loc, posterior.scale.square()

    def decode(z: Tensor) -> Tensor:
        library = torch.full((len(z), 1), depth).log()
        found = module.generative(z=transform(z.float()), library=library, batch_index=batches(len(z)))
        return (depth * found["px"].scale).to(z)

    def log_likelihood(x: Tensor, z: Tensor) -> Tensor:
        library = x.float().sum(1, keepdim=True).clamp(min=1).log()
        found = module.generative(z=transform(z.float()), library=library, batch_index=batches(len(z)))
        counts: Tensor = found["px"].log_prob(x.float()).sum(1)
        return counts.to(z)

    return Adapted(int(module.n_latent), encode, decode, name=name, log_likelihood=log_likelihood, networks=(module,))


def _refuse_covariates(model: Any) -> None:
    """They are part of what encoder and decoder are given, and rows of counts do not hold them."""
    registered = getattr(getattr(model, "adata_manager", None), "data_registry", {})
    if any("covs" in str(key) for key in registered):
        raise InputError(
            "this scvi model has covariates beside the counts; give its functions to vs.adapters.from_callables."
        )


def _median_library(model: Any) -> float:
    """Counts per cell, the median over the model's own data."""
    try:
        x = model.adata_manager.get_from_registry("X")
        return float(torch.as_tensor(x.sum(1)).double().median())
    except (AttributeError, KeyError, TypeError):
        return 1e4
