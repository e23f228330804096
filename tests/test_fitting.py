"""`vs.fit`: from an array to members, and its errors."""

import inspect

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.fitting import prepare_fit
from vaescope.protocol import LatentModel
from vaescope.runs import RunFolder
from vaescope.runs.files import locked
from vaescope.settings import FitSettings, ModelSettings
from vaescope.training import NoProgress, TrainSettings

QUICK = TrainSettings(epochs=3, compile="never")


def test_members_are_latent_models_in_order():
    fit = vs.fit(
        np.random.default_rng(0).normal(size=(300, 4)),
        latent_dim=2,
        precision=[1.0, 10.0],
        seeds=(3, 4),
        settings=QUICK,
    )
    assert [(m.precision, m.seed) for m in fit.members] == [(1.0, 3), (1.0, 4), (10.0, 3), (10.0, 4)]
    for member in fit.members:
        assert isinstance(member, LatentModel)
        mean, variance = member.encode(torch.randn(5, 4, dtype=torch.float64))
        assert mean.dtype == torch.float64
        assert (variance > 0).all()
        assert member.decode(mean).shape == (5, 4)
        assert len(member.history["elbo"]) == 3
    assert fit.best.best_elbo == max(m.best_elbo for m in fit.members)


def test_a_planted_subspace_is_found():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2000, 2, generator=generator)
    x = z @ torch.tensor([[3.0, 0.0, 0.0, 1.0], [0.0, 1.0, 2.0, 0.0]]) + 0.05 * torch.randn(
        2000, 4, generator=generator
    )
    member = vs.fit(x, latent_dim=2, precision=100.0, settings=TrainSettings(epochs=60, learning_rate=3e-3)).best
    assert vs.metrics.linear_r2(member.encode(x)[0], z).score > 0.98


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("x", "keywords", "message"),
    [
        (np.zeros((5, 2)), {"precision": -1.0}, "precision must be > 0, got -1.0; it is 1 / decoder variance"),
        (
            np.zeros((5, 2)),
            {"precision": "loud"},
            "precision must be one of optimal, learned, learned-diagonal, learned-full, got 'loud'",
        ),
        (np.zeros((1, 2)), {}, "at least 2 samples, got 1"),
        (np.full((5, 2), np.nan), {}, "NaN or infinity in 5 of 5 rows"),
        (np.full((5, 2), np.inf), {}, "NaN or infinity"),
        (np.zeros(5), {}, "row per sample"),
        (np.zeros((5, 2)), {"latent_dim": 0}, "latent_dim must be at least 1, got 0"),
        (np.zeros((5, 2)), {"model": "gan"}, "model must be one of vae, ivae"),
        (np.zeros((5, 2)), {"prior_mean": "learned"}, "prior_mean='learned' needs model='ivae'"),
        (np.zeros((5, 2)), {"seeds": ()}, "seeds must be 1 to 100000 seeds"),
    ],
)
def test_bad_input_is_refused_in_one_line(x, keywords, message):
    with pytest.raises(vs.InputError, match=message) as caught:
        vs.fit(x, **{"latent_dim": 1, "settings": QUICK, "progress": NoProgress()} | keywords)
    assert "\n" not in str(caught.value)


def pictures(count=60, side=16):
    return np.random.default_rng(0).random((count, side, side)).astype(np.float32)


def test_images_get_a_convolutional_network():
    fit = vs.fit(pictures(), latent_dim=2, settings=QUICK, progress=NoProgress())
    assert fit.best.image_shape == (1, 16, 16)
    assert fit.best.decode(torch.zeros(3, 2)).shape == (3, 256)
    odd = vs.fit(pictures(side=10), latent_dim=2, settings=QUICK, progress=NoProgress())
    assert odd.best.image_shape is None
    with pytest.raises(vs.InputError, match="needs images"):
        vs.fit(np.zeros((30, 4)), latent_dim=2, network="conv")
    with pytest.raises(vs.InputError, match="network must be one of"):
        vs.fit(np.zeros((30, 4)), latent_dim=2, network="transformer")


class NoTraining(NoProgress):
    def begin(self, members, epochs):
        raise AssertionError("trained again")


@pytest.mark.parametrize("data", [np.random.default_rng(0).normal(size=(80, 4)), pictures()], ids=["rows", "images"])
def test_a_run_folder_keeps_what_was_trained(data, tmp_path):
    options = {"latent_dim": 2, "precision": [1.0, 5.0], "settings": QUICK, "out": tmp_path / "run"}
    first = vs.fit(data, seeds=(0,), progress=NoProgress(), **options)
    again = vs.fit(data, seeds=(0,), progress=NoTraining(), **options)
    for a, b in zip(first.members, again.members, strict=True):
        assert (a.seed, a.precision, a.best_elbo, a.status) == (b.seed, b.precision, b.best_elbo, b.status)
        assert all(torch.equal(a.params[name], b.params[name]) for name in a.params)
        assert len(a.history["elbo"]) == QUICK.epochs
        assert a.history == b.history
    more = vs.fit(data, seeds=(0, 1), progress=NoProgress(), **options)
    assert len(more) == 4
    assert {file.name for file in (tmp_path / "run").iterdir()} >= {"config.json", "results.parquet", "history.parquet"}
    with pytest.raises(vs.RunError, match="digest was"):
        vs.fit(data[::-1].copy(), seeds=(0,), progress=NoProgress(), **options)


