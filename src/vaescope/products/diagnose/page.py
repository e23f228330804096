"""A diagnosis as one self-contained page: findings, latents, figures, and skipped analyses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.gap import ElboGap
from vaescope.analysis.geometry import Geometry
from vaescope.analysis.models import drawable_shape
from vaescope.core.errors import InputError
from vaescope.core.tables import to_html
from vaescope.products.diagnose.evidence import Evidence, bound_rows
from vaescope.products.diagnose.latent_image import LatentImage
from vaescope.report import figures
from vaescope.report.figures import svg
from vaescope.report.page import number, render, versions
from vaescope.report.wording import amount

if TYPE_CHECKING:
    from vaescope.products.diagnose.diagnose import Diagnosis


LATENTS = 8  # that are drawn, at most
SHOWN_PICTURES = 8  # that are shown with their reconstructions
STEPS = 7  # of a traversal
OUTPUTS = 10  # that are drawn of data other than images, at most
RANGE = 2.0  # of a traversal, in standard deviations of the prior


def drawings(evidence: Evidence, sample: EncodedSample | None) -> Iterator[tuple[str, Figure, str]]:
    """Name, figure and caption of each figure."""
    latents = evidence.regime.used[:LATENTS]
    if sample is not None and can_be_drawn(sample) and (image := image_shape(sample)) is not None:
        yield "reconstructions", _reconstructions(sample, image), _RECONSTRUCTIONS
    if evidence.latent_image is not None:
        yield "channels", _channels(evidence.latent_image), _CHANNELS
        return
    if sample is not None and latents and can_be_drawn(sample):
        yield "traversals", _traversals(sample, latents), _traversal_caption(sample, evidence)
    if sample is not None and latents:
        yield "codes", _codes(sample, latents), _CODES
    if evidence.geometry is not None and len(latents) > 1:
        yield "angles", _angles(evidence), _ANGLES
    if evidence.gap is not None:
        yield "gap", _gap(evidence.gap), f"{_GAP} {evidence.gap.note}".strip()


def can_be_drawn(sample: EncodedSample) -> bool:
    """Whether outputs are finite, and images or of the shape of x."""
    try:
        output = sample.decoded
    except InputError:
        return False
    drawable = output.shape == sample.observations.shape or image_shape(sample) is not None
    return drawable and bool(output.isfinite().all())


def image_shape(sample: EncodedSample) -> tuple[int, int, int] | None:
    return drawable_shape(sample.model, sample.decoded.shape[1])


@torch.no_grad()
def traverse(sample: EncodedSample, latent: int, values: list[float]) -> torch.Tensor:
    """Outputs as one latent takes these values and the others are those of a typical sample."""
    row = _typical_row(sample)
    codes = sample.mean[row].repeat(len(values), 1)
    codes[:, latent] = torch.tensor(values, dtype=codes.dtype)
    return sample.decode(codes, torch.full((len(values),), row))


def _typical_row(sample: EncodedSample) -> int:
    """The sample at the median distance from the centre of all codes; at the centre itself there may be no data."""
    distance = (sample.mean - sample.mean.median(0).values).norm(dim=1)
    return int((distance - distance.median()).abs().argmin())


def traversal_values(sample: EncodedSample, latent: int, steps: int) -> list[float]:
    centre = float(sample.prior_mean[:, latent].mean())
    width = float(sample.prior_variance[:, latent].mean()) ** 0.5
    return [float(v) for v in np.linspace(centre - RANGE * width, centre + RANGE * width, steps)]


def _traversals(sample: EncodedSample, latents: list[int]) -> Figure:
    image = image_shape(sample)
    return _images(sample, latents, image) if image else _curves(sample, latents)


def _images(sample: EncodedSample, latents: list[int], image: tuple[int, int, int]) -> Figure:
    figure, axes = figures.grid_of_panels(len(latents), STEPS, width=1.25, height=1.25)
    for row, latent in enumerate(latents):
        frames = traverse(sample, latent, traversal_values(sample, latent, STEPS)).reshape(STEPS, *image)
        low, high = float(frames.min()), float(frames.max())
        low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
        for step in range(STEPS):
            axis = axes[row * STEPS + step]
            show_image(axis, (frames[step] - low) / max(high - low, 1e-12), image)
            if step == 0:
                axis.set_ylabel(f"z{latent}", rotation=0, ha="right", va="center")
    return figure


@torch.no_grad()
def _reconstructions(sample: EncodedSample, image: tuple[int, int, int]) -> Figure:
    """Samples, their reconstructions, and what the decoder makes of draws from the prior."""
    chosen = sample.random_subset(SHOWN_PICTURES)
    drawn = chosen.decode(chosen.draw_prior("pictures"))
    rows = {"x": chosen.observations, "rebuilt": chosen.decoded, "prior": drawn}
    figure, axes = figures.grid_of_panels(len(rows), len(chosen), width=1.1, height=1.1)
    low, high = float(chosen.observations.min()), float(chosen.observations.max())
    for row, (name, values) in enumerate(rows.items()):
        for column, frame in enumerate(values.double().reshape(-1, *image)):
            axis = axes[row * len(chosen) + column]
            show_image(axis, (frame - low) / max(high - low, 1e-12), image)
            if column == 0:
                axis.set_ylabel(name, rotation=0, ha="right", va="center")
    return figure


def show_image(axis: Axes, frame: torch.Tensor, image: tuple[int, int, int]) -> None:
    """An image with values from 0 to 1."""
    pixels = frame.clamp(0, 1).permute(1, 2, 0).numpy()
    axis.imshow(pixels[..., 0] if image[0] == 1 else pixels[..., :3], cmap="gray", vmin=0, vmax=1)
    axis.set_xticks([])
    axis.set_yticks([])


def _curves(sample: EncodedSample, latents: list[int]) -> Figure:
    """The outputs that change most, as functions of one latent, in standard deviations over the data."""
    columns = min(4, len(latents))
    figure, axes = figures.grid_of_panels(math.ceil(len(latents) / columns), columns, width=3.1, height=2.6)
    x = sample.observations
    scale = x.std(0, correction=0).clamp(min=1e-12)
    for axis, latent in zip(axes, latents, strict=False):
        values = traversal_values(sample, latent, 25)
        curves = (traverse(sample, latent, values).double() - x.mean(0)) / scale
        curves[:, x.std(0, correction=0) == 0] = 0  # a column that is constant has no scale to be drawn in
        largest = curves.std(0, correction=0).argsort(descending=True)[:OUTPUTS]
        for output in largest.tolist():
            axis.plot(values, curves[:, output].numpy(), lw=1.3, label=f"x{output}")
        axis.set_title(f"z{latent}", fontsize=10)
        axis.grid(visible=True, alpha=0.4)
        axis.legend(fontsize=7, ncols=2) if len(largest) <= 6 else None
    for axis in axes[len(latents) :]:
        axis.set_axis_off()
    return figure


def _traversal_caption(sample: EncodedSample, evidence: Evidence) -> str:
    curves = ": the outputs that change most, in standard deviations over the data"
    shown = "" if image_shape(sample) else curves
    rest = len(evidence.regime.used) - LATENTS
    more = f" {rest} more latents are in use." if rest > 0 else ""
    span = f"from -{RANGE:g} to {RANGE:g} standard deviations of its prior"
    return f"One latent at a time, {span}, with the others fixed at a typical code{shown}.{more}"


def _codes(sample: EncodedSample, latents: list[int]) -> Figure:
    columns = min(4, len(latents))
    figure, axes = figures.grid_of_panels(math.ceil(len(latents) / columns), columns, width=2.7, height=2.0)
    grid = np.linspace(-3.5, 3.5, 100)
    density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    shift = ((sample.mean - sample.prior_mean) / sample.prior_variance.sqrt()).double()
    for axis, latent in zip(axes, latents, strict=False):
        codes = shift[:, latent].numpy()
        axis.hist(codes.clip(-3.5, 3.5), bins=30, range=(-3.5, 3.5), density=True, color=figures.COLOURS[0], alpha=0.6)
        axis.plot(grid, density, color="#222", lw=1.1)
        axis.set_title(f"z{latent}", fontsize=10)
        axis.set_yticks([])
    for axis in axes[len(latents) :]:
        axis.set_axis_off()
    return figure


def _angles(evidence: Evidence) -> Figure:
    assert evidence.geometry is not None
    angles = np.array(evidence.geometry.angles, dtype=float)
    names = [f"z{k}" for k in evidence.regime.used]
    figure, (axis,) = figures.grid_of_panels(1, 1, width=1.6 + 0.5 * len(names), height=1.2 + 0.45 * len(names))
    np.fill_diagonal(angles, np.nan)
    picture = axis.imshow(angles, cmap="viridis", vmin=0, vmax=90)
    if len(names) <= 12:
        for i, j in np.argwhere(~np.isnan(angles)):
            colour = "white" if angles[i, j] < 60 else "#10151a"
            axis.text(j, i, f"{angles[i, j]:.0f}", ha="center", va="center", fontsize=8, color=colour)
    axis.set_xticks(range(len(names)), names)
    axis.set_yticks(range(len(names)), names)
    figure.colorbar(picture, ax=axis, label="degrees (90: orthogonal)", shrink=0.9)
    return figure


def _channels(found: LatentImage) -> Figure:
    """KL of positions, eigenvalues of channels, and power of frequencies."""
    figure, (left, middle, right) = figures.row_of_panels(3, width=3.2, height=2.7)
    picture = left.imshow(found.positions.numpy(), cmap="viridis", vmin=0)
    left.set_xticks([])
    left.set_yticks([])
    figure.colorbar(picture, ax=left, label="KL of a position, nats", shrink=0.85)
    middle.bar(range(1, len(found.spectrum) + 1), found.spectrum.numpy(), color=figures.COLOURS[0])
    middle.set_xlabel("eigenvalue of the channels")
    right.plot(range(1, len(found.power) + 1), found.power.numpy(), marker="o", color=figures.COLOURS[0])
    right.set_xlabel("cycles per latent image")
    right.set_ylabel("share of power")
    right.set_ylim(bottom=0)
    return figure


def _gap(gap: ElboGap) -> Figure:
    parts = {
        "family": "family: the loss of the best posterior of this family",
        "amortisation": "amortisation: the additional loss of this encoder",
    }
    figure, (axis,) = figures.row_of_panels(1, width=8.0, height=2.3)
    rows = [(label, *gap.mean(name)) for name, label in parts.items()]
    for y, (label, value, error) in enumerate(rows):
        axis.barh(y, value, xerr=2 * error, color=figures.COLOURS[y], height=0.55)
        axis.text(0.0, y + 0.33, f" {label}: {value:.3g} ± {2 * error:.2g}", va="bottom", fontsize=9.5)
    axis.set_ylim(-0.5, len(rows) - 0.1)
    axis.set_yticks([])
    axis.set_xlabel("nats")
    return figure


_RECONSTRUCTIONS = "Samples, their reconstructions, and what the decoder makes of draws from the prior."
_CHANNELS = (
    "KL of each position, summed over channels; eigenvalues of the covariance of the channels; share of the power of "
    "the codes at each spatial frequency."
)
_CODES = "Posterior means of latents in use, in standard deviations of their prior (the line)."
_ANGLES = "Mean angle between columns of the decoder's Jacobian, latents in use, highest KL first."
_GAP = "The gap between log p(x) and the ELBO, mean over samples with two standard errors."


GLOSSARY = {
    "latent": "One coordinate of the code z that the encoder gives a sample.",
    "posterior": "q(z|x), the distribution of codes that the encoder gives a sample: mean and variance per latent.",
    "prior": "p(z), the distribution of codes before a sample is seen, usually N(0, I). To generate, draw from it.",
    "nats": "Units of information with the natural logarithm; 1 nat is 1.44 bits.",
    "ELBO": "What training maximises, minus rate and distortion, per sample. It is at most log p(x).",
    "log p(x)": "How probable the model finds a sample. Higher is better; only comparable on the same data and scale.",
    "rate": "KL between posterior and prior, summed over latents: the information that the code of a sample carries.",
    "distortion": "-log p(x|z) of reconstructions: the reconstruction term of the loss, with its constants.",
    "KL": "How far the posterior of a latent is from its prior. Zero: the latent carries no information.",
    "β": "What the KL is multiplied by in the loss. 1 is the ELBO. Only precision / β has an effect on the optimum.",
    "precision": "1 / variance of the decoder: 1 for half the summed squared error, 2/n for a mean over n numbers.",
    "Eq. 12": "σ² = 1 / (1 + precision · ‖column‖²), the variance of the best narrow posterior.",
    "gap": "log p(x) - ELBO. Family: what the best posterior of its kind loses. Amortisation: what the encoder loses "
    "beyond it.",
    "amortisation": "The part of the gap that is due to the encoder.",
    "c_IMA": "How far the columns of the decoder's Jacobian are from orthogonal, in nats; 0 if they are.",
    "column norm": "How far the output moves per unit of a latent.",
    "variance ratio": "Variance of the posterior over that of the prior: near 1 if a latent is not used.",
    "effect": "Squared error added by drawing a latent from its prior, as a share of the variance of x.",
    "active": "A latent with information about every sample. Passive: at the prior. Mixed: for some samples only.",
    "AUC": "How well codes of data and draws from the prior are distinguished: 0.5 if they are alike, 1 if always.",
    "Pareto k̂": "How reliable importance sampling is: reliable below 0.7.",
    "identified as": "axis: a latent may be read on its own; subspace: only together with others; none: neither.",
    "±": "Two standard errors, everywhere on this page.",
}


def anchor(word: str) -> str:
    """The name of a word's entry in the page.

    >>> anchor("log p(x)")
    'term-log-p-x'
    """
    spelled = word.replace("β", "beta").replace("±", "plus-minus")
    return "term-" + re.sub(r"[^a-z0-9]+", "-", spelled.lower()).strip("-")


@dataclass
class Glosses:
    """Escapes text, and links each word of the glossary where it occurs first on a page."""

    linked: set[str] = field(default_factory=set)

    def __call__(self, text: object) -> Markup:
        """The text as HTML.

        >>> Glosses()("The ELBO, and the ELBO again")
        Markup('The <a class="term" href="#term-elbo">ELBO</a>, and the ELBO again')
        """
        html = str(escape(str(text)))
        words = sorted((word for word in GLOSSARY if word not in self.linked), key=len, reverse=True)
        pattern = "|".join(rf"(?<!\w){re.escape(word)}s?(?!\w)" for word in words) or "$^"
        return Markup(re.sub(pattern, self._link, html))

    def _link(self, match: re.Match[str]) -> str:
        shown = match.group()
        word = shown if shown in GLOSSARY else shown.removesuffix("s")
        if word in self.linked:
            return shown
        self.linked.add(word)
        return f'<a class="term" href="#{anchor(word)}">{shown}</a>'


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
