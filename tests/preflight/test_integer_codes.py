"""Integers that stand for categories beside real numbers: planted categories, ordered numbers, and counts."""

import numpy as np
import pytest

import vaescope as vs

RNG = np.random.default_rng(0)
ROWS = 800


def table(codes, effect):
    """Four real columns, of which one depends on the code, and the code."""
    real = RNG.normal(size=(len(codes), 4))
    real[:, 1] += effect[codes]
    return np.column_stack([real, codes])


def codes_found(x):
    found = {f.code: f for f in vs.preflight(x).findings}
    return found.get("integer-codes")


def test_categories_are_found_by_means_that_are_not_in_the_order_of_their_codes():
    finding = codes_found(table(RNG.integers(0, 5, ROWS), np.array([1.0, -1.0, 2.0, -2.0, 0.0])))
    assert finding.severity == "warning"
    assert "column 4" in finding.evidence.lower()
    assert "one-hot" in finding.advice


@pytest.mark.parametrize("first", [0, 1])
def test_ordered_numbers_are_mentioned_only(first):
    codes = RNG.integers(0, 5, ROWS)
    x = table(codes, np.linspace(-1, 1, 5))
    x[:, -1] += first
    assert codes_found(x).severity == "note"


def test_no_effect_is_no_warning_in_999_of_1000_tables():
    warned = [codes_found(table(RNG.integers(0, 4, 300), np.zeros(4))).severity == "warning" for _ in range(100)]
    assert sum(warned) <= 1


@pytest.mark.parametrize(
    "x",
    [
        RNG.poisson(3.0, (500, 6)).astype(float),  # counts alone
        np.column_stack([RNG.normal(size=(500, 3)), RNG.integers(0, 2, 500)]),  # a yes or no
        np.column_stack([RNG.normal(size=(500, 3)), 10.0 * RNG.integers(0, 5, 500)]),  # tens
        np.column_stack([RNG.normal(size=(500, 3)), np.arange(500)]),  # a row number
    ],
)
def test_other_integers_are_no_codes(x):
    assert codes_found(x) is None


def test_the_code_to_paste_holds_rows_out_of_training():
    code = vs.preflight(RNG.normal(size=(300, 4)) @ RNG.normal(size=(4, 6))).code["vs.fit"]
    assert "x[~held]" in code
    assert "vs.diagnose(fit.best, x[held], train=x[~held])" in code
    compile(code, "snippet", "exec")
