"""`vaescope diagnose`: find what is wrong with a trained model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from vaescope.cli.inputs import (
    DataOptions,
    ModelOptions,
    check_auxiliary,
    load_function,
    load_models,
    load_object,
    print_what_was_read,
    target_name,
)
from vaescope.cli.output import check_page, exit_code, print_finding, print_findings, rows_table, write_page
from vaescope.cli.output import console as new_console
from vaescope.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from vaescope.data import Dataset
    from vaescope.products.diagnose.diagnose import Diagnosis
    from vaescope.protocol import LatentModel


@dataclass(frozen=True)
class Diagnose:
    """Diagnose a trained model: what is wrong, the evidence for it, and what to change.

    Without --data the posteriors in a .npz file with `mean` and `variance` are diagnosed on their own.
    """

    target: tyro.conf.Positional[str]
    """A run folder of `vaescope train`, a .npz file with arrays `mean` and `variance`, a model in your own Python
    (FILE.py:NAME or package.module:NAME), or one in a file: weights with --class, .keras, .onnx, a diffusers folder."""
    data: str | None = None
    """Samples, preferably ones that the model was not trained on: a file or a name, as for `vaescope train`."""
    html: Path | None = None
    """Write the report to this file, and its numbers to a .json file next to it."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    model: tyro.conf.OmitArgPrefixes[ModelOptions] = field(default_factory=ModelOptions)
    train: str | None = None
    """Samples that the model was trained on, to find overfitting: a file or a name."""
    loss: str | None = None
    """The loss that the model was trained with, FILE.py:NAME: its likelihood, precision and β are read from it."""
    budget: float = 30.0
    """Seconds that the diagnosis may take; what there is no time for is listed as skipped."""
    fail_on: str | None = None
    """note, warning or error: exit with code 1 if a finding is at least this severe."""

    def run(self) -> int:
        check_page(self.html, self.fail_on)
        found = self._diagnosis()
        print_findings(found, [f"{name}: {value} nats" for name, value, _ in found.evidence.bounds()])
        write_page(found, self.html)
        return exit_code(found.worst, self.fail_on)

    def _diagnosis(self) -> Diagnosis:
        from vaescope.products.diagnose.diagnose import diagnose

        name = target_name(self.target)
        if self.target.endswith(".npz"):
            return diagnose(self._posteriors(), name=name)
        opened = cache(self._opened)
        models = load_models(self.target, self.model, lambda: opened()[0])
        data, auxiliary = opened()
        check_auxiliary(models, auxiliary)
        train = None if self.train is None else self.source.open(self.train)[0]
        return diagnose(
            models,
            data,
            factors=data.factors,
            auxiliary=auxiliary,
            train=train,
            loss=None if self.loss is None else load_function(self.loss),
            name=name,
            budget=self.budget,
        )

    def _opened(self) -> tuple[Dataset, Tensor | None]:
        if self.data is None:
            raise InputError("--data is required: samples on which the model is diagnosed.")
        return self.source.open(self.data)

    def _posteriors(self) -> object:
        """Posteriors without a model, from a .npz file."""
        import numpy as np

        from vaescope.adapters import from_arrays
        from vaescope.data.files.arrays import open_npz

        if not Path(self.target).exists():
            raise InputError(f"{self.target} does not exist.")
        mean, variance = (open_npz(Path(self.target), name) for name in ("mean", "variance"))
        return from_arrays(mean.rows(np.arange(len(mean))), variance.rows(np.arange(len(variance))))


