"""TensorBoard event files: a folder per member, its history by epoch and its settings as text."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from vaescope.errors import InputError, RunError
from vaescope.jobs.tracking.folder import Finished, TrackedMember
from vaescope.runs.files import write_text

DONE = "finished.txt"  # written last: a folder without it was interrupted, and is written anew


def write_events(run: Finished, folder: Path) -> int:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "TensorBoard is not installed; install vaescope's extra for it: pip install 'vaescope[track]'."
        ) from None
    new = 0
    for member in run.members:
        place = folder / run.name / _called(run) / member.key
        if (place / DONE).exists():
            continue
        try:
            for old in place.glob("events.*"):
                old.unlink()
            _write(SummaryWriter(str(place)), run, member)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise RunError(f"cannot write {place}: {reason}; the run itself is kept, track it again later.") from None
        write_text(place / DONE, member.key + "\n")
        new += 1
    return new


def _called(run: Finished) -> str:
    """A run folder's name, told apart from others of the same name."""
    whole = str(run.path.resolve())
    return f"{run.path.resolve().name}-{hashlib.sha256(whole.encode()).hexdigest()[:6]}"


def _write(writer: Any, run: Finished, member: TrackedMember) -> None:
    with writer:
        writer.add_text("settings", json.dumps({**run.settings, **member.cell}, indent=2, default=str))
        if run.claims:
            lines = [f"* {'holds' if c.get('holds') else 'fails'}: {c.get('sentence')}" for c in run.claims]
            writer.add_text("claims", "\n".join(lines))
        for epoch, numbers in member.history:
            for name, value in numbers.items():
                writer.add_scalar(name, value, epoch)
        for name, value in member.numbers.items():
            writer.add_scalar(f"result/{name}", value, len(member.history))