def test_settings_can_be_given_by_name_or_as_objects():
    x = np.random.default_rng(0).normal(size=(60, 4))
    flat = vs.fit(
        x, latent_dim=2, epochs=2, compile="never", hidden=[8], prior=vs.Uniform(-1.0, 1.0), progress=NoProgress()
    )
    settings = FitSettings(
        model=ModelSettings(latent_dim=2, hidden=(8,), prior="uniform(low=-1, high=1)"),
        training=TrainSettings(epochs=2, compile="never"),
    )
    grouped = vs.fit(x, settings=settings, progress=NoProgress())
    assert torch.equal(flat.best.params["encoder.0.weight"], grouped.best.params["encoder.0.weight"])
    assert flat.best.prior.bounds == (-1.0, 1.0)
    with pytest.raises(vs.InputError, match="latent_dim is required"):
        vs.fit(x, progress=NoProgress())
    with pytest.raises(vs.InputError, match="fit has no setting 'epoch'; it has latent_dim, model, network"):
        vs.fit(x, latent_dim=2, epoch=3, progress=NoProgress())
    with pytest.raises(vs.InputError, match="epochs must be an integer, got 'many'"):
        vs.fit(x, latent_dim=2, epochs="many", progress=NoProgress())


def test_help_lists_every_setting():
    parameters = inspect.signature(vs.fit).parameters
    assert {"latent_dim", "epochs", "seeds", "out", "prior", "progress", "objective"} <= set(parameters)
    assert "options" not in parameters


def test_a_file_can_be_fitted(tmp_path):
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(80, 4)))
    assert len(vs.fit(tmp_path / "data.npy", latent_dim=2, settings=QUICK, progress=NoProgress())) == 1


IMAGES = torch.rand(40, 16, 16, generator=torch.Generator().manual_seed(0))


def image_job(out, **options):
    return prepare_fit(IMAGES, FitSettings().updated({"latent_dim": 2, "epochs": 1, "out": out, **options}))


def test_members_that_were_trained_separately_are_imported(tmp_path):
    job = image_job(tmp_path / "run", seeds=3)
    trained, asked = [], []

    def train_separately(names):
        asked.append(dict(names))
        job.member_job(2).run(NoProgress(), load=False)

    job.member_job(0).run(NoProgress(), load=False)  # an earlier call that was interrupted afterwards
    fitted = job.run(Epochs(trained), train_separately=train_separately)
    assert asked == [{1: "precision=1_beta=1_seed=1", 2: "precision=1_beta=1_seed=2"}]
    assert trained == [1]  # the member that was left
    assert [member.seed for member in fitted.members] == [0, 1, 2]
    assert all(len(history["elbo"]) == 1 for history in fitted.history)
    assert not (tmp_path / "run" / "parts").exists()


def test_only_folders_of_imported_members_are_deleted(tmp_path):
    more, fewer = (image_job(tmp_path / "run", seeds=seeds) for seeds in (2, 1))
    more.member_job(1).run(NoProgress(), load=False)
    own = tmp_path / "run" / "parts" / "holiday.png"
    own.write_bytes(b"a file of the user")
    fewer.run(NoProgress())
    assert own.exists()
    assert more.member_job(1).settings.storage.out.exists()
    trained = []
    more.run(Epochs(trained))
    assert trained == []
    assert own.exists()
    assert not more.member_job(1).settings.storage.out.exists()


def test_folders_that_are_no_part_of_the_run_are_left_alone(tmp_path):
    own, other = tmp_path / "run" / "parts" / "own", tmp_path / "run" / "parts" / "other"
    own.mkdir(parents=True)
    (own / "config.json").write_text('{"name": "a file of the user"}')
    RunFolder(other, {"experiment": "fit", "profile": "own", "settings": {}})  # another run, without members yet
    image_job(tmp_path / "run").run(NoProgress())
    assert (own / "config.json").exists()
    assert (other / "config.json").exists()


