"""Many settings at once: cells grouped into stacks by shape, carried out by any executor, results as one table."""

from vaescope.sweeps.carry_out import sweep
from vaescope.sweeps.plan import Sweep, read_sweep
from vaescope.sweeps.table import results, status

__all__ = ["Sweep", "read_sweep", "results", "status", "sweep"]
