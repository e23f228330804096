"""Isomap and conformal Isomap: coordinates in which straight lines are as long as paths through the data.

Tenenbaum et al. 2000 and de Silva & Tenenbaum 2002: distances along a graph of nearest neighbours, then classical
scaling. In the conformal variant edges are divided by the local distance between neighbours, so that regions in which
the data change fast count as much as the others. Images are blurred first, because sharp objects that do not overlap
are equally far from each other wherever they are; path lengths of several blurs are averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.ndimage import gaussian_filter
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, shortest_path
from scipy.sparse.linalg import eigsh
from sklearn.neighbors import NearestNeighbors

from vaescope.core.validation import ImageShape

OnStep = Callable[[int, int], None]


def no_report(done: int, total: int) -> None:
    """Shows nothing of the parts that are done."""


@dataclass(frozen=True)
class Neighbourhood:
    """Which samples are neighbours, and how long the paths between them are."""

    neighbours: int = 10
    conformal: bool = False
    """Divide every edge by the geometric mean of the mean neighbour distances at its ends."""
    blurs: tuple[float, ...] = ()
    """Standard deviations of Gaussian filters, as parts of an image's height; not used for other data."""

    def __str__(self) -> str:
        kind = "conformal Isomap" if self.conformal else "Isomap"
        blurs = ", ".join(f"{blur:.2g}" for blur in self.blurs)
        return f"{kind}, {self.neighbours} neighbours" + (f", images blurred by {blurs}" if blurs else "")


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


def embed(
    x: Float[np.ndarray, "N n"],
    dim: int,
    kind: Neighbourhood,
    image_shape: ImageShape | None = None,
    *,
    on_step: OnStep = no_report,
) -> Float[np.ndarray, "N q"]:
    """Coordinates of every sample, at most `dim`, by falling variance; fewer if the geometry has fewer dimensions.

    Memory grows with the square of the number of samples: 5,000 need about 0.6 GB.

    Args:
        x: observations, a row per sample.
        dim: coordinates, at most.
        kind: of the embedding.
        image_shape: (channels, height, width) if the rows are images.
        on_step: called with the parts that are done, and all parts.

    >>> line = np.linspace(0, 1, 50)[:, None] * np.array([[3.0, 4.0]])
    >>> embed(line, 2, Neighbourhood(3)).shape
    (50, 1)
    """
    scales = (kind.blurs if image_shape else ()) or (0.0,)
    summed = np.zeros((len(x), len(x)))
    for index, blur in enumerate(scales):

        def report(done: int, total: int, before: int = index) -> None:
            on_step(before * total + done, len(scales) * total)

        points = features(x, image_shape, blur=blur)
        lengths = geodesics(points, neighbours=kind.neighbours, conformal=kind.conformal, on_step=report)
        summed += lengths / (lengths.mean() or 1.0)
    return classical_scaling(summed, dim)


def isomap(
    points: Float[np.ndarray, "N p"], dim: int, *, neighbours: int = 10, conformal: bool = False
) -> Float[np.ndarray, "N q"]:
    """Coordinates of every point, in units of the points or (conformal) of typical distances between neighbours.

    Args:
        points: a row per sample.
        dim: coordinates, at most.
        neighbours: of every point in the graph.
        conformal: whether edges are divided by the local distance between neighbours.

    >>> line = np.linspace(0, 1, 50)[:, None] * np.array([[3.0, 4.0]])
    >>> bool(np.isclose(np.ptp(isomap(line, 2, neighbours=3)), 5.0))
    True
    """
    return classical_scaling(geodesics(points, neighbours=neighbours, conformal=conformal), dim)


def geodesics(
    points: Float[np.ndarray, "N p"], *, neighbours: int, conformal: bool, on_step: OnStep = no_report
) -> Float[np.ndarray, "N N"]:
    """Lengths of the shortest paths between all points, along a graph of nearest neighbours.

    Args:
        points: a row per sample.
        neighbours: of every point in the graph.
        conformal: whether edges are divided by the local distance between neighbours.
        on_step: called with the points whose paths have been found, and with all of them.
    """
    count = len(points)
    found = np.zeros((count, count))
    if not np.ptp(points, axis=0).any():
        return found
    graph = neighbour_graph(points, min(neighbours, count - 1), conformal=conformal)
    for first in range(0, count, 200):
        rows = np.arange(first, min(first + 200, count))
        found[rows] = shortest_path(graph, method="D", directed=False, indices=rows)
        on_step(first + len(rows), count)
    return found


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
    if not distances.any():
        return np.zeros((len(distances), 0))
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
