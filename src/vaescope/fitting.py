"""From an array, a file or a rendered data set to trained members in one call."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaescope import randomness
from vaescope.data import Dataset, dataset_from
from vaescope.data.arrays import split
from vaescope.distributions import Normal, Prior
from vaescope.errors import InputError
from vaescope.models import VAE, ConvVAE, Member
from vaescope.models.conditional import auxiliary as as_auxiliary
from vaescope.models.conditional import auxiliary_width
from vaescope.models.describe import describe
from vaescope.objectives import Objective, beta_elbo, named
from vaescope.objectives import describe as describe_objective
from vaescope.runs import Cell, RunFolder, cell_key
from vaescope.runs.members import keep_members, stacks
from vaescope.runs.store import CHECKPOINT_SECONDS
from vaescope.training import Live, MemberSpec, Monitor, TrainSettings, train

MODELS = ("vae", "ivae")
NETWORKS = ("auto", "mlp", "conv")
SMALLEST = 16  # pixels that a convolutional network halves four times


@dataclass(frozen=True, eq=False)
class Fit:
    """Trained members, each a `LatentModel` with its history, in the order of precisions, then seeds."""

    members: list[Member]
    folder: Path | None = None

    @property
    def best(self) -> Member:
        """The member with the highest validation ELBO."""
        return max(self.members, key=lambda m: m.best_elbo if m.status == "finished" else -torch.inf)

    def __len__(self) -> int:
        return len(self.members)


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that decides what `fit` trains, checked and ready."""

    vae: VAE
    data: Dataset
    specs: Sequence[MemberSpec]
    settings: TrainSettings
    objective: str | Objective = "beta"

    def carried_out(
        self,
        monitor: Monitor,
        out: str | Path | None = None,
        *,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        most: int | None = None,
        load: bool = True,
    ) -> Fit:
        """Train, in stacks of so many members at most, what is not in the folder yet; then load all, where wanted."""
        vae, specs, settings = self.vae, self.specs, self.settings
        order = torch.randperm(len(self.data), generator=randomness.generator(0, "split"))
        parts = split(self.data.x[order], fractions=(0.8, 0.2))
        stacked = parts.train.unsqueeze(0), parts.validation.unsqueeze(0)
        goal = _objective(self.objective, vae, settings, len(parts.train))
        if out is None:
            return Fit(train(vae, *stacked, specs, settings, objective=goal, monitor=monitor))
        spec_of = {cell_key(_cell(spec)): spec for spec in specs}
        cells = [_cell(spec) for spec in spec_of.values()]
        config = _config(vae, self.data, settings, goal)
        with RunFolder.held(Path(out), config, checkpoint_seconds=checkpoint_seconds) as run:
            for group in stacks(run, vae, cells, most):
                mine = [spec_of[cell_key(cell)] for cell in group]
                state = run.unfinished_state
                members = train(vae, *stacked, mine, settings, objective=goal, monitor=monitor, keeper=state)
                keep_members(run, group, members)
            if left := run.unfinished(cells):
                run.add([cell | run.load_weights(cell)[1] for cell in left], left)
            return Fit(_kept(run, vae, specs) if load else [], run.path)


