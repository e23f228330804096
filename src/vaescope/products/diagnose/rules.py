"""From evidence to findings: a small function per kind of fault, and which fault is the cause of which.

Thresholds were chosen on the development half of the zoo (`tests/zoo`): beyond what its healthy models have.
"""

from __future__ import annotations

from vaescope.products.diagnose import rules_inputs as inputs
from vaescope.products.diagnose import rules_latents as latents
from vaescope.products.diagnose import rules_likelihood as likelihood
from vaescope.products.diagnose.evidence import Evidence
from vaescope.report.findings import Finding

RULES = (
    inputs.untrained,
    inputs.output_size,
    inputs.data_range,
    inputs.not_a_vae,
    inputs.reconstruction,
    inputs.variances,
    inputs.logits,
    latents.collapse,
    likelihood.overfit,
    likelihood.decoder_variance,
    likelihood.beta,
    likelihood.amortisation,
    latents.axes,
    latents.aggregate,
    latents.width,
    latents.unused_layers,
    latents.scaling_factor,
    latents.wide_posteriors,
    latents.stability,
    likelihood.reliability,
)
"""In the order of causes: a finding may be the reason for later ones."""

CERTAIN = {"log-variance", "logits"}  # seen in the outputs themselves, whatever else is wrong
EVERYTHING = frozenset({"*"})
EXPLAINS: dict[str, frozenset[str]] = {
    "untrained": EVERYTHING,
    "output-size": EVERYTHING,
    "data-range": EVERYTHING,
    "reconstruction": EVERYTHING,
    "not-a-vae": EVERYTHING,
    "collapsed": EVERYTHING,
    "repeats-prior": EVERYTHING,
    "overfit": frozenset({"amortisation", "decoder-variance", "beta-low", "beta-high", "aggregate", "rotated"}),
    "decoder-variance": frozenset({"beta-high", "beta-low", "amortisation", "aggregate", "over-wide"}),
    "beta-high": frozenset({"amortisation", "over-wide", "aggregate", "rotated"}),
    "beta-low": frozenset({"amortisation", "aggregate", "rotated"}),
    "amortisation": frozenset({"aggregate", "wide-posteriors", "rotated"}),
    "aggregate": frozenset({"wide-posteriors"}),
}
"""What a finding is the cause of; these are not reported beside it."""


def judge(evidence: Evidence) -> list[Finding]:
    """All findings whose cause is not another finding."""
    found: list[Finding] = []
    for rule in RULES:
        explained = {code for finding in found for code in EXPLAINS.get(finding.code, ())}
        found += [
            f for f in rule(evidence) if f.code not in explained and not ("*" in explained and f.code not in CERTAIN)
        ]
    return found
