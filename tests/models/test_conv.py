"""Convolutional networks against PyTorch's own layers, and convolutional VAEs from weights to training."""

import pytest
import torch
from torch import nn

import vaescope as vs
from vaescope.models import VAE, ConvNetworks, FixedMaps, Member
from vaescope.models.architectures import ARCHITECTURES, ConvNet, Layer
from vaescope.training import MemberSpec, TrainSettings, train

IMAGE_SHAPE = (3, 32, 32)
QUICK = TrainSettings(epochs=2, batch_size=8, compile="never")


def weights(network, seed=0):
    return network.init(torch.Generator().manual_seed(seed))


def torch_network(network, params):
    """The same layers from torch.nn, with the same weights."""
    modules = []
    for index, sized in enumerate(network.sized_layers()):
        layer = sized.layer
        weight, bias = (params[f"{network.name}.{index}.{kind}"] for kind in ("weight", "bias"))
        if layer.kind == "linear":
            module = nn.Linear(weight.shape[1], weight.shape[0])
            modules.append(nn.Flatten())
        else:
            cls = nn.Conv2d if layer.kind == "conv" else nn.ConvTranspose2d
            module = cls(sized.input_shape[0], layer.outputs, layer.kernel, layer.stride, layer.padding)
            is_reshaped = network.reshape is not None and index == network.reshape[0]
            modules.append(nn.Unflatten(1, sized.input_shape) if is_reshaped else nn.Identity())
            weight = weight.permute(0, 3, 1, 2)
        module.load_state_dict({"weight": weight, "bias": bias})
        modules.append(module)
        if layer.norm:
            norm = nn.BatchNorm1d if layer.kind == "linear" else nn.BatchNorm2d
            modules.append(norm(sized.output_shape[0], momentum=1.0))
        if layer.relu:
            modules.append(nn.ReLU())
    return nn.Sequential(*modules)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_networks_equal_torch_networks(name):
    encoder = ARCHITECTURES[name].encoder("e", IMAGE_SHAPE, 8)
    decoder = ARCHITECTURES[name].decoder("d", IMAGE_SHAPE, 4)
    x, z = torch.rand(6, 3 * 32 * 32), torch.randn(6, 4)
    for network, rows, shape in ((encoder, x, IMAGE_SHAPE), (decoder, z, (4,))):
        params = weights(network)
        expected = torch_network(network, params)(rows.reshape(6, *shape)).flatten(1)
        torch.testing.assert_close(network.one(params, rows), expected, atol=1e-5, rtol=1e-4)
    assert decoder.output_shape == IMAGE_SHAPE


def test_initial_weights_have_the_range_of_torch():
    params = weights(ConvNet("n", (3, 8, 8), (Layer("conv", 64), Layer("linear", 50))))
    assert params["n.0.weight"].abs().max() == pytest.approx((3 * 16) ** -0.5, rel=0.01)
    assert params["n.1.weight"].abs().max() == pytest.approx((64 * 16) ** -0.5, rel=0.01)


def test_with_frozen_batch_norm_no_row_depends_on_its_batch():
    model = VAE.conv(IMAGE_SHAPE, latent_dim=3, architecture="orthogonality-faces")
    x = torch.rand(40, model.observed_dim)
    member = Member(model, model.freeze_batch_norm(model.init([0]), x))
    mean, _ = member.encode(x)
    alone, _ = member.encode(x[:1])
    torch.testing.assert_close(alone[0], mean[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(member.decode(mean[:1])[0], member.decode(mean)[0], atol=1e-5, rtol=1e-4)
    by_batch = model.encode(model.init([0]), x[None])  # the statistics of this batch are the frozen ones
    torch.testing.assert_close(by_batch.mean[0], mean, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("part", ["encoder_input", "decoder"])
def test_batch_norm_is_frozen_with_fixed_maps(part):
    """Statistics belong to the inputs after the fixed map; a fixed decoder has none."""
    fixed = {
        "encoder_input": FixedMaps(encoder_input=lambda x: 3 * x - 1),
        "decoder": FixedMaps(decoder=lambda z: z.repeat_interleave(128, -1)),
    }[part]
    model = VAE.conv((1, 16, 16), latent_dim=2, architecture="orthogonality-faces", fixed=fixed)
    x = torch.rand(40, model.observed_dim)
    params = model.freeze_batch_norm(model.init([0]), x)
    mean, _ = Member(model, params).encode(x)
    torch.testing.assert_close(model.encode(model.init([0]), x[None]).mean[0], mean, atol=1e-4, rtol=1e-3)


def images(count=48):
    return torch.rand(1, count, 3 * 16 * 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("architecture", ["sprites", "orthogonality-faces"])
def test_members_train_one_after_another_as_if_alone(architecture):
    model = VAE.conv((3, 16, 16), latent_dim=2, architecture=architecture)
    specs = [MemberSpec(seed=0, precision=10.0), MemberSpec(seed=1, precision=10.0)]
    both = train(model, images(), images(16), specs, QUICK)
    alone = train(model, images(), images(16), specs[1:], QUICK)[0]
    assert both[1].history["elbo"] == pytest.approx(alone.history["elbo"])
    assert both[0].history["loss"][1] < both[0].history["loss"][0]
    assert both[0].encode(images()[0])[0].dtype == torch.float32
    assert both[0].encode(images()[0].double())[0].dtype == torch.float64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: VAE.conv((3, 20, 20), latent_dim=2), "multiples of 16, got 20 x 20"),
        (lambda: VAE.conv((3, 32, 32), 2, architecture="resnet"), "architecture must be one of sprites"),
        (lambda: VAE.conv((3, 32), latent_dim=2), r"image_shape must be \(channels, height, width\)"),
        (lambda: VAE(100, 2, ConvNetworks((1, 16, 16))), "have 256 values, got observed_dim 100"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_settings_are_refused(call, message):
    with pytest.raises(vs.InputError, match=message):
        call()
