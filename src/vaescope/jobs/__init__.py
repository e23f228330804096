"""Where tasks are carried out: processes of this machine, or a Ray cluster. What they compute does not know."""

from vaescope.jobs.local import run_here, run_inside
from vaescope.jobs.tasks import Outcome, Task

__all__ = ["Outcome", "Task", "run_here", "run_inside"]
