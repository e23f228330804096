"""The quantities of the papers, computed exactly: float64 in, float64 out, memory bounded by a chunk."""

from vaescope.theory import bounds, linear
from vaescope.theory.derivatives import column_norms, jacobian
from vaescope.theory.expansion import mean_offset
from vaescope.theory.gap import gap
from vaescope.theory.ima import conformal_contrast, contrast_of_matrix, global_contrast, ima_contrast
from vaescope.theory.ima_likelihood import ima_likelihood
from vaescope.theory.marginal import log_marginal
from vaescope.theory.optimal import optimal_covariance, optimal_variance
from vaescope.theory.projection import elbo, project
from vaescope.theory.rank import used_directions
from vaescope.theory.validity import validity

__all__ = [
    "bounds",
    "column_norms",
    "conformal_contrast",
    "contrast_of_matrix",
    "elbo",
    "gap",
    "global_contrast",
    "ima_contrast",
    "ima_likelihood",
    "jacobian",
    "linear",
    "log_marginal",
    "mean_offset",
    "optimal_covariance",
    "optimal_variance",
    "project",
    "used_directions",
    "validity",
]
