"""A line in the terminal that is written again with every row."""

from __future__ import annotations

import sys

from vaescope.watch.row import Row

WIDTH = 160


class LiveLine:
    """Shows the last row in a terminal; findings are printed anywhere, each once.

    Args:
        name: of the model.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._open = False

    def __call__(self, row: Row) -> None:
        line, *findings = str(row).split("\n")
        terminal = sys.stderr.isatty()
        for finding in findings:
            self._write(("\r\x1b[2K" if terminal else "") + f"{self.name}, step {row.step}: {finding.strip()}\n")
        if terminal:
            self._write("\r\x1b[2K" + f"{self.name}: {line}"[:WIDTH])
            self._open = True

    def close(self) -> None:
        if self._open:
            self._write("\n")
            self._open = False

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
