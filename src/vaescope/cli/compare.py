"""`vaescope compare`: which of several trained models is better."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from vaescope.cli.data import DataOptions
from vaescope.cli.tables import console as new_console
from vaescope.cli.tables import rows_table
from vaescope.cli.targets import check_auxiliary, load_models, target_name
from vaescope.errors import InputError

if TYPE_CHECKING:
    from vaescope.protocol import LatentModel

SHOWN = ("model", "ELBO", "ELBO stderr", "log p(x)", "log p(x) stderr", "in use", "c_IMA", "MCC")


@dataclass(frozen=True)
class Compare:
    """Compare trained models on the same samples: which is better, whether the difference is real, what is the same."""

    targets: tyro.conf.Positional[tuple[str, ...]]
    """Run folders of `vaescope train`, folders of `vaescope sweep`, or models in your own Python: FILE.py:NAME or
    package.module:NAME. All members of a folder are compared."""
    data: str
    """Samples that no model was trained on: a file or a name, as for `vaescope train`."""
    html: Path | None = None
    """Write the report to this file, and its numbers to a .json file next to it."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    budget: float = 60.0
    """Seconds that the comparison may take; log p(x) is computed at as many samples as there is time for."""

    def run(self) -> int:
        from vaescope.comparison import compare

        if self.html is not None and self.html.suffix == ".json":
            raise InputError(f"--html {self.html} is the file for the numbers; use another suffix, such as .html.")
        models = named_targets(self.targets)
        data, auxiliary = self.source.open(self.data)
        check_auxiliary(list(models.values()), auxiliary)
        found = compare(models, data, factors=data.factors, auxiliary=auxiliary, budget=self.budget)
        console = new_console()
        console.print(found.summary(), markup=False, soft_wrap=True)
        rows = found.table
        kept = [name for name in SHOWN if any(row.get(name) is not None for row in rows)]
        console.print(rows_table([{name: row.get(name) for name in kept} for row in rows]))
        for what, why in found.skipped.items():
            console.print(f"skipped: {what} ({why})", markup=False, soft_wrap=True)
        if self.html is not None:
            found.to_json(self.html.with_suffix(".json"))
            console.print(str(found.to_html(self.html).resolve()), soft_wrap=True, markup=False)
        return 0


def named_targets(targets: tuple[str, ...]) -> dict[str, LatentModel]:
    """All models by unique names: the target's, with the model's own where a target has several."""
    named: dict[str, LatentModel] = {}
    for target in targets:
        for folder in _run_folders(target):
            models = load_models(folder)
            for model in models:
                name = target_name(folder) + (f", {model.name}" if len(models) > 1 else "")
                repeats = sum(known == name or known.startswith(f"{name} (") for known in named)
                named[f"{name} ({repeats + 1})" if repeats else name] = model
    if not named:
        raise InputError("no model was given: name at least two run folders or models.")
    return named


def _run_folders(target: str) -> list[str]:
    """The stacks of a sweep that have finished members; any other target as it is."""
    stacks = Path(target) / "stacks"
    if not stacks.is_dir():
        return [target]
    folders = [str(folder) for folder in sorted(stacks.iterdir()) if (folder / "results.parquet").exists()]
    if not folders:
        raise InputError(f"{target} has no finished stack.")
    return folders
