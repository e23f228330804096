"""Run folders: files are replaced atomically, and finished work is never repeated."""

from vaescope.runs.store import Cell, RunFolder, cell_key

__all__ = ["Cell", "RunFolder", "cell_key"]
