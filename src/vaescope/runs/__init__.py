"""Run folders: files are replaced atomically, and finished work is never repeated."""

from vaescope.runs.store import Cell, RunFolder

__all__ = ["Cell", "RunFolder"]
