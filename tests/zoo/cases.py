"""The zoo: models with a known condition, on development and on scored data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.zoo import faults, foreign
from tests.zoo.datasets import DEVELOPMENT, Data, load
from tests.zoo.networks import (
    GRUVAE,
    IWAE,
    ConvVAE,
    DeepVAE,
    ExampleVAE,
    FullCovarianceVAE,
    LinearVAE,
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
        "logvariance": ("log-variance as variance", "log-variance", lambda: scaled("log-variance")),
        "collapsed": (
            "collapsed",
            "collapsed",
            lambda: faults.given(variant("-collapsed", beta=300.0, epochs=60), **known),
        ),
        "wide": (
            "too many latents",
            "over-wide",
            lambda: faults.given(variant("-wide", build=partial(wider, 32)), **known),
        ),
        "high": ("β 6 unstated", "beta-high", lambda: faults.given(weighted(), **known)),
        "low": ("β 1/50 unstated", "beta-low", low),
        "aggregate": ("β 1/50 stated", "aggregate", lambda: low(beta=0.02)),
        "ae": ("autoencoder, variance 1e-6", "not-a-vae", lambda: autoencoder(1e-6)),
        "ae0": ("autoencoder, variance 0", "not-a-vae", lambda: autoencoder(0.0)),
        "ae1": ("autoencoder, variance 1", "not-a-vae", lambda: autoencoder(1.0)),
        "fit": ("overfitted", "overfit", lambda: faults.given(overfitted(), **known)),
        "encoder": ("encoder hardly trained", "amortisation", lambda: faults.given(late_encoder(), **known)),
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


def first() -> Iterator[Case]:
    conv = Kind("conv", partial(ConvVAE, (1, 8, 8), 6, kind="sigma"), settings={"epochs": 150, "patience": 15})
    convwide = lambda n: ConvVAE((1, 8, 8), n, kind="sigma")  # noqa: E731
    bce = Kind("mlp-bce", partial(ExampleVAE, 64, 6))
    yield from healthy("digits", conv)
    yield from healthy("digits", bce)
    yield from faulty(
        "digits",
        conv,
        convwide,
        "scaled unstated inverted mixed new deviation precision high aggregate fit variance encoder seeds",
    )
    yield from faulty(
        "digits",
        bce,
        lambda n: ExampleVAE(64, n),
        "scaled transposed new xavier logdeviation logvariance collapsed wide low logits ae0",
    )
    yield from foreign.pythae_cases("digits", Case, HEALTHY)
    wine = Kind("linear", partial(LinearVAE, 13, 3), settings={"lr": 1e-2})
    deep = Kind("deep", partial(DeepVAE, 13, 2, hidden=16))
    yield from healthy("wine", wine)
    yield from healthy("wine", deep)
    yield from faulty(
        "wine", wine, lambda n: LinearVAE(13, n), "scaled mixed new deviation precision squared variance variance- low"
    )
    yield from faulty(
        "wine", deep, lambda n: DeepVAE(13, n, hidden=64), "unstated inverted xavier logvariance collapsed fit ae"
    )
    deep = Kind("deep", partial(DeepVAE, 8, 3))
    yield from healthy("blobs", deep)
    yield from other_objective("blobs", Kind("IWAE", partial(IWAE, 8, 3)), "iwae")
    yield from lightning("blobs", latent=3)
    yield from faulty(
        "blobs",
        deep,
        lambda n: DeepVAE(8, n),
        "scaled mixed xavier deviation squared collapsed high low aggregate ae1 fit encoder variance-",
    )
    deep = Kind("deep", partial(DeepVAE, 8, 2))
    yield from healthy("moons", deep)
    yield from marginals("moons", Kind("full covariance", partial(FullCovarianceVAE, 8, 2)))
    yield from faulty(
        "moons",
        deep,
        lambda n: DeepVAE(8, n),
        "unstated mixed new deviation logdeviation precision wide high ae0 encoder rotated seeds variance",
    )
    conv = Kind("conv", partial(ConvVAE, (1, 16, 16), 4, kind="sigma"), settings={"epochs": 60, "patience": 10})
    convbce = Kind("conv-bce", partial(ConvVAE, (1, 16, 16), 4), settings={"epochs": 60, "patience": 10})
    yield from healthy("sprites", conv)
    yield from healthy("sprites", convbce)
    yield from faulty(
        "sprites",
        conv,
        lambda n: ConvVAE((1, 16, 16), n, kind="sigma"),
        "scaled inverted new squared wide low ae encoder",
    )
    yield from faulty(
        "sprites", convbce, lambda n: ConvVAE((1, 16, 16), n), "scaled mixed xavier deviation logits collapsed high fit"
    )
    gru = Kind("gru", partial(GRUVAE, 24, 4), settings={"epochs": 120, "patience": 15, "batch": 128, "lr": 4e-3})
    mlp = Kind("mlp", partial(ExampleVAE, 24, 4, kind="sigma"))
    yield from healthy("waves", gru)
    yield from healthy("waves", mlp)
    yield from faulty("waves", gru, lambda n: GRUVAE(24, n), "scaled mixed new deviation logvariance")
    yield from faulty(
        "waves",
        mlp,
        lambda n: ExampleVAE(24, n, kind="sigma"),
        "unstated xavier precision collapsed wide high aggregate ae1 fit encoder variance- rotated",
    )
    yield from foreign.scvi_cases("counts", Case, HEALTHY)


def second() -> Iterator[Case]:
    deep = Kind("deep", partial(DeepVAE, 30, 4))
    linear = Kind("linear", partial(LinearVAE, 30, 5), settings={"lr": 1e-2})
    yield from healthy("cancer", deep)
    yield from healthy("cancer", linear)
    yield from lightning("cancer", latent=4)
    yield from faulty(
        "cancer",
        deep,
        lambda n: DeepVAE(30, n),
        "scaled mixed new precision squared collapsed high low ae fit encoder variance",
    )
    yield from faulty(
        "cancer",
        linear,
        lambda n: LinearVAE(30, n),
        "unstated inverted xavier deviation logvariance aggregate variance- wide",
    )
    deep = Kind("deep", partial(DeepVAE, 10, 2, hidden=32))
    yield from healthy("diabetes", deep)
    yield from other_objective("diabetes", Kind("IWAE", partial(IWAE, 10, 2, hidden=32)), "iwae")
    yield from faulty(
        "diabetes", deep, lambda n: DeepVAE(10, n), "scaled mixed new deviation collapsed low ae1 variance"
    )
    deep = Kind("deep", partial(DeepVAE, 10, 3))
    yield from healthy("swiss", deep)
    yield from marginals("swiss", Kind("full covariance", partial(FullCovarianceVAE, 10, 3)))
    yield from faulty(
        "swiss",
        deep,
        lambda n: DeepVAE(10, n),
        "unstated mixed xavier deviation logdeviation precision squared wide high aggregate ae0 fit encoder variance- "
        "rotated seeds",
    )
    conv = Kind("conv", partial(ConvVAE, (3, 8, 8), 4, kind="sigma"), settings={"epochs": 100, "patience": 12})
    bce = Kind("mlp-bce", partial(ExampleVAE, 192, 6), settings={"epochs": 200, "patience": 20})
    yield from healthy("patches", conv)
    yield from healthy("patches", bce)
    yield from faulty(
        "patches",
        conv,
        lambda n: ConvVAE((3, 8, 8), n, kind="sigma"),
        "scaled unstated inverted mixed new deviation precision wide low encoder variance",
    )
    yield from faulty("patches", bce, lambda n: ExampleVAE(192, n), "scaled xavier logdeviation logvariance logits")
    yield from foreign.pythae_cases("patches", Case, HEALTHY)
    yield from foreign.diffusers_cases("patches", Case, HEALTHY)
    bce = Kind("mlp-bce", partial(ExampleVAE, 60, 5))
    yield from healthy("text", bce)
    yield from faulty(
        "text",
        bce,
        lambda n: ExampleVAE(60, n),
        "scaled new deviation logvariance collapsed wide low logits ae0 fit encoder",
    )
    gru = Kind("gru", partial(GRUVAE, 24, 3), settings={"epochs": 60, "patience": 20, "lr": 4e-3})
    mlp = Kind("mlp", partial(ExampleVAE, 24, 4, hidden=64, kind="sigma"))
    yield from healthy("elnino", gru)
    yield from healthy("elnino", mlp)
    yield from faulty("elnino", gru, lambda n: GRUVAE(24, n), "scaled mixed xavier squared precision")
    yield from faulty(
        "elnino",
        mlp,
        lambda n: ExampleVAE(24, n, kind="sigma"),
        "unstated inverted new deviation collapsed wide high low ae1 encoder variance-",
    )
    yield from foreign.scvi_cases("pbmc", Case, HEALTHY)


def third() -> Iterator[Case]:
    conv = Kind("conv-bce", partial(ConvVAE, (1, 28, 28), 8), settings={"epochs": 40, "patience": 5})
    mlp = Kind("mlp-bce", partial(ExampleVAE, 784, 8, hidden=128), settings={"epochs": 100, "patience": 8})
    yield from healthy("mnist", conv)
    yield from healthy("mnist", mlp)
    yield from faulty(
        "mnist",
        conv,
        lambda n: ConvVAE((1, 28, 28), n),
        "scaled inverted transposed mixed new deviation logvariance high logits encoder",
    )
    yield from faulty(
        "mnist",
        mlp,
        lambda n: ExampleVAE(784, n, hidden=128),
        "unstated xavier precision squared collapsed wide low ae0 fit",
    )
    yield from foreign.pythae_cases("mnist", Case, HEALTHY)
    deep = Kind("deep", partial(DeepVAE, 9, 3))
    yield from healthy("survey", deep)
    yield from healthy("survey", Kind("linear", partial(LinearVAE, 9, 3), settings={"lr": 1e-2}))
    yield from faulty(
        "survey",
        deep,
        lambda n: DeepVAE(9, n),
        "scaled unstated mixed new deviation precision collapsed wide low ae1 fit encoder variance",
    )
    linear = Kind("linear", partial(LinearVAE, 10, 4), settings={"lr": 1e-2})
    deep = Kind("deep", partial(DeepVAE, 10, 3))
    yield from healthy("health", linear)
    yield from healthy("health", deep)
    yield from lightning("health", latent=3)
    yield from faulty(
        "health",
        linear,
        lambda n: LinearVAE(10, n),
        "scaled inverted mixed xavier deviation squared logvariance low variance-",
    )
    yield from faulty("health", deep, lambda n: DeepVAE(10, n), "unstated new precision collapsed high ae encoder")
    deep = Kind("deep", partial(DeepVAE, 12, 2))
    yield from healthy("scurve", deep)
    yield from other_objective("scurve", Kind("IWAE", partial(IWAE, 12, 2)), "iwae")
    yield from marginals("scurve", Kind("full covariance", partial(FullCovarianceVAE, 12, 2)))
    yield from faulty(
        "scurve",
        deep,
        lambda n: DeepVAE(12, n),
        "scaled mixed xavier deviation logdeviation precision squared wide high low aggregate ae0 fit encoder variance "
        "variance- rotated seeds",
    )
    conv = Kind("conv", partial(ConvVAE, (1, 16, 16), 6, kind="sigma"), settings={"epochs": 60, "patience": 10})
    mlp = Kind("mlp", partial(ExampleVAE, 256, 6, kind="sigma"), settings={"epochs": 150, "patience": 15})
    yield from healthy("textures", conv)
    yield from healthy("textures", mlp)
    yield from faulty(
        "textures",
        conv,
        lambda n: ConvVAE((1, 16, 16), n, kind="sigma"),
        "scaled unstated mixed new deviation squared high low ae1 encoder variance",
    )
    yield from faulty(
        "textures",
        mlp,
        lambda n: ExampleVAE(256, n, kind="sigma"),
        "inverted xavier precision collapsed wide fit aggregate variance-",
    )
    yield from foreign.diffusers_cases("textures", Case, HEALTHY)
    bce = Kind("mlp-bce", partial(ExampleVAE, 80, 4))
    yield from healthy("docstrings", bce)
    yield from faulty(
        "docstrings",
        bce,
        lambda n: ExampleVAE(80, n),
        "scaled new mixed deviation logdeviation precision logvariance collapsed wide high low logits ae0 fit encoder",
    )
    gru = Kind("gru", partial(GRUVAE, 24, 4), settings={"epochs": 100, "patience": 15, "batch": 128, "lr": 4e-3})
    mlp = Kind("mlp", partial(ExampleVAE, 24, 4, kind="sigma"))
    yield from healthy("temperatures", gru)
    yield from healthy("temperatures", mlp)
    yield from faulty(
        "temperatures", gru, lambda n: GRUVAE(24, n), "scaled mixed new deviation precision logvariance encoder"
    )
    yield from faulty(
        "temperatures",
        mlp,
        lambda n: ExampleVAE(24, n, kind="sigma"),
        "unstated inverted xavier squared collapsed wide high low aggregate ae fit variance- rotated seeds",
    )
    yield from foreign.scvi_cases("wordcounts", Case, HEALTHY)


def scored() -> Iterator[Case]:
    conv = Kind("conv", partial(ConvVAE, (3, 16, 16), 6, kind="sigma"), settings={"epochs": 60, "patience": 10})
    bce = Kind("mlp-bce", partial(ExampleVAE, 768, 6), settings={"epochs": 120, "patience": 12})
    yield from healthy("photographs", conv)
    yield from healthy("photographs", bce)
    yield from faulty(
        "photographs",
        conv,
        lambda n: ConvVAE((3, 16, 16), n, kind="sigma"),
        "scaled unstated mixed new deviation squared high low aggregate encoder variance variance-",
    )
    yield from faulty(
        "photographs",
        bce,
        lambda n: ExampleVAE(768, n),
        "scaled inverted xavier precision logdeviation collapsed high logits ae0 fit",
    )
    yield from foreign.pythae_cases("photographs", Case, HEALTHY)
    yield from foreign.diffusers_cases("photographs", Case, HEALTHY)
    deep = Kind("deep", partial(DeepVAE, 11, 3))
    linear = Kind("linear", partial(LinearVAE, 11, 3), settings={"lr": 1e-2})
    yield from healthy("election", deep)
    yield from healthy("election", linear)
    yield from faulty(
        "election",
        deep,
        lambda n: DeepVAE(11, n),
        "scaled mixed new deviation precision collapsed wide low ae1 fit encoder variance",
    )
    yield from faulty(
        "election", linear, lambda n: LinearVAE(11, n), "unstated inverted deviation squared logvariance high variance-"
    )
    linear = Kind("linear", partial(LinearVAE, 13, 4), settings={"lr": 1e-2})
    yield from healthy("housing", linear)
    yield from lightning("housing", latent=3)
    yield from faulty(
        "housing", linear, lambda n: LinearVAE(13, n), "scaled mixed new deviation precision squared low ae variance"
    )
    deep = Kind("deep", partial(DeepVAE, 9, 3))
    yield from healthy("torus", deep)
    yield from other_objective("torus", Kind("IWAE", partial(IWAE, 9, 3)), "iwae")
    yield from marginals("torus", Kind("full covariance", partial(FullCovarianceVAE, 9, 3)))
    yield from faulty(
        "torus",
        deep,
        lambda n: DeepVAE(9, n),
        "unstated mixed xavier deviation logdeviation precision squared wide high low aggregate ae1 fit encoder "
        "variance- rotated seeds",
    )
    bce = Kind("mlp-bce", partial(ExampleVAE, 70, 4))
    yield from healthy("modules", bce)
    yield from faulty(
        "modules",
        bce,
        lambda n: ExampleVAE(70, n),
        "scaled new mixed deviation precision logvariance collapsed wide high low logits ae0 fit encoder",
    )
    gru = Kind("gru", partial(GRUVAE, 24, 3), settings={"epochs": 60, "patience": 15, "batch": 128, "lr": 4e-3})
    mlp = Kind("mlp", partial(ExampleVAE, 24, 3, kind="sigma"))
    yield from healthy("co2", gru)
    yield from healthy("co2", mlp)
    yield from faulty("co2", gru, lambda n: GRUVAE(24, n), "scaled mixed new deviation logvariance")
    yield from faulty(
        "co2",
        mlp,
        lambda n: ExampleVAE(24, n, kind="sigma"),
        "unstated xavier precision squared collapsed wide high low aggregate ae fit encoder variance- rotated seeds",
    )
    yield from foreign.scvi_cases("modulecounts", Case, HEALTHY)


def cases() -> list[Case]:
    return [*first(), *second(), *third(), *scored()]
