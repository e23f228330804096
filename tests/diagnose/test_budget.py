"""The budget of a diagnosis holds for slow decoders, by a clock that only decoding moves."""

import time

import pytest
import torch

import vaescope as vs


@pytest.fixture(autouse=True)
def _no_time_limit_on_a_busy_machine():
    """Limits hold here, by another clock."""


class Clock:
    """Seconds that are spent by decoding alone."""

    now = 0.0

    def __call__(self):
        return self.now


def slow(clock, seconds_per_code, latents, columns=12):
    """A nearly linear decoder that takes so many seconds for each code, and samples."""
    generator = torch.Generator().manual_seed(0)
    W, precision = torch.randn(columns, latents, generator=generator), 20.0
    variance = 1 / (1 + 2 * precision * W.square().sum(0))

    def decode(z):
        clock.now += seconds_per_code * len(z)
        return z @ W.T.to(z) + 0.3 * torch.tanh(z @ W.T.to(z))

    model = vs.adapters.from_callables(
        encode=lambda x: (0.8 * precision * (x.float() @ W) * variance, variance.expand(len(x), -1)),
        decode=decode,
        latent_dim=latents,
        precision=precision,
    )
    x = (
        decode(torch.randn(800, latents, generator=generator))
        + torch.randn(800, columns, generator=generator) / 20**0.5
    )
    return model, x


@pytest.mark.parametrize(("seconds", "latents"), [(1e-5, 8), (1e-3, 2), (1e-3, 10), (2e-3, 5)])
def test_a_diagnosis_ends_in_its_budget(monkeypatch, seconds, latents):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    model, x = slow(clock, seconds, latents)
    clock.now = 0.0
    found = vs.diagnose(model, x[400:], train=x[:400], budget=30.0, progress=None)
    assert clock.now <= 31
    if seconds == 1e-5:
        assert "gap" not in found.skipped
        assert len(found.sample) == 400
    if latents == 10:
        assert len(found.sample) < 400  # fewer samples are decoded, and all are encoded
        assert found.samples == 400
