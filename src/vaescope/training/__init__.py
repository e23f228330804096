"""Training of stacks: one loop for all members."""

from vaescope.settings import TrainSettings
from vaescope.training.loop import train
from vaescope.training.progress import NoProgress as NoProgress
from vaescope.training.progress import Progress
from vaescope.training.progress import ProgressBar as ProgressBar
from vaescope.training.step import MemberSpec

__all__ = ["MemberSpec", "Progress", "TrainSettings", "train"]
