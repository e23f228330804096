"""Figures and facts of the page of a diagnosis."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from matplotlib.figure import Figure

from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.gap import ElboGap
from vaescope.analysis.geometry import Geometry
from vaescope.analysis.traversals import (
    SPAN,
    can_be_drawn,
    draw_curves,
    draw_images,
    image_shape,
    most_changing,
    standardise_outputs,
    traverse,
    value_limits,
)
from vaescope.products.diagnose.codes import CodebookUsage, LatentImage
from vaescope.products.diagnose.measurements import Measurements
from vaescope.report import figures
from vaescope.report.wording import amount, interval, span

PICTURES = ("reconstructions", "traversals", "codes")
"""Figures that come before the numbers."""
LEGENDS = {
    "latents": "KL in nats, mean over samples. Variance ratio: posterior over prior. Column norm: how far the output "
    "moves per unit of the latent. σ² / Eq. 12: posterior variance over that of a near-deterministic optimum, 1 if the "
    "theory holds. Effect: squared error added by drawing the latent from its prior, as a share of the variance of x.",
    "channels": "KL in nats, summed over positions, mean over samples. Mean and std of the codes over samples and "
    "positions. Share of noise: posterior variance over the variance of the channel.",
    "codes": "How often each code was chosen.",
}
"""What the columns of the table mean."""


def drawings(found: Measurements, sample: EncodedSample | None) -> Iterator[tuple[str, Figure | list[Figure], str]]:
    """Name, figure and caption of each figure."""
    latents = found.regime.used[:8]
    if found.codebook is not None:
        caption = "Share of the codes, the most frequent first; the line is an even use of the codebook."
        yield "usage", _usage(found.codebook), caption
    drawable = sample is not None and can_be_drawn(sample)
    if sample is not None and drawable and (image := image_shape(sample)) is not None:
        caption = "Samples, their reconstructions, and what the decoder makes of draws from the prior."
        if sample.model.image_shape is None:
            caption += f" Rows of x look like square images, and are drawn so: {image[1]} x {image[2]} pixels."
        yield "reconstructions", _reconstructions(sample, image), caption
    if found.latent_image is not None:
        caption = (
            "KL of each position, summed over channels; eigenvalues of the covariance of the channels; share of the "
            "power of the codes at each spatial frequency."
        )
        yield "channels", _channels(found.latent_image), caption
        return
    if sample is not None and drawable and latents:
        curves = ": the outputs that change most, in standard deviations over the data"
        rest = len(found.regime.used) - len(latents)
        caption = (
            f"One latent at a time, from -{SPAN:g} to {SPAN:g} standard deviations of its prior, with the others fixed "
            f"at a typical code{'' if image_shape(sample) else curves}."
            + (f" {rest} more latents are in use." if rest > 0 else "")
        )
        yield "traversals", _traversals(sample, latents), caption
    if sample is not None and latents:
        caption = "Posterior means of latents in use, in standard deviations of their prior (the line)."
        yield "codes", _codes(sample, latents), caption
    if found.geometry is not None and len(latents) > 1:
        caption = "Mean angle between columns of the decoder's Jacobian, latents in use, highest KL first."
        yield "angles", _angles(found.geometry, found.regime.used), caption
    if found.gap is not None:
        caption = "The gap between log p(x) and the ELBO, mean over samples with two standard errors."
        yield "gap", _gap(found.gap), f"{caption} {found.gap.note}".strip()


@torch.no_grad()
def _reconstructions(sample: EncodedSample, image: tuple[int, int, int]) -> Figure:
    """Samples, their reconstructions, and what the decoder makes of draws from the prior."""
    chosen = sample.random_subset(8)
    x, count = chosen.observations, len(chosen)
    rows = {"x": x, "rebuilt": chosen.decoded, "prior": chosen.decode(chosen.draw_prior("pictures"))}
    figure, axes = figures.grid_of_panels(len(rows), count, width=0.62, height=0.62)
    limits = float(x.min()), float(x.max())
    for row, (name, values) in enumerate(rows.items()):
        draw_images(axes[row * count : (row + 1) * count], values, image, label=name, limits=limits)
    return figure


def _traversals(sample: EncodedSample, latents: list[int], *, steps: int = 7, outputs: int = 10) -> list[Figure]:
    """Of each latent: images, or the outputs that change most as functions of it; on the same scale for all."""
    drawn, image = [], image_shape(sample)
    traversed = [traverse(sample, latent, steps if image else 25) for latent in latents]
    if image is not None:
        limits = value_limits(torch.cat([frames for _, frames in traversed]))
        for latent, (_, frames) in zip(latents, traversed, strict=True):
            figure, axes = figures.grid_of_panels(1, steps, width=0.62, height=0.62)
            draw_images(axes, frames, image, label=f"z{latent}", limits=limits)
            drawn.append(figure)
        return drawn
    curves = [standardise_outputs(sample, frames) for _, frames in traversed]
    largest = [most_changing(own, outputs) for own in curves]
    shown = torch.cat([own[:, chosen] for own, chosen in zip(curves, largest, strict=True)])
    low, high = float(shown.min()), float(shown.max())
    for latent, (values, _), own, chosen in zip(latents, traversed, curves, largest, strict=True):
        figure, (axis,) = figures.grid_of_panels(1, 1, width=2.3, height=2.0)
        draw_curves(axis, values, own, chosen)
        if high > low:
            axis.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        axis.set_title(f"z{latent}", fontsize=10)
        if len(chosen) <= 6:
            axis.legend(fontsize=7, ncols=2)
        drawn.append(figure)
    return drawn


def _codes(sample: EncodedSample, latents: list[int]) -> list[Figure]:
    drawn = []
    grid = np.linspace(-3.5, 3.5, 100)
    density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    shift = ((sample.mean - sample.prior_mean) / sample.prior_variance.sqrt()).double()
    for latent in latents:
        figure, (axis,) = figures.grid_of_panels(1, 1, width=2.3, height=1.6)
        codes = shift[:, latent].numpy()
        axis.hist(codes.clip(-3.5, 3.5), bins=30, range=(-3.5, 3.5), density=True, color=figures.COLOURS[0], alpha=0.6)
        axis.plot(grid, density, color="#222", lw=1.1)
        axis.set_title(f"z{latent}", fontsize=10)
        axis.set_yticks([])
        drawn.append(figure)
    return drawn


def _angles(geometry: Geometry, used: list[int]) -> Figure:
    angles = np.array(geometry.angles, dtype=float)
    names = [f"z{k}" for k in used]
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


def _usage(usage: CodebookUsage) -> Figure:
    shares = np.sort(usage.shares.numpy())[::-1]
    figure, (axis,) = figures.row_of_panels(1, width=8.0, height=2.8)
    axis.fill_between(np.arange(len(shares)), shares, step="mid", color=figures.COLOURS[0], alpha=0.7)
    axis.axhline(1 / len(shares), color="#222", lw=1)
    axis.set_xlabel("code, by frequency")
    axis.set_ylabel("share")
    axis.set_ylim(bottom=0)
    return figure


def _gap(gap: ElboGap) -> Figure:
    parts = {
        "family": "family: the loss of the best posterior of this family",
        "amortization": "amortization: the additional loss of this encoder",
    }
    figure, (axis,) = figures.row_of_panels(1, width=6.2, height=2.3)
    for y, (name, label) in enumerate(parts.items()):
        value, error = gap.mean(name)
        axis.barh(y, value, xerr=2 * error, color=figures.COLOURS[y], height=0.55)
        axis.text(0.0, y + 0.33, f" {label}: {interval(value, error)}", va="bottom", fontsize=9.5)
    axis.set_ylim(-0.5, len(parts) - 0.1)
    axis.set_yticks([])
    axis.set_xlabel("nats")
    return figure


def facts(found: Measurements) -> list[tuple[str, str]]:
    """Single numbers with their labels."""
    regime, noise, geometry, usage = found.regime, found.noise, found.geometry, found.codebook
    if usage is not None:
        size = len(usage.counts)
        rows = [
            ("codes in use", f"{size - usage.dead} of {size}"),
            ("perplexity", f"{usage.perplexity:.4g} of {size}"),
            ("codes per sample", str(usage.positions)),
            ("bits per sample, at most", f"{usage.bits:.4g}"),
        ]
        return rows if usage.explained is None else [*rows, ("variance explained", f"{usage.explained:.1%}")]
    rows = [
        ("latents in use", f"{len(regime.used)} of {regime.latent_dim}"),
        (_which_kl(found), f"{amount(float(sum(regime.kl)))} nats"),
    ]
    if (image := found.latent_image) is not None:  # what a model of the codes needs to know
        rows += [
            ("std of the codes", f"{image.total_std:.3g}"),
            ("scaling factor for a std of 1", f"{1 / image.total_std:.4g}"),
            ("shift factor for a mean of 0", f"{float(image.mean.mean()):.3g}"),
        ]
        if isinstance(image.scaling, tuple) and image.scaled is not None:
            low, high = (float(v) for v in image.scaled[1].aminmax())
            rows.append(("std of channels, scaled as declared", span(low, high, digits=3)))
        elif image.scaling is not None:
            rows.append(("declared scaling and shift factor", f"{image.scaling:g}, {image.shift or 0:g}"))
        if image.effective_precision is not None:
            rows.append(("effective precision / β", amount(image.effective_precision)))
    if noise is not None:
        if math.isfinite(noise.explained):
            share = f"{noise.explained:.1%}" if noise.explained > -1 else "worse than the mean"
            rows.append(("variance explained", share))
        if noise.likelihood != "bernoulli":
            rows.append(("decoder variance, from errors", amount(1 / noise.precision)))
        if noise.beta is not None:
            rows.append(("effective β", amount(noise.beta)))
    if geometry is not None:
        contrast = "infinite at all codes"
        if geometry.singular < 1:
            contrast = _nats(geometry.contrast, geometry.stderr)
            contrast += f", infinite at {geometry.singular:.0%} of codes" if geometry.singular else ""
        rows.append(("contrast c_IMA", contrast))
        if geometry.rotation is not None:
            rows.append(("contrast with the best axes", _nats(geometry.rotation.after)))
        rows.append(("directions of data space that codes move", str(geometry.rank)))
    if found.validity is not None:
        near_limit = float(found.validity.valid.double().mean())
        rows.append((f"samples with a gap within {found.validity.tolerance:g} nats of c_IMA", f"{near_limit:.0%}"))
    if (near := found.near_deterministic()) is not None:
        rows.append(("near-deterministic theory", "applies" if near.applies else "does not apply"))
    if found.aggregate is not None:
        rows.append(("codes against prior samples, AUC", f"{found.aggregate.auc:.2f}"))
    if (held_out := found.generalisation) is not None:
        rows.append(("ELBO, training - held-out", _nats(held_out.lost, held_out.stderr)))
    if found.stability is not None:
        rows.append(("agreement between seeds", f"{found.stability.score:.2f}"))
        rows.append(("agreement of their subspaces", f"{found.stability.subspace:.2f}"))
    return rows


def _which_kl(found: Measurements) -> str:
    """The rate beside the ELBO is the same KL, but of fewer samples, and from the prior itself."""
    if "exact KL" in found.skipped:
        return "KL from a normal prior of the same mean and variance"
    fewer = found.elbo is not None and len(found.elbo.rate) < found.regime.samples
    return f"KL, mean over all {found.regime.samples:,} samples" if fewer else "KL"


def _nats(value: float, stderr: float = math.nan) -> str:
    """With two standard errors if they are known."""
    return interval(value, stderr, " nats")
