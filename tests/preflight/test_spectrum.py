"""Streamed eigenvalues: parity with NumPy, whatever the chunks, the offset and the method; the noise floor."""

import numpy as np
import pytest

from vaescope.inference.linear import spectrum_of_rows
from vaescope.products.preflight import spectrum
from vaescope.products.preflight.data import profile, row_hashes, source_of
from vaescope.products.preflight.spectrum import intrinsic_dimension

RNG = np.random.default_rng(0)
X = RNG.normal(size=(500, 6)) * [3.0, 2.0, 1.0, 0.5, 0.2, 0.1]


def numpy_eigenvalues(x):
    return np.linalg.eigvalsh(np.cov(x.T, bias=True))[::-1]


@pytest.mark.parametrize("size", [1, 7, 500])
@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_chunks_and_offsets_change_nothing(size, offset):
    rows = X + offset
    moments = spectrum.accumulate_moments([rows[i : i + size] for i in range(0, 500, size)], 6)
    assert np.linalg.eigvalsh(moments.covariance)[::-1] == pytest.approx(numpy_eigenvalues(X), rel=1e-6)
    alone = spectrum.accumulate_moments([rows[:100], rows[100:]], 6, full=False)
    assert alone.mean == pytest.approx(rows.mean(0))
    assert alone.covariance == pytest.approx(rows.var(0), rel=1e-6)
    assert alone.count == 500


@pytest.mark.parametrize("rows_in_gram", [10_000, 0])
def test_wide_data(rows_in_gram):
    """The Gram matrix and the randomised method, against the full covariance."""
    wide = RNG.normal(size=(300, 8)) * np.geomspace(10, 1, 8) @ RNG.normal(size=(8, 120))
    wide += 0.1 * RNG.normal(size=wide.shape)
    chunks, mean, variance = (lambda: iter([wide[:100], wide[100:]])), wide.mean(0), wide.var(0)
    found = spectrum.wide_spectrum(chunks, mean, variance, 300, gram_rows=rows_in_gram, leading=10)
    assert found.eigenvalues[:8] == pytest.approx(numpy_eigenvalues(wide)[:8], rel=1e-6)
    assert found.total == pytest.approx(wide.var(0).sum())
    assert found.exact == bool(rows_in_gram)
    assert found.signal == 8


@pytest.mark.parametrize(("rows", "columns", "signals"), [(2000, 30, 0), (2000, 30, 3), (400, 100, 5), (3000, 10, 8)])
def test_planted_signals_are_counted(rows, columns, signals):
    rng = np.random.default_rng(rows + signals)
    x = 0.5 * rng.normal(size=(rows, columns))
    x[:, :signals] += rng.normal(size=(rows, signals)) * np.linspace(4, 2, signals)
    found = spectrum_of_rows(x)
    assert found.signal == signals
    assert found.noise == pytest.approx(0.25, rel=0.1)
    assert found.flat == (signals == 0)


def test_a_profile_reads_what_is_there():
    rows = np.vstack([X, X[:3]])
    rows[5, 2] = np.nan
    read = profile(source_of(rows))
    assert (read.rows, read.duplicates, read.ranges.incomplete_rows) == (502, 3, 1)
    complete = np.delete(rows, 5, axis=0)
    assert read.mean == pytest.approx(complete.mean(0))
    assert read.spectrum().eigenvalues == pytest.approx(numpy_eigenvalues(complete))
    mostly = rows.copy()
    mostly[:400, 1] = np.nan
    assert profile(source_of(mostly)).kept.tolist() == [0, 2, 3, 4, 5]
    scattered = np.where(RNG.random(rows.shape) < 0.4, np.nan, rows)
    assert profile(source_of(scattered)).imputed


def test_hashes_see_order_sign_and_small_changes():
    rows = np.array([[1.0, 2.0], [2.0, 1.0], [-1.0, 2.0], [1.0, 2.0 + 1e-15], [0.0, 0.0], [-0.0, 0.0]])
    assert len(np.unique(row_hashes(rows))) == 5


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_linear_data_have_their_dimension_and_are_not_curved(dim):
    rng = np.random.default_rng(dim)
    x = rng.normal(size=(1500, dim)) @ rng.normal(size=(dim, 12))
    found = intrinsic_dimension(x, numpy_eigenvalues(x)[:dim])
    assert found.value == pytest.approx(dim, rel=0.1)
    assert found.low <= found.value <= found.high
    assert not found.curved


def test_curved_data_have_their_dimension_and_are_curved():
    rng = np.random.default_rng(0)
    x = np.sin(rng.uniform(-1, 1, size=(1500, 2)) @ (3 * rng.normal(size=(2, 12))))
    found = intrinsic_dimension(x, numpy_eigenvalues(x))
    assert found.curved
    assert found.value == pytest.approx(2, abs=0.4)
    assert intrinsic_dimension(x[:20], numpy_eigenvalues(x)) is None
