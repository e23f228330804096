"""Models of pythae and scvi-tools, neither of which is imported here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vaescope.adapters.base import Adapted
from vaescope.core.errors import InputError
from vaescope.protocol import ModelSpec

PYTHAE = {"VAE", "BetaVAE", "DisentangledBetaVAE", "FactorVAE", "BetaTCVAE", "INFOVAE_MMD", "IWAE", "MIWAE"}
"""pythae's models with a diagonal Gaussian posterior and the prior N(0, I)."""


def from_pythae(model: Any, *, name: str = "pythae model") -> Adapted:
    """A model from pythae with a Gaussian posterior and the prior N(0, I), such as `VAE` or `BetaVAE`.

    Args:
        model: a trained pythae model. Its reconstruction loss gives the likelihood: Gaussian with precision 1
            (`mse`) or Bernoulli (`bce`).
        name: what reports call the model.
    """
    if not all(hasattr(model, part) for part in ("encoder", "decoder", "latent_dim")):
        raise InputError(f"from_pythae needs a model with encoder, decoder and latent_dim, got {type(model).__name__}.")
    pythae_bases = (c.__name__ for c in type(model).__mro__ if c.__module__.startswith("pythae.models."))
    kind = next(pythae_bases, None)
    if kind is not None and kind not in PYTHAE:
        raise InputError(
            f"from_pythae supports {', '.join(sorted(PYTHAE))}; {kind} has another prior or posterior, so use "
            "from_callables."
        )
    config = getattr(model, "model_config", None)
    loss = getattr(config, "reconstruction_loss", None)
    shape = tuple(getattr(model, "input_dim", None) or ())

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        if shape and x[0].numel() != math.prod(shape):
            raise InputError(f"this model takes samples of shape {shape}, got {tuple(x.shape[1:])}.")
        found = model.encoder(x.reshape(len(x), *shape) if shape else x)
        if "log_covariance" not in found:
            raise InputError(f"{type(model).__name__} has no Gaussian posterior (no log_covariance in its encoder).")
        return found["embedding"], found["log_covariance"].exp()

    spec = ModelSpec(
        latent_dim=int(model.latent_dim),
        name=name,
        likelihood={"mse": "gaussian", "bce": "bernoulli"}.get(str(loss)),
        precision=1.0 if loss == "mse" else None,  # pythae's loss is half the summed squared error
        image_shape=(shape[0], shape[1], shape[2]) if len(shape) == 3 else None,
        beta=float(getattr(config, "beta", 1.0)) if kind == "BetaVAE" else 1.0,
        objective="elbo" if kind in (None, "VAE", "BetaVAE") else kind,
        returns_variances=True,
    )
    return Adapted(spec, encode, lambda z: model.decoder(z)["reconstruction"], (model,))


# scvi-tools: counts in, a Gaussian posterior, shares of expression out ---------------------------


