"""A user's own files and the official data sets: checked, read in parts, never unpickled."""

from vaescope.data.files.dataset import Dataset, load, open_source
from vaescope.data.files.source import Source

__all__ = ["Dataset", "Source", "load", "open_source"]
