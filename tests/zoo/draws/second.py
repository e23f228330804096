"""Models of the second draw of data sets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.zoo import foreign
from tests.zoo.cases import HEALTHY, Case, Kind, faulty, healthy, lightning, marginals, other_objective
from tests.zoo.networks import GRUVAE, IWAE, ConvVAE, DeepVAE, ExampleVAE, FullCovarianceVAE, LinearVAE


def cases() -> Iterator[Case]:
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
