"""Sources whose variances depend on an auxiliary variable."""

import pytest
import torch

from vaescope.core.errors import InputError
from vaescope.data import mixings as nonstationary


def test_sources_have_the_stated_variances():
    for drawn in (
        nonstationary.segments(3, samples=40_000, segments=4, seed=0),
        nonstationary.drift(3, samples=40_000, strength=2.0, seed=0),
    ):
        scaled = drawn.sources / drawn.variance.sqrt()
        torch.testing.assert_close(scaled.var(0), torch.ones(3, dtype=torch.float64), rtol=0.05, atol=0)
        assert abs(float(torch.corrcoef(scaled.T)[0, 1])) < 0.02
        assert float(drawn.variance.log().std(0).min()) > 0.2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nonstationary.segments(0, samples=10, seed=0), "at least 1 dimension and 2 samples"),
        (lambda: nonstationary.segments(2, samples=10, segments=11, seed=0), "2 to 10 segments"),
        (lambda: nonstationary.segments(2, samples=10, segments=5, low=3.0, high=1.0, seed=0), "0 < low < high"),
        (lambda: nonstationary.drift(2, samples=1, seed=0), "at least 1 dimension and 2 samples"),
    ],
)
def test_impossible_sources_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