def from_scvi(model: Any, *, batch: int | str | None = None, name: str = "scvi model") -> Adapted:
    """A model from a trained `SCVI` or similar; x is AnnData as the model was trained on, or rows of raw counts.

    Batches and covariates are read from AnnData by scvi-tools itself. The decoder returns expected shares of
    expression, scaled to the median library size of the model's data, so that outputs do not depend on sequencing
    depth. Its likelihood of counts, with the model's own library size, is used for the ELBO and the gap. Simulated
    cells have the library sizes of the model's data.

    Args:
        model: a trained scvi-tools model.
        batch: index or name of the batch that all samples come from, if x are counts of one batch.
        name: what reports call the model.
    """
    module = getattr(model, "module", None)
    if module is None or not hasattr(module, "inference") or not hasattr(module, "generative"):
        raise InputError(f"from_scvi needs an scvi-tools model, got {type(model).__name__}.")
    inputs = _Inputs.of(model, batch)
    libraries = _library_sizes(model)
    depth = float(libraries.median())
    transform = getattr(getattr(module, "z_encoder", None), "z_transformation", None) or (lambda z: z)

    def infer(x: Tensor, given: Tensor | None = None) -> dict[str, Any]:
        found: dict[str, Any] = module.inference(x=x.float(), **inputs.arguments(given, len(x)))
        return found

    def generate(z: Tensor, library: Tensor, given: Tensor | None = None) -> Any:
        return module.generative(z=transform(z.float()), library=library, **inputs.arguments(given, len(z)))["px"]

    def encode(x: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        posterior = infer(x, *given)["qz"]
        return posterior.loc, posterior.scale.square()

    def decode(z: Tensor, *given: Tensor) -> Tensor:
        library = torch.full((len(z), 1), depth).log()
        return (depth * generate(z, library, *given).scale).to(z)

    def log_likelihood(x: Tensor, z: Tensor, *given: Tensor) -> Tensor:
        found = infer(x, *given)
        library = found["library"] if found.get("ql") is None else found["ql"].loc  # observed, or inferred by the model
        counts: Tensor = generate(z, library, *given).log_prob(x.float()).sum(1)
        return counts.to(z)

    def sample_observations(z: Tensor, generator: torch.Generator, *given: Tensor) -> Tensor:
        library = libraries[torch.randint(len(libraries), (len(z), 1), generator=generator)].log()
        with torch.random.fork_rng(devices=[]):  # its distributions draw from the global generator
            torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
            counts: Tensor = generate(z, library, *given).sample()
        return counts

    conditional = bool(inputs.columns)
    spec = ModelSpec(
        latent_dim=int(module.n_latent),
        name=name,
        log_likelihood=log_likelihood,
        sample_observations=sample_observations,
        conditional=conditional,
        returns_variances=True,
    )
    return Adapted(spec, encode, decode, (module,), partial(_read, model, inputs), encodes_auxiliary=conditional)


@dataclass(frozen=True)
class _Inputs:
    """What a module takes besides counts: the columns of the auxiliary input, or one batch for all samples."""

    batch: int | None
    columns: tuple[tuple[str, int], ...]
    """Names of scvi's fields, and how many columns each has."""

    @classmethod
    def of(cls, model: Any, batch: int | str | None) -> _Inputs:
        registered = [str(key) for key in getattr(getattr(model, "adata_manager", None), "data_registry", {})]
        covariates = tuple(
            (key, int(np.asarray(model.adata_manager.get_from_registry(key)).shape[1]))
            for key in ("extra_continuous_covs", "extra_categorical_covs")
            if key in registered
        )
        if batch is not None and covariates:
            raise InputError("this scvi model has covariates: omit batch, and pass AnnData as x.")
        several = int(getattr(model.module, "n_batch", 1)) > 1
        if batch is not None or (not several and not covariates):
            return cls(_batch_index(model, batch), ())
        return cls(None, (("batch", 1), *covariates))

    def arguments(self, given: Tensor | None, count: int) -> dict[str, Tensor]:
        """Keyword arguments of `inference` and `generative`."""
        if self.batch is not None:
            return {"batch_index": torch.full((count, 1), self.batch, dtype=torch.long)}
        assert given is not None
        rows = given.reshape(count, -1)
        parts = dict(zip((key for key, _ in self.columns), rows.split([c for _, c in self.columns], 1), strict=True))
        found = {"batch_index": parts["batch"].long()}
        if "extra_continuous_covs" in parts:
            found["cont_covs"] = parts["extra_continuous_covs"].float()
        if "extra_categorical_covs" in parts:
            found["cat_covs"] = parts["extra_categorical_covs"].long()
        return found


def _read(model: Any, inputs: _Inputs, x: object, auxiliary: object | None) -> tuple[object, object | None]:
    """Counts, and batches and covariates if the model takes them, as scvi-tools reads them."""
    if not hasattr(x, "obs"):
        if inputs.columns and auxiliary is None:
            names = _batch_names(model)
            raise InputError(
                f"this scvi model has {max(1, len(names))} batches ({', '.join(names[:5])}) or covariates; pass "
                f"AnnData as x, or the cells of one batch and from_scvi(model, batch={(names or ['0'])[0]!r})."
            )
        return x, auxiliary
    batches = [*model._make_data_loader(adata=model._validate_anndata(x), batch_size=4096)]
    counts = torch.cat([batch["X"] for batch in batches])
    if not inputs.columns:
        return counts, auxiliary
    parts = [torch.cat([batch[key].double() for batch in batches]) for key, _ in inputs.columns]
    return counts, torch.cat([part.reshape(len(counts), -1) for part in parts], dim=1)


def _batch_index(model: Any, batch: int | str | None) -> int:
    """The index of the batch that all samples come from."""
    count = max(1, int(getattr(model.module, "n_batch", 1)))
    names = _batch_names(model) or [str(k) for k in range(count)]
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


def _library_sizes(model: Any) -> Tensor:
    """Counts per cell of the model's data."""
    try:
        x = model.adata_manager.get_from_registry("X")
        return torch.as_tensor(x.sum(1)).float().flatten().clamp(min=1)
    except (AttributeError, KeyError, TypeError):
        return torch.tensor([1e4])
