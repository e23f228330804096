"""Cases of the zoo: a model with a known condition, and how to make it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.zoo import faults, foreign
from tests.zoo.arrays import Data
from tests.zoo.datasets import DEVELOPMENT, load
from tests.zoo.networks import (
    lightning_vae,
)
from tests.zoo.training import cached, fit

HEALTHY = "healthy"
Given = tuple[object, torch.Tensor, dict[str, Any]]
"""Model or models, samples, and further arguments of `diagnose`."""


@dataclass(frozen=True)
class Case:
    name: str
    data: str
    library: str
    condition: str
    """`healthy`, or the finding that must be the first one."""
    make: Callable[[], Given] = field(repr=False)
    sound: Callable[[], Given] | None = field(default=None, repr=False)
    """A model without the fault, or from another seed, to certify the condition against."""

    @property
    def half(self) -> str:
        return "development" if self.data in DEVELOPMENT else "scored"


@dataclass(frozen=True)
class Kind:
    """A kind of network on a data set, and how it is trained."""

    label: str
    build: Callable[[], nn.Module]
    library: str = "torch"
    rows: bool = False
    """Images are given as rows."""
    settings: dict[str, Any] = field(default_factory=dict)


def net(
    data: str, kind: Kind, seed: int = 0, suffix: str = "", build=None, rows: int | None = None, **training
) -> nn.Module:
    x = load(data).train[:rows]
    train = partial(fit, x=x, **kind.settings | training)
    return cached(f"{data}-{kind.label}{suffix}-{seed}", build or kind.build, train, seed)


def healthy(data: str, kind: Kind, **change) -> Iterator[Case]:
    """The trained model; and with its training samples."""
    d = load(data) if data else None

    def make(seed: int, train: bool) -> Given:
        trained = net(data, kind, seed)
        known = {"image_shape": d.image} if d.image else {}
        return faults.given(trained, **known | change), d.test, {"train": d.train} if train else {}

    first, second = partial(make, 0, False), partial(make, 1, True)
    name = f"{data}/{kind.label}"
    yield Case(name, data, kind.library, HEALTHY, first, sound=second)
    yield Case(f"{name}, second seed, with training samples", data, kind.library, HEALTHY, second, sound=first)


def faulty(data: str, kind: Kind, wider: Callable[[int], nn.Module], wanted: str) -> Iterator[Case]:
    """Faults in a model of this kind; `wanted` selects them by their first letters."""
    d: Data = load(data)
    known = {"image_shape": d.image} if d.image else {}
    bernoulli = kind.build().kind == "bce"

    def base(seed: int = 0) -> nn.Module:
        return net(data, kind, seed)

    def variant(suffix: str, **training) -> nn.Module:
        return net(data, kind, suffix=suffix, **training)

    def plain(**change) -> object:
        return faults.given(base(), **known | change)

    def scaled(name: str) -> object:
        return faults.scale(base(), name, **known)

    def autoencoder(variance: float) -> object:
        return faults.autoencoder(variant("-ae", beta=0.0), variance, **known)

    def weighted() -> nn.Module:
        """β = 6, with the noise that the healthy model found."""
        stated = base().stated()
        if "precision" not in stated:
            return variant("-high", beta=6.0)
        noise = {"kind": "mse", "variance": 1 / stated["precision"]}
        return variant("-high", beta=6.0, build=partial(kind.build, **noise))

    def overfitted() -> nn.Module:
        build = partial(wider, kind.build().latent)
        return variant("-overfit", build=build, rows=60, epochs=1500, patience=None, lr=1e-3)

    def late_encoder() -> nn.Module:
        train = partial(faults.train_encoder, sound=base(), x=d.train)
        return cached(f"{data}-{kind.label}-encoder-0", kind.build, train, seed=7)

    def precision(factor: float) -> object:
        return plain(precision=factor * base().stated().get("precision", 1.0))

    def logits() -> object:
        return plain(decode=lambda z: torch.logit(base().decode(z).clamp(1e-6, 1 - 1e-6)))

    def new(initialise=None) -> object:
        return faults.given(fresh(kind.build, initialise), **known)

    def low(**change) -> object:
        return faults.given(variant("-low", beta=0.02), **known | change)

    moved = d.test * 16 if d.image or bernoulli else d.test * 16 + 5
    deviation = "scale-of-variance"
    every: dict[str, tuple[str, str, Callable[[], object]]] = {
        "scaled": ("x times 16", "data-range" if bernoulli else "reconstruction", plain),
        "unstated": ("x times 16, nothing stated", "reconstruction", lambda: plain(precision=None, likelihood=None)),
        "inverted": ("x inverted", "reconstruction", plain),
        "transposed": ("x transposed", "reconstruction", plain),
        "mixed": ("decoder of another run", "reconstruction", lambda: faults.mixed(base(), base(1), **known)),
        "new": ("untrained", "untrained", new),
        "xavier": ("untrained, Xavier", "untrained", lambda: new(nn.init.xavier_normal_)),
        "deviation": ("standard deviation as variance", deviation, lambda: scaled("deviation")),
        "logdeviation": ("log standard deviation as variance", deviation, lambda: scaled("log-deviation")),
        "precision": ("precision as variance", deviation, lambda: scaled("precision")),
        "squared": ("squared variance as variance", deviation, lambda: scaled("squared")),
        "logvariance": ("log-variance as variance", "negative-variance", lambda: scaled("log-variance")),
        "collapsed": (
            "collapsed",
            "collapsed",
            lambda: faults.given(variant("-collapsed", beta=300.0, epochs=60), **known),
        ),
        "wide": (
            "too many latents",
            "too-many-latents",
            lambda: faults.given(variant("-wide", build=partial(wider, 32)), **known),
        ),
        "high": ("β 6 unstated", "beta-high", lambda: faults.given(weighted(), **known)),
        "low": ("β 1/50 unstated", "beta-low", low),
        "aggregate": ("β 1/50 stated", "aggregate", lambda: low(beta=0.02)),
        "ae": ("autoencoder, variance 1e-6", "not-a-vae", lambda: autoencoder(1e-6)),
        "ae0": ("autoencoder, variance 0", "not-a-vae", lambda: autoencoder(0.0)),
        "ae1": ("autoencoder, variance 1", "not-a-vae", lambda: autoencoder(1.0)),
        "fit": ("overfitted", "overfit", lambda: faults.given(overfitted(), **known)),
        "encoder": ("encoder hardly trained", "amortization", lambda: faults.given(late_encoder(), **known)),
        "variance": ("decoder variance 100 times too large", "decoder-variance", lambda: precision(0.01)),
        "variance-": ("decoder variance 100 times too small", "decoder-variance", lambda: precision(100.0)),
        "rotated": ("rotated by 45 degrees", "rotated", lambda: faults.rotated(base(), d.train, **known)),
        "seeds": ("another seed, rotated", "unstable", lambda: [plain(), faults.rotated(base(), d.train, **known)]),
        "logits": ("logits as probabilities", "logits", logits),
    }
    samples = {"scaled": moved, "unstated": moved, "inverted": d.test.max() - d.test, "transposed": d.test.mT}
    for fault in wanted.split():
        title, condition, make = every[fault]
        more = {"train": d.train[:60]} if fault == "fit" else {}
        give = partial(_given, make, samples.get(fault, d.test), more)
        sound = partial(_given, plain, d.test, {})
        yield Case(f"{data}/{kind.label}, {title}", data, kind.library, condition, give, sound=sound)


def _given(make: Callable[[], object], x: torch.Tensor, more: dict[str, Any]) -> Given:
    return make(), x, more


def fresh(build: Callable[[], nn.Module], initialise=None) -> nn.Module:
    torch.manual_seed(5)
    network = build()
    for value in network.parameters():
        if initialise is not None and value.ndim > 1:
            initialise(value)
    return network.eval()


def marginals(data: str, kind: Kind) -> Iterator[Case]:
    """A posterior with a full covariance, given by its marginals."""

    def make() -> Given:
        trained = net(data, kind)
        return faults.given(trained, encode=trained.marginals, posterior_family="marginals"), load(data).test, {}

    yield Case(f"{data}/{kind.label}", data, kind.library, HEALTHY, make)


def other_objective(data: str, kind: Kind, objective: str) -> Iterator[Case]:
    def make() -> Given:
        return faults.given(net(data, kind), objective=objective), load(data).test, {}

    yield Case(f"{data}/{kind.label}", data, kind.library, HEALTHY, make)


def lightning(data: str, **settings) -> Iterator[Case]:
    d = load(data)

    def make(train: bool = True) -> Given:
        module = cached(
            f"{data}-lightning-0",
            lambda: lightning_vae(d.train[0].numel(), **settings),
            partial(foreign.fit_lightning, x=d.train),
        )
        if not train:
            module = fresh(lambda: lightning_vae(d.train[0].numel(), **settings))
        return faults.given(module.vae), d.test, {}

    yield Case(f"{data}/Lightning", data, "lightning", HEALTHY, make)
    yield Case(f"{data}/Lightning, untrained", data, "lightning", "untrained", partial(make, False))
