"""`vaescope certify`: are the posteriors of a trained model right?"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from vaescope.cli.data import DataOptions
from vaescope.cli.findings import check_page, exit_code, print_findings, write_page
from vaescope.cli.targets import check_auxiliary, load_models, target_name


@dataclass(frozen=True)
class Certify:
    """Check the posteriors of a trained model on data simulated from its own prior and decoder."""

    target: tyro.conf.Positional[str]
    """A run folder of `vaescope train`, or a model in your own Python: FILE.py:NAME or package.module:NAME."""
    data: str
    """Real samples, to say whether they look like simulated ones: a file or a name, as for `vaescope train`."""
    html: Path | None = None
    """Write the report to this file, and its numbers to a .json file next to it."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    simulations: int = 1000
    """Number of simulated samples."""
    budget: float = 90.0
    """Seconds that this may take."""
    fail_on: str | None = None
    """note, warning or error: exit with code 1 if a finding is at least this severe."""

    def run(self) -> int:
        check_page(self.html, self.fail_on)
        from vaescope.certification import certify

        models = load_models(self.target)
        data, auxiliary = self.source.open(self.data)
        check_auxiliary(models, auxiliary)
        found = certify(
            models,
            data.x.float(),
            simulations=self.simulations,
            auxiliary=auxiliary,
            name=target_name(self.target),
            budget=self.budget,
        )
        print_findings(found)
        write_page(found, self.html)
        return exit_code(found.worst, self.fail_on)
