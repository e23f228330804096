"""User files and official data sets: checked, read in parts, never unpickled."""

from vaescope.data.files.loading import load, open_array
from vaescope.data.files.stored_array import StoredArray

__all__ = ["StoredArray", "load", "open_array"]
