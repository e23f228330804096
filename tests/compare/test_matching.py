"""Matched latents: permutations, rotations, and non-linear maps of the same codes."""

import numpy as np
import pytest

from vaescope.analysis.agreement import UsedCodes, match_latents

Z = np.random.default_rng(0).normal(size=(600, 3))


def codes(values, name="b", latents=None):
    return UsedCodes(name, list(range(values.shape[1])) if latents is None else latents, values)


def test_a_permuted_and_flipped_copy_is_matched():
    found = match_latents(codes(Z, "a"), codes(-2 * Z[:, [2, 0, 1]], latents=[5, 6, 7]))
    assert {m.first: m.second for m in found.latents} == {0: 6, 1: 7, 2: 5}
    assert all(m.correlation == pytest.approx(-1) and m.r2 == pytest.approx(1) for m in found.latents)
    assert found.shared == 3


def test_a_rotated_pair_is_shared_as_a_subspace_only():
    turn = np.array([[1, -1, 0], [1, 1, 0], [0, 0, np.sqrt(2)]]) / np.sqrt(2)
    found = match_latents(codes(Z, "a"), codes(Z @ turn))
    by_latent = {m.first: m for m in found.latents}
    assert by_latent[2].r2 > 0.99
    assert by_latent[0].r2 < 0.6
    assert by_latent[0].r2_of_all > 0.99
    assert found.shared == 3


def test_a_monotone_map_has_a_high_non_linear_r2():
    found = match_latents(codes(Z[:, :1], "a"), codes(np.exp(Z[:, :1])))
    assert found.latents[0].nonlinear_r2 > 0.95 > 0.9 > found.latents[0].r2


def test_codes_without_anything_in_common_share_nothing():
    other = np.random.default_rng(1).normal(size=(600, 2))
    found = match_latents(codes(Z, "a"), codes(other))
    assert found.shared == 0
    assert max(m.nonlinear_r2_of_all for m in found.latents) < 0.1
    assert [m.second for m in found.latents].count(None) == 1
    assert match_latents(codes(Z, "a"), codes(other[:, :0])).shared == 0
