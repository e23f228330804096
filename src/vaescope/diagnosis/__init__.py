"""Any trained VAE: what is wrong with it, how that is known, and what to do."""

from vaescope.diagnosis.diagnose import Diagnosis, diagnose
from vaescope.diagnosis.findings import SEVERITIES, Finding

__all__ = ["SEVERITIES", "Diagnosis", "Finding", "diagnose"]
