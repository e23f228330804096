"""Orthogonality: whether a decoder's columns are, locally, at right angles (Bhowal et al. 2024)."""

from vaescope.orthogonality.local import LocalFit, local_fit
from vaescope.orthogonality.matrices import column_angles, column_contrast, gram_share, nearest_orthonormal
from vaescope.orthogonality.od_score import ODReport, od_distances, od_report, od_score
from vaescope.orthogonality.principal_axes import PrincipalAxes
from vaescope.orthogonality.split import LossSplit, loss_split
from vaescope.orthogonality.theorems import InverseSquare, inverse_square, neighbour_distance

__all__ = [
    "InverseSquare",
    "LocalFit",
    "LossSplit",
    "ODReport",
    "PrincipalAxes",
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