def fit(
    x: object,
    *,
    model: str = "vae",
    latent_dim: int,
    precision: float | str | Sequence[float] = "optimal",
    beta: float = 1.0,
    objective: str | Objective = "beta",
    prior: Prior | None = None,
    auxiliary: object | None = None,
    prior_mean: str = "fixed",
    seeds: Iterable[int] = (0,),
    network: str = "auto",
    architecture: str = "sprites",
    hidden: tuple[int, ...] = (64, 64),
    activation: str = "smooth_leaky_relu",
    posterior: str = "diagonal",
    likelihood: str = "gaussian",
    settings: TrainSettings | None = None,
    monitor: Monitor | None = None,
    out: str | Path | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Fit:
    """Train a VAE per precision and seed on 80 % of the rows; the rest stops them.

    `x` holds rows (N, n) or images (N, H, W[, C]) or (N, C, H, W), or is a path or a loaded data set. Rows get
    MLPs, trained as one stack; images whose sides are multiples of 16 a convolutional network (`architecture`),
    unless `network` says otherwise. `precision` is γ² = 1 / decoder variance: a number, several, `"learned"` by
    gradient, or `"optimal"`, its maximum-likelihood value. Losses sum over the numbers of x and are in nats.
    `model="ivae"` is an identifiable VAE: `auxiliary` is its u, labels 0, 1, … or columns of numbers (scale them near
    one), the variance of p(z|u) is learned, and its mean too where `prior_mean` is `"learned"`.
    `objective` is the β-ELBO, or by name `"beta-tc"`, `"factor"`, `"dip-1"`, `"dip-2"` or `"capacity"`, or one of
    `vs.objectives` with settings of your own; each weighs its penalty by `beta`, which β = 1 leaves out of the
    β-TCVAE and the FactorVAE.
    With `out` members are kept in a run folder as they finish, and the same call again trains only the rest: from the
    state of the unfinished stack, which is written every `checkpoint_seconds` (less often where that takes long).

    >>> x = torch.randn(200, 3)
    >>> vae = fit(x, latent_dim=2, settings=TrainSettings(epochs=2)).best
    >>> vae.encode(x)[0].shape
    torch.Size([200, 2])
    """
    plan = planned(
        x,
        model=model,
        latent_dim=latent_dim,
        precision=precision,
        beta=beta,
        objective=objective,
        prior=prior,
        auxiliary=auxiliary,
        prior_mean=prior_mean,
        seeds=seeds,
        network=network,
        architecture=architecture,
        hidden=hidden,
        activation=activation,
        posterior=posterior,
        likelihood=likelihood,
        settings=settings,
    )
    if monitor is not None:
        return plan.carried_out(monitor, out, checkpoint_seconds=checkpoint_seconds)
    with Live("fit") as live:
        return plan.carried_out(live, out, checkpoint_seconds=checkpoint_seconds)


def planned(
    x: object,
    *,
    model: str = "vae",
    latent_dim: int,
    precision: float | str | Sequence[float] = "optimal",
    beta: float = 1.0,
    objective: str | Objective = "beta",
    prior: Prior | None = None,
    auxiliary: object | None = None,
    prior_mean: str = "fixed",
    seeds: Iterable[int] = (0,),
    network: str = "auto",
    architecture: str = "sprites",
    hidden: tuple[int, ...] = (64, 64),
    activation: str = "smooth_leaky_relu",
    posterior: str = "diagonal",
    likelihood: str = "gaussian",
    settings: TrainSettings | None = None,
) -> Plan:
    """What `fit` would do, checked, before anything is trained."""
    data = dataset_from(x)
    u = _auxiliary(model, auxiliary, len(data))
    if model == "vae" and prior_mean != "fixed":
        raise InputError(f"prior_mean={prior_mean!r} is for an iVAE; say model='ivae' and give its auxiliary u.")
    noise, precisions = _precisions(precision)
    shared: dict[str, Any] = {
        "prior": Normal() if prior is None else prior,
        "posterior": posterior,
        "likelihood": likelihood,
        "noise": noise,
        "auxiliary_dim": u.shape[1],
        "prior_mean": prior_mean,
    }
    vae = _model(data, latent_dim, network, architecture, hidden, activation, shared)
    settings = settings or TrainSettings()
    chosen = [int(seed) for seed in seeds]
    specs = [MemberSpec(seed=seed, precision=p, beta=beta) for p in precisions for seed in chosen]
    rows = torch.cat([data.x.float(), u], dim=1) if model == "ivae" else data.x.float()
    return Plan(vae, replace(data, x=rows), specs, settings, objective)


def _auxiliary(model: str, u: object | None, samples: int) -> Tensor:
    """u as columns behind x; none for a VAE."""
    if model not in MODELS:
        raise InputError(f"model must be one of {', '.join(MODELS)}, got {model!r}.")
    if model == "vae" and u is not None:
        raise InputError("auxiliary u was given to a plain VAE; say model='ivae' to use it.")
    if model == "ivae" and u is None:
        raise InputError("an iVAE needs auxiliary=u: a label or a row of numbers for every sample.")
    columns = as_auxiliary(u, 0 if u is None else auxiliary_width(u))
    if u is not None and len(columns) != samples:
        raise InputError(f"auxiliary u needs a row per sample, got {len(columns)} rows for {samples} samples.")
    return columns.float()


def _model(
    data: Dataset,
    latent_dim: int,
    network: str,
    architecture: str,
    hidden: tuple[int, ...],
    activation: str,
    shared: dict[str, Any],
) -> VAE:
    if network not in NETWORKS:
        raise InputError(f"network must be one of {', '.join(NETWORKS)}, got {network!r}.")
    if network == "conv" and data.image_shape is None:
        raise InputError("a convolutional network needs images (N, H, W[, C]), got rows.")
    fits = data.image_shape is not None and all(side % SMALLEST == 0 for side in data.image_shape[1:])
    if network == "conv" or (network == "auto" and fits):
        assert data.image_shape is not None
        return ConvVAE.of(data.image_shape, latent_dim=latent_dim, architecture=architecture, **shared)
    return VAE(observed_dim=data.x.shape[1], latent_dim=latent_dim, hidden=hidden, activation=activation, **shared)


def _objective(objective: str | Objective, vae: VAE, settings: TrainSettings, samples: int) -> Objective:
    if not isinstance(objective, str):
        return objective
    steps = settings.epochs * (samples // min(settings.batch_size, samples))
    return named(objective, samples=samples, latent_dim=vae.latent_dim, steps=steps)


def _config(vae: VAE, data: Dataset, settings: TrainSettings, objective: Objective) -> dict[str, Any]:
    """What a run folder is tied to: the model, how it is trained, and the data themselves."""
    digest = hashlib.sha256(data.x.contiguous().numpy().tobytes()).hexdigest()[:16]
    about = {"data": data.name, "samples": len(data), "digest": digest, "model": describe(vae)}
    if objective is not beta_elbo:
        about["objective"] = describe_objective(objective)
    plain = {name: value for name, value in asdict(settings).items() if name != "device"}
    return {"experiment": "fit", "profile": "own", "settings": about | plain}


def _cell(spec: MemberSpec) -> Cell:
    return {"precision": spec.precision, "beta": spec.beta, "seed": spec.seed}


def _kept(run: RunFolder, vae: VAE, specs: Sequence[MemberSpec]) -> list[Member]:
    cells = [_cell(spec) for spec in specs]
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in run.rows(cells, "history"):
        rows.setdefault(cell_key({name: row[name] for name in cells[0]}), []).append(row)
    members = []
    for spec, cell in zip(specs, cells, strict=True):
        params, summary = run.load_weights(cell)
        own = rows.get(cell_key(cell), [])
        names = [name for name in (own[0] if own else {}) if name not in (*cell, "epoch")]
        history = {name: [row[name] for row in own] for name in names}
        member = Member.from_summary(vae, params, summary, seed=spec.seed, beta=spec.beta)
        members.append(replace(member, history=history))
    return members


def _precisions(precision: float | str | Sequence[float]) -> tuple[str, list[float]]:
    """Where the precision comes from, and its value for every member."""
    if isinstance(precision, str):
        if precision not in ("learned", "optimal"):
            raise InputError(f"precision must be a number > 0, 'learned' or 'optimal', got {precision!r}.")
        return precision, [1.0]
    if isinstance(precision, Sequence):
        return "fixed", [float(p) for p in precision]
    return "fixed", [float(precision)]
