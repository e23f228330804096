"""The geometry of the decoder: how orthogonal its Jacobian columns are, and whether other axes are better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vaescope.analysis.encoding import DecoderDerivatives, EncodedSample, declared_beta, differentiate, output_weights
from vaescope.core.errors import InputError, Skipped, could_not_differentiate
from vaescope.inference.geometry import Rotation, best_rotation, column_angles, contrast_of_matrix, numerical_rank


@dataclass(frozen=True, eq=False)
class Geometry:
    """The decoder's Jacobian at random codes, columns of latents in use."""

    contrast: float
    """Mean c_IMA over codes with independent columns, in nats."""
    stderr: float
    angles: np.ndarray
    """(u, u) mean angles between columns, in degrees."""
    rank: int
    """Directions of data space that latents in use move, at a typical code."""
    rotation: Rotation | None
    """Of the latents in use with the highest KL; None if columns are dependent at all codes."""
    singular: float = 0.0
    """Share of codes with dependent columns, where the contrast is infinite."""
    rotated: tuple[int, ...] = ()
    """Latents that the rotation is about, in the order of its rows."""

    def to_data(self) -> dict[str, object]:
        rotation = self.rotation
        return {
            "contrast": self.contrast,
            "stderr": self.stderr,
            "rank": self.rank,
            "infinite": self.singular,
            "latents": list(self.rotated),
        } | ({} if rotation is None else {"contrast_of_best_axes": rotation.after, "axes": rotation.matrix.tolist()})


def differentiate_decoder(sample: EncodedSample, used: list[int]) -> DecoderDerivatives:
    """Derivatives at random codes of the sample, with the columns of latents in use."""
    try:
        found = differentiate(sample, used)
    except (RuntimeError, NotImplementedError, InputError) as error:
        raise could_not_differentiate(error) from None
    if not bool(found.columns.isfinite().all()):
        raise Skipped("the decoder's derivatives are not finite")
    return found


@dataclass(frozen=True, eq=False)
class WeightedJacobian:
    """Jacobian columns of latents in use, in units of the noise of each output."""

    codes: EncodedSample
    """Samples at whose codes the columns are; there may be more of them."""
    latents: list[int]
    columns: Float[Tensor, "Q n u"]

    @classmethod
    def of(cls, derivatives: DecoderDerivatives) -> WeightedJacobian:
        columns, sample = derivatives.columns, derivatives.sample
        weights = output_weights(sample.model.likelihood, sample.decoded[: len(columns)].double())
        return cls(sample, derivatives.latents, columns * weights)


def measure_geometry(jacobian: WeightedJacobian) -> Geometry:
    """Contrast, angles, rank and best rotation."""
    used, J = jacobian.latents, jacobian.columns
    if not used:
        raise Skipped("no latent is in use")
    if J.shape[1] < J.shape[2]:
        raise Skipped("the decoder has fewer outputs than latents in use")
    contrasts = contrast_of_matrix(J)
    regular = contrasts.isfinite()
    finite = contrasts[regular]
    searched = 32  # latents for which better axes are searched, at most
    return Geometry(
        contrast=float(finite.mean()) if len(finite) else math.inf,
        stderr=float(finite.std() / len(finite) ** 0.5) if len(finite) > 1 else math.nan,
        angles=column_angles(J).nanmean(0).numpy(),
        rank=int(numerical_rank(J).float().median()),
        rotation=best_rotation(J[regular][:, :, :searched]) if len(finite) else None,
        singular=1 - float(regular.double().mean()),
        rotated=tuple(used[:searched]),
    )


def near_deterministic_ratio(derivatives: DecoderDerivatives) -> np.ndarray | None:
    """(d,) σ² divided by its value in Eq. 12, the median over codes; None if precision or norms are unknown."""
    sample, norms = derivatives.sample, derivatives.norms
    precision = sample.model.precision
    if norms is None or precision is None:
        return None
    weight = precision / declared_beta(sample.model)
    predicted = 1 / (1 / sample.prior_variance.double() + weight * norms.double().square())
    ratio: Tensor = sample.variance.double() / predicted
    return ratio.median(0).values.cpu().numpy()


def implied_precision(
    variance: Float[Tensor, "N u"], prior_variance: Float[Tensor, "N u"], squares: Float[Tensor, "N u"]
) -> float | None:
    """γ²/β that the widths of posteriors imply by Eq. 12, the median of (1/σ² - 1/σ†²) / ‖column‖²; None if too wide.

    Args:
        variance: σ² of each sample and latent.
        prior_variance: σ†².
        squares: squared lengths of the decoder's columns, in units of the noise.
    """
    added = 1 / variance - 1 / prior_variance
    ratios = added / squares
    # variances above half of the prior's are determined by the prior
    reliable = (added * prior_variance > 1) & ratios.isfinite()
    return float(ratios[reliable].median()) if bool(reliable.any()) else None


class NearDeterministic(NamedTuple):
    """Whether the theory of the near-deterministic limit applies to a model."""

    applies: bool
    reason: str


def near_deterministic(
    eq12: np.ndarray, variance_ratio: np.ndarray, used: Sequence[int], *, narrow: float = 0.1, factor: float = 1.25
) -> NearDeterministic | None:
    """Whether posteriors of the latents in use are narrow and as Eq. 12 predicts; None without a latent in use.

    Args:
        eq12: (d,) posterior variances divided by those of Eq. 12.
        variance_ratio: (d,) posterior variances divided by those of the prior.
        used: latents in use.
        narrow: largest variance ratio.
        factor: largest factor from Eq. 12.
    """
    if not used:
        return None
    ratio, width = (float(np.median(values[list(used)])) for values in (eq12, variance_ratio))
    reason = f"posterior variances in use are {width:.2g} times the prior's and {ratio:.2f} times those of Eq. 12"
    return NearDeterministic(width <= narrow and 1 / factor <= ratio <= factor, reason)
