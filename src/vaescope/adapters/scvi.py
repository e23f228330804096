"""Models of scvi-tools, which is not imported here: counts in, a Gaussian posterior, expected values out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from vaescope.adapters.base import Adapted
from vaescope.core.calls import evaluation_mode
from vaescope.core.errors import InputError
from vaescope.protocol import ModelSpec


def from_scvi(model: Any, *, batch: int | str | None = None, name: str = "scvi model") -> Adapted:
    """A model from a trained `SCVI`, `TOTALVI`, `PEAKVI`, `MULTIVI` or similar.

    x is AnnData or MuData as the model was trained on, with its batches and covariates, or rows of raw counts: genes,
    then peaks, then proteins. The decoder returns expected shares of expression, scaled to the median library size of
    the model's data so that outputs do not depend on sequencing depth, probabilities that peaks are accessible, and
    expected counts of proteins. The likelihood of counts, with the model's own library size, is used for the ELBO and
    the gap, unless it has latents besides z, as `TOTALVI` has for the background of proteins.

    Args:
        model: a trained scvi-tools model.
        batch: index or name of the batch that all samples come from, if x are counts of one batch.
        name: what reports call the model.
    """
    module = getattr(model, "module", None)
    if module is None or not hasattr(module, "inference") or not hasattr(module, "generative"):
        raise InputError(f"from_scvi needs an scvi-tools model, got {type(model).__name__}.")
    fields = _Fields.of(model, batch)
    libraries = _library_sizes(model)
    depth = float(libraries.median())
    encoders = [getattr(module, part) for part in ("z_encoder", "encoder") if hasattr(module, part)]
    transform = next((e.z_transformation for e in encoders if hasattr(e, "z_transformation")), lambda z: z)

    def infer(tensors: dict[str, Tensor]) -> dict[str, object]:
        found = module.inference(**module._get_inference_input(tensors))
        posterior = found.get("qz") or Normal(found["qz_m"], found["qz_v"].sqrt())
        own = {} if found.get("ql") is None else {"library": found["ql"].loc}  # inferred by the model
        return {**found, "qz": posterior, **own}

    def generate(tensors: dict[str, Tensor], z: Tensor, found: dict[str, object]) -> dict[str, object]:
        made: dict[str, object] = module.generative(
            **module._get_generative_input(tensors, {**found, "z": transform(z.float())})
        )
        return made

    def at_depth(z: Tensor, log_library: Tensor, *given: Tensor) -> dict[str, object]:
        sizes: dict[str, object] = dict.fromkeys(
            ("library", "library_gene", "libsize_expr", "libsize_acc"), log_library
        )
        return generate(fields.tensors(None, len(z), *given), z, {**sizes, "qz": Normal(z, 1.0), "qz_m": z.float()})

    def encode(x: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        posterior = infer(fields.tensors(x, len(x), *given))["qz"]
        assert isinstance(posterior, Normal)
        return posterior.loc, posterior.scale.square()

    def decode(z: Tensor, *given: Tensor) -> Tensor:
        return _means(at_depth(z, torch.full((len(z), 1), depth).log(), *given), depth).to(z)

    def log_likelihood(x: Tensor, z: Tensor, *given: Tensor) -> Tensor:
        tensors = fields.tensors(x, len(x), *given)
        found = infer(tensors)
        losses = module.loss(tensors, found, generate(tensors, z, found)).reconstruction_loss
        return -sum(losses.values(), torch.zeros(len(z))).to(z)

    def sample_observations(z: Tensor, generator: torch.Generator, *given: Tensor) -> Tensor:
        library = libraries[torch.randint(len(libraries), (len(z), 1), generator=generator)].log()
        with torch.random.fork_rng(devices=[]):  # its distributions draw from the global generator
            torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
            px = at_depth(z, library, *given)["px"]
            assert isinstance(px, Distribution)
            return px.sample()

    def drawn() -> tuple[Tensor, bool]:
        """Of two cells, the log-likelihood, and whether it is one of counts of genes, which can be simulated."""
        given = [torch.zeros(2, fields.width("columns"))] if fields.columns else []
        z = torch.zeros(2, int(module.n_latent))
        counts = isinstance(at_depth(z, z[:, :1], *given).get("px"), Distribution)
        return log_likelihood(torch.ones(2, fields.width("features")), z, *given), counts

    with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluation_mode((module,)):
        (first, counts), (second, _) = drawn(), drawn()  # equal unless there are latents besides z, drawn anew
    conditional = bool(fields.columns)
    spec = ModelSpec(
        latent_dim=int(module.n_latent),
        name=name,
        log_likelihood=log_likelihood if torch.equal(first, second) else None,
        counts=counts and getattr(module, "gene_likelihood", "") in ("poisson", "nb", "zinb"),
        sample_observations=sample_observations if counts else None,
        conditional=conditional,
        returns_variances=True,
    )
    return Adapted(spec, encode, decode, (module,), partial(_read, model, fields), encodes_auxiliary=conditional)


def _means(found: Any, depth: float) -> Tensor:
    """Expected values of genes, peaks and proteins, in this order."""
    if isinstance(found.get("px"), Distribution):
        shares: Tensor = found["px"].scale
        return depth * shares
    if "px" in found:  # of PEAKVI
        return torch.as_tensor(found["px"])
    genes = found["px_"]["scale"] if "px_" in found else found["px_scale"]
    proteins, parts = found.get("py_"), [depth * genes, *([found["p"]] if "p" in found else [])]
    if proteins is not None and proteins["back_alpha"].shape[1]:
        background, share = proteins["back_alpha"].exp(), proteins["mixing"].sigmoid()
        parts.append(background * (share + (1 - share) * proteins["fore_scale"]))
    return torch.cat(parts, 1)


@dataclass(frozen=True)
class _Fields:
    """What a module reads: blocks of features in x, and columns of the auxiliary input or one batch for all samples."""

    features: tuple[tuple[str, int], ...]
    columns: tuple[tuple[str, int], ...]
    """Names of scvi's fields, and how many columns each has."""
    batch: int | None

    @classmethod
    def of(cls, model: Any, batch: int | str | None) -> _Fields:
        manager = getattr(model, "adata_manager", model)
        registered = [str(key) for key in getattr(manager, "data_registry", {})]

        def sizes(*keys: str) -> tuple[tuple[str, int], ...]:
            return tuple((k, int(manager.get_from_registry(k).shape[1])) for k in keys if k in registered)

        features = sizes("X", "atac", "proteins") or (("X", int(model.module.n_input)),)
        covariates = sizes("extra_continuous_covs", "extra_categorical_covs", "size_factor")
        if batch is not None and covariates:
            raise InputError("this scvi model has covariates: omit batch, and pass AnnData as x.")
        several = max(len(_batch_names(model)), int(getattr(model.module, "n_batch", 1))) > 1
        if batch is not None or (not several and not covariates):
            return cls(features, (), _batch_index(model, batch))
        return cls(features, (("batch", 1), *covariates), None)

    def width(self, name: str) -> int:
        """How many columns the features or the auxiliary input have."""
        return sum(size for _, size in getattr(self, name))

    def tensors(self, x: Tensor | None, count: int, given: Tensor | None = None) -> dict[str, Tensor]:
        """A minibatch as scvi-tools loads it."""
        x = torch.zeros(count, self.width("features")) if x is None else x.float().reshape(count, -1)
        if x.shape[1] != self.width("features"):
            listed = ", ".join(f"{size} of {key}" for key, size in self.features)
            raise InputError(f"this scvi model takes rows of {listed}, got {x.shape[1]} columns.")
        one = torch.zeros(count, 1, dtype=torch.long)
        found = {"labels": one, "ind_x": torch.arange(count)[:, None], "batch": one + (self.batch or 0)}
        found |= dict(zip((k for k, _ in self.features), x.split([size for _, size in self.features], 1), strict=True))
        if given is not None:
            parts = given.reshape(count, -1).split([size for _, size in self.columns], 1)
            found |= {key: part.float() for (key, _), part in zip(self.columns, parts, strict=True)}
            found |= {k: found[k].long() for k in ("batch", "extra_categorical_covs") if k in found}
        return found


