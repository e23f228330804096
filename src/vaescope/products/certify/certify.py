"""Certify the posteriors of a trained model on data simulated from its own prior and decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.loss.reading import models_with_loss
from vaescope.analysis.models import RepairedModel, repair
from vaescope.analysis.samples import read_samples
from vaescope.core.budget import Budget, Progress, to_stderr
from vaescope.core.errors import Attempts, InputError, Skipped
from vaescope.core.tables import Table
from vaescope.core.validation import integer, number
from vaescope.products.certify.figures import drawings
from vaescope.products.certify.findings import Evidence, judge
from vaescope.products.certify.measure import (
    Cause,
    Optimality,
    Transfer,
    compare_with_real,
    find_cause,
    measure_optimality,
)
from vaescope.products.certify.simulate import (
    COVERAGE,
    GapBounds,
    JointRanks,
    Quantity,
    Simulation,
    bound_gap,
    calibrate,
    joint_of,
    posterior_of,
    rank_jointly,
    simulate,
)
from vaescope.protocol import LatentModel
from vaescope.report.findings import Finding, by_severity
from vaescope.report.page import Drawing
from vaescope.report.report import Report
from vaescope.report.wording import span


@dataclass(frozen=True, eq=False, repr=False)
class Certificate(Report):
    """Whether the encoder's posteriors are right on simulated x, and whether real x look like these."""

    name: str
    """What the report calls the model."""
    findings: list[Finding]
    """Most severe first."""
    evidence: Evidence
    """What was measured."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Analyses that could not be made, and why."""

    legend = (
        "Width ratio: standard deviation of q over a calibrated one; below 1, too narrow. Width / best of family: over "
        "that of the best diagonal Gaussian, so an error of the encoder. Scatter of means: distance of the encoder's "
        "means from the best ones. Bias: mean of (true z - mean) over the standard deviation. Coverage: share of true "
        "values in central intervals of that probability. Bounds on log p(x): annealed importance sampling from below "
        "and, from the exact z, from above."
    )

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        return {
            None: "Posteriors are right on simulated x.",
            "note": "Posteriors are as good as their family allows on simulated x; see the notes.",
            "warning": "Read the warnings before you rely on these posteriors.",
            "error": "These posteriors are wrong.",
        }[self.worst]

    @property
    def ranks(self) -> Float[np.ndarray, "N d"]:
        """Share of the encoder's posterior below the true latent; uniform if the posterior is exact."""
        return self.evidence.calibration.ranks

    @property
    def width_ratio(self) -> Float[np.ndarray, " d"]:
        """Standard deviation of q over a calibrated one, per latent; below 1 it is too narrow."""
        return self.evidence.calibration.width_ratio

    @property
    def joint(self) -> dict[str, JointRanks]:
        """Ranks of quantities that depend on all latents at once, with p-values, by name."""
        return {one.name: one for one in self.evidence.joint}

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

    def summary(self) -> Table:
        """A row per latent: widths, bias and coverage."""
        calibration, encoder = self.evidence.calibration, self.evidence.optimality
        columns: dict[str, np.ndarray] = {"width ratio": calibration.width_ratio}
        if encoder is not None:
            columns["width / best of family"] = encoder.width_ratio
            columns["scatter of means"] = encoder.scatter
        columns["bias"] = calibration.bias
        columns |= {f"{level:.0%} coverage": calibration.coverage(level) for level in COVERAGE}
        return Table(
            {"latent": k, **{name: float(values[k]) for name, values in columns.items()}}
            for k in range(self.ranks.shape[1])
        )

    def content(self) -> dict[str, object]:
        """Findings and numbers."""
        bounds, transfer = self.evidence.bounds, self.evidence.transfer
        return {
            "name": self.name,
            "worst": self.worst,
            "simulations": len(self.ranks),
            "findings": [finding.to_data() for finding in self.findings],
            "latents": list(self.summary()),
            "log_marginal_bounds": None if bounds is None else bounds.sandwich.bounds.tolist(),
            "gap": None if bounds is None else bounds.gap,
            "transfers": self.transfers,
            "auc": {} if transfer is None else {test.features: test.auc for test in transfer.tests},
            "joint": {one.name: one.p_value for one in self.evidence.joint},
            "skipped": self.skipped,
        }

    def figures(self) -> list[Drawing]:
        """Rank histograms, widths, and bounds on log p(x)."""
        return drawings(self.evidence)

    def facts(self) -> list[tuple[str, str]]:
        """Single numbers with their labels."""
        evidence, ratio = self.evidence, self.width_ratio
        found = [
            ("simulated x", str(len(self.ranks))),
            ("latents", str(len(ratio))),
            ("width ratio", span(float(ratio.min()), float(ratio.max()))),
        ]
        found += [(f"{p:.0%} coverage, mean", f"{evidence.calibration.coverage(p).mean():.1%}") for p in COVERAGE]
        if (bounds := evidence.bounds) is not None:
            found.append(("log p(x) known to", f"{span(bounds.sandwich.width, bounds.sandwich.width)} nats"))
            if bounds.gap is not None:
                found.append(("log p(x) - ELBO", f"{span(*bounds.gap)} nats"))
            if bounds.amortization is not None:
                found.append(("lost by the encoder", f"≥ {span(bounds.amortization, bounds.amortization)} nats"))
        if evidence.transfer is not None:
            worst = max(evidence.transfer.tests, key=lambda test: test.auc)
            found.append(("real against simulated, AUC", f"{worst.auc:.2f} ({worst.features})"))
        return found


