"""A diagnosis as one self-contained page: findings, latents, figures, and skipped analyses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from markupsafe import Markup

from vaescope.diagnosis.bounds import bound_rows
from vaescope.diagnosis.drawings import drawings
from vaescope.diagnosis.geometry import Geometry
from vaescope.diagnosis.glossary import GLOSSARY, Glosses, anchor
from vaescope.diagnosis.latent_image import LatentImage
from vaescope.diagnosis.rules.wording import amount
from vaescope.report.figures import svg
from vaescope.report.page import number, render, versions
from vaescope.tables import to_html

if TYPE_CHECKING:
    from vaescope.diagnosis.diagnose import Diagnosis

VERDICTS = {
    None: "No issues found.",
    "note": "No issues found; see the notes.",
    "warning": "Read the warnings before you rely on this model.",
    "error": "This model has a serious problem.",
}
PICTURES = ("reconstructions", "traversals", "codes")  # figures that come before the numbers
CHANNEL_LEGEND = (
    "KL in nats, summed over positions, mean over samples. Mean and std of the codes over samples and positions. Share "
    "of noise: posterior variance over the variance of the channel."
)
FOLDED = 200  # latents in the table, at most
PIXELS = 96  # per inch of figure width, at most
LEGEND = (
    "KL in nats, mean over samples. Variance ratio: posterior over prior. Column norm: how far the output moves per "
    "unit of the latent. σ² / Eq. 12: posterior variance over that of a near-deterministic optimum, 1 if the theory "
    "holds. Effect: squared error added by drawing the latent from its prior, as a share of the variance of x."
)


def html(diagnosis: Diagnosis) -> str:
    """The page; text from users is escaped."""
    rows = diagnosis.summary()
    figures = {
        name: (Markup(svg(figure)), caption, round(PIXELS * figure.get_figwidth()))
        for name, figure, caption in drawings(diagnosis.evidence, diagnosis.sample)
    }
    evaluation = diagnosis.evidence.evaluation
    return render(
        "diagnosis.html",
        name=diagnosis.name,
        samples=diagnosis.samples,
        verdict=VERDICTS[diagnosis.worst],
        findings=diagnosis.findings,
        facts=facts(diagnosis),
        columns=list(rows[0]) if rows else [],
        rows=rows,
        folded=FOLDED,
        legend=LEGEND if diagnosis.evidence.latent_image is None else CHANNEL_LEGEND,
        unit="latents" if diagnosis.evidence.latent_image is None else "channels",
        glossary=[(word, anchor(word), meaning) for word, meaning in GLOSSARY.items()],
        gloss=Glosses(),
        pictures={name: figure for name, figure in figures.items() if name in PICTURES},
        charts={name: figure for name, figure in figures.items() if name not in PICTURES},
        bounds=bound_rows(diagnosis.evidence),
        scores=[] if evaluation is None else evaluation.rows,
        identified=identified(diagnosis),
        skipped=diagnosis.skipped,
        about=about(diagnosis),
        versions=versions(),
    )


def notebook_html(diagnosis: Diagnosis) -> str:
    """A short form for notebooks, without figures."""
    item = Markup("<li><b>{}</b>: {} {} <i>{}</i></li>")
    findings = [item.format(f.severity, f.title, f.evidence, f.advice) for f in diagnosis.findings]
    head = Markup("<b>Diagnosis of {}</b>: {}").format(diagnosis.name, VERDICTS[diagnosis.worst])
    return f"<div>{head}<ul>{''.join(findings)}</ul>{to_html(diagnosis.summary())}</div>"


def identified(diagnosis: Diagnosis) -> list[str]:
    """Whether each latent in use may be read on its own; a sentence about a whole group is shown once."""
    found = diagnosis.evidence.identifiability
    if found is None:
        return []
    lines: list[str] = []
    for k in found.used:
        group, dot, own = found.sentences[k].partition(f". Latent {k}: ")
        repeats = bool(dot) and any(line.startswith(group) for line in lines)
        lines.append(f"Latent {k}: {own}" if repeats else found.sentences[k])
    return lines


def about(diagnosis: Diagnosis) -> dict[str, str]:
    """What the model declares, and how it was analysed."""
    evidence = diagnosis.evidence
    noise, near = evidence.noise, evidence.near_deterministic()
    declared = None if noise is None or noise.likelihood == "bernoulli" else noise.declared
    valid = {} if evidence.validity is None else {"gap and c_IMA": evidence.validity.sentence()}
    return valid | {
        "likelihood": evidence.likelihood or "unknown",
        "declared precision": "unknown" if declared is None else number(float(declared)),
        "near-deterministic": "unknown" if near is None else near.reason,
        "samples": str(diagnosis.samples),
        "samples decoded": "0" if diagnosis.sample is None else str(len(diagnosis.sample)),
    }


def facts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Single numbers with their labels."""
    evidence = diagnosis.evidence
    regime, noise, geometry = evidence.regime, evidence.noise, evidence.geometry
    found = [
        ("latents in use", f"{len(regime.used)} of {regime.latent_dim}"),
        ("KL", f"{amount(float(sum(regime.kl)))} nats"),
        *_channel_facts(evidence.latent_image),
    ]
    if noise is not None:
        if math.isfinite(noise.explained):
            share = f"{noise.explained:.1%}" if noise.explained > -1 else "worse than the mean"
            found.append(("variance explained", share))
        if noise.likelihood != "bernoulli":
            found.append(("decoder variance, from errors", amount(1 / noise.precision)))
        if noise.beta is not None:
            found.append(("effective β", amount(noise.beta)))
    if geometry is not None:
        found.append(("contrast c_IMA", _contrast(geometry)))
        if geometry.rotation is not None:
            found.append(("contrast with the best axes", f"{_nats(geometry.rotation.after)} nats"))
        found.append(("directions of data space that codes move", str(geometry.rank)))
    if evidence.validity is not None:
        near_limit = float(evidence.validity.valid.double().mean())
        found.append((f"samples with a gap within {evidence.validity.tolerance:g} nats of c_IMA", f"{near_limit:.0%}"))
    near = evidence.near_deterministic()
    if near is not None:
        found.append(("near-deterministic theory", "applies" if near.applies else "does not apply"))
    if evidence.aggregate is not None:
        found.append(("codes against prior samples, AUC", f"{evidence.aggregate.auc:.2f}"))
    if evidence.generalisation is not None:
        lost = evidence.generalisation
        found.append(("ELBO, training - held-out", f"{_nats(lost.lost)} ± {_nats(2 * lost.stderr, 1)} nats"))
    if evidence.stability is not None:
        found.append(("agreement between seeds", f"{evidence.stability.score:.2f}"))
        found.append(("agreement of their subspaces", f"{evidence.stability.subspace:.2f}"))
    return found


