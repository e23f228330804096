"""Every setting of `vs.fit`, declared once.

The keyword arguments of `vs.fit`, the options of `vaescope train`, the keys of a sweep file, `config.json` and the
fingerprint of a checkpoint are all derived from the dataclasses here: to add a setting, add a field. Nothing heavy is
imported, so that the command line starts at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path

from vaescope.core.checks import choice, integer, number, shown
from vaescope.core.errors import InputError
from vaescope.core.serialization import Plain, convert, field_types, plain_fields


@dataclass(frozen=True)
class KLSchedule:
    """β throughout, the base of all schedules.

    >>> str(schedule_from("cyclical(cycles=2)"))
    'cyclical(steps=4000,cycles=2,ramp=0.5)'
    """

    @property
    def settled(self) -> int:
        """The step after which nothing changes."""
        return 0

    def factor(self, step: int) -> float:
        """What β is multiplied by at a step, counted from 1."""
        return 1.0

    @property
    def floor(self) -> float:
        """Nats per latent that cost nothing more than if they were used; 0 for none."""
        return 0.0

    def target(self, step: int | None) -> float | None:
        """The KL that is aimed at, in nats, at a step or (None) at the end; None for as little as possible."""
        return None

    @property
    def constrains_kl(self) -> bool:
        """Whether the penalty is something else than a multiple of the KL."""
        return self.floor > 0 or self.target(None) is not None

    def __str__(self) -> str:
        name = next(name for name, cls in SCHEDULES.items() if cls is type(self))
        values = ",".join(f"{f.name}={getattr(self, f.name):g}" for f in fields(self))
        return f"{name}({values})" if values else name


@dataclass(frozen=True)
class Linear(KLSchedule):
    """β rises from 0 in equal steps (Bowman et al. 2016)."""

    steps: int = 1000

    def __post_init__(self) -> None:
        integer("steps", self.steps)

    @property
    def settled(self) -> int:
        return self.steps

    def factor(self, step: int) -> float:
        return min(1.0, step / self.steps)


@dataclass(frozen=True)
class Sigmoid(Linear):
    """β rises from 0 slowly, then fast, then slowly."""

    def factor(self, step: int) -> float:
        def logistic(value: float) -> float:
            return 1 / (1 + math.exp(-value))

        steepness = 10.0
        done = min(1.0, step / self.steps)
        start = logistic(-steepness / 2)
        return min(1.0, (logistic(steepness * (done - 0.5)) - start) / (1 - 2 * start))


@dataclass(frozen=True)
class Cyclical(KLSchedule):
    """β rises from 0 again and again, with a pause at its value after every rise (Fu et al. 2019)."""

    steps: int = 4000
    """Of all cycles together."""
    cycles: int = 4
    ramp: float = 0.5
    """The part of a cycle in which β rises."""

    def __post_init__(self) -> None:
        integer("steps", self.steps)
        integer("cycles", self.cycles)
        if not 0 < number("ramp", self.ramp) <= 1:
            raise InputError(f"ramp must be above 0 and at most 1, got {self.ramp}.")

    @property
    def settled(self) -> int:
        return self.steps

    def factor(self, step: int) -> float:
        if step >= self.steps:
            return 1.0
        cycle = self.steps / self.cycles
        return min(1.0, (step % cycle) / (self.ramp * cycle))


@dataclass(frozen=True)
class Capacity(KLSchedule):
    """β |KL - C| with a C that rises from 0 (Burgess et al. 2018)."""

    nats: float = 25.0
    """The final C."""
    steps: int = 1000

    def __post_init__(self) -> None:
        number("nats", self.nats, minimum=0.0)
        integer("steps", self.steps)

    @property
    def settled(self) -> int:
        return self.steps

    def target(self, step: int | None) -> float | None:
        return self.nats if step is None else self.nats * min(1.0, step / self.steps)


@dataclass(frozen=True)
class FreeBits(KLSchedule):
    """β Σ_k max(KL_k, λ): the first λ nats of every latent cost nothing (Kingma et al. 2016)."""

    nats: float = 0.5
    """λ, for the mean KL of each latent over a batch."""

    def __post_init__(self) -> None:
        number("nats", self.nats, above=0.0)

    @property
    def floor(self) -> float:
        return self.nats


SCHEDULES: Mapping[str, type[KLSchedule]] = {
    "constant": KLSchedule,
    "linear": Linear,
    "sigmoid": Sigmoid,
    "cyclical": Cyclical,
    "capacity": Capacity,
    "free-bits": FreeBits,
}


@cache
def schedule_from(text: str) -> KLSchedule:
    """The schedule that a text describes.

    >>> schedule_from("free-bits(nats=0.25)")
    FreeBits(nats=0.25)
    """
    found = re.fullmatch(r"\s*([a-z-]+)\s*(?:\((.*)\))?\s*", text)
    if found is None or found[1] not in SCHEDULES:
        raise _invalid(text)
    cls = SCHEDULES[found[1]]
    return cls(**{name: _parameter(cls, name, value, text) for name, value in _pairs(found[2] or "", text)})


def _pairs(arguments: str, text: str) -> list[tuple[str, str]]:
    pairs = [part.split("=") for part in arguments.split(",") if part.strip()]
    if any(len(pair) != 2 for pair in pairs):
        raise _invalid(text)
    return [(name.strip(), value.strip()) for name, value in pairs]


def _parameter(cls: type[KLSchedule], name: str, value: str, text: str) -> float | int:
    known = {field.name: field.type for field in fields(cls)}
    if name not in known:
        raise InputError(f"kl_schedule {text!r} has no parameter {name!r}; it has {', '.join(known) or 'none'}.")
    try:
        found = float(value)
    except ValueError:
        raise _invalid(text) from None
    return int(found) if known[name] == "int" and found.is_integer() else found


def _invalid(text: str) -> InputError:
    return InputError(
        f"kl_schedule must be one of {', '.join(SCHEDULES)}, e.g. 'linear(steps=1000)', got {shown(text)}."
    )


LIKELIHOODS = ("gaussian", "bernoulli")
CHOICES = {
    "model": ("vae", "ivae"),
    "network": ("auto", "mlp", "conv"),
    "posterior": ("diagonal", "isotropic", "full"),
    "likelihood": LIKELIHOODS,
    "prior_mean": ("fixed", "learned"),
    "prior_shape": ("fixed", "learned"),
    "decay": ("constant", "cosine", "restart"),
    "compile": ("auto", "always", "never"),
    "mixed_precision": ("auto", "always", "never"),
    "start": ("random", "geometry"),
}
"""What a setting can be, by its name."""
MAX_SEEDS = 100_000


@dataclass(frozen=True)
class ModelSettings:
    """The architecture and the distributions of a model."""

    latent_dim: int = 10
    """Number of latents."""
    model: str = "vae"
    """vae, or ivae: an identifiable VAE, whose encoder and prior see an auxiliary input."""
    network: str = "auto"
    """mlp, conv, or auto: conv for images whose sides are multiples of 16."""
    architecture: str = "sprites"
    """Convolutional architecture; see `vaescope.models.ARCHITECTURES`."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of an MLP."""
    activation: str = "smooth_leaky_relu"
    """Activation of an MLP."""
    prior: str = "normal"
    """Prior over latents: normal, laplace, uniform or beta, with parameters as in "uniform(low=-1, high=1)"."""
    posterior: str = "diagonal"
    """Covariance of the posterior: diagonal, isotropic or full."""
    likelihood: str = "gaussian"
    """gaussian or bernoulli."""
    prior_mean: str = "fixed"
    """Mean of the prior of an ivae: fixed or learned."""
    prior_shape: str = "fixed"
    """Shape of the prior of a vae: fixed, or learned for every latent: a and b of a beta, the variance of a normal."""

    def __post_init__(self) -> None:
        integer("latent_dim", self.latent_dim, maximum=1_000_000)
        for name in ("model", "network", "posterior", "likelihood", "prior_mean", "prior_shape"):
            choice(name, getattr(self, name), CHOICES[name])
        for width in self.hidden:
            integer("hidden", width, maximum=1_000_000)


