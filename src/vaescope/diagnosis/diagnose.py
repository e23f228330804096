"""One call: everything that applies to this model, as findings, a table, a page and data."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from vaescope import metrics, regime
from vaescope.adapters import Arrays
from vaescope.adapters.repaired import Viewed, with_normal_prior
from vaescope.diagnosis import evidence as parts
from vaescope.diagnosis.evidence import Sample, Skipped
from vaescope.diagnosis.findings import Finding, by_severity, worst
from vaescope.diagnosis.gap import Split, split
from vaescope.diagnosis.page import html
from vaescope.diagnosis.rules import Evidence, judge, near_deterministic
from vaescope.distributions import Normal
from vaescope.errors import InputError, RunError
from vaescope.protocol import LatentModel
from vaescope.regime.model import as_array, check_rows, column_norm, effect, encoded_parts, spread_samples
from vaescope.runs.files import write_json, write_text
from vaescope.theory.rotation import Rotation

T = TypeVar("T")
SAMPLES = 256  # that are decoded
LOOKED_AT = 256  # whose variances and reconstructions are looked at before anything else
BEYOND = 1e-4  # 0 and 1 that a probability may be by rounding
STABILITY_SAMPLES = 2000


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What was found in a model; `seen` is everything that was measured."""

    name: str
    findings: list[Finding]
    seen: Evidence
    samples: int
    sample: Sample | None = None

    @property
    def worst(self) -> str | None:
        """error, warning, note, or None."""
        return worst(self.findings)

    @property
    def skipped(self) -> dict[str, str]:
        """Analyses that could not be made, and why."""
        return self.seen.skipped

    def summary(self) -> list[dict[str, Any]]:
        """A row per latent, those that tell most first."""
        judged, eq12 = self.seen.regime, self.seen.eq12
        rows = []
        for k in judged.places("active", "mixed", "passive"):
            row: dict[str, Any] = {
                "latent": k,
                "kind": judged.kind[k],
                "KL": float(judged.kl[k]),
                "variance ratio": float(judged.variance_ratio[k]),
            }
            if judged.column_norm is not None:
                row["column norm"] = float(judged.column_norm[k])
            if eq12 is not None:
                row["σ² / Eq. 12"] = float(eq12[k])
            if judged.effect is not None:
                row["effect"] = float(judged.effect[k])
            rows.append({name: None if v != v else v for name, v in row.items()})  # NaN is not equal to itself
        return rows

    def as_data(self) -> dict[str, Any]:
        """Everything but the arrays, as JSON knows it."""
        seen = self.seen
        return {
            "name": self.name,
            "samples": self.samples,
            "worst": self.worst,
            "findings": [finding.as_data() for finding in self.findings],
            "latents": [_plain(row) for row in self.summary()],
            "skipped": self.skipped,
            "geometry": None
            if seen.geometry is None
            else _plain(
                {
                    "contrast": seen.geometry.contrast,
                    "stderr": seen.geometry.stderr,
                    "rank": seen.geometry.rank,
                    "infinite": seen.geometry.singular,
                    "latents": list(seen.geometry.rotated),
                }
                | ({} if (turn := seen.geometry.rotation) is None else _axes(turn))
            ),
            "noise": None
            if seen.noise is None
            else _plain(
                {
                    "precision": seen.noise.precision,
                    "declared": seen.noise.declared,
                    "implied": seen.noise.implied,
                    "effective_beta": seen.noise.beta,
                    "explained": seen.noise.explained,
                }
            ),
            "gap": None if seen.split is None else _gap(seen.split),
            "near_deterministic": None if (near := near_deterministic(seen)) is None else near[0],
            "stability": None if seen.stability is None else float(seen.stability.score),
            "metrics": None if seen.evaluation is None else [_plain(row) for row in seen.evaluation.rows],
        }

    def to_json(self, path: str | Path) -> Path:
        """Findings and numbers beside the page."""
        write_json(Path(path), self.as_data())
        return Path(path)

    def to_html(self, path: str | Path) -> Path:
        """The page: one file, no network."""
        write_text(Path(path), html(self))
        return Path(path)

    def __repr__(self) -> str:
        lines = [f"Diagnosis of {self.name}: {len(self.findings)} findings"]
        lines += [f"  {f.severity}: {f.title} {f.advice}" for f in self.findings]
        return "\n".join(lines)


