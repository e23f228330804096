"""Which of several models is better, whether the difference is real, and what they have in common."""

from vaescope.comparison.compare import Comparison as Comparison
from vaescope.comparison.compare import compare as compare
