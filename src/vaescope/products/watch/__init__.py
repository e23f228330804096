"""`vs.Watch`: rows of measurements, and early findings, while a model is trained."""

from vaescope.products.watch.row import Row
from vaescope.products.watch.watch import Watch as Watch
from vaescope.products.watch.watch import WatchedMembers

__all__ = ["Row", "WatchedMembers"]