def _channel_facts(found: LatentImage | None) -> list[tuple[str, str]]:
    """What a model of the codes needs to know."""
    if found is None:
        return []
    facts = [
        ("std of the codes", f"{found.total_std:.3g}"),
        ("scaling factor for a std of 1", f"{1 / found.total_std:.4g}"),
        ("shift factor for a mean of 0", f"{float(found.mean.mean()):.3g}"),
    ]
    if found.scaling is not None:
        facts.append(("declared scaling and shift factor", f"{found.scaling:g}, {found.shift or 0:g}"))
    if found.effective_precision is not None:
        facts.append(("effective precision / β", amount(found.effective_precision)))
    return facts


def _contrast(geometry: Geometry) -> str:
    """With its error, and the share of codes at which it is infinite."""
    if geometry.singular == 1:
        return "infinite at all codes"
    error = "" if math.isnan(geometry.stderr) else f" ± {_nats(2 * geometry.stderr, 1)}"
    share = f", infinite at {geometry.singular:.0%} of codes" if geometry.singular else ""
    return f"{_nats(geometry.contrast)}{error} nats{share}"


def _nats(value: float, digits: int = 3) -> str:
    """Rounding errors are shown as zero."""
    return "0" if abs(value) < 1e-9 else f"{value:.{digits}g}"
