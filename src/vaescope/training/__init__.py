"""Training of stacks: one loop for all members."""

from vaescope.settings import TrainSettings
from vaescope.training.loop import train
from vaescope.training.progress import NoProgress, Progress, ProgressBar
from vaescope.training.specs import MemberSpec

__all__ = ["MemberSpec", "NoProgress", "Progress", "ProgressBar", "TrainSettings", "train"]
