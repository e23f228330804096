"""The decoder variance at which training starts, so that latents are used rather than collapse."""

from __future__ import annotations

from vaescope.forecast.phase import optimal_variance
from vaescope.forecast.spectrum import Spectrum

START_RATIO = 4.0  # smallest λ_d / variance at the start: every latent then carries at least ½ log 4 = 0.69 nats


def start_variance(spectrum: Spectrum, latents: int) -> float:
    """Decoder variance at which a linear VAE uses all its latents: that of PCA, or a quarter of λ_d if that is lower.

    With as many latents as columns PCA has no variance left, and a quarter of the smallest eigenvalue is the answer
    (eigenvalues below a millionth of the mean do not count).

    >>> import numpy as np
    >>> start_variance(Spectrum(np.array([10.0, 8.0, 0.1, 0.1]), 18.2, 4, 1000), 2)
    0.1
    >>> start_variance(Spectrum(np.ones(4), 4.0, 4, 1000), 2)
    0.25
    """
    if spectrum.total <= 0:
        return 1.0
    smallest = 1e-6 * spectrum.total / spectrum.rank
    latents = min(latents, int((spectrum.eigenvalues > smallest).sum()))
    last = float(spectrum.eigenvalues[latents - 1]) / START_RATIO
    if latents >= spectrum.rank:
        return last
    left = optimal_variance(spectrum.eigenvalues, latents, spectrum.rank, spectrum.total)
    return max(min(left, last), smallest)
