"""Linear ICA, the baseline of a linear unmixing."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning


def linear_ica(x: np.ndarray) -> np.ndarray:
    """The best linear unmixing of these rows that FastICA finds."""
    with warnings.catch_warnings():  # without convergence, its last estimate is the baseline
        warnings.simplefilter("ignore", ConvergenceWarning)
        return FastICA(whiten="unit-variance", random_state=0, max_iter=2000, tol=1e-3).fit_transform(x)
