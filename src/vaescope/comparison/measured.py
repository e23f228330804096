"""Everything that is measured of one of several models, on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from vaescope import metrics
from vaescope.adapters.repaired import repair
from vaescope.comparison.elbo import elbo_of_samples
from vaescope.comparison.matching import UsedCodes
from vaescope.diagnosis.evidence import Evidence, NearDeterministic
from vaescope.diagnosis.gap import ElboGap, check_gap, decodes_per_point, gap_at, seconds_per_decode
from vaescope.diagnosis.geometry import (
    Geometry,
    WeightedJacobian,
    differentiate_decoder,
    measure_geometry,
    near_deterministic_ratio,
)
from vaescope.encoded import EncodedSample
from vaescope.errors import InputError
from vaescope.metrics.score import Score
from vaescope.protocol import LatentModel
from vaescope.regime import Regime
from vaescope.regime.model import regime_of
from vaescope.skipped import Skipped, first_line

T = TypeVar("T")
SAMPLES = 2000  # of x that are used, at most
POINTS = 128  # at which log p(x) is computed, at most
FEWEST_POINTS = 8
TIMINGS = 3  # of the decoder; the fastest counts
RELIABLE = 0.7  # largest Pareto k of a reliable estimate of log p(x)


@dataclass(frozen=True, eq=False)
class MeasuredModel:
    """One model on the shared samples; None for what could not be measured, with the reason in `skipped`."""

    name: str
    sample: EncodedSample
    regime: Regime
    elbo: np.ndarray | None = None
    """(N,) of every sample."""
    gap: ElboGap | None = None
    """log p(x) and the parts of the gap at some of the samples."""
    geometry: Geometry | None = None
    near: NearDeterministic | None = None
    scores: dict[str, Score] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def codes(self) -> UsedCodes:
        values = self.sample.mean[:, self.regime.used].double().cpu().numpy()
        return UsedCodes(self.name, self.regime.used, values)

    @property
    def log_marginal(self) -> dict[int, float]:
        """log p(x) by row number in x."""
        if self.gap is None:
            return {}
        rows = self.sample.random_subset(len(self.gap.elbo)).rows
        return dict(zip(rows.tolist(), self.gap.log_marginal.tolist(), strict=True))

    @property
    def reliable(self) -> bool:
        """Whether log p(x) is by quadrature, or by importance sampling with a small Pareto k."""
        return self.gap is not None and (self.gap.pareto_k is None or self.gap.pareto_k < RELIABLE)


@torch.no_grad()
def measure(
    model: LatentModel,
    name: str,
    x: object,
    auxiliary: object | None,
    factors: np.ndarray | None,
    sample_shape: tuple[int, int, int] | None = None,
) -> MeasuredModel:
    """Measure one model, without log p(x).

    Args:
        model: the model.
        name: what tables call it.
        x: samples; the same rows are used of every model.
        auxiliary: the auxiliary input of an iVAE.
        factors: (N, k) of all samples.
        sample_shape: (channels, height, width) of samples that are images.
    """
    sample = repair(model, x, auxiliary, SAMPLES, sample_shape).sample
    regime = regime_of([sample])
    skipped: dict[str, str] = {}
    attempt = partial(_attempt, skipped)
    elbo = attempt("ELBO", lambda: elbo_of_samples(sample).numpy())
    derivatives = attempt("geometry", lambda: differentiate_decoder(sample, regime.used)) if _decodes(model) else None
    geometry = near = None
    if derivatives is not None:
        geometry = attempt("geometry", lambda: measure_geometry(WeightedJacobian.of(derivatives)))
        near = Evidence(regime, eq12=near_deterministic_ratio(derivatives)).near_deterministic()
    scores = {} if factors is None else attempt("metrics", lambda: _scores(sample, factors)) or {}
    return MeasuredModel(name, sample, regime, elbo, None, geometry, near, scores, skipped)


def measure_log_marginal(model: MeasuredModel, points: int) -> MeasuredModel:
    """The same model with log p(x) and the parts of the gap, at this many samples."""
    if model.elbo is None:
        return model
    skipped = dict(model.skipped)
    gap = _attempt(skipped, "log p(x)", lambda: gap_at(model.sample, model.regime.used, points))
    return replace(model, gap=gap, skipped=skipped)


def common_points(models: Sequence[MeasuredModel], seconds: float) -> int:
    """At how many samples log p(x) of all models can be computed in this time: a power of two; 0 if too few.

    The same number for all models, whatever their order, so that their values can be paired.
    """
    needed = 0.0
    for model in models:
        skipped: dict[str, str] = {}
        _attempt(skipped, "log p(x)", partial(check_gap, model.sample, model.regime.used))
        if skipped or model.elbo is None:
            continue
        fastest = min(seconds_per_decode(model.sample) for _ in range(TIMINGS))
        needed += fastest * decodes_per_point(model.sample, model.regime.used)
    points = POINTS
    while points * needed > seconds and points >= FEWEST_POINTS:
        points //= 2
    return points if points >= FEWEST_POINTS else 0


def _attempt(skipped: dict[str, str], what: str, analyse: Callable[[], T]) -> T | None:
    """Call an analysis; if it fails, note why."""
    try:
        return analyse()
    except (Skipped, InputError) as reason:
        skipped[what] = str(reason).rstrip(".")
    except (RuntimeError, NotImplementedError) as error:
        skipped[what] = f"the decoder failed ({first_line(error)})"
    return None


def _decodes(model: LatentModel) -> bool:
    return model.has_decoder


def _scores(sample: EncodedSample, factors: np.ndarray) -> dict[str, Score]:
    codes, known = sample.mean.double().cpu().numpy(), factors[sample.rows]
    return {
        "MCC": metrics.mcc(codes, known),
        "linear R²": metrics.linear_r2(codes, known),
        "MIG": metrics.mig(codes, known),
        "DCI disentanglement": metrics.dci(codes, known),
    }
