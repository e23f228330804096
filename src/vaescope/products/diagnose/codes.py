"""Codes that are not a list of latents: images, as in latent diffusion models, layers of a hierarchy, and codebooks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vaescope.adapters.quantised import Quantised
from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.posteriors import Posteriors, posteriors_of
from vaescope.core.errors import Skipped
from vaescope.products.diagnose.noise import expected_slopes
from vaescope.regime import Regime
from vaescope.regime.classify import PosteriorStatistics, judge


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
    scaling: float | tuple[float, ...] | None
    shift: float | tuple[float, ...] | None
    """Declared factors, or one per channel: a diffusion model is trained on (z - shift) · scaling."""

    @property
    def total_std(self) -> float:
        """Standard deviation over everything, which the scaling factor should undo."""
        return float((self.std.square() + (self.mean - self.mean.mean()).square()).mean().sqrt())

    @property
    def scaled(self) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"]] | None:
        """Mean and standard deviation of scaled codes, of all or of each channel, as they are declared."""
        if self.scaling is None:
            return None
        scaling, shift = (torch.tensor(v or 0.0, dtype=torch.float64) for v in (self.scaling, self.shift))
        if scaling.ndim:
            return (self.mean - shift) * scaling, self.std * scaling
        return ((self.mean.mean() - shift) * scaling).reshape(1), scaling.reshape(1) * self.total_std

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
    # γ²/β: the median of (1/σ² - 1) / ‖slope‖² at some latents of some samples
    latents = np.random.default_rng(0).choice(sample.mean.shape[1], min(32, sample.mean.shape[1]), replace=False)
    probed, chosen = sample.random_subset(8), latents.tolist()
    ratio = (1 / probed.variance[:, chosen].double() - 1) / expected_slopes(probed, chosen).squares
    usable = ratio[(ratio > 0) & ratio.isfinite()]
    return LatentImage(
        columns.mean(1),
        variance.sqrt(),
        noise / variance,
        kl.sum((1, 2)),
        kl.sum(0),
        torch.linalg.eigvalsh(torch.atleast_2d(torch.cov(columns))).flip(0),
        radial_power(codes),
        float(usable.median()) if usable.numel() else None,
        scaling,
        shift,
    )


def radial_power(codes: Float[Tensor, "N c h w"]) -> Float[Tensor, " f"]:
    """Share of the power at each integer spatial frequency, lowest first; sums to one.

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


def layer_rows(regime: Regime, groups: tuple[tuple[str, int], ...]) -> list[dict[str, object]]:
    """A row per layer, in the order of the model: its latents, those in use, and its KL.

    Args:
        regime: of all latents.
        groups: names and sizes of the layers.
    """
    ends = np.cumsum([size for _, size in groups])
    used, rows = set(regime.used), []
    for (name, size), end in zip(groups, ends, strict=True):
        latents = range(int(end) - size, int(end))
        kl = float(np.sum(regime.kl[latents.start : latents.stop]))
        share = kl / max(float(np.sum(regime.kl)), 1e-300)
        rows.append(
            {
                "layer": name,
                "latents": size,
                "in use": sum(k in used for k in latents),
                "KL": kl,
                "KL per latent": kl / size,
                "share of KL": share,
            }
        )
    return rows


@dataclass(frozen=True, eq=False)
class CodebookUsage:
    """How often each code was chosen."""

    counts: Int[Tensor, " K"]
    positions: int
    """Codes per sample."""
    explained: float | None
    """Share of the variance of x that reconstructions explain."""

    @property
    def shares(self) -> Float[Tensor, " K"]:
        return self.counts.double() / self.counts.sum()

    @property
    def perplexity(self) -> float:
        """exp of the entropy of the shares: the number of equally frequent codes with the same entropy."""
        return float(torch.special.entr(self.shares).sum().exp())

    @property
    def dead(self) -> int:
        """Codes that were never chosen."""
        return int((self.counts == 0).sum())

    @property
    def bits(self) -> float:
        """Entropy of the codes of a sample, in bits, if positions were independent."""
        return self.positions * math.log2(self.perplexity)

    def rows(self) -> list[dict[str, object]]:
        """A row per code, the most frequent first."""
        order = self.counts.argsort(descending=True).tolist()
        return [{"code": k, "count": int(self.counts[k]), "share": float(self.shares[k])} for k in order]

    def to_data(self) -> dict[str, object]:
        return {
            "size": len(self.counts),
            "dead": self.dead,
            "perplexity": self.perplexity,
            "counts": self.counts.tolist(),
            "explained": self.explained,
        }


@torch.no_grad()
def measure_codebook(model: Quantised, x: Tensor) -> CodebookUsage:
    """Encode all of x, and reconstruct it if the model can."""
    batches = x.split(64)
    indices = torch.cat([model.encode(batch) for batch in batches])
    counts = torch.bincount(indices.flatten(), minlength=model.codebook_size)
    outputs = [part for part in map(model.reconstruct, batches) if part is not None]
    flat, explained = x.flatten(1).double(), None
    total = float((flat - flat.mean(0)).square().sum())
    if outputs and torch.cat(outputs).shape == flat.shape and total > 0:
        explained = 1 - float((flat - torch.cat(outputs).double()).square().sum()) / total
    return CodebookUsage(counts, indices.shape[1], explained)


def no_latents() -> Regime:
    """The regime of a model whose codes have no posteriors."""
    empty = np.zeros((1, 0))
    return judge(PosteriorStatistics.of([Posteriors(empty, empty, empty, empty)]))
