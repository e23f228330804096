"""The quantities of the papers, computed exactly: float64 in, float64 out, memory bounded by a chunk."""

from vaescope.inference import linear as linear
from vaescope.inference.derivatives import column_norms, jacobian
from vaescope.inference.expansion import mean_offset, validity
from vaescope.inference.gap import gap, ima_likelihood
from vaescope.inference.geometry import (
    conformal_contrast,
    contrast_of_matrix,
    global_contrast,
    ima_contrast,
    optimal_covariance,
    optimal_variance,
    used_directions,
)
from vaescope.inference.linear_ivae import linear_ivae
from vaescope.inference.marginal import log_marginal
from vaescope.inference.projection import elbo, project

__all__ = [
    "column_norms",
    "conformal_contrast",
    "contrast_of_matrix",
    "elbo",
    "gap",
    "global_contrast",
    "ima_contrast",
    "ima_likelihood",
    "jacobian",
    "linear_ivae",
    "log_marginal",
    "mean_offset",
    "optimal_covariance",
    "optimal_variance",
    "project",
    "used_directions",
    "validity",
]
