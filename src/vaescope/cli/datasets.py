"""`vaescope datasets`: what there is to train on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vaescope.cli.tables import console as new_console
from vaescope.cli.tables import table


@dataclass(frozen=True)
class Datasets:
    """List data sets: what is rendered here, and which official file would be read instead."""

    out: Path = Path("runs") / "datasets"
    """Folder for the page with a contact sheet of each."""

    def run(self) -> int:
        from vaescope.data.catalogue import DATASETS
        from vaescope.report.datasets import datasets_page
        from vaescope.runs.files import write_text

        listed = table("name", "what", "rendered", "official file", "from")
        for column in listed.columns:
            column.overflow = "fold"  # a file's name is to be read whole
        for entry in DATASETS:
            file, where = (entry.official.files[0][0], entry.official.publisher) if entry.official else ("–", "–")
            listed.add_row(entry.name, entry.description, "yes" if entry.renderer else "no", file, where)
        console = new_console()
        console.print(listed)
        write_text(self.out / "index.html", datasets_page())
        console.print(str((self.out / "index.html").resolve()), soft_wrap=True, markup=False)
        return 0
