"""Odd samples for every product: a result, or an `InputError` or `RunError` of one line, and nothing else."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import vaescope as vs
from vaescope.core.errors import InputError, RunError

warnings.filterwarnings("ignore", message="torch.quantize_per_tensor", category=UserWarning)


def model(columns):
    """A linear VAE with the best encoder for its decoder."""
    w = torch.linalg.qr(torch.randn(columns, columns, generator=torch.Generator().manual_seed(0)))[0][:, :2]
    latents = w.shape[1]
    return vs.adapters.from_callables(
        encode=lambda x: (0.8 * x @ w.to(x), torch.full((len(x), latents), 0.2, dtype=x.dtype)),
        decode=lambda z: z @ w.T.to(z),
        latent_dim=latents,
        precision=4.0,
    )


PRODUCTS = {
    "preflight": lambda x, columns: vs.preflight(x).content(),
    "fit": lambda x, columns: vs.fit(x, latent_dim=2, epochs=1, hidden=(4,), compile="never").summary(),
    "diagnose": lambda x, columns: vs.diagnose(model(columns), x, budget=0.2, progress=None).content(),
    "compare": lambda x, columns: vs.compare([model(columns)] * 2, x, budget=0.2, progress=None).content(),
    "certify": lambda x, columns: vs.certify(model(columns), x, simulations=200, budget=0.2, progress=None).content(),
    "identifiability": lambda x, columns: repr(vs.identifiability([model(columns)] * 2, x)),
    "anomaly": lambda x, columns: repr(vs.anomaly_scores(model(columns), x, reference=x, draws=100)),
    "regime": lambda x, columns: repr(vs.regime.of_model(model(columns), x)),
    "watch": lambda x, columns: vs.Watch(model(columns), x, every=1, show=False).update(0),
}
VALUES = ["normal", "constant", "zero", "one nan", "all nan", "infinite", "one outlier", "one column varies"]
CONTAINERS = {
    "float64": lambda x: x,
    "float32": lambda x: x.astype(np.float32),
    "float16": lambda x: x.astype(np.float16),
    "integer": lambda x: np.nan_to_num(x).clip(-1e18, 1e18).astype(np.int64),
    "byte": lambda x: np.nan_to_num(x).clip(0, 255).astype(np.uint8),
    "bool": lambda x: x > 0,
    "object": lambda x: x.astype(object),
    "text": lambda x: x.astype(str),
    "complex": lambda x: x + 1j,
    "list": lambda x: x.tolist(),
    "masked": lambda x: np.ma.masked_invalid(x),
    "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
    "Fortran": np.asfortranarray,
    "backwards": lambda x: x[::-1, ::-1],
    "tensor": torch.from_numpy,
    "half": lambda x: torch.from_numpy(x).half(),
    "expanded": lambda x: torch.from_numpy(x)[:1].expand(len(x), -1),
    "transposed": lambda x: torch.from_numpy(x.T.copy()).T,
    "meta": lambda x: torch.from_numpy(x).to("meta"),
    "quantised": lambda x: torch.quantize_per_tensor(torch.from_numpy(x).float().nan_to_num(), 0.1, 0, torch.quint8),
    "sparse": lambda x: torch.from_numpy(x).to_sparse(),
    "gradient": lambda x: torch.from_numpy(x.copy()).requires_grad_(),
}


def samples(values, exponent, rows, columns):
    x = np.random.default_rng(0).normal(size=(rows, columns))
    if values in ("constant", "zero"):
        x[:] = 0.7 if values == "constant" else 0.0
    elif values == "one column varies":
        x[:, 1:] = 1.0
    elif x.size and values in ("one nan", "one outlier"):
        x[0, 0] = np.nan if values == "one nan" else 1e12
    elif values in ("all nan", "infinite"):
        x[:] = np.nan if values == "all nan" else np.inf
    return x * 10.0 ** (exponent / 2) * 10.0 ** (exponent / 2)


@pytest.mark.parametrize("product", PRODUCTS)
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.sampled_from(VALUES),
    st.sampled_from([0, 0, 0, -300, -100, -45, -20, -8, 8, 20, 38, 100, 300]),
    st.sampled_from([60, 60, 60, 12, 2, 1, 0]),
    st.sampled_from([4, 4, 4, 1, 2, 0]),
    st.sampled_from([*CONTAINERS]),
)
@example("constant", 0, 60, 4, "float64")
@example("constant", 0, 60, 4, "float32")
@example("zero", 0, 60, 4, "float64")
@example("constant", 0, 60, 4, "byte")
@example("normal", 0, 60, 1, "float64")
@example("normal", 0, 1, 4, "float64")
@example("normal", -300, 60, 4, "float64")
@example("normal", -20, 60, 4, "float64")
@example("normal", 20, 60, 4, "float64")
@example("normal", 38, 60, 4, "float64")
@example("normal", 100, 60, 4, "float64")
@example("normal", 300, 60, 4, "float64")
@example("normal", 0, 60, 4, "meta")
@example("normal", 0, 60, 4, "quantised")
@example("one outlier", 0, 60, 4, "float64")
def test_a_result_or_an_error_of_one_line(product, values, exponent, rows, columns, container):
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = CONTAINERS[container](samples(values, exponent, rows, columns))
    message = ""
    try:
        PRODUCTS[product](x, max(1, columns))
    except (InputError, RunError) as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize("product", PRODUCTS)
def test_ordinary_samples_have_a_result(product):
    assert PRODUCTS[product](samples("normal", 0, 60, 4), 4) is not None
