"""User input: what is accepted without changing a number, and what every error message says."""

import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse

import vaescope as vs
from vaescope.core import validation
from vaescope.core.errors import InputError

ONE, NAN, INF = [[1.0, 2.0]], float("nan"), float("inf")


class Frame:
    """Like a data frame: not an array, but convertible to one."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype=dtype)


class Unreadable:
    """Raises an error when NumPy tries to read it."""

    def __array__(self, dtype=None, copy=None):
        raise ValueError("closed")


def masked(mask):
    return np.ma.masked_array(np.ones((3, 2)), mask=np.full((3, 2), mask))


# arrays that are rejected -----------------------------------------------------------------------

BAD_ARRAYS = {
    "text": ("hello", "x must be an array of numbers, got text; encode categories as integers."),
    "rows of text": ([["a", "b"]], "got text; encode categories as integers"),
    "bytes": (np.array([[b"a"]]), "got text"),
    "numbers as text in objects": (np.array([["1.5", 2.0]], object), "got objects; encode categories"),
    "ragged list": ([[1.0, 2.0], [3.0]], "x must be an array of numbers, got rows of different lengths."),
    "tensors of different shapes": ([torch.zeros(2), torch.zeros(3)], "got tensors of different shapes"),
    "complex array": (np.ones((2, 2), complex), "got complex128"),
    "complex tensor": (torch.ones(2, 2, dtype=torch.complex64), "x must be real, got complex numbers."),
    "dates": (np.array([["2024-01-01"]], "datetime64[D]"), r"got datetime64\[D\]"),
    "masked values": (masked(True), "x has masked values; drop or impute those samples."),
    "huge sparse matrix": (sparse.csr_matrix((10**6, 10**4)), "is sparse and would need 75 GB as an array"),
    "dictionary": ({"a": [1.0]}, "got a dict; pass one of its arrays"),
    "generator of batches": ((v for v in ONE), "got a generator; collect its batches into one array first"),
    "object": (object(), "got object; encode categories"),
    "unreadable": (Unreadable(), "x must be an array of numbers, got Unreadable."),
    "None": (None, "x must be an array of numbers, got NoneType"),
    "one dimension": ([1.0, 2.0], r"x must have a row per sample, shape \(N, n\), got shape \(2,\)."),
    "a number": (3.0, r"got shape \(\)"),
    "no samples": (np.zeros((0, 3)), r"x must have at least one row and one column, got shape \(0, 3\)."),
    "no columns": (np.zeros((3, 0)), r"at least one row and one column, got shape \(3, 0\)"),
    "NaN": ([[1.0, NAN], [0.0, 1.0], [INF, NAN]], r"got NaN or infinity in 2 of 3 rows \(the first is row 0\)"),
    "infinity": (torch.tensor([[1.0], [-INF]]), r"1 of 2 rows \(the first is row 1\); drop or impute them."),
    "missing values in objects": (np.array([[1.0, None]], object), "NaN or infinity in 1 of 1 rows"),
}


@pytest.mark.parametrize(("values", "message"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
@pytest.mark.parametrize("read", [validation.rows, validation.matrix, validation.tensor])
def test_bad_arrays_are_rejected_in_one_line(read, values, message):
    with pytest.raises(vs.InputError, match=message) as error:
        read(values, "x")
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("x ")


def test_a_minimum_number_of_samples_and_two_dimensions():
    with pytest.raises(vs.InputError, match="x needs at least 3 samples, got 1"):
        validation.rows(ONE, "x", minimum=3)
    with pytest.raises(vs.InputError, match=r"codes must have a row per sample, shape \(N, k\), got shape \(2, 3, 4\)"):
        validation.matrix(np.zeros((2, 3, 4)), "codes")


# numbers and choices that are rejected ----------------------------------------------------------

BAD_VALUES = {
    "unknown choice": (
        lambda: validation.choice("noise", "loud", ("fixed", "learned")),
        "one of fixed, learned, got 'loud'",
    ),
    "choice of another type": (lambda: validation.choice("noise", 3, ("fixed",)), "noise must be one of fixed, got 3"),
    "fraction": (lambda: validation.integer("draws", 2.5), "draws must be an integer, got 2.5"),
    "boolean as an integer": (lambda: validation.integer("draws", True), "integer, got True"),
    "booleans as precisions": (lambda: validation.precisions([True, False], 2), "numbers > 0, got booleans"),
    "too few": (lambda: validation.integer("draws", 1, minimum=2), "draws must be at least 2, got 1"),
    "text as a number": (lambda: validation.number("beta", "2"), "beta must be a number, got '2'"),
    "NaN as a number": (lambda: validation.number("beta", NAN), "beta must be finite, got nan"),
    "too small": (lambda: validation.number("beta", -1, minimum=0.0), "beta must be at least 0, got -1"),
    "on the bound": (lambda: validation.number("rate", 0.0, above=0.0), "rate must be > 0, got 0.0"),
    "hint": (lambda: validation.number("rate", NAN, above=0.0, hint="try 1"), "rate must be > 0, got nan; try 1."),
    "enormous integer": (lambda: validation.number("beta", 10**400), "beta must be finite, got an integer above"),
    "precision": (lambda: validation.precision(-1.0), "precision must be > 0, got -1.0; it is 1 / decoder variance."),
    "precisions": (lambda: validation.precision(torch.ones(2)), "precision must be a number"),
    "flat image": (lambda: validation.image_shape((64, 64)), r"must be \(channels, height, width\), got \(64, 64\)"),
    "empty image": (lambda: validation.image_shape((1, 0, 64)), r"got \(1, 0, 64\)"),
    "text as an image": (lambda: validation.image_shape("abc", "size"), "size must be"),
    "log-variances": (lambda: validation.posterior(ONE, [[0.0, -1.0]]), "pass variances, not log-variances"),
    "shapes": (lambda: validation.posterior(ONE, [[1.0]]), r"same shape \(N, d\), got \(1, 2\) and \(1, 1\)"),
    "mask of numbers": (lambda: validation.latent_mask([1, 0], 2), "True or False for each of 2 latents"),
    "short mask": (lambda: validation.latent_mask([True], 2), r"each of 2 latents, got \[True\]"),
    "rows": (lambda: validation.same_rows({"codes": 3, "factors": 4}), "codes has 3, factors has 4"),
}


@pytest.mark.parametrize(("call", "message"), BAD_VALUES.values(), ids=BAD_VALUES)
def test_bad_values_are_rejected_in_one_line(call, message):
    with pytest.raises(vs.InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_long_values_are_shortened():
    assert len(validation.shown(list(range(1000)))) == 60
    assert validation.shown(np.eye(2)) == "array([[1., 0.], [0., 1.]])"


# what is accepted -------------------------------------------------------------------------------

NUMERIC = st.one_of(
    arrays.floating_dtypes(), arrays.integer_dtypes(), arrays.unsigned_integer_dtypes(), arrays.boolean_dtypes()
)
SHAPES = arrays.array_shapes(min_dims=2, max_dims=4, max_side=4)


@settings(max_examples=200)
@given(array=NUMERIC.flatmap(lambda kind: arrays.arrays(kind, SHAPES)))
def test_arrays_of_every_numeric_type_and_shape(array):
    """Values are either unchanged or, if not finite, rejected."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        with pytest.raises(vs.InputError, match="x must be finite"):
            validation.tensor(array, "x")
        return
    assert validation.rows(array, "x") is array
    found = validation.tensor(array, "x")
    wide = array.dtype.kind == "f" and array.dtype.itemsize >= 8
    assert found.dtype == (torch.float64 if wide else torch.float32)
    np.testing.assert_array_equal(found.numpy(), array.astype(np.float64 if wide else np.float32))
    if array.ndim == 2:
        matrix = validation.matrix(array, "x")
        assert matrix.dtype == np.float64
        np.testing.assert_array_equal(matrix, array.astype(np.float64))


