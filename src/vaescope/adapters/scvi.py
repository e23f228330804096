"""scvi-tools: counts in, a Gaussian posterior, expression shares out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vaescope.adapters.adapted import Adapted
from vaescope.errors import InputError


def from_scvi(model: Any, *, batch: int | str | None = None, name: str = "scvi model") -> Adapted:
    """A model from a trained `SCVI` or similar; x are rows of raw counts, as in the model's own data.

    The decoder returns expected shares of expression, scaled to the median library size of the model's data, so that
    outputs do not depend on sequencing depth. Its likelihood of counts is used for the gap. Simulated cells have the
    library sizes of the model's data; the likelihood is conditional on the observed library size, as in scvi-tools.

    Args:
        model: a trained scvi-tools model without covariates.
        batch: index or name of the batch that all samples come from; needed if the model has several.
        name: what reports call the model.
    """
    module = getattr(model, "module", None)
    if module is None or not hasattr(module, "inference") or not hasattr(module, "generative"):
        raise InputError(f"from_scvi needs an scvi-tools model, got {type(model).__name__}.")
    _refuse_covariates(model)
    index = _batch_index(model, batch)
    libraries = _library_sizes(model)
    depth = float(libraries.median())
    transform = getattr(getattr(module, "z_encoder", None), "z_transformation", None) or (lambda z: z)

    def batches(count: int) -> Tensor:
        return torch.full((count, 1), index, dtype=torch.long)

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

    def sample_observations(z: Tensor, generator: torch.Generator) -> Tensor:
        library = libraries[torch.randint(len(libraries), (len(z), 1), generator=generator)].log()
        found = module.generative(z=transform(z.float()), library=library, batch_index=batches(len(z)))
        with torch.random.fork_rng(devices=[]):  # its distributions draw from the global generator
            torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
            counts: Tensor = found["px"].sample()
        return counts

    return Adapted(
        int(module.n_latent),
        encode,
        decode,
        name=name,
        log_likelihood=log_likelihood,
        sample_observations=sample_observations,
        networks=(module,),
    )


def _batch_index(model: Any, batch: int | str | None) -> int:
    """The index of the batch that all samples come from."""
    count = max(1, int(getattr(model.module, "n_batch", 1)))
    names = _batch_names(model) or [str(k) for k in range(count)]
    if batch is None and count > 1:
        raise InputError(
            f"this scvi model has {count} batches ({', '.join(names[:5])}{', …' * (count > 5)}); pass the cells of one "
            f"batch as x, and write from_scvi(model, batch={names[0]!r})."
        )
    if isinstance(batch, str) and batch in names:
        return names.index(batch)
    found = 0 if batch is None else batch
    if isinstance(found, str) or not 0 <= found < count:
        raise InputError(f"this scvi model has batches 0 to {count - 1} ({', '.join(names[:5])}), got {batch!r}.")
    return found


def _batch_names(model: Any) -> list[str]:
    try:
        mapping = model.adata_manager.get_state_registry("batch").categorical_mapping
    except (AttributeError, KeyError, TypeError):
        return []
    return [str(name) for name in mapping]


def _refuse_covariates(model: Any) -> None:
    """Encoder and decoder take covariates as inputs, and rows of counts do not contain them."""
    registered = getattr(getattr(model, "adata_manager", None), "data_registry", {})
    if any("covs" in str(key) for key in registered):
        raise InputError(
            "this scvi model has covariates in addition to counts; pass its functions to vs.adapters.from_callables."
        )


def _library_sizes(model: Any) -> Tensor:
    """Counts per cell of the model's data."""
    try:
        x = model.adata_manager.get_from_registry("X")
        return torch.as_tensor(x.sum(1)).float().flatten().clamp(min=1)
    except (AttributeError, KeyError, TypeError):
        return torch.tensor([1e4])
