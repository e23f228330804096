"""Fig. 5 of Reizinger et al. 2022 over γ²: does the ELBO prefer the factors of sprites, and does training find them?

`objective`: the renderer with its factors as normal latents, and the same renderer behind a rotation by 45° of two of
them. A rotation leaves N(0, I) as it is, so log p(x) is the same at every γ², and the difference of the best ELBO
(ELBO*, by quadrature, without any encoder) is what the objective says about the mixing alone.

`training`: VAEs with a learned Beta prior at a fixed γ², from random weights and from a geodesic embedding.

Numbers go to docs/figures/precision.json, which the docs quote; what is there is not computed again.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from scipy.stats import beta, norm
from torch import Tensor

from vaescope import metrics, theory
from vaescope.core import randomness
from vaescope.data.dataset import ArrayRows, split
from vaescope.data.rendering import Sprites
from vaescope.distributions import Beta, DiagonalGaussian, Normal
from vaescope.inference.gap import EncoderGap, quadrature_gap
from vaescope.models import VAE
from vaescope.starts.geometry import IMAGE_CANDIDATES, embedding_targets, fit_to_latents
from vaescope.training import MemberSpec, TrainSettings, train

RESULTS = Path(__file__).parents[1] / "docs/figures/precision.json"
FACTORS = ("x", "y", "scale", "hue")
PRECISIONS = (0.4, 4.0, 40.0, 400.0)
"""γ² at 32 x 32; a quarter of it is that of the authors, whose images have four times as many pixels."""
POINTS = 6
IMAGES = 64_000
"""Shown in training: few, so that only a start that is close to the factors can end there."""
SIZE = 32


# the objective --------------------------------------------------------------------------------


def renderer_of_normal_latents(draw: int) -> Callable[[Tensor], Tensor]:
    """Images of N(0, I) latents: each is mapped to a factor that has its distribution in this draw, but for 1 %.

    The quantiles of a Beta distribution have no derivative in PyTorch, so a polynomial of their logits is used.
    """
    renderer, distributions = Sprites.published(draw, size=SIZE)
    t = np.linspace(-4, 4, 201)
    fits = []
    for own in distributions.values():
        quantiles = beta.ppf(norm.cdf(t), *(float(value) for value in own.shape))
        fits.append(np.polynomial.polynomial.polyfit(t, np.log(quantiles / (1 - quantiles)), 5, w=np.exp(-t * t / 8)))
    coefficients = torch.tensor(np.array(fits))

    def decoder(z: Tensor) -> Tensor:
        powers = torch.stack([z**k for k in range(coefficients.shape[1])], dim=-1)
        return renderer.render_batch(torch.sigmoid((powers * coefficients).sum(-1))).flatten(1)

    return decoder


def rotation(first: int, second: int, size: int = len(FACTORS)) -> Tensor:
    """A turn of two latents by 45°."""
    found = torch.eye(size, dtype=torch.float64)
    found[[first, second], [first, second]] = math.sqrt(0.5)
    found[first, second], found[second, first] = -math.sqrt(0.5), math.sqrt(0.5)
    return found


def best_elbo(decoder: Callable[[Tensor], Tensor], z: Tensor, precision: float) -> EncoderGap:
    """log p(x) and ELBO* of the images of these latents."""
    x = decoder(z)
    constant = x.shape[1] / 2 * math.log(precision / (2 * math.pi))

    def log_likelihood(rows: Tensor, codes: Tensor) -> Tensor:
        return constant - precision / 2 * (x[rows] - decoder(codes)).square().sum(1)

    def curvature(codes: Tensor) -> Tensor:
        J = theory.jacobian(decoder, codes)
        return precision * (J.mT @ J)

    start = DiagonalGaussian(z, 1 / (1 + curvature(z).diagonal(dim1=1, dim2=2)))
    return quadrature_gap(log_likelihood, start, Normal(), curvature, tolerance=0.05)


def lost_by_unused_latents(decoder: Callable[[Tensor], Tensor], own: EncoderGap, precision: float) -> float:
    """How far the ELBO of a model without latents is below ELBO*: its decoder draws the mean image, its KL is zero."""
    x = decoder(torch.randn(500, len(FACTORS), generator=randomness.generator(0, "images"), dtype=torch.float64))
    constant = x.shape[1] / 2 * math.log(precision / (2 * math.pi))
    unused = constant - precision / 2 * (x - x.mean(0)).square().sum(1).mean()
    return float(own.best_elbo.mean() - unused)


def objective(draw: int, precision: float) -> dict[str, object]:
    """What the ELBO loses by every rotation of two factors, in nats per image; the median over images."""
    decoder = renderer_of_normal_latents(draw)
    z = torch.randn(POINTS, len(FACTORS), generator=randomness.generator(draw, "precision"), dtype=torch.float64)
    own = best_elbo(decoder, z, precision)
    row: dict[str, object] = {"kind": "objective", "draw": draw, "precision": precision, "points": POINTS}
    row["gap of the factors"] = round(float(own.family.median()), 4)
    row["c_IMA of the factors"] = round(float(theory.ima_contrast(decoder, z).median()), 4)
    row["lost by unused latents"] = round(lost_by_unused_latents(decoder, own, precision), 2)
    row["lost"], row["c_IMA"], differences = {}, {}, []
    for first, second in combinations(range(len(FACTORS)), 2):
        turn = rotation(first, second)

        def rotated(codes: Tensor, turn: Tensor = turn) -> Tensor:
            return decoder(codes @ turn.T)

        other = best_elbo(rotated, z @ turn, precision)
        pair = f"{FACTORS[first]}, {FACTORS[second]}"
        differences += (own.log_marginal - other.log_marginal).abs().tolist()
        row["lost"] |= {pair: round(float((own.best_elbo - other.best_elbo).median()), 4)}
        row["c_IMA"] |= {pair: round(float(theory.ima_contrast(rotated, z @ turn).median()), 4)}
    row["median difference of log p"] = round(float(np.median(differences)), 5)  # zero but for the quadrature
    return row


def lengths(draw: int, images: int = 64) -> dict[str, object]:
    """By how much images change with each latent, and how close x and scale are to a conformal pair."""
    decoder = renderer_of_normal_latents(draw)
    z = torch.randn(images, len(FACTORS), generator=randomness.generator(draw, "precision"), dtype=torch.float64)
    J = theory.jacobian(decoder, z)
    length = J.norm(dim=1)
    cosine = (J[:, :, 0] * J[:, :, 2]).sum(1) / length[:, [0, 2]].prod(1)
    pixels = decoder(z).reshape(images, 3, SIZE, SIZE).amax(1)
    border = torch.cat([pixels[:, [0, -1]].flatten(1), pixels[:, :, [0, -1]].flatten(1)], dim=1)
    return {
        "kind": "lengths",
        "draw": draw,
        "lengths": dict(zip(FACTORS, [round(float(v), 1) for v in length.median(0).values], strict=True)),
        "x and scale, longer by shorter": round(float((length[:, 0] / length[:, 2]).log().abs().median().exp()), 2),
        "x and scale, cosine": round(float(cosine.abs().median()), 2),
        "at the border": round(float((border.amax(1) > 0.5).double().mean()), 2),
    }


# training -------------------------------------------------------------------------------------


def training(draw: int, precision: float, start: str, images: int, seed: int = 0) -> dict[str, object]:
    """A VAE with a learned Beta prior at this γ² from the first step on, shown so many images."""
    begin = time.process_time()
    renderer, distributions = Sprites.published(draw, size=SIZE)
    drawn = renderer.sample(20_000, seed=draw, distributions=distributions)
    parts = split(drawn.images.flatten(1), fractions=(0.8, 0.1))
    model = VAE.conv((3, SIZE, SIZE), len(FACTORS), prior=Beta(2.0, 2.0), prior_shape="learned")
    initial = None
    if start == "geometry":
        rows = ArrayRows(parts.train[None].float()).sample(4000)[0]
        targets = embedding_targets(model, rows, IMAGE_CANDIDATES[0], (3, SIZE, SIZE))
        initial = fit_to_latents(model, rows, targets, seed)
    epochs = round(images / len(parts.train))
    settings = TrainSettings(epochs=epochs, patience=epochs, decay="cosine", precision_start=precision)
    rows, validation = parts.train[None].float(), parts.validation[None].float()
    spec = MemberSpec(seed, precision=precision)
    (member,) = train(model, rows, validation, [spec], settings, initial=lambda: initial)
    z = drawn.factors[-len(parts.test) :]
    mean, variance = (value.detach() for value in member.encode(parts.test))
    found = metrics.mcc(mean, z)
    return {
        "kind": "training",
        "draw": draw,
        "precision": precision,
        "start": start,
        "seed": seed,
        "images": epochs * len(parts.train),
        "seconds": round(time.process_time() - begin, 1),
        "ELBO": round(member.best_elbo, 2),
        "MCC": round(found.score, 4),
        "factors": {name: round(float(value), 3) for name, value in zip(FACTORS, found.per_factor, strict=True)},
        "R²": round(float(metrics.linear_r2(mean, z).score), 4),
        "c_IMA": round(float(theory.ima_contrast(member.decode, mean[:64]).median()), 4),
        "latents in use": int((mean.var(0) > variance.mean(0)).sum()),
        "MSE": float((parts.test - member.decode(mean)).square().mean().detach()),
    }


def add(kind: str, compute: Callable[..., dict[str, object]], **case: object) -> None:
    """Compute a row and store it, unless it is stored."""
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    if any({"kind": kind, **case}.items() <= row.items() for row in rows):
        return
    row = compute(**case)
    print(json.dumps(row, ensure_ascii=False), flush=True)
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    RESULTS.write_text(json.dumps([*rows, row], indent=1, ensure_ascii=False) + "\n")


def main(kinds: list[str]) -> None:
    torch.set_num_threads(1)
    if "objective" in kinds:
        for draw in (1, 2, 4, 7, 13, 15, 18):
            add("lengths", lengths, draw=draw)
    for precision in PRECISIONS:
        if "objective" in kinds:
            for draw in (2, 4):
                add("objective", objective, draw=draw, precision=precision)
        if "training" in kinds:
            for start in ("geometry", "random"):
                add("training", training, draw=2, precision=precision, start=start, images=IMAGES)


if __name__ == "__main__":
    main(sys.argv[1:] or ["objective", "training"])
