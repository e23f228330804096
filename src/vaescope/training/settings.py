"""How a stack is trained, and what makes its members differ."""

from __future__ import annotations

from dataclasses import dataclass

from vaescope import validation
from vaescope.errors import InputError


@dataclass(frozen=True)
class TrainSettings:
    """Settings all members of a stack share."""

    epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-3
    patience: int = 20
    """Epochs without a better validation ELBO after which a member is finished."""
    compile: str = "auto"
    """auto: compile when it pays; always; never."""
    device: str = "cpu"
    precision_warmup: int = 0
    """Steps over which γ² rises to its value, by a factor of 100: latents find a use before noise is expensive."""
    accumulate: int = 1
    """Parts in which a batch is computed, so that its memory is that of a part."""
    mixed_precision: bool = False
    """Compute in bfloat16 where the device has it (CUDA)."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience", "accumulate"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate must be > 0, got {self.learning_rate}.")
        if self.precision_warmup < 0:
            raise InputError(f"precision_warmup must be >= 0 steps, got {self.precision_warmup}.")
        if self.batch_size % self.accumulate:
            raise InputError(
                f"accumulate must divide the batch size, got {self.accumulate} parts of {self.batch_size}."
            )
        if self.compile not in ("auto", "always", "never"):
            raise InputError(f"compile must be auto, always or never, got {self.compile!r}.")


@dataclass(frozen=True)
class MemberSpec:
    """What one member has of its own: its seed, its γ² and β, and which data set it sees."""

    seed: int
    precision: float = 1.0
    beta: float = 1.0
    data: int = 0

    def __post_init__(self) -> None:
        validation.precision(self.precision)
        if not self.beta >= 0:
            raise InputError(f"beta must be >= 0, got {self.beta}.")
