"""The papers' quantities, computed exactly: float64 in, float64 out, memory bounded by a chunk."""

from vaescope.theory import bounds, linear
from vaescope.theory.derivatives import column_norms, differences, jacobian
from vaescope.theory.gap import Gap, gap
from vaescope.theory.ima import conformal_contrast, contrast_of_matrix, global_contrast, ima_contrast
from vaescope.theory.marginal import LogMarginal, log_marginal
from vaescope.theory.optimal import optimal_covariance, optimal_variance
from vaescope.theory.projection import Projection, elbo, project
from vaescope.theory.sampled import SampledGap, sampled_gap

__all__ = [
    "Gap",
    "LogMarginal",
    "Projection",
    "SampledGap",
    "bounds",
    "column_norms",
    "conformal_contrast",
    "contrast_of_matrix",
    "differences",
    "elbo",
    "gap",
    "global_contrast",
    "ima_contrast",
    "jacobian",
    "linear",
    "log_marginal",
    "optimal_covariance",
    "optimal_variance",
    "project",
    "sampled_gap",
]
