"""Geodesic embeddings, against scikit-learn, closed forms and surfaces whose coordinates are known."""

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components
from sklearn.manifold import Isomap

from vaescope.starts.embedding import Neighbourhood, classical_scaling, embed, features, isomap, neighbour_graph


def roll(samples, seed=0):
    """A rolled-up sheet, and its flat coordinates."""
    rng = np.random.default_rng(seed)
    along, across = rng.uniform(0, 1, (2, samples))
    angle = 1.5 * np.pi * (1 + 2 * along)
    length = 0.5 * (angle * np.hypot(1, angle) + np.arcsinh(angle))  # of the spiral
    points = np.stack([angle * np.cos(angle), 20 * across, angle * np.sin(angle)], axis=1)
    return points, np.stack([length, 20 * across], axis=1)


def r2(found, true):
    design = np.column_stack([found, np.ones(len(found))])
    rest = true - design @ np.linalg.lstsq(design, true, rcond=None)[0]
    return 1 - (rest**2).sum(0) / ((true - true.mean(0)) ** 2).sum(0)


def test_plain_isomap_is_that_of_scikit_learn():
    points, _ = roll(300)
    ours, theirs = isomap(points, 2, neighbours=8), Isomap(n_neighbors=8, n_components=2).fit_transform(points)
    signs = np.sign((ours * theirs).sum(0))
    np.testing.assert_allclose(ours * signs, theirs, atol=1e-5 * np.abs(theirs).max())


def test_a_rolled_up_sheet_is_unrolled_and_straight_lines_do_not_do_it():
    points, flat = roll(1000)
    assert (r2(isomap(points, 2, neighbours=8), flat) > 0.95).all()
    assert r2(points[:, :2], flat).min() < 0.5


def test_conformal_isomap_recovers_a_plane_that_is_stretched_unevenly():
    rng = np.random.default_rng(1)
    true = rng.uniform(0, 1, (1500, 2)) * [1.0, 0.7]
    radius, angle = np.exp(2 * true[:, 0]), 2 * true[:, 1]
    stretched = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)  # conformal: z -> exp(2 z)
    plain, conformal = (r2(isomap(stretched, 2, neighbours=12, conformal=c), true).min() for c in (False, True))
    assert conformal > 0.98 > plain


def test_classical_scaling_gives_back_points_from_their_distances():
    points = np.random.default_rng(2).normal(size=(40, 3)) * [3.0, 2.0, 1.0]
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    found = classical_scaling(distances.copy(), 5)
    assert found.shape == (40, 3)  # not more dimensions than there are
    np.testing.assert_allclose(np.linalg.norm(found[:, None] - found, axis=2), distances, atol=1e-8)


@pytest.mark.parametrize("conformal", [False, True])
def test_separate_clusters_are_joined_by_their_shortest_distance(conformal):
    rng = np.random.default_rng(3)
    points = np.concatenate([rng.normal(size=(30, 2)) * 0.1 + centre for centre in ([0, 0], [9, 0], [0, 50])])
    graph = neighbour_graph(points, 5, conformal=conformal)
    assert connected_components(graph, directed=False)[0] == 1
    found = isomap(points, 2, neighbours=5, conformal=conformal)
    assert np.isfinite(found).all()
    centres = found[:, 0].reshape(3, 30)  # a path from the second cluster to the third leads through the first
    order = np.argsort(centres.mean(1))
    assert order[1] == 0
    assert (np.diff(centres[order].mean(1)) > 10 * centres.std(1).max()).all()


def test_identical_samples_and_constant_data():
    twice = np.repeat(np.random.default_rng(4).normal(size=(30, 2)), 8, axis=0)
    for conformal in (False, True):
        assert np.isfinite(isomap(twice, 2, neighbours=5, conformal=conformal)).all()
        assert isomap(np.ones((20, 3)), 2, neighbours=5, conformal=conformal).shape == (20, 0)


def test_features_of_images_are_blurred_and_averaged_and_of_rows_standardised():
    rng = np.random.default_rng(5)
    images = rng.uniform(size=(4, 2, 32, 64))
    found = features(images.reshape(4, -1), (2, 32, 64))
    np.testing.assert_allclose(found.reshape(4, 2, 16, 16)[:, :, 3, 5], images[:, :, 6:8, 20:24].mean((2, 3)))
    blurred = features(images.reshape(4, -1), (2, 32, 64), blur=0.1)
    assert blurred.shape == found.shape
    assert blurred.std() < 0.5 * found.std()
    assert features(np.ones((4, 9 * 9)), (1, 9, 9)).shape == (4, 81)  # smaller images keep their pixels
    rows = features(rng.normal(size=(50, 3)) * [1.0, 10.0, 0.0])
    np.testing.assert_allclose(rows.std(0), [1, 1, 0])


def test_embeddings_of_images_average_over_blurs_and_find_where_an_object_is():
    """A small square at random places: distances of sharp images say nothing once the squares do not overlap."""
    rng = np.random.default_rng(6)
    where = rng.integers(0, 28, (600, 2))
    images = np.zeros((600, 32, 32))
    for image, (row, column) in zip(images, where, strict=True):
        image[row : row + 4, column : column + 4] = 1.0
    x, shape = images.reshape(600, -1), (1, 32, 32)
    steps = []
    both = embed(x, 2, Neighbourhood(10, blurs=(1 / 32, 3 / 32)), shape, on_step=lambda *done: steps.append(done))
    assert r2(both, where).min() > 0.95
    assert r2(x @ rng.normal(size=(1024, 2)), where).max() < 0.5
    assert steps == [(done, 1200) for done in range(200, 1201, 200)]
    one = embed(x, 2, Neighbourhood(10, blurs=(1 / 32,)), shape)
    twice = embed(x, 2, Neighbourhood(10, blurs=(1 / 32, 1 / 32)), shape)
    np.testing.assert_allclose(np.abs(twice), 2 * np.abs(one), rtol=1e-6)
    rows = embed(x[:, :5] + rng.normal(size=(600, 5)), 2, Neighbourhood(10, blurs=(0.1,)))
    assert rows.shape == (600, 2)  # blurs are of images
    assert str(Neighbourhood(10, blurs=(0.05, 0.1))) == "Isomap, 10 neighbours, images blurred by 0.05, 0.1"
