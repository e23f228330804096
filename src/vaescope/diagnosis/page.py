"""A diagnosis as one self-contained page: verdicts, the latents, pictures, and what was left out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from markupsafe import Markup

from vaescope.diagnosis.drawings import drawings
from vaescope.diagnosis.evidence import Geometry
from vaescope.diagnosis.rules import near_deterministic
from vaescope.report.figures import svg
from vaescope.report.page import number, render, versions

if TYPE_CHECKING:
    from vaescope.diagnosis.diagnose import Diagnosis

VERDICTS = {
    None: "Nothing to complain of in what could be looked at.",
    "note": "Nothing wrong; some things to know.",
    "warning": "It works, but read the warnings before you trust it.",
    "error": "Something is wrong with it.",
}
PIXELS = 96  # per inch, at most: a small figure stays small
LEGEND = (
    "KL in nats, mean over samples. Variance ratio: posterior over prior. Column norm: how far the decoder moves with "
    "the latent. σ² / Eq. 12: posterior variance over that of a near-deterministic optimum, 1 where the theory holds. "
    "Effect: what drawing the latent from its prior adds to the error, as a share of the variance of x."
)


def html(diagnosis: Diagnosis) -> str:
    """The whole page; all text that users gave is escaped."""
    rows = diagnosis.summary()
    drawn = [
        (name, Markup(svg(figure)), caption, round(PIXELS * figure.get_figwidth()))
        for name, figure, caption in drawings(diagnosis.seen, diagnosis.sample)
    ]
    evaluation = diagnosis.seen.evaluation
    return render(
        "diagnosis.html",
        name=diagnosis.name,
        samples=diagnosis.samples,
        verdict=VERDICTS[diagnosis.worst],
        findings=diagnosis.findings,
        facts=facts(diagnosis),
        columns=list(rows[0]) if rows else [],
        rows=rows,
        legend=LEGEND,
        drawings=drawn,
        scores=[] if evaluation is None else evaluation.rows,
        skipped=diagnosis.skipped,
        about=about(diagnosis),
        versions=versions(),
    )


def about(diagnosis: Diagnosis) -> dict[str, str]:
    """What the model was said to be, and how it was looked at."""
    seen = diagnosis.seen
    declared = None if seen.noise is None or seen.noise.likelihood == "bernoulli" else seen.noise.declared
    near = near_deterministic(seen)
    return {
        "likelihood": seen.likelihood or "not known",
        "precision, as stated": "not known" if declared is None else number(float(declared)),
        "near-deterministic": "not known" if near is None else near[1],
        "samples": str(diagnosis.samples),
        "samples decoded": "0" if diagnosis.sample is None else str(len(diagnosis.sample.seen.mean)),
    }


def facts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Single numbers, in words."""
    seen = diagnosis.seen
    regime = seen.regime
    found = [
        ("latents in use", f"{len(regime.used)} of {regime.latent_dim}"),
        ("KL", f"{number(float(sum(regime.kl)))} nats"),
    ]
    if seen.noise is not None:
        if math.isfinite(seen.noise.explained):
            found.append(("variance explained", f"{seen.noise.explained:.1%}"))
        if seen.noise.likelihood != "bernoulli":
            found.append(("decoder variance, by its errors", number(1 / seen.noise.precision)))
        if seen.noise.beta is not None:
            found.append(("effective β", f"{seen.noise.beta:.2g}"))
    if seen.geometry is not None:
        found.append(("contrast c_IMA", _contrast(seen.geometry)))
        if seen.geometry.rotation is not None:
            found.append(("with the best axes", f"{_nats(seen.geometry.rotation.after)} nats"))
        found.append(("directions of data that codes move", str(seen.geometry.rank)))
    if seen.split is not None:
        gap = seen.split.log_marginal - seen.split.elbo
        found.append(("log p(x) - ELBO", f"{_nats(float(gap.mean()))} nats"))
    near = near_deterministic(seen)
    if near is not None:
        found.append(("near-deterministic theory", "applies" if near[0] else "does not apply"))
    if seen.stability is not None:
        found.append(("agreement between seeds", f"{float(seen.stability.score):.2f}"))
    return found


def _contrast(geometry: Geometry) -> str:
    """With its error, and where it is infinite."""
    if geometry.singular == 1:
        return "infinite at all codes"
    error = "" if math.isnan(geometry.stderr) else f" ± {_nats(2 * geometry.stderr, 1)}"
    share = f", infinite at {geometry.singular:.0%} of codes" if geometry.singular else ""
    return f"{_nats(geometry.contrast)}{error} nats{share}"


def _nats(value: float, digits: int = 3) -> str:
    """Rounding errors are nothing."""
    return "0" if abs(value) < 1e-9 else f"{value:.{digits}g}"
