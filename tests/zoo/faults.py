"""Faults that are planted in a trained model by the way in which it is handed over."""

from __future__ import annotations

import torch

import vaescope as vs


def posterior(net):
    def encode(x):
        mean, logvar = net.encode(x)
        return mean, logvar.exp()

    return encode


def given(net, **change):
    """The model as its author would hand it over."""
    known = {"encode": posterior(net), "decode": net.decode, "latent_dim": net.latent, "networks": [net]}
    return vs.adapters.from_callables(**known | net.stated() | change)


def scale(net, name, **change):
    """Another quantity in the place of the variance."""
    functions = {
        "deviation": lambda s: (0.5 * s).exp(),
        "log-deviation": lambda s: 0.5 * s,
        "log-variance": lambda s: s,
        "precision": lambda s: (-s).exp(),
        "squared": lambda s: (2 * s).exp(),
    }

    def encode(x):
        mean, logvar = net.encode(x)
        return mean, functions[name](logvar)

    return given(net, encode=encode, **change)


def mixed(net, other, **change):
    """The encoder of one run with the decoder of another."""
    return given(net, decode=other.decode, networks=[net, other], **change)


DECODER = ("decoder", "fc3", "fc4", "lift", "up", "write", "out", "log_sigma")  # first parts of names of parameters


def train_encoder(late, sound, x):
    """Train a new encoder for the decoder of a sound model; stops while it still loses more than healthy ones do."""
    decoder = {name: value for name, value in sound.state_dict().items() if name.split(".")[0] in DECODER}
    late.load_state_dict(late.state_dict() | decoder)
    trained = [value for name, value in late.named_parameters() if name.split(".")[0] not in DECODER]
    optimiser, sample = torch.optim.Adam(trained, 1e-3), x[:256]
    limit = _loss(sound, sample) + 1.5 * amortization_bound(sound, sample)
    for step in range(20_000):
        if step % 5 == 0 and _loss(late, sample) < limit:
            break
        rows = x[torch.randint(len(x), (64,))]
        optimiser.zero_grad()
        (late.loss(rows) / len(rows)).backward()
        optimiser.step()


def _loss(net, x):
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        return float(net.loss(x)) / len(x)


def amortization_bound(net, x):
    """Nats that matter: one, twice the KL, and half the variation of losses between samples."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        mean, logvar = net.encode(x)
        kl = float(0.5 * (mean.square() + logvar.exp() - logvar - 1).sum(1).mean())
        losses = torch.tensor([float(net.loss(row[None])) for row in x])
    return max(1.0, 2 * kl, 0.5 * float(losses.std()))


def rotated(net, x, **change):
    """The latents in use, rotated by 45 degrees in pairs; the decoder undoes it."""
    with torch.no_grad():
        _, logvar = net.encode(x)
    order = logvar.mean(0).argsort()
    R = torch.eye(net.latent)
    for a, b in zip(order[::2].tolist(), order[1::2].tolist(), strict=False):
        R[a, a] = R[a, b] = R[b, b] = 0.5**0.5
        R[b, a] = -(0.5**0.5)

    def encode(x):
        mean, logvar = net.encode(x)
        return mean @ R.T, 1 / ((-logvar).exp() @ R.T.square())

    return given(net, encode=encode, decode=lambda z: net.decode(z @ R.to(z)), **change)


def autoencoder(net, variance, **change):
    """A deterministic code with a variance that somebody made up."""

    def encode(x):
        mean, _ = net.encode(x)
        return mean, torch.full_like(mean, variance)

    return given(net, encode=encode, **change)
