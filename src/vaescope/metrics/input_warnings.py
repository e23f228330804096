"""Warnings about inputs for which a score is unreliable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vaescope.metrics.inputs import CodesAndFactors, is_varying, standardise

MAX_CORRELATION = 0.3  # between factors
FEW_SAMPLES = 100
FEW_PER_CLASS = 10
FEW_VALUES = 20  # codes with at most this many distinct values are expected to repeat
SAMPLES_PER_LATENT = 8  # with fewer, fitted predictors overfit
MIN_DISTINCT = 0.9  # share of distinct rows
LISTED = 8  # latents named in a warning


def input_warnings(inputs: CodesAndFactors, *, classes: bool = False) -> tuple[str, ...]:
    """Violated assumptions of any metric; `classes` adds those of metrics that need several samples per class.

    >>> z = np.random.default_rng(0).normal(size=(200, 1))
    >>> input_warnings(CodesAndFactors(z * [1, 0], np.hstack([z, z]), (False, False)))[1]
    'latent 1 is constant and counts as uninformative.'
    """
    found = [*_correlated(inputs), *_constant(inputs), *_few_samples(inputs), *_overfitting(inputs), *_repeated(inputs)]
    return (*found, *_small_classes(inputs)) if classes else tuple(found)


def list_latents(indices: Sequence[int] | np.ndarray) -> str:
    """Indices of latents for a warning, at most eight.

    >>> list_latents([3]), list_latents(range(10))
    ('latent 3', 'latents 0, 1, 2, 3, 4, 5, 6, 7, …')
    """
    listed = ", ".join(str(index) for index in indices[:LISTED]) + (", …" if len(indices) > LISTED else "")
    return f"latent{'s' * (len(indices) > 1)} {listed}"


def _correlated(inputs: CodesAndFactors) -> list[str]:
    factors = standardise(inputs.factors)
    correlations = np.triu(np.abs(factors.T @ factors) / inputs.samples, 1)
    i, j = np.unravel_index(correlations.argmax(), correlations.shape)
    if correlations[i, j] <= max(MAX_CORRELATION, 4 / np.sqrt(inputs.samples)):
        return []
    return [
        f"factors {i} and {j} are correlated ({correlations[i, j]:.2f}): a latent that encodes one predicts both, "
        "and scores cannot distinguish them."
    ]


def _constant(inputs: CodesAndFactors) -> list[str]:
    constant = np.flatnonzero(~is_varying(inputs.codes))
    if not constant.size:
        return []
    if constant.size == inputs.latents:
        return ["every latent is constant: the codes contain no information."]
    verb = "are constant and count" if constant.size > 1 else "is constant and counts"
    return [f"{list_latents(constant)} {verb} as uninformative."]


def _few_samples(inputs: CodesAndFactors) -> list[str]:
    if inputs.samples >= FEW_SAMPLES:
        return []
    return [f"only {inputs.samples} samples: with fewer than {FEW_SAMPLES}, scores are imprecise; see the interval."]


def _overfitting(inputs: CodesAndFactors) -> list[str]:
    if inputs.latents <= inputs.samples / SAMPLES_PER_LATENT:
        return []
    return [f"{inputs.latents} latents for {inputs.samples} samples: predictors fitted on half of them overfit."]


def _repeated(inputs: CodesAndFactors) -> list[str]:
    """Rows that occur in both halves reward memorisation."""
    if max(len(np.unique(column)) for column in inputs.codes.T) <= FEW_VALUES:
        return []
    distinct = len(np.unique(np.hstack([inputs.codes, inputs.factors]), axis=0))
    if distinct >= MIN_DISTINCT * inputs.samples:
        return []
    return [
        f"only {distinct} of {inputs.samples} rows are distinct: repeated samples make scores and intervals too "
        "optimistic."
    ]


def _small_classes(inputs: CodesAndFactors) -> list[str]:
    notes = []
    for k, column in enumerate(inputs.factors.T):
        if inputs.discrete[k]:
            smallest = int(np.unique(column, return_counts=True)[1].min())
            if smallest < FEW_PER_CLASS:
                notes.append(
                    f"factor {k} has a class with only {smallest} samples; at least {FEW_PER_CLASS} are needed for a "
                    "reliable score."
                )
    return notes
