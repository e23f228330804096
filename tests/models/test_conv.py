"""Convolutional networks against PyTorch's own layers, and a convolutional VAE from weights to training."""

import pytest
import torch
from torch import nn
from vaescope.models.describe import describe, rebuild

import vaescope as vs
from vaescope.models import VAE
from vaescope.models.conv import ARCHITECTURES, ConvNet, Layer, decoder, encoder
from vaescope.training import MemberSpec, TrainSettings, train

IMAGE = (3, 32, 32)
QUICK = TrainSettings(epochs=2, batch_size=8, compile="never")


def weights(network, seed=0):
    return network.init(torch.Generator().manual_seed(seed))


def torch_twin(network, params):
    """The same layers from torch.nn, with the same weights."""
    layers = []
    for place, (layer, seen, _, output, _) in enumerate(network.plan()):
        weight, bias = (params[f"{network.name}.{place}.{kind}"] for kind in ("weight", "bias"))
        if layer.kind == "linear":
            module = nn.Linear(weight.shape[1], weight.shape[0])
            layers.append(nn.Flatten())
        else:
            cls = nn.Conv2d if layer.kind == "conv" else nn.ConvTranspose2d
            module = cls(seen[0], layer.outputs, layer.kernel, layer.stride, layer.padding)
            layers.append(
                nn.Unflatten(1, seen) if layer.kind == "deconv" and place in dict(network.views) else nn.Identity()
            )
            weight = weight.permute(0, 3, 1, 2)
        module.load_state_dict({"weight": weight, "bias": bias})
        layers.append(module)
        if layer.norm:
            layers.append((nn.BatchNorm1d if layer.kind == "linear" else nn.BatchNorm2d)(output[0], momentum=1.0))
        if layer.relu:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_networks_are_torchs(name):
    down = encoder("e", IMAGE, 8, ARCHITECTURES[name])
    up = decoder("d", IMAGE, 4, ARCHITECTURES[name])
    x, z = torch.rand(6, 3 * 32 * 32), torch.randn(6, 4)
    for network, rows, shape in ((down, x, IMAGE), (up, z, (4,))):
        params = weights(network)
        expected = torch_twin(network, params)(rows.reshape(6, *shape)).flatten(1)
        torch.testing.assert_close(network.one(params, rows), expected, atol=1e-5, rtol=1e-4)
    assert up.output_shape == IMAGE


def test_initial_weights_are_drawn_as_torch_draws_them():
    params = weights(ConvNet("n", (3, 8, 8), (Layer("conv", 64), Layer("linear", 50))))
    assert params["n.0.weight"].abs().max() == pytest.approx((3 * 16) ** -0.5, rel=0.01)
    assert params["n.1.weight"].abs().max() == pytest.approx((64 * 16) ** -0.5, rel=0.01)


def test_after_settling_no_row_depends_on_its_batch():
    model = VAE.conv(IMAGE, latent_dim=3, architecture="orthogonality-faces")
    x = torch.rand(40, model.observed_dim)
    params = model.settle(model.init([0]), x)
    member = vs.models.Member(model, params)
    mean, _ = member.encode(x)
    alone, _ = member.encode(x[:1])
    torch.testing.assert_close(alone[0], mean[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(member.decode(mean[:1])[0], member.decode(mean)[0], atol=1e-5, rtol=1e-4)
    raw = model.encode(model.init([0]), x[None])  # by the batch, over the same rows: the same statistics
    torch.testing.assert_close(raw.mean[0], mean, atol=1e-4, rtol=1e-3)


def images(count=48):
    return torch.rand(1, count, 3 * 16 * 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("architecture", ["sprites", "orthogonality-faces"])
def test_members_train_one_after_another_as_they_would_alone(architecture):
    model = VAE.conv((3, 16, 16), latent_dim=2, architecture=architecture)
    specs = [MemberSpec(seed=0, precision=10.0), MemberSpec(seed=1, precision=10.0)]
    both = train(model, images(), images(16), specs, QUICK)
    alone = train(model, images(), images(16), specs[1:], QUICK)[0]
    assert both[1].history["elbo"] == pytest.approx(alone.history["elbo"])
    assert both[0].history["loss"][1] < both[0].history["loss"][0]
    assert both[0].encode(images()[0])[0].dtype == torch.float32
    assert both[0].encode(images()[0].double())[0].dtype == torch.float64


def test_a_batch_in_parts_is_the_batch():
    model = VAE(5, 2, hidden=(8,))
    data = torch.randn(1, 64, 5, generator=torch.Generator().manual_seed(1))
    settings = [TrainSettings(epochs=3, batch_size=16, accumulate=parts, compile="never") for parts in (1, 4)]
    whole, parts = (train(model, data, data, [MemberSpec(0)], s)[0] for s in settings)
    assert parts.history["loss"] == pytest.approx(whole.history["loss"], rel=1e-4)


def test_precision_rises_to_its_value():
    """With a warm-up that outlasts training, errors cost a hundredth to begin with."""
    model = VAE(5, 2, hidden=(8,))
    data = 10 * torch.randn(1, 64, 5, generator=torch.Generator().manual_seed(1))
    losses = [
        train(
            model,
            data,
            data,
            [MemberSpec(0, precision=100.0)],
            TrainSettings(epochs=1, precision_warmup=w, compile="never"),
        )[0].history["loss"][0]
        for w in (0, 10_000)
    ]
    assert losses[1] < 0.02 * losses[0]


def test_training_can_be_watched():
    seen = []

    def watch(epoch, member):
        seen.append((epoch, member.seed))
        return {"norm": float(member.params["decoder.0.weight"].norm())}

    data = torch.randn(1, 64, 5)
    members = train(VAE(5, 2), data, data, [MemberSpec(3), MemberSpec(4)], QUICK, watch=watch)
    assert seen == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert len(members[0].history["norm"]) == 2


@pytest.mark.parametrize(
    "model",
    [
        VAE(3, 2, hidden=(5,), prior=vs.Uniform(-1.0, 1.0), posterior="full"),
        VAE.conv((1, 16, 16), latent_dim=2, likelihood="bernoulli", prior=vs.Beta(2.0, 3.0)),
    ],
)
def test_a_described_model_can_be_rebuilt(model):
    again = rebuild(describe(model))
    assert type(again) is type(model)
    assert describe(again) == describe(model)
    assert {k: v.shape for k, v in again.init([0]).items()} == {k: v.shape for k, v in model.init([0]).items()}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: VAE.conv((3, 20, 20), latent_dim=2), "multiples of 16; got 20 x 20"),
        (lambda: VAE.conv((3, 32, 32), latent_dim=2, architecture="resnet"), "architecture must be one of sprites"),
        (lambda: TrainSettings(batch_size=10, accumulate=3), "accumulate must divide the batch size"),
        (lambda: TrainSettings(precision_warmup=-1), "precision_warmup must be >= 0"),
    ],
)
def test_bad_settings_are_refused(call, message):
    with pytest.raises(vs.InputError, match=message):
        call()


def test_what_is_no_description_is_refused():
    with pytest.raises(vs.RunError, match="not one of vaescope's"):
        rebuild({"kind": "mlp"})
    with pytest.raises(vs.RunError, match="cannot be kept as data"):
        describe(VAE(2, 2, decoder=lambda z: z))
