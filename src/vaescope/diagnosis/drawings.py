"""What people would look at: codes against their prior, what each latent does, angles of columns, the gap in parts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from matplotlib.figure import Figure

from vaescope.adapters.repaired import image_of
from vaescope.diagnosis.evidence import Sample
from vaescope.diagnosis.gap import Split
from vaescope.diagnosis.rules import Evidence
from vaescope.report import figures

MOST_LATENTS = 8
STEPS = 7
CURVES = 10  # outputs that are drawn of what is not an image
RANGE = 2.0  # deviations of the prior


def drawings(seen: Evidence, sample: Sample | None) -> Iterator[tuple[str, Figure, str]]:
    """Name, figure and caption of everything that there is to draw."""
    places = seen.regime.used[:MOST_LATENTS]
    if sample is not None and places:
        yield "traversals", _traversals(sample, places), _traversal_caption(sample, seen)
        yield "codes", _codes(sample, places), _CODES
    if seen.geometry is not None and len(places) > 1:
        yield "angles", _angles(seen), _ANGLES
    if seen.split is not None:
        yield "gap", _gap(seen.split), f"{_GAP} {seen.split.note}".strip()


def _image_shape(sample: Sample) -> tuple[int, int, int] | None:
    return image_of(sample.model, sample.decode(sample.seen.mean[:1]).shape[1])


@torch.no_grad()
def moved(sample: Sample, latent: int, values: list[float]) -> torch.Tensor:
    """What is decoded as one latent takes these values, the others as in a typical sample."""
    codes = _typical(sample).repeat(len(values), 1)
    codes[:, latent] = torch.tensor(values, dtype=codes.dtype)
    return sample.decode(codes)


def _typical(sample: Sample) -> torch.Tensor:
    """The code of a sample as far from the middle as most are: in the middle itself there may be nothing."""
    mean = sample.seen.mean
    away = (mean - mean.median(0).values).norm(dim=1)
    return mean[int((away - away.median()).abs().argmin())]


def _values(sample: Sample, latent: int, steps: int) -> list[float]:
    centre = float(sample.seen.prior_mean[:, latent].mean())
    width = float(sample.seen.prior_variance[:, latent].mean()) ** 0.5
    return [float(v) for v in np.linspace(centre - RANGE * width, centre + RANGE * width, steps)]


def _traversals(sample: Sample, places: list[int]) -> Figure:
    image = _image_shape(sample)
    return _pictures(sample, places, image) if image else _curves(sample, places)


def _pictures(sample: Sample, places: list[int], image: tuple[int, int, int]) -> Figure:
    figure, axes = figures.grid_of_panels(len(places), STEPS, width=1.25, height=1.25)
    for row, latent in enumerate(places):
        frames = moved(sample, latent, _values(sample, latent, STEPS)).reshape(STEPS, *image)
        low, high = float(frames.min()), float(frames.max())
        low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
        for step in range(STEPS):
            axis = axes[row * STEPS + step]
            pixels = ((frames[step] - low) / max(high - low, 1e-12)).clamp(0, 1).permute(1, 2, 0).numpy()
            axis.imshow(pixels[..., 0] if image[0] == 1 else pixels[..., :3], cmap="gray", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
            if step == 0:
                axis.set_ylabel(f"z{latent}", rotation=0, ha="right", va="center")
    return figure


def _curves(sample: Sample, places: list[int]) -> Figure:
    """Outputs that move most, as functions of one latent; scaled by their deviation over the data."""
    columns = min(4, len(places))
    figure, axes = figures.grid_of_panels(math.ceil(len(places) / columns), columns, width=3.1, height=2.6)
    scale = sample.x.std(0, correction=0).clamp(min=1e-12)
    for axis, latent in zip(axes, places, strict=False):
        values = _values(sample, latent, 25)
        found = (moved(sample, latent, values).double() - sample.x.mean(0)) / scale
        most = found.std(0, correction=0).argsort(descending=True)[:CURVES]
        for output in most.tolist():
            axis.plot(values, found[:, output].numpy(), lw=1.3, label=f"x{output}")
        axis.set_title(f"z{latent}", fontsize=10)
        axis.grid(visible=True, alpha=0.4)
        axis.legend(fontsize=7, ncols=2) if len(most) <= 6 else None
    for axis in axes[len(places) :]:
        axis.set_axis_off()
    return figure


def _traversal_caption(sample: Sample, seen: Evidence) -> str:
    what = "images" if _image_shape(sample) else "outputs that move most, in deviations over the data"
    rest = len(seen.regime.used) - MOST_LATENTS
    more = f" {rest} more latents are in use." if rest > 0 else ""
    reach = f"from -{RANGE:g} to {RANGE:g} deviations of its prior"
    return f"One latent at a time, {reach}, others as in a typical sample: {what}.{more}"


def _codes(sample: Sample, places: list[int]) -> Figure:
    columns = min(4, len(places))
    figure, axes = figures.grid_of_panels(math.ceil(len(places) / columns), columns, width=2.7, height=2.0)
    grid = np.linspace(-3.5, 3.5, 100)
    density = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    seen = sample.seen
    for axis, latent in zip(axes, places, strict=False):
        spread = seen.prior_variance[:, latent].sqrt()
        codes = ((seen.mean[:, latent] - seen.prior_mean[:, latent]) / spread).double().numpy()
        axis.hist(codes.clip(-3.5, 3.5), bins=30, range=(-3.5, 3.5), density=True, color=figures.COLOURS[0], alpha=0.6)
        axis.plot(grid, density, color="#222", lw=1.1)
        axis.set_title(f"z{latent}", fontsize=10)
        axis.set_yticks([])
    for axis in axes[len(places) :]:
        axis.set_axis_off()
    return figure


def _angles(seen: Evidence) -> Figure:
    assert seen.geometry is not None
    angles = np.array(seen.geometry.angles, dtype=float)
    names = [f"z{k}" for k in seen.regime.used]
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


def _gap(split: Split) -> Figure:
    parts: list[tuple[str, str]] = [("family", "family: no posterior of its kind can avoid it")]
    parts += [("amortisation", "amortisation: this encoder loses it")]
    figure, (axis,) = figures.row_of_panels(1, width=8.0, height=2.3)
    rows = [(words, *split.mean(name)) for name, words in parts]
    for place, (words, value, error) in enumerate(rows):
        axis.barh(place, value, xerr=2 * error, color=figures.COLOURS[place], height=0.55)
        axis.text(0.0, place + 0.33, f" {words}: {value:.3g} ± {2 * error:.2g}", va="bottom", fontsize=9.5)
    axis.set_ylim(-0.5, len(rows) - 0.1)
    axis.set_yticks([])
    axis.set_xlabel("nats")
    return figure


_CODES = "Mean codes of latents in use, in deviations of their prior (the line)."
_ANGLES = "Mean angle between columns of the decoder's Jacobian, latents in use, those that tell most first."
_GAP = "What lies between log p(x) and the ELBO, mean over samples with two standard errors."
