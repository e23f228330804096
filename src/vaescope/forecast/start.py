"""The decoder variance at which training starts, so that latents are used rather than collapse."""

from __future__ import annotations

from vaescope.forecast.phase import optimal_variance
from vaescope.forecast.spectrum import Spectrum

START_RATIO = 20.0  # λ_d / variance at the start: every latent carries at least ½ log 20 = 1.5 nats, and is found soon


def least_variance(spectrum: Spectrum, latents: int) -> float:
    """The largest decoder variance that `vs.fit` allows while it looks for the best one.

    That of PCA with as many latents: a VAE that is trained well is at least as good. Where there is nothing to tell
    signal from noise (no direction stands out, or there are as many latents as columns), it is a twentieth of λ_d.
    Eigenvalues below a millionth of the mean do not count.

    >>> import numpy as np
    >>> least_variance(Spectrum(np.array([10.0, 1.0, 1.0, 1.0]), 13.0, 4, 1000), 2)
    1.0
    >>> least_variance(Spectrum(np.ones(4), 4.0, 4, 1000), 2)
    0.05
    """
    if spectrum.total <= 0:
        return 1.0
    smallest = 1e-6 * spectrum.total / spectrum.rank
    latents = min(latents, int((spectrum.eigenvalues > smallest).sum()))
    if spectrum.flat or latents >= spectrum.rank:
        return float(spectrum.eigenvalues[latents - 1]) / START_RATIO
    return max(optimal_variance(spectrum.eigenvalues, latents, spectrum.rank, spectrum.total), smallest)
