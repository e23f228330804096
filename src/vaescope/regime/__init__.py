"""The polarised regime: which latents are active, passive or mixed, judged against any Gaussian prior."""

from vaescope.regime import planted
from vaescope.regime.advise import Advice, advise
from vaescope.regime.classify import KINDS, Regime, classify
from vaescope.regime.collapse import Collapse
from vaescope.regime.model import of_model
from vaescope.regime.prune import Pruned, prune
from vaescope.regime.rank import eigenvalue_bounds, used_directions
from vaescope.regime.verify import Statement, Verification, verify

__all__ = [
    "KINDS",
    "Advice",
    "Collapse",
    "Pruned",
    "Regime",
    "Statement",
    "Verification",
    "advise",
    "classify",
    "eigenvalue_bounds",
    "of_model",
    "planted",
    "prune",
    "used_directions",
    "verify",
]
