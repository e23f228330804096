"""May a latent be given a name? Per latent: an axis, part of a subspace, or neither; no factors are needed."""

from vaescope.identification.identify import Identifiability as Identifiability
from vaescope.identification.identify import identifiability as identifiability
