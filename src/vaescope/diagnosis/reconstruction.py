"""Reconstructions compared with the mean of x, and the reason if they are worse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.adapters.log_likelihood import sample_log_likelihood
from vaescope.encoded import EncodedSample, encode
from vaescope.errors import InputError
from vaescope.skipped import Skipped

SAMPLES = 256  # that are reconstructed
SUSPICIOUS = 0.9  # share of variance explained above which no other input is tried
DISPERSED = math.log(4)  # |log| of the mean square of codes in units of the prior, beyond which other inputs are tried
FAR_CENTRE = 1.0  # squared distance of means, in units of the variance of x, beyond which they are tried too
MOVES = (1.0, 2.0, 0.5, 4.0)  # spreads that are tried, relative to that of decoded prior samples
LATENTS = 4096  # codes of more latents are not regressed on


@dataclass(frozen=True)
class Trial:
    """x, or x changed in some way, encoded and decoded."""

    change: str
    """What to write instead of x; empty for x itself."""
    explained: float
    """1 - squared error / variance: 0 for the mean of x, negative if worse."""
    stderr: float
    dispersion: float
    """Mean over latents of |log E[(μ² + σ²)/σ†²]|: 0 at any optimum, on the data that the model was trained on."""

    @property
    def misfit(self) -> float:
        """Small if reconstructions are good and codes are where they were in training."""
        return 1 - self.explained + max(0.0, self.dispersion - 0.5)


@dataclass(frozen=True)
class OwnCodes:
    """log p(x|z) at the code of x, minus that at the code of another sample, in nats."""

    gain: float
    stderr: float


@dataclass(frozen=True)
class Reconstruction:
    """How well x is reconstructed at the posterior means, and what other inputs would do."""

    given: Trial
    best: Trial
    """The trial with the smallest misfit; `given` if nothing else was tried or nothing was better."""
    linear: float
    """Share of the variance of x that a linear map of the codes explains: whether the encoder's codes tell x."""
    centre: float
    """Squared distance of the decoder's mean output from the mean of x, as a share of the variance of x."""
    spread: float
    """Variance of the decoder's output over prior samples, as a share of the variance of x."""
    alignment: float
    """Cosine between the covariance of the decoder's output and that of x."""
    own_codes: OwnCodes | None = None
    """Of likelihoods that have no name here, whose outputs need not be a mean of x."""

    def to_data(self) -> dict[str, object]:
        return {
            "explained": self.given.explained,
            "stderr": self.given.stderr,
            "codes_mean_square": self.given.dispersion,
            "better_input": self.best.change or None,
            "explained_of_better_input": self.best.explained if self.best.change else None,
            "linear_from_codes": self.linear,
            "own_codes_gain": None if self.own_codes is None else self.own_codes.gain,
        }


def measure_reconstruction(sample: EncodedSample) -> Reconstruction:
    """Reconstruct x; if that is poor, also x changed in the ways in which people confuse inputs."""
    subset = sample.random_subset(SAMPLES)
    x = subset.x
    output = subset.decoded
    if output.shape != subset.observations.shape:
        raise Skipped(f"the decoder returns {output.shape[1]} numbers per sample, but x has {x[0].numel()}")
    given = _trial("", subset)
    generated = _prior_samples(subset)
    best = given
    flat = subset.observations
    total = float((flat - flat.mean(0)).square().sum(1).mean())
    centre = float((generated.mean(0) - flat.mean(0)).square().sum()) / max(total, 1e-300)
    if given.explained < SUSPICIOUS or given.dispersion > DISPERSED or centre > FAR_CENTRE:
        trials = [given, *_trials(subset, generated)]
        best = min(trials, key=lambda trial: trial.misfit)
    return Reconstruction(
        given,
        best,
        _linear_share(subset.mean.double(), flat),
        centre,
        float((generated - generated.mean(0)).square().sum(1).mean()) / max(total, 1e-300),
        _alignment(generated, flat),
        None if sample.model.log_likelihood is None else _own_codes(subset),
    )


@torch.no_grad()
def _own_codes(sample: EncodedSample) -> OwnCodes | None:
    """None if some log-likelihoods are not finite."""
    log_p, x, z = sample_log_likelihood(sample), sample.observations, sample.mean
    gain = (log_p(x, z) - log_p(x, z.roll(1, 0))).double()  # samples are in random order
    finite = bool(gain.isfinite().all()) and len(gain) > 1
    return OwnCodes(float(gain.mean()), float(gain.std() / len(gain) ** 0.5)) if finite else None


def _trial(change: str, sample: EncodedSample) -> Trial:
    x, output = sample.observations, sample.decoded.double()
    if not bool(output.isfinite().all()):
        raise Skipped("the decoder returns NaN or infinity")
    total = (x - x.mean(0)).square().sum(1)
    error = (x - output).square().sum(1)
    if not float(total.mean()) > 0:
        raise Skipped("x is constant")
    explained = 1 - float(error.mean() / total.mean())
    ratio = (total * (1 - explained) - error) / total.mean()
    square = ((sample.mean - sample.prior_mean).double().square() + sample.variance.double()) / sample.prior_variance
    dispersion = float(square.mean(0).clamp(1e-300, 1e300).log().abs().mean())
    if sample.model.latent_shape is not None:  # latent images are trained with hardly any KL
        dispersion = 0.0
    return Trial(change, explained, float(ratio.std() / len(x) ** 0.5), dispersion)


