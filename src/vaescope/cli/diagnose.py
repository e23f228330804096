"""`vaescope diagnose`: find what is wrong with a trained model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.markup import escape

from vaescope.checks import choice
from vaescope.cli.data import DataOptions
from vaescope.cli.tables import console as new_console
from vaescope.cli.tables import rows_table
from vaescope.cli.targets import check_auxiliary, load_models, target_name
from vaescope.errors import InputError

if TYPE_CHECKING:
    from vaescope.diagnosis import Diagnosis

SHOWN = 20  # latents in the table, at most
COLOURS = {"error": "red", "warning": "yellow", "note": "blue"}


@dataclass(frozen=True)
class Diagnose:
    """Diagnose a trained model: what is wrong, the evidence for it, and what to change.

    Without --data the posteriors in a .npz file with `mean` and `variance` are diagnosed on their own.
    """

    target: tyro.conf.Positional[str]
    """A run folder of `vaescope train`, a .npz file with arrays `mean` and `variance`, or a model in your own Python:
    FILE.py:NAME or package.module:NAME."""
    data: str | None = None
    """Samples, preferably ones that the model was not trained on: a file or a name, as for `vaescope train`."""
    html: Path | None = None
    """Write the report to this file, and its numbers to a .json file next to it."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    train: str | None = None
    """Samples that the model was trained on, to find overfitting: a file or a name."""
    budget: float = 30.0
    """Seconds that the diagnosis may take; what there is no time for is listed as skipped."""
    fail_on: str | None = None
    """note, warning or error: exit with code 1 if a finding is at least this severe."""

    def run(self) -> int:
        from vaescope.diagnosis.bounds import bound_rows
        from vaescope.diagnosis.findings import SEVERITIES

        if self.fail_on is not None:
            choice("--fail-on", self.fail_on, SEVERITIES)
        if self.html is not None and self.html.suffix == ".json":
            raise InputError(f"--html {self.html} is the file for the numbers; use another suffix, such as .html.")
        found = self._diagnosis()
        console = new_console()
        for finding in found.findings:
            colour = COLOURS[finding.severity]
            console.print(f"[{colour}]{finding.severity}[/{colour}] {escape(f'{finding.title} ({finding.code})')}")
            console.print(f"  {finding.evidence}\n  What to do: {finding.advice}", markup=False, soft_wrap=True)
            if finding.line:
                console.print("\n".join(f"    {line}" for line in finding.line.splitlines()), markup=False)
        if not found.findings:
            console.print("No issues found.")
        for name, value, _ in bound_rows(found.evidence):
            console.print(f"{name}: {value} nats", markup=False)
        console.print(rows_table(found.summary()[:SHOWN]))
        if len(found.summary()) > SHOWN:
            console.print(f"... and {len(found.summary()) - SHOWN} more latents")
        for what, why in found.skipped.items():
            console.print(f"skipped: {what} ({why})", markup=False, soft_wrap=True)
        if self.html is not None:
            found.to_json(self.html.with_suffix(".json"))
            console.print(str(found.to_html(self.html).resolve()), soft_wrap=True, markup=False)
        severe = found.worst is not None and self.fail_on is not None
        return int(severe and SEVERITIES.index(found.worst or "note") >= SEVERITIES.index(self.fail_on or "error"))

    def _diagnosis(self) -> Diagnosis:
        from vaescope.diagnosis import diagnose

        name = target_name(self.target)
        if self.target.endswith(".npz"):
            return diagnose(self._posteriors(), name=name)
        models = load_models(self.target)
        if self.data is None:
            raise InputError("--data is required: samples on which the model is diagnosed.")
        data, auxiliary = self.source.open(self.data)
        check_auxiliary(models, auxiliary)
        train = None if self.train is None else self.source.open(self.train)[0]
        return diagnose(
            models,
            data,
            factors=data.factors,
            auxiliary=auxiliary,
            train=train,
            name=name,
            budget=self.budget,
        )

    def _posteriors(self) -> object:
        """Posteriors without a model, from a .npz file."""
        import numpy as np

        from vaescope.adapters import from_arrays
        from vaescope.data.files.numpy_files import open_npz

        if not Path(self.target).exists():
            raise InputError(f"{self.target} does not exist.")
        mean, variance = (open_npz(Path(self.target), name) for name in ("mean", "variance"))
        return from_arrays(mean.rows(np.arange(len(mean))), variance.rows(np.arange(len(variance))))
