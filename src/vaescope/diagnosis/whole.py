"""One call: everything that applies to this model, as findings, a table, a page and data."""

from __future__ import annotations

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
from vaescope.adapters.viewed import Viewed, with_normal_prior
from vaescope.diagnosis import evidence as parts
from vaescope.diagnosis.evidence import Sample, Skipped
from vaescope.diagnosis.findings import Finding, by_severity, worst
from vaescope.diagnosis.gap import Split, split
from vaescope.diagnosis.page import html
from vaescope.diagnosis.rules import Evidence, judge, near_deterministic
from vaescope.distributions import Normal
from vaescope.errors import InputError
from vaescope.protocol import LatentModel
from vaescope.regime.model import as_array, check_rows
from vaescope.runs.files import write_json, write_text

T = TypeVar("T")
SAMPLES = 256  # that are decoded
LOOKED_AT = 256  # whose variances are looked at before anything else
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
            rows.append(row)
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
                    "contrast_of_best_axes": seen.geometry.rotation.after,
                }
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
    models = list(model) if isinstance(model, Sequence) else list(getattr(model, "members", [model]))
    if not models or not all(isinstance(m, LatentModel) for m in models):
        raise InputError("diagnose needs a model: a member of a fit, or one from vs.adapters (from_callables, ...).")
    first = models[0]
    x = _samples(first, x)
    repaired, guessed = _with_variances(with_normal_prior(first), x, auxiliary)
    judged = regime.of_model(repaired, x, auxiliary=auxiliary, decoder=False)
    skipped: dict[str, str] = {}
    if repaired.prior is not first.prior:
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
        judged = attempt("effect", lambda: _with_decoder(repaired, x, auxiliary)) or judged
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
        log_variance=guessed,
        rotatable=_rotatable(first),
        likelihood=getattr(first, "likelihood", None),
        geometry=found["geometry"],
        noise=found["noise"],
        split=found["gap"],
        eq12=found["Eq. 12"],
        stability=attempt(
            "stability", lambda: _stability([repaired, *map(with_normal_prior, models[1:])], x, auxiliary)
        ),
        evaluation=attempt("metrics", lambda: _evaluated(repaired, x, auxiliary, factors)),
        skipped=skipped,
    )
    return Diagnosis(name or str(getattr(first, "name", "model")), by_severity(judge(seen)), seen, len(x), sample)


def _samples(model: Any, x: Any) -> Any:
    if isinstance(model, Arrays):
        return model.mean if x is None else as_array(x)
    if x is None:
        raise InputError("diagnose needs samples x, unless it is given posteriors alone.")
    samples = as_array(x)
    check_rows(samples, None)
    return samples


def _with_variances(model: Any, x: Any, u: Any) -> tuple[Any, bool]:
    """The model, and whether what it calls variances had to be taken for log-variances."""
    if isinstance(model, Arrays):
        wrong = not bool((model.variance > 0).all())
        return (replace(model, variance=model.variance.exp()), True) if wrong else (model, False)
    rows = torch.as_tensor(x[:LOOKED_AT])
    with torch.no_grad():
        like = rows.float() if not rows.is_floating_point() else rows
        found = model.encode(like) if u is None else model.encode(like, u[:LOOKED_AT])
    variance = found[1]
    if not bool(found[0].isfinite().all() and variance.isfinite().all()):
        raise InputError("the encoder gives NaN or infinity for these samples; check their scale and the weights.")
    return (Viewed(model, log_variance=True), True) if not bool((variance > 0).all()) else (model, False)


def _with_decoder(model: Any, x: Any, u: Any) -> regime.Regime:
    try:
        return regime.of_model(model, x, auxiliary=u)
    except (RuntimeError, NotImplementedError) as error:
        raise Skipped(f"the decoder failed ({str(error).splitlines()[0][:120]})") from None


def _rotatable(model: Any) -> bool:
    prior = model.prior
    if getattr(model, "conditional", False) or not isinstance(prior, Normal):
        return False
    return all(torch.as_tensor(v).unique().numel() == 1 for v in (prior.mean, prior.variance))


def _stability(models: Sequence[Any], x: Any, u: Any) -> Any:
    if len(models) < 2:
        raise Skipped("one model was given; give several seeds to compare them")
    return parts.stability(list(models), x[:STABILITY_SAMPLES], None if u is None else u[:STABILITY_SAMPLES])


def _evaluated(model: Any, x: Any, u: Any, factors: Any) -> Any:
    if factors is None:
        raise Skipped("no factors were given")
    return metrics.evaluate(parts.encode(model, x, u).mean, factors)


def _gap(split: Split) -> dict[str, Any]:
    names = ["log_marginal", "elbo", "family", "amortisation"] + ([] if split.contrast is None else ["contrast"])
    return {name: dict(zip(("mean", "stderr"), split.mean(name), strict=True)) for name in names} | {
        "pareto_k": split.pareto_k,
        "note": split.note,
    }


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """As JSON knows it: no NaN, no NumPy."""
    found = {}
    for name, value in row.items():
        plain = value.item() if isinstance(value, np.generic) else value
        found[name] = None if isinstance(plain, float) and not math.isfinite(plain) else plain
    plain_row: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain_row
