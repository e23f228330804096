"""Identifiability metrics on plain arrays: codes (N, d), factors (N, k)."""

from vaescope.metrics.mcc import MCC, mcc
from vaescope.metrics.r2 import R2, linear_r2

__all__ = ["MCC", "R2", "linear_r2", "mcc"]
