"""From an array to trained members in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from vaescope import randomness
from vaescope.data.arrays import observations, split
from vaescope.distributions import Normal, Prior
from vaescope.errors import InputError
from vaescope.models import VAE, Member
from vaescope.training import Live, MemberSpec, Monitor, TrainSettings, train


@dataclass(frozen=True, eq=False)
class Fit:
    """Trained members, each a `LatentModel` with its history, in the order of precisions, then seeds."""

    members: list[Member]

    @property
    def best(self) -> Member:
        """The member with the highest validation ELBO."""
        return max(self.members, key=lambda m: m.best_elbo if m.status == "finished" else -torch.inf)

    def __len__(self) -> int:
        return len(self.members)


def fit(
    x: object,
    *,
    model: str = "vae",
    latent_dim: int,
    precision: float | str | Sequence[float] = "optimal",
    beta: float = 1.0,
    prior: Prior | None = None,
    seeds: Iterable[int] = (0,),
    hidden: tuple[int, ...] = (64, 64),
    activation: str = "smooth_leaky_relu",
    posterior: str = "diagonal",
    likelihood: str = "gaussian",
    settings: TrainSettings | None = None,
    monitor: Monitor | None = None,
) -> Fit:
    """Train a VAE per precision and seed, all as one stack, on 80 % of the rows; the rest stops them.

    `precision` is γ² = 1 / decoder variance: a number, several, `"learned"` by gradient, or
    `"optimal"`, its maximum-likelihood value. Losses sum over the columns of x and are in nats.

    >>> x = torch.randn(200, 3)
    >>> vae = fit(x, latent_dim=2, settings=TrainSettings(epochs=2)).best
    >>> vae.encode(x)[0].shape
    torch.Size([200, 2])
    """
    if model != "vae":
        raise InputError(f"model must be 'vae', got {model!r}.")
    data = observations(x)
    noise, precisions = _precisions(precision)
    vae = VAE(
        observed_dim=data.shape[1],
        latent_dim=latent_dim,
        hidden=hidden,
        activation=activation,
        prior=Normal() if prior is None else prior,
        posterior=posterior,
        likelihood=likelihood,
        noise=noise,
    )
    specs = [MemberSpec(seed=int(s), precision=p, beta=beta) for p in precisions for s in seeds]
    order = torch.randperm(len(data), generator=randomness.generator(0, "split"))
    parts = split(data[order].float(), fractions=(0.8, 0.2))
    stacked = parts.train.unsqueeze(0), parts.validation.unsqueeze(0)
    if monitor is not None:
        return Fit(train(vae, *stacked, specs, settings, monitor=monitor))
    with Live("fit") as live:
        return Fit(train(vae, *stacked, specs, settings, monitor=live))


def _precisions(precision: float | str | Sequence[float]) -> tuple[str, list[float]]:
    """Where the precision comes from, and its value for every member."""
    if isinstance(precision, str):
        if precision not in ("learned", "optimal"):
            raise InputError(f"precision must be a number > 0, 'learned' or 'optimal', got {precision!r}.")
        return precision, [1.0]
    if isinstance(precision, Sequence):
        return "fixed", [float(p) for p in precision]
    return "fixed", [float(precision)]
