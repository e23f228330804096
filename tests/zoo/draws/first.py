"""Models of the first draw of data sets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.zoo import foreign
from tests.zoo.cases import HEALTHY, Case, Kind, faulty, healthy, lightning, marginals, other_objective
from tests.zoo.networks import GRUVAE, IWAE, ConvVAE, DeepVAE, ExampleVAE, FullCovarianceVAE, LinearVAE


def cases() -> Iterator[Case]:
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
