"""What is compiled for one convolutional member serves the next; stacks never share."""

import torch

from vaescope.models import VAE
from vaescope.objectives import beta_elbo
from vaescope.settings import TrainSettings
from vaescope.training import MemberSpec, train
from vaescope.training.compilation import _shared_functions

SETTINGS = TrainSettings(epochs=1, batch_size=4, patience=1, compile="never")


def members(model, objective=beta_elbo):
    x = torch.rand(1, 8, model.observed_dim, generator=torch.Generator().manual_seed(0))
    specs = [MemberSpec(seed) for seed in (0, 1, 2)]
    _shared_functions.cache_clear()
    return train(model, x, x, specs, SETTINGS, objective=objective)


def test_convolutional_members_share_their_functions():
    members(VAE.conv((1, 16, 16), 2, architecture="regime"))
    info = _shared_functions.cache_info()
    assert (info.misses, info.hits) == (1, 2)


def test_stacks_have_their_own():
    members(VAE.mlp(4, 2, hidden=(5,)))
    assert _shared_functions.cache_info().misses == 0


def test_an_objective_that_cannot_be_hashed_is_not_shared():
    class Unhashable:
        __hash__ = None

        def __call__(self, terms, beta):
            return beta_elbo(terms, beta)

    assert len(members(VAE.conv((1, 16, 16), 2, architecture="regime"), Unhashable())) == 3
    assert _shared_functions.cache_info().misses == 0
