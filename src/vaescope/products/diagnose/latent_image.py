"""Latents that form an image, as in latent diffusion models: statistics of channels and positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.posteriors import posteriors_of
from vaescope.core.errors import Skipped
from vaescope.products.diagnose.scales import expected_slopes

PROBED_LATENTS = 32  # at random places, whose slopes are measured
PROBED_SAMPLES = 8


@dataclass(frozen=True, eq=False)
class LatentImage:
    """Codes (channels, height, width): what a model of the codes, such as a diffusion model, is trained on."""

    mean: Float[Tensor, " c"]
    """Mean of each channel over samples and positions: the shift factor is the negative of it."""
    std: Float[Tensor, " c"]
    """Standard deviation of each channel, draws of z included."""
    noise: Float[Tensor, " c"]
    """Mean posterior variance of each channel over its variance: the share of noise."""
    kl: Float[Tensor, " c"]
    """KL of each channel, summed over positions."""
    positions: Float[Tensor, "h w"]
    """KL of each position, summed over channels."""
    spectrum: Float[Tensor, " c"]
    """Eigenvalues of the covariance of the channels, highest first."""
    power: Float[Tensor, " f"]
    """Share of the power of the codes at each spatial frequency, lowest first, without the mean."""
    effective_precision: float | None
    """γ²/β that the widths of posteriors imply, by Eq. 12; None if the slopes could not be measured."""
    scaling: float | None
    shift: float | None
    """Declared factors: a diffusion model is trained on (z - shift) · scaling."""

    @property
    def total_std(self) -> float:
        """Standard deviation over everything, which the scaling factor should undo."""
        return float((self.std.square() + (self.mean - self.mean.mean()).square()).mean().sqrt())

    def rows(self) -> list[dict[str, object]]:
        """A row per channel, highest KL first."""
        order = self.kl.argsort(descending=True).tolist()
        names = {"KL": self.kl, "mean": self.mean, "std": self.std, "share of noise": self.noise}
        return [{"channel": k} | {name: float(values[k]) for name, values in names.items()} for k in order]

    def to_data(self) -> dict[str, object]:
        return {
            "channels": self.rows(),
            "kl_of_positions": self.positions.tolist(),
            "eigenvalues_of_channels": self.spectrum.tolist(),
            "power_by_frequency": self.power.tolist(),
            "effective_precision": self.effective_precision,
            "std": self.total_std,
            "scaling_factor": self.scaling,
            "shift_factor": self.shift,
        }


@torch.no_grad()
def measure_latent_image(sample: EncodedSample) -> LatentImage:
    """Statistics of the codes of a model whose latents form an image."""
    shape = sample.model.latent_shape
    if shape is None:
        raise Skipped("latents do not form an image")
    codes = sample.mean.double().reshape(-1, *shape)
    noise = sample.variance.double().reshape(-1, *shape).mean((0, 2, 3))
    kl = torch.from_numpy(posteriors_of(sample).kl).reshape(-1, *shape).mean(0)
    columns = codes.movedim(1, 0).flatten(1)
    variance = columns.var(1) + noise
    scaling, shift = sample.model.latent_scaling or (None, None)
    return LatentImage(
        columns.mean(1),
        variance.sqrt(),
        noise / variance,
        kl.sum((1, 2)),
        kl.sum(0),
        torch.linalg.eigvalsh(torch.atleast_2d(torch.cov(columns))).flip(0),
        radial_power(codes),
        _effective_precision(sample),
        scaling,
        shift,
    )


def radial_power(codes: Float[Tensor, "N c h w"]) -> Float[Tensor, " f"]:
    """Share of the power at each whole spatial frequency, lowest first; sums to one.

    >>> rows = torch.cos(torch.arange(8.0) * 2 * torch.pi * 2 / 8).expand(1, 1, 8, 8)
    >>> [round(v, 3) for v in radial_power(rows).tolist()]
    [0.0, 1.0, 0.0, 0.0]
    """
    centred = codes - codes.mean((2, 3), keepdim=True)
    power = torch.fft.fft2(centred).abs().square().mean((0, 1))
    axes = [np.fft.fftfreq(side, 1 / side) for side in power.shape]
    radius = np.hypot(*np.meshgrid(*axes, indexing="ij")).round().astype(int)
    highest = max(1, min(power.shape) // 2)
    found = torch.stack([power[torch.from_numpy(radius == r)].sum() for r in range(1, highest + 1)])
    return found / found.sum().clamp(min=1e-300)


def _effective_precision(sample: EncodedSample) -> float | None:
    """Median of (1/σ² - 1) / ‖slope‖² at some latents."""
    latents = np.random.default_rng(0).choice(
        sample.mean.shape[1], min(PROBED_LATENTS, sample.mean.shape[1]), replace=False
    )
    codes = sample.random_subset(PROBED_SAMPLES)
    chosen = [int(k) for k in latents]
    ratio = (1 / codes.variance[:, chosen].double() - 1) / expected_slopes(codes, chosen).squares
    usable = ratio[(ratio > 0) & ratio.isfinite()]
    return float(usable.median()) if usable.numel() else None
