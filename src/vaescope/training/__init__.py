"""Training of stacks: one loop for all members."""

from vaescope.training.loop import train
from vaescope.training.progress import Live, Monitor, Silent
from vaescope.training.settings import MemberSpec, TrainSettings

__all__ = ["Live", "MemberSpec", "Monitor", "Silent", "TrainSettings", "train"]
