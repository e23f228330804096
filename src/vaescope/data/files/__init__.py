"""User files and official data sets: checked, read in parts, never unpickled."""

from vaescope.data.files.arrays import StoredArray as StoredArray
from vaescope.data.files.loading import load as load
from vaescope.data.files.loading import open_array as open_array
