"""What a watch measures at one step of training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from vaescope.report.findings import Finding


@dataclass(frozen=True)
class EarlyFinding(Finding):
    """A finding during training, with the step at which it was first true."""

    step: int = 0


@dataclass(frozen=True)
class Bound:
    """The ELBO of the probe samples and its parts, in nats per sample; NaN where the likelihood is not known."""

    log_likelihood: float
    """Mean log p(x|z) at one draw of z per sample, the same draw at every step."""
    kl: float
    """Mean KL from the prior, all latents together."""
    error: float
    """Mean squared error of a number of x."""
    explained: float
    """Share of the variance of x that reconstructions explain."""
    per_sample: tuple[float, ...] = field(default=(), repr=False)
    """The ELBO of every sample."""

    @property
    def elbo(self) -> float:
        return self.log_likelihood - self.kl


@dataclass(frozen=True)
class LatentState:
    """The posteriors of the probe samples."""

    kl: tuple[float, ...]
    """Mean KL of each latent, in nats."""
    kind: tuple[str, ...]
    """`active`, `passive` or `mixed`; see `vs.regime.classify`."""
    log_variance: tuple[float, float]
    """Smallest and largest log-variance of a posterior."""
    encoder_gap: float | None = None
    """Nats per sample that better means would gain, at the present decoder (an estimate); None if not measured."""
    contrast: float | None = None
    """Mean c_IMA of the decoder at a few codes, latents in use; None if not measured at this step."""


@dataclass(frozen=True)
class WeightState:
    """Weights and gradients of the networks."""

    norm: float
    gradient_norm: float | None = None
    """None if there are no gradients."""
    largest_gradient: float | None = None
    """The largest gradient of a weight, in absolute value."""
    zero_units: float | None = None
    """The largest share of units in a layer whose gradient is exactly zero."""
    zero_layer: str = ""
    """The layer with that share."""
    change: float | None = None
    """Norm of the change of the weights in one step, over their norm; None if not measured."""


@dataclass(frozen=True)
class Row:
    """The measurements at one step. `numbers` has all of them by name."""

    step: int
    """Of the optimiser."""
    seconds: float
    """Since the watch was made."""
    bound: Bound
    """The ELBO of the training samples and its parts."""
    latents: LatentState
    """The posteriors of the training samples."""
    beta: float
    """Present weight of the KL."""
    precision: float | None
    """γ² = 1 / decoder variance; None unless the likelihood is Gaussian."""
    validation: Bound | None = None
    """The ELBO of the validation samples; None if there are none, or if not measured at this step."""
    weights: WeightState | None = None
    """Weights and gradients; None if no parameters are known."""
    loss: float | None = None
    """Of this step, as given to `update`; None if it was not."""
    not_finite: tuple[str, ...] = ()
    """What has values that are not finite: encoder, decoder, weights, gradients, loss."""
    findings: tuple[EarlyFinding, ...] = ()
    """Findings that are new at this step."""

    @property
    def elbo(self) -> float:
        return self.bound.elbo

    @property
    def kl(self) -> tuple[float, ...]:
        """Mean KL of each latent, in nats."""
        return self.latents.kl

    @property
    def used(self) -> int:
        """Latents in use."""
        return sum(kind != "passive" for kind in self.latents.kind)

    @property
    def passive(self) -> int:
        """Latents that stay at their prior."""
        return len(self.latents.kind) - self.used

    @property
    def sigma(self) -> float | None:
        """Standard deviation of the decoder."""
        return None if self.precision is None else self.precision**-0.5

    @property
    def effective_beta(self) -> float | None:
        """β / γ²: the variance that a direction of x must have for a linear VAE to use a latent for it."""
        return None if self.precision is None else self.beta / self.precision

    def numbers(self) -> dict[str, float]:
        """The finite numbers by name, for loggers.

        The KL of latent k is `kl/k`.
        """
        found: dict[str, float | None] = {
            "elbo": self.elbo,
            "log_likelihood": self.bound.log_likelihood,
            "kl": self.bound.kl,
            "explained": self.bound.explained,
            "used": self.used,
            "passive": self.passive,
            "beta": self.beta,
            "sigma": self.sigma,
            "effective_beta": self.effective_beta,
            "log_variance/min": self.latents.log_variance[0],
            "log_variance/max": self.latents.log_variance[1],
            "encoder_gap": self.latents.encoder_gap,
            "contrast": self.latents.contrast,
            "loss": self.loss,
            "validation_elbo": None if self.validation is None else self.validation.elbo,
            **{f"kl/{k}": value for k, value in enumerate(self.kl)},
        }
        if self.weights is not None:
            found |= {
                "weights/norm": self.weights.norm,
                "weights/change": self.weights.change,
                "gradient/norm": self.weights.gradient_norm,
                "gradient/max": self.weights.largest_gradient,
                "gradient/zero_units": self.weights.zero_units,
            }
        return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}

    def __str__(self) -> str:
        """One line for a terminal."""
        parts = [f"step {self.step}"]
        if math.isfinite(self.elbo):
            parts.append(f"ELBO {self.elbo:.4g}")
        if self.validation is not None:
            parts.append(f"validation {self.validation.elbo:.4g}")
        parts += [f"KL {self.bound.kl:.3g}", f"{self.used} of {len(self.kl)} latents in use"]
        parts += [] if self.sigma is None else [f"σ {self.sigma:.3g}"]
        parts += [] if self.beta == 1 else [f"β {self.beta:.3g}"]
        return " · ".join(parts) + "".join(f"\n  {f.severity}: {f.title} {f.advice}" for f in self.findings)
