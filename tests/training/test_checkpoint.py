"""Interrupted training resumes from its checkpoint and gives the same bits as uninterrupted training."""

import math

import pytest
import torch

import vaescope as vs
from vaescope.models import VAE
from vaescope.objectives import BetaTC, Factor, beta_elbo
from vaescope.objectives.elbo import describe
from vaescope.runs.store import CheckpointFile
from vaescope.training import MemberSpec, NoProgress, TrainSettings, checkpoint, compilation, train
from vaescope.training.checkpoint import CheckpointStore

SPECS = [MemberSpec(seed, precision=p, data=seed % 2) for seed in range(3) for p in (1.0, 50.0)]


@pytest.fixture(autouse=True)
def _checkpoint_every_epoch(monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_SHARE", math.inf)


def store_in(folder):
    return CheckpointFile(folder / "state", interval_seconds=0.0)


class Interrupt(NoProgress):
    """Interrupts training after an epoch, before its checkpoint is written."""

    def __init__(self, at=None):
        self.at = at
        self.messages = []

    def epoch(self, done, **_):
        if done == self.at:
            raise KeyboardInterrupt

    def message(self, text):
        self.messages.append(text)


def data(seed, rows=96):
    return torch.randn(2, rows, 4, generator=torch.Generator().manual_seed(seed))


def assert_same_bits(first, second):
    for a, b in zip(first, second, strict=True):
        assert a.history == b.history
        assert a.summary() == b.summary()
        assert a.params.keys() == b.params.keys()
        assert all(torch.equal(a.params[name], b.params[name]) for name in a.params)


def test_a_checkpoint_file_is_a_store(tmp_path):
    assert isinstance(store_in(tmp_path), CheckpointStore)


@pytest.mark.parametrize("noise", ["fixed", "optimal", "learned"])
@pytest.mark.parametrize("at", [1, 2, 5, 9])
def test_resumed_members_are_bit_identical(at, noise, tmp_path):
    """With a patience of one, some members have stopped by then."""
    model = VAE.mlp(4, 2, hidden=(8,), noise=noise)
    settings = TrainSettings(epochs=10, batch_size=16, patience=1, learning_rate=0.02, compile="never")
    uninterrupted = train(model, data(0), data(1), SPECS, settings)
    store = store_in(tmp_path)
    longest = max(len(member.history["elbo"]) for member in uninterrupted)
    if at <= longest:
        with pytest.raises(KeyboardInterrupt):
            train(model, data(0), data(1), SPECS, settings, progress=Interrupt(at), checkpoints=store)
    progress = Interrupt()
    resumed = train(model, data(0), data(1), SPECS, settings, progress=progress, checkpoints=store)
    assert_same_bits(uninterrupted, resumed)
    assert progress.messages == ([f"Resuming after epoch {at - 1}."] if 1 < at <= longest else [])
    store.clear()
    assert not store.path.exists()


def test_the_checkpoint_of_finished_training_returns_the_members_without_training(tmp_path):
    model, settings = VAE.mlp(4, 2, hidden=(8,)), TrainSettings(epochs=3, batch_size=16, compile="never")
    store = store_in(tmp_path)
    first = train(model, data(0), data(1), SPECS, settings, checkpoints=store)
    assert_same_bits(first, train(model, data(0), data(1), SPECS, settings, progress=Interrupt(1), checkpoints=store))


@pytest.mark.parametrize("at", [1, 3])
def test_given_initial_weights_are_computed_only_without_a_checkpoint(at, tmp_path):
    model, settings = VAE.mlp(4, 2, hidden=(8,)), TrainSettings(epochs=5, batch_size=16, compile="never")
    calls = []

    def initial():
        calls.append(1)
        return model.init([50 + index for index in range(len(SPECS))])

    def run(**options):
        return train(model, data(0), data(1), SPECS, settings, initial=initial, **options)

    uninterrupted = run()
    assert not torch.equal(
        uninterrupted[0].params["encoder.0.weight"],
        train(model, data(0), data(1), SPECS, settings)[0].params["encoder.0.weight"],
    )
    store = store_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(progress=Interrupt(at), checkpoints=store)
    calls.clear()
    assert_same_bits(uninterrupted, run(checkpoints=store))
    assert len(calls) == (1 if at == 1 else 0)


def test_a_run_whose_initial_weights_are_trained_resumes_in_either_phase(tmp_path):
    """One store serves both phases: each restores only its own checkpoint."""
    first = VAE.mlp(4, 2, hidden=(8,), activation="tanh")
    second = VAE.mlp(4, 2, hidden=(8,))
    settings = TrainSettings(epochs=4, batch_size=16, compile="never")

    def run(store=None, at=(None, None)):
        def initial():
            progress = Interrupt(at[0])
            members = train(first, data(0), data(1), SPECS, settings, progress=progress, checkpoints=store)
            resumed.extend(progress.messages)
            return {name: torch.cat([m.params[name] for m in members]) for name in members[0].params}

        progress = Interrupt(at[1])
        members = train(
            second, data(0), data(1), SPECS, settings, initial=initial, progress=progress, checkpoints=store
        )
        resumed.extend(progress.messages)
        return members

    resumed = []
    uninterrupted = run()
    for at in ((3, None), (None, 3)):
        store = store_in(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            run(store, at)
        resumed.clear()
        assert_same_bits(uninterrupted, run(store))
        assert resumed == ["Resuming after epoch 2."]
        store.clear()


def test_runs_with_and_without_initial_weights_do_not_share_checkpoints(tmp_path):
    model, settings = VAE.mlp(4, 2, hidden=(8,)), TrainSettings(epochs=4, batch_size=16, compile="never")
    store = store_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(model, data(0), data(1), SPECS, settings, progress=Interrupt(3), checkpoints=store)
    start = model.init([50 + index for index in range(len(SPECS))])
    progress = Interrupt()
    resumed = train(
        model, data(0), data(1), SPECS, settings, initial=lambda: start, progress=progress, checkpoints=store
    )
    assert progress.messages == []
    assert_same_bits(train(model, data(0), data(1), SPECS, settings, initial=lambda: start), resumed)


def test_an_objective_with_a_network_resumes(tmp_path):
    model, objective = VAE.mlp(4, 2, hidden=(8,)), Factor(2, hidden=(8,))
    settings = TrainSettings(epochs=6, batch_size=16, patience=1, compile="never")
    uninterrupted = train(model, data(0), data(1), SPECS, settings, objective=objective)
    store = store_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(model, data(0), data(1), SPECS, settings, objective=objective, progress=Interrupt(3), checkpoints=store)
    assert_same_bits(
        uninterrupted, train(model, data(0), data(1), SPECS, settings, objective=objective, checkpoints=store)
    )


class AllCheckpoints:
    """Keeps every checkpoint in memory and loads one of them."""

    interval_seconds = 0.0

    def __init__(self):
        self.saved, self.loaded = [], None

    def save(self, tensors, text):
        self.saved.append(({name: value.clone() for name, value in tensors.items()}, text))

    def load(self):
        return None if self.loaded is None else self.saved[self.loaded]

    def clear(self):
        self.saved.clear()


@pytest.mark.usefixtures("unchecked_shapes")  # shape checks would be traced
def test_compiled_training_resumes_with_the_same_bits():
    """The resumed run has fewer members, but is compiled for all of them."""
    model = VAE.mlp(4, 2, hidden=(8,))
    settings = TrainSettings(epochs=8, batch_size=16, patience=1, learning_rate=0.05, compile="always")
    store = AllCheckpoints()
    uninterrupted = train(model, data(0), data(1), SPECS, settings, checkpoints=store)
    first_stop = min(len(member.history["elbo"]) for member in uninterrupted)
    store.loaded = first_stop - 1
    torch._dynamo.reset()
    progress = Interrupt()
    assert_same_bits(
        uninterrupted, train(model, data(0), data(1), SPECS, settings, progress=progress, checkpoints=store)
    )
    assert progress.messages == [f"Resuming after epoch {first_stop}."]


def test_a_resumed_run_is_compiled_for_its_original_number_of_members(monkeypatch):
    """Code compiled for fewer members could sum in another order."""
    model = VAE.mlp(4, 2, hidden=(8,))
    settings = TrainSettings(epochs=8, batch_size=16, patience=1, learning_rate=0.05, compile="always")
    store, sizes = AllCheckpoints(), []

    def recorded(function):
        def call(params, *args):
            sizes.append(len(params["encoder.0.weight"]))
            return function(params, *args)

        return call

    monkeypatch.setattr(compilation, "has_compiler", lambda: True)
    monkeypatch.setattr(compilation, "compile_stacked", recorded)
    compilation.shared_functions.cache_clear()
    members = train(model, data(0), data(1, 300), SPECS, settings, checkpoints=store)
    store.loaded = min(len(member.history["elbo"]) for member in members) - 1
    sizes.clear()
    train(model, data(0), data(1, 300), SPECS, settings, checkpoints=store)
    compilation.shared_functions.cache_clear()
    assert sizes[:2] == [6, 6]  # step and validation
    assert max(sizes[2:]) < 6


def test_convolutional_members_resume(tmp_path):
    model = VAE.conv((1, 16, 16), latent_dim=2)
    x = torch.rand(1, 32, 256, generator=torch.Generator().manual_seed(0))
    settings, specs = TrainSettings(epochs=4, batch_size=8, compile="never"), [MemberSpec(0), MemberSpec(1)]
    uninterrupted = train(model, x, x, specs, settings)
    store = store_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(model, x, x, specs, settings, progress=Interrupt(3), checkpoints=store)
    assert_same_bits(uninterrupted, train(model, x, x, specs, settings, checkpoints=store))


def test_convolutional_members_start_from_their_own_initial_weights():
    """Members train one after another, but the weights of all are computed once."""
    model = VAE.conv((1, 16, 16), latent_dim=2)
    x = torch.rand(1, 32, 256, generator=torch.Generator().manual_seed(0))
    settings, specs = TrainSettings(epochs=1, batch_size=8, compile="never"), [MemberSpec(0), MemberSpec(1)]
    calls = []

    def initial():
        calls.append(1)
        return model.init([7, 8])

    both = train(model, x, x, specs, settings, initial=initial)
    alone = train(model, x, x, specs[1:], settings, initial=lambda: model.init([8]))
    assert len(calls) == 1
    assert_same_bits(both[1:], alone)


@pytest.mark.parametrize("change", ["data", "validation", "model", "settings", "members", "garbage", "content"])
def test_a_checkpoint_of_another_run_is_not_used(change, tmp_path):
    model, settings = VAE.mlp(4, 2, hidden=(8,)), TrainSettings(epochs=4, batch_size=16, compile="never")
    store = store_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(model, data(0), data(1), SPECS, settings, progress=Interrupt(3), checkpoints=store)
    x, validation, specs = data(0), data(1), SPECS
    if change == "data":
        x = data(7)
    elif change == "validation":
        validation = data(8)
    elif change == "model":
        model = VAE.mlp(4, 2, hidden=(8,), activation="tanh")
    elif change == "settings":
        settings = TrainSettings(epochs=4, batch_size=16, learning_rate=0.01, compile="never")
    elif change == "members":
        specs = SPECS[:3]
    elif change == "garbage":
        store.path.write_bytes(b"not a checkpoint")
    else:
        tensors, text = store.load()
        store.save(tensors, text.replace('"epochs_done"', '"epochs"'))
    progress = Interrupt()
    assert_same_bits(
        train(model, x, validation, specs, settings),
        train(model, x, validation, specs, settings, progress=progress, checkpoints=store),
    )
    unreadable = ["The checkpoint cannot be read: training starts again."]
    assert progress.messages == (unreadable if change in ("content", "garbage") else [])


def test_fit_resumes_in_its_folder(tmp_path):
    x = data(3)[0].numpy()
    options = {
        "latent_dim": 2,
        "precision": 10.0,
        "checkpoint_seconds": 0.0,
        "settings": TrainSettings(epochs=6, compile="never"),
    }
    uninterrupted = vs.fit(x, progress=NoProgress(), **options)
    with pytest.raises(KeyboardInterrupt):
        vs.fit(x, progress=Interrupt(4), out=tmp_path / "run", **options)
    progress = Interrupt()
    resumed = vs.fit(x, progress=progress, out=tmp_path / "run", **options)
    assert progress.messages == ["Resuming after epoch 3."]
    assert resumed.best.best_elbo == uninterrupted.best.best_elbo
    assert not (tmp_path / "run" / "unfinished.safetensors").exists()


def test_a_finished_convolutional_member_is_not_trained_again(tmp_path):
    """Interrupted in the second member, after the first was saved."""
    x = torch.rand(40, 16, 16, generator=torch.Generator().manual_seed(0)).numpy()
    options = {
        "latent_dim": 2,
        "seeds": (0, 1),
        "checkpoint_seconds": 0.0,
        "settings": TrainSettings(epochs=3, compile="never"),
    }

    class InterruptSecond(Interrupt):
        started = 0

        def begin(self, members, epochs):
            self.started += 1
            self.at = 2 if self.started == 2 else None

    with pytest.raises(KeyboardInterrupt):
        vs.fit(x, progress=InterruptSecond(), out=tmp_path / "run", **options)
    progress = InterruptSecond()
    resumed = vs.fit(x, progress=progress, out=tmp_path / "run", **options)
    assert progress.started == 1
    assert progress.messages == ["Resuming after epoch 1."]
    assert_same_bits(resumed.members, vs.fit(x, progress=NoProgress(), **options).members)


def test_objectives_with_hidden_values_have_unique_descriptions():
    """A closure's values are not in its name: its run must not continue from another run's checkpoint."""

    def make(weight):
        return lambda terms, beta: weight * beta

    assert describe(make(1.0)) != describe(make(1.0))
    assert describe(BetaTC(9)) == describe(BetaTC(9)) != describe(BetaTC(10))
    assert describe(beta_elbo) == "beta_elbo"
