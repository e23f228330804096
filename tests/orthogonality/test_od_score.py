"""Orthogonal columns score 0 in any scale, order and sign; invariances; agreement with SciPy; bad input."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import polar

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.orthogonality import column_angles, column_contrast, gram_share, nearest_orthonormal, od_report, od_score
from vaescope.orthogonality.matrices import aligned

seeds = st.integers(0, 10_000)


def orthogonal_columns(rng, n, d, *, equal=False):
    """Orthogonal columns of any lengths, in any order and sign."""
    Q = np.linalg.qr(rng.normal(size=(n, d)))[0]
    lengths = np.full(d, 10 ** rng.uniform(-3, 3)) if equal else 10 ** rng.uniform(-2, 2, d)
    return Q * lengths * rng.choice([-1, 1], d)


@settings(max_examples=100)
@given(seeds, st.integers(1, 7), st.integers(0, 20), st.booleans())
def test_orthogonal_columns_score_zero(seed, d, more, equal):
    rng = np.random.default_rng(seed)
    M = orthogonal_columns(rng, d + more, d, equal=equal)
    spoiled = M + 0.5 * np.abs(M).max() * rng.normal(size=M.shape)
    scores = od_score([M, spoiled])
    assert scores[0] < 1e-9
    if d > 1:
        assert scores[1] > 0.3
        assert od_score([M])[0] == 0


def test_the_published_score_of_orthogonal_columns_is_bad():
    """A decomposition reverses the order of columns of increasing length."""
    M = np.diag([1.0, 2.0, 3.0])
    spoiled = M + np.random.default_rng(0).normal(size=(3, 3))
    assert od_score([M, spoiled])[0] == 0
    assert od_score([M, spoiled], align=False)[0] > 0.3


@settings(max_examples=50)
@given(seeds, st.integers(2, 6))
def test_scores_are_invariant_to_order_and_sign_of_columns_and_rotation_of_rows(seed, d):
    rng = np.random.default_rng(seed)
    given_ = [rng.normal(size=(12, d)) * rng.uniform(0.5, 3, d) for _ in range(3)]
    moved = []
    for M in given_:
        turn = np.linalg.qr(rng.normal(size=(12, 12)))[0]
        moved.append(turn @ M[:, rng.permutation(d)] * rng.choice([-1, 1], d))
    np.testing.assert_allclose(od_score(moved), od_score(given_), atol=1e-8)


@settings(max_examples=50)
@given(seeds, st.floats(1e-3, 1e3))
def test_scores_are_invariant_to_a_common_scale(seed, scale):
    rng = np.random.default_rng(seed)
    given_ = rng.normal(size=(3, 8, 4))
    np.testing.assert_allclose(od_score(scale * given_), od_score(given_), rtol=1e-7, atol=1e-12)


@settings(max_examples=50)
@given(seeds, st.integers(1, 6))
def test_alignment_keeps_the_product_and_moves_v_towards_the_identity(seed, d):
    M = torch.from_numpy(np.random.default_rng(seed).normal(size=(9, d)))
    U, S, Vh = torch.linalg.svd(M, full_matrices=False)
    newU, newS, newV, _ = aligned(U, S, Vh.mT)
    torch.testing.assert_close(newU @ torch.diag(newS) @ newV.mT, M, rtol=1e-3, atol=1e-3)
    identity = torch.eye(d, dtype=torch.float64)
    assert (newV - identity).norm() <= (Vh.mT - identity).norm() + 1e-9


def test_scores_increase_as_columns_become_oblique():
    rng = np.random.default_rng(0)
    M = orthogonal_columns(rng, 30, 4)
    mixes = [np.eye(4) + share * rng.normal(size=(4, 4)) for share in (0.0, 0.05, 0.2, 0.8)]
    report = od_report([M / np.linalg.norm(M, axis=0) * [1, 2, 3, 4] @ mix for mix in mixes])
    assert (np.diff(report.scores) > 0).all()
    assert (np.diff(report.contrast) > 0).all()
    assert (np.diff(report.gram_share) > 0).all()


def test_random_directions_score_their_null():
    rng = np.random.default_rng(0)
    lengths = np.array([1.0, 2.0, 3.0, 4.0])
    drawn = rng.normal(size=(40, 10, 4))
    drawn = drawn / np.linalg.norm(drawn, axis=1, keepdims=True) * lengths
    report = od_report(drawn, null_draws=16)
    assert report.scores.mean() == pytest.approx(report.null.mean(), rel=0.1)
    assert od_score([orthogonal_columns(rng, 10, 4), *drawn])[0] < 0.01 < report.null.min()


def test_equal_singular_values_give_a_warning():
    report = od_report([2 * np.eye(3), np.diag([1.0, 2.0, 3.0])])
    assert report.warnings == ["matrix 0 has (nearly) equal singular values, so its V is ambiguous; use the contrast."]
    assert report.scores.tolist() == [0, 0]


def test_alignment_is_the_best_of_all_signed_orders():
    """‖V - I‖² over all signed permutations."""
    for seed in range(200):
        M = torch.from_numpy(np.random.default_rng(seed).normal(size=(6, 4)))
        U, S, Vh = torch.linalg.svd(M, full_matrices=False)
        found = (aligned(U, S, Vh.mT)[2] - torch.eye(4)).square().sum()
        best = min(8 - 2 * sum(abs(float(Vh.mT[k, order[k]])) for k in range(4)) for order in permutations(range(4)))
        assert float(found) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("gap", [0.0, 1e-6, 5e-4, 9e-4, 2e-3, 0.1])
def test_orthogonal_columns_of_nearly_one_length_score_zero(gap):
    assert od_score([np.diag([1.0, 1.0 + gap, 3.0]), np.random.default_rng(0).normal(size=(3, 3))])[0] == 0


def test_float32_matrices_can_score_zero():
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(30, 4)))[0] * [1, 2, 3, 4]
    assert od_score([Q.astype(np.float32), 2 * Q.astype(np.float32)]).tolist() == [0, 0]
    assert od_score(torch.from_numpy(np.stack([Q, Q])).float()).tolist() == [0, 0]


def test_nearly_equal_singular_values_give_a_warning():
    """Lengths differ by 1 %, axes by 45°: columns are within a degree of orthogonal, but V is not near the identity."""
    turn = np.array([[1, -1], [1, 1]]) / 2**0.5
    report = od_report([np.diag([1.0, 0.99]) @ turn.T, np.diag([1.0, 3.0])])
    assert len(report.warnings) == 1
    assert "matrix 0" in report.warnings[0]
    assert report.contrast[0] < 1e-4


def test_a_chain_of_similar_values_is_not_one_group():
    S = torch.from_numpy(0.9991 ** np.arange(60.0))
    V = torch.from_numpy(np.linalg.qr(np.random.default_rng(0).normal(size=(60, 60)))[0])
    assert (aligned(V, S, V)[2] - torch.eye(60)).norm() > 1


def test_a_perfect_matrix_is_better_than_random():
    report = od_report([np.diag([1.0, 2.0, 3.0])])
    assert report.scores.tolist() == [0]
    assert report.null.tolist() == [1]


def test_zero_columns_are_ignored():
    assert od_score([np.diag([3.0, 2.0, 0.0]), np.ones((3, 3)) + np.eye(3)])[0] == 0
    assert float(gram_share([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])) == 1
    assert float(gram_share([[1.0, 0.0], [0.0, 0.0]])) == 0


def test_integers_and_lists_have_a_polar_factor():
    expected = polar(np.array([[2.0, 1.0], [1.0, 3.0]]))[0]
    np.testing.assert_allclose(nearest_orthonormal(torch.tensor([[2, 1], [1, 3]])).numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(nearest_orthonormal([[2, 1], [1, 3]]), expected, atol=1e-12)


def test_ten_thousand_rows():
    """No n x n matrix: that would be 800 MB here."""
    rng = np.random.default_rng(0)
    report = od_report(rng.normal(size=(2, 10_000, 5)) * np.arange(1, 6))
    assert report.scores.shape == (2,)
    assert nearest_orthonormal(rng.normal(size=(10_000, 5))).shape == (10_000, 5)


# matrices -------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(seeds, st.integers(1, 6))
def test_the_nearest_orthonormal_matrix_is_the_polar_factor(seed, d):
    M = np.random.default_rng(seed).normal(size=(8, d))
    nearest = nearest_orthonormal(M)
    np.testing.assert_allclose(nearest, polar(M)[0], atol=1e-8)
    other = np.linalg.qr(np.random.default_rng(seed + 1).normal(size=(8, d)))[0]
    assert np.linalg.norm(M - nearest) <= np.linalg.norm(M - other) + 1e-9


def test_neither_the_printed_exponent_nor_an_elementwise_root_is_nearest():
    M = np.random.default_rng(0).normal(size=(6, 3))
    values, vectors = np.linalg.eigh(M.T @ M)
    printed = M @ (vectors * np.sqrt(values)) @ vectors.T
    assert not np.allclose(printed.T @ printed, np.eye(3))
    nearest = nearest_orthonormal(torch.from_numpy(M))
    torch.testing.assert_close(nearest.T @ nearest, torch.eye(3, dtype=torch.float64))


def test_batches_and_dtypes_are_kept():
    M = torch.randn(4, 5, 7, 3)
    assert nearest_orthonormal(M).shape == M.shape
    assert nearest_orthonormal(M).dtype == torch.float32
    assert column_contrast(M).shape == gram_share(M).shape == (4, 5)


def test_the_contrast_of_a_matrix_is_that_of_the_decoder():
    M = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = vs.theory.ima_contrast(lambda z: z @ M.T, torch.zeros(1, 4, dtype=torch.float64))
    torch.testing.assert_close(column_contrast(M), expected[0])
    assert column_contrast([[1.0, 2.0], [1.0, 2.0]]) == torch.inf
    assert column_contrast([[1.0, 0.0], [1.0, 0.0]]) == torch.inf


@settings(max_examples=30)
@given(seeds, st.integers(2, 6))
def test_orthogonal_columns_are_a_diagonal_gram_matrix(seed, d):
    """Prop. 5: the columns of M, MᵀM and the columns of Σ Vᵀ say the same."""
    rng = np.random.default_rng(seed)
    orthogonal, oblique = orthogonal_columns(rng, d + 3, d), rng.normal(size=(d + 3, d))
    for M in (orthogonal, oblique):
        _, S, Vh = np.linalg.svd(M, full_matrices=False)
        np.testing.assert_allclose((S[:, None] * Vh).T @ (S[:, None] * Vh), M.T @ M, atol=1e-9 * S[0] ** 2)
        gram = M.T @ M / np.outer(np.linalg.norm(M, axis=0), np.linalg.norm(M, axis=0))
        share = (np.square(gram).sum() - d) / (d * (d - 1))
        assert float(gram_share(M)) == pytest.approx(share, abs=1e-12)
        assert float(gram_share(S[:, None] * Vh)) == pytest.approx(share, abs=1e-9)
    assert float(gram_share(orthogonal)) < 1e-12 < float(gram_share(oblique))


def test_angles():
    angles = column_angles([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert angles[0, 1] == pytest.approx(45)
    assert angles[0, 0] == pytest.approx(0, abs=1e-5)
    assert angles[0, 2].isnan()
    assert gram_share([[5.0], [1.0]]) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: od_score(np.eye(3)), "compares matrices: pass a list of them"),
        (lambda: od_score([]), "needs a list of matrices"),
        (lambda: od_score(3.0), "needs a list of matrices"),
        (lambda: od_score([np.ones((2, 3))]), "matrix 0 needs at least as many rows as columns.*is it transposed"),
        (lambda: od_score([np.full((3, 2), np.nan)]), "matrix 0 must be finite"),
        (lambda: od_score([np.ones((2, 3, 2))]), r"a list of matrices \(n, d\)"),
        (lambda: nearest_orthonormal(np.ones(3)), r"must have rows and columns, shape \(..., n, d\), got shape \(3,\)"),
        (lambda: gram_share("abc"), "must be an array of numbers, got text"),
    ],
)
def test_bad_input_is_explained(call, message, unchecked_shapes):
    with pytest.raises(InputError, match=message):
        call()
