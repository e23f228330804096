"""Whether a model has the condition that its case plants, measured without the diagnosis.

Training may not plant what it was meant to: 32 latents may all be used, and a model may reconstruct inverted images as
well as others. Cases without their condition are listed and do not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import cross_val_predict

DEAD = 0.02  # nats of a latent that is not used
COLLAPSED = 0.1  # nats of all latents of a collapsed model
WORSE = 2.0  # times the error of the sound model
APART = 0.85  # AUC of a classifier of codes and prior samples
DRAWS = 16
POINTS = 64


@dataclass(frozen=True)
class Certificate:
    holds: bool
    measured: str


def certify(condition: str, given: tuple[Any, ...], sound: tuple[Any, ...] | None) -> Certificate:
    """Measure the condition of a case.

    Args:
        condition: of the case.
        given: model, samples and further arguments, as diagnosed.
        sound: the same of a model without the fault, if there is one.
    """
    check = CHECKS.get(condition)
    if check is None or (sound is None and condition in COMPARED):
        return Certificate(True, "by construction")
    torch.manual_seed(0)
    with torch.no_grad():
        return check(given, sound)


def _posterior(given: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    model, x = given[:2]
    mean, variance = model.encode(x)
    return mean.double(), variance.double().clamp(min=1e-300)


def _kl(given: tuple[Any, ...]) -> torch.Tensor:
    mean, variance = _posterior(given)
    return 0.5 * (mean.square() + variance - variance.log() - 1).mean(0)


def _unexplained(given: tuple[Any, ...]) -> float:
    """Squared error of reconstructions from posterior means, relative to the variance of x."""
    model, x = given[:2]
    rows = x.flatten(1).double()
    output = model.decode(_posterior(given)[0].to(x.dtype)).flatten(1).double()
    return float((rows - output).square().sum() / (rows - rows.mean(0)).square().sum())


def _elbo(given: tuple[Any, ...]) -> float:
    return float(_elbos(given).mean())


def _elbos(given: tuple[Any, ...]) -> torch.Tensor:
    """Of every sample."""
    model, x = given[:2]
    rows, (mean, variance), total = x.flatten(1).double(), _posterior(given), torch.zeros(len(x))
    for _ in range(DRAWS):
        z = mean + variance.sqrt() * torch.randn_like(mean)
        output = model.decode(z.to(x.dtype)).flatten(1).double()
        if model.likelihood == "bernoulli":
            output = output.clamp(1e-6, 1 - 1e-6)
            fit = rows * output.log() + (1 - rows) * (-output).log1p()
        else:
            fit = 0.5 * math.log(model.precision / (2 * math.pi)) - 0.5 * model.precision * (rows - output).square()
        total = total + fit.sum(1) / DRAWS
    return total - 0.5 * (mean.square() + variance - variance.log() - 1).sum(1)


def _contrast(given: tuple[Any, ...]) -> float:
    """Mean c_IMA of latents in use at posterior means."""
    model, x = given[0], given[1][:POINTS]
    mean = _posterior((model, x))[0].to(x.dtype)
    used = _kl(given) > DEAD
    with torch.enable_grad():
        J = torch.autograd.functional.jacobian(lambda z: model.decode(z).flatten(1).sum(0), mean).movedim(1, 0)
    J = J.double()[:, :, used]
    return float((J.square().sum(1).log().sum(1) - (J.mT @ J).logdet()).mean()) / 2


def _over_wide(given: tuple[Any, ...], sound: object) -> Certificate:
    share = float((_kl(given) < DEAD).double().mean())
    return Certificate(share >= 0.5, f"{share:.0%} of latents below {DEAD} nats")


def _collapsed(given: tuple[Any, ...], sound: object) -> Certificate:
    total = float(_kl(given).sum())
    return Certificate(total < COLLAPSED, f"KL {total:.2g} nats")


def _trained_with_beta(given: tuple[Any, ...], sound: object) -> Certificate:
    total = float(_kl(given).sum())
    return Certificate(total >= 0.5, f"KL {total:.2g} nats, not collapsed")


def _reconstruction(given: tuple[Any, ...], sound: tuple[Any, ...]) -> Certificate:
    """A larger error, or codes that are far from where they are on the right samples."""
    own, right = _unexplained(given), _unexplained(sound)
    spread = float(_posterior(given)[0].square().mean() / _posterior(sound)[0].square().mean())
    measured = f"unexplained {own:.2g}, of the sound model {right:.2g}; squared codes times {spread:.2g}"
    return Certificate(own >= WORSE * right or spread >= WORSE**2, measured)


def _amortization(given: tuple[Any, ...], sound: tuple[Any, ...]) -> Certificate:
    """A loss of more than the KL, with reconstructions that are still better than the mean of x."""
    right, total, error = _elbos(sound), float(_kl(sound).sum()), _unexplained(given)
    lost, spread = float(right.mean()) - _elbo(given), float(right.std())
    measured = f"{lost:.3g} nats lost, of a KL of {total:.3g}; ELBOs vary by {spread:.3g}; unexplained {error:.2g}"
    return Certificate(lost >= max(1.0, total) and error < 1, measured)


def _rotated(given: tuple[Any, ...], sound: tuple[Any, ...]) -> Certificate:
    own, right = _contrast(given), _contrast(sound)
    return Certificate(own - right >= 0.2, f"c_IMA {own:.2g}, of the sound model {right:.2g}")


def _unstable(given: tuple[Any, ...], sound: object) -> Certificate:
    codes = [_posterior((m, given[1]))[0][:, _kl((m, given[1])) > DEAD] for m in given[0]]
    standard = [((c - c.mean(0)) / c.std(0)).numpy() for c in codes]
    table = np.abs(standard[0].T @ standard[1]) / len(standard[0])
    score = float(table[linear_sum_assignment(-table)].sum() / max(table.shape))
    return Certificate(score < 0.75, f"matched correlation {score:.2f}")


def _aggregate(given: tuple[Any, ...], sound: object) -> Certificate:
    mean, variance = _posterior(given)
    codes = mean + variance.sqrt() * torch.randn_like(mean)
    inputs = torch.cat([codes, torch.randn_like(codes)]).numpy()
    labels = np.repeat([1, 0], len(codes))
    scores = cross_val_predict(
        HistGradientBoostingClassifier(max_iter=60, random_state=0), inputs, labels, cv=5, method="predict_proba"
    )[:, 1]
    ranks = scores.argsort().argsort()[labels == 1]
    auc = float((ranks.mean() - (len(codes) - 1) / 2) / len(codes))
    return Certificate(auc >= APART, f"AUC of a classifier {auc:.2f}")


def _overfit(given: tuple[Any, ...], sound: object) -> Certificate:
    ratio = _unexplained(given) / max(_unexplained((given[0], given[2]["train"])), 1e-12)
    return Certificate(ratio >= WORSE, f"error on held-out over training samples {ratio:.2g}")


def _healthy(given: tuple[Any, ...], sound: tuple[Any, ...]) -> Certificate:
    """As good as the same network from another seed, to a nat or a third of the KL; and not over-wide."""
    lost, total, wide = _elbo(sound) - _elbo(given), float(_kl(sound).sum()), _over_wide(given, None)
    measured = f"ELBO of another seed {lost:+.2g} nats, KL {total:.3g}, {wide.measured}"
    return Certificate(lost <= max(1.0, total / 3) and not wide.holds, measured)


CHECKS: dict[str, Callable[[Any, Any], Certificate]] = {
    "too-many-latents": _over_wide,
    "collapsed": _collapsed,
    "beta-high": _trained_with_beta,
    "beta-low": _trained_with_beta,
    "reconstruction": _reconstruction,
    "amortization": _amortization,
    "rotated": _rotated,
    "unstable": _unstable,
    "aggregate": _aggregate,
    "overfit": _overfit,
    "healthy": _healthy,
}
COMPARED = {"reconstruction", "amortization", "rotated", "healthy"}
"""Conditions that are measured against a sound model."""
