"""log p(x, z) and what follows from it: modes, projections, log p(x), gaps, curvature; linear VAEs in closed form."""
