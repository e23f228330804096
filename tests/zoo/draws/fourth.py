"""Models of the fourth draw of data sets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.zoo import foreign
from tests.zoo.cases import HEALTHY, Case, Kind, faulty, healthy, lightning, marginals, other_objective
from tests.zoo.networks import GRUVAE, IWAE, ConvVAE, DeepVAE, ExampleVAE, FullCovarianceVAE, LinearVAE


def cases() -> Iterator[Case]:
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
