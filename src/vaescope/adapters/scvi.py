"""Models of scvi-tools, which is not imported here: counts in, a Gaussian posterior, expected values out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from vaescope.adapters.base import Adapted
from vaescope.core import randomness
from vaescope.core.calls import evaluation_mode
from vaescope.core.errors import InputError
from vaescope.protocol import ModelSpec

Outputs = dict[str, Any]  # of the parts of a module, by name


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
    fields = _Fields(model, batch)
    depth = float(fields.libraries.median())
    encoders = [getattr(module, part) for part in ("z_encoder", "encoder") if hasattr(module, part)]
    transform = next((e.z_transformation for e in encoders if hasattr(e, "z_transformation")), lambda z: z)

    def infer(tensors: dict[str, Tensor]) -> Outputs:
        found = module.inference(**module._get_inference_input(tensors))
        own = {} if found.get("ql") is None else {"library": found["ql"].loc}  # inferred by the model
        return {**found, **own, "qz": found.get("qz") or Normal(found["qz_m"], found["qz_v"].sqrt())}

    def generate(tensors: dict[str, Tensor], z: Tensor, found: Outputs) -> Outputs:
        return dict(module.generative(**module._get_generative_input(tensors, {**found, "z": transform(z.float())})))

    def at_depth(z: Tensor, log_library: Tensor, *given: Tensor) -> Outputs:
        found = dict.fromkeys(("library", "library_gene", "libsize_expr", "libsize_acc"), log_library)
        tensors = fields.tensors(torch.zeros(len(z), sum(fields.features.values())), *given)
        return generate(tensors, z, {**found, "qz": Normal(z, 1.0), "qz_m": z.float()})

    def encode(x: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        posterior = infer(fields.tensors(x, *given))["qz"]
        return posterior.loc, posterior.scale.square()

    def decode(z: Tensor, *given: Tensor) -> Tensor:
        return _means(at_depth(z, torch.full((len(z), 1), depth).log(), *given), depth).to(z)

    def log_likelihood(x: Tensor, z: Tensor, *given: Tensor) -> Tensor:
        tensors = fields.tensors(x, *given)
        found = infer(tensors)
        losses = module.loss(tensors, found, generate(tensors, z, found)).reconstruction_loss
        return -sum(losses.values(), torch.zeros(len(z))).to(z)

    def sample_observations(z: Tensor, generator: torch.Generator, *given: Tensor) -> Tensor:
        rows = torch.randint(len(fields.libraries), (len(z), 1), generator=generator)
        with randomness.seeded(generator):
            return torch.as_tensor(at_depth(z, fields.libraries[rows].log(), *given)["px"].sample())

    x, z = torch.ones(2, sum(fields.features.values())), torch.zeros(2, int(module.n_latent))
    given = [torch.zeros(2, sum(fields.columns.values()))] if fields.columns else []
    with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluation_mode((module,)):
        counts = isinstance(at_depth(z, z[:, :1], *given).get("px"), Distribution)  # of genes, which can be simulated
        first, second = (log_likelihood(x, z, *given) for _ in range(2))  # latents besides z are drawn anew
    spec = ModelSpec(
        latent_dim=int(module.n_latent),
        name=name,
        log_likelihood=log_likelihood if torch.equal(first, second) else None,
        counts=counts and getattr(module, "gene_likelihood", "") in ("poisson", "nb", "zinb"),
        sample_observations=sample_observations if counts else None,
        conditional=bool(fields.columns),
        returns_variances=True,
    )
    return Adapted(spec, encode, decode, (module,), fields.read, encodes_auxiliary=bool(fields.columns))


def _means(found: Outputs, depth: float) -> Tensor:
    """Expected values of genes, peaks and proteins, in this order."""
    if "px" in found:  # a tensor of PEAKVI
        return torch.as_tensor(depth * found["px"].scale if hasattr(found["px"], "scale") else found["px"])
    genes = found["px_"]["scale"] if "px_" in found else found["px_scale"]
    proteins, parts = found.get("py_"), [depth * genes, *([found["p"]] if "p" in found else [])]
    if proteins is not None and proteins["back_alpha"].shape[1]:
        background, share = proteins["back_alpha"].exp(), proteins["mixing"].sigmoid()
        parts.append(background * (share + (1 - share) * proteins["fore_scale"]))
    return torch.cat(parts, 1)


class _Fields:
    """What a module reads: features in x, and columns of the auxiliary input or one batch for all samples."""

    def __init__(self, model: Any, batch: int | str | None) -> None:
        manager: Any = getattr(model, "adata_manager", None)  # none without data
        registered = getattr(manager, "data_registry", {})
        keys = ("X", "atac", "proteins", "extra_continuous_covs", "extra_categorical_covs", "size_factor")
        data = {key: manager.get_from_registry(key) for key in keys if key in registered}
        sizes = {key: int(values.shape[1]) for key, values in data.items()}
        covariates = {key: sizes.pop(key) for key in keys[3:] if key in sizes}
        self.model, self.features = model, sizes or {"X": int(model.module.n_input)}
        counts = data["X"].sum(1) if hasattr(data.get("X"), "sum") else [1e4]  # on disk, there is no sum
        self.libraries = torch.as_tensor(counts).float().flatten().clamp(min=1)  # counts per cell of the model's data
        named = manager.get_state_registry("batch").categorical_mapping if "batch" in registered else ()
        self.batches = [str(k) for k in (named if len(named) else range(max(1, getattr(model.module, "n_batch", 1))))]
        self.listed, last = ", ".join(self.batches[:5]), len(self.batches) - 1
        if batch is not None and covariates:
            raise InputError("this scvi model has covariates: omit batch, and pass AnnData as x.")
        index = self.batches.index(batch) if batch in self.batches else batch or 0
        if isinstance(index, str) or not 0 <= index <= last:
            raise InputError(f"this scvi model has batches 0 to {last} ({self.listed}), got {batch!r}.")
        self.batch = index
        self.columns = {"batch": 1} | covariates if batch is None and (covariates or last) else {}

    def tensors(self, *given: Tensor) -> dict[str, Tensor]:
        """A minibatch as scvi-tools loads it, from features and the auxiliary input, if there is one."""
        one, sizes = torch.zeros(len(given[0]), 1, dtype=torch.long), self.features | self.columns
        rows = torch.cat([part.float().reshape(len(one), -1) for part in given], 1)
        if rows.shape[1] != sum(sizes.values()):
            expected = ", ".join(f"{size} of {key}" for key, size in sizes.items())
            raise InputError(f"this scvi model takes rows of {expected}, got {rows.shape[1]} columns.")
        found = {"labels": one, "ind_x": torch.arange(len(one))[:, None], "batch": one + self.batch}
        found |= dict(zip(sizes, rows.split([*sizes.values()], 1), strict=True))
        return found | {key: found[key].long() for key in ("batch", "extra_categorical_covs") if key in found}

    def read(self, x: object, auxiliary: object | None) -> tuple[object, object | None]:
        """Counts, and batches and covariates if the model takes them, as scvi-tools reads them."""
        if not hasattr(x, "obs"):
            if self.columns and auxiliary is None:
                raise InputError(
                    f"this scvi model has {len(self.batches)} batches ({self.listed}) or covariates; pass AnnData as "
                    f"x, or the cells of one batch and from_scvi(model, batch={self.batches[0]!r})."
                )
            return x, auxiliary
        loader = self.model._make_data_loader(adata=self.model._validate_anndata(x), batch_size=4096)
        kinds = [list(sizes) for sizes in (self.features, self.columns) if sizes]
        found = [[torch.cat([part[k].flatten(1).double() for k in keys], 1) for keys in kinds] for part in loader]
        counts, *columns = map(torch.cat, zip(*found, strict=True))
        return counts.float(), columns[0] if columns else auxiliary
