"""Export of run folders to MLflow and TensorBoard."""

from vaescope.jobs.tracking.export import export_run

__all__ = ["export_run"]
