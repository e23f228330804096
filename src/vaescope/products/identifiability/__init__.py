"""`vs.identifiability`: per latent an axis, part of a subspace, or neither; no factors are needed."""
