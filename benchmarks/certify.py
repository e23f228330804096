"""Does `vs.certify` find wrong widths and leave exact ones alone, and how close are its bounds on trained models?

    python -m benchmarks.certify docs/figures/certify.json widths
    python -m benchmarks.certify docs/figures/certify.json near-linear
    python -m benchmarks.certify docs/figures/certify.json bounds 2,16,16@300 [budget]

Widths: linear VAEs with the best diagonal posterior, whose standard deviations are multiplied by a factor.
Near-linear: projected posteriors of decoders that are a little curved. Bounds: VAEs
of 8 x 8 handwritten digits, trained here, within the default budget of `vs.certify`, or within another one if the
machine is busy: processor seconds say what was used. Up to four latents also against quadrature. Parts are added to
what the file holds already.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor

import vaescope as vs
from vaescope.models import VAE, Member
from vaescope.settings import TrainSettings
from vaescope.training import MemberSpec, train

MODELS = 20  # linear VAEs per factor and mixing
FACTORS = (0.8, 1.0, 1.2)
MIXINGS = (0.0, 0.3)  # 0: the posterior is exact; 0.3: latents are correlated given x
WIDTH = {"too-narrow", "too-wide", "scale-of-variance"}
ENCODER = WIDTH | {"biased", "scattered-means", "order-of-latents", "sign-of-latents", "units-of-latents", "units-of-x"}
PRECISION = 30.0  # of the digits' decoders, unless another one follows the number of latents
SETTINGS = TrainSettings(epochs=60, patience=60, learning_rate=2e-3)


def linear_model(seed: int, mixing: float, factor: float) -> tuple[vs.LatentModel, Tensor]:
    """A linear VAE with three latents and standard deviations that are `factor` times the best, and samples of it."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    columns = torch.linalg.qr(draw(8, 3))[0] * torch.linspace(0.4, 2, 3, dtype=torch.float64)
    W = columns @ (torch.eye(3, dtype=torch.float64) + mixing * draw(3, 3))
    inverse = torch.eye(3, dtype=torch.float64) + 10 * W.T @ W

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        mean = torch.linalg.solve(inverse, 10 * W.T @ x.double().T).T
        return mean, (factor**2 / inverse.diagonal()).expand_as(mean)

    model = vs.adapters.from_callables(encode=encode, decode=lambda z: z @ W.T.to(z), latent_dim=3, precision=10.0)
    return model, draw(300, 3) @ W.T + draw(300, 8) / 10**0.5


def widths() -> dict[str, object]:
    """Share of models with a finding about the encoder, by factor and mixing."""
    found: dict[str, object] = {"models": MODELS}
    for mixing in MIXINGS:
        for factor in FACTORS:
            flags = []
            for seed in range(MODELS):
                model, x = linear_model(seed, mixing, factor)
                codes = {f.code for f in vs.certify(model, x, budget=1e-3, seed=seed, progress=None).findings}
                flags.append(bool(codes & (ENCODER if factor == 1.0 else WIDTH)))
            found[f"flagged, factor {factor}, mixing {mixing}"] = sum(flags) / MODELS
    return found


def near_linear_model(seed: int) -> tuple[vs.LatentModel, Tensor]:
    """A decoder that is a little curved, with the best diagonal posterior of every sample, and samples of it."""
    generator = torch.Generator().manual_seed(100 + seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    W = torch.linalg.qr(draw(6, 2))[0] * torch.tensor([1.0, 2.0], dtype=torch.float64)
    bent = torch.linalg.qr(draw(6, 2))[0]

    def decode(z: Tensor) -> Tensor:
        return z @ W.T.to(z) + 0.1 * torch.tanh(z) @ bent.T.to(z)

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        best = vs.theory.project(decode, x.double(), precision=10.0, start=x.double() @ torch.linalg.pinv(W).T)
        return best.mean, best.variance

    model = vs.adapters.from_callables(encode=encode, decode=decode, latent_dim=2, precision=10.0)
    return model, decode(draw(300, 2)) + draw(300, 6) / 10**0.5


def near_linear() -> dict[str, object]:
    """Share of near-linear models with projected posteriors that have a finding about the encoder."""
    flags = []
    for seed in range(MODELS):
        model, x = near_linear_model(seed)
        codes = {f.code for f in vs.certify(model, x, budget=1e-3, seed=seed, progress=None).findings}
        flags.append(bool(codes & ENCODER))
    return {"models": MODELS, "flagged": sum(flags) / MODELS}


def digits_vae(latents: int, precision: float) -> tuple[Member, Tensor]:
    """A trained VAE, and samples that it was not trained on."""
    x = torch.tensor(load_digits().data / 16, dtype=torch.float32)
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
    model = VAE.mlp(64, latents, hidden=(128, 128))
    members = train(model, x[None, :1300], x[None, 1300:1500], [MemberSpec(0, precision=precision)], SETTINGS)
    return members[0], x[1500:]


def bounds(latents: int, precision: float, budget: float) -> dict[str, object]:
    """Width of the bounds, time, and how often they contain log p(x) by quadrature."""
    member, x = digits_vae(latents, precision)
    wall, processor = time.perf_counter(), time.process_time()
    found = vs.certify(member, x, budget=budget)
    seconds, used = time.perf_counter() - wall, time.process_time() - processor
    evidence = found.evidence.bounds
    assert evidence is not None
    result: dict[str, object] = {
        "width": round(evidence.sandwich.width, 4),
        "temperatures": evidence.sandwich.temperatures,
        "contradictory": evidence.sandwich.contradictory,
        "seconds": round(seconds, 1),
        "processor seconds": round(used, 1),
        "findings": sorted(f.code for f in found.findings),
    }
    return result | (_against_quadrature(member, x) if latents <= 4 else {})


def _against_quadrature(member: Member, x: Tensor) -> dict[str, object]:
    """Bounds of the same simulated x, and log p(x) by quadrature."""
    from vaescope.analysis.models import RepairedModel, repair
    from vaescope.core.budget import Budget
    from vaescope.products.certify.simulate import bound_gap, simulate

    simulation = simulate(RepairedModel(member), repair(member, x, None, 100).sample, 48, None, 0)
    found = bound_gap(simulation, Budget(60.0)).sandwich
    observed = simulation.encoded.observations.double()
    exact = vs.theory.log_marginal(
        lambda z: member.decode(z.float()).double(),
        observed,
        precision=member.precision or 1.0,
        latent_dim=member.latent_dim,
    ).value
    inside = (found.lower <= exact) & (exact <= found.upper)
    means = (float(found.lower.mean()), float(exact.mean()), float(found.upper.mean()))
    return {
        "mean between the mean bounds": means[0] <= means[1] <= means[2],
        "inside": round(float(inside.double().mean()), 3),
    }


def main() -> None:
    out, part = Path(sys.argv[1]), sys.argv[2]
    data = json.loads(out.read_text()) if out.exists() else {}
    if part == "widths":
        data["widths"] = widths()
    elif part == "near-linear":
        data["near-linear"] = near_linear()
    else:
        budget = float(sys.argv[4]) if len(sys.argv) > 4 else 90.0
        for case in sys.argv[3].split(","):
            latents, _, given = case.partition("@")
            precision = float(given or PRECISION)
            data[f"digits, {latents} latents, precision {precision:g}"] = bounds(int(latents), precision, budget)
    out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