@dataclass(frozen=True)
class Certify:
    """Check the posteriors of a trained model on data simulated from its own prior and decoder."""

    target: tyro.conf.Positional[str]
    """A run folder of `vaescope train`, a model in your own Python (FILE.py:NAME or package.module:NAME), or one in a
    file, as for `vaescope diagnose`."""
    data: str
    """Real samples, to say whether they look like simulated ones: a file or a name, as for `vaescope train`."""
    html: Path | None = None
    """Write the report to this file, and its numbers to a .json file next to it."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    model: tyro.conf.OmitArgPrefixes[ModelOptions] = field(default_factory=ModelOptions)
    loss: str | None = None
    """The loss that the model was trained with, FILE.py:NAME: its likelihood, precision and β are read from it."""
    simulations: int = 1000
    """Number of simulated samples."""
    budget: float = 90.0
    """Seconds that this may take."""
    fail_on: str | None = None
    """note, warning or error: exit with code 1 if a finding is at least this severe."""

    def run(self) -> int:
        check_page(self.html, self.fail_on)
        from vaescope.products.certify.certify import certify

        opened = cache(lambda: self.source.open(self.data))
        models = load_models(self.target, self.model, lambda: opened()[0])
        data, auxiliary = opened()
        check_auxiliary(models, auxiliary)
        found = certify(
            models,
            data.x.float(),
            simulations=self.simulations,
            auxiliary=auxiliary,
            loss=None if self.loss is None else load_function(self.loss),
            name=target_name(self.target),
            budget=self.budget,
        )
        print_findings(found)
        write_page(found, self.html)
        return exit_code(found.worst, self.fail_on)


@dataclass(frozen=True)
class CheckCommand:
    """Whether a trained model makes data like held-out samples, with exact p-values."""

    target: tyro.conf.Positional[str]
    """A run folder of `vaescope train`, a model in your own Python (FILE.py:NAME or package.module:NAME), or one in a
    file, as for `vaescope diagnose`."""
    data: str
    """Samples that the model was not trained on: a file or a name, as for `vaescope train`."""
    statistics: str | None = None
    """A dictionary of functions by name, in your own Python: FILE.py:NAME."""
    html: Path | None = None
    """Write the report to this file, and its numbers to a .json file next to it."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    model: tyro.conf.OmitArgPrefixes[ModelOptions] = field(default_factory=ModelOptions)
    kind: str | None = None
    """counts, binary, continuous, images or series [default: what the data look like]."""
    samples: int = 500
    """Number of samples that are used, at most; simulated data sets have as many."""
    simulations: int = 99
    """Number of simulated data sets."""
    budget: float = 90.0
    """Seconds, after which no further data set is simulated if there are 39."""
    fail_on: str | None = None
    """note, warning or error: exit with code 1 if a finding is at least this severe."""

    def run(self) -> int:
        check_page(self.html, self.fail_on)
        from vaescope.products.check import check

        own = None if self.statistics is None else load_object(self.statistics)
        if own is not None and not isinstance(own, dict):
            raise InputError(f"{self.statistics} must be a dictionary of functions by name.")
        opened = cache(lambda: self.source.open(self.data))
        models = load_models(self.target, self.model, lambda: opened()[0])
        data, auxiliary = opened()
        check_auxiliary(models, auxiliary)
        found = check(
            models,
            data,
            statistics=own,
            auxiliary=auxiliary,
            kind=self.kind,
            samples=self.samples,
            simulations=self.simulations,
            name=target_name(self.target),
            budget=self.budget,
        )
        new_console().print(found.verdict, markup=False, soft_wrap=True)
        print_findings(found)
        write_page(found, self.html)
        return exit_code(found.worst, self.fail_on)


