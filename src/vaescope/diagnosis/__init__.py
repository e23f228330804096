"""Any trained VAE: what is wrong with it, how that is known, and what to do."""

from vaescope.diagnosis.findings import SEVERITIES, Finding
from vaescope.diagnosis.whole import Diagnosis, diagnose

__all__ = ["SEVERITIES", "Diagnosis", "Finding", "diagnose"]
