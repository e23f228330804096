"""Any variational autoencoder as a `LatentModel`: callables, modules, pythae, scvi-tools, diffusers, runs, arrays.

The only room that knows foreign libraries, and it imports none of them: a model brings its own.
"""

from vaescope.adapters.adapted import Adapted, Arrays, from_arrays, from_callables, from_modules
from vaescope.adapters.diffusers import from_diffusers
from vaescope.adapters.pythae import from_pythae
from vaescope.adapters.run import from_run
from vaescope.adapters.scvi import from_scvi

__all__ = [
    "Adapted",
    "Arrays",
    "from_arrays",
    "from_callables",
    "from_diffusers",
    "from_modules",
    "from_pythae",
    "from_run",
    "from_scvi",
]
