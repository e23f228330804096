"""One optimisation step of a stack (loss, gradients and Adam), and its validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from vaescope.models import VAE
from vaescope.objectives.elbo import Objective, elbo, with_weights

T = TypeVar("T")
Step = Callable[..., tuple[Tensor, Tensor]]
Validation = Callable[..., Tensor]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's published constants


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
        first.lerp_(gradient, 1 - BETA1)
        second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        params[name].sub_(scales[0] * first / (scales[1] * second.sqrt() + EPSILON))


def adam_scales(step: int, learning_rate: float, device: torch.device) -> Tensor:
    """Learning rate and bias corrections of a step, computed once instead of per weight; and its number, from 1."""
    return torch.tensor([learning_rate / (1 - BETA1**step), (1 - BETA2**step) ** -0.5, step], device=device)


def make_validation(model: VAE, objective: Objective) -> Validation:
    """A function that returns each member's ELBO and objective, both to be maximised: (2, E)."""

    def validation(params: dict[str, Tensor], x: Tensor, noise: Tensor, precision: Tensor, beta: Tensor) -> Tensor:
        terms = model.terms(params, x, noise, precision)
        return torch.stack([elbo(terms), -with_weights(objective, params)(terms, beta)])

    return validation
