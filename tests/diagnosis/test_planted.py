"""Planted faults are found, each by its name, over twenty seeds; healthy models get no warning."""

from dataclasses import replace

import pytest
import torch

import vaescope as vs
from vaescope.models import VAE
from vaescope.training import MemberSpec, NoProgress, TrainSettings, train

SEEDS = 20
MISSES = 1  # of twenty
PRECISION = 100.0
TURN = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64) / 2**0.5


def observations(seed, samples=2600):
    """Two factors of different strength in six dimensions, bent, with noise of the precision above."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(samples, 2, generator=generator, dtype=torch.float64)
    frame = torch.linalg.qr(torch.randn(6, 2, generator=generator, dtype=torch.float64))[0]
    h = z @ (frame * torch.tensor([3.0, 1.0])).T
    noise = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    return (h + 0.3 * torch.sin(h) + noise / PRECISION**0.5).float()


DATA = torch.stack([observations(seed) for seed in range(SEEDS)])
TRAIN, VALIDATION, TEST = DATA[:, :2000], DATA[:, 2000:2200], DATA[:, 2200:]
SETTINGS = TrainSettings(batch_size=64, learning_rate=4e-3, patience=200, compile="never")


@pytest.fixture(scope="module")
def trained():
    """Members by what is wrong with them, a list of seeds each."""
    found = {}
    for name, beta, epochs in (("healthy", 1.0, 120), ("beta", 20.0, 30), ("collapsed", 3000.0, 10)):
        specs = [MemberSpec(seed, precision=PRECISION, beta=beta, data=seed) for seed in range(SEEDS)]
        settings = replace(SETTINGS, epochs=epochs)
        found[name] = train(VAE.mlp(6, 2, hidden=(30, 30)), TRAIN, VALIDATION, specs, settings, progress=NoProgress())
    return found


def with_idle(member, more):
    """The same model with latents that nobody listens to, their posteriors almost at the prior."""

    def encode(x):
        mean, variance = member.encode(x)
        moved = 0.01 * mean[:, :1].expand(-1, more)
        return torch.cat([mean, moved], dim=1), torch.cat([variance, torch.full_like(moved, 0.99)], dim=1)

    return vs.adapters.from_callables(
        encode=encode, decode=lambda z: member.decode(z[:, :2]), latent_dim=2 + more, precision=member.precision
    )


def rotated(member):
    """Latents turned by 45°: the likelihood is the same. The best diagonal posterior then has the turned precisions."""

    def encode(x):
        mean, variance = member.encode(x)
        return mean @ TURN.to(mean).T, 1 / (1 / variance @ (TURN.to(mean) ** 2).T)

    return vs.adapters.from_callables(
        encode=encode, decode=lambda u: member.decode(u @ TURN.to(u)), latent_dim=2, precision=member.precision
    )


def log_variances(member):
    def encode(x):
        mean, variance = member.encode(x)
        return mean, variance.log()

    return vs.adapters.from_callables(encode=encode, decode=member.decode, latent_dim=2, precision=member.precision)


def undertrained(member):
    """The encoder's weights are off, its decoder's are not."""
    generator = torch.Generator().manual_seed(member.seed)
    params = {
        name: value * (1 + 0.15 * torch.randn(value.shape, generator=generator)) if "encoder" in name else value
        for name, value in member.params.items()
    }
    return replace(member, params=params)


FAULTS = {
    "collapsed": ("collapsed", lambda m: m),
    "dead-latent": ("healthy", lambda m: with_idle(m, 1)),
    "over-wide": ("healthy", lambda m: with_idle(m, 4)),
    "rotated": ("healthy", rotated),
    "decoder-variance": ("healthy", lambda m: replace(m, precision=100 * PRECISION)),
    "decoder-variance, too large": ("healthy", lambda m: replace(m, precision=PRECISION / 100)),
    "beta-high": ("beta", lambda m: replace(m, beta=1.0)),
    "amortisation": ("healthy", undertrained),
    "log-variance": ("healthy", log_variances),
}


def codes(model, seed):
    return [f.code for f in vs.diagnose(model, TEST[seed]).findings if f.severity != "note" or f.code == "dead-latent"]


def test_a_healthy_model_gets_no_warning(trained):
    alarms = [found for seed, member in enumerate(trained["healthy"]) if (found := codes(member, seed))]
    assert len(alarms) <= MISSES, alarms


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_its_name_and_nothing_else_is(trained, fault):
    which, spoil = FAULTS[fault]
    found = [codes(spoil(member), seed) for seed, member in enumerate(trained[which])]
    wanted = [fault.split(",")[0]]
    assert sum(f == wanted for f in found) >= SEEDS - MISSES, found
