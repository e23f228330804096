"""A certificate as one self-contained page: findings, rank histograms, widths, bounds, skipped analyses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from vaescope.certification.calibration import COVERAGE
from vaescope.certification.drawings import drawings
from vaescope.report.figures import svg
from vaescope.report.page import render, versions

if TYPE_CHECKING:
    from vaescope.certification.certify import Certificate

VERDICTS = {
    None: "Posteriors are right on simulated x.",
    "note": "Posteriors are as good as their family allows on simulated x; see the notes.",
    "warning": "Read the warnings before you rely on these posteriors.",
    "error": "These posteriors are wrong.",
}
PIXELS = 96  # per inch of figure width, at most
LEGEND = (
    "Width ratio: standard deviation of q over a calibrated one; below 1, too narrow. Width / best of family: over "
    "that of the best diagonal Gaussian, so an error of the encoder. Scatter of means: distance of the encoder's means "
    "from the best ones. Bias: mean of (true z - mean) over the standard deviation. Coverage: share of true values in "
    "central intervals of that probability."
)
GLOSSARY = {
    "simulated x": "z drawn from the prior, x drawn from the decoder at z: z is then an exact sample of p(z|x).",
    "rank": "The share of q(z|x) below the true z. Uniform if q is exact; U-shaped if q is too narrow.",
    "family": "What q can be: diagonal Gaussians. The best one is narrower than the marginals of correlated latents.",
    "bounds on log p(x)": "Annealed importance sampling from below and, from the exact z, from above.",
    "AUC": "How well a classifier tells real from simulated samples: 0.5 if they are alike, 1 if always.",
}


def html(certificate: Certificate) -> str:
    """The page; text from users is escaped."""
    return render("certificate.html", versions=versions(), glossary=GLOSSARY, **_values(certificate))


def fragment(certificate: Certificate) -> str:
    """Findings and the table, for a notebook."""
    return render("certificate_fragment.html", **_values(certificate, figures=False))


def _values(certificate: Certificate, *, figures: bool = True) -> dict[str, object]:
    rows = certificate.summary()
    shown = drawings(certificate.evidence) if figures else []
    return {
        "name": certificate.name,
        "simulations": len(certificate.ranks),
        "verdict": VERDICTS[certificate.worst],
        "findings": certificate.findings,
        "facts": facts(certificate),
        "columns": list(rows[0]) if rows else [],
        "rows": rows,
        "legend": LEGEND,
        "drawings": [(n, Markup(svg(f)), text, round(PIXELS * f.get_figwidth())) for n, f, text in shown],
        "skipped": certificate.skipped,
    }


def facts(certificate: Certificate) -> list[tuple[str, str]]:
    """Single numbers with their labels."""
    evidence = certificate.evidence
    ratio = evidence.calibration.width_ratio
    found = [
        ("latents", str(len(ratio))),
        ("width ratio", f"{ratio.min():.2f} to {ratio.max():.2f}" if len(ratio) > 1 else f"{ratio[0]:.2f}"),
    ]
    found += [(f"{p:.0%} coverage, mean", f"{evidence.calibration.coverage(p).mean():.1%}") for p in COVERAGE]
    if (bounds := evidence.bounds) is not None:
        found.append(("log p(x) known to", f"{_rounded(bounds.sandwich.width)} nats"))
        if bounds.gap is not None:
            found.append(("log p(x) - ELBO", f"{_interval(*bounds.gap)} nats"))
        if bounds.amortisation is not None:
            found.append(("lost by the encoder", f"≥ {_rounded(bounds.amortisation)} nats"))
    if evidence.transfer is not None:
        worst = max(evidence.transfer.tests, key=lambda test: test.auc)
        found.append(("real against simulated, AUC", f"{worst.auc:.2f} ({worst.features})"))
    return found


def _rounded(value: float) -> str:
    return "0" if abs(value) < 5e-4 else f"{value:.2g}"


def _interval(low: float, high: float) -> str:
    return _rounded(low) if abs(high - low) < 5e-4 else f"{_rounded(low)} to {_rounded(high)}"
