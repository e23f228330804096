"""Orthogonality: whether the columns of a decoder's local linear map are orthogonal (Bhowal et al. 2024)."""

from vaescope.orthogonality.local import local_fit
from vaescope.orthogonality.matrices import column_angles, column_contrast, gram_share, nearest_orthonormal
from vaescope.orthogonality.od_score import od_distances, od_report, od_score
from vaescope.orthogonality.split import loss_split
from vaescope.orthogonality.theorems import inverse_square, neighbour_distance

__all__ = [
    "column_angles",
    "column_contrast",
    "gram_share",
    "inverse_square",
    "local_fit",
    "loss_split",
    "nearest_orthonormal",
    "neighbour_distance",
    "od_distances",
    "od_report",
    "od_score",
]
