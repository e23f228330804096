"""Models of the fifth draw of data sets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.zoo import foreign
from tests.zoo.cases import HEALTHY, Case, Kind, faulty, healthy, lightning, marginals, other_objective
from tests.zoo.networks import GRUVAE, IWAE, ConvVAE, DeepVAE, ExampleVAE, FullCovarianceVAE, LinearVAE


def cases() -> Iterator[Case]:
    conv = Kind("conv", partial(ConvVAE, (3, 16, 16), 5, kind="sigma"), settings={"epochs": 60, "patience": 10})
    yield from healthy("micrographs", conv)
    yield from faulty(
        "micrographs",
        conv,
        lambda n: ConvVAE((3, 16, 16), n, kind="sigma"),
        "scaled unstated mixed new deviation precision high low encoder variance",
    )
    yield from foreign.pythae_cases("micrographs", Case, HEALTHY)
    conv = Kind("conv-bce", partial(ConvVAE, (1, 16, 16), 6), settings={"epochs": 60, "patience": 10})
    mlp = Kind("mlp-bce", partial(ExampleVAE, 256, 6), settings={"epochs": 120, "patience": 12})
    yield from healthy("glyphs", conv)
    yield from healthy("glyphs", mlp)
    yield from faulty(
        "glyphs",
        conv,
        lambda n: ConvVAE((1, 16, 16), n),
        "scaled inverted mixed new deviation logvariance high logits encoder",
    )
    yield from faulty(
        "glyphs",
        mlp,
        lambda n: ExampleVAE(256, n),
        "unstated transposed xavier precision logdeviation collapsed wide low ae0 fit encoder",
    )
    deep = Kind("deep", partial(DeepVAE, 19, 4))
    linear = Kind("linear", partial(LinearVAE, 19, 4), settings={"lr": 1e-2})
    yield from healthy("schools", deep)
    yield from healthy("schools", linear)
    yield from faulty(
        "schools",
        deep,
        lambda n: DeepVAE(19, n),
        "scaled mixed new deviation precision collapsed wide high low ae1 fit encoder variance",
    )
    yield from faulty(
        "schools", linear, lambda n: LinearVAE(19, n), "unstated inverted xavier squared logvariance variance-"
    )
    deep = Kind("deep", partial(DeepVAE, 6, 2))
    yield from healthy("weather", deep)
    yield from lightning("weather", latent=2)
    yield from faulty(
        "weather",
        deep,
        lambda n: DeepVAE(6, n),
        "scaled mixed new deviation precision squared collapsed high low ae0 fit encoder variance",
    )
    deep = Kind("deep", partial(DeepVAE, 10, 3))
    yield from healthy("knot", deep)
    yield from other_objective("knot", Kind("IWAE", partial(IWAE, 10, 3)), "iwae")
    yield from marginals("knot", Kind("full covariance", partial(FullCovarianceVAE, 10, 3)))
    yield from faulty(
        "knot",
        deep,
        lambda n: DeepVAE(10, n),
        "unstated mixed xavier deviation logdeviation squared wide high low aggregate ae fit encoder variance- rotated "
        "seeds",
    )
    bce = Kind("mlp-bce", partial(ExampleVAE, 70, 4))
    yield from healthy("manual", bce)
    yield from faulty(
        "manual",
        bce,
        lambda n: ExampleVAE(70, n),
        "scaled new mixed deviation precision logvariance collapsed wide high low logits ae0 fit encoder",
    )
    gru = Kind("gru", partial(GRUVAE, 24, 3), settings={"epochs": 60, "patience": 15, "batch": 128, "lr": 4e-3})
    mlp = Kind("mlp", partial(ExampleVAE, 24, 3, kind="sigma"))
    yield from healthy("stocks", gru)
    yield from healthy("stocks", mlp)
    yield from faulty("stocks", gru, lambda n: GRUVAE(24, n), "scaled mixed new deviation logvariance encoder")
    yield from faulty(
        "stocks",
        mlp,
        lambda n: ExampleVAE(24, n, kind="sigma"),
        "unstated xavier precision squared collapsed wide high low aggregate ae fit encoder variance- rotated seeds",
    )
    yield from foreign.scvi_cases("manualcounts", Case, HEALTHY)
