"""Certify the posteriors of a trained model on data simulated from its own prior and decoder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample, check_samples
from vaescope.analysis.models import RepairedModel, as_models, repair
from vaescope.core.checks import number, whole_number
from vaescope.core.errors import Attempts, InputError, Skipped
from vaescope.products.certify.bounds import LARGEST_DIM, GapBounds, Joint, bound_gap
from vaescope.products.certify.findings import Evidence, judge
from vaescope.products.certify.page import fragment, html
from vaescope.products.certify.simulate import COVERAGE, Calibration, Simulation, calibrate, simulate
from vaescope.products.certify.tests import (
    Cause,
    Optimality,
    Transfer,
    compare_with_real,
    find_cause,
    measure_optimality,
)
from vaescope.protocol import LatentModel
from vaescope.report.budget import Budget, Progress, to_stderr
from vaescope.report.findings import Finding, by_severity, worst_severity
from vaescope.runs.files import json_data, write_json, write_text

SIMULATIONS = 1000
FEWEST_SIMULATIONS = 200
REAL_SAMPLES = 1000
BINARY = 0.02  # share of values between 0 and 1 from which x is not binary


@dataclass(frozen=True, eq=False)
class Certificate:
    """Whether the encoder's posteriors are right on simulated x, and whether real x look like these."""

    name: str
    """What the report calls the model."""
    findings: list[Finding]
    """Most severe first."""
    evidence: Evidence
    """What was measured."""
    skipped: dict[str, str]
    """Analyses that could not be made, and why."""

    @property
    def worst(self) -> str | None:
        """error, warning, note, or None."""
        return worst_severity(self.findings)

    @property
    def ranks(self) -> Float[np.ndarray, "N d"]:
        """Share of the encoder's posterior below the true latent; uniform if the posterior is exact."""
        return self.evidence.calibration.ranks

    @property
    def width_ratio(self) -> Float[np.ndarray, " d"]:
        """Standard deviation of q over a calibrated one, per latent; below 1 it is too narrow."""
        return self.evidence.calibration.width_ratio

    @property
    def log_marginal_bounds(self) -> Float[Tensor, "P 2"] | None:
        """Lower and upper bound on log p(x) of some simulated x, in nats; None if they could not be computed.

        Estimates moved outwards by two standard errors: they hold on average, and almost always for each x.
        """
        return None if self.evidence.bounds is None else self.evidence.bounds.sandwich.bounds

    @property
    def transfers(self) -> bool | None:
        """Whether real x look like simulated ones; None if that could not be decided."""
        return None if self.evidence.transfer is None else self.evidence.transfer.transfers

    def summary(self) -> list[dict[str, object]]:
        """A row per latent: widths, bias and coverage."""
        calibration, encoder = self.evidence.calibration, self.evidence.optimality
        columns: dict[str, np.ndarray] = {"width ratio": calibration.width_ratio}
        if encoder is not None:
            columns["width / best of family"] = encoder.width_ratio
            columns["scatter of means"] = encoder.scatter
        columns["bias"] = calibration.bias
        columns |= {f"{level:.0%} coverage": calibration.coverage(level) for level in COVERAGE}
        return [
            {"latent": k, **{name: float(values[k]) for name, values in columns.items()}}
            for k in range(self.ranks.shape[1])
        ]

    def to_data(self) -> dict[str, object]:
        """Findings and numbers as JSON data."""
        bounds, transfer = self.evidence.bounds, self.evidence.transfer
        data: dict[str, object] = {
            "name": self.name,
            "worst": self.worst,
            "simulations": len(self.ranks),
            "findings": [finding.to_data() for finding in self.findings],
            "latents": self.summary(),
            "log_marginal_bounds": None if bounds is None else bounds.sandwich.bounds.tolist(),
            "gap": None if bounds is None else bounds.gap,
            "transfers": self.transfers,
            "auc": {} if transfer is None else {test.features: test.auc for test in transfer.tests},
            "skipped": self.skipped,
        }
        return {key: json_data(value) for key, value in data.items()}

    def to_json(self, path: str | Path) -> Path:
        """Write findings and numbers.

        Args:
            path: the file.
        """
        write_json(Path(path), self.to_data())
        return Path(path)

    def to_html(self, path: str | Path) -> Path:
        """Write the page: one file that loads nothing from the network.

        Args:
            path: the file.
        """
        write_text(Path(path), html(self))
        return Path(path)

    def _repr_html_(self) -> str:
        return fragment(self)

    def __repr__(self) -> str:
        lines = [f"Certificate of {self.name}: {len(self.findings)} findings"]
        lines += [f"  {f.severity}: {f.title} {f.advice}" for f in self.findings]
        return "\n".join(lines)


