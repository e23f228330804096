"""`vaescope preflight`: what to know before training, from data alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from vaescope.cli.data import DataOptions
from vaescope.cli.findings import print_finding
from vaescope.cli.tables import console as new_console
from vaescope.cli.tables import rows_table
from vaescope.errors import InputError

SHOWN_ROWS = 12


@dataclass(frozen=True)
class PreflightCommand:
    """Before training: how many latents the data feed, which losses collapse, and what to start with."""

    data: tyro.conf.Positional[str]
    """A file (.csv, .npy, .npz, .pt, .h5, .h5ad, .parquet), a folder of images, or a name; see `vaescope datasets`."""
    array: str | None = None
    """Name of the array with observations, if the file has several."""
    html: Path | None = None
    """Write the report to this file, and its numbers to a .json file next to it."""
    latent_dim: int | None = None
    """Number of latents, if it is decided already."""
    likelihood: str | None = None
    """gaussian or bernoulli [default: what fits the data]."""
    confirm: bool = False
    """Train a grid of small models (about a minute) and compare them with the prediction."""

    def run(self) -> int:
        if self.html is not None and self.html.suffix == ".json":
            raise InputError(f"--html {self.html} is the file for the numbers; use another suffix, such as .html.")
        from vaescope.forecast.analyse import preflight

        data = self.data if self.array is None else DataOptions(array=self.array).open_for_training(self.data)[0]
        found = preflight(
            data,
            latent_dim=self.latent_dim,
            likelihood=self.likelihood,
            confirm=self.confirm,
            name=Path(self.data).stem,
        )
        console = new_console()
        console.print(f"{found.name}: {found.rows} samples, {found.columns} columns, {found.kind.name}", markup=False)
        for finding in found.findings:
            print_finding(console, finding)
        console.print("Start with", style="bold")
        for setting, sentence in found.recommended.sentences.items():
            console.print(f"  {setting}: {sentence}", markup=False, soft_wrap=True)
        console.print(rows_table(found.summary()[:SHOWN_ROWS]))
        console.print(found.code["vs.fit"], markup=False, highlight=False)
        if self.html is not None:
            found.to_json(self.html.with_suffix(".json"))
            console.print(str(found.to_html(self.html).resolve()), soft_wrap=True, markup=False)
        return 0