@torch.no_grad()
def _prior_samples(sample: EncodedSample) -> Float[Tensor, "N n"]:
    return sample.decode(sample.draw_prior("prior samples")).double()


def _trials(sample: EncodedSample, generated: Float[Tensor, "N n"]) -> Iterator[Trial]:
    x = sample.x
    for change, inputs in _changes(x.double(), generated.reshape(x.shape)):
        if not bool(inputs.isfinite().all()):
            continue
        try:
            yield _trial(change, encode(sample.model, inputs.to(x.dtype), sample.auxiliary))
        except (InputError, Skipped, RuntimeError):
            continue


def _changes(x: Float[Tensor, "N ..."], generated: Float[Tensor, "N ..."]) -> Iterator[tuple[str, Tensor]]:
    """Inputs that people confuse with x: other ranges, standardisation, inversion, transposition, order of channels."""
    low, high = float(x.min()), float(x.max())
    named: list[tuple[str, Callable[[], Tensor]]] = [
        ("x / 255", lambda: x / 255),
        ("x * 255", lambda: x * 255),
        ("x / 127.5 - 1", lambda: x / 127.5 - 1),
        ("x / x.max()", lambda: x / max(high, 1e-12)),
        ("2 * x - 1", lambda: 2 * x - 1),
        ("(x + 1) / 2", lambda: (x + 1) / 2),
        ("x.max() - x", lambda: high - x),
    ]
    if low >= 0:
        named.append(("x.log1p()", x.log1p))
    if high < 50:
        named.append(("x.expm1()", x.expm1))
    if x.ndim == 4 and x.shape[2] == x.shape[3]:
        named.append(("x.mT, height and width exchanged", lambda: x.mT))
    if x.ndim == 4 and x.shape[1] == 3:
        named.append(("x.flip(1), channels in the other order", lambda: x.flip(1)))
    yield from ((change, make()) for change, make in named)
    yield from _matched(x, generated)


def _matched(x: Float[Tensor, "N ..."], generated: Float[Tensor, "N ..."]) -> Iterator[tuple[str, Tensor]]:
    """x with the mean and spread of what the decoder generates from the prior: of all numbers, or of each column."""
    every, each = tuple(range(x.ndim)), (0, *range(2, x.ndim)) if x.ndim == 4 else (0,)
    column = "channel" if x.ndim == 4 else "column"
    for axes, what in ((every, ""), (each, f" of each {column}")):
        standard = (x - x.mean(axes, keepdim=True)) / x.std(axes, keepdim=True).clamp(min=1e-12)
        centre, spread = generated.mean(axes, keepdim=True), generated.std(axes, keepdim=True)
        for factor in MOVES:
            for sign in (1, -1):
                moved = sign * factor * spread * standard + centre
                a = float((sign * factor * spread / x.std(axes, keepdim=True).clamp(min=1e-12)).mean())
                b = float((centre - a * x.mean(axes, keepdim=True)).mean())
                formula = f"{a:.2g} * x {'+' if b >= 0 else '-'} {abs(b):.2g}"
                kind = f"{formula} (the mean and spread{what} that the decoder generates)"
                yield (
                    (kind if not what else f"x with mean and spread{what} as in training" + ", negated" * (sign < 0)),
                    moved,
                )


def _linear_share(codes: Float[Tensor, "N d"], x: Float[Tensor, "N n"]) -> float:
    """Share of the variance of x that a linear map of the codes explains, on the half that it was not fitted to."""
    if codes.shape[1] > LATENTS or len(codes) < 20:
        return math.nan
    half = len(codes) // 2
    inputs = torch.cat([codes, torch.ones(len(codes), 1, dtype=codes.dtype)], dim=1)
    a, b = inputs[:half], x[:half]
    gram = a.mT @ a
    ridge = 1e-3 * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    solved = torch.linalg.solve(gram + ridge, a.mT @ b)
    rest = x[half:]
    error = (rest - inputs[half:] @ solved).square().sum()
    return 1 - float(error / (rest - rest.mean(0)).square().sum().clamp(min=1e-300))


def _alignment(generated: Float[Tensor, "N n"], x: Float[Tensor, "N n"]) -> float:
    """tr(A B) / ‖A‖ ‖B‖ of the covariances, from Gram matrices of the samples."""
    a, b = generated - generated.mean(0), x - x.mean(0)
    product = (a @ b.mT).square().sum()
    norms = (a @ a.mT).square().sum().sqrt() * (b @ b.mT).square().sum().sqrt()
    return float(product / norms) if float(norms) > 0 else float(np.nan)