@torch.no_grad()
def certify(
    model: object,
    x: object,
    *,
    simulations: int = SIMULATIONS,
    auxiliary: object | None = None,
    name: str | None = None,
    budget: float = 90.0,
    seed: int = 0,
    progress: Progress | None = to_stderr,
) -> Certificate:
    """Check q(z|x) against the exact posterior, which simulated data make possible.

    The prior and the decoder are a simulator: draws of z and of x given z are exact samples of the posterior p(z|x) of
    each simulated x. Ranks of z under q(z|x), widths, biases and coverage follow from them, and bounds on log p(x) from
    both sides. A classifier then says whether real x look like simulated ones.

    Args:
        model: a member of a fit, a model from `vs.adapters`, or your own `LatentModel`; of several models or a fit, the
            first (the best member).
        x: real samples, a row or an image each.
        simulations: number of simulated x.
        auxiliary: the auxiliary input of an iVAE, a label or a row of numbers per sample.
        name: what the report calls the model.
        budget: seconds that this may take; bounds on log p(x) use what is left of it.
        seed: of all draws.
        progress: called with lines that say what is being done; None for silence.

    >>> from vaescope.adapters import from_callables
    >>> exact = from_callables(  # x = z + noise of variance 1: the posterior is N(x/2, 1/2)
    ...     encode=lambda x: (x / 2, 0.5 + 0 * x), decode=lambda z: z, latent_dim=1, precision=1.0)
    >>> x = 2**0.5 * torch.randn(400, 1, generator=torch.Generator().manual_seed(0))
    >>> found = certify(exact, x, progress=None)
    >>> found.findings, round(float(found.width_ratio[0]), 1), found.transfers
    ([], 1.0, True)
    """
    whole_number("simulations", simulations, minimum=FEWEST_SIMULATIONS)
    clock = Budget(number("budget", budget, above=0.0, hint="it is in seconds"), progress, name="certify")
    first = as_models(model)[0]
    if not first.has_decoder:
        raise InputError("certify needs a decoder: it simulates x from draws of the prior.")
    samples, labels = check_samples(x, auxiliary)
    clock.say(f"simulating {simulations} x from the prior and the decoder")
    real, simulation, raw = _simulated(first, samples, labels, simulations, seed)
    evidence, skipped = _measure(first, real, simulation, raw, clock, seed)
    return Certificate(name or first.name, by_severity(judge(evidence)), evidence, skipped)


def _simulated(
    model: LatentModel, x: object, auxiliary: object | None, count: int, seed: int
) -> tuple[EncodedSample, Simulation, Float[Tensor, "N d"]]:
    """Encoded real samples, simulations, and the encoder's second output for these as it is."""
    repaired = repair(model, x, auxiliary, REAL_SAMPLES)
    plain = RepairedModel(model, scale=repaired.model.scale, logits=repaired.model.logits)
    try:
        simulation = simulate(plain, repaired.sample, count, auxiliary, seed)
    except Skipped as reason:
        raise InputError(f"certify cannot simulate x: {reason}.") from None
    if plain.scale == "variance":
        return repaired.sample, simulation, simulation.encoded.variance
    untouched = RepairedModel(model, logits=repaired.model.logits, replace_zero_variance=False)
    return repaired.sample, simulation, untouched.encode(simulation.encoded.x, simulation.auxiliary)[1]


def _measure(
    model: LatentModel, real: EncodedSample, simulation: Simulation, raw: Tensor, clock: Budget, seed: int
) -> tuple[Evidence, dict[str, str]]:
    attempts = Attempts()
    clock.say("comparing real with simulated x")
    transfer: Transfer | None = attempts("transfer", lambda: compare_with_real(real, simulation.encoded))
    cause: Cause | None = attempts("named causes", lambda: find_cause(simulation, raw, real))
    clock.say("comparing posteriors with the best of their family")
    optimality: Optimality | None = attempts("best of family", lambda: _optimality(simulation, seed))
    bounds: GapBounds | None = attempts("bounds on log p(x)", lambda: _gap(simulation, cause, clock, seed))
    calibration: Calibration = calibrate(simulation)
    evidence = Evidence(
        calibration, optimality, cause, bounds, transfer, model.beta, _only_simulated_binary(model, real)
    )
    return evidence, attempts.skipped


def _optimality(simulation: Simulation, seed: int) -> Optimality:
    if simulation.encoded.model.posterior_family != "diagonal":
        raise Skipped("encode returns the marginals of q(z|x), not q itself")
    return measure_optimality(Joint.of(simulation), simulation.posterior, seed=seed)


def _gap(simulation: Simulation, cause: Cause | None, clock: Budget, seed: int) -> GapBounds:
    if simulation.z.shape[1] > LARGEST_DIM:
        raise Skipped(f"more than {LARGEST_DIM} latents would take too long")
    if cause is not None and cause.code == "units-of-x":
        raise Skipped(f"it means nothing with the finding {cause.code}")
    clock.say("bounding log p(x) from both sides")
    return bound_gap(simulation, clock, seed=seed)


def _only_simulated_binary(model: LatentModel, real: EncodedSample) -> bool:
    x = real.observations
    between = ((x > 0.01) & (x < 0.99)).double().mean()
    return model.likelihood == "bernoulli" and float(between) > BINARY
