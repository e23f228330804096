"""Findings, as scripts import them from here; see `vaescope.findings`."""

from vaescope.findings import SEVERITIES as SEVERITIES
from vaescope.findings import Finding as Finding
from vaescope.findings import by_severity as by_severity
from vaescope.findings import worst_severity as worst_severity