@dataclass(frozen=True)
class MemberSettings:
    """What the members of a stack differ in: every precision is trained with every schedule and every seed."""

    precision: float | tuple[float, ...] | str = "optimal"
    """1 / decoder variance: a number, several, "learned" by gradient, or "optimal", its maximum-likelihood value.
    The last two start where the linear theory says that latents are used (see `vs.preflight`). "learned-diagonal" or
    "learned-full" learn a covariance of the outputs instead."""
    beta: float = 1.0
    """Weight of the KL divergence, or of the objective's own penalty."""
    kl_schedule: str | tuple[str, ...] = "constant"
    """How the weight of the KL changes: constant, linear, sigmoid, cyclical, capacity or free-bits, with parameters as
    in "linear(steps=1000)"; or several."""
    seeds: int | tuple[int, ...] = 1
    """How many seeds, counted from 0, or the seeds themselves."""

    def __post_init__(self) -> None:
        if isinstance(self.precision, str):
            choice("precision", self.precision, ("optimal", "learned", "learned-diagonal", "learned-full"))
        for value in self.precisions:
            number("precision", value, above=0.0, hint="it is 1 / decoder variance")
        number("beta", self.beta, minimum=0.0)
        for text in self.kl_schedules:
            schedule_from(text)
        if isinstance(self.seeds, int):
            integer("seeds", self.seeds)
        for option, values in {"precision": self.precisions, "kl_schedule": self.kl_schedules}.items():
            if not values:
                raise InputError(f"{option} needs a value, got none; omit the option for its default.")
        if not 1 <= len(self.seed_list) <= MAX_SEEDS:
            raise InputError(f"seeds must be 1 to {MAX_SEEDS} seeds, got {shown(self.seeds)}.")
        for seed in self.seed_list:
            integer("seeds", seed, minimum=0)
        several = {"precision": self.precisions, "kl_schedule": self.kl_schedules, "seeds": self.seed_list}
        for option, values in several.items():
            if len(set(values)) < len(values):
                raise InputError(f"{option} must be different, got {shown(tuple(values))}; write each value once.")

    @property
    def noise(self) -> str:
        """Where the precision comes from: fixed, learned or optimal."""
        return self.precision if isinstance(self.precision, str) else "fixed"

    @property
    def precisions(self) -> tuple[float, ...]:
        """The precision of every group of seeds; 1 where it is found in training."""
        if isinstance(self.precision, str):
            return (1.0,)
        return self.precision if isinstance(self.precision, tuple) else (self.precision,)

    @property
    def kl_schedules(self) -> tuple[str, ...]:
        """The schedule of every group of seeds, in their text form."""
        given = (self.kl_schedule,) if isinstance(self.kl_schedule, str) else self.kl_schedule
        return tuple(str(schedule_from(text)) for text in given)

    @property
    def seed_list(self) -> tuple[int, ...]:
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds


