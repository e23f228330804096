"""`vs.fit`: from an array to members, and what it says to bad input."""

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.protocol import LatentModel
from vaescope.training import Silent, TrainSettings

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
        (np.zeros((5, 2)), {"model": "gan"}, "model must be 'vae'"),
        (np.zeros((5, 2)), {"seeds": ()}, "at least one member"),
    ],
)
def test_bad_input_is_refused_in_one_line(x, keywords, message):
    with pytest.raises(vs.InputError, match=message) as caught:
        vs.fit(x, **{"latent_dim": 1, "settings": QUICK, "monitor": Silent()} | keywords)
    assert "\n" not in str(caught.value)