def _read(model: Any, fields: _Fields, x: object, auxiliary: object | None) -> tuple[object, object | None]:
    """Counts, and batches and covariates if the model takes them, as scvi-tools reads them."""
    if not hasattr(x, "obs"):
        if fields.columns and auxiliary is None:
            names = _batch_names(model)
            raise InputError(
                f"this scvi model has {max(1, len(names))} batches ({', '.join(names[:5])}) or covariates; pass "
                f"AnnData as x, or the cells of one batch and from_scvi(model, batch={(names or ['0'])[0]!r})."
            )
        return x, auxiliary
    batches = [*model._make_data_loader(adata=model._validate_anndata(x), batch_size=4096)]

    def joined(keys: tuple[tuple[str, int], ...]) -> Tensor:
        return torch.cat([torch.cat([b[key].double() for b in batches]).flatten(1) for key, _ in keys], dim=1)

    return joined(fields.features).float(), joined(fields.columns) if fields.columns else auxiliary


def _batch_index(model: Any, batch: int | str | None) -> int:
    """The index of the batch that all samples come from."""
    names = _batch_names(model) or [str(k) for k in range(max(1, int(getattr(model.module, "n_batch", 1))))]
    if isinstance(batch, str) and batch in names:
        return names.index(batch)
    found = 0 if batch is None else batch
    if isinstance(found, str) or not 0 <= found < len(names):
        raise InputError(f"this scvi model has batches 0 to {len(names) - 1} ({', '.join(names[:5])}), got {batch!r}.")
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
