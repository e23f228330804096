"""Multinomial logistic regression."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

PENALTY = 1e-4  # on the squared weights, as C = 1e4 in scikit-learn
MAX_STEPS, TOLERANCE = 300, 1e-4  # separable classes do not converge, which does not change the predictions


class LogisticRegression:
    """Class probabilities that are log-linear in the inputs, as in scikit-learn but without its overhead and warnings.

    Args:
        x: inputs (N, p).
        labels: class numbers (N,).
        classes: number of classes.

    >>> x = np.array([[-1.0], [-0.5], [0.5], [1.0]])
    >>> LogisticRegression(x, np.array([0, 0, 1, 1]), 2).probabilities(x).argmax(1).tolist()
    [0, 0, 1, 1]
    """

    def __init__(self, x: np.ndarray, labels: np.ndarray, classes: int) -> None:
        self._design = _with_constant(x)
        self._targets = np.eye(classes)[labels]
        start = np.zeros(self._design.shape[1] * classes)
        options = {"maxiter": MAX_STEPS, "gtol": TOLERANCE, "ftol": 0.0}
        found = minimize(self._mean_loss, start, jac=True, method="L-BFGS-B", options=options)
        self.weights = found.x.reshape(-1, classes)

    def probabilities(self, x: np.ndarray) -> np.ndarray:
        """Probabilities of the classes, (N, classes)."""
        return _softmax(_with_constant(x) @ self.weights)[0]

    def _mean_loss(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Penalised cross-entropy per sample, and its gradient; the constant is not penalised."""
        weights, samples = flat.reshape(-1, self._targets.shape[1]), len(self._design)
        logits = self._design @ weights
        probabilities, normaliser = _softmax(logits)
        penalised = weights * PENALTY / samples
        penalised[-1] = 0.0
        loss = (normaliser.sum() - np.vdot(logits, self._targets)) / samples + 0.5 * np.vdot(penalised, weights)
        gradient = self._design.T @ (probabilities - self._targets) / samples + penalised
        return float(loss), gradient.ravel()


def _with_constant(x: np.ndarray) -> np.ndarray:
    return np.column_stack([x, np.ones(len(x))])


def _softmax(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and the logarithm of their normaliser."""
    largest = logits.max(1, keepdims=True)
    shares = np.exp(logits - largest)
    total = shares.sum(1, keepdims=True)
    return shares / total, (largest + np.log(total))[:, 0]
