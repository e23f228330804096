"""What an identifiable VAE has beyond a VAE: an auxiliary u that its encoder and its prior see."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vaescope.distributions import Normal, Prior
from vaescope.errors import InputError

PRIOR_MEANS = ("fixed", "learned")
MOST_CLASSES = 10_000


class LearnedNormal(Normal):
    """N(mean, variance) with a variance from a network: positive by construction, so not checked at every step."""

    def __post_init__(self) -> None:
        pass

    def at(self, index: int) -> Normal:
        """At one place of the first axis (one member of a stack), a row per sample in both mean and variance."""
        assert isinstance(self.variance, Tensor)
        mean = torch.as_tensor(self.mean).to(self.variance).expand(self.variance.shape)
        return Normal(mean[index], self.variance[index])


class ConditionalPrior(Prior):
    """p(z|u) before u is known: what an iVAE has for a prior. It can be asked nothing, and says what to ask instead."""

    def log_density(self, z: Tensor) -> Tensor:
        raise _needs_u()

    def curvature(self, z: Tensor) -> Tensor:
        raise _needs_u()

    def expected_log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        raise _needs_u()

    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        raise _needs_u()

    def mean_and_variance(self) -> tuple[float | Tensor, float | Tensor]:
        raise _needs_u()


def _needs_u() -> InputError:
    return InputError("the prior of an iVAE depends on u: ask prior_at(u).")


def auxiliary(u: object | None, width: int, *, like: Tensor | None = None) -> Float[Tensor, "N m"]:
    """u as the networks take it: a vector of whole numbers is labels, one column per class; a matrix stays as it is.

    `width` is the number of columns that the model was made for; 0 is a plain VAE, which takes no u.

    >>> auxiliary([0, 2, 1], 3)
    tensor([[1., 0., 0.],
            [0., 0., 1.],
            [0., 1., 0.]])
    """
    dtype = like.dtype if like is not None else torch.get_default_dtype()
    device = like.device if like is not None else torch.device("cpu")
    if width == 0:
        if u is not None:
            raise InputError("this model is a plain VAE and takes no auxiliary u; leave u out.")
        return torch.empty(0, 0, dtype=dtype, device=device)
    if u is None:
        raise InputError(
            f"an iVAE needs its auxiliary u with every x: labels 0 to {width - 1}, or an (N, {width}) array."
        )
    value = _numbers(u)
    if value.ndim == 1 and not value.is_floating_point():
        return _one_hot(value, width).to(device=device, dtype=dtype)
    value = value.unsqueeze(1) if value.ndim == 1 else value
    if value.ndim != 2 or value.shape[1] != width:
        raise InputError(f"u must have {width} columns, got shape {tuple(value.shape)}.")
    if not bool(value.isfinite().all()):
        raise InputError("u must be finite, got NaN or infinity; drop or impute those samples.")
    return value.to(device=device, dtype=dtype)


def auxiliary_width(u: object) -> int:
    """How many columns u has for a model: classes of labels, or columns of a matrix.

    >>> auxiliary_width([0, 2, 1]), auxiliary_width([[0.5], [1.5]])
    (3, 1)
    """
    value = _numbers(u)
    if 0 in value.shape:
        raise InputError(
            f"u must have a label or at least one number for every sample, got shape {tuple(value.shape)}."
        )
    if value.ndim == 1 and not value.is_floating_point():
        return max(1, int(value.max()) + 1)
    return 1 if value.ndim == 1 else int(value.shape[-1])


def _numbers(u: object) -> Tensor:
    """u as a tensor: whole numbers as int64, others as they are."""
    if isinstance(u, Tensor):
        value = u.detach()
    else:
        try:
            array = np.asarray(u)
        except ValueError:
            raise InputError("u must be labels or rows of numbers, got rows of different lengths.") from None
        if array.dtype.kind not in "fiub":
            raise InputError(f"u must be labels 0, 1, … or numbers, got {array.dtype}; number the classes from 0.")
        value = torch.from_numpy(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))
    if value.ndim == 0 or value.is_complex():
        raise InputError("u must hold a label or a row of real numbers for every sample.")
    return value if value.is_floating_point() else value.long()


def _one_hot(labels: Tensor, classes: int) -> Tensor:
    if classes > MOST_CLASSES:
        raise InputError(
            f"u has labels up to {classes - 1}, more than {MOST_CLASSES} classes: number them from 0 "
            "(np.unique(u, return_inverse=True)), or give a column of floating-point numbers."
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InputError(
            f"labels in u must be 0 to {classes - 1}, got {int(labels.min())} to {int(labels.max())}; "
            "number the classes from 0."
        )
    return F.one_hot(labels.long(), classes)
