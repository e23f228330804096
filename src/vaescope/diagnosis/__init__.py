"""Diagnose any trained VAE: what is wrong with it, the evidence, and what to do."""

from vaescope.diagnosis.codebook import diagnose_codebook as diagnose_codebook
from vaescope.diagnosis.diagnose import Diagnosis as Diagnosis
from vaescope.diagnosis.diagnose import diagnose as diagnose
