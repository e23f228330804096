"""The option `--track`: export finished members to an experiment tracker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def track(target: str | None, folders: Sequence[Path]) -> None:
    """Export run folders; members that were exported before are skipped."""
    if target is None:
        return
    from vaescope.jobs.tracking import export_run

    for folder in folders:
        if (folder / "config.json").exists() or (folder / "sweep.json").exists():
            export_run(folder, target)


def check_track(target: str | None) -> None:
    """Check the target before anything is trained."""
    if target is not None:
        from vaescope.jobs.tracking.export import check_target

        check_target(target)