@settings(max_examples=100)
@given(array=arrays.arrays(st.sampled_from(["U3", "S3", "datetime64[D]", "complex64"]), arrays.array_shapes()))
def test_arrays_of_other_types_are_rejected(array):
    with pytest.raises(vs.InputError, match="x must be an array of numbers"):
        validation.rows(array, "x")


REAL = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_tensors_of_every_real_type(dtype):
    values = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    found = validation.tensor(values, "x")
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(found, values.to(found.dtype))
    assert validation.matrix(values, "x").tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_tensors_are_detached_and_not_copied():
    values = torch.ones(3, 2, requires_grad=True)
    found = validation.tensor(values, "x")
    assert found.data_ptr() == values.data_ptr()
    assert not found.requires_grad
    assert validation.array(torch.ones(2, 2, dtype=torch.complex64).conj().imag, "x").tolist() == [[-0.0] * 2] * 2


def test_lists_frames_objects_and_unmasked_arrays():
    expected = [[1.0, 2.0], [3.0, 4.0]]
    for values in (
        expected,
        Frame(expected),
        np.array(expected, object),
        Frame(np.array([[1, 2.0], [3, 4]], object)),
        np.ma.masked_array(expected, mask=False),
        [torch.tensor(row, requires_grad=True) for row in expected],
        [np.array(row) for row in expected],
    ):
        found = validation.matrix(values, "x")
        assert type(found) is np.ndarray
        assert found.tolist() == expected


def test_memory_mapped_arrays_stay_on_disk(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.arange(40.0).reshape(20, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    monkeypatch.setattr(validation, "CHECKED_AT_ONCE", 6)  # three rows at a time
    assert validation.rows(mapped, "x") is mapped
    np.save(tmp_path / "x.npy", np.where(np.arange(40) == 31, np.nan, 0.0).reshape(20, 2))
    with pytest.raises(vs.InputError, match=re.escape("1 of 20 rows (the first is row 15)")):
        validation.rows(np.load(tmp_path / "x.npy", mmap_mode="r"), "x")


def test_values_are_returned_in_python_types():
    assert validation.integer("draws", np.int64(3)) == 3
    assert type(validation.integer("draws", np.int64(3))) is int
    assert type(validation.number("beta", np.float32(0.5))) is float
    for given_precision in (2, 2.0, np.float32(2), torch.tensor(2), torch.tensor([2.0]), np.array(2.0)):
        assert validation.precision(given_precision) == 2.0
    assert validation.image_shape([np.int64(3), 8, 8]) == (3, 8, 8)
    assert validation.latent_mask(torch.tensor([True, False]), 2).tolist() == [True, False]


def test_tensors_without_plain_numbers_are_refused():
    with pytest.raises(InputError, match="x must be a tensor of plain numbers, got float32 on device meta; convert it"):
        validation.tensor(torch.zeros(3, 2, device="meta"), "x")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.quantize_per_tensor(torch.rand(3, 2), 0.1, 0, torch.quint8)
    with pytest.raises(InputError, match="x must be a tensor of plain numbers, got quint8"):
        validation.tensor(quantised, "x")
