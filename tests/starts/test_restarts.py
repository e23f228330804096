"""Random restarts, chosen by validation ELBO: what wins, what must not depend on what, and mistakes."""

import itertools
import math

import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.models import VAE, Member, TrainingSummary
from vaescope.objectives import beta_elbo
from vaescope.settings import FitSettings, trained_settings
from vaescope.starts import RestartTrials, restart_seeds
from vaescope.training import MemberSpec, NoProgress, TrainSettings
from vaescope.training.step import Problem

SHORT = {"latent_dim": 2, "epochs": 4, "hidden": (8,), "compile": "never"}


def sheet(samples=200):
    z = torch.rand(samples, 2, generator=torch.Generator().manual_seed(0))
    return torch.stack([torch.sin(4 * z[:, 0]), torch.cos(4 * z[:, 0]), 2 * z[:, 1]], dim=1)


def same_weights(first, second):
    return all(
        torch.equal(a.params[name], b.params[name])
        for a, b in zip(first.members, second.members, strict=True)
        for name in a.params
    )


class Planted(RestartTrials):
    """Trials whose members have the planted ELBO of their seed and keep their weights; NaN is one that diverged."""

    rounds: list[tuple[int, int]]

    def _trained(self, name, weights, steps, specs=None):
        self.rounds.append((len(specs), steps))
        found = []
        for index, spec in enumerate(specs):
            elbo = PLANTED[spec.seed]
            status = "diverged" if math.isnan(elbo) else "finished"
            summary = TrainingSummary(status, epochs=1, best_epoch=1, elbo=None if math.isnan(elbo) else elbo)
            own = {name: value[index : index + 1] for name, value in weights.items()}
            found.append(Member(self.problem.model, own, spec.seed, training=summary))
        return found


PLANTED = {}


@pytest.mark.parametrize("count", [2, 5, 8, 12])
def test_of_every_member_the_best_restart_wins(count):
    seeds, best = (3, 4), {}
    for own in seeds:
        restarts = restart_seeds(own, count)
        PLANTED.update({seed: float(-k) for k, seed in enumerate(reversed(restarts))})
        PLANTED[restarts[-1]] = math.nan  # the last one would be the best, had it not diverged
        best[own] = restarts[-2]
    model, x = VAE.mlp(3, 2, hidden=(8,)), sheet()[None]
    settings = TrainSettings(epochs=16, batch_size=20)
    members = [MemberSpec(seed) for seed in seeds]
    trials = Planted(Problem(model, beta_elbo, _rows(x), _rows(x), members, settings), restarts=count)
    object.__setattr__(trials, "rounds", [])
    found = trials.weights()
    for index, own in enumerate(seeds):
        winner = model.init([best[own]])
        assert all(torch.equal(found[name][index], winner[name][0]) for name in winner)
    sizes = [size // len(seeds) for size, _ in trials.rounds]
    assert sizes[0] == count
    assert sizes[-1] == 2
    assert all(after == (before + 1) // 2 for before, after in itertools.pairwise(sizes))
    assert all(0.8 * 80 <= size * steps <= 80 for size, (_, steps) in zip(sizes, trials.rounds, strict=True))


def _rows(x):
    return vs.data.dataset.ArrayRows(x)


def test_restarts_are_above_the_first_of_them():
    """The first one is the member that random weights give, so that the choice can only be better on average."""
    x = sheet(400)
    alone, chosen = (vs.fit(x, seeds=4, restarts=n, **SHORT | {"epochs": 12}) for n in (1, 6))
    leads = [b.best_elbo - a.best_elbo for a, b in zip(alone.members, chosen.members, strict=True)]
    assert sum(leads) > 0


def test_one_restart_is_plain_training_and_is_not_mentioned():
    assert same_weights(vs.fit(sheet(), **SHORT), vs.fit(sheet(), restarts=1, **SHORT))
    assert "restarts" not in str(trained_settings(FitSettings()))
    assert trained_settings(FitSettings().updated({"restarts": 3}))["training"]["restarts"] == 3


@pytest.mark.parametrize(
    ("epochs", "chosen", "found"), [(4, "auto", "never"), (20_000, "auto", "always"), (20_000, "never", "never")]
)
def test_trials_are_compiled_where_the_training_that_follows_is(epochs, chosen, found):
    """They share what is compiled, which takes too long for short trials alone."""
    rows, settings = _rows(sheet()[None]), TrainSettings(epochs=epochs, compile=chosen)
    trials = RestartTrials(Problem(VAE.mlp(3, 2), beta_elbo, rows, rows, [MemberSpec(0)], settings), restarts=2)
    assert trials._compile == found


class Stopped(NoProgress):
    """Counts epochs, and stops with an error at the given one."""

    def __init__(self, stop_at=None):
        self.stop_at, self.epochs, self.lines = stop_at, 0, []

    def epoch(self, done, *, training, finished, diverged, elbo):
        self.epochs += 1
        if self.epochs == self.stop_at:
            raise KeyboardInterrupt

    def message(self, text):
        self.lines.append(text)


@pytest.mark.parametrize("stop_at", [2, 6])
def test_a_run_that_was_killed_ends_with_the_same_bits(tmp_path, stop_at):
    """In a round of the restarts, and in the training that follows."""
    whole, shown = vs.fit(sheet(), restarts=4, **SHORT), Stopped()
    options = SHORT | {"restarts": 4, "out": tmp_path / "run", "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        vs.fit(sheet(), progress=Stopped(stop_at), **options)
    resumed = vs.fit(sheet(), progress=shown, **options)
    assert same_weights(whole, resumed)
    assert len(shown.lines) == (2 if stop_at == 2 else 1)  # two rounds again, or the line that it continues


def test_images_have_restarts_too():
    images = (torch.rand(60, 16, 16, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    fit = vs.fit(images, latent_dim=2, epochs=2, likelihood="bernoulli", restarts=2, compile="never")
    assert fit.best.status == "finished"


def test_mistakes_are_one_line():
    with pytest.raises(InputError, match="restarts need start='random'"):
        vs.fit(sheet(), restarts=2, start="geometry", **SHORT)
    with pytest.raises(InputError, match="restarts must be"):
        vs.fit(sheet(), restarts=0, **SHORT)
