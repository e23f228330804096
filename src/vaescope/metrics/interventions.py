"""FactorVAE and β-VAE scores: hold one factor, let the others vary, and ask the codes which one was held.

Rows that share a factor's value stand in for interventions, so plain arrays suffice; continuous factors are
cut into classes of equal mass, twenty or, with few samples, fewer.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from vaescope.metrics.cautions import cautions
from vaescope.metrics.information import BINS, factor_classes
from vaescope.metrics.inputs import Data, alive, data, standardised
from vaescope.metrics.score import Parts, Score

VOTES = 800  # to learn from, and as many to score on
ROWS = 64  # that share a factor's value, per vote


def factor_vae_score(codes: object, factors: object, *, discrete: bool | Sequence[bool] | None = None) -> Score:
    """Accuracy of guessing the held factor from the latent that varies least (Kim & Mnih 2018).

    A majority vote per latent, learned on one half and scored on the other. Guessing scores one over the
    number of factors. Blind to a factor that is spread over several latents.
    """
    arrays = data(codes, factors, discrete=discrete, least=40)
    return Score(
        "FactorVAE score",
        _factor_vae(arrays),
        partial(cautions, arrays, classes=True),
        _factor_vae,
        arrays,
        resamples=50,
    )


def beta_vae_score(codes: object, factors: object, *, discrete: bool | Sequence[bool] | None = None) -> Score:
    """Accuracy of a linear classifier that guesses the held factor from mean absolute differences of codes
    between pairs that share it (Higgins et al. 2017), held out.

    The most lenient score: high for many a code that is rotated or repeated.
    """
    arrays = data(codes, factors, discrete=discrete, least=40)
    return Score(
        "β-VAE score",
        _beta_vae(arrays),
        partial(cautions, arrays, classes=True),
        _beta_vae,
        arrays,
        resamples=20,
        nulls=5,
    )


def _factor_vae(arrays: Data) -> Parts:
    living, count = alive(arrays.codes), arrays.factors.shape[1]
    if not living.any():
        return _accuracy(np.zeros(VOTES, int), np.arange(VOTES) % count, count)
    (fit, held), (test, held_test) = (_still_latent(half, living, seed) for seed, half in enumerate(_halves(arrays)))
    table = np.zeros((arrays.latents, count))
    np.add.at(table, (fit, held), 1)
    return _accuracy(table.argmax(1)[test], held_test, count)


def _beta_vae(arrays: Data) -> Parts:
    (fit, held), (test, held_test) = (_differences(half, seed) for seed, half in enumerate(_halves(arrays)))
    count = arrays.factors.shape[1]
    if count == 1:
        return _accuracy(held_test, held_test, count)
    scale = fit.std(0) + 1e-12
    model = LogisticRegression(C=1e4, max_iter=300)
    with warnings.catch_warnings():  # separable classes never converge, and need not
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(fit / scale, held)
    return _accuracy(model.predict(test / scale), held_test, count)


def _accuracy(guess: np.ndarray, truth: np.ndarray, count: int) -> Parts:
    hit = guess == truth
    per_factor = np.array([hit[truth == k].mean() for k in range(count)])
    return Parts({"accuracy": float(hit.mean())}, per_factor)


def _halves(arrays: Data) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Standardised codes and class numbers of the half to learn from and of the half to score on."""
    middle = (arrays.samples + 1) // 2
    bins = int(np.clip(middle // 10, 2, BINS))
    codes, labels = standardised(arrays.codes), factor_classes(arrays, binning="mass", bins=bins)
    return (codes[:middle], labels[:middle]), (codes[middle:], labels[middle:])


def _still_latent(half: tuple[np.ndarray, np.ndarray], living: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """For every vote, the latent that varies least among rows that share one factor, and which factor it was."""
    codes, labels = half
    rows, held = sharing_rows(labels, ROWS, np.random.default_rng(seed))
    variance = np.where(living, codes[rows].var(1), np.inf)
    return variance.argmin(1), held


def _differences(half: tuple[np.ndarray, np.ndarray], seed: int) -> tuple[np.ndarray, np.ndarray]:
    codes, labels = half
    rows, held = sharing_rows(labels, 2, np.random.default_rng(seed), times=ROWS // 2)
    pairs = codes[rows]
    differences = np.abs(pairs[:, 0] - pairs[:, 1]).reshape(ROWS // 2, VOTES, -1)
    return differences.mean(0), held[:VOTES]


def sharing_rows(
    labels: np.ndarray, count: int, rng: np.random.Generator, *, times: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers (times · votes, count): within a line all share one factor's class; and that factor of each line.

    Classes are drawn as often as they occur, and neighbours in a line are different rows.
    """
    held = np.tile(np.arange(VOTES) % labels.shape[1], times)
    rows = np.empty((len(held), count), int)
    for k in range(labels.shape[1]):
        order = np.argsort(labels[:, k], kind="stable")
        _, start, size = np.unique(labels[order, k], return_index=True, return_counts=True)
        weight = np.where(size > 1, size, 0.0)
        lines = np.flatnonzero(held == k)
        weight = weight / weight.sum() if weight.any() else np.full(len(size), 1 / len(size))
        chosen = rng.choice(len(size), len(lines), p=weight)
        offsets = (rng.random((len(lines), count)) * size[chosen, None]).astype(int)
        steps = 1 + (rng.random(len(lines)) * (size[chosen] - 1)).astype(int)
        offsets[:, 1] = (offsets[:, 0] + steps) % size[chosen]  # never a row with itself
        rows[lines] = order[start[chosen, None] + offsets]
    return rows, held
