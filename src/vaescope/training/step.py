"""One optimisation step of a stack (loss, gradients and Adam), and its validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from vaescope.core import validation
from vaescope.core.checks import shown
from vaescope.core.errors import InputError
from vaescope.data.dataset import ArrayRows, TrainingRows
from vaescope.models import VAE
from vaescope.objectives import beta_elbo
from vaescope.objectives.elbo import Objective, constrained_elbo, elbo, with_weights
from vaescope.settings import KLSchedule, TrainSettings, schedule_from

T = TypeVar("T")
Step = Callable[..., tuple[Tensor, Tensor]]
Validation = Callable[..., Tensor]
BETAS = 0.9, 0.999  # of Adam, as published


def make_step(
    model: VAE, objective: Objective, *, accumulate: int = 1, autocast: str | None = None, compilable: bool = True
) -> Step:
    """A function that updates weights and Adam's moments in place and returns each member's loss and squared error.

    Members do not interact: one whose numbers stop being finite does not affect the others.

    Args:
        model: the VAE.
        objective: the loss of every member.
        accumulate: parts in which a batch is computed, to save memory.
        autocast: the type of a device on which to compute in bfloat16.
        compilable: whether PyTorch can compile it; if not, it is faster uncompiled.
    """

    def step(
        params: dict[str, Tensor],
        moments: tuple[dict[str, Tensor], dict[str, Tensor]],
        scales: Tensor,
        x: Tensor,
        noise: Tensor,
        precision: Tensor,
        beta: Tensor,
    ) -> tuple[Tensor, Tensor]:
        def total(params: dict[str, Tensor], x: Tensor, noise: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            with torch.autocast(autocast or "cpu", torch.bfloat16, enabled=autocast is not None):
                terms = model.terms(params, x, noise, precision)
            losses = with_weights(objective, params)(terms._replace(step=scales[2]), beta)
            _check_losses(losses, len(beta))
            return losses.sum(), (losses, terms.squared_error.mean(-1))

        gradient = torch.func.grad(total, has_aux=True) if compilable else _eager_gradient(total)
        if accumulate == 1:
            gradients, (losses, errors) = gradient(params, x, noise)
        else:
            parts = zip(x.chunk(accumulate, 1), noise.chunk(accumulate, 1), strict=True)
            gradients, (losses, errors) = _mean([gradient(params, *part) for part in parts])
        adam_(params, gradients, moments, scales)
        return losses, errors

    return step


def _check_losses(losses: object, members: int) -> None:
    """Refuse what an objective of the user returned, unless it is a loss of every member that its weights change."""
    if not isinstance(losses, Tensor) or losses.shape != (members,):
        got = f"a tensor of {tuple(losses.shape)}" if isinstance(losses, Tensor) else shown(losses)
        raise InputError(f"objective must return a tensor with the loss of each of {members} members, got {got}.")
    if not torch.compiler.is_compiling() and not losses.requires_grad:
        raise InputError("objective must return losses that depend on the terms of the batch, got constants.")


Total = Callable[[dict[str, Tensor], Tensor, Tensor], tuple[Tensor, tuple[Tensor, Tensor]]]


def _eager_gradient(total: Total) -> Callable[..., tuple[dict[str, Tensor], tuple[Tensor, Tensor]]]:
    """`torch.func.grad(total, has_aux=True)`, without its cost of every operation, which only a compiler removes."""

    def gradient(
        params: dict[str, Tensor], x: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        with torch.enable_grad():
            value, (losses, errors) = total(leaves, x, noise)
        found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, found, strict=True)), (losses.detach(), errors.detach())

    return gradient


def _mean(results: Sequence[T]) -> T:
    """The mean of equal trees of tensors."""
    mean: T = tree_map(lambda *leaves: sum(leaves) / len(leaves), *results)
    return mean


def adam_(
    params: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    moments: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
    scales: Tensor,
) -> None:
    """Adam (Kingma & Ba 2015, Alg. 1) in place, with the `scales` of `adam_scales`."""
    for name, gradient in gradients.items():
        first, second = moments[0][name], moments[1][name]
        first.lerp_(gradient, 1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        params[name].sub_(scales[0] * first / (scales[1] * second.sqrt() + 1e-8))


def adam_scales(step: int, learning_rate: float, device: torch.device) -> Tensor:
    """Learning rate and bias corrections of a step, computed once instead of per weight; and its number, from 1."""
    return torch.tensor([learning_rate / (1 - BETAS[0] ** step), (1 - BETAS[1] ** step) ** -0.5, step], device=device)


def make_validation(model: VAE, objective: Objective) -> Validation:
    """A function that returns each member's ELBO and objective, both to be maximised: (2, E)."""

    def validation(params: dict[str, Tensor], x: Tensor, noise: Tensor, precision: Tensor, beta: Tensor) -> Tensor:
        terms = model.terms(params, x, noise, precision)
        return torch.stack([elbo(terms), -with_weights(objective, params)(terms, beta)])

    return validation


@dataclass(frozen=True)
class MemberSpec:
    """One member to train.

    Args:
        seed: of initial weights, batches and noise.
        precision: γ² = 1 / decoder variance.
        beta: factor of the KL.
        data: index of its data set.
        kl_schedule: how the weight of the KL changes; see `vaescope.settings`.
    """

    seed: int
    precision: float = 1.0
    beta: float = 1.0
    data: int = 0
    kl_schedule: str = "constant"

    def __post_init__(self) -> None:
        validation.precision(self.precision)
        validation.number("beta", self.beta, minimum=0.0)
        schedule_from(self.kl_schedule)

    @property
    def schedule(self) -> KLSchedule:
        return schedule_from(self.kl_schedule)


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything that determines the result of training a stack."""

    model: VAE
    objective: Objective
    train_data: TrainingRows
    validation_data: ArrayRows
    members: Sequence[MemberSpec]
    settings: TrainSettings

    def __post_init__(self) -> None:
        if not self.members:
            raise InputError("a stack needs at least one member, got none.")
        if self.constrains_kl:
            self._check_constrained()
        _check_data("training", self.train_data, self.model)
        _check_data("validation", self.validation_data, self.model)
        highest = max(spec.data for spec in self.members)
        if highest >= self.train_data.shape[0]:
            raise InputError(
                f"a member uses data set {highest}, but there are {self.train_data.shape[0]}; count from 0."
            )

    @property
    def constrains_kl(self) -> bool:
        """Whether a member has free bits or a target for its KL."""
        return any(spec.schedule.constrains_kl for spec in self.members)

    @property
    def trained_objective(self) -> Objective:
        """The objective, with free bits and targets if a member has any."""
        return constrained_elbo if self.constrains_kl else self.objective

    def _check_constrained(self) -> None:
        if self.objective is not beta_elbo:
            raise InputError("free bits and capacities need objective='beta'; others have penalties of their own.")
        if self.model.posterior == "full" and any(spec.schedule.floor for spec in self.members):
            raise InputError("free bits need a KL per latent: use posterior='diagonal' or 'isotropic', got 'full'.")

    @property
    def device(self) -> torch.device:
        return torch.device(self.settings.device)

    @property
    def seeds(self) -> list[int]:
        return [spec.seed for spec in self.members]


def _check_data(name: str, data: TrainingRows, model: VAE) -> None:
    if len(data.shape) == 3 and data.shape[-1] == model.row_dim:
        return
    parts = f" ({model.observed_dim} of x, then {model.auxiliary_dim} auxiliary)" if model.auxiliary_dim else ""
    raise InputError(f"{name} data must have shape (data sets, samples, {model.row_dim}{parts}), got {data.shape}.")
