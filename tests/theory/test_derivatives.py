"""Jacobians against reverse mode, contrasts against exact values, and decoders that cannot be differentiated."""

import pytest
import torch

import vaescope as vs
from vaescope.inference.derivatives import central_differences
from vaescope.theory import (
    column_norms,
    conformal_contrast,
    contrast_of_matrix,
    global_contrast,
    ima_contrast,
    jacobian,
)


def conv_decoder(dtype=torch.float64):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(3, 16),
        torch.nn.Unflatten(1, (4, 2, 2)),
        torch.nn.Tanh(),
        torch.nn.ConvTranspose2d(4, 2, 4, 2, 1),
    ).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_jacobian_agrees_with_reverse_mode_and_keeps_the_dtype(dtype):
    decoder, z = conv_decoder(dtype), torch.randn(5, 3, dtype=dtype)
    J = jacobian(decoder, z)
    expected = torch.vmap(torch.func.jacrev(lambda point: decoder(point.unsqueeze(0)).flatten()))(z)
    assert J.shape == (5, 2 * 4 * 4, 3)
    assert J.dtype == dtype
    torch.testing.assert_close(J, expected)
    torch.testing.assert_close(column_norms(decoder, z), expected.norm(dim=1))


def test_results_do_not_depend_on_chunks(monkeypatch):
    decoder, z = conv_decoder(), torch.randn(7, 3, dtype=torch.float64)
    at_once = ima_contrast(decoder, z)
    monkeypatch.setattr("vaescope.inference.derivatives.CHUNK_ELEMENTS", 200)
    torch.testing.assert_close(ima_contrast(decoder, z), at_once)


def test_one_pass_gives_the_columns_of_a_pass_per_latent(monkeypatch):
    decoder, z = conv_decoder(), torch.randn(7, 3, dtype=torch.float64)
    in_one_pass = jacobian(decoder, z)
    monkeypatch.setattr("vaescope.inference.derivatives.STACKED_ELEMENTS", 0)
    torch.testing.assert_close(jacobian(decoder, z), in_one_pass)


def test_small_jacobians_decode_once_and_large_ones_a_column_at_a_time(monkeypatch):
    calls = []

    def decoder(z):
        calls.append(len(z))
        return z.sin()

    z = torch.randn(10, 3, dtype=torch.float64)
    jacobian(decoder, z)
    assert calls[-1] == 30
    assert max(calls[:-1]) == 1  # the checks decode a single point
    monkeypatch.setattr("vaescope.inference.derivatives.STACKED_ELEMENTS", 0)
    calls.clear()
    jacobian(decoder, z)
    assert max(calls) == 10


def test_contrast_agrees_with_determinants():
    J = torch.randn(20, 6, 3, dtype=torch.float64)
    expected = J.norm(dim=1).log().sum(1) - 0.5 * torch.logdet(J.mT @ J)
    torch.testing.assert_close(contrast_of_matrix(J), expected)


def test_contrast_is_zero_for_orthogonal_columns_and_invariant_to_scaling():
    Q = torch.linalg.qr(torch.randn(8, 6, 3, dtype=torch.float64)).Q
    assert float(contrast_of_matrix(Q * torch.tensor([1e-3, 1.0, 1e4])).max()) < 1e-12
    J = torch.randn(8, 6, 3, dtype=torch.float64)
    torch.testing.assert_close(contrast_of_matrix(J * torch.tensor([3.0, 0.1, 7.0])), contrast_of_matrix(J))
    assert (contrast_of_matrix(J) > 0).all()


def test_rank_deficient_jacobians_have_infinite_contrast():
    column = torch.randn(5, 1, dtype=torch.float64)
    cases = [
        torch.cat([column, 2 * column], 1),
        torch.cat([column, 0 * column], 1),
        torch.randn(2, 3, dtype=torch.float64),
    ]
    for J in cases:
        assert float(contrast_of_matrix(J)) == torch.inf
    nearly = torch.tensor([[1.0, 1.0], [0.0, 1e-9]], dtype=torch.float64)
    assert float(contrast_of_matrix(nearly)) == pytest.approx(20.723, abs=1e-3)  # -log 1e-9


