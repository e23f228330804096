"""When a score should not be believed, in words."""

from __future__ import annotations

import numpy as np

from vaescope.metrics.inputs import Data, alive, standardised

CORRELATED = 0.3
FEW_SAMPLES = 100
FEW_PER_CLASS = 10
FEW_VALUES = 20  # codes with no more values than this repeat by nature
WIDE = 8  # samples per latent below which fits are not to be trusted


def cautions(data: Data, *, classes: bool = False) -> tuple[str, ...]:
    """Violated assumptions of any metric on these arrays; `classes` for metrics that count per class.

    >>> z = np.random.default_rng(0).normal(size=(200, 1))
    >>> cautions(Data(z * [1, 0], np.hstack([z, z]), (False, False)))[1]
    'latent 1 is constant: counted as uninformative.'
    """
    found = (*_correlated(data), *_constant(data), *_few(data), *_wide(data), *_repeated(data))
    return (*found, *_few_per_class(data)) if classes else found


def _correlated(data: Data) -> list[str]:
    matrix = np.abs(standardised(data.factors).T @ standardised(data.factors)) / data.samples
    worst = np.triu(matrix, 1)
    i, j = np.unravel_index(worst.argmax(), worst.shape)
    if worst[i, j] <= max(CORRELATED, 4 / np.sqrt(data.samples)):
        return []
    return [
        f"factors {i} and {j} are correlated ({worst[i, j]:.2f}): a latent that follows one follows both, "
        "and the score cannot tell them apart."
    ]


def _constant(data: Data) -> list[str]:
    dead = np.flatnonzero(~alive(data.codes))
    if not dead.size:
        return []
    if dead.size == data.latents:
        return ["every latent is constant: nothing is encoded."]
    which = ", ".join(map(str, dead[:8])) + (", …" if dead.size > 8 else "")
    return [
        f"latent{'s' * (dead.size > 1)} {which} {'are' if dead.size > 1 else 'is'} constant: counted as uninformative."
    ]


def _few(data: Data) -> list[str]:
    if data.samples >= FEW_SAMPLES:
        return []
    return [f"only {data.samples} samples: estimates from fewer than {FEW_SAMPLES} are rough, see the interval."]


def _wide(data: Data) -> list[str]:
    if data.latents <= data.samples / WIDE:
        return []
    return [f"{data.latents} latents for {data.samples} samples: whatever is fitted on half of them overfits."]


def _repeated(data: Data) -> list[str]:
    """Rows that occur in both halves make memory look like understanding."""
    if max(len(np.unique(column)) for column in data.codes.T) <= FEW_VALUES:
        return []
    distinct = len(np.unique(np.hstack([data.codes, data.factors]), axis=0))
    if distinct >= 0.9 * data.samples:
        return []
    return [
        f"only {distinct} of {data.samples} rows are distinct: repeated samples make scores and intervals too good."
    ]


def _few_per_class(data: Data) -> list[str]:
    notes = []
    for k, column in enumerate(data.factors.T):
        if data.discrete[k]:
            smallest = int(np.unique(column, return_counts=True)[1].min())
            if smallest < FEW_PER_CLASS:
                notes.append(
                    f"factor {k} has a class with only {smallest} samples: fewer than {FEW_PER_CLASS} say little."
                )
    return notes