@dataclass(frozen=True)
class LeakageCommand:
    """How many nats of batch, pose or class the latents hold, where, and what removing them costs."""

    target: tyro.conf.Positional[str]
    """A run folder of `vaescope train`, a model in your own Python (FILE.py:NAME or package.module:NAME), or one in a
    file, as for `vaescope diagnose`."""
    data: str
    """Samples, preferably ones that the model was not trained on: a file or a name, as for `vaescope train`."""
    nuisance: str
    """Names of factors of the data, or .npy files with a label or a number per sample, separated by commas."""
    keep: str | None = None
    """What the latents should hold, in the same form."""
    html: Path | None = None
    """Write the report to this file, and its numbers to a .json file next to it."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    model: tyro.conf.OmitArgPrefixes[ModelOptions] = field(default_factory=ModelOptions)
    codes: str = "draws"
    """draws, one from each posterior, or means of posteriors."""
    samples: int = 4000
    """Number of samples that are used, at most."""
    budget: float = 90.0
    """Seconds; removing directions is left out if there is no time for it."""
    fail_on: str | None = None
    """note, warning or error: exit with code 1 if a finding is at least this severe."""

    def run(self) -> int:
        check_page(self.html, self.fail_on)
        from vaescope.products.leakage import leakage

        opened = cache(lambda: self.source.open(self.data))
        models = load_models(self.target, self.model, lambda: opened()[0])
        data, auxiliary = opened()
        check_auxiliary(models, auxiliary)
        found = leakage(
            models,
            data,
            nuisance=_variables(self.nuisance, data, self.source),
            keep=None if self.keep is None else _variables(self.keep, data, self.source),
            auxiliary=auxiliary,
            codes=self.codes,
            samples=self.samples,
            name=target_name(self.target),
            budget=self.budget,
        )
        new_console().print(found.verdict, markup=False, soft_wrap=True)
        print_findings(found)
        write_page(found, self.html)
        return exit_code(found.worst, self.fail_on)


def _variables(names: str, data: Dataset, source: DataOptions) -> dict[str, object]:
    """Factors of the data by name, and files with a value per sample."""
    from vaescope.data.catalogue import load_auxiliary

    found: dict[str, object] = {}
    for name in names.split(","):
        if name.endswith(".npy"):
            found[Path(name).stem] = load_auxiliary(name, data, source.rows)
        elif data.factors is not None and name in data.factor_names:
            found[name] = data.factors[:, data.factor_names.index(name)]
        else:
            known = ", ".join(data.factor_names) or "none; name columns with --factors"
            raise InputError(f"{name} is no .npy file and no factor of the data ({known}).")
    return found


@dataclass(frozen=True)
class Improve:
    """Carry out the advice of a diagnosis, and measure what it gains on held-out samples."""

    target: tyro.conf.Positional[str]
    """A run folder of `vaescope train`, a model in your own Python (FILE.py:NAME or package.module:NAME), or one in a
    file, as for `vaescope diagnose`. It stays as it is."""
    data: str
    """Samples that the model was trained on: a file or a name, as for `vaescope train`."""
    test: str
    """Samples that it was not trained on, which decide nothing and are only measured: a file or a name."""
    html: Path | None = None
    """Write the report to this file, and its numbers to a .json file next to it."""
    out: Path | None = None
    """Store steps in this folder as they are finished; the same command continues there."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    model: tyro.conf.OmitArgPrefixes[ModelOptions] = field(default_factory=ModelOptions)
    budget: float = 120.0
    """Seconds that this may take."""

    def run(self) -> int:
        check_page(self.html, None)
        from vaescope.improvement.improve import improve

        opened = cache(lambda: self.source.open(self.data)[0])
        models = load_models(self.target, self.model, opened)
        test = self.source.open(self.test)[0]
        found = improve(models, opened(), test, name=target_name(self.target), budget=self.budget, out=self.out)
        new_console().print(str(found), markup=False, highlight=False, soft_wrap=True)
        write_page(found, self.html)
        return 0


SHOWN = ("model", "ELBO", "ELBO stderr", "log p(x)", "log p(x) stderr", "in use", "c_IMA", "MCC")


