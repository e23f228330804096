"""Models that are broken: every product says so in one line or one finding."""

import sys

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError

X = np.random.default_rng(0).normal(size=(80, 4))
WEIGHTS = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0][:, :2]


def encode(x):
    mean = 0.8 * x.double() @ WEIGHTS
    return mean, torch.full_like(mean, 0.2)


def decode(z):
    return z.double() @ WEIGHTS.T


def model(encode=encode, decode=decode):
    return vs.adapters.from_callables(encode=encode, decode=decode, latent_dim=2, precision=4.0)


PRODUCTS = {
    "diagnose": lambda m: vs.diagnose(m, X, budget=0.2, progress=None),
    "compare": lambda m: vs.compare([m, model()], X, budget=0.2, progress=None),
    "certify": lambda m: vs.certify(m, X, simulations=200, budget=0.2, progress=None),
    "identifiability": lambda m: vs.identifiability(m, X),
    "anomaly": lambda m: vs.anomaly_scores(m, X, reference=X, draws=100),
    "regime": lambda m: vs.regime.of_model(m, X),
    "watch": lambda m: vs.Watch(m, X, every=1, show=False).update(0),
}
REFUSED = {
    "encoder that exits": (model(encode=lambda x: sys.exit(0)), "encode failed .*SystemExit"),
    "complex means": (model(encode=lambda x: (encode(x)[0] + 0j, encode(x)[1])), "mean must be real numbers"),
    "means that are not numbers": (model(encode=lambda x: (encode(x)[0] * torch.nan, encode(x)[1])), "NaN or infinity"),
    "fewer rows": (model(encode=lambda x: tuple(part[:1] for part in encode(x))), "a row for each of 80 samples"),
}


@pytest.mark.parametrize("product", sorted(set(PRODUCTS) - {"watch"}))
@pytest.mark.parametrize("case", REFUSED)
def test_encoders_that_fail_are_refused_in_one_line(product, case):
    broken, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as caught:
        PRODUCTS[product](broken)
    assert "\n" not in str(caught.value)


FAILING = {
    "exits": lambda z: sys.exit(0),
    "raises": lambda z: 1 / 0,
    "complex": lambda z: decode(z) + 0j,
    "another width": lambda z: decode(z)[:, :3],
    "not numbers": lambda z: decode(z) * torch.nan,
    "no tensor": lambda z: None,
}


@pytest.mark.parametrize("case", FAILING)
@pytest.mark.parametrize("product", ["certify", "anomaly", "regime"])
def test_decoders_that_fail_are_refused_in_one_line(product, case):
    with pytest.raises(InputError) as caught:
        PRODUCTS[product](model(decode=FAILING[case]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", FAILING)
def test_what_needs_no_decoder_is_reported_with_the_failure(case):
    broken = model(decode=FAILING[case])
    assert PRODUCTS["diagnose"](broken).worst == "error"
    assert "model (1): ELBO" in PRODUCTS["compare"](broken).skipped
    if case == "not numbers":
        assert [finding.code for finding in PRODUCTS["watch"](broken).findings] == ["not-finite"]
    else:
        with pytest.raises(InputError):
            PRODUCTS["watch"](broken)


def test_outputs_that_are_integers_are_numbers():
    rounded = model(lambda x: (encode(x)[0].round().int(), encode(x)[1]), lambda z: decode(z).round().int())
    for name in ("certify", "watch", "anomaly"):
        PRODUCTS[name](rounded)


def test_negative_variances_are_never_read_as_something_else_in_silence():
    negative = model(encode=lambda x: (encode(x)[0], -encode(x)[1]))
    assert PRODUCTS["diagnose"](negative).find("negative-variance")
    assert "read as log-variances" in str(PRODUCTS["compare"](negative).skipped)
    assert "read as log-variances" in repr(PRODUCTS["identifiability"](negative))
    assert [finding.code for finding in PRODUCTS["watch"](negative).findings] == ["not-finite"]
    for name in ("regime", "anomaly"):
        with pytest.raises(InputError, match="variance"):
            PRODUCTS[name](negative)
    assert PRODUCTS["certify"](negative).find("scale-of-variance")
