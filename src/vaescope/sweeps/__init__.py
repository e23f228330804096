"""Sweeps: many settings at once, grouped into stacks by their shape, run by any executor, with one table of results."""

from vaescope.sweeps.run import SweepOptions as SweepOptions
from vaescope.sweeps.run import run_sweep
from vaescope.sweeps.sweep import Sweep, read_sweep, sweep_status
from vaescope.sweeps.sweep import sweep_results as sweep_results

__all__ = ["Sweep", "read_sweep", "run_sweep", "sweep_status"]
