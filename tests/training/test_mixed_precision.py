"""bfloat16: only convolutional networks use it, everything else stays in float32, and results agree."""

import pytest
import torch

from vaescope.models import VAE
from vaescope.training import MemberSpec, TrainSettings, train
from vaescope.training.compilation import has_bfloat16

CONV = VAE.conv((1, 16, 16), 2, likelihood="bernoulli")
SPECS = [MemberSpec(seed=0)]


def images(rows: int) -> torch.Tensor:
    """Bright squares at random places."""
    generator = torch.Generator().manual_seed(0)
    corner = torch.randint(0, 10, (rows, 2), generator=generator)
    grid = torch.arange(16)
    inside = [(grid >= c[:, None]) & (grid < c[:, None] + 6) for c in corner.T]
    return (inside[0][:, :, None] & inside[1][:, None, :]).float().reshape(1, rows, 256)


def run(mixed_precision: str, model: VAE = CONV, x: torch.Tensor | None = None):
    x = images(256) if x is None else x
    settings = TrainSettings(epochs=4, batch_size=32, compile="never", mixed_precision=mixed_precision)
    return train(model, x[:, :192], x[:, 192:], SPECS, settings)[0]


def test_convolutional_training_agrees_with_float32():
    exact, mixed = run("never"), run("always")
    assert all(value.dtype == torch.float32 for value in mixed.params.values())
    assert not torch.equal(exact.params["encoder.0.weight"], mixed.params["encoder.0.weight"])
    gain = exact.history["elbo"][-1] - exact.history["elbo"][0]
    assert gain > 20
    assert mixed.best_elbo == pytest.approx(exact.best_elbo, abs=0.1 * gain)


def test_stacks_do_not_use_it():
    x = torch.randn(1, 128, 3, generator=torch.Generator().manual_seed(0))
    exact, mixed = (run(kind, VAE.mlp(3, 2), x) for kind in ("never", "always"))
    assert all(torch.equal(exact.params[name], mixed.params[name]) for name in exact.params)


def test_auto_uses_it_only_with_instructions_for_it():
    expected = run("always" if has_bfloat16(torch.device("cpu")) else "never")
    found = run("auto")
    assert all(torch.equal(expected.params[name], found.params[name]) for name in expected.params)
