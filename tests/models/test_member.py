"""A trained member as a `LatentModel`, and the summary of its training."""

import pytest
import torch

import vaescope as vs
from vaescope.models import VAE, AuxiliarySettings, Member, TrainingSummary
from vaescope.models.member import has_converged
from vaescope.protocol import LatentModel
from vaescope.training import MemberSpec, TrainSettings, train


def member(model, **options):
    return Member(model, model.init([0]), **options)


def test_a_member_is_a_latent_model():
    plain = member(VAE(3, 2), seed=4, beta=2.0, precision=10.0)
    assert isinstance(plain, LatentModel)
    assert (plain.name, plain.latent_dim, plain.auxiliary_dim, plain.image_shape) == ("member 4", 2, 0, None)
    assert (plain.likelihood, plain.precision, plain.beta, plain.log_likelihood) == ("gaussian", 10.0, 2.0, None)
    assert plain.has_decoder
    assert plain.flattens_images
    image = member(VAE.conv((1, 16, 16), 2, likelihood="bernoulli"))
    assert (image.image_shape, image.precision) == ((1, 16, 16), None)
    conditional = member(VAE(3, 2, auxiliary=AuxiliarySettings(5)))
    assert isinstance(conditional, LatentModel)
    assert conditional.auxiliary_dim == 5


def test_decode_gives_probabilities_where_the_decoder_gives_logits():
    one = member(VAE(3, 2, likelihood="bernoulli"))
    z = torch.randn(4, 2)
    torch.testing.assert_close(one.decode(z), one.model.decoder_output(one.params, z[None])[0].sigmoid())


def test_history_rows_start_with_the_cell():
    one = member(VAE(3, 2), history={"loss": [2.0, 1.0], "elbo": [-2.0, -1.0]})
    assert one.history_rows({"seed": 0}) == [
        {"seed": 0, "epoch": 1, "loss": 2.0, "elbo": -2.0},
        {"seed": 0, "epoch": 2, "loss": 1.0, "elbo": -1.0},
    ]


def test_a_summary_survives_storage():
    summary = TrainingSummary("finished", 9, 7, elbo=-1.5, used_precision=3.0, converged=True)
    assert TrainingSummary.from_dict(summary.to_dict()) == summary
    one = member(VAE(3, 2), training=summary)
    assert one.summary() is summary
    assert (one.status, one.best_elbo, one.best_epoch, one.converged) == ("finished", -1.5, 7, True)


def test_a_summary_without_convergence_is_read():
    old = {"status": "finished", "epochs": 2, "best_epoch": 1, "elbo": -1.0, "used_precision": 1.0}
    assert TrainingSummary.from_dict(old | {"diverged_at_step": None}).converged is None


@pytest.mark.parametrize(
    "change", [{"status": 3}, {"epochs": "many"}, {"elbo": [1.0]}, {"converged": "yes"}, {"loss": 1.0}]
)
def test_other_data_are_not_a_summary(change):
    with pytest.raises(vs.InputError, match="summary"):
        TrainingSummary.from_dict(TrainingSummary("finished", 1, 1).to_dict() | change)


# convergence ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "converged"),
    [
        ([-5.0], False),  # a single epoch says nothing
        ([-5.0, -4.0], False),
        ([-5.0, -5.0], True),
        ([-10.0, -8.0, -6.0, -4.0, -2.0], False),
        ([-10.0, -5.0, -4.0, -3.0, -2.95], True),  # 0.05 nats in the last fifth
        ([-10.0, -5.0, -4.0, -3.0, -2.94], False),
        ([-2000.0, -5.0, -4.0, -3.0, -1.1], True),  # 0.001 of a gain of 1999 nats after the first fifth
        ([-2000.0, -5.0, -4.0, -3.0, -0.9], False),
        ([-9e9, -5.0, -4.0, -3.5, -3.2, -3.1, -3.0, -2.9, -2.8, -2.7], False),  # the first epoch does not count
        ([-10.0, -3.0, -4.0, -3.5, -3.1], True),  # below the best: no gain
        ([-3.0, -4.0, -5.0, -6.0, -7.0], True),
        ([-8.0, -4.0, -3.0, -2.9, -2.8, -2.7], False),  # the last fifth of six epochs is two
        ([-8.0, -4.0, -3.0, -2.75, -2.72, -2.71], True),
    ],
)
def test_the_rule_of_convergence(scores, converged):
    assert has_converged(scores) is converged


def run(specs, **settings):
    x = torch.randn(1, 320, 3, generator=torch.Generator().manual_seed(9)) @ torch.diag(torch.tensor([1.0, 0.7, 0.1]))
    return train(VAE.mlp(3, 2, hidden=(8,)), x[:, :256], x[:, 256:], specs, TrainSettings(compile="never", **settings))


def test_members_stopped_by_patience_converged_and_diverged_ones_are_undecided():
    stopped, diverged = run([MemberSpec(0), MemberSpec(1, precision=1e38)], epochs=60, patience=2, learning_rate=2e-2)
    assert stopped.summary().epochs < 60
    assert stopped.converged is True
    assert (diverged.status, diverged.converged, diverged.summary().elbo) == ("diverged", None, None)


def test_members_at_the_last_epoch_follow_the_rule():
    specs = [MemberSpec(0, precision=10.0)]
    short, long = (run(specs, epochs=n, patience=n, learning_rate=r)[0] for n, r in ((5, 1e-3), (80, 1e-2)))
    assert short.converged is has_converged(short.history["elbo"]) is False
    assert long.converged is has_converged(long.history["elbo"]) is True
