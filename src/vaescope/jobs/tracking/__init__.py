"""Run folders, told to where people keep their experiments: MLflow, TensorBoard."""

from vaescope.jobs.tracking.log import log

__all__ = ["log"]
