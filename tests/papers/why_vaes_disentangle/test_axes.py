"""Sets of principal axes: errors without reconstruction, both orders, and the published table."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from vaescope.core.errors import InputError
from vaescope_papers.why_vaes_disentangle.principal_axes import (
    ORDERS,
    PUBLISHED,
    PrincipalAxes,
    direction_changes,
    explained_per_axis,
)

X = torch.randn(60, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64) @ torch.diag(
    torch.linspace(0.1, 3, 12, dtype=torch.float64)
)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("axes_range", [(0, 3), (0, 12), (4, 9), (11, 12)])
def test_errors_agree_with_reconstructions(order, axes_range):
    axes = PrincipalAxes.of(X)
    direct = (X - axes.reconstruct(X, *axes_range, order)).square().sum(1).mean()
    assert axes.error(*axes_range, order) == pytest.approx(float(direct), abs=1e-10)


def test_the_first_axes_agree_with_scikit_learn():
    pca = PCA(5).fit(X.numpy())
    expected = ((X.numpy() - pca.inverse_transform(pca.transform(X.numpy()))) ** 2).sum(1).mean()
    assert PrincipalAxes.of(X).error(0, 5) == pytest.approx(expected)


def test_fewer_samples_than_pixels_give_axes_without_variance():
    axes = PrincipalAxes.of(X[:5])
    assert len(axes.axes) == 4
    assert axes.error(0, 8, "ascending") == pytest.approx(float(axes.variances.sum()))
    torch.testing.assert_close(axes.reconstruct(X[:5], 0, 8, "ascending"), axes.mean.expand(5, 12))
    torch.testing.assert_close(axes.reconstruct(X[:5], 0, 4), X[:5])


@pytest.mark.parametrize("order", ORDERS)
def test_steps_of_sorted_axes_are_sorted(order):
    axes = PrincipalAxes.of(X)
    total = float(axes.variances.sum())
    steps = explained_per_axis({k: axes.error(0, k, order) for k in (2, 5, 9, 12)}, total)
    assert direction_changes(steps) == 0
    assert (steps[0][2] > steps[-1][2]) == (order == "descending")


def test_the_published_table_has_neither_order():
    """Its total follows from two of its entries; per axis, the variance explained rises and then falls."""
    total = PUBLISHED.errors[(2000, 3000)] + PUBLISHED.errors[(0, 2000)] - PUBLISHED.errors[(0, 3000)]
    other = PUBLISHED.errors[(2500, 3000)] + PUBLISHED.errors[(0, 2500)] - PUBLISHED.errors[(0, 3000)]
    assert total == pytest.approx(other, rel=0.05)  # so the table is consistent with orthogonal axes
    for variance in (total, other):
        steps = explained_per_axis({last: e for (first, last), e in PUBLISHED.errors.items() if first == 0}, variance)
        explained = [value for _, _, value in steps]
        assert direction_changes(steps) == 1
        assert explained[0] < explained[1] > explained[-1]
        assert direction_changes([*steps, (3000, 4096, PUBLISHED.errors[(0, 3000)] / 1096)]) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PrincipalAxes.of(X[:1]), "at least two"),
        (lambda: PrincipalAxes.of(torch.full((3, 2), np.nan)), "finite rows"),
        (lambda: PrincipalAxes.of(X).error(3, 3), "0 <= first < last <= 12, got 3 to 3"),
        (lambda: PrincipalAxes.of(X).error(0, 13), "0 <= first < last <= 12, got 0 to 13"),
        (lambda: PrincipalAxes.of(X).error(0, 3, "up"), "order must be one of descending, ascending, got 'up'"),
    ],
)
def test_bad_input_is_explained(call, message):
    with pytest.raises(InputError, match=message):
        call()
