"""The auxiliary input of an identifiable VAE (iVAE): settings, and encoding as columns of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.distributions import Normal, Prior
from vaescope.models.mlp import MLP


@dataclass(frozen=True)
class AuxiliarySettings:
    """How encoder and prior of an iVAE depend on its auxiliary input.

    Args:
        dim: columns of the auxiliary input; 0 is a plain VAE.
        prior_mean: `fixed` at the mean of the VAE's prior, or `learned`. The prior's variance is always learned.
        hidden: hidden units of the networks that give the conditional prior.
    """

    dim: int = 0
    prior_mean: str = "fixed"
    hidden: tuple[int, ...] = (50, 50)

    def __post_init__(self) -> None:
        validation.integer("auxiliary dim", self.dim, minimum=0)
        validation.choice("prior_mean", self.prior_mean, ("fixed", "learned"))

    def prior_networks(self, latent_dim: int) -> dict[str, MLP]:
        """Networks for the learned parameters of p(z | auxiliary), by parameter; none for a plain VAE."""
        if self.dim == 0:
            return {}
        learned = ("mean", "log_variance") if self.prior_mean == "learned" else ("log_variance",)
        return {part: MLP(f"prior.{part}", (self.dim, *self.hidden, latent_dim), "leaky_relu") for part in learned}


def encode_auxiliary(auxiliary: object | None, dim: int, *, like: Tensor | None = None) -> Float[Tensor, "N m"]:
    """The auxiliary input as a matrix: labels (a vector of integers) become one-hot columns, a matrix stays as it is.

    Args:
        auxiliary: labels or rows of numbers, one per sample; None for a plain VAE.
        dim: columns that the model expects; 0 for a plain VAE, which takes no auxiliary input.
        like: a tensor whose dtype and device the result takes.

    >>> encode_auxiliary([0, 2, 1], 3)
    tensor([[1., 0., 0.],
            [0., 0., 1.],
            [0., 1., 0.]])
    """
    like = torch.empty(0) if like is None else like
    if dim == 0:
        if auxiliary is not None:
            raise InputError("this model is a plain VAE and takes no auxiliary input; omit it.")
        return like.new_empty(0, 0)
    if auxiliary is None:
        raise InputError(f"this iVAE needs its auxiliary input: labels 0 to {dim - 1}, or an (N, {dim}) array.")
    values = _labels_or_numbers(auxiliary)
    if values.ndim == 1 and not values.is_floating_point():
        return _one_hot(values, dim).to(like)
    values = values.unsqueeze(1) if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[1] != dim:
        raise InputError(f"auxiliary must have {dim} columns, got shape {tuple(values.shape)}.")
    if not bool(values.isfinite().all()):
        raise InputError("auxiliary must be finite, got NaN or infinity; drop or impute those samples.")
    return values.to(like)


def auxiliary_columns(auxiliary: object) -> int:
    """Columns of the encoded auxiliary input: the number of classes of labels, or the columns of a matrix.

    >>> auxiliary_columns([0, 2, 1]), auxiliary_columns([[0.5], [1.5]])
    (3, 1)
    """
    values = _labels_or_numbers(auxiliary)
    if 0 in values.shape:
        raise InputError(
            f"auxiliary must have a label or at least one number per sample, got shape {tuple(values.shape)}."
        )
    if values.ndim == 1 and not values.is_floating_point():
        return max(1, int(values.max()) + 1)
    return 1 if values.ndim == 1 else int(values.shape[-1])


def _labels_or_numbers(auxiliary: object) -> Tensor:
    """Integers as int64, floating-point numbers as float64."""
    values = validation.array(auxiliary, "auxiliary")
    if values.ndim == 0:
        raise InputError(
            f"auxiliary must hold a label or a row of numbers per sample, got {validation.shown(auxiliary)}."
        )
    return torch.from_numpy(values.astype(np.float64 if values.dtype.kind == "f" else np.int64))


def _one_hot(labels: Tensor, classes: int, most: int = 10_000) -> Tensor:
    if classes > most:
        raise InputError(
            f"auxiliary has labels up to {classes - 1}, expected at most {most} classes; renumber them from 0 "
            "(np.unique(labels, return_inverse=True)), or pass a column of floating-point numbers."
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InputError(
            f"auxiliary labels must be 0 to {classes - 1}, got {int(labels.min())} to {int(labels.max())}; "
            "number the classes from 0."
        )
    return F.one_hot(labels, classes)


class LearnedNormal(Normal):
    """A normal prior whose variance comes from a network: positive by construction, so it is not checked."""

    def __post_init__(self) -> None:
        pass

    def member(self, index: int) -> Normal:
        """The prior of one member of a stack, with a mean and a variance per sample."""
        assert isinstance(self.variance, Tensor)
        mean = torch.as_tensor(self.mean).to(self.variance).expand(self.variance.shape)
        return Normal(mean[index], self.variance[index])


class ConditionalPrior(Prior):
    """The `prior` of an iVAE, which is unknown without the auxiliary input: every method raises."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise InputError("the prior of an iVAE depends on its auxiliary input; use prior_at(auxiliary).")

    log_density = curvature = expected_log_density = sample = mean_and_variance = _refuse
