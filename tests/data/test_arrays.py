"""A user's arrays: what is accepted, and what each refusal says."""

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.data.arrays import observations, split


def test_arrays_of_any_kind_become_rows():
    assert observations(np.zeros((4, 2, 3))).shape == (4, 6)
    assert observations([[1, 2], [3, 4]]).dtype == torch.float32
    assert observations(torch.zeros(3, 2, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.array([[1.0, np.nan], [0.0, 1.0]]), r"NaN or infinity in 1 of 2 rows \(the first is row 0\)"),
        (np.array([[1.0, 2.0], [np.inf, 1.0]]), "the first is row 1"),
        (np.zeros((1, 3)), "at least 2 samples, got 1"),
        (np.zeros(3), "row per sample"),
        (np.array([["a", "b"], ["c", "d"]]), "array of numbers"),
        ("text", "array of numbers"),
    ],
)
def test_refusals_say_what_came(x, message):
    with pytest.raises(vs.InputError, match=message):
        observations(x)


def test_splits_are_disjoint_and_complete():
    x = torch.arange(20.0).reshape(10, 2)
    parts = split(x)
    assert torch.equal(torch.cat([parts.train, parts.validation, parts.test]), x)
    assert [len(p) for p in (parts.train, parts.validation, parts.test)] == [7, 2, 1]