@torch.no_grad()
def diagnose(
    model: Any,
    x: Any = None,
    *,
    factors: Any = None,
    auxiliary: Any = None,
    name: str | None = None,
) -> Diagnosis:
    """Everything that can be said of a trained VAE from samples it has not been trained on.

    `model` is a member of a fit, anything from `vs.adapters`, or several models of the same data (then the first is
    diagnosed, and all are compared). Posteriors alone (`vs.adapters.from_arrays`) need no x. What a model cannot do is
    left out and listed in `skipped`.

    >>> from vaescope.adapters import from_arrays
    >>> found = diagnose(from_arrays(torch.zeros(300, 3), torch.ones(300, 3)))
    >>> [finding.code for finding in found.findings]
    ['collapsed']
    """
    models = models_of(model)
    first = models[0]
    given, x = x, _samples(first, x)
    repaired, zeros = _repaired(with_normal_prior(first), x, auxiliary)
    judged = regime.of_model(repaired, x, auxiliary=auxiliary, decoder=False)
    skipped: dict[str, str] = {}
    if repaired.normal is not None:
        told = f"the prior is {type(first.prior).__name__}: KL and kinds are against a normal of its mean and variance"
        skipped["exact KL"] = told

    def attempt(what: str, make: Callable[[], T]) -> T | None:
        try:
            return make()
        except Skipped as reason:
            skipped[what] = str(reason)
        except InputError as error:
            skipped[what] = str(error).rstrip(".")
        return None

    sample = attempt("decoder", lambda: parts.sample_of(repaired, x, auxiliary, judged.used, SAMPLES))
    if sample is not None:
        norm = attempt("column norm", lambda: _decoded(column_norm, repaired, x, auxiliary))
        judged = replace(
            judged, column_norm=norm, effect=attempt("effect", lambda: _decoded(effect, repaired, x, auxiliary))
        )
    needs_decoder = {
        "geometry": lambda: parts.geometry(sample),  # type: ignore[arg-type]
        "noise": lambda: parts.noise(sample),  # type: ignore[arg-type]
        "gap": lambda: split(sample),  # type: ignore[arg-type]
        "Eq. 12": lambda: parts.eq12(sample, judged.column_norm),  # type: ignore[arg-type]
    }
    found: dict[str, Any] = {}
    for what, make in needs_decoder.items():
        found[what] = attempt(what, make) if sample is not None else None
    seen = Evidence(
        regime=judged,
        log_variance=repaired.log_variance,
        logits=repaired.logits,
        zero_variance=zeros,
        rotatable=_rotatable(first),
        likelihood=getattr(first, "likelihood", None),
        geometry=found["geometry"],
        noise=found["noise"],
        split=found["gap"],
        eq12=found["Eq. 12"],
        stability=attempt("stability", lambda: _stability(repaired, models, given, auxiliary)),
        evaluation=attempt("metrics", lambda: _evaluated(repaired, x, auxiliary, factors)),
        skipped=skipped,
    )
    return Diagnosis(name or str(getattr(first, "name", "model")), by_severity(judge(seen)), seen, len(x), sample)


def models_of(model: Any) -> list[Any]:
    """One model or several as a list; of a fit the members that finished, the best first."""
    members = getattr(model, "members", None)
    if members is not None:
        finished = [m for m in members if getattr(m, "status", "finished") == "finished"]
        if not finished:
            raise RunError("no member of this fit has finished; look at their histories for where they diverged.")
        return sorted(finished, key=lambda m: -m.best_elbo)
    models = list(model) if isinstance(model, Sequence) else [model]
    if not models or not all(isinstance(m, LatentModel) for m in models):
        raise InputError("this needs a model: a member of a fit, or one from vs.adapters (from_callables, ...).")
    return models


def _samples(model: Any, x: Any) -> Any:
    if isinstance(model, Arrays):
        if x is not None and len(x) != len(model.mean):
            raise InputError(f"these are the posteriors of {len(model.mean)} samples, got {len(x)}; give all of them.")
        return model.samples
    if x is None:
        raise InputError("diagnose needs samples x, unless it is given posteriors alone.")
    samples = as_array(x)
    check_rows(samples, None)
    return samples


def _repaired(model: Any, x: Any, u: Any) -> tuple[Viewed, bool]:
    """The model with variances and probabilities where it gave log-variances and logits; whether some were zero."""
    view = model if isinstance(model, Viewed) else Viewed(model)
    seen = spread_samples(replace(view, floor=False), x, u, LOOKED_AT)
    view = replace(view, log_variance=bool((seen.variance < 0).any()))
    if getattr(view.model, "likelihood", None) == "bernoulli" and getattr(view.model, "decodes", True):
        with contextlib.suppress(InputError, RuntimeError):
            output = view.model.decode(seen.mean)
            view = replace(view, logits=bool(((output < -BEYOND) | (output > 1 + BEYOND)).any()))
    return view, not view.log_variance and bool((seen.variance == 0).any())


def _decoded(measure: Callable[..., np.ndarray], model: Any, x: Any, u: Any) -> np.ndarray:
    try:
        return measure(model, x, u)
    except (RuntimeError, NotImplementedError) as error:
        raise Skipped(f"the decoder failed ({str(error).splitlines()[0][:120]})") from None


def _rotatable(model: Any) -> bool:
    prior = model.prior
    if getattr(model, "auxiliary_dim", 0) or not isinstance(prior, Normal):
        return False
    return all(torch.as_tensor(v).unique().numel() == 1 for v in (prior.mean, prior.variance))


def _stability(repaired: Any, models: Sequence[Any], given: Any, u: Any) -> Any:
    if len(models) < 2:
        raise Skipped("one model was given; give several seeds to compare them")
    own = [x[:STABILITY_SAMPLES] for x in (_samples(model, given) for model in models)]
    viewed = [repaired, *map(with_normal_prior, models[1:])]
    return parts.stability(viewed, own, None if u is None else u[:STABILITY_SAMPLES])


def _evaluated(model: Any, x: Any, u: Any, factors: Any) -> Any:
    if factors is None:
        raise Skipped("no factors were given")
    means = torch.cat([part.mean for part in encoded_parts(model, x, u)])
    return metrics.evaluate(means, factors)


def _axes(turn: Rotation) -> dict[str, Any]:
    return {"contrast_of_best_axes": turn.after, "axes": turn.matrix.tolist()}


def _gap(split: Split) -> dict[str, Any]:
    names = ["log_marginal", "elbo", "family", "amortisation"] + ([] if split.contrast is None else ["contrast"])
    return {name: _plain(dict(zip(("mean", "stderr"), split.mean(name), strict=True))) for name in names} | _plain(
        {"pareto_k": split.pareto_k, "note": split.note}
    )


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """As JSON knows it: no NaN, no NumPy."""
    found = {}
    for name, value in row.items():
        plain = value.item() if isinstance(value, np.generic) else value
        found[name] = None if isinstance(plain, float) and not math.isfinite(plain) else plain
    plain_row: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain_row
