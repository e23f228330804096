"""Export of run folders to MLflow and TensorBoard, and live rows of a watch there and in Weights & Biases."""

from vaescope.jobs.tracking.export import export_run
from vaescope.jobs.tracking.live import live, live_members

__all__ = ["export_run", "live", "live_members"]
