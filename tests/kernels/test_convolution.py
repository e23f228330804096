"""Convolutions in bfloat16 against PyTorch's in float32, for all sizes that have a kernel; gradients; the fallback."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from vaescope.core.errors import InputError
from vaescope.kernels import convolution
from vaescope.kernels.convolution import (
    Downsample,
    Upsample,
    WeightGradient,
    downsample,
    has_kernel,
    upsample,
    weight_gradient,
)
from vaescope.models import VAE
from vaescope.models.conv import ConvNet, Layer

needs_kernels = pytest.mark.skipif(not convolution.is_available(), reason="no AVX512-BF16 or no compiler here")
SIZES = [(3, 32, 64, 64), (1, 32, 32, 32), (32, 32, 32, 32), (32, 64, 16, 16), (64, 64, 8, 8), (64, 64, 4, 4)]


def arrays(fine: int, coarse: int, height: int, width: int, images: int = 5) -> tuple[torch.Tensor, ...]:
    """A fine and a coarse image and weights, exact in bfloat16."""
    generator = torch.Generator().manual_seed(fine + coarse + height + width)
    shapes = (images, fine, height, width), (images, coarse, height // 2, width // 2), (coarse, 4, 4, fine)
    x, g, weight = (torch.randn(shape, generator=generator).bfloat16().float() for shape in shapes)
    return x, g, weight


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    return float((found.float() - expected).abs().max() / expected.abs().max()) < tolerance


ROUNDED, SUMMED = 2**-8, 1e-5  # a result in bfloat16; a sum in float32


def check_all(fine: int, coarse: int, height: int, width: int, images: int = 5) -> None:
    """Every kernel against PyTorch's in float32."""
    assert has_kernel((fine, height, width), coarse)
    x, g, weight = arrays(fine, coarse, height, width, images)
    kernels = weight.permute(0, 3, 1, 2).clone().requires_grad_()
    output = F.conv2d(x, kernels, None, 2, 1)
    (gradient,) = torch.autograd.grad(output, kernels, g)
    assert close(downsample(x.bfloat16(), weight), output.detach(), ROUNDED)
    assert close(upsample(g.bfloat16(), weight), F.conv_transpose2d(g, kernels.detach(), None, 2, 1), ROUNDED)
    assert close(weight_gradient(x.bfloat16(), g.bfloat16()), gradient.permute(0, 2, 3, 1), SUMMED)


@needs_kernels
@pytest.mark.parametrize("sizes", SIZES)
def test_kernels_agree_with_float32(sizes):
    check_all(*sizes)


@needs_kernels
@given(
    fine=st.sampled_from([1, 2, 3, 4, 32, 64, 96]),
    coarse=st.sampled_from([32, 64, 96]),
    height=st.integers(1, 11),
    width=st.integers(1, 19),
    images=st.integers(1, 4),
)
@settings(max_examples=60)
def test_kernels_agree_for_every_size(fine, coarse, height, width, images):
    check_all(fine, coarse, 2 * height, 4 * width if fine <= 4 else 2 * width, images)


@needs_kernels
def test_many_images_are_summed_in_parts():
    check_all(32, 32, 32, 32, images=70)


@needs_kernels
@pytest.mark.parametrize("images", [2, 9, 64])
def test_bits_do_not_depend_on_the_number_of_threads(images):
    x, g, weight = arrays(32, 64, 16, 16, images=images)
    x, g = x.bfloat16(), g.bfloat16()
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 1, 2, 3):  # sometimes fewer images than threads
            torch.set_num_threads(threads)
            found.append((weight_gradient(x, g), upsample(g, weight)))
    finally:
        torch.set_num_threads(before)
    for gradient, fine in found[1:]:
        assert torch.equal(gradient, found[0][0])
        assert torch.equal(fine, found[0][1])


@needs_kernels
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_any_layout_in_memory(layout):
    x, g, weight = arrays(3, 32, 16, 16)
    expected = weight_gradient(x.bfloat16(), g.bfloat16()), upsample(g.bfloat16(), weight)
    x, g = (value.bfloat16().contiguous(memory_format=layout) for value in (x, g))
    assert torch.equal(weight_gradient(x, g), expected[0])
    assert torch.equal(upsample(g, weight.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)), expected[1])


