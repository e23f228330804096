"""Pruned models: shorter codes, the same outputs."""

import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.regime import advise, of_model, planted, prune

MODEL = planted.GatedModel(share=0.5)
X = MODEL.observe(3000, seed=0)


@pytest.fixture(scope="module")
def pruned():
    return prune(MODEL, X)


def test_pruning_drops_passive_latents_and_keeps_outputs(pruned):
    assert pruned.kept == [0, 1]
    assert pruned.latent_dim == 2
    assert pruned.change == 0
    mean, variance = pruned.encode(X)
    assert mean.shape == variance.shape == (3000, 2)
    torch.testing.assert_close(pruned.decode(mean), MODEL.decode(MODEL.encode(X)[0]))
    assert of_model(pruned, X).kind == ["active", "mixed"]
    assert "may be too narrow" in advise(pruned, X).recommendation


def test_a_pruned_model_can_be_differentiated(pruned):
    J = vs.theory.jacobian(pruned.decode, torch.tensor([[1.0, 0.3]], dtype=torch.float64))
    torch.testing.assert_close(J[0], 5 * torch.eye(2, dtype=torch.float64))


def test_everything_else_is_that_of_the_model():
    model = vs.adapters.from_callables(
        encode=lambda x: (x, 0.01 + 0 * x),
        decode=lambda z: z,
        latent_dim=4,
        prior=vs.Normal(torch.arange(4.0), 1 + torch.arange(4.0)),
        beta=4.0,
        name="mine",
        image_shape=(1, 2, 2),
        log_likelihood=lambda x, z: (x * z).sum(1),
    )
    pruned = prune(model, torch.randn(50, 4), keep=[3, 1], tolerance=10.0)
    assert (pruned.beta, pruned.name, pruned.image_shape, pruned.likelihood) == (4.0, "mine", (1, 2, 2), None)
    assert pruned.prior.mean.tolist() == [1.0, 3.0]
    assert pruned.prior_at().variance.tolist() == [2.0, 4.0]
    # dropped latents are held at their prior means, 0 and 2
    assert pruned.decode(torch.tensor([[5.0, 6.0]])).tolist() == [[0.0, 5.0, 2.0, 6.0]]
    assert pruned.log_likelihood(torch.ones(1, 4), torch.tensor([[5.0, 6.0]])).tolist() == [13.0]


def test_dropping_a_used_latent_is_refused_unless_tolerated():
    with pytest.raises(InputError, match=r"changes the decoder's outputs by 0\.3.* of their variance, more than"):
        prune(MODEL, X, keep=[0])
    assert prune(MODEL, X, keep=[0], tolerance=0.5).change == pytest.approx(1 / 3, abs=0.05)


def test_a_collapsed_model_is_not_pruned():
    class Collapsed(planted.GatedModel):
        def encode(self, x, auxiliary=None):
            return torch.zeros(len(x), 3), torch.ones(len(x), 3)

    with pytest.raises(InputError, match="every latent is passive: the model has collapsed"):
        prune(Collapsed(), X)
    assert of_model(Collapsed(), X, decoder=False).collapse.kind == "full"
    assert "uses none of its 3 latents: it has collapsed" in advise(Collapsed(), X).recommendation


@pytest.mark.parametrize("keep", [[0, 0], [-1], [3], [], [True, False, True]])
def test_latents_that_do_not_exist_cannot_be_kept(keep):
    with pytest.raises(InputError, match="keep must name different latents from 0 to 2"):
        prune(MODEL, X, keep=keep)


def test_codes_of_the_wrong_width_are_explained(pruned):
    with pytest.raises(InputError, match=r"z must have a column per kept latent, \(N, 2\), got \(4, 3\)"):
        pruned.decode(torch.zeros(4, 3, dtype=torch.float64))
