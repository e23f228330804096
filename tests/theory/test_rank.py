"""The number of directions that a decoder uses."""

import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.inference.geometry import numerical_rank


def test_directions_count_relative_to_noise_and_prior():
    W = torch.diag(torch.tensor([3.0, 1.0, 0.1], dtype=torch.float64))
    z = torch.zeros(2, 3, dtype=torch.float64)
    for options, count in (
        ({"precision": 1.0}, 2),
        ({"precision": 100.0}, 3),
        ({"precision": 0.01}, 1),
        ({"precision": 1.0, "prior_variance": torch.tensor([1.0, 0.01, 100.0])}, 2),
        ({"precision": 1.0, "threshold": 5.0}, 1),
    ):
        assert vs.theory.used_directions(lambda z: z @ W.T, z, **options).tolist() == [count, count]


def test_results_do_not_depend_on_chunks(monkeypatch):
    scale = torch.linspace(0.1, 2, 6, dtype=torch.float64)[:, None]
    prior_variance = torch.linspace(0.01, 1, 6, dtype=torch.float64)[:, None].expand(6, 2)
    options = {"precision": 1.0, "prior_variance": prior_variance}
    at_once = vs.theory.used_directions(torch.sin, scale * torch.ones(6, 2), **options)
    monkeypatch.setattr("vaescope.inference.derivatives.CHUNK_ELEMENTS", 8)
    assert torch.equal(vs.theory.used_directions(torch.sin, scale * torch.ones(6, 2), **options), at_once)


def test_the_numerical_rank_ignores_small_singular_values():
    assert numerical_rank(torch.diag(torch.tensor([1.0, 1e-2, 1e-5]))).item() == 2
    assert numerical_rank(torch.ones(2, 4, 3)).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": None}, "precision must be a number"),
        ({"precision": 1.0, "prior_variance": -1.0}, "prior_variance must be > 0"),
        ({"precision": 1.0, "prior_variance": torch.ones(3)}, "prior_variance must be > 0, a number or one per latent"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_arguments_are_explained(options, message):
    with pytest.raises(InputError, match=message):
        vs.theory.used_directions(lambda z: z, torch.zeros(1, 2), **options)
