"""What is compiled for one training run serves the next with the same model, objective and number of members."""

import torch

from vaescope.models import VAE
from vaescope.objectives import beta_elbo
from vaescope.settings import TrainSettings
from vaescope.training import MemberSpec, train
from vaescope.training.compilation import shared_functions

SETTINGS = TrainSettings(epochs=1, batch_size=4, patience=1, compile="never")


def members(model, objective=beta_elbo, *, seeds=3, fresh=True):
    x = torch.rand(1, 8, model.observed_dim, generator=torch.Generator().manual_seed(0))
    specs = [MemberSpec(seed) for seed in range(seeds)]
    if fresh:
        shared_functions.cache_clear()
    return train(model, x, x, specs, SETTINGS, objective=objective)


def test_convolutional_members_share_their_functions():
    members(VAE.conv((1, 16, 16), 2, architecture="regime"))
    info = shared_functions.cache_info()
    assert (info.misses, info.hits) == (1, 2)


def test_stacks_share_with_stacks_of_the_same_size_only():
    model = VAE.mlp(4, 2, hidden=(5,))
    members(model)
    members(VAE.mlp(4, 2, hidden=(5,)), fresh=False)
    members(model, seeds=2, fresh=False)
    info = shared_functions.cache_info()
    assert (info.misses, info.hits) == (2, 1)


def test_a_stack_with_a_function_of_the_user_does_not_share():
    members(VAE.mlp(4, 2, hidden=(5,)), lambda terms, beta: beta_elbo(terms, beta))
    assert shared_functions.cache_info().misses == 0


def test_an_objective_that_cannot_be_hashed_is_not_shared():
    class Unhashable:
        __hash__ = None

        def __call__(self, terms, beta):
            return beta_elbo(terms, beta)

    assert len(members(VAE.conv((1, 16, 16), 2, architecture="regime"), Unhashable())) == 3
    assert shared_functions.cache_info().misses == 0
