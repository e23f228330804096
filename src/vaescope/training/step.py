"""One optimisation step of a whole stack: loss, gradients and Adam in a single compiled graph."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from vaescope.models.vae import VAE
from vaescope.objectives import Objective, at, elbo

Step = Callable[..., tuple[Tensor, Tensor]]
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's published constants


def make_step(model: VAE, objective: Objective, *, accumulate: int = 1, autocast: str | None = None) -> Step:
    """A function that updates parameters and Adam's moments in place.

    A batch may be computed in `accumulate` parts, and, on a device that has it, in bfloat16.

    It returns the loss and the mean squared error of every member. Members never mix: a member
    whose numbers stop being finite spoils only itself.
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
            losses = at(objective, params)(terms._replace(step=scales[2]), beta)
            return losses.sum(), (losses, terms.squared_error.mean(-1))

        gradient = torch.func.grad(total, has_aux=True)
        if accumulate == 1:
            gradients, (losses, errors) = gradient(params, x, noise)
        else:
            parts = zip(x.chunk(accumulate, 1), noise.chunk(accumulate, 1), strict=True)
            gradients, (losses, errors) = _mean([gradient(params, *part) for part in parts])
        adam_(params, gradients, moments, scales)
        return losses, errors

    return step


def _mean(results: Sequence[Any]) -> Any:
    """The mean of equal trees of tensors."""
    return tree_map(lambda *leaves: sum(leaves) / len(leaves), *results)


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
    """Learning rate and bias corrections of one step, computed once, not per weight; then its number, from 1."""
    return torch.tensor([learning_rate / (1 - BETA1**step), (1 - BETA2**step) ** -0.5, step], device=device)


def make_validation(model: VAE, objective: Objective) -> Callable[..., Tensor]:
    """A function that gives every member's ELBO and its own objective (to be maximised): (2, E)."""

    def validation(params: dict[str, Tensor], x: Tensor, noise: Tensor, precision: Tensor, beta: Tensor) -> Tensor:
        terms = model.terms(params, x, noise, precision)
        return torch.stack([elbo(terms), -at(objective, params)(terms, beta)])

    return validation


def has_compiler() -> bool:
    """Whether a C++ compiler is at hand, which `torch.compile` needs on a CPU."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++", "cl"))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled once for any number of members: every tensor's first axis may shrink.

    (A single member is the exception: sizes of one are compiled apart.)
    """
    inner = torch.compile(function, isolate_recompiles=True)  # type: ignore[call-overload]
    marked = False

    def call(*args: Any) -> Any:
        nonlocal marked
        if not marked:
            marked = True
            for leaf in tree_leaves(args):
                if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) > 1:
                    torch._dynamo.maybe_mark_dynamic(leaf, 0)
            with warnings.catch_warnings():  # what the compiler says to its own developers
                warnings.simplefilter("ignore")
                return inner(*args)
        return inner(*args)

    return call