def test_a_member_that_was_interrupted_separately_continues_from_its_checkpoint(tmp_path):
    options = {"seeds": 2, "epochs": 3, "checkpoint_seconds": 0.0}
    whole = image_job(tmp_path / "whole", **options).run(NoProgress())
    job = image_job(tmp_path / "run", **options)
    for index in range(2):
        with pytest.raises(KeyboardInterrupt):
            job.member_job(index).run(InterruptAt(2), load=False)
    messages = InterruptAt(None)
    fitted = job.run(messages)
    assert messages.texts == ["Resuming after epoch 1."] * 2
    for one, other in zip(whole.members, fitted.members, strict=True):
        assert all(torch.equal(other.params[name], value) for name, value in one.params.items())
    assert not (tmp_path / "run" / "parts").exists()


def test_a_part_that_another_process_trains_is_left_alone(tmp_path):
    job = image_job(tmp_path / "run")
    part = job.member_job(0)
    part.run(NoProgress(), load=False)
    with locked(part.settings.storage.out):
        job.run(NoProgress())
        assert part.settings.storage.out.exists()
    job.run(NoProgress())
    assert not part.settings.storage.out.exists()


def test_a_job_belongs_to_folders_with_its_data_and_settings(tmp_path):
    job = image_job(tmp_path / "run")
    assert not job.belongs_to(tmp_path / "run")
    job.run(NoProgress())
    assert job.belongs_to(tmp_path / "run")
    assert not image_job(tmp_path / "run", learning_rate=0.5).belongs_to(tmp_path / "run")
    assert not prepare_fit(IMAGES.flip(0), job.settings).belongs_to(tmp_path / "run")


def test_stacks_are_not_trained_separately(tmp_path):
    settings = FitSettings().updated({"latent_dim": 2, "epochs": 1, "seeds": 2, "out": tmp_path / "run"})
    job = prepare_fit(torch.randn(60, 3), settings)
    job.run(NoProgress(), train_separately=lambda names: pytest.fail("asked for separate members"))


def test_a_member_without_a_schedule_belongs_to_a_run_with_them(tmp_path):
    job = image_job(tmp_path / "run", kl_schedule=["constant", "linear(steps=10)"])
    job.member_job(0).run(NoProgress(), load=False)
    trained = []
    assert len(job.run(Epochs(trained)).members) == 2
    assert trained == [1]


class InterruptAt(NoProgress):
    """Interrupts after an epoch; remembers messages."""

    def __init__(self, last):
        self.last, self.texts = last, []

    def epoch(self, done, **state):
        if done == self.last:
            raise KeyboardInterrupt

    def message(self, text):
        self.texts.append(text)


class Epochs(NoProgress):
    """Remembers how many members every training had."""

    def __init__(self, members):
        self.members = members

    def begin(self, members, epochs):
        self.members.append(members)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latent_dim": 99999999999999999999}, "latent_dim must be at most 1000000, got 99999999999999999999"),
        ({"hidden": (10**12,)}, "hidden must be at most 1000000"),
        ({"epochs": 10**30}, "epochs must be at most"),
        ({"seeds": (2**63,)}, "seeds must be at most 9223372036854775807, got 9223372036854775808"),
        ({"seeds": (1, 1)}, "seeds must be different, got"),
        ({"precision": (2.0, 2)}, "precision must be different, got .*; write each value once"),
        ({"precision": ()}, "precision needs a value, got none"),
        ({"kl_schedule": ()}, "kl_schedule needs a value, got none"),
        ({"architecture": "nope"}, "architecture must be one of sprites, .*, got 'nope'"),
        ({"device": "meta"}, "device 'meta' is not available here"),
        ({"objective": lambda: 0}, "objective must be a name, or a function of the terms of a batch and β, got "),
        ({"objective": 3}, "objective must be a name, or a function of the terms of a batch and β, got 3"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_line(options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        vs.fit(torch.randn(40, 3), **{"latent_dim": 2, "epochs": 1, "out": tmp_path / "run"} | options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (lambda terms, beta: 0, "a tensor with the loss of each of 2 members, got 0"),
        (lambda terms, beta: None, "a tensor with the loss of each of 2 members, got None"),
        (lambda terms, beta: terms.kl, r"loss of each of 2 members, got a tensor of \(2, \d+\)"),
        (lambda terms, beta: 0 * beta, "losses that depend on the terms of the batch, got constants"),
    ],
)
def test_what_an_objective_returns_is_checked(objective, message):
    for compile in ("never", "auto"):
        with pytest.raises(InputError, match=message):
            vs.fit(torch.randn(40, 3), latent_dim=2, epochs=1, seeds=2, objective=objective, compile=compile)


@pytest.mark.parametrize("factor", [1e-300, 1e-60, 1e-30, 1e-20])
def test_values_too_small_for_float32_are_refused_before_anything_is_written(factor, tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 3)) * factor
    with pytest.raises(InputError, match="rescale"):
        vs.fit(x, latent_dim=2, epochs=1, out=tmp_path / "run")
    assert not list(tmp_path.iterdir())
