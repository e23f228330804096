"""Figures of a diagnosis: traversals, codes and their prior, angles between columns, the parts of the gap."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vaescope.adapters.repaired import drawable_shape
from vaescope.diagnosis.evidence import Evidence
from vaescope.diagnosis.gap import ElboGap
from vaescope.diagnosis.latent_image import LatentImage
from vaescope.encoded import EncodedSample
from vaescope.errors import InputError
from vaescope.report import figures

LATENTS = 8  # that are drawn, at most
PICTURES = 8  # that are shown with their reconstructions
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
    chosen = sample.random_subset(PICTURES)
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
