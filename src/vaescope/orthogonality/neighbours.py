"""Theorem 2 of Bhowal et al. 2024: neighbours in data space, and the overlap and distance of their posteriors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.stats import rankdata
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from vaescope.core.errors import InputError
from vaescope.core.validation import integer, posterior, same_rows, tensor


def nearest_neighbours(x: object, count: int = 1) -> Int[Tensor, "N k"]:
    """Rows of the nearest other samples in data space, nearest first. Duplicates are neighbours of each other.

    >>> nearest_neighbours(torch.tensor([[0.0], [1.0], [5.0]])).tolist()
    [[1], [0], [1]]
    """
    samples = tensor(x, "x", minimum=3).flatten(1).cpu().numpy()
    if integer("neighbours", count) >= len(samples):
        raise InputError(f"neighbours must be below the number of samples, {len(samples)}, got {count}.")
    _, found = NearestNeighbors(n_neighbors=count + 1).fit(samples).kneighbors(samples)
    rows = []
    for own, candidates in enumerate(found):
        others = candidates[candidates != own]  # a duplicate may be listed before the sample itself
        rows.append(others[:count])
    return torch.from_numpy(np.stack(rows))


def neighbour_distance(x: object, codes: object, *, typical: bool = True, neighbours: int = 1) -> Float[Tensor, " N"]:
    """Mean latent distance between each sample and its nearest neighbours in data space.

    Theorem 2 (b) says that it falls with the KL. Of means it may, of draws it need not: see `expected_distance`.

    Args:
        x: (N, ...) samples, at least three.
        codes: (N, d) latents.
        typical: divide by the root mean square distance between codes, since a lower KL shrinks all distances; False
            gives the distance of the theorem.
        neighbours: how many nearest neighbours.

    >>> neighbour_distance(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[0.0], [2.0], [4.0]])).tolist()[0] > 0
    True
    """
    latents = tensor(codes, "codes", minimum=3)
    nearest = nearest_neighbours(x, neighbours)
    same_rows({"x": len(nearest), "codes": len(latents)})
    distance = (latents.unsqueeze(1) - latents[nearest]).norm(dim=2).mean(1)
    if not typical:
        return distance
    scale = (2 * latents.var(0, unbiased=False).sum()).sqrt()
    return distance / scale.clamp(min=torch.finfo(scale.dtype).tiny)


def expected_distance(x: object, mean: object, variance: object, *, neighbours: int = 1) -> Float[Tensor, " N"]:
    r"""Dist of Theorem 2, the expected squared distance of draws, summed over the nearest neighbours in data space.

    .. math:: \sum_k \|\mu_i - \mu_k\|^2 + \sum_j (\sigma_{ij}^2 + \sigma_{kj}^2)

    Part (b) says that it falls with the KL. It is not monotone: the variances rise as the KL falls, and of a collapsed
    model, whose KL is zero, it is 2d per neighbour.

    Args:
        x: (N, ...) samples, at least three.
        mean: (N, d) posterior means.
        variance: (N, d) posterior variances.
        neighbours: how many nearest neighbours.
    """
    means, variances = posterior(mean, variance)
    nearest = nearest_neighbours(x, neighbours)
    same_rows({"x": len(nearest), "mean": len(means)})
    between = (means.unsqueeze(1) - means[nearest]).square().sum(2)
    spread = variances.sum(1)
    return (between + spread.unsqueeze(1) + spread[nearest]).sum(1)


def overlap(mean: object, variance: object) -> Float[Tensor, "N N"]:
    r"""The Bhattacharyya coefficient of every pair of posteriors: 1 for equal ones, 0 for disjoint ones.

    .. math:: \prod_j \Big( \frac{2 \sigma_{ij} \sigma_{kj}}{\sigma_{ij}^2 + \sigma_{kj}^2} \Big)^{1/2}
        \exp \Big( - \frac{(\mu_{ij} - \mu_{kj})^2}{4 (\sigma_{ij}^2 + \sigma_{kj}^2)} \Big)

    >>> overlap(torch.zeros(2, 1), torch.ones(2, 1))[0, 1]
    tensor(1.)
    """
    means, variances = posterior(mean, variance)
    return _log_overlap(means, variances).exp()


def _log_overlap(mean: Float[Tensor, "N d"], variance: Float[Tensor, "N d"]) -> Float[Tensor, "N N"]:
    total = variance.unsqueeze(1) + variance.unsqueeze(0)
    product = (variance.unsqueeze(1) * variance.unsqueeze(0)).sqrt()
    squares = (mean.unsqueeze(1) - mean.unsqueeze(0)).square()
    return (0.5 * (2 * product / total).log() - squares / (4 * total)).sum(2)


@dataclass(frozen=True)
class OverlapAgreement:
    """Theorem 2 (a): whether the posteriors that overlap most are those of neighbours in data space."""

    share: float
    """Of the k most overlapping posteriors of a sample, how many belong to its k nearest neighbours."""
    chance: float
    """That share for codes that do not depend on the data: k / (N - 1)."""
    ranking: float
    """Probability that a neighbour overlaps more than another sample does (area under the curve); ½ by chance."""


def overlap_agreement(x: object, mean: object, variance: object, *, neighbours: int = 10) -> OverlapAgreement:
    """Compare the overlap of posteriors with the neighbour graph of the data.

    Args:
        x: (N, ...) samples, at least three.
        mean: (N, d) posterior means.
        variance: (N, d) posterior variances.
        neighbours: how many nearest neighbours.

    >>> x = torch.arange(20.0).unsqueeze(1)
    >>> overlap_agreement(x, x, torch.ones_like(x), neighbours=2).share > 0.9
    True
    """
    means, variances = posterior(mean, variance)
    nearest = nearest_neighbours(x, neighbours)
    same_rows({"x": len(nearest), "mean": len(means)})
    graph = torch.zeros(len(nearest), len(nearest), dtype=torch.bool)
    graph.scatter_(1, nearest, True)
    # far posteriors underflow to an overlap of zero, so that ties are broken by the exponent
    scores = _log_overlap(means.double().cpu(), variances.double().cpu())
    scores.fill_diagonal_(-torch.inf)
    most = torch.zeros_like(graph).scatter_(1, scores.topk(neighbours, dim=1).indices, True)
    share = float((most & graph).sum() / graph.sum())
    others = ~torch.eye(len(graph), dtype=torch.bool)
    areas = [_area(scores[row][others[row]], graph[row][others[row]]) for row in range(len(graph))]
    return OverlapAgreement(share, neighbours / (len(graph) - 1), float(np.mean(areas)))


def _area(scores: Float[Tensor, " M"], positive: Tensor) -> float:
    """The area under the receiver operating characteristic, from ranks."""
    ranks, count = rankdata(scores.numpy()), int(positive.sum())
    if count == len(positive):
        return 1.0
    return float((ranks[positive.numpy()].sum() - count * (count + 1) / 2) / (count * (len(positive) - count)))
