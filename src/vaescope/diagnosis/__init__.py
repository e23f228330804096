"""Diagnose any trained VAE: what is wrong with it, the evidence, and what to do."""

from vaescope.diagnosis.diagnose import Diagnosis, diagnose

__all__ = ["Diagnosis", "diagnose"]
