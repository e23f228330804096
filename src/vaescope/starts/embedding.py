"""Isomap and conformal Isomap: coordinates in which straight lines are as long as paths through the data.

Tenenbaum et al. 2000 and de Silva & Tenenbaum 2002: distances along a graph of nearest neighbours, then classical
scaling. In the conformal variant edges are divided by the local distance between neighbours, so that regions in which
the data change fast count as much as the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.ndimage import gaussian_filter
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, shortest_path
from scipy.sparse.linalg import eigsh
from sklearn.neighbors import NearestNeighbors

from vaescope.core.validation import ImageShape


@dataclass(frozen=True)
class Neighbourhood:
    """Which samples are neighbours, and how long the paths between them are."""

    neighbours: int = 10
    conformal: bool = False
    """Divide every edge by the geometric mean of the mean neighbour distances at its ends."""
    blur: float = 0.0
    """Standard deviation of a Gaussian filter, as a part of an image's height; not used for other data."""

    def __str__(self) -> str:
        kind = "conformal Isomap" if self.conformal else "Isomap"
        return f"{kind}, {self.neighbours} neighbours" + (f", blur {self.blur:.2g}" if self.blur else "")


def features(
    x: Float[np.ndarray, "N n"], image_shape: ImageShape | None = None, *, blur: float = 0.0, side: int = 16
) -> Float[np.ndarray, "N p"]:
    """What distances are computed from: images blurred and averaged, other data standardised.

    Args:
        x: observations, a row per sample.
        image_shape: (channels, height, width) if the rows are images.
        blur: standard deviation of the filter, as a part of the image's height.
        side: height and width to which larger images are averaged, at least.

    >>> features(np.array([[1.0, 5.0], [3.0, 5.0]]))
    array([[-1.,  0.],
           [ 1.,  0.]])
    """
    if image_shape is None:
        spread = x.std(0)
        return (x - x.mean(0)) / np.where(spread > 0, spread, 1.0)
    channels, height, width = image_shape
    pool_y, pool_x = max(1, height // side), max(1, width // side)
    rows, columns = height // pool_y, width // pool_x
    found = []
    for part in np.array_split(x, max(1, len(x) // 500)):
        images = part.reshape(-1, channels, height, width)
        images = gaussian_filter(images, (0, 0, blur * height, blur * height), mode="nearest") if blur else images
        images = images[..., : rows * pool_y, : columns * pool_x]
        pooled = images.reshape(-1, channels, rows, pool_y, columns, pool_x).mean((3, 5))
        found.append(pooled.reshape(len(part), -1))
    return np.concatenate(found)


def isomap(
    points: Float[np.ndarray, "N p"], dim: int, *, neighbours: int = 10, conformal: bool = False
) -> Float[np.ndarray, "N q"]:
    """Coordinates of every point, at most `dim`, by falling variance; fewer if the geometry has fewer dimensions.

    Memory grows with the square of the number of points: 5,000 need about 1 GB.

    Args:
        points: a row per sample.
        dim: coordinates, at most.
        neighbours: of every point in the graph.
        conformal: whether edges are divided by the local distance between neighbours.

    >>> line = np.linspace(0, 1, 50)[:, None] * np.array([[3.0, 4.0]])
    >>> found = isomap(line, 2, neighbours=3)
    >>> found.shape, bool(np.isclose(np.ptp(found), 5.0))
    ((50, 1), True)
    """
    if not np.ptp(points, axis=0).any():
        return np.zeros((len(points), 0))
    graph = neighbour_graph(points, min(neighbours, len(points) - 1), conformal=conformal)
    return classical_scaling(shortest_path(graph, method="D", directed=False), dim)


def neighbour_graph(points: Float[np.ndarray, "N p"], neighbours: int, *, conformal: bool) -> csr_array:
    """Edge lengths between nearest neighbours, with the shortest edges that join separate parts.

    Args:
        points: a row per sample.
        neighbours: of every point.
        conformal: whether edges are divided by the local distance between neighbours.
    """
    lengths, targets = NearestNeighbors(n_neighbors=neighbours).fit(points).kneighbors()
    lengths = lengths.astype(float)
    sources = np.repeat(np.arange(len(points)), neighbours)
    local, edges = lengths.mean(1), [(sources, targets.ravel(), lengths.ravel())]
    while True:
        source, target, length = (np.concatenate(parts) for parts in zip(*edges, strict=True))
        if conformal:
            typical = np.maximum(local, 1e-6 * local.mean() or 1.0)  # identical samples have no distance
            length = length / np.sqrt(typical[source] * typical[target])
        # identical samples are neighbours at no distance, which a sparse graph would read as no edge
        graph = csr_array(
            coo_array((np.maximum(length, 1e-9 * length.mean()), (source, target)), shape=(len(points),) * 2)
        )
        count, part = connected_components(graph, directed=False)
        if count == 1:
            return graph
        edges += _bridges(points, part)


def _bridges(points: Float[np.ndarray, "N p"], part: np.ndarray) -> Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The shortest edge from every part but the largest to the other points."""
    largest, found = np.bincount(part).argmax(), []
    for own in sorted(set(part.tolist()) - {int(largest)}):
        inside, outside = np.flatnonzero(part == own), np.flatnonzero(part != own)
        lengths, nearest = NearestNeighbors(n_neighbors=1).fit(points[outside]).kneighbors(points[inside])
        first = int(lengths[:, 0].argmin())
        found.append((inside[[first]], outside[nearest[first]], lengths[first].astype(float)))
    return found


def classical_scaling(
    distances: Float[np.ndarray, "N N"], dim: int, *, tolerance: float = 1e-2
) -> Float[np.ndarray, "N q"]:
    """Coordinates whose distances are closest to the given ones, by falling variance.

    Args:
        distances: between all points; overwritten.
        dim: coordinates, at most.
        tolerance: coordinates with less than this part of the largest variance are left out.
    """
    inner = np.multiply(distances, distances, out=distances)
    means = inner.mean(0)
    inner -= means
    inner -= means[:, None] - means.mean()
    inner *= -0.5
    start = np.cos(np.arange(1.0, len(inner) + 1))  # a fixed start gives the same bits every time
    values, vectors = eigsh(inner, k=min(dim, len(inner) - 1), which="LA", v0=start)
    order = [k for k in np.argsort(-values) if values[k] > tolerance * values.max()]
    coordinates: np.ndarray = vectors[:, order] * np.sqrt(values[order])
    return coordinates
