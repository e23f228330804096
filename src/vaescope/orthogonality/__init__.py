"""Orthogonality: whether the columns of a decoder's local linear map are orthogonal (Bhowal et al. 2024)."""

from vaescope.orthogonality.local import local_fit, loss_split
from vaescope.orthogonality.matrices import column_angles as column_angles
from vaescope.orthogonality.matrices import column_contrast as column_contrast
from vaescope.orthogonality.matrices import gram_share as gram_share
from vaescope.orthogonality.matrices import inverse_square, nearest_orthonormal, od_report, od_score
from vaescope.orthogonality.matrices import od_distances as od_distances
from vaescope.orthogonality.neighbours import neighbour_distance

__all__ = [
    "inverse_square",
    "local_fit",
    "loss_split",
    "nearest_orthonormal",
    "neighbour_distance",
    "od_report",
    "od_score",
]
