"""`vs.fit`: from an array to members, and what it says to bad input."""

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.protocol import LatentModel
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
        (np.zeros((5, 2)), {"precision": -1.0}, "precision must be > 0, got -1.0"),
        (np.zeros((5, 2)), {"precision": "loud"}, "'learned' or 'optimal', got 'loud'"),
        (np.zeros((1, 2)), {}, "at least 2 samples, got 1"),
        (np.full((5, 2), np.nan), {}, "NaN or infinity in 5 of 5 rows"),
        (np.full((5, 2), np.inf), {}, "NaN or infinity"),
        (np.zeros(5), {}, "row per sample"),
        (np.zeros((5, 2)), {"latent_dim": 0}, "latent_dim of at least 1"),
        (np.zeros((5, 2)), {"model": "gan"}, "model must be one of vae, ivae"),
        (np.zeros((5, 2)), {"seeds": ()}, "at least one member"),
    ],
)
def test_bad_input_is_refused_in_one_line(x, keywords, message):
    with pytest.raises(vs.InputError, match=message) as caught:
        vs.fit(x, **{"latent_dim": 1, "settings": QUICK, "monitor": NoProgress()} | keywords)
    assert "\n" not in str(caught.value)


def pictures(count=60, side=16):
    return np.random.default_rng(0).random((count, side, side)).astype(np.float32)


def test_images_get_a_convolutional_network():
    fit = vs.fit(pictures(), latent_dim=2, settings=QUICK, monitor=NoProgress())
    assert fit.best.model.image == (1, 16, 16)
    assert fit.best.decode(torch.zeros(3, 2)).shape == (3, 256)
    odd = vs.fit(pictures(side=10), latent_dim=2, settings=QUICK, monitor=NoProgress())
    assert type(odd.best.model) is vs.models.VAE
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
    first = vs.fit(data, seeds=(0,), monitor=NoProgress(), **options)
    again = vs.fit(data, seeds=(0,), monitor=NoTraining(), **options)
    for a, b in zip(first.members, again.members, strict=True):
        assert (a.seed, a.precision, a.best_elbo, a.status) == (b.seed, b.precision, b.best_elbo, b.status)
        assert all(torch.equal(a.params[name], b.params[name]) for name in a.params)
        assert len(a.history["elbo"]) == QUICK.epochs
        assert a.history == b.history
    more = vs.fit(data, seeds=(0, 1), monitor=NoProgress(), **options)
    assert len(more) == 4
    assert {file.name for file in (tmp_path / "run").iterdir()} >= {"config.json", "results.parquet", "history.parquet"}
    with pytest.raises(vs.RunError, match="digest was"):
        vs.fit(data[::-1].copy(), seeds=(0,), monitor=NoProgress(), **options)


def test_a_file_can_be_fitted(tmp_path):
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(80, 4)))
    assert len(vs.fit(tmp_path / "data.npy", latent_dim=2, settings=QUICK, monitor=NoProgress())) == 1
