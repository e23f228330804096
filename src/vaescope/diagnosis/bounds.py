"""ELBO, rate, distortion and log p(x) as rows of the page."""

from __future__ import annotations

import math

from vaescope.diagnosis.elbo import ElboTerms
from vaescope.diagnosis.evidence import Evidence

WIDTH = 2.0  # standard errors of every interval


def interval(value: float, stderr: float, unit: str = "") -> str:
    """A number with two standard errors, rounded to their leading digits.

    >>> interval(-12.3456, 0.0412), interval(3.0, float("nan"))
    ('-12.35 ± 0.08', '3')
    """
    if not math.isfinite(stderr) or stderr <= 0:
        return f"{value:.4g}{unit}"
    error = WIDTH * stderr
    digits = max(0, min(6, -math.floor(math.log10(error / 2))))
    return f"{value:.{digits}f} ± {error:.{digits}f}{unit}"


def bound_rows(evidence: Evidence) -> list[tuple[str, str, str]]:
    """Name, value and meaning of each quantity that is known; empty without a likelihood."""
    terms = evidence.elbo
    if terms is None:
        return []
    rows = [
        ("ELBO", interval(*terms.mean("elbo")), _per_number(evidence, terms)),
        ("rate", interval(*terms.mean("rate")), "KL of posteriors from the prior: what the codes cost"),
        (
            "distortion",
            interval(*terms.mean("distortion")),
            "-log p(x|z) of reconstructions: what they miss",
        ),
    ]
    gap = _gap(evidence)
    if gap is not None:
        value, error = terms.mean("elbo")
        total = math.hypot(error, gap[1]) if math.isfinite(gap[1]) else error
        rows.insert(0, ("log p(x)", interval(value + gap[0], total), "the ELBO and the gap together"))
        rows.insert(2, ("gap", interval(*gap), "log p(x) - ELBO, what a better posterior could gain"))
    return rows


def _per_number(evidence: Evidence, terms: ElboTerms) -> str:
    """Bits per number of discrete data; densities of continuous data may have any sign."""
    meaning = "what training maximises, with β = 1"
    return f"{meaning}; {terms.bits_per_number:.3g} bits per number" if evidence.likelihood == "bernoulli" else meaning


def _gap(evidence: Evidence) -> tuple[float, float] | None:
    """Mean of log p(x) - ELBO, and its standard error."""
    if evidence.gap is not None:
        lost = evidence.gap.log_marginal - evidence.gap.elbo
        return float(lost.mean()), float(lost.std() / len(lost) ** 0.5) if len(lost) > 1 else math.nan
    return None if evidence.marginal is None else evidence.marginal.mean
