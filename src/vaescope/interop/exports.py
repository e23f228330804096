"""Posteriors and findings for AnnData and ArviZ, metrics for torchmetrics, run folders for the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from vaescope import __version__, theory
from vaescope.adapters.posteriors import Arrays
from vaescope.adapters.run import members_of
from vaescope.analysis.encoding import EncodedSample, encode_chunks
from vaescope.analysis.likelihood import draw_observations
from vaescope.analysis.models import as_models, likelihood_is_known, sample_log_likelihood, with_normal_prior
from vaescope.core import randomness, validation
from vaescope.core.checks import choice, integer
from vaescope.core.errors import InputError, Skipped, require
from vaescope.metrics.evaluate import all_metrics
from vaescope.protocol import LatentModel
from vaescope.runs.files import write_bytes, write_json, write_text

if TYPE_CHECKING:
    from vaescope.models import Member
    from vaescope.products.diagnose.diagnose import Diagnosis


def encode_all(
    model: object, x: object | None, auxiliary: object | None = None
) -> tuple[LatentModel, Float[np.ndarray, "N d"], Float[np.ndarray, "N d"]]:
    """The first of several models, with mean and variance of q(z|x) of every sample."""
    first = as_models(model)[0]
    if isinstance(first, Arrays):
        return first, np.asarray(first.mean), np.asarray(first.variance)
    if x is None:
        raise InputError("samples x are required, unless the model is posteriors alone.")
    chunks = list(encode_chunks(with_normal_prior(first), x, auxiliary))
    mean, variance = zip(*((chunk.mean.cpu().numpy(), chunk.variance.cpu().numpy()) for chunk in chunks), strict=True)
    return first, np.concatenate(mean), np.concatenate(variance)


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
    first, mean, variance = encode_all(model, x, auxiliary)
    if len(mean) != data.n_obs:
        raise InputError(f"data has {data.n_obs} rows, the posteriors have {len(mean)}; pass the samples of data.")
    data.obsm[f"X_{key}"], data.obsm[f"X_{key}_variance"] = mean, variance
    if first.has_decoder:
        with contextlib.suppress(RuntimeError, NotImplementedError, InputError):  # it cannot be differentiated
            codes = torch.as_tensor(mean[:256])
            jacobian = theory.jacobian(first.decode, codes).mean(0).detach().cpu().numpy()
            if len(jacobian) == data.n_vars:
                data.varm[f"{key}_jacobian"] = jacobian
    report = {} if diagnosis is None else {"diagnosis": json.dumps(diagnosis.to_data(), ensure_ascii=False)}
    data.uns["vaescope"] = {"version": __version__, "model": first.name, **report}


def to_datatree(
    model: object,
    x: object | None = None,
    *,
    auxiliary: object | None = None,
    draws: int = 100,
    seed: int = 0,
    diagnosis: Diagnosis | None = None,
    predictive: bool = False,
) -> Any:
    """Draws from every q(z|x), with the samples and the findings, for ArviZ.

    Groups: `posterior` with z (chain, draw, sample, latent), in one chain; `constant_data` with the mean and variance
    of every posterior; `observed_data` with x; the findings are attributes of the root. With `predictive`, also
    `log_likelihood` (chain, draw, sample), `posterior_predictive` and `prior_predictive` with x (chain, draw, sample,
    column): `az.loo` then estimates log p(x) of every sample, `az.compare` compares models, and Pareto k̂ says where the
    estimate is unreliable.

    Args:
        model: as for `vs.diagnose`; of several models the first.
        x: samples; not needed for posteriors alone.
        auxiliary: the auxiliary input of an iVAE.
        draws: from every posterior.
        seed: of the draws.
        diagnosis: of this model, whose findings are added.
        predictive: add log-likelihoods and draws of x; needs a likelihood that is known and can be sampled.

    >>> from vaescope.adapters import from_arrays
    >>> tree = to_datatree(from_arrays(np.zeros((5, 2)), np.ones((5, 2))), draws=10)
    >>> tree["posterior"]["z"].shape
    (1, 10, 5, 2)
    """
    xarray = require("xarray", "to_datatree")
    first, mean, variance = encode_all(model, x, auxiliary)
    noise = np.random.default_rng(seed).normal(size=(integer("draws", draws), *mean.shape))
    axes, latents = ("sample", "latent"), {"latent": [f"z{k}" for k in range(mean.shape[1])]}
    z = mean + np.sqrt(variance) * noise
    groups = {
        "posterior": {"z": (("chain", "draw", *axes), z[None])},
        "constant_data": {"mean": (axes, mean), "variance": (axes, variance)},
    }
    data = {name: xarray.Dataset(values, coords=latents) for name, values in groups.items()}
    if x is not None:
        rows = validation.array(x, "x").reshape(len(mean), -1)
        data["observed_data"] = xarray.Dataset({"x": (("sample", "column"), rows)})
    if predictive:
        for name, values in _predictive(first, x, auxiliary, z, seed).items():
            dims = ("chain", "draw", "sample", "column")[: values.ndim + 1]
            data[name] = xarray.Dataset({"x": (dims, values[None])})
    tree = xarray.DataTree.from_dict(data, name=first.name)
    tree.attrs = {"inference_library": "vaescope"}
    if diagnosis is not None:
        tree.attrs["findings"] = [f"{f.severity}: {f.code}: {f.title}" for f in diagnosis.findings]
    return tree


@torch.no_grad()
def _predictive(
    model: LatentModel, x: object | None, auxiliary: object | None, z: Float[np.ndarray, "S N d"], seed: int
) -> dict[str, np.ndarray]:
    """log p(x|z) of all draws, and draws of x given these and given draws from the prior."""
    if x is None or not model.has_decoder or not likelihood_is_known(model):
        raise InputError("predictive=True needs samples x, a decoder and a likelihood that is known.")
    generator = randomness.generator(seed, "predictive")
    parts: dict[str, list[np.ndarray]] = {"log_likelihood": [], "posterior_predictive": [], "prior_predictive": []}
    for sample in encode_chunks(with_normal_prior(model), x, auxiliary):
        numbers = 2 * z.shape[0] * z.shape[1] * sample.observations.shape[1]
        if numbers > 2**28:
            raise InputError(
                f"{numbers / 2**28:.1f} GB of draws of x: pass fewer samples, draws=, or predictive=False."
            )
        log_p, observed = sample_log_likelihood(sample), sample.observations
        own = torch.from_numpy(z[:, sample.rows]).to(sample.mean)
        try:
            found: list[tuple[np.ndarray, ...]] = [
                (
                    log_p(observed.to(codes), codes).double().numpy(),
                    _drawn(sample, codes, generator),
                    _drawn(sample, sample.draw_prior(f"predictive {seed} {k}"), generator),
                )
                for k, codes in enumerate(own)
            ]
        except Skipped as reason:
            raise InputError(f"predictive=True: {reason}.") from None
        for values, name in zip(zip(*found, strict=True), parts, strict=True):
            parts[name].append(np.stack(values))
    return {name: np.concatenate(values, axis=1) for name, values in parts.items()}


def _drawn(sample: EncodedSample, z: torch.Tensor, generator: torch.Generator) -> np.ndarray:
    """A draw of x for each row of z, as rows of float32."""
    found: np.ndarray = draw_observations(sample.model, z, generator, sample.auxiliary).flatten(1).float().numpy()
    return found


@cache
def _torchmetric_class(higher_is_better: bool) -> type:
    """A class of torchmetrics, which is imported when the first metric is made."""
    torchmetrics = require("torchmetrics", "torchmetric")

    class LatentMetric(torchmetrics.Metric):  # type: ignore[name-defined]
        full_state_update = False
        is_differentiable = False
        higher_is_better: bool

        def __init__(self, metric: str, score: str | None, options: dict[str, object]) -> None:
            super().__init__()
            self.metric, self.score, self.options = metric, score, options
            for name in ("codes", "factors"):
                self.add_state(name, default=[], dist_reduce_fx="cat")

        def update(self, codes: torch.Tensor, factors: torch.Tensor) -> None:
            """Add the codes (N, d) and factors (N, k) of a batch."""
            validation.same_rows({"codes": len(codes), "factors": len(factors)})
            self.codes.append(codes.detach())
            self.factors.append(factors.detach().reshape(len(factors), -1))

        def compute(self) -> torch.Tensor:
            """The score of all batches since the last reset."""
            codes, factors = (torch.cat(s) if isinstance(s, list) else s for s in (self.codes, self.factors))
            scores = all_metrics()[self.metric](codes.cpu(), factors.cpu(), **self.options).scores
            name = self.score or next(iter(scores))
            if name not in scores:
                raise InputError(f"score of {self.metric} must be one of {', '.join(scores)}, got {name!r}.")
            return torch.tensor(scores[name], device=self.device)

        def __reduce__(self) -> tuple[object, ...]:  # pickle does not find a class that is made in a function
            return partial(torchmetric, self.metric, score=self.score, **self.options), (), self.__getstate__()

    LatentMetric.higher_is_better = higher_is_better
    return LatentMetric


def torchmetric(metric: str, *, score: str | None = None, **options: object) -> Any:
    """A metric of codes and factors as a `torchmetrics.Metric`: `update(codes, factors)` per batch, then `compute()`.

    All codes and factors are kept until `reset()`; in distributed training they are gathered from all processes.

    Args:
        metric: mcc, r2, dci, mig, sap, infomec or another name in `vs.metrics.evaluate`, or that of an installed
            package.
        score: which of its scores, such as completeness of dci; its first by default.
        options: of the metric, such as `discrete=True`.
    """
    choice("metric", metric, all_metrics())
    return _torchmetric_class(metric != "amari")(metric, score, options)


def model_card(diagnosis: Diagnosis) -> str:
    """What a reader of a model card should know: verdict, numbers, findings with advice, and what was not checked.

    Args:
        diagnosis: of the model that the card is about.

    >>> import torch, vaescope as vs
    >>> found = vs.diagnose(vs.adapters.from_arrays(torch.zeros(300, 2), torch.ones(300, 2)), progress=None)
    >>> print(model_card(found).splitlines()[0])
    ## Diagnosis
    """
    parts = [
        "## Diagnosis",
        f"{diagnosis.verdict} ({diagnosis.samples} samples, vaescope {__version__})",
        _table(("measured", "value"), diagnosis.facts()),
    ]
    if diagnosis.findings:
        rows = [(f.severity, f"{f.title} {f.evidence}", f.advice) for f in diagnosis.findings]
        parts.append(_table(("severity", "finding", "what to do"), rows))
    if diagnosis.skipped:
        parts.append(
            "Not checked: " + "; ".join(f"{what} ({_cell(why)})" for what, why in diagnosis.skipped.items()) + "."
        )
    return "\n\n".join(parts) + "\n"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Text that ends no cell and is no HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def to_hub_folder(run: str | Path, out: str | Path, *, diagnosis: Diagnosis | None = None) -> Path:
    """Copy a run folder with a model card, ready for `huggingface-cli upload`. `vs.adapters.from_run` opens the copy.

    Args:
        run: a run folder of `vs.fit(..., out=)` or `vaescope train`.
        out: a folder that does not exist yet, or is empty.
        diagnosis: of the best member, which becomes a section of the card and `diagnosis.html`.
    """
    source, target = Path(run), Path(out)
    members = members_of(source)
    if target.exists() and any(target.iterdir()):
        raise InputError(f"{target} is not empty; choose another folder.")
    run_files = ("config.json", "results.parquet", "history.parquet", "report.html")
    for pattern in (*run_files, "weights/*.safetensors", "figures/*.svg"):
        for file in source.glob(pattern):
            write_bytes(target / file.relative_to(source), file.read_bytes())
    attributes = [f"{stored} filter=lfs diff=lfs merge=lfs -text\n" for stored in ("*.safetensors", "*.parquet")]
    write_text(target / ".gitattributes", "".join(attributes))
    write_text(target / "README.md", _card(members, diagnosis))
    if diagnosis is not None:
        write_json(target / "diagnosis.json", diagnosis.to_data())
        diagnosis.to_html(target / "diagnosis.html")
    return target


def _card(members: list[Member], diagnosis: Diagnosis | None) -> str:
    """The card: metadata that the Hub reads, how to use the model, and its diagnosis."""
    best = members[0]
    metadata = "---\nlibrary_name: vaescope\ntags:\n- variational-autoencoder\n---\n"
    use = f"""
# Variational autoencoder

{len(members)} trained members with {best.latent_dim} latents. Validation ELBO of the best: {best.best_elbo:.4g} nats.

```python
import vaescope as vs

vae = vs.adapters.from_run(".")  # the best member
mean, variance = vae.encode(x)
```
"""
    return metadata + use + ("" if diagnosis is None else "\n" + model_card(diagnosis))
