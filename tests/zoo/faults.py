"""Faults that are planted in a trained model by the way in which it is handed over."""

from __future__ import annotations

import copy

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


def noisy_encoder(
    net, amount, decoder_parts=("decoder", "fc3", "fc4", "lift", "up", "write", "out", "log_sigma"), **change
):
    """Noise on the weights of the encoder."""
    worse = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in worse.named_parameters():
            if name.split(".")[0] not in decoder_parts:
                value.add_(
                    amount * value.std() * torch.randn(value.shape, generator=generator) if value.numel() > 1 else 0
                )
    return given(worse, **change)


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
