"""Any variational autoencoder as a `LatentModel`: functions, modules, other frameworks and libraries, runs, arrays.

The only package that knows other libraries. It imports none of them; models bring their own.
"""

from vaescope.adapters.base import from_callables, from_modules
from vaescope.adapters.callbacks import keras_callback, lightning_callback, transformers_callback
from vaescope.adapters.diffusers import from_diffusers
from vaescope.adapters.jax import from_jax
from vaescope.adapters.keras import from_keras
from vaescope.adapters.posteriors import from_arrays, from_layers
from vaescope.adapters.pyro import from_numpyro, from_pyro
from vaescope.adapters.pythae import from_pythae, pythae_callback
from vaescope.adapters.quantised import from_codebook
from vaescope.adapters.run import from_run
from vaescope.adapters.scvi import from_scvi

__all__ = [
    "from_arrays",
    "from_callables",
    "from_codebook",
    "from_diffusers",
    "from_jax",
    "from_keras",
    "from_layers",
    "from_modules",
    "from_numpyro",
    "from_pyro",
    "from_pythae",
    "from_run",
    "from_scvi",
    "keras_callback",
    "lightning_callback",
    "pythae_callback",
    "transformers_callback",
]