def plain_weight_gradient(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """The gradient of the weights by PyTorch's differentiable operations."""
    columns = F.unfold(x, 4, padding=1, stride=2).unflatten(1, (x.shape[1], 16))
    return torch.einsum("nckl,nol->okc", columns, g.flatten(2)).unflatten(1, (4, 4))


OPERATIONS = {  # inputs, and the same function by PyTorch
    Downsample: ((0, 2), lambda x, w: F.conv2d(x, w.permute(0, 3, 1, 2), None, 2, 1)),
    Upsample: ((1, 2), lambda g, w: F.conv_transpose2d(g, w.permute(0, 3, 1, 2), None, 2, 1)),
    WeightGradient: ((0, 1), plain_weight_gradient),
}


def own_and_exact(operation):
    """A non-linear function of an operation's inputs, with our kernels and in float64, and the inputs."""
    places, exact = OPERATIONS[operation]
    values = arrays(32, 64, 8, 8)
    inputs = tuple(values[place] / 30 for place in places)

    def own(first, second):
        second = second if places[1] == 2 else second.bfloat16()  # weights are float32
        return operation.apply(first.bfloat16(), second).float().tanh().square().sum()

    return own, lambda first, second: exact(first, second).tanh().square().sum(), inputs


@needs_kernels
@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_gradients_are_those_of_the_convolution(operation):
    own, exact, inputs = own_and_exact(operation)
    expected = torch.func.grad(exact, (0, 1))(*(value.double() for value in inputs))
    found = torch.func.grad(own, (0, 1))(*inputs)
    assert all(close(f, e, 0.05) for f, e in zip(found, expected, strict=True))
    assert found[1].dtype == torch.float32


@needs_kernels
@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_second_derivatives_are_not_zero(operation):
    own, exact, inputs = own_and_exact(operation)

    def squared_slope(function):
        return lambda *values: sum(g.square().sum() for g in torch.func.grad(function, (0, 1))(*values))

    expected = torch.func.grad(squared_slope(exact), (0, 1))(*(value.double() for value in inputs))
    found = torch.func.grad(squared_slope(own), (0, 1))(*inputs)
    assert all(close(f, e, 0.1) for f, e in zip(found, expected, strict=True))


@needs_kernels
def test_the_gradient_of_an_input_is_computed_only_if_it_is_used(monkeypatch):
    x, _, weight = arrays(32, 32, 8, 8)
    monkeypatch.setattr(convolution, "upsample", lambda *_: pytest.fail("computed the gradient of the input"))
    gradient = torch.func.grad(lambda w: Downsample.apply(x.bfloat16(), w).float().square().sum())(weight)
    assert gradient.abs().sum() > 0


@needs_kernels
def test_operations_keep_the_rules_of_pytorch():
    x, g, weight = (value.bfloat16() for value in arrays(32, 64, 8, 8))
    for operation, inputs in (("downsample", (x, weight)), ("upsample", (g, weight)), ("weight_gradient", (x, g))):
        torch.library.opcheck(getattr(torch.ops.vaescope, operation).default, inputs)


@needs_kernels
def test_sizes_that_do_not_match_are_refused():
    x, g, weight = arrays(3, 32, 8, 8)
    for bad in (weight[:16], weight[:, :3], weight.repeat(1, 1, 1, 2)):
        with pytest.raises(InputError, match="no kernel for a fine image"):
            upsample(g.bfloat16(), bad)
    with pytest.raises(InputError, match="no kernel for a fine image"):
        weight_gradient(x[:3].bfloat16(), g.bfloat16())
    with pytest.raises(InputError, match=r"must be bfloat16, got torch\.bfloat16 and torch\.float32"):
        upsample(g, weight)


@needs_kernels
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 32, 32)])
def test_networks_agree_with_and_without_kernels(shape, monkeypatch):
    model = VAE.conv(shape, 3)
    params = model.init([0])
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 16, model.observed_dim, generator=generator)
    called = []
    monkeypatch.setattr(
        convolution, "_call", lambda name, *rest, _call=convolution._call: (called.append(name), _call(name, *rest))
    )

    def gradients():
        def loss(params):
            with torch.autocast("cpu", torch.bfloat16):
                output = model.decoder_output(params, model.encode(params, x).mean)
            return (output - x).square().sum()

        called.clear()
        return torch.func.grad(loss)(params)

    with_kernels = gradients()
    assert called.count("vaescope_upsample") == 7  # four layers of the decoder, three inputs of the encoder
    assert called.count("vaescope_weight_gradient") == 8
    monkeypatch.setattr(convolution, "_library", lambda: None)
    without = gradients()
    assert not called
    for name, expected in without.items():
        assert close(with_kernels[name], expected, 0.05), name


