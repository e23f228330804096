"""Decoder derivatives: the columns of the Jacobian, in one pass and in bounded memory."""

import pytest
import torch

import vaescope as vs
from vaescope.analysis.encoding import differentiate, encode
from vaescope.core.errors import InputError
from vaescope.theory import jacobian

G = torch.Generator().manual_seed(0)
X = torch.randn(200, 4, generator=G)
M = torch.randn(7, 4, generator=G)


def curved(z):
    return torch.tanh(z @ M.T.to(z))


def sample_of(decode, **change):
    model = vs.adapters.from_callables(encode=lambda x: (x, 0.1 + 0 * x), decode=decode, latent_dim=4, **change)
    return encode(model, X)


def test_columns_and_norms_are_those_of_the_jacobian():
    found = differentiate(sample_of(curved), [2, 0])
    assert len(found.sample) == 128
    J = jacobian(curved, found.sample.mean)
    torch.testing.assert_close(found.columns, J[:, :, [2, 0]].double())
    torch.testing.assert_close(found.norms, J.norm(dim=1))
    torch.testing.assert_close(found.column_norm, J.double().square().sum(1).mean(0).sqrt())


def test_columns_are_kept_for_as_many_codes_as_fit(monkeypatch):
    monkeypatch.setattr("vaescope.analysis.encoding.ENTRIES", 20 * 7 * 2)
    monkeypatch.setattr("vaescope.analysis.encoding.CHUNK_ELEMENTS", 30 * 7)
    found = differentiate(sample_of(curved), [2, 0])
    assert found.columns.shape == (20, 7, 2)
    assert found.norms.shape == (128, 4)
    torch.testing.assert_close(found.columns, jacobian(curved, found.sample.mean[:20])[:, :, [2, 0]].double())


@pytest.mark.parametrize("detach", [lambda t: t.detach(), lambda t: torch.from_numpy(t.detach().numpy().copy())])
def test_other_decoders_are_differentiated_by_differences(detach):
    found = differentiate(sample_of(lambda z: detach(curved(z))), [2, 0])
    assert found.norms is None
    assert len(found.columns) == len(found.sample) == 16
    exact = jacobian(curved, found.sample.mean)[:, :, [2, 0]].double()
    torch.testing.assert_close(found.columns, exact, rtol=1e-2, atol=1e-3)
    with pytest.raises(InputError, match=r"detaches its output|computes in NumPy"):
        found.column_norm  # noqa: B018


def test_without_latents_there_are_no_differences():
    with pytest.raises(InputError, match="detaches its output"):
        differentiate(sample_of(lambda z: curved(z).detach()), [])
    assert differentiate(sample_of(curved), []).columns.shape == (128, 7, 0)
