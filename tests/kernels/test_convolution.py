"""Convolutions in bfloat16 against PyTorch's in float32, for all sizes that have a kernel; gradients; the fallback."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from vaescope.kernels import convolution
from vaescope.kernels.convolution import Downsample, Upsample, downsample, is_fast, upsample, weight_gradient
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
    assert is_fast((fine, height, width), coarse)
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
@settings(max_examples=60, deadline=None)
def test_kernels_agree_for_every_size(fine, coarse, height, width, images):
    check_all(fine, coarse, 2 * height, 4 * width if fine <= 4 else 2 * width, images)


@needs_kernels
def test_many_images_are_summed_in_parts():
    check_all(32, 32, 32, 32, images=70)


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check_all(3, 32, 16, 16, images=2)  # fewer images than threads, too
    finally:
        torch.set_num_threads(before)


@needs_kernels
def test_repeats_to_the_same_bits():
    x, g, weight = (value.bfloat16() for value in arrays(32, 64, 16, 16, images=64))
    assert torch.equal(weight_gradient(x, g), weight_gradient(x, g))
    assert torch.equal(upsample(g, weight.float()), upsample(g, weight.float()))


@needs_kernels
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_any_layout_in_memory(layout):
    x, g, weight = arrays(3, 32, 16, 16)
    expected = weight_gradient(x.bfloat16(), g.bfloat16()), upsample(g.bfloat16(), weight)
    x, g = (value.bfloat16().contiguous(memory_format=layout) for value in (x, g))
    assert torch.equal(weight_gradient(x, g), expected[0])
    assert torch.equal(upsample(g, weight.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)), expected[1])


@needs_kernels
@pytest.mark.parametrize(("operation", "inputs"), [(Downsample, (0, 2)), (Upsample, (1, 2))])
def test_gradients_are_those_of_the_convolution(operation, inputs):
    values = arrays(32, 64, 8, 8)
    first, weight = (values[i] for i in inputs)
    convolve = F.conv2d if operation is Downsample else F.conv_transpose2d

    def exact(first, weight):
        return convolve(first, weight.permute(0, 3, 1, 2), None, 2, 1).tanh().sum()

    def own(first, weight):
        return operation.apply(first.bfloat16(), weight).float().tanh().sum()

    expected = torch.func.grad(exact, (0, 1))(first / 30, weight)
    found = torch.func.grad(own, (0, 1))(first / 30, weight)
    assert all(close(f, e, 0.03) for f, e in zip(found, expected, strict=True))
    assert found[1].dtype == torch.float32


@needs_kernels
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 32, 32)])
def test_networks_agree_with_and_without_kernels(shape, monkeypatch):
    model = VAE.conv(shape, 3)
    params = model.init([0])
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 16, model.observed_dim, generator=generator)

    def reconstruct(params):
        with torch.autocast("cpu", torch.bfloat16):
            return model.decoder_output(params, model.encode(params, x).mean)

    with_kernels = torch.func.grad(lambda p: (reconstruct(p) - x).square().sum())(params)
    monkeypatch.setattr(convolution, "_library", lambda: None)
    without = torch.func.grad(lambda p: (reconstruct(p) - x).square().sum())(params)
    for name, expected in without.items():
        assert close(with_kernels[name], expected, 0.05), name


def test_other_sizes_have_no_kernel():
    assert not is_fast((3, 16, 14), 32)
    assert not is_fast((16, 16, 16), 32)
    assert not is_fast((32, 16, 16), 48)
    assert not is_fast((32, 15, 16), 32)


def test_other_convolutions_use_pytorch(monkeypatch):
    monkeypatch.setattr(convolution, "is_fast", lambda *_: pytest.fail("asked for a kernel"))
    net = ConvNet("n", (3, 16, 16), (Layer("conv", 32, kernel=3, stride=1),))
    params = {name: value[None] for name, value in net.init(torch.Generator().manual_seed(0)).items()}
    with torch.autocast("cpu", torch.bfloat16):
        assert net(params, torch.rand(1, 2, 768)).isfinite().all()
    net = ConvNet("n", (3, 16, 16), (Layer("conv", 32),))  # in float32
    params = {name: value[None] for name, value in net.init(torch.Generator().manual_seed(0)).items()}
    assert net(params, torch.rand(1, 2, 768)).isfinite().all()


@pytest.mark.parametrize("missing", ["avx512_bf16", "compiler"])
def test_without_instructions_or_a_compiler_there_are_no_kernels(missing, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if missing == "compiler":
        monkeypatch.setattr("shutil.which", lambda name: None)
    else:
        monkeypatch.setattr(convolution, "cpu_supports", lambda name: False)
    assert convolution._library.__wrapped__() is None
