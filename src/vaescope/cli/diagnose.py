"""`vaescope diagnose`: what is wrong with a trained model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.markup import escape

from vaescope.cli.tables import console as new_console
from vaescope.cli.tables import rows_table
from vaescope.cli.targets import check_auxiliary, models_of, target_name
from vaescope.errors import InputError


@dataclass(frozen=True)
class Diagnose:
    """Say what is wrong with a trained model, how that is known, and what to do about it.

    Without --data the posteriors of a .npz file with `mean` and `variance` are judged by themselves.
    """

    target: tyro.conf.Positional[str]
    """A run folder of `vaescope train`, a .npz file with arrays `mean` and `variance`, or a model in your own Python:
    FILE.py:NAME or package.module:NAME."""
    data: str | None = None
    """Samples: a file or a name, as for `vaescope train`; best ones that it was not trained on."""
    html: Path | None = None
    """Write the page to this file, and its numbers as .json beside it."""
    array: str | None = None
    """Name of the array with observations, where the file has several."""
    factors: str | None = None
    """Name of the array (or columns) with factors, where there are any."""
    auxiliary: str | None = None
    """Of an iVAE, its u: `factors` of the data, or an .npy file with a label or a row of numbers per sample."""
    rows: int | None = None
    """Take that many samples, at random."""
    fail_on: str | None = None
    """note, warning or error: exit with code 1 when a finding is at least as severe."""

    def run(self) -> int:
        from vaescope.diagnosis import diagnose
        from vaescope.diagnosis.findings import SEVERITIES

        if self.fail_on is not None and self.fail_on not in SEVERITIES:
            raise InputError(f"--fail-on must be one of {', '.join(SEVERITIES)}, got {self.fail_on!r}.")
        if self.html is not None and self.html.suffix == ".json":
            raise InputError(f"--html {self.html} would hide the numbers beside it; give it another ending.")
        models, given = self._given()
        found = diagnose(models, name=target_name(self.target), **given)
        console = new_console()
        for finding in found.findings:
            colour = {"error": "red", "warning": "yellow", "note": "blue"}[finding.severity]
            console.print(f"[{colour}]{finding.severity}[/{colour}] {escape(f'{finding.title} ({finding.code})')}")
            console.print(f"  {finding.evidence}\n  What to do: {finding.advice}", markup=False, soft_wrap=True)
        if not found.findings:
            console.print("No issues found.")
        console.print(rows_table(found.summary()))
        for what, why in found.skipped.items():
            console.print(f"left out: {what}, because {why}", markup=False, soft_wrap=True)
        if self.html is not None:
            found.to_json(self.html.with_suffix(".json"))
            console.print(str(found.to_html(self.html).resolve()), soft_wrap=True, markup=False)
        bad = found.worst is not None and self.fail_on is not None
        return int(bad and SEVERITIES.index(found.worst or "note") >= SEVERITIES.index(self.fail_on or "error"))

    def _given(self) -> tuple[Any, dict[str, Any]]:
        """Models, and what `diagnose` is told beside them."""
        import numpy as np

        from vaescope.adapters import from_arrays
        from vaescope.data.auxiliary import auxiliary_of
        from vaescope.data.catalogue import open_data
        from vaescope.data.files.arrays import open_npz

        if self.target.endswith(".npz"):
            if not Path(self.target).exists():
                raise InputError(f"{self.target} does not exist.")
            sources = [open_npz(Path(self.target), name) for name in ("mean", "variance")]
            return from_arrays(*(source.rows(np.arange(len(source))) for source in sources)), {}
        models = models_of(self.target)
        if self.data is None:
            raise InputError("--data is needed: samples on which the model is looked at.")
        data = open_data(self.data, array=self.array, factors=self.factors, rows=self.rows)
        u = auxiliary_of(self.auxiliary, data, self.rows)
        check_auxiliary(models, u)
        return models, {"x": data.x.float(), "factors": data.factors, "auxiliary": u}