@dataclass(frozen=True)
class TrainSettings:
    """How a stack is trained; all of its members share this."""

    epochs: int = 100
    """Passes over the training data, at most."""
    batch_size: int = 64
    """Samples per training step, for each member."""
    learning_rate: float = 1e-3
    """Step size of Adam, at the beginning."""
    decay: str = "constant"
    """How the learning rate changes: constant, cosine, which falls to a hundredth at the last epoch, or restart, which
    does so twice: what the second half gains says whether the first had converged."""
    patience: int = 20
    """Epochs without a better validation objective after which a member stops."""
    compile: str = "auto"
    """Compile the training step: auto (when it saves time), always or never."""
    device: str = "cpu"
    """Where to train: cpu, cuda, ..."""
    precision_start: float | None = None
    """Precision at the beginning, for members with a higher one; a hundredth of a member's own if not given."""
    precision_hold: int = 0
    """Steps for which the precision stays at its start."""
    precision_warmup: int = 0
    """Steps over which the precision then rises geometrically to its value."""
    accumulate: int = 1
    """Parts in which a batch is computed, to save memory."""
    mixed_precision: str = "auto"
    """Compute convolutions in bfloat16: auto (if the device has instructions for it), always or never."""
    start: str = "random"
    """Initial weights of `vs.fit`: random, or geometry: the best of random weights and of weights that are fitted to
    geodesic embeddings of the data, by validation ELBO after short trials."""
    restarts: int = 1
    """Random initial weights of every member, of which the better half trains on for twice as long until one is left,
    by validation ELBO; needs start="random"."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience", "accumulate"):
            integer(name, getattr(self, name))
        integer("restarts", self.restarts, maximum=1000)
        number("learning_rate", self.learning_rate, above=0.0)
        for name in ("precision_hold", "precision_warmup"):
            integer(name, getattr(self, name), minimum=0)
        if self.precision_start is not None:
            number("precision_start", self.precision_start, above=0.0, hint="it is 1 / decoder variance")
        for name in ("decay", "compile", "mixed_precision", "start"):
            choice(name, getattr(self, name), CHOICES[name])
        if self.batch_size % self.accumulate:
            raise InputError(
                f"accumulate must divide batch_size, got {self.accumulate} parts of a batch of {self.batch_size}."
            )

        if self.restarts > 1 and self.start != "random":
            raise InputError(
                f"restarts need start='random', got {self.restarts} restarts and start={self.start!r}; use one of both."
            )

    @property
    def has_trials(self) -> bool:
        """Whether initial weights are chosen by short trainings before."""
        return self.start != "random" or self.restarts > 1

    @property
    def precision_steps(self) -> int:
        """Steps after which every member has its own precision."""
        return self.precision_hold + self.precision_warmup


CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True)
class StorageSettings:
    """Where results go and how often unfinished training is saved."""

    out: Path | None = None
    """Folder for the run; the same call again trains only what is missing there."""
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    """Seconds between two checkpoints, at least."""

    def __post_init__(self) -> None:
        number("checkpoint_seconds", self.checkpoint_seconds, minimum=0.0)


@dataclass(frozen=True)
class FitSettings:
    """All settings of `vs.fit`, in groups."""

    model: ModelSettings = field(default_factory=ModelSettings)
    members: MemberSettings = field(default_factory=MemberSettings)
    training: TrainSettings = field(default_factory=TrainSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    objective: str = "beta"
    """beta (the ELBO where beta is 1), beta-tc, factor, dip-1, dip-2 or capacity."""

    def updated(self, options: Mapping[str, Plain], *, name: str = "fit") -> FitSettings:
        """The same settings with some of them changed, given by their flat names.

        >>> FitSettings().updated({"latent_dim": 3, "epochs": 5}).training.epochs
        5
        """
        known = flat_settings()
        unknown = [key for key in options if key not in known]
        if unknown:
            raise InputError(f"{name} has no setting {unknown[0]!r}; it has {', '.join(known)}.")
        changes: dict[str, object] = {}
        for group, cls in _groups().items():
            own = {key: convert(options[key], kind, key) for key, kind in field_types(cls).items() if key in options}
            if own:
                changes[group] = replace(getattr(self, group), **own)
        if "objective" in options:
            changes["objective"] = convert(options["objective"], str, "objective")
        return replace(self, **changes)  # type: ignore[arg-type]


def _groups() -> dict[str, type]:
    """The nested dataclasses of `FitSettings` by field name."""
    return {"model": ModelSettings, "members": MemberSettings, "training": TrainSettings, "storage": StorageSettings}


def flat_settings() -> dict[str, object]:
    """The type of every setting by its flat name, as keyword arguments and sweep files spell it."""
    nested = {name: kind for cls in _groups().values() for name, kind in field_types(cls).items()}
    return {**nested, "objective": str}


def flat_defaults() -> dict[str, object]:
    """The default of every setting by its flat name."""
    settings = FitSettings()
    nested = {
        f.name: getattr(getattr(settings, group), f.name) for group, cls in _groups().items() for f in fields(cls)
    }
    return {**nested, "objective": settings.objective}


def trained_settings(settings: FitSettings) -> dict[str, Plain]:
    """What decides the weights of a member beside the data and the member's own settings, as plain data.

    The device and the storage do not. Some defaults are not mentioned: run folders were made before there were others.
    """
    unmentioned = {"device": settings.training.device, "start": "random", "restarts": 1, "prior_shape": "fixed"}

    def mentioned(group: object) -> dict[str, Plain]:
        return {key: value for key, value in plain_fields(group).items() if unmentioned.get(key) != value}

    return {
        "model": mentioned(settings.model),
        "noise": settings.members.noise,
        "objective": settings.objective,
        "training": mentioned(settings.training),
    }