COMPILED_STEP = """
import torch
from torch.profiler import ProfilerActivity, profile
from vaescope.models import VAE
from vaescope.objectives import beta_elbo
from vaescope.training.compilation import _compile
from vaescope.training.step import adam_scales, make_step

model = VAE.conv((1, 16, 16), 3)
generator = torch.Generator().manual_seed(0)
rest = adam_scales(1, 1e-3, torch.device("cpu")), torch.rand(1, 8, 256, generator=generator), torch.zeros(1, 8, 3)
found = []
for compiled in (True, False):
    params = model.init([0])
    moments = tuple({name: torch.zeros_like(value) for name, value in params.items()} for _ in range(2))
    step = make_step(model, beta_elbo, autocast="cpu")
    step = _compile(step, unchecked=True) if compiled else step  # fails if it is not one graph
    step(params, moments, *rest, torch.ones(1), torch.ones(1))
    found.append({name: value.clone() for name, value in moments[0].items()})
    with profile(activities=[ProfilerActivity.CPU]) as record:
        step(params, moments, *rest, torch.ones(1), torch.ones(1))
    calls = {event.key: event.count for event in record.key_averages()}
    print(calls.get("vaescope::upsample"), calls.get("vaescope::weight_gradient"))
first, second = (torch.cat([value.flatten() for value in one.values()]) for one in found)
print(float((first - second).norm() / second.norm()))
"""


@needs_kernels
def test_a_step_with_kernels_is_compiled_as_one_graph():
    # in a process without checks of array shapes, which the compiler cannot see through
    done = subprocess.run([sys.executable, "-c", COMPILED_STEP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    compiled, eager, difference = done.stdout.splitlines()
    assert compiled == eager == "7 8"
    assert float(difference) < 0.05


def test_other_precisions_use_pytorch(monkeypatch):
    monkeypatch.setattr(convolution, "has_kernel", lambda *_: pytest.fail("asked for a kernel"))
    net = ConvNet("n", (3, 16, 16), (Layer("conv", 32),))
    params = {name: value[None] for name, value in net.init(torch.Generator().manual_seed(0)).items()}
    with torch.autocast("cpu", torch.float16):
        assert net(params, torch.rand(1, 2, 768)).isfinite().all()
    assert net(params, torch.rand(1, 2, 768)).isfinite().all()


def test_other_sizes_have_no_kernel():
    assert not has_kernel((3, 16, 14), 32)
    assert not has_kernel((16, 16, 16), 32)
    assert not has_kernel((32, 16, 16), 48)
    assert not has_kernel((32, 15, 16), 32)
    assert not has_kernel((0, 16, 16), 32)
    assert not has_kernel((32, 0, 16), 32)


def test_other_convolutions_use_pytorch(monkeypatch):
    monkeypatch.setattr(convolution, "has_kernel", lambda *_: pytest.fail("asked for a kernel"))
    net = ConvNet("n", (3, 16, 16), (Layer("conv", 32, kernel=3, stride=1),))
    params = {name: value[None] for name, value in net.init(torch.Generator().manual_seed(0)).items()}
    with torch.autocast("cpu", torch.bfloat16):
        assert net(params, torch.rand(1, 2, 768)).isfinite().all()


def test_amx_is_faster_than_the_kernels(monkeypatch):
    monkeypatch.setattr(convolution, "cpu_supports", lambda name: True)
    monkeypatch.setattr(convolution, "load_library", lambda *_: pytest.fail("compiled kernels"))
    assert convolution._library.__wrapped__() is None


@pytest.mark.parametrize("missing", ["avx512_bf16", "compiler"])
def test_without_instructions_or_a_compiler_there_are_no_kernels(missing, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if missing == "compiler":
        monkeypatch.setattr("shutil.which", lambda name: None)
    else:
        monkeypatch.setattr(convolution, "cpu_supports", lambda name: False)
    assert convolution._library.__wrapped__() is None
