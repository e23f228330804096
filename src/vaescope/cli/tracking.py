"""`--track`: what is finished, to where experiments are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def track(to: str | None, folders: Sequence[Path]) -> None:
    """Log run folders; what is there already is not logged twice."""
    if to is None:
        return
    from vaescope.jobs.tracking import log

    for folder in folders:
        if (folder / "config.json").exists() or (folder / "sweep.json").exists():
            log(folder, to)


def check_track(to: str | None) -> None:
    """Before anything is trained."""
    if to is not None:
        from vaescope.jobs.tracking.log import check_target

        check_target(to)
