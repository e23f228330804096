"""Where tasks run (this process, worker processes, a Ray cluster), and export to experiment trackers."""

from vaescope.jobs import tracking as tracking
from vaescope.jobs.local import run_in_processes
from vaescope.jobs.local import run_in_this_process as run_in_this_process
from vaescope.jobs.tasks import Outcome as Outcome
from vaescope.jobs.tasks import Task as Task

__all__ = ["run_in_processes"]