@torch.no_grad()
def certify(
    model: object,
    x: object,
    *,
    simulations: int = 1000,
    auxiliary: object | None = None,
    loss: object | None = None,
    name: str | None = None,
    budget: float = 90.0,
    quantities: Mapping[str, object] | None = None,
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
        auxiliary: the auxiliary input of an iVAE or a conditional VAE, a label or a row of numbers per sample.
            Simulated x have the inputs of random rows.
        loss: what the model was trained with, as for `vs.diagnose`: it says which likelihood x are simulated from.
        name: what the report calls the model.
        budget: seconds that this may take; bounds on log p(x) use what is left of it.
        quantities: functions of your own by name, (x, z) -> a number per row, whose ranks under q(z|x) are tested
            beside those of log p(x|z), log p(x, z) and distances from random points.
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
    integer("simulations", simulations, minimum=200)
    clock = Budget(number("budget", budget, above=0.0, hint="it is in seconds"), progress, name="certify")
    first = models_with_loss(model, loss, x)[0]
    if not first.has_decoder:
        raise InputError("certify needs a decoder: it simulates x from draws of the prior.")
    given = read_samples(first, x, auxiliary)
    clock.say(f"simulating {simulations} x from the prior and the decoder")
    repaired = repair(first, given, None, 1000)
    real = repaired.sample
    plain = RepairedModel(first, scale=repaired.model.scale, logits=repaired.model.logits)
    try:
        simulation = simulate(plain, real, simulations, given.auxiliary, seed)
    except Skipped as reason:
        raise InputError(f"certify cannot simulate x: {reason}.") from None
    raw = simulation.encoded.variance  # the encoder's second output as it is
    if plain.scale != "variance":
        untouched = RepairedModel(first, logits=repaired.model.logits, replace_zero_variance=False)
        raw = untouched.encode(simulation.encoded.x, simulation.auxiliary)[1]
    evidence, skipped = _measure(first, real, simulation, raw, clock, seed)
    own = {key: cast(Quantity, function) for key, function in (quantities or {}).items()}
    clock.say("ranking quantities of all latents")
    attempts = Attempts(skipped)
    joint = (
        rank_jointly(simulation, own, seed=seed)
        if own
        else attempts("joint ranks", lambda: rank_jointly(simulation, {}, seed=seed))
    )
    evidence, skipped = replace(evidence, joint=tuple(joint or ())), attempts.skipped
    return Certificate(name or first.name, by_severity(judge(evidence)), evidence, skipped)


def _measure(
    model: LatentModel, real: EncodedSample, simulation: Simulation, raw: Tensor, clock: Budget, seed: int
) -> tuple[Evidence, dict[str, str]]:
    attempts, latents = Attempts(), simulation.z.shape[1]

    def optimality() -> Optimality:
        if simulation.encoded.model.posterior_family != "diagonal":
            raise Skipped("encode returns the marginals of q(z|x), not q itself")
        return measure_optimality(simulation.joint(), simulation.posterior, seed=seed)

    def optimality_of_real() -> Optimality:
        chosen = real.random_subset(500)
        own = replace(chosen, model=simulation.encoded.model)
        prior = model.prior if own.auxiliary is None else model.prior_at(own.auxiliary, like=own.mean.double())
        return measure_optimality(joint_of(own, prior, None), posterior_of(own, prior), seed=seed)

    def bounds() -> GapBounds:
        if latents > 64:
            raise Skipped("more than 64 latents would take too long")
        if cause is not None and cause.code == "units-of-x":
            raise Skipped(f"it means nothing with the finding {cause.code}")
        clock.say("bounding log p(x) from both sides")
        return bound_gap(simulation, clock, seed=seed)

    clock.say("comparing real with simulated x")
    transfer: Transfer | None = attempts("transfer", lambda: compare_with_real(real, simulation.encoded))
    clock.say("comparing posteriors with the best of their family")
    measured: Optimality | None = attempts("best of family", optimality)
    at_real: Optimality | None = None
    if measured is not None and transfer is not None and transfer.transfers is False:
        at_real = attempts("best of family at real x", optimality_of_real)
    cause: Cause | None = attempts("named causes", lambda: find_cause(simulation, raw, real, at_real or measured))
    bounded: GapBounds | None = attempts("bounds on log p(x)", bounds)
    x = real.observations
    between = float(((x > 0.01) & (x < 0.99)).double().mean())
    binary = model.likelihood == "bernoulli" and between > 0.02  # only simulated x are
    evidence = Evidence(calibrate(simulation), measured, cause, bounded, transfer, model.beta, binary, at_real=at_real)
    return evidence, attempts.skipped