def test_global_contrast_is_the_mean_of_local_ones():
    decoder, z = conv_decoder(), torch.randn(50, 3, dtype=torch.float64)
    local = ima_contrast(decoder, z).detach()
    value, stderr = global_contrast(decoder, z)  # of a network that tracks gradients
    assert value == pytest.approx(float(local.mean()))
    assert stderr == pytest.approx(float(local.std()) / 50**0.5)
    assert abs(value - float(contrast_of_matrix(jacobian(decoder, z).detach().mean(0)))) > 1e-3


def test_conformal_contrast_distinguishes_conformal_from_orthogonal():
    z = vs.Uniform(-0.5, 0.5).sample(20, 3, generator=torch.Generator().manual_seed(0))
    assert float(conformal_contrast(vs.data.mixings.Moebius(3, seed=0), z).max()) < 1e-12
    stretched = conformal_contrast(lambda p: p * torch.tensor([1.0, 2.0, 4.0]), z)
    norms = torch.tensor([1.0, 4.0, 16.0], dtype=torch.float64)
    torch.testing.assert_close(stretched, (1.5 * norms.mean().log() - 0.5 * norms.log().sum()).expand(20))


class NoForwardMode(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return z * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@pytest.mark.parametrize(
    ("decoder", "z", "message"),
    [
        (lambda z: z.sum(), torch.zeros(3, 2), "decoder must map"),
        (lambda z: 1.0, torch.zeros(3, 2), "decoder must map"),
        (lambda z: z / 0, torch.zeros(3, 2), "decoder returned NaN"),
        (NoForwardMode.apply, torch.zeros(3, 2), "must support forward-mode differentiation"),
        (lambda z: z, torch.zeros(3), "z must be a floating-point tensor"),
        (lambda z: z, torch.zeros(3, 2, dtype=torch.int64), "z must be a floating-point tensor"),
        (lambda z: z, torch.tensor([[torch.nan]]), "z must be finite"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_errors_name_the_argument(decoder, z, message):
    with pytest.raises(vs.InputError, match=message):
        jacobian(decoder, z)


def test_decoders_with_attention():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 12, dtype=torch.float64, generator=generator)

    def decode(z):
        tokens = (z @ weight).reshape(len(z), 1, 3, 4)
        return torch.nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)

    z = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    expected = central_differences(decode, z, torch.full((3,), 1e-5, dtype=torch.float64))
    torch.testing.assert_close(jacobian(decode, z), expected, rtol=1e-6, atol=1e-8)
    best = vs.theory.project(decode, decode(z), precision=1e6, start=z)
    offset = vs.theory.mean_offset(decode, z, precision=1e6)
    torch.testing.assert_close(best.mean - z, offset, rtol=0.02, atol=1e-8)


def test_a_decoder_that_is_constant_around_the_first_point_is_differentiated():
    """Networks of ReLUs have such points, most of all early in training."""

    def decoder(z):
        return torch.relu(z - 0.5)

    z = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    torch.testing.assert_close(vs.theory.jacobian(decoder, z), torch.stack([torch.zeros(2, 2), torch.eye(2)]))


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_decoders(kind):
    """oneDNN's LSTM in float32 has no forward mode; reverse mode is the independent implementation."""
    torch.manual_seed(0)
    cell, out = kind(3, 8, batch_first=True), torch.nn.Linear(8, 1)

    def decode(z):
        return out(cell(z[:, None].expand(-1, 6, -1))[0]).squeeze(2)

    z, enabled = torch.randn(5, 3), torch.backends.mkldnn.enabled
    reverse = torch.autograd.functional.jacobian(lambda v: decode(v).sum(0), z).movedim(1, 0)
    torch.testing.assert_close(jacobian(decode, z), reverse, rtol=1e-4, atol=1e-5)
    assert torch.backends.mkldnn.enabled == enabled
