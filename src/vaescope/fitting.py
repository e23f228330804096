"""`vs.fit`: from an array, a file or a rendered data set to trained members in one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.core.serialization import Plain, plain_fields
from vaescope.core.tables import to_frame, to_html
from vaescope.data import Dataset
from vaescope.data.catalogue import training_data_from
from vaescope.data.dataset import ArrayRows, TrainingRows
from vaescope.data.files.streaming import StoredDataset
from vaescope.distributions import Prior
from vaescope.distributions.priors import prior_from, prior_to_text
from vaescope.inference.linear import least_variance, spectrum_of_rows
from vaescope.models import VAE, Member
from vaescope.models.auxiliary import auxiliary_columns, encode_auxiliary
from vaescope.models.build import DataShape, build_model
from vaescope.models.networks import Params
from vaescope.objectives import Objective
from vaescope.objectives.elbo import describe as describe_objective
from vaescope.objectives.names import objective_by_name
from vaescope.runs import Cell, RunFolder
from vaescope.runs.members import load_members, pending_stacks, save_members
from vaescope.runs.store import PARTS, cell_key, has_settings, part_folders
from vaescope.settings import FitSettings, TrainSettings, flat_defaults, trained_settings
from vaescope.starts import RestartTrials
from vaescope.training import MemberSpec, Progress, ProgressBar, train
from vaescope.training.progress import Observer
from vaescope.training.step import Problem

VALIDATION_SHARE = 0.2  # of the rows


@dataclass(frozen=True, eq=False)
class Fit:
    """Trained members, each a `LatentModel` with its history, by precision, KL schedule and seed."""

    members: list[Member]
    """In the order of precisions, KL schedules and seeds; those that diverged are included."""
    folder: Path | None = None
    """The run folder; None without `out`."""

    @property
    def best(self) -> Member:
        """The member with the highest validation ELBO."""
        return max(self.members, key=lambda m: m.best_elbo if m.status == "finished" else -torch.inf)

    @property
    def history(self) -> list[dict[str, list[float]]]:
        """What was recorded after every epoch, by name, for every member."""
        return [dict(member.history) for member in self.members]

    def summary(self) -> list[dict[str, object]]:
        """A row per member: precision, β, seed, and how its training went."""
        return [
            {"seed": m.seed, "beta": m.beta, "precision": m.precision, **m.summary().to_dict()} for m in self.members
        ]

    def to_frame(self, kind: str = "pandas") -> Any:
        """The rows of `summary` as a data frame.

        Args:
            kind: pandas, polars or arrow.
        """
        return to_frame(self.summary(), kind)

    def _repr_html_(self) -> str:
        """What a notebook shows: a row per member."""
        return to_html(self.summary())

    def __len__(self) -> int:
        return len(self.members)


def fit(
    x: object,
    *,
    auxiliary: object | None = None,
    objective: str | Objective = "beta",
    settings: TrainSettings | FitSettings | None = None,
    progress: Progress | None = None,
    observer: Observer | None = None,
    **options: object,
) -> Fit:
    """Train a VAE per precision, KL schedule and seed on 80 % of the samples; the others decide when to stop.

    Rows are trained with MLPs, all members as one stack; images whose sides are multiples of 16 with convolutional
    networks. Losses are sums over the numbers of a sample, in nats. With `out` members are saved in a run folder as
    they finish, and the same call again trains only the missing ones, from the last checkpoint.

    Args:
        x: rows (N, n), images (N, H, W[, C]) or (N, C, H, W), a path, or a loaded data set. A file of more than 1 GB
            stays on disk and is read while training.
        auxiliary: for model="ivae": labels 0, 1, …, or columns of numbers (scale them to about one), one per sample.
        objective: beta, beta-tc, factor, dip-1, dip-2 or capacity, or one of `vs.objectives` with its own settings.
            Each weights its penalty by `beta`; with beta=1 the β-TCVAE and the FactorVAE have none.
        settings: training settings (`TrainSettings`) or all settings (`FitSettings`) as one object.
        progress: where progress is reported; a progress bar by default.
        observer: watches the members while they are trained, such as `vs.watch.WatchedMembers`.
        options: any setting of `vs.settings.FitSettings` by its name; `latent_dim` is required.

    >>> x = torch.randn(200, 3)
    >>> vae = fit(x, latent_dim=2, epochs=2).best
    >>> vae.encode(x)[0].shape
    torch.Size([200, 2])
    """
    chosen = settings_from(options | ({"objective": objective} if isinstance(objective, str) else {}), settings)
    own = None if isinstance(objective, str) else objective
    job = prepare_fit(x, chosen, auxiliary=auxiliary, objective=own)
    with ProgressBar("fit") if progress is None else nullcontext(progress) as shown:
        return job.run(shown, observer=observer)


def _full_signature() -> inspect.Signature:
    """The signature of `fit` with every setting by name, for `help` and editors."""
    own = list(inspect.signature(fit).parameters.values())[:-1]
    settings = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in flat_defaults().items()
        if name != "objective"
    ]
    return inspect.Signature([*own, *settings], return_annotation="Fit")


setattr(fit, "__signature__", _full_signature())  # noqa: B010 (functions have no such attribute for the type checker)


def settings_from(options: Mapping[str, object], given: TrainSettings | FitSettings | None = None) -> FitSettings:
    """All settings from keyword arguments, and from an object, over which they win.

    >>> settings_from({"latent_dim": 3, "hidden": (8, 8)}).model.hidden
    (8, 8)
    """
    if "latent_dim" not in options and not isinstance(given, FitSettings):
        raise InputError("latent_dim is required: the number of latents, such as latent_dim=10.")
    base = given if isinstance(given, FitSettings) else FitSettings(training=given or TrainSettings())
    return base.updated({name: _as_plain(name, value) for name, value in options.items()})


def _as_plain(name: str, value: object) -> Plain:
    """What people pass for a setting, as the setting stores it."""
    if isinstance(value, Prior):
        return prior_to_text(value)
    if name == "prior":
        return "normal" if value is None else prior_to_text(prior_from(value))
    if isinstance(value, Iterable) and not isinstance(value, str | Path | Tensor):
        return [item.item() if hasattr(item, "item") else item for item in value]
    return value.item() if hasattr(value, "item") else value


# one job --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FitJob:
    """Everything that decides what `fit` trains, checked and ready to run."""

    settings: FitSettings
    model: VAE
    data: Dataset | StoredDataset
    """Rows are observations, followed by the auxiliary input of an iVAE."""
    members: Sequence[MemberSpec]
    objective: Objective
    all_members: Sequence[MemberSpec] | None = None
    """Of the whole run, if `members` are a part of them."""

    def run(
        self,
        progress: Progress,
        *,
        max_members: int | None = None,
        load: bool = True,
        observer: Observer | None = None,
        train_separately: Callable[[Mapping[int, str]], None] | None = None,
    ) -> Fit:
        """Train the members that are not in the run folder yet, then load all of them.

        Args:
            progress: where progress is reported.
            max_members: members of a stack, at most.
            load: whether the members of a run folder are loaded at the end.
            observer: watches the members while they are trained.
            train_separately: called with the names of missing members by index, if they do not gain from training
                together, while the run folder is locked. It may run the `member_job` of each; this call then imports
                what they trained.
        """
        stack = self.data.split_rows(VALIDATION_SHARE)
        if self.settings.storage.out is None:
            return Fit(self._train(stack, self.members, progress, None, observer))
        by_cell = {tuple(self._cell(member).values()): member for member in self.members}
        cells = [self._cell(member) for member in by_cell.values()]
        seconds = self.settings.storage.checkpoint_seconds
        with RunFolder.locked(self._folder, self._config(), checkpoint_seconds=seconds) as run:
            self._import_separate(run, cells)
            if train_separately is not None and not self.model.networks.stackable:
                own = [cell for cell in cells if not run.has_weights(cell) and cell not in run.pending_stack(cells)]
                train_separately({self._index(cell): cell_key(cell) for cell in own})
                self._import_separate(run, cells)
            for group in pending_stacks(run, self.model, cells, max_members):
                members = [by_cell[tuple(cell.values())] for cell in group]
                save_members(run, group, self._train(stack, members, progress, run, observer))
            if missing := run.cells_without_results(cells):
                trained = load_members(run, self.model, missing, [by_cell[tuple(c.values())] for c in missing])
                rows = [{**c, **m.summary().to_dict()} for c, m in zip(missing, trained, strict=True)]
                run.add_rows(rows, missing)
            self._import_separate(run, cells)
            kept = [self._cell(member) for member in self.members]
            return Fit(load_members(run, self.model, kept, self.members) if load else [], run.path)

    def member_job(self, index: int) -> FitJob:
        """The job of one member, in a folder of its own below the run folder; `run` imports it.

        Args:
            index: of the member.
        """
        member = self.members[index]
        storage = replace(self.settings.storage, out=self._folder / PARTS / cell_key(self._cell(member)))
        settings = replace(self.settings, storage=storage)
        return replace(self, members=[member], settings=settings, all_members=self.members)

    def belongs_to(self, run: Path) -> bool:
        """Whether a run folder was made with the same data and settings.

        Args:
            run: the folder.
        """
        return has_settings(run, self._config())

    def _index(self, cell: Cell) -> int:
        return next(index for index, member in enumerate(self.members) if self._cell(member) == cell)

    def _import_separate(self, run: RunFolder, cells: Sequence[Cell]) -> None:
        """Import the members that were trained in folders of their own, and delete these folders."""
        for folder in filter(run.has_same_settings, part_folders(run.path)):
            run.import_members(cells, folder)
            run.remove_imported(cells, folder)
        with suppress(OSError):  # there is none, or it is not empty
            (run.path / PARTS).rmdir()

    @property
    def _folder(self) -> Path:
        if self.settings.storage.out is None:
            raise InputError("out is required: the folder for the run.")
        return Path(self.settings.storage.out)

    def _train(
        self,
        stack: tuple[TrainingRows, ArrayRows],
        members: Sequence[MemberSpec],
        progress: Progress,
        run: RunFolder | None,
        observer: Observer | None,
    ) -> list[Member]:
        if observer is not None:
            names = {index: cell_key(self._cell(member)) for index, member in enumerate(members)}
            observer.begin(names, *(rows.sample(512) for rows in stack))
        start = partial(self._start, *stack, members, progress)
        return train(
            self.model,
            *stack,
            members,
            self.settings.training,
            objective=self.objective,
            progress=progress,
            initial=start if self.settings.training.has_trials else None,
            observer=observer,
            checkpoints=None if run is None else run.checkpoint_store,
        )

    def _start(
        self, rows: TrainingRows, validation: ArrayRows, members: Sequence[MemberSpec], progress: Progress
    ) -> Params:
        """Weights that are chosen by short trials."""
        problem = Problem(self.model, self.objective, rows, validation, members, self.settings.training)
        if (restarts := self.settings.training.restarts) > 1:
            return RestartTrials(problem, progress, restarts=restarts).weights()
        from vaescope.starts.geometry import GeometryTrials  # scikit-learn, which it needs, is slow to import

        return GeometryTrials(problem, image_shape=self.data.image_shape, progress=progress).weights()

    @property
    def _has_schedules(self) -> bool:
        return any(member.kl_schedule != "constant" for member in self.all_members or self.members)

    def _cell(self, member: MemberSpec) -> Cell:
        """What identifies a member in the run folder; the schedule only if a member of the run has one."""
        cell: Cell = {"precision": member.precision, "beta": member.beta}
        schedule: Cell = {"kl_schedule": member.kl_schedule} if self._has_schedules else {}
        return {**cell, **schedule, "seed": member.seed}

    def _config(self) -> dict[str, Plain]:
        """What a run folder belongs to: the model, how it is trained, and the data."""
        data = {"data": self.data.name, "samples": len(self.data), "digest": self.data.digest()}
        shape = DataShape(self.model.observed_dim, self.data.image_shape, self.model.auxiliary.dim)
        objective = {"objective": describe_objective(self.objective)}
        settings = data | {"shape": plain_fields(shape)} | trained_settings(self.settings) | objective
        settings |= {"kl_schedules": True} if self._has_schedules else {}  # its cells have another column
        return {"experiment": "fit", "profile": "own", "settings": settings}


def fit_together(jobs: Sequence[FitJob], progress: Progress) -> list[Fit]:
    """Run jobs without run folders. Those of equal models, objectives, settings and sizes are members of one stack.

    Their data, precision, β, schedule and seeds may differ. A member is the same as if its job ran alone, to rounding.

    Args:
        jobs: data that are the same object are stored once.
        progress: where progress is reported.
    """
    groups: dict[object, list[int]] = {}
    for index, job in enumerate(jobs):
        constrained = any(member.schedule.constrains_kl for member in job.members)
        alone = index if job.settings.training.has_trials or not job.model.networks.stackable else None
        key = (repr(job.model), repr(job.objective), job.settings.training, len(job.data), constrained, alone)
        groups.setdefault(key, []).append(index)
    found: dict[int, Fit] = {}
    for indices in groups.values():
        own = [jobs[index] for index in indices]
        first = own[0]
        if len(own) == 1:
            found[indices[0]] = first.run(progress)
            continue
        sources = {id(job.data): job.data for job in own}
        places = {name: place for place, name in enumerate(sources)}
        parts = [data.split_rows(VALIDATION_SHARE) for data in sources.values()]
        rows = torch.cat([part[0].sample(part[0].shape[1]) for part in parts])
        held = torch.cat([part[1].sample(part[1].shape[1]) for part in parts])
        members = [replace(member, data=places[id(job.data)]) for job in own for member in job.members]
        trained = iter(
            train(
                first.model, rows, held, members, first.settings.training, objective=first.objective, progress=progress
            )
        )
        found |= {index: Fit([next(trained) for _ in job.members]) for index, job in zip(indices, own, strict=True)}
    return [found[index] for index in range(len(jobs))]


def prepare_fit(
    x: object, settings: FitSettings, *, auxiliary: object | None = None, objective: Objective | None = None
) -> FitJob:
    """Check everything that `fit` needs before anything is trained.

    Args:
        x: as for `fit`.
        settings: all settings.
        auxiliary: the auxiliary input of an iVAE.
        objective: used instead of the objective that the settings name.
    """
    validation.device(settings.training.device)
    _check_objective(objective)
    if settings.model.model == "vae" and settings.model.prior_mean != "fixed":
        raise InputError(
            "prior_mean='learned' needs model='ivae' and an auxiliary input; a VAE has prior_shape='learned'."
        )
    data = training_data_from(x)
    columns = _encoded_auxiliary(settings.model.model, auxiliary, len(data))
    shape = DataShape(data.columns, data.image_shape, columns.shape[1])
    model = build_model(settings.model, shape, noise=settings.members.noise)
    if settings.members.noise != "fixed" and settings.model.likelihood == "gaussian":
        least, keeps = _least_precision(data, settings.model.latent_dim)
        model = replace(model, least_precision=least, keeps_floor=keeps and settings.members.noise == "optimal")
    members = [
        MemberSpec(seed=seed, precision=precision, beta=settings.members.beta, kl_schedule=schedule)
        for precision in settings.members.precisions
        for schedule in settings.members.kl_schedules
        for seed in settings.members.seed_list
    ]
    return FitJob(settings, model, _with_columns(data, columns), members, objective or _objective(settings, len(data)))


def _least_precision(data: Dataset | StoredDataset, latents: int) -> tuple[float, bool]:
    """γ² at which a linear VAE uses its latents, from some rows of the data, and whether less would lose them.

    See `vs.preflight`. Where no direction stands out, or latents are as many as columns, the likelihood is highest
    without latents, or has no maximum; then an optimal γ² is kept above this one.
    """
    rows = data.spread_rows(4000 if data.columns <= 1000 else 1000)
    spectrum = spectrum_of_rows(rows.double().numpy())
    precision = 1 / least_variance(spectrum, latents)
    if precision > 1e30:  # training needs some more, and float32 ends at 3e38
        raise InputError("x has a standard deviation below 1e-15, too small for precisions of float32; rescale x.")
    return precision, spectrum.flat or latents >= spectrum.rank


def _with_columns(data: Dataset | StoredDataset, columns: Tensor) -> Dataset | StoredDataset:
    """The data with auxiliary columns, as numbers; unchanged if there are none."""
    if not columns.shape[1]:
        return data
    if isinstance(data, StoredDataset):
        raise InputError(f"{data.name} is too large for an iVAE, which needs it in memory; use rows=N.")
    return replace(data, x=torch.cat([data.head(len(data)), columns], dim=1), byte_scale=1.0)


def _check_objective(objective: Objective | None) -> None:
    """Check that an objective of the user can be called with the terms of a batch and the weight of the KL."""
    try:
        if objective is not None:
            inspect.signature(objective).bind("terms", "beta")
    except (TypeError, ValueError):
        raise InputError(
            f"objective must be a name, or a function of the terms of a batch and β, got {validation.shown(objective)}."
        ) from None


def _objective(settings: FitSettings, samples: int) -> Objective:
    """The objective of that name, for the number of training samples and steps."""
    training = max(1, round((1 - VALIDATION_SHARE) * samples))
    steps = settings.training.epochs * (training // min(settings.training.batch_size, training))
    return objective_by_name(settings.objective, samples=training, latent_dim=settings.model.latent_dim, steps=steps)


def _encoded_auxiliary(model: str, auxiliary: object | None, samples: int) -> Tensor:
    """The auxiliary input as columns; none for a VAE."""
    if model == "vae" and auxiliary is not None:
        raise InputError("a plain VAE takes no auxiliary input; use model='ivae'.")
    if model == "ivae" and auxiliary is None:
        raise InputError("an iVAE needs auxiliary=…: a label or a row of numbers for every sample.")
    columns = encode_auxiliary(auxiliary, 0 if auxiliary is None else auxiliary_columns(auxiliary))
    if auxiliary is not None and len(columns) != samples:
        raise InputError(f"auxiliary needs a row per sample, got {len(columns)} rows for {samples} samples.")
    return columns.float()
