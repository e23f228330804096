"""Codes that hold a known number of nats of a variable."""

import numpy as np
from scipy import stats
from scipy.special import logsumexp


def gaussian_classes(means, deviations, count, seed, *, shares=None):
    """Codes that are normal around a mean per class: codes, classes and, by 400,000 draws, I(Z; N)."""
    means, deviations = np.atleast_2d(means), np.atleast_2d(deviations)
    shares = np.full(len(means), 1 / len(means)) if shares is None else np.asarray(shares)

    def draw(count, seed):
        rng = np.random.default_rng(seed)
        n = rng.choice(len(means), count, p=shares)
        return means[n] + deviations[n] * rng.normal(size=(count, means.shape[1])), n

    z, n = draw(400_000, 999)
    log_p = np.stack([stats.norm.logpdf(z, m, s).sum(1) for m, s in zip(means, deviations, strict=True)], 1)
    log_p += np.log(shares)
    exact = float((log_p[np.arange(len(n)), n] - logsumexp(log_p, 1) - np.log(shares[n])).mean())
    return (*draw(count, seed), exact)


def correlated(rho, count, seed, latents=3):
    """A continuous variable with correlation rho with the first latent, and I(Z; N)."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(count, latents))
    n = rho * z[:, 0] + np.sqrt(1 - rho**2) * rng.normal(size=count)
    return z, n, float(-0.5 * np.log(1 - rho**2))
