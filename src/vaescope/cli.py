"""The command line. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vaescope.errors import InputError, RunError
from vaescope.experiments.catalogue import CATALOGUE, Entry, check_profile, find

if TYPE_CHECKING:
    from torch import Tensor

    from vaescope.data.files import Dataset
    from vaescope.fitting import Fit


@dataclass(frozen=True)
class Reproduce:
    """Re-run figures and tables of the papers and check their claims.

    Finished members are kept: the same command again trains nothing, more seeds train only the new ones.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Experiments to run; see --list."""
    all: bool = False
    """Run every experiment, the fast ones first."""
    list: bool = False
    """List the experiments and stop."""
    profile: str = "quick"
    """quick: minutes on a laptop. paper: the published settings."""
    out: Path | None = None
    """Folder for the results [default: runs/PROFILE]."""
    seeds: int | None = None
    """How many seeds [default: the profile's]."""
    jobs: int = 1
    """Experiments that run at a time, each with its share of the cores."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, ..."""


@dataclass(frozen=True)
class Train:
    """Train variational autoencoders on your own data, or on a rendered data set.

    Members are kept as they finish: the same command again trains only what is missing.
    """

    data: tyro.conf.Positional[str]
    """A file (.npy, .npz, .pt, .h5, .h5ad, .parquet), a folder of images, or a name; see `vaescope datasets`."""
    out: Path
    """Folder for the run."""
    latent_dim: int = 10
    """How many latents."""
    seeds: int = 1
    """How many members, with seeds from 0."""
    precision: float | None = None
    """γ² = 1 / decoder variance [default: its maximum-likelihood value]."""
    beta: float = 1.0
    """Weight of the KL divergence, or of the objective's own penalty."""
    objective: str = "beta"
    """beta (the ELBO where --beta is 1), beta-tc, factor, dip-1, dip-2 or capacity."""
    likelihood: str = "gaussian"
    """gaussian or bernoulli."""
    network: str = "auto"
    """mlp, conv, or auto: conv for images whose sides are multiples of 16."""
    epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-3
    patience: int = 20
    """Epochs without a better validation ELBO after which a member is finished."""
    auxiliary: str | None = None
    """Makes it an iVAE: `factors` of the data, or an .npy file with a label or a row of numbers per sample."""
    prior_mean: str = "fixed"
    """Of an iVAE's p(z|u): fixed or learned."""
    rows: int | None = None
    """Take so many samples at random [default: all, or 20,000 rendered images]."""
    array: str | None = None
    """Name of the array of observations, where a file has several."""
    factors: str | None = None
    """Name of the array of factors (for Parquet: columns, with commas between)."""
    device: str = "cpu"


@dataclass(frozen=True)
class Diagnose:
    """Say what is wrong with a trained model, how that is known, and what to do about it.

    Without --data the posteriors of a .npz file with `mean` and `variance` are judged by themselves.
    """

    target: tyro.conf.Positional[Path]
    """A run folder of `vaescope train`, or a .npz file with arrays `mean` and `variance`."""
    data: str | None = None
    """Samples: a file or a name, as for `vaescope train`; best ones that it was not trained on."""
    html: Path | None = None
    """Write the page to this file, and its numbers as .json beside it."""
    array: str | None = None
    """Name of the array with observations, where the file has several."""
    factors: str | None = None
    """Name of the array (or columns) with factors, where there are any."""
    rows: int | None = None
    """Take that many samples, at random."""
    fail_on: str | None = None
    """note, warning or error: exit with code 1 when a finding is at least as severe."""


@dataclass(frozen=True)
class Explore:
    """Move a model's latents by sliders and see what it decodes: a page on this machine alone."""

    target: tyro.conf.Positional[Path]
    """A run folder of `vaescope train`."""
    data: str
    """Samples to start from: a file or a name, as for `vaescope train`."""
    array: str | None = None
    """Name of the array with observations, where the file has several."""
    rows: int | None = None
    """Take that many samples, at random."""
    port: int = 0
    """Port on 127.0.0.1 [default: one that is free]."""
    browser: bool = True
    """Open the page."""


@dataclass(frozen=True)
class Datasets:
    """List data sets: what is rendered here, and which official file would be read instead."""

    out: Path = Path("runs") / "datasets"
    """Folder for the page with a contact sheet of each."""


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2."""
    try:
        sys.exit(_dispatch(sys.argv[1:]))
    except (InputError, RunError) as error:
        print(f"vaescope: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("vaescope: interrupted; what was finished is kept, the same command goes on from there.", file=sys.stderr)
        sys.exit(130)


def _dispatch(arguments: list[str]) -> int:
    command = tyro.extras.subcommand_cli_from_dict(
        {
            "reproduce": Reproduce,
            "train": Train,
            "diagnose": Diagnose,
            "explore": Explore,
            "datasets": Datasets,
            "version": _Version,
        },
        args=arguments or ["--help"],
        prog="vaescope",
        description="Why a VAE disentangles, whether yours does, and what to change.",
    )
    if isinstance(command, Reproduce):
        return _reproduce(command)
    if isinstance(command, Train):
        return _train(command)
    if isinstance(command, Diagnose):
        return _diagnose(command)
    if isinstance(command, Explore):
        return _explore(command)
    return _datasets(command) if isinstance(command, Datasets) else 0


@dataclass(frozen=True)
class _Version:
    """Print the version."""

    def __post_init__(self) -> None:
        from vaescope import __version__

        print(__version__)


def _reproduce(command: Reproduce) -> int:
    check_profile(command.profile)
    if command.list:
        _print_list()
        return 0
    entries = list(CATALOGUE) if command.all else [find(name) for name in command.names]
    if not entries:
        raise InputError("nothing to reproduce: name experiments, or use --all; --list shows them.")
    if command.seeds is not None and command.seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {command.seeds}.")
    out = command.out or Path("runs") / command.profile
    console = Console(highlight=False)

    from vaescope.experiments.jobs import check_jobs
    from vaescope.experiments.run import reproduce, write_index
    from vaescope.training import Live

    index = write_index(out, command.profile)
    if check_jobs(command.jobs) > 1 and len(entries) > 1:
        _reproduce_side_by_side(command, entries, out, console)
        entries = []
    for entry in entries:
        with Live(entry.name) as monitor:
            claims = reproduce(
                entry.load(),
                profile=command.profile,
                out=out,
                monitor=monitor,
                seeds=command.seeds,
                device=command.device,
            )
        index = write_index(out, command.profile)
        _print_claims(console, entry.name, [claim.as_data() for claim in claims])
    console.print(str(index.resolve()), soft_wrap=True, markup=False)
    return 0


def _reproduce_side_by_side(command: Reproduce, entries: Sequence[Entry], out: Path, console: Console) -> None:
    from vaescope.experiments.jobs import Job, side_by_side
    from vaescope.experiments.run import check_device, write_index

    check_device(command.device)
    failed = []
    jobs = side_by_side(
        entries, lambda e: Job(e.name, command.profile, out, command.seeds, command.device), command.jobs
    )
    for name, outcome in jobs:
        write_index(out, command.profile)
        if isinstance(outcome, Exception):
            failed.append(f"{name} ({outcome})")
        else:
            _print_claims(console, name, outcome)
    if failed:
        raise RunError(f"{len(failed)} of {len(entries)} did not finish: {'; '.join(failed)}")


def _print_list() -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("experiment", "what it shows", "source"):
        table.add_column(heading)
    for entry in CATALOGUE:
        table.add_row(entry.name, entry.title, entry.source)
    Console(highlight=False).print(table)


def _print_claims(console: Console, name: str, claims: list[dict[str, object]]) -> None:
    table = Table(title=name, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("", "claim", "demanded", "measured"):
        table.add_column(heading)
    for claim in claims:
        mark = "[green]holds[/]" if claim["holds"] else "[red]fails[/]"
        table.add_row(mark, str(claim["sentence"]), str(claim["demand"]), str(claim["measured"]))
    console.print(table)


def _train(command: Train) -> int:
    if command.seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {command.seeds}.")
    from vaescope.data.catalogue import open_data
    from vaescope.fitting import fit
    from vaescope.training import TrainSettings

    data = open_data(command.data, array=command.array, factors=command.factors, rows=command.rows)
    u = _auxiliary(command, data)
    fitted = fit(
        data,
        model="vae" if u is None else "ivae",
        auxiliary=u,
        prior_mean=command.prior_mean,
        latent_dim=command.latent_dim,
        precision="optimal" if command.precision is None else command.precision,
        beta=command.beta,
        objective=command.objective,
        likelihood=command.likelihood,
        network=command.network,
        seeds=range(command.seeds),
        settings=TrainSettings(
            epochs=command.epochs,
            batch_size=command.batch_size,
            learning_rate=command.learning_rate,
            patience=command.patience,
            device=command.device,
        ),
        out=command.out,
    )
    console = Console(highlight=False)
    console.print(_member_table(fitted, data, u))
    console.print(str(command.out.resolve()), soft_wrap=True, markup=False)
    return 0


def _auxiliary(command: Train, data: Dataset) -> Tensor | None:
    """u of an iVAE: the data's factors, brought near one, or a file's rows."""
    if command.auxiliary is None:
        return None
    if command.auxiliary == "factors":
        if data.factors is None:
            raise InputError(f"{data.name} has no factors to take as u; name an .npy file with a row per sample.")
        spread = data.factors.std(0)
        return (data.factors - data.factors.mean(0)) / spread.where(spread > 0, spread.new_ones(()))
    if command.rows is not None:
        raise InputError(
            "--rows takes samples at random, and the rows of a file of u would not follow; use one of both."
        )
    import torch

    from vaescope.data.files.arrays import mapped

    return torch.from_numpy(mapped(Path(command.auxiliary)).copy())


def _member_table(fitted: Fit, data: Dataset, u: Tensor | None) -> Table:
    """A line per member: how training went, latents in use and, where factors are known, how well they are found."""
    from vaescope.metrics import mcc
    from vaescope.regime import of_model

    table = Table(box=None, pad_edge=False, header_style="bold")
    known = ("MCC", "floor") if data.factors is not None else ()
    for heading in ("seed", "status", "epochs", "best epoch", "ELBO", "γ²", "latents used", *known):
        table.add_column(heading)
    some = slice(0, 5000)
    seen = None if u is None else u[some]
    for member in fitted.members:
        row = member.summary()
        shown = [member.seed, row["status"], row["epochs"], row["best_epoch"], row["elbo"], row["used_precision"]]
        if member.status == "finished":
            used = of_model(member, data.x[some].float(), auxiliary=seen, decoder=False).used
            shown.append(f"{len(used)} of {member.latent_dim}")
        if data.factors is not None and member.status == "finished":
            score = mcc(member.encode(data.x[some].float(), seen)[0], data.factors[some])
            shown += [score.score, score.floor]
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else "–" if v is None else str(v) for v in shown))
    return table


def _diagnose(command: Diagnose) -> int:
    from vaescope.diagnosis import SEVERITIES, diagnose

    if command.fail_on is not None and command.fail_on not in SEVERITIES:
        raise InputError(f"--fail-on must be one of {', '.join(SEVERITIES)}, got {command.fail_on!r}.")
    models, x, factors = _diagnosed(command)
    found = diagnose(models, x, factors=factors, name=command.target.stem)
    console = Console(highlight=False)
    for finding in found.findings:
        colour = {"error": "red", "warning": "yellow", "note": "blue"}[finding.severity]
        console.print(f"[{colour}]{finding.severity}[/{colour}] {escape(f'{finding.title} ({finding.code})')}")
        console.print(f"  {finding.evidence}\n  What to do: {finding.advice}", markup=False, soft_wrap=True)
    if not found.findings:
        console.print("Nothing to complain of.")
    console.print(_rows_table(found.summary()))
    for what, why in found.skipped.items():
        console.print(f"left out: {what}, because {why}", markup=False, soft_wrap=True)
    if command.html is not None:
        found.to_json(command.html.with_suffix(".json"))
        console.print(str(found.to_html(command.html).resolve()), soft_wrap=True, markup=False)
    bad = found.worst is not None and command.fail_on is not None
    return int(bad and SEVERITIES.index(found.worst or "note") >= SEVERITIES.index(command.fail_on or "error"))


def _diagnosed(command: Diagnose) -> tuple[Any, Any, Any]:
    """Models, samples and factors."""
    import numpy as np

    from vaescope.adapters import from_arrays
    from vaescope.adapters.run import members_of
    from vaescope.data.catalogue import open_data
    from vaescope.data.files.arrays import open_npz

    if not command.target.exists():
        raise InputError(f"{command.target} does not exist.")
    if command.target.suffix == ".npz":
        sources = [open_npz(command.target, name) for name in ("mean", "variance")]
        return from_arrays(*(source.rows(np.arange(len(source))) for source in sources)), None, None
    models = members_of(command.target)
    if command.data is None:
        raise InputError("--data is needed: samples on which the model is looked at.")
    data = open_data(command.data, array=command.array, factors=command.factors, rows=command.rows)
    if models[0].conditional:
        raise InputError("an iVAE is diagnosed from Python: vs.diagnose(vs.adapters.from_run(...), x, auxiliary=u).")
    return models, data.x.float(), data.factors


def _explore(command: Explore) -> int:
    from vaescope.adapters.run import members_of
    from vaescope.data.catalogue import open_data
    from vaescope.explorer import Session, serve

    members = members_of(command.target)
    data = open_data(command.data, array=command.array, rows=command.rows)
    session = Session.of(members, data.x.float(), name=command.target.resolve().name)

    def ready(address: str) -> None:
        print(f"{address}  (Ctrl-C to stop)", flush=True)
        if command.browser:
            import webbrowser

            webbrowser.open(address)

    try:
        serve(session, port=command.port, ready=ready)
    except KeyboardInterrupt:
        print()
    return 0


def _rows_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in rows[0] if rows else ():
        table.add_column(name)
    for row in rows:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    return table


def _datasets(command: Datasets) -> int:
    from vaescope.data.catalogue import CATALOGUE as DATA
    from vaescope.report.datasets import datasets_page
    from vaescope.runs.files import write_text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "what", "rendered", "official file", "from"):
        table.add_column(heading, overflow="fold")  # a file's name is to be read whole
    for entry in DATA:
        file, where = (entry.official.files[0][0], entry.official.where) if entry.official else ("–", "–")
        table.add_row(entry.name, entry.about, "yes" if entry.rendered else "no", file, where)
    console = Console(highlight=False)
    console.print(table)
    write_text(command.out / "index.html", datasets_page())
    console.print(str((command.out / "index.html").resolve()), soft_wrap=True, markup=False)
    return 0
