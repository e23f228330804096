"""Models of the seventh draw of data sets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.zoo import foreign
from tests.zoo.cases import HEALTHY, Case, Kind, faulty, healthy, lightning, marginals, other_objective
from tests.zoo.networks import GRUVAE, IWAE, ConvVAE, DeepVAE, ExampleVAE, FullCovarianceVAE, LinearVAE


def cases() -> Iterator[Case]:
    conv = Kind("conv", partial(ConvVAE, (3, 16, 16), 5, kind="sigma"), settings={"epochs": 60, "patience": 10})
    yield from healthy("wheel", conv)
    yield from faulty(
        "wheel",
        conv,
        lambda n: ConvVAE((3, 16, 16), n, kind="sigma"),
        "scaled unstated mixed new deviation precision high low encoder variance",
    )
    yield from foreign.pythae_cases("wheel", Case, HEALTHY)
    conv = Kind("conv-bce", partial(ConvVAE, (1, 16, 16), 6), settings={"epochs": 60, "patience": 10})
    mlp = Kind("mlp-bce", partial(ExampleVAE, 256, 6), settings={"epochs": 120, "patience": 12})
    yield from healthy("bars", conv)
    yield from healthy("bars", mlp)
    yield from faulty(
        "bars",
        conv,
        lambda n: ConvVAE((1, 16, 16), n),
        "scaled inverted mixed new deviation logvariance high logits encoder",
    )
    yield from faulty(
        "bars",
        mlp,
        lambda n: ExampleVAE(256, n),
        "unstated xavier precision logdeviation collapsed wide low ae0 fit encoder",
    )
    deep = Kind("deep", partial(DeepVAE, 11, 3))
    linear = Kind("linear", partial(LinearVAE, 11, 3), settings={"lr": 1e-2})
    yield from healthy("cells", deep)
    yield from healthy("cells", linear)
    yield from faulty(
        "cells",
        deep,
        lambda n: DeepVAE(11, n),
        "scaled mixed new deviation precision collapsed wide high low ae1 fit encoder variance",
    )
    yield from faulty(
        "cells", linear, lambda n: LinearVAE(11, n), "unstated inverted xavier squared logvariance variance-"
    )
    deep = Kind("deep", partial(DeepVAE, 9, 3))
    yield from healthy("friedman", deep)
    yield from lightning("friedman", latent=3)
    yield from faulty(
        "friedman",
        deep,
        lambda n: DeepVAE(9, n),
        "scaled mixed new deviation precision squared collapsed high low ae0 fit encoder variance",
    )
    deep = Kind("deep", partial(DeepVAE, 9, 2))
    yield from healthy("circles", deep)
    yield from other_objective("circles", Kind("IWAE", partial(IWAE, 9, 2)), "iwae")
    yield from marginals("circles", Kind("full covariance", partial(FullCovarianceVAE, 9, 2)))
    yield from faulty(
        "circles",
        deep,
        lambda n: DeepVAE(9, n),
        "unstated mixed xavier deviation logdeviation squared wide high low aggregate ae fit encoder variance- rotated "
        "seeds",
    )
    bce = Kind("mlp-bce", partial(ExampleVAE, 70, 4))
    yield from healthy("guide", bce)
    yield from faulty(
        "guide",
        bce,
        lambda n: ExampleVAE(70, n),
        "scaled new mixed deviation precision logvariance collapsed wide high low logits ae0 fit encoder",
    )
    gru = Kind("gru", partial(GRUVAE, 24, 3), settings={"epochs": 60, "patience": 15, "batch": 128, "lr": 4e-3})
    mlp = Kind("mlp", partial(ExampleVAE, 24, 3, kind="sigma"))
    yield from healthy("employment", gru)
    yield from healthy("employment", mlp)
    yield from faulty("employment", gru, lambda n: GRUVAE(24, n), "scaled mixed new deviation logvariance encoder")
    yield from faulty(
        "employment",
        mlp,
        lambda n: ExampleVAE(24, n, kind="sigma"),
        "unstated xavier precision squared collapsed wide high low aggregate ae fit encoder variance- rotated seeds",
    )
    yield from foreign.scvi_cases("letters", Case, HEALTHY)
