"""TensorBoard event files: a folder per member with its history by epoch and its settings as text."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from vaescope.errors import RunError
from vaescope.extras import require
from vaescope.jobs.tracking.folder import TrackedMember, TrackedRun
from vaescope.runs.files import write_text

DONE = "finished.txt"  # written last: a folder without it was interrupted and is written again


def write_events(run: TrackedRun, folder: Path) -> int:
    """Write the members that have no complete event files yet; returns how many."""
    require("tensorboard", "writing event files")
    from torch.utils.tensorboard import SummaryWriter

    new = 0
    for member in run.members:
        events = folder / run.name / folder_name(run.path) / member.key
        if (events / DONE).exists():
            continue
        try:
            for old in events.glob("events.*"):
                old.unlink()
            _write(SummaryWriter(str(events)), run, member)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise RunError(
                f"cannot write {events}: {reason}; the run folder is unchanged, track it again later."
            ) from None
        write_text(events / DONE, member.key + "\n")
        new += 1
    return new


def folder_name(folder: Path) -> str:
    """The name of a run folder with a hash of its path, so that folders of the same name stay apart."""
    path = str(folder.resolve())
    return f"{folder.resolve().name}-{hashlib.sha256(path.encode()).hexdigest()[:6]}"


def _write(writer: Any, run: TrackedRun, member: TrackedMember) -> None:
    with writer:
        writer.add_text("settings", json.dumps({**run.settings, **member.cell}, indent=2, default=str))
        if run.claims:
            lines = [f"* {c.get('verdict')}: {c.get('sentence')}" for c in run.claims]
            writer.add_text("claims", "\n".join(lines))
        for epoch, numbers in member.history:
            for name, value in numbers.items():
                writer.add_scalar(name, value, epoch)
        for name, value in member.numbers.items():
            writer.add_scalar(f"result/{name}", value, len(member.history))
