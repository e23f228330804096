"""`vs.audit`: which objective a loss function or a training step optimises."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.products.audit.call import Objective, Tensors, read_objective, working_example
from vaescope.products.audit.measure import Identified, identify
from vaescope.products.audit.probe import Space


def _spaces(x: Tensor | None, y: Tensor | None, latents: tuple[int, ...], others: Mapping[str, Tensor]) -> Iterator[Space]:
    """Shapes and ranges to try, the most likely first."""
    for samples in _samples(x):
        data = samples.shape[1:]
        classes = int(samples.max()) + 1 if not samples.is_floating_point() else 0
        shapes = [tuple(y.shape[1:])] if y is not None else []
        if y is None:
            shapes = [(*data, classes), (classes, *data)] if classes else [tuple(data), (math.prod(data),)]
        for outputs in dict.fromkeys(shapes):
            for s in ("real", "positive"):
                for name in ("real", "unit", "simplex", "positive"):
                    yield Space(samples, outputs, latents, name, s, others)


def _samples(x: Tensor | None) -> list[Tensor]:
    if x is None:
        random = torch.Generator().manual_seed(0)
        drawn = 0.05 + 0.9 * torch.rand(8, 12, generator=random, dtype=torch.float64)
        return [drawn, (drawn > 0.5).double(), (5 * drawn).long()]
    return [x.double()] if x.is_floating_point() else [x.double(), x.long()]


def identify_loss(
    loss: object,
    x: Tensor | None,
    y: Tensor | None,
    latents: tuple[int, ...],
    others: Mapping[str, Tensor],
    *,
    arguments: str | Mapping[str, str] | None = None,
    keywords: Mapping[str, object] | None = None,
    total: int | str | None = None,
    model: nn.Module | None = None,
    batch: Callable[[Tensor], object] | None = None,
    encoder: str | None = None,
    decoder: str | None = None,
) -> tuple[Objective, Identified]:
    spaces = list(_spaces(x, y, latents, others))
    by_x: dict[tuple[torch.dtype, tuple[int, ...]], list[Space]] = {}
    for space in spaces:
        by_x.setdefault((space.x.dtype, space.outputs), []).append(space)
    problem: InputError | None = None
    for group in by_x.values():
        examples = [space.draw(0, far=False) for space in group]
        try:
            objective = read_objective(
                loss,
                examples,
                arguments=arguments,
                keywords=keywords or {},
                total=total,
                model=model,
                batch=batch,
                encoder=encoder,
                decoder=decoder,
            )
        except InputError as error:
            problem = problem or error
            continue
        if (parts := objective.parts) is not None:
            group = [replace(space, outputs=tuple(parts.y.shape[1:]), latents=parts.latents) for space in group]
            examples = [space.draw(0, far=False) for space in group]
        example, why = working_example(objective, examples)
        if example is None:
            problem = problem or InputError(f"{objective.title} returns no finite number: {why}.")
            continue
        return objective, identify(objective, next(s for s, e in zip(group, examples, strict=True) if e is example))
    assert problem is not None
    raise problem
