"""Run folders: written atomically, finished work never done twice."""

from vaescope.runs.store import Cell, RunFolder, cell_key

__all__ = ["Cell", "RunFolder", "cell_key"]
