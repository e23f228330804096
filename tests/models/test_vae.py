"""Composition of a VAE, and training options that concern any VAE."""

import pytest
import torch

import vaescope as vs
from vaescope.models import VAE, AuxiliarySettings, FixedMaps, MLPNetworks
from vaescope.models.networks import Network, Networks
from vaescope.training import MemberSpec, TrainSettings, train

QUICK = TrainSettings(epochs=2, batch_size=8, compile="never")


def test_constructors_choose_the_networks():
    prior = vs.Normal()
    chosen = VAE.mlp(3, 2, hidden=(5,), activation="relu", prior=prior, noise="learned")
    assert chosen == VAE(3, 2, MLPNetworks((5,), "relu"), prior=prior, noise="learned")
    conv = VAE.conv((1, 16, 16), 2, architecture="regime")
    assert (conv.observed_dim, conv.networks.image_shape, conv.networks.stackable) == (256, (1, 16, 16), False)
    assert VAE(3, 2).networks.stackable
    for model in (conv, VAE(3, 2)):
        assert isinstance(model.networks, Networks)
        assert all(isinstance(network, Network) for network in model.networks.encoders(model.dims))


def test_weights_have_stable_names():
    """Weights files refer to them."""
    names = set(VAE.mlp(3, 2, hidden=(5,), noise="learned", auxiliary=AuxiliarySettings(1)).init([0]))
    layers = [f"{network}.{k}" for network in ("encoder", "decoder") for k in (0, 1)]
    layers += [f"prior.log_variance.{k}" for k in (0, 1, 2)]
    assert names == {"log_precision", *(f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias"))}
    split = VAE.mlp(3, 2, hidden=(), split_encoder=True, auxiliary=AuxiliarySettings(1, "learned", hidden=()))
    assert {name.rsplit(".", 2)[0] for name in split.init([0])} == {
        "encoder.mean",
        "encoder.scale",
        "decoder",
        "prior.mean",
        "prior.log_variance",
    }


def test_fixed_maps_replace_the_decoder_and_precede_the_encoder():
    model = VAE.mlp(2, 2, fixed=FixedMaps(decoder=lambda z: 3 * z, encoder_input=lambda x: x - 1))
    plain = VAE.mlp(2, 2)
    params = model.init([0])
    assert not any(name.startswith("decoder") for name in params)
    z = torch.randn(1, 5, 2)
    assert torch.equal(model.decoder_output(params, z), 3 * z)
    assert torch.equal(model.encode(params, z).mean, plain.encode(params, z - 1).mean)


def test_a_batch_in_parts_gives_the_same_losses():
    data = torch.randn(1, 64, 5, generator=torch.Generator().manual_seed(1))
    settings = [TrainSettings(epochs=3, batch_size=16, accumulate=parts, compile="never") for parts in (1, 4)]
    at_once, in_parts = (train(VAE.mlp(5, 2, hidden=(8,)), data, data, [MemberSpec(0)], s)[0] for s in settings)
    assert in_parts.history["loss"] == pytest.approx(at_once.history["loss"], rel=1e-4)


def test_the_precision_warms_up():
    """With a warm-up longer than training, errors cost a hundredth at first."""
    data = 10 * torch.randn(1, 64, 5, generator=torch.Generator().manual_seed(1))
    losses = []
    for steps in (0, 10_000):
        settings = TrainSettings(epochs=1, precision_warmup=steps, compile="never")
        member = train(VAE.mlp(5, 2, hidden=(8,)), data, data, [MemberSpec(0, precision=100.0)], settings)[0]
        losses.append(member.history["loss"][0])
    assert losses[1] < 0.02 * losses[0]


def test_epoch_metrics_are_called_with_every_member_after_every_epoch():
    seen = []

    def metrics(epoch, member):
        seen.append((epoch, member.seed))
        return {"norm": float(member.params["decoder.0.weight"].norm())}

    data = torch.randn(1, 64, 5)
    members = train(VAE(5, 2), data, data, [MemberSpec(3), MemberSpec(4)], QUICK, epoch_metrics=metrics)
    assert seen == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert len(members[0].history["norm"]) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TrainSettings(batch_size=10, accumulate=3), "accumulate must divide batch_size"),
        (lambda: TrainSettings(precision_warmup=-1), "precision_warmup must be at least 0"),
        (lambda: AuxiliarySettings(-1), "auxiliary dim must be at least 0"),
        (lambda: AuxiliarySettings(2, prior_mean="free"), "prior_mean must be one of fixed, learned"),
    ],
)
def test_bad_settings_are_refused(call, message):
    with pytest.raises(vs.InputError, match=message):
        call()
