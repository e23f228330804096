"""`vaescope train`: members on your own data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.table import Table

from vaescope.cli.tables import console as new_console
from vaescope.cli.tables import table
from vaescope.cli.tracking import check_track, track
from vaescope.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from vaescope.data import Dataset
    from vaescope.fitting import Fit


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
    checkpoint: float = 60.0
    """Seconds, at least, between two states of unfinished training."""
    track: str | None = None
    """Log what is finished: an MLflow server's address, or tensorboard:FOLDER."""

    def run(self) -> int:
        if self.seeds < 1:
            raise InputError(f"--seeds must be at least 1, got {self.seeds}.")
        check_track(self.track)
        from vaescope.data.auxiliary import load_auxiliary
        from vaescope.data.catalogue import open_dataset
        from vaescope.fitting import fit
        from vaescope.training import TrainSettings

        data = open_dataset(self.data, array=self.array, factors=self.factors, rows=self.rows)
        u = load_auxiliary(self.auxiliary, data, self.rows)
        fitted = fit(
            data,
            model="vae" if u is None else "ivae",
            auxiliary=u,
            prior_mean=self.prior_mean,
            latent_dim=self.latent_dim,
            precision="optimal" if self.precision is None else self.precision,
            beta=self.beta,
            objective=self.objective,
            likelihood=self.likelihood,
            network=self.network,
            seeds=range(self.seeds),
            settings=TrainSettings(
                epochs=self.epochs,
                batch_size=self.batch_size,
                learning_rate=self.learning_rate,
                patience=self.patience,
                device=self.device,
            ),
            out=self.out,
            checkpoint_seconds=self.checkpoint,
        )
        track(self.track, [self.out])
        console = new_console()
        console.print(_member_table(fitted, data, u))
        console.print(str(self.out.resolve()), soft_wrap=True, markup=False)
        return 0


def _member_table(fitted: Fit, data: Dataset, u: Tensor | None) -> Table:
    """A line per member: how training went, latents in use and, where factors are known, how well they are found."""
    from vaescope.metrics import mcc
    from vaescope.regime import of_model

    known = ("MCC", "floor") if data.factors is not None else ()
    listed = table("seed", "status", "epochs", "best epoch", "ELBO", "γ²", "latents used", *known)
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
        listed.add_row(*(f"{v:.4g}" if isinstance(v, float) else "–" if v is None else str(v) for v in shown))
    return listed
