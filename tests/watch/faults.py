"""Training runs with a planted fault, on the data sets and networks of the zoo."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

import vaescope as vs
from tests.zoo.datasets import load
from tests.zoo.networks import ConvVAE, DeepVAE, ExampleVAE, LinearVAE

STEPS = 1200
RATE = 2e-3
HEALTHY = "healthy"
NAMES = {
    "beta 100x": {"collapse"},
    "sigma 0.01x": {"sigma-small"},
    "learning rate 100x": {"learning-rate"},
    "dead ReLUs": {"dead-units"},
    "log-variance overflow": {"log-variance"},
    "data unscaled": {"unscaled", "data-range"},
    HEALTHY: set(),
}
"""The findings that name each fault."""


@dataclass(frozen=True)
class Setup:
    """A network on a data set."""

    data: str
    build: Callable[..., nn.Module] = field(repr=False)
    relu: bool = False
    likelihood: str = "sigma"
    rate: float = RATE
    steps: int = STEPS


def _mlp(data: str, inputs: int, latent: int, **settings) -> Setup:
    kind = settings.pop("likelihood", "sigma")
    return Setup(
        data, lambda **k: ExampleVAE(inputs, latent, **{"kind": kind} | k), relu=True, likelihood=kind, **settings
    )


def _deep(data: str, inputs: int, latent: int) -> Setup:
    return Setup(data, lambda **k: DeepVAE(inputs, latent, **k))


def _linear(data: str, inputs: int, latent: int) -> Setup:
    return Setup(data, lambda **k: LinearVAE(inputs, latent, **k), rate=1e-2)


def _conv(data: str, image: tuple[int, int, int], latent: int) -> Setup:
    return Setup(data, lambda **k: ConvVAE(image, latent, **{"kind": "sigma"} | k), relu=True, steps=500)


DEVELOPMENT = (
    _mlp("digits", 64, 6, likelihood="bce"),
    _deep("wine", 13, 2),
    _mlp("blobs", 8, 3),
    _linear("wine", 13, 3),
    _mlp("waves", 24, 4),
    _deep("moons", 8, 2),
    _conv("digits", (1, 8, 8), 6),
)
SCORED = (
    _mlp("text", 60, 5, likelihood="bce"),
    _deep("cancer", 30, 4),
    _mlp("swiss", 10, 3),
    _linear("cancer", 30, 5),
    _mlp("diabetes", 10, 2),
    _deep("swiss", 10, 3),
    _conv("patches", (3, 8, 8), 4),
    _mlp("patches", 192, 6, likelihood="bce"),
)


@dataclass(frozen=True)
class Outcome:
    fault: str
    setup: Setup
    seed: int
    watch: vs.Watch
    lost: int
    """The step at which the loss was no longer finite, or the planned end of training."""

    @property
    def first(self):
        """The first finding that is more than a note."""
        return next((f for f in self.watch.findings if f.severity != "note"), None)

    @property
    def right(self) -> bool:
        """The fault, and nothing else before it, is named before the run is lost; nothing in a healthy run."""
        if self.fault == HEALTHY:
            return self.first is None
        return self.first is not None and self.first.code in NAMES[self.fault] and self.first.step < self.lost

    def __str__(self) -> str:
        found = "-" if self.first is None else f"{self.first.code} at {self.first.step}"
        return f"{self.fault}, {self.setup.data}, {self.setup.build().__class__.__name__}, seed {self.seed}: {found}"


def suitable(fault: str, setups: tuple[Setup, ...]) -> list[Setup]:
    return [s for s in setups if s.relu or fault != "dead ReLUs"]


def run(fault: str, setup: Setup, seed: int, *, every: int | None = None, steps: int | None = None) -> Outcome:
    """Train with the fault, watched."""
    torch.manual_seed(seed)
    d = load(setup.data)
    x, held = d.train, d.test
    network = _build(fault, setup, x)
    x, held = (_unscale(v, d.image) for v in (x, held)) if fault == "data unscaled" else (x, held)
    _break(network, fault)
    beta = 100.0 if fault == "beta 100x" else 1.0
    optimiser = torch.optim.Adam(network.parameters(), setup.rate * (100 if fault == "learning rate 100x" else 1))
    watch = _watch(network, x, held, beta, every)
    steps = steps or setup.steps
    watch.update(0)
    for step in range(1, steps + 1):
        batch = x[torch.randint(len(x), (64,))]
        try:
            loss = network.loss(batch, beta) / len(batch)
        except RuntimeError:  # cross-entropy refuses x outside [0, 1]
            return Outcome(fault, setup, seed, watch, step)
        if not math.isfinite(float(loss.detach())):
            watch.update(step, loss=float(loss.detach()))
            return Outcome(fault, setup, seed, watch, step)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        row = watch.update(step, loss=loss.detach())
        if row is not None and any(f.severity != "note" for f in watch.findings):
            break  # the first name is what counts
    return Outcome(fault, setup, seed, watch, steps)


def _watch(network: nn.Module, x: torch.Tensor, held: torch.Tensor, beta: float, every: int | None) -> vs.Watch:
    def encode(rows):
        mean, log_variance = network.encode(rows)
        return mean, log_variance.exp()

    bernoulli = network.kind == "bce"
    model = vs.adapters.from_callables(
        encode=encode,
        decode=network.decode,
        latent_dim=network.latent,
        likelihood="bernoulli" if bernoulli else "gaussian",
        beta=beta,
    )
    precision = None if bernoulli else lambda: network.stated()["precision"]
    return vs.Watch(model, x, validation=held, precision=precision, parameters=network, every=every, show=False)


def _build(fault: str, setup: Setup, x: torch.Tensor) -> nn.Module:
    """With the fixed σ that principal components leave, or a hundredth of it; otherwise as it is."""
    if fault != "sigma 0.01x":
        return setup.build()
    rows = x.flatten(1).double()
    latent = setup.build().latent
    spectrum = torch.linalg.svdvals(rows - rows.mean(0)).square() / len(rows)
    return setup.build(kind="mse", variance=1e-4 * float(spectrum[latent:].sum()) / rows.shape[1])


def _unscale(x: torch.Tensor, image) -> torch.Tensor:
    return x * (255 if image else 100)


def _break(network: nn.Module, fault: str) -> None:
    layers = [m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        if fault == "dead ReLUs":
            layers[0].bias.fill_(-30.0)
        if fault == "log-variance overflow":
            _log_variance_outputs(network).mul_(300.0)


def _log_variance_outputs(network: nn.Module) -> torch.Tensor:
    """The weights that the log-variance is linear in."""
    if isinstance(network, ExampleVAE):
        return network.fc22.weight
    if isinstance(network, ConvVAE):
        return network.logvar.weight
    if isinstance(network, LinearVAE):
        return network.logvar.add_(0.2)
    return network.encoder[-1].weight[network.latent :]
