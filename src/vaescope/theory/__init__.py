"""The papers' quantities, computed exactly: float64 in, float64 out, memory bounded by a chunk."""

from vaescope.theory.derivatives import column_norms, jacobian
from vaescope.theory.ima import conformal_contrast, contrast_of_matrix, global_contrast, ima_contrast
from vaescope.theory.optimal import optimal_covariance, optimal_variance

__all__ = [
    "column_norms",
    "conformal_contrast",
    "contrast_of_matrix",
    "global_contrast",
    "ima_contrast",
    "jacobian",
    "optimal_covariance",
    "optimal_variance",
]
