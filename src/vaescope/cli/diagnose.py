"""`vaescope diagnose`: find what is wrong with a trained model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from vaescope.cli.data import DataOptions
from vaescope.cli.findings import check_page, exit_code, print_findings, write_page
from vaescope.cli.targets import check_auxiliary, load_models, target_name
from vaescope.errors import InputError

if TYPE_CHECKING:
    from vaescope.diagnosis import Diagnosis


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

        check_page(self.html, self.fail_on)
        found = self._diagnosis()
        print_findings(found, [f"{name}: {value} nats" for name, value, _ in bound_rows(found.evidence)])
        write_page(found, self.html)
        return exit_code(found.worst, self.fail_on)

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
