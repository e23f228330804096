"""Any variational autoencoder as a `LatentModel`: functions, modules, pythae, scvi-tools, diffusers, runs, arrays.

The only package that knows other libraries. It imports none of them; models bring their own.
"""

from vaescope.adapters.arrays import from_arrays
from vaescope.adapters.base import from_callables, from_modules
from vaescope.adapters.callables import from_layers, lightning_callback, pythae_callback, transformers_callback
from vaescope.adapters.diffusers import from_diffusers
from vaescope.adapters.pythae import from_pythae
from vaescope.adapters.quantised import from_codebook
from vaescope.adapters.run import from_run
from vaescope.adapters.scvi import from_scvi

__all__ = [
    "from_arrays",
    "from_callables",
    "from_codebook",
    "from_diffusers",
    "from_layers",
    "from_modules",
    "from_pythae",
    "from_run",
    "from_scvi",
    "lightning_callback",
    "pythae_callback",
    "transformers_callback",
]
