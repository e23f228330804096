"""Run folders: files are replaced atomically, and finished work is never repeated."""

from vaescope.runs.store import Cell as Cell
from vaescope.runs.store import RunFolder as RunFolder
