"""Validation of all active members after an epoch."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.training.batches import step_layout
from vaescope.training.compilation import VALIDATION_ROWS, Functions
from vaescope.training.problem import Problem
from vaescope.training.schedules import kl_weights_at
from vaescope.training.state import StackState


class ValidationSet:
    """Validation data with noise that is drawn once, so that epochs are compared under the same noise."""

    def __init__(self, problem: Problem) -> None:
        self.data, self.constrains_kl = problem.validation_data, problem.constrains_kl
        shape = (self.data.shape[1], problem.model.latent_dim)
        generators = [randomness.generator(seed, "validation") for seed in problem.seeds]
        self.noise = torch.stack([torch.randn(shape, generator=g) for g in generators]).to(problem.device)

    def select(self, rows: list[int]) -> None:
        """Keep only these members."""
        self.noise = self.noise[rows]

    @torch.no_grad()
    def evaluate(self, functions: Functions, state: StackState) -> Float[Tensor, "2 E"]:
        """Mean ELBO and objective of every active member."""
        samples, tensors = self.data.shape[1], state.tensors
        total = torch.zeros(2, len(state.log.active), device=self.data.data.device)
        data_of = torch.tensor([record.spec.data for record in state.active_records])
        specs = [record.spec for record in state.active_records]
        weights = kl_weights_at(None, specs, tensors.beta, constrained=self.constrains_kl)
        for first in range(0, samples, VALIDATION_ROWS):
            x = step_layout(self.data.to_float(self.data.data[data_of, first : first + VALIDATION_ROWS]))
            noise = step_layout(self.noise[:, first : first + VALIDATION_ROWS])
            # the last part may be smaller; it is not worth compiling for
            evaluate = functions.validation if x.shape[1] == VALIDATION_ROWS else functions.eager_validation
            total += x.shape[1] * evaluate(tensors.params, x, noise, tensors.precision, weights)
        return total / samples
