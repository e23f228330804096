"""Splits, and data sets from arrays in memory."""

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.data import Dataset, dataset_from
from vaescope.data.catalogue import load_auxiliary
from vaescope.data.dataset import flatten_samples, split


def test_arrays_of_any_type_become_rows_of_float32():
    for x in ([[1, 2], [3, 4]], np.ones((2, 2)), torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, 2).bool()):
        found = dataset_from(x)
        assert found.x.dtype == torch.float32
        assert found.x.shape == (2, 2)
        assert found.image_shape is None
    assert dataset_from(np.zeros((3, 2, 2, 2, 2))).x.shape == (3, 16)


@pytest.mark.parametrize(
    ("shape", "image_shape"), [((6, 8, 9), (1, 8, 9)), ((6, 8, 9, 3), (3, 8, 9)), ((6, 3, 8, 9), (3, 8, 9))]
)
def test_images_of_any_layout_become_rows_with_channels_first(shape, image_shape):
    values = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    for x in (values, torch.from_numpy(values), values.tolist()):
        found = dataset_from(x)
        assert found.image_shape == image_shape
        first = found.x[0].reshape(image_shape).numpy() * 255
        expected = values[0] if values.ndim == 3 or shape[1] == 3 else np.moveaxis(values[0], -1, 0)
        np.testing.assert_allclose(first, expected.reshape(image_shape), atol=1e-4)


def test_images_outside_the_unit_range_are_rejected_only_on_request():
    values = np.linspace(-1, 1, 2 * 16).reshape(2, 4, 4)
    assert float(flatten_samples(values, "x")[1].min()) == -1
    with pytest.raises(vs.InputError, match=r"images in x must have values in \[0, 1\] or bytes, got -1 to 1"):
        flatten_samples(values, "x", unit_range=True)


def test_sixteen_bit_images_are_rescaled():
    assert float(flatten_samples(np.full((2, 4, 4), 65535, np.uint16), "x")[1].max()) == 1


def test_data_sets_names_and_paths(tmp_path):
    data = Dataset("mine", torch.zeros(3, 2))
    assert dataset_from(data) is data
    np.save(tmp_path / "x.npy", np.ones((4, 3), np.float32))
    for path in (tmp_path / "x.npy", str(tmp_path / "x.npy")):
        assert dataset_from(path).x.shape == (4, 3)
    with pytest.raises(vs.InputError, match="does not exist"):
        dataset_from(tmp_path / "absent.npy")
    with pytest.raises(vs.InputError, match="data set must be one of sprites, dsprites"):
        dataset_from("spirtes")
    drawn = vs.data.open_dataset("sprites", rows=5)
    assert drawn.factors.shape == (5, 4)
    assert drawn.factor_names == ("x", "y", "scale", "hue")


def test_read_only_arrays_are_copied(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((4, 3), np.float32))
    found = dataset_from(np.load(tmp_path / "x.npy", mmap_mode="r"))
    found.x[0] = 2.0
    assert float(np.load(tmp_path / "x.npy").max()) == 1.0


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.array([[1.0, np.nan], [0.0, 1.0]]), r"x must be finite, got NaN or infinity in 1 of 2 rows"),
        (np.zeros((1, 3)), "x needs at least 2 samples, got 1"),
        (np.zeros(3), "x must have a row per sample"),
        ([["a", "b"], ["c", "d"]], "x must be an array of numbers, got text"),
        (np.full((2, 2), 1e300), "x has values outside ±3.4e38, the range of float32; rescale them."),
    ],
)
def test_bad_arrays_are_rejected(x, message):
    with pytest.raises(vs.InputError, match=message):
        dataset_from(x)


def test_splits_are_disjoint_and_complete():
    x = torch.arange(20.0).reshape(10, 2)
    parts = split(x)
    assert torch.equal(torch.cat([parts.train, parts.validation, parts.test]), x)
    assert [len(p) for p in (parts.train, parts.validation, parts.test)] == [7, 2, 1]
    with pytest.raises(vs.InputError, match="at least 2 samples to be split, got 1"):
        split(x[:1])


# auxiliary input --------------------------------------------------------------------------------


def test_auxiliary_input_from_factors_and_files(tmp_path):
    factors = torch.tensor([[1.0, 5.0], [3.0, 5.0]], dtype=torch.float64)
    data = Dataset("mine", torch.zeros(2, 2), factors=factors)
    assert load_auxiliary(None, data, None) is None
    torch.testing.assert_close(load_auxiliary("factors", data, 2).mean(0), torch.zeros(2, dtype=torch.float64))
    for labels in (np.array([0, 1]), np.array([0, 1], ">i4"), np.array([[0.5], [1.5]], np.float32)):
        np.save(tmp_path / "labels.npy", labels)
        np.testing.assert_array_equal(load_auxiliary(str(tmp_path / "labels.npy"), data, None).numpy(), labels)


def test_bad_auxiliary_input_is_rejected(tmp_path):
    data = Dataset("mine", torch.zeros(2, 2))
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    for source, rows, message in (
        ("factors", None, "mine has no factors; specify an .npy file"),
        (str(tmp_path / "text.npy"), 2, "specify only one"),
        (str(tmp_path / "text.npy"), None, "must be an array of numbers, got text"),
        (str(tmp_path / "absent.npy"), None, "does not exist"),
    ):
        with pytest.raises(vs.InputError, match=message):
            load_auxiliary(source, data, rows)


def test_two_samples_are_split_into_one_and_one():
    parts = split(torch.zeros(2, 3), fractions=(0.8, 0.2))
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [1, 1, 0]
