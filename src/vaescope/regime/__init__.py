"""The polarised regime: which latents are active, passive or mixed, relative to any Gaussian prior."""

from vaescope.regime import planted
from vaescope.regime.classify import Regime, classify
from vaescope.regime.model import advise, of_model, prune
from vaescope.regime.verify import verify

__all__ = ["Regime", "advise", "classify", "of_model", "planted", "prune", "verify"]
