"""Interrupted training goes on where it was, and ends as if it had never been interrupted."""

import math

import pytest
import torch

import vaescope as vs
from vaescope.models import VAE
from vaescope.objectives import BetaTC, beta_elbo, describe
from vaescope.runs.store import CheckpointFile
from vaescope.training import MemberSpec, NoProgress, TrainSettings, checkpoint, train

SPECS = [MemberSpec(seed, precision=p, data=seed % 2) for seed in range(3) for p in (1.0, 50.0)]


@pytest.fixture(autouse=True)
def after_every_epoch(monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARE", math.inf)


def state_in(folder):
    return CheckpointFile(folder / "state", seconds=0.0)


class Interrupt(NoProgress):
    """Stops in the middle of an epoch."""

    def __init__(self, at):
        self.at = at
        self.said = []

    def epoch(self, done, **_):
        if done == self.at:
            raise KeyboardInterrupt

    def message(self, text):
        self.said.append(message)


def data(seed, rows=96):
    return torch.randn(2, rows, 4, generator=torch.Generator().manual_seed(seed))


def same(first, second):
    for a, b in zip(first, second, strict=True):
        assert a.history == b.history
        assert (a.status, a.best_epoch, a.best_elbo, a.precision) == (b.status, b.best_epoch, b.best_elbo, b.precision)
        assert a.params.keys() == b.params.keys()
        assert all(torch.equal(a.params[name], b.params[name]) for name in a.params)


@pytest.mark.parametrize("noise", ["fixed", "optimal", "learned"])
@pytest.mark.parametrize("at", [1, 2, 5, 9])
def test_resumed_members_are_bit_identical(at, noise, tmp_path):
    """Patience of one: some members have left the stack by then."""
    model = VAE(4, 2, hidden=(8,), noise=noise)
    settings = TrainSettings(epochs=10, batch_size=16, patience=1, learning_rate=0.02, compile="never")
    whole = train(model, data(0), data(1), SPECS, settings)
    keeper = state_in(tmp_path)
    longest = max(len(member.history["elbo"]) for member in whole)
    if at <= longest:
        with pytest.raises(KeyboardInterrupt):
            train(model, data(0), data(1), SPECS, settings, monitor=Interrupt(at), keeper=keeper)
    monitor = Interrupt(None)
    same(whole, train(model, data(0), data(1), SPECS, settings, monitor=monitor, keeper=keeper))
    assert monitor.said == ([f"Going on after epoch {at - 1}."] if 1 < at <= longest else [])
    keeper.clear()  # who keeps the members does this, after they are kept
    assert not keeper.path.exists()


def test_convolutional_members_go_on_too(tmp_path):
    model = VAE.conv((1, 16, 16), latent_dim=2)
    x = torch.rand(1, 32, 256, generator=torch.Generator().manual_seed(0))
    settings, specs = TrainSettings(epochs=4, batch_size=8, compile="never"), [MemberSpec(0), MemberSpec(1)]
    whole = train(model, x, x, specs, settings)
    keeper = state_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(model, x, x, specs, settings, monitor=Interrupt(3), keeper=keeper)
    same(whole, train(model, x, x, specs, settings, keeper=keeper))


@pytest.mark.parametrize("change", ["data", "validation", "model", "settings", "members", "garbage"])
def test_a_state_of_something_else_is_not_used(change, tmp_path):
    model, settings = VAE(4, 2, hidden=(8,)), TrainSettings(epochs=4, batch_size=16, compile="never")
    keeper = state_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(model, data(0), data(1), SPECS, settings, monitor=Interrupt(3), keeper=keeper)
    x, held_out, specs = data(0), data(1), SPECS
    if change == "data":
        x = data(7)
    elif change == "validation":
        held_out = data(8)
    elif change == "model":
        model = VAE(4, 2, hidden=(8,), activation="tanh")
    elif change == "settings":
        settings = TrainSettings(epochs=4, batch_size=16, learning_rate=0.01, compile="never")
    elif change == "members":
        specs = SPECS[:3]
    else:
        keeper.path.write_bytes(b"nothing of the kind")
    monitor = Interrupt(None)
    same(
        train(model, x, held_out, specs, settings),
        train(model, x, held_out, specs, settings, monitor=monitor, keeper=keeper),
    )
    assert monitor.said == []


def test_fit_goes_on_in_its_folder(tmp_path):
    x = data(3)[0].numpy()
    options = {
        "latent_dim": 2,
        "precision": 10.0,
        "checkpoint_seconds": 0.0,
        "settings": TrainSettings(epochs=6, compile="never"),
    }
    whole = vs.fit(x, monitor=NoProgress(), **options)
    with pytest.raises(KeyboardInterrupt):
        vs.fit(x, monitor=Interrupt(4), out=tmp_path / "run", **options)
    monitor = Interrupt(None)
    resumed = vs.fit(x, monitor=monitor, out=tmp_path / "run", **options)
    assert monitor.said == ["Going on after epoch 3."]
    assert resumed.best.best_elbo == whole.best.best_elbo
    assert not (tmp_path / "run" / "unfinished.safetensors").exists()


def test_a_finished_convolutional_member_is_not_trained_again(tmp_path):
    """Interrupted in the second member: the first is kept already."""
    x = torch.rand(40, 16, 16, generator=torch.Generator().manual_seed(0)).numpy()
    options = {
        "latent_dim": 2,
        "seeds": (0, 1),
        "checkpoint_seconds": 0.0,
        "settings": TrainSettings(epochs=3, compile="never"),
    }

    class InTheSecond(Interrupt):
        begun = 0

        def begin(self, members, epochs):
            self.begun += 1
            self.at = 2 if self.begun == 2 else None

    with pytest.raises(KeyboardInterrupt):
        vs.fit(x, monitor=InTheSecond(None), out=tmp_path / "run", **options)
    monitor = InTheSecond(None)
    resumed = vs.fit(x, monitor=monitor, out=tmp_path / "run", **options)
    assert monitor.begun == 1
    assert monitor.said == ["Going on after epoch 1."]
    same(resumed.members, vs.fit(x, monitor=NoProgress(), **options).members)


def test_objectives_that_cannot_be_told_apart_are_never_the_same():
    """A closure's values are not in its name: a run must not go on from another one's state."""

    def make(weight):
        return lambda terms, beta: weight * beta

    assert describe(make(1.0)) != describe(make(1.0))
    assert describe(BetaTC(9)) == describe(BetaTC(9)) != describe(BetaTC(10))
    assert describe(beta_elbo) == "beta_elbo"
