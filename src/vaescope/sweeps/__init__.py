"""Many settings at once: cells grouped into stacks by shape, carried out by any executor, results as one table."""

from vaescope.sweeps.run import sweep
from vaescope.sweeps.sweep import Sweep, read_sweep
from vaescope.sweeps.table import results, status

__all__ = ["Sweep", "read_sweep", "results", "status", "sweep"]
