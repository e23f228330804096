"""Encoded samples: every row once, in chunks, from any kind of array."""

import importlib

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.analysis.encoding import encode, encode_chunks, encode_sample
from vaescope.analysis.samples import spread_rows
from vaescope.core.errors import InputError

X = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0))


class Counting(vs.LatentModel):
    """A linear model that records the rows passed to `encode`, and the codes at which it is differentiated."""

    spec = vs.ModelSpec(latent_dim=3, precision=100.0)

    def __init__(self, W):
        self.W, self.encoded, self.differentiated = W, [], []

    def encode(self, x):
        self.encoded.append(x)
        variance = 1 / (1 + self.precision * self.W.square().sum(0))
        return self.precision * (x @ self.W) * variance, variance.expand(len(x), 3)

    def decode(self, z):
        if torch._C._functorch.is_functorch_wrapped_tensor(z):
            self.differentiated.append(torch._C._functorch.get_unwrapped(z))
        return z @ self.W.T.to(z)


def counting(samples):
    """A model with two latents in use, and samples of it."""
    generator = torch.Generator().manual_seed(1)
    W = torch.linalg.qr(torch.randn(6, 3, generator=generator))[0] * torch.tensor([2.0, 1.0, 0.0])
    x = torch.randn(samples, 3, generator=generator) @ W.T + 0.1 * torch.randn(samples, 6, generator=generator)
    return Counting(W), x


def sorted_rows(chunks):
    rows = torch.cat(chunks)
    return rows[np.lexsort(rows.T.numpy())]


@pytest.mark.parametrize("samples", [100, 500, 9000])
@pytest.mark.parametrize("several", [False, True])
def test_diagnose_encodes_every_row_once_and_differentiates_once(samples, several, monkeypatch):
    """The gap, validity and identifiability are measured at points of their own, so they are left out here."""
    module = importlib.import_module("vaescope.products.diagnose.diagnose")
    monkeypatch.setattr(module, "measure_gap", lambda *_: None)
    monkeypatch.setattr(module, "validity_applies", lambda *_: False)
    monkeypatch.setattr(module, "_identifiability", lambda *_: None)
    (model, x), (other, _) = counting(samples), counting(samples)
    found = vs.diagnose([model, other] if several else model, x)
    assert found.evidence.geometry is not None
    assert found.evidence.eq12 is not None
    assert found.evidence.noise.implied is not None
    assert found.evidence.regime.effect is not None
    assert found.evidence.regime.column_norm is not None
    torch.testing.assert_close(sorted_rows(model.encoded), sorted_rows([x]))
    codes = torch.cat([c for c in model.differentiated if len(c) > 1])  # without the probe of the decoder
    points = min(samples, 128)
    assert len(codes) == 3 * points  # one forward-mode pass per latent
    assert len(torch.unique(codes, dim=0)) == points
    if several:
        assert sum(len(rows) for rows in other.encoded) == min(samples, 2000)
        assert found.evidence.stability.score == pytest.approx(1)


def test_regime_and_explorer_encode_every_row_once():
    for analyse in (vs.regime.of_model, vs.regime.advise, vs.regime.prune, vs.explorer.Session.of):
        model, x = counting(5000)
        analyse(model, x)
        torch.testing.assert_close(sorted_rows(model.encoded), sorted_rows([x]))


def test_memory_is_bounded_by_a_chunk():
    """Diagnosing 20,000 samples passes at most 4,096 of them to the encoder at a time, and keeps no codes."""
    model, x = counting(20_000)
    sizes = []
    encode_rows = model.encode
    model.encode = lambda rows: sizes.append(len(rows)) or encode_rows(rows)
    vs.diagnose(model, x.numpy())
    assert max(sizes) <= 4096
    assert sum(sizes) == 20_000


@pytest.mark.usefixtures("unchecked_shapes")
def test_means_for_the_metrics_are_those_of_a_direct_encoding(monkeypatch):
    received = []
    monkeypatch.setattr("vaescope.metrics.evaluate", lambda codes, factors: received.append(codes))
    model, x = counting(6000)
    vs.diagnose(model, x, factors=x[:, :1])
    torch.testing.assert_close(received[0], model.encode(x)[0])


def test_chunks_cover_all_rows_in_order(monkeypatch):
    model = vs.adapters.from_callables(encode=lambda x: (x, 1 + 0 * x), latent_dim=5)
    monkeypatch.setattr("vaescope.analysis.encoding.NUMBERS_AT_ONCE", 700)
    chunks = list(encode_chunks(model, X))
    assert len(chunks) == 8
    torch.testing.assert_close(torch.cat([chunk.mean for chunk in chunks]), X)
    first = encode_sample(model, X, None, 300)
    chunks = list(encode_chunks(model, X, first=first))
    assert chunks[0] is first
    rows = np.concatenate([chunk.rows for chunk in chunks])
    assert sorted(rows) == list(range(1000))
    for chunk in chunks:
        torch.testing.assert_close(chunk.mean, X[torch.from_numpy(chunk.rows)])


def test_a_sample_is_not_periodic():
    rows = spread_rows(9991, 1000)
    assert len(set(rows % 10)) == 10
    assert len(np.unique(rows)) == 1000
    assert (np.diff(rows) > 0).all()


def test_random_subsets_are_nested():
    model = vs.adapters.from_callables(encode=lambda x: (x, 1 + 0 * x), decode=lambda z: 2 * z, latent_dim=5)
    sample = encode_sample(model, X, None, 400)
    large, small = sample.random_subset(100), sample.random_subset(10)
    assert np.array_equal(large.rows[:10], small.rows)
    torch.testing.assert_close(small.mean, X[torch.from_numpy(small.rows)])
    torch.testing.assert_close(small.decoded, 2 * small.mean)
    assert len(sample.random_subset(1000)) == 400


def test_decoders_of_one_dtype_are_called_in_it():
    def decode(z):
        assert z.dtype == torch.float32
        return z

    model = vs.adapters.from_callables(encode=lambda x: (x, 1 + 0 * x), decode=decode, latent_dim=5)
    sample = encode(model, X[:3])
    assert sample.decode(sample.mean.double()).dtype == torch.float64
    assert sample.observations.dtype == torch.float64


@pytest.mark.parametrize(
    ("change", "x", "message"),
    [
        ({}, torch.where(torch.arange(1000)[:, None] == 713, torch.nan, X), "x must be finite.* at sample 713"),
        (
            {"encode": lambda x: (torch.where(x[:, :1] == X[713, 0], torch.inf, x), 1 + 0 * x)},
            X,
            "the encoder returned NaN or infinity at sample 713",
        ),
        ({"encode": lambda x: (x, torch.where(x[:, :1] == X[713, 0], -1.0, 1 + 0 * x))}, X, "at sample 713, latent 0"),
    ],
)
@pytest.mark.parametrize("count", [10, 900])
def test_errors_name_the_row_in_the_whole_data_set(change, x, message, count):
    model = vs.adapters.from_callables(**{"encode": lambda x: (x, 1 + 0 * x), "latent_dim": 5} | change)
    with pytest.raises(InputError, match=message):
        vs.regime.model.regime_of(encode_chunks(model, x, first=encode_sample(model, x, None, count)))
