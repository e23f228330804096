"""Models of the third draw of data sets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.zoo import foreign
from tests.zoo.cases import HEALTHY, Case, Kind, faulty, healthy, lightning, marginals, other_objective
from tests.zoo.networks import GRUVAE, IWAE, ConvVAE, DeepVAE, ExampleVAE, FullCovarianceVAE, LinearVAE


def cases() -> Iterator[Case]:
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
