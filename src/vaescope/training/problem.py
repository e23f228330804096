"""What is trained: a model, an objective, data and members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vaescope.data.rows import ArrayRows, TrainingRows
from vaescope.errors import InputError
from vaescope.models import VAE
from vaescope.objectives import Objective, beta_elbo
from vaescope.objectives.constrained import constrained_elbo
from vaescope.settings import TrainSettings
from vaescope.training.specs import MemberSpec


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