@dataclass(frozen=True)
class Compare:
    """Compare trained models on the same samples: which is better, whether the difference is real, what is the same."""

    targets: tyro.conf.Positional[tuple[str, ...]]
    """Run folders of `vaescope train`, folders of `vaescope sweep`, or models in your own Python: FILE.py:NAME or
    package.module:NAME. All members of a folder are compared; of several folders, as the seeds of a setting each."""
    data: str
    """Samples that no model was trained on: a file or a name, as for `vaescope train`."""
    html: Path | None = None
    """Write the report to this file, and its numbers to a .json file next to it."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    budget: float = 60.0
    """Seconds that the comparison may take; log p(x) is computed at as many samples as there is time for."""

    def run(self) -> int:
        check_page(self.html, None)
        from vaescope.products.compare.compare import compare

        models, settings = named_targets(self.targets)
        several = 1 < len({*settings.values()}) < len(settings)
        data, auxiliary = self.source.open(self.data)
        check_auxiliary(list(models.values()), auxiliary)
        groups = settings if several else None
        found = compare(models, data, factors=data.factors, auxiliary=auxiliary, groups=groups, budget=self.budget)
        console = new_console()
        console.print(found.verdict, markup=False, soft_wrap=True)
        rows = found.table
        kept = [name for name in SHOWN if any(row.get(name) is not None for row in rows)]
        console.print(rows_table([{name: row.get(name) for name in kept} for row in rows]))
        for what, why in found.skipped.items():
            console.print(f"skipped: {what} ({why})", markup=False, soft_wrap=True)
        write_page(found, self.html)
        return 0


def named_targets(targets: tuple[str, ...]) -> tuple[dict[str, LatentModel], dict[str, str]]:
    """All models by unique names: the target's, with the model's own where a target has several; and their folders."""
    named: dict[str, LatentModel] = {}
    folders: dict[str, str] = {}
    for target in targets:
        for folder in _run_folders(target):
            models = load_models(folder)
            for model in models:
                name = target_name(folder) + (f", {model.name}" if len(models) > 1 else "")
                repeats = sum(known == name or known.startswith(f"{name} (") for known in named)
                name = f"{name} ({repeats + 1})" if repeats else name
                named[name], folders[name] = model, folder
    if not named:
        raise InputError("no model was given: name at least two run folders or models.")
    short = [target_name(folder) for folder in dict.fromkeys(folders.values())]
    unique = len({*short}) == len(short)
    return named, {name: target_name(folder) if unique else folder for name, folder in folders.items()}


def _run_folders(target: str) -> list[str]:
    """The stacks of a sweep that have finished members; any other target as it is."""
    stacks = Path(target) / "stacks"
    if not stacks.is_dir():
        return [target]
    folders = [str(folder) for folder in sorted(stacks.iterdir()) if (folder / "results.parquet").exists()]
    if not folders:
        raise InputError(f"{target} has no finished stack.")
    return folders


SHOWN_ROWS = 12


@dataclass(frozen=True)
class PreflightCommand:
    """Before training: how many latents the data feed, which losses collapse, and what to start with."""

    data: tyro.conf.Positional[str]
    """A file (.csv, .npy, .npz, .pt, .h5, .h5ad, .parquet), a folder of images, or a name; see `vaescope datasets`."""
    array: str | None = None
    """Name of the array with observations, if the file has several."""
    html: Path | None = None
    """Write the report to this file, and its numbers to a .json file next to it."""
    latent_dim: int | None = None
    """Number of latents, if it is decided already."""
    likelihood: str | None = None
    """gaussian or bernoulli [default: what fits the data]."""
    confirm: bool = False
    """Train a grid of small models (about a minute) and compare them with the prediction."""

    def run(self) -> int:
        check_page(self.html, None)
        from vaescope.products.preflight.data import source_of
        from vaescope.products.preflight.preflight import preflight

        options = DataOptions(array=self.array)
        source = source_of(self.data if self.array is None else options.open_for_training(self.data)[0])
        if self.array is None:
            print_what_was_read(source)
        found = preflight(
            source,
            latent_dim=self.latent_dim,
            likelihood=self.likelihood,
            confirm=self.confirm,
            name=Path(self.data).stem,
        )
        console = new_console()
        console.print(f"{found.name}: {found.rows} samples, {found.columns} columns, {found.kind.name}", markup=False)
        for finding in found.findings:
            print_finding(console, finding)
        console.print("Start with", style="bold")
        for setting, sentence in found.recommended.sentences.items():
            console.print(f"  {setting}: {sentence}", markup=False, soft_wrap=True)
        console.print(rows_table(found.summary()[:SHOWN_ROWS]))
        console.print(found.code["vs.fit"], markup=False, highlight=False)
        write_page(found, self.html)
        return 0


@dataclass(frozen=True)
class AuditCommand:
    """Which objective a loss function really is: likelihood, β, reductions, further terms, and faults."""

    target: tyro.conf.Positional[str]
    """A function of x, y, mu and s, or a class with `training_step` or `loss_function`: FILE.py:NAME or
    package.module:NAME."""
    data: str | None = None
    """Samples as the loss takes them, to see what it leaves of the latents: a file or a name."""
    shape: tuple[int, ...] = ()
    """Without --data, the shape of a sample, such as 1 28 28, if the loss or the model needs it."""
    array: str | None = None
    """Name of the array with observations, if the file has several."""
    latent_dim: int | None = None
    """Number of latents of the model."""
    arguments: str | None = None
    """Roles of the arguments in order, where their names do not show them, such as "x y mu s"."""
    keywords: tuple[str, ...] = ()
    """Numbers that it is called with, such as beta=4 M_N=0.005."""
    total: str | None = None
    """Which part of what it returns is minimised: an index, a key or attribute, or "sum"."""
    html: Path | None = None
    """Write the report to this file, and its numbers to a .json file next to it."""
    fail_on: str | None = None
    """note, warning or error: exit with code 1 if a finding is at least this severe."""

    def run(self) -> int:
        check_page(self.html, self.fail_on)
        from vaescope.products.audit.audit import audit

        loss = load_function(self.target)
        data = None if self.data is None else DataOptions(array=self.array).open(self.data)[0]
        found = audit(
            loss,
            x=self._random_samples() if data is None and self.shape else data,
            latent_dim=self.latent_dim,
            arguments=self.arguments,
            keywords=self._numbers(),
            total=int(self.total) if self.total is not None and self.total.isdecimal() else self.total,
            name=self.target.rpartition(":")[2],
        )
        new_console().print(found.sentence, markup=False, soft_wrap=True)
        print_findings(found)
        write_page(found, self.html)
        return exit_code(found.worst, self.fail_on)

    def _random_samples(self) -> Tensor:
        import torch

        if min(self.shape) < 1:
            raise InputError(f"--shape must be sizes of at least 1, got {' '.join(map(str, self.shape))}.")
        return 0.05 + 0.9 * torch.rand(16, *self.shape, generator=torch.Generator().manual_seed(0))

    def _numbers(self) -> dict[str, float]:
        found = {}
        for pair in self.keywords:
            name, _, value = pair.partition("=")
            try:
                found[name] = float(value) if "." in value or "e" in value.lower() else int(value)
            except ValueError:
                raise InputError(f"--keywords must be NAME=NUMBER, got {pair}.") from None
        return found


@dataclass(frozen=True)
class Explore:
    """Change a model's latents with sliders and see what it decodes, on a page that only the printed address opens."""

    target: tyro.conf.Positional[str]
    """A run folder of `vaescope train`, or a model in your own Python: FILE.py:NAME or package.module:NAME."""
    data: str
    """Samples to start from: a file or a name, as for `vaescope train`."""
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    port: int = 0
    """Port on 127.0.0.1 [default: a free one]."""
    browser: bool = True
    """Open the page in a browser."""

    def run(self) -> int:
        import tempfile
        import webbrowser

        from vaescope.products.explore.server import serve
        from vaescope.products.explore.session import Session

        models = load_models(self.target)
        data, auxiliary = self.source.open(self.data)
        check_auxiliary(models, auxiliary)
        session = Session.of(models, data, auxiliary=auxiliary, name=target_name(self.target))

        # other users see the arguments of a browser's process, so it is given a file that only this user can read
        with tempfile.NamedTemporaryFile("w", prefix="vaescope-", suffix=".html") as redirect:

            def ready(address: str) -> None:
                print(f"{address}  (Ctrl-C to stop)", flush=True)
                if self.browser:
                    redirect.write(f'<meta http-equiv="refresh" content="0; url={address}">')
                    redirect.flush()
                    webbrowser.open(Path(redirect.name).as_uri())

            try:
                serve(session, port=self.port, ready=ready)
            except KeyboardInterrupt:
                print()
        return 0
