"""Watch a model while it is trained: rows of measurements, and findings before a run is lost."""

from vaescope.watch.members import WatchedMembers
from vaescope.watch.row import Row
from vaescope.watch.watch import Watch

__all__ = ["Row", "Watch", "WatchedMembers"]
