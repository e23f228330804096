"""Models of strangers: random choices of data, network, likelihood, training and declaration, and at most one fault.

`python -m tests.zoo.strangers --half development --count 60` draws, trains, certifies and diagnoses models, and prints
scores; what is there already is not made again. Conditions are certified by force, not by intention: every model is
trained on for longer, every fault is undone, and bounds on held-out samples are compared. Data sets, likelihoods and
networks of the scored half that the development half does not have are listed first in `HALVES`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from sklearn import datasets
from torch import nn

import vaescope as vs

VERSION = "5"  # of choices, networks and training: another one when they change
FOLDER = Path(os.environ.get("VAESCOPE_STRANGERS", Path.home() / ".cache" / "vaescope-strangers")) / VERSION
BUDGET = 10.0  # seconds of a diagnosis
SECONDS = 16.0  # of training, after which a model is not trained on

HALVES = {
    "development": {
        "data": ("digits", "cancer", "mixture", "waves", "topics", "bumps", "roll"),
        "network": ("mlp", "deep", "conv", "gru"),
        "likelihood": ("gaussian", "learned", "bernoulli", "poisson"),
    },
    "scored": {
        "data": ("petals", "sugar", "arm", "walks", "cells", "stripes", "tokens", "letters", "tide"),
        "network": ("residual", "lstm", "wide", "batchnorm", "mlp", "conv"),
        "likelihood": ("gaussian", "learned", "bernoulli", "laplace", "student", "negative-binomial", "categorical"),
    },
}


# data -----------------------------------------------------------------------------------------


def _images(draw: Callable[[np.random.Generator], np.ndarray], count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([draw(rng) for _ in range(count)])[:, None].astype(np.float32)


def _bump(rng: np.random.Generator, side: int = 10) -> np.ndarray:
    y, x = np.mgrid[:side, :side]
    (a, b), width = rng.uniform(2, side - 3, 2), rng.uniform(1.0, 2.2)
    return np.clip(np.exp(-((y - a) ** 2 + (x - b) ** 2) / (2 * width**2)) + 0.02 * rng.normal(size=(side, side)), 0, 1)


def _stripe(rng: np.random.Generator, side: int = 12) -> np.ndarray:
    y, x = np.mgrid[:side, :side] / side
    angle, phase = rng.uniform(0, np.pi), rng.uniform(0, 2 * np.pi)
    return (np.sin(8 * (np.cos(angle) * x + np.sin(angle) * y) + phase) > rng.uniform(-0.3, 0.3)).astype(float)


def _letter(rng: np.random.Generator, side: int = 12) -> np.ndarray:
    """A bar, an L, a T or a cross at a random place."""
    image, kind = np.zeros((side, side)), rng.integers(4)
    a, b, length = *rng.integers(1, 5, 2), rng.integers(4, 7)
    image[a : a + length, b] = 1
    if kind:
        image[a + (length - 1, 0, length // 2)[kind - 1], b : b + length - 1] = 1
    return np.clip(0.9 * image + rng.uniform(0, 0.1, image.shape), 0, 1)


def _mixture(seed: int, count: int, columns: int, clusters: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres, maps = rng.normal(size=(clusters, columns)) * 2, rng.normal(size=(clusters, 3, columns))
    which = rng.integers(clusters, size=count)
    return (
        centres[which]
        + np.einsum("nk,nkj->nj", rng.normal(size=(count, 3)), maps[which])
        + 0.3 * rng.normal(size=(count, columns))
    )


def _counts(seed: int, count: int, genes: int, dispersion: float | None) -> np.ndarray:
    rng = np.random.default_rng(seed)
    loadings, codes = 0.6 * rng.normal(size=(3, genes)), rng.normal(size=(count, 3))
    rate = np.exp(codes @ loadings + rng.normal(1.0, 0.5, genes))
    return rng.poisson(rate if dispersion is None else rate * rng.gamma(dispersion, 1 / dispersion, rate.shape))


def _tokens(seed: int, count: int, length: int = 16, words: int = 10) -> np.ndarray:
    """Markov chains with one of a few transition matrices."""
    rng = np.random.default_rng(seed)
    tables = rng.dirichlet(np.full(words, 0.15), size=(6, words))
    rows = []
    for _ in range(count):
        table, word = tables[rng.integers(6)], rng.integers(words)
        row = [word := rng.choice(words, p=table[word]) for _ in range(length)]
        rows.append(row)
    return np.array(rows)


def _series(seed: int, count: int, length: int, kind: str) -> np.ndarray:
    rng, t = np.random.default_rng(seed), np.linspace(0, 1, length)
    if kind == "waves":
        f, p, a = rng.uniform(1, 3, (count, 1)), rng.uniform(0, 6.3, (count, 1)), rng.uniform(0.5, 1.5, (count, 1))
        return a * np.sin(2 * np.pi * f * t + p) + 0.1 * rng.normal(size=(count, length))
    if kind == "walks":
        return np.cumsum(rng.normal(size=(count, length)), 1) / 3 + 0.1 * rng.normal(size=(count, length))
    level, high = rng.normal(size=(count, 1)), rng.uniform(0.2, 0.8, (count, 1))
    return np.tanh(8 * (t - high)) + level + 0.15 * rng.normal(size=(count, length))


def _arm(seed: int, count: int) -> np.ndarray:
    """Positions of the joints of a robot arm with three angles."""
    rng = np.random.default_rng(seed)
    angles = np.cumsum(rng.normal(0, 0.7, (count, 3)), 1)
    joints = np.cumsum(np.stack([np.cos(angles), np.sin(angles)], 2), 1).reshape(count, -1)
    views = joints @ rng.normal(size=(6, 14)) + 0.05 * rng.normal(size=(count, 14))
    return views / views.std(0)


def _patches(side: int = 8, count: int = 1600) -> np.ndarray:
    image = datasets.load_sample_image("flower.jpg").mean(2) / 255
    rng = np.random.default_rng(5)
    corners = rng.integers(0, (image.shape[0] - side, image.shape[1] - side), (count, 2))
    return np.stack([image[a : a + side, b : b + side] for a, b in corners])[:, None]


def _roll(count: int) -> np.ndarray:
    points = datasets.make_swiss_roll(count, noise=0.3, random_state=0)[0]
    return _standard(points @ np.random.default_rng(0).normal(size=(3, 8)))


def _standard(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / x.std(0)


SOURCES: dict[str, tuple[str, Callable[[], np.ndarray]]] = {
    "digits": ("image", lambda: datasets.load_digits().images[:, None] / 16),
    "cancer": ("table", lambda: _standard(datasets.load_breast_cancer().data)),
    "mixture": ("table", lambda: _mixture(1, 1500, 12, 4)),
    "waves": ("series", lambda: _series(2, 1500, 24, "waves")),
    "topics": ("counts", lambda: _counts(3, 1500, 30, None)),
    "bumps": ("image", lambda: _images(_bump, 1500, 4)),
    "roll": ("table", lambda: _roll(1500)),
    "petals": ("image", _patches),
    "sugar": ("table", lambda: _standard(datasets.load_diabetes().data)),
    "arm": ("table", lambda: _arm(6, 1500)),
    "walks": ("series", lambda: _series(7, 1500, 20, "walks")),
    "cells": ("counts", lambda: _counts(8, 1500, 40, 2.0)),
    "stripes": ("image", lambda: _images(_stripe, 1500, 9)),
    "tokens": ("tokens", lambda: _tokens(10, 1500)),
    "letters": ("image", lambda: _images(_letter, 1500, 11)),
    "tide": ("series", lambda: _series(12, 1500, 18, "tide")),
}  # fmt: skip


@cache
def load(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Training and test samples."""
    x = torch.from_numpy(np.asarray(SOURCES[name][1](), dtype=np.float32))
    x = x[torch.from_numpy(np.random.default_rng(0).permutation(len(x)))]
    return x[: -len(x) // 4], x[-len(x) // 4 :]


# models ---------------------------------------------------------------------------------------


class Heads(nn.Module):
    """Means and log-variances from features."""

    def __init__(self, body: nn.Module, features: int, latent: int):
        super().__init__()
        self.body, self.mean, self.logvar = body, nn.Linear(features, latent), nn.Linear(features, latent)

    def forward(self, x):
        h = self.body(x)
        return self.mean(h), self.logvar(h)


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, h):
        return h + self.layers(h)


class Reader(nn.Module):
    """A recurrent encoder; the last state."""

    def __init__(self, kind: type[nn.RNNBase], length: int, width: int):
        super().__init__()
        self.length, self.cell = length, kind(1, width, batch_first=True)

    def forward(self, x):
        return self.cell(x.reshape(len(x), self.length, -1))[0][:, -1]


class Writer(nn.Module):
    """A recurrent decoder that reads the code and the time at every step."""

    def __init__(self, kind: type[nn.RNNBase], length: int, latent: int, width: int, outputs: int):
        super().__init__()
        self.length, self.cell, self.out = length, kind(latent + 1, width, batch_first=True), nn.Linear(width, outputs)

    def forward(self, z):
        time = torch.linspace(-1, 1, self.length).to(z).reshape(1, -1, 1).expand(len(z), -1, 1)
        h = self.cell(torch.cat([z.unsqueeze(1).expand(-1, self.length, -1), time], 2))[0]
        return self.out(h).flatten(1)


def _dense(kind: str, inputs: int, outputs: int, width: int, activation: type[nn.Module]) -> nn.Sequential:
    if kind == "residual":
        return nn.Sequential(nn.Linear(inputs, width), Residual(width), Residual(width), nn.Linear(width, outputs))
    if kind == "batchnorm":
        hidden = [nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(*hidden, nn.Linear(width, outputs))
    depth = {"mlp": 1, "wide": 1, "deep": 2}[kind]
    layers: list[nn.Module] = [nn.Linear(inputs, width), activation()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), activation()]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def _convolutions(side: int, latent: int, width: int, per_pixel: int) -> tuple[nn.Module, nn.Module, int]:
    small = math.ceil(side / 2)
    down = nn.Sequential(nn.Conv2d(1, width, 4, 2, 1 + side % 2), nn.ReLU(), nn.Flatten())
    features = int(down(torch.zeros(1, 1, side, side)).shape[1])
    up = nn.Sequential(
        nn.Linear(latent, width * small * small), nn.ReLU(), nn.Unflatten(1, (width, small, small)),
        nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, per_pixel, 3, 1, 1), nn.Flatten(),
    )  # fmt: skip
    return down, up, features


class Net(nn.Module):
    """A VAE; `decoder` returns the parameters of the likelihood before they are made positive."""

    def __init__(self, s: Stranger):
        super().__init__()
        x = load(s.data)[0]
        kind, size = SOURCES[s.data][0], x[0].numel()
        words = int(x.max()) + 1 if kind == "tokens" else 1
        self.words, self.likelihood, self.latent = words, s.likelihood, s.latent
        if s.network in ("gru", "lstm"):
            cell = nn.GRU if s.network == "gru" else nn.LSTM
            self.encoder = Heads(Reader(cell, size, s.width), s.width, s.latent)
            self.decoder = Writer(cell, size, s.latent, s.width, words)
        elif s.network == "conv":
            down, self.decoder, features = _convolutions(x.shape[2], s.latent, max(8, s.width // 4), 1)
            self.encoder = Heads(down, features, s.latent)
        else:
            activation = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU}[s.activation]
            body = _dense(s.network, size * words if words > 1 else size, s.width, s.width, activation)
            self.encoder = Heads(nn.Sequential(nn.Flatten(), body, nn.SiLU()), s.width, s.latent)
            self.decoder = _dense(s.network, s.latent, size * words, s.width, activation)
        if s.likelihood in ("learned", "laplace", "student"):
            self.log_scale = nn.Parameter(torch.zeros(()))
        elif s.likelihood == "negative-binomial":
            self.log_scale = nn.Parameter(torch.zeros(size))
        self.scale = s.noise
        self.floor = -1 - 3 * s.strength if s.fault == "clamp" else -30.0  # of log-variances
        self.twice = s.fault == "sigmoid-trained"
        """Whether the decoder applies a sigmoid to probabilities."""

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and log-variance."""
        if self.words > 1:
            x = F.one_hot(x.long(), self.words).to(self.encoder.mean.weight.dtype)
        elif self.likelihood in ("poisson", "negative-binomial"):
            x = x.log1p()
        mean, logvar = self.encoder(x)
        return mean, logvar.clamp(self.floor, 30.0)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        """The mean of x; of tokens, the probabilities."""
        raw = self.decoder(z)
        if self.likelihood == "bernoulli":
            return raw.sigmoid().sigmoid() if self.twice else raw.sigmoid()
        if self.likelihood in ("poisson", "negative-binomial"):
            return raw.clamp(max=12).exp()
        return raw.reshape(len(z), -1, self.words).softmax(2) if self.words > 1 else raw

    def log_p(self, x: torch.Tensor, z: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        """log p(x|z) of each row; with probabilities taken for logits, if wanted."""
        raw, x = self.decoder(z), x.flatten(1)
        raw = raw.sigmoid() if self.twice or twice else raw
        if self.likelihood == "categorical":
            logits = raw.reshape(len(x), -1, self.words).movedim(2, 1)
            return -F.cross_entropy(logits, x.long(), reduction="none").sum(1)
        x = x.to(raw)
        if self.likelihood == "bernoulli":
            return -F.binary_cross_entropy_with_logits(raw, x, reduction="none").sum(1)
        if self.likelihood == "poisson":
            return (x * raw.clamp(max=12) - raw.clamp(max=12).exp() - torch.lgamma(x + 1)).sum(1)
        if self.likelihood == "negative-binomial":
            r, m = self.log_scale.exp().to(raw), raw.clamp(max=12)
            log_total = torch.logaddexp(m, self.log_scale.to(raw))
            value = torch.lgamma(x + r) - torch.lgamma(r) - torch.lgamma(x + 1)
            return (value + r * (self.log_scale - log_total) + x * (m - log_total)).sum(1)
        if self.likelihood == "laplace":
            return -((x - raw).abs() / self.log_scale.exp() + self.log_scale + math.log(2)).sum(1)
        if self.likelihood == "student":  # with five degrees of freedom
            constant = math.lgamma(3.0) - math.lgamma(2.5) - 0.5 * math.log(5 * math.pi)
            scaled = ((x - raw) / self.log_scale.exp()).square()
            return (constant - self.log_scale - 3.0 * torch.log1p(scaled / 5)).sum(1)
        log_scale = self.log_scale if self.likelihood == "learned" else torch.tensor(math.log(self.scale))
        return -(0.5 * ((x - raw) / log_scale.exp()).square() + log_scale + 0.5 * math.log(2 * math.pi)).sum(1)

    def bound(self, x: torch.Tensor, beta: float = 1.0, fault: str = "", epsilon: float = 1.0) -> torch.Tensor:
        """The ELBO of each row with one draw, and with the faults of a loss."""
        mean, logvar = self.encode(x)
        deviation = logvar.exp() if fault == "sampling" else epsilon * (0.5 * logvar).exp()
        fit = self.log_p(x, mean + deviation * torch.randn_like(mean), twice=fault == "logits")
        return fit - beta * 0.5 * (mean.square() + logvar.exp() - logvar - 1).sum(1)


# choices --------------------------------------------------------------------------------------

FAULTS = {
    "none": 0.43,
    "beta-high": 0.04,  # weight 4 to 12 of the KL
    "beta-low": 0.04,  # 1/12 to 1/50
    "half": 0.05,  # the KL has no factor of one half
    "pixel-mean": 0.04,  # the reconstruction term is averaged over numbers
    "latent-mean": 0.03,  # the KL is averaged over latents
    "deviation": 0.04,  # encode returns standard deviations
    "sampling": 0.04,  # std = exp(log-variance)
    "epsilon": 0.05,  # draws with 0.03 to 0.3 of the standard deviation
    "clamp": 0.05,  # log-variances are at least -1 to -4
    "sigmoid": 0.03,  # applied to probabilities that are handed over
    "sigmoid-trained": 0.03,  # applied to probabilities in training too
    "logits": 0.03,  # probabilities are taken for logits by the loss
    "inputs": 0.04,  # x scaled otherwise than in training
    "mixed": 0.03,  # the decoder of another run
    "precision": 0.03,  # stated 30 times too high or too low
}
EXPECTED = {
    "beta-high": {"beta-high", "collapsed"},
    "beta-low": {"beta-low"},
    "half": {"beta-high", "collapsed"},
    "pixel-mean": {"collapsed", "beta-high"},
    "latent-mean": {"beta-low"},
    "deviation": {"scale-of-variance"},
    "sampling": {"sampling-noise"},
    "epsilon": {"sampling-noise"},
    "clamp": {"clamped-variance"},
    "sigmoid": {"sigmoid-twice"},
    "sigmoid-trained": {"sigmoid-twice"},
    "logits": {"sigmoid-twice"},
    "inputs": {"reconstruction", "data-range", "scale of x"},
    "mixed": {"reconstruction"},
    "precision": {"decoder-variance", "beta-high", "beta-low"},  # the same model, with the stated variance for right
}
LOSSES = {"beta-high", "beta-low", "half", "pixel-mean", "latent-mean", "sampling", "epsilon", "clamp"}
LOSSES |= {"sigmoid-trained", "logits"}
"""Faults of training, which are certified by training without them."""
"""First findings that name the cause of a fault."""


@dataclass(frozen=True)
class Stranger:
    """Choices of one model."""

    half: str
    index: int
    data: str
    network: str
    likelihood: str
    width: int
    latent: int
    activation: str
    rate: float
    batch: int
    share: float
    """Of all steps after which it is handed over."""
    noise: float
    """Standard deviation of a Gaussian likelihood that is not learned."""
    declaration: str
    fault: str
    strength: float
    """Of the fault, in [0, 1]."""
    with_train: bool
    anneal: bool
    """Whether the learning rate falls to zero before it is handed over, and at the end of training on."""

    @property
    def name(self) -> str:
        return f"{self.half}-{self.index:03d}"

    @property
    def steps(self) -> tuple[int, int]:
        """Steps after which the model is handed over, and with training on for longer."""
        most = {"conv": 3600, "gru": 2400, "lstm": 2400}.get(self.network, 4500)
        handed = max(20, round(self.share * most))
        return handed, most if self.share == 1 / 3 else max(1000, 5 * handed)

    @property
    def beta(self) -> float:
        """The weight of the KL in training."""
        size = load(self.data)[0][0].numel()
        return {
            "beta-high": 4.0 * 3.0**self.strength,
            "half": 2.0,
            "beta-low": 1 / (12 * 4.0**self.strength),
            "pixel-mean": float(size),
            "latent-mean": 1 / self.latent,
        }.get(self.fault, 1.0)


def draw(half: str, index: int) -> Stranger:
    """The choices of model `index` of a half."""
    rng, choices = np.random.default_rng([ord(half[0]), index]), HALVES[half]
    fault, possible = str(rng.choice(list(FAULTS), p=list(FAULTS.values()))), False
    while not possible:  # with this fault
        data = str(rng.choice(choices["data"]))
        kind = SOURCES[data][0]
        fitting = {
            "image": ("gaussian", "learned", "bernoulli", "laplace"),
            "counts": ("poisson", "negative-binomial"),
            "tokens": ("categorical",),
        }.get(kind, ("gaussian", "learned", "laplace", "student"))
        likelihood = str(rng.choice([name for name in choices["likelihood"] if name in fitting]))
        latent = int(rng.integers(2, 9))
        possible = {
            **dict.fromkeys(("sigmoid", "sigmoid-trained", "logits"), likelihood == "bernoulli"),
            "precision": likelihood in ("gaussian", "learned"),
            "inputs": kind in ("image", "table", "series"),
            "latent-mean": latent >= 5,
        }.get(fault, True)
    fitting = {"image": ("conv",), "series": ("gru", "lstm")}.get(kind, ())
    networks = [n for n in choices["network"] if n not in ("conv", "gru", "lstm") or n in fitting]
    network = str(rng.choice(networks))
    width = int(rng.choice([128, 256] if network == "wide" else [16, 32, 64, 96]))
    named = {"gaussian": ["precision"], "learned": ["precision"], "bernoulli": ["bernoulli"]}.get(likelihood, [])
    others = ["log_likelihood"] if likelihood == "categorical" else ["decode and log_likelihood", "log_likelihood"]
    stated = ("sigmoid", "sigmoid-trained", "logits", "precision", "inputs", "mixed", "sampling", "deviation")
    if fault in stated and named:
        others = []  # these faults are about what is declared
    share = float(np.exp(rng.uniform(np.log(0.01), np.log(0.12)))) if rng.random() < 0.45 else 1 / 3
    long = share == 1 / 3 or fault != "none"
    rates = [3e-3, 6e-3, 1e-2] if long and network not in ("gru", "lstm") else [1e-3, 2e-3, 4e-3]
    return Stranger(
        half, index, data, network, likelihood, width, latent, str(rng.choice(["relu", "tanh", "silu"])),
        float(rng.choice(rates)), int(rng.choice([32, 64, 128])), 1 / 3 if long else share,
        float(rng.choice([0.1, 0.2, 0.5])), str(rng.choice(named * 2 + others)),
        fault, float(rng.random()), bool(rng.random() < 0.3), bool(rng.random() < 0.5 and long),
    )  # fmt: skip


# training and certificates ----------------------------------------------------------------------


@torch.enable_grad()
def train(s: Stranger, *, right: bool = False, seed: int = 0, seconds: float = SECONDS) -> tuple[dict, list[tuple]]:
    """Weights of the model that is handed over, and (step, bound on test samples, its error) of training on.

    The number of steps is that of the time there is; weights do not depend on it otherwise.
    """
    torch.manual_seed(1000 * s.index + seed)
    net, (x, test) = Net(replace(s, fault="none") if right else s), load(s.data)
    optimiser = torch.optim.Adam(net.parameters(), s.rate, fused=True)
    epsilon = 10 ** (-0.5 - s.strength) if s.fault == "epsilon" else 1.0
    options = {} if right else {"beta": s.beta, "fault": s.fault, "epsilon": epsilon}
    (handed, total), step, started = s.steps, 0, time.process_time()
    if right or s.fault != "none":
        total = handed
    marks = sorted({handed, *np.unique(np.geomspace(handed, total, 6).astype(int)).tolist(), *[handed // 2]})
    weights, curve = {}, []
    while step < total:
        for rows in torch.randperm(len(x)).split(s.batch):
            loss = -net.bound(x[rows], **options).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step += 1
            if s.anneal:
                left = (handed - step) / (0.3 * handed) if step < handed else (total - step) / (0.3 * total)
                optimiser.param_groups[0]["lr"] = s.rate * min(1.0, max(0.0, left))
            if step == handed:
                weights = {k: v.detach().clone() for k, v in net.state_dict().items()}
            if step in marks:
                curve.append((step, *bound_of(net, test)))
                net.train()
            if step >= total:
                break
        if step > handed and time.process_time() - started > seconds:
            curve.append((step, *bound_of(net, test)))
            break
    return weights, curve


@torch.no_grad()
def bound_of(net: Net, test: torch.Tensor, draws: int = 8) -> tuple[float, float]:
    """Mean ELBO of test samples and the spread between them."""
    net.eval()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        values = torch.stack([net.bound(test) for _ in range(draws)]).mean(0)
    return float(values.mean()), float(values.std())


def made(s: Stranger) -> tuple[Net, dict]:
    """The trained model with what is known about it; from the cache if it is there."""
    file = FOLDER / f"{s.name}-{hashlib.sha256(repr(s).encode()).hexdigest()[:10]}.safetensors"
    if not file.with_suffix(".json").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        started = time.process_time()
        weights, curve = train(s)
        known: dict[str, object] = {"curve": curve}
        others: dict[str, torch.Tensor] = {}
        if s.fault in LOSSES:
            known["right"] = train(s, right=True)[1]
        if s.fault == "mixed":
            others, known["other"] = train(s, seed=1)
        known["seconds"] = time.process_time() - started
        save_file(
            {k: v.contiguous() for k, v in weights.items()} | {f"other.{k}": v.contiguous() for k, v in others.items()},
            file,
        )
        file.with_suffix(".json").write_text(json.dumps(known))
    net, stored = Net(s), load_file(file)
    net.load_state_dict({k: v for k, v in stored.items() if not k.startswith("other.")})
    known = json.loads(file.with_suffix(".json").read_text())
    if s.fault == "mixed":
        other = Net(s)
        other.load_state_dict({k[6:]: v for k, v in stored.items() if k.startswith("other.")})
        known["net"] = other.eval()
    return net.eval(), known


def handed_over(s: Stranger) -> tuple[object, torch.Tensor, dict, Net]:
    """Model, samples and further arguments as its author passes them."""
    net, known = made(s)
    x_train, x = load(s.data)
    decoding: Net = known.get("net", net)

    def encode(x):
        mean, logvar = net.encode(x)
        return mean, (0.5 * logvar).exp() if s.fault == "deviation" else logvar.exp()

    def decode(z):
        return decoding.decode(z).sigmoid() if s.fault == "sigmoid" else decoding.decode(z)

    stated: dict[str, object] = {"encode": encode, "latent_dim": s.latent, "networks": list({net, decoding})}
    if s.declaration != "log_likelihood":
        stated["decode"] = decode
    if s.declaration == "precision":
        precision = 1 / s.noise**2 if s.likelihood == "gaussian" else float((-2 * net.log_scale.detach()).exp())
        stated["precision"] = precision * ((30.0 if s.strength < 0.5 else 1 / 30) if s.fault == "precision" else 1)
    elif s.declaration == "bernoulli":
        stated["likelihood"] = "bernoulli"
    else:
        stated["log_likelihood"] = decoding.log_p
    if s.fault == "inputs":
        kind = SOURCES[s.data][0]
        x = x * 16 if kind == "image" else 3 * x + 2
    return vs.adapters.from_callables(**stated), x, {"train": x_train} if s.with_train else {}, net


@torch.no_grad()
def certify(s: Stranger) -> tuple[str, str]:
    """What is true of the model, and how that was measured.

    `healthy` (converged, and no fault), `not-converged`, a fault, or `none of these`, which is not scored.
    """
    net, known = made(s)
    test, curve = load(s.data)[1], known["curve"]
    mean, logvar = net.encode(test)
    kl = 0.5 * (mean.square() + logvar.exp() - logvar - 1).mean(0)
    handed = next(row for row in curve if row[0] == s.steps[0])
    total = float(kl.sum())
    if not math.isfinite(total) or not math.isfinite(handed[1]):
        return "none of these", "diverged"
    if s.fault == "none":
        later = max(curve, key=lambda row: row[1])
        gain = later[1] - handed[1]
        scale = max(0.5, 0.075 * total)
        measured = f"KL {total:.3g}; trained {curve[-1][0] / handed[0]:.1f} times as long: {gain:+.2f} nats"
        earlier = max(row[1] for row in curve if row[0] <= handed[0]) - handed[1]
        if gain >= 2 * scale and later[0] > handed[0]:
            return "not-converged", measured
        if total < 0.1:
            return "collapsed", measured
        wide = float((kl < 0.02).double().mean())
        if gain > scale or earlier > scale or wide >= 0.5 or total < 0.6 or curve[-1][0] < 2.5 * handed[0]:
            return "none of these", f"{measured}; earlier {earlier:+.2f}; {wide:.0%} of latents unused"
        return "healthy", measured
    if "right" in known:
        gain = known["right"][-1][1] - handed[1]
        measured = f"KL {total:.3g}; with the fault corrected {gain:+.2f} nats"
        return (s.fault if gain >= max(1.0, 0.05 * total) else "none of these"), measured
    if total < 0.6:
        return "none of these", f"KL {total:.3g}"
    model, x, _, _ = handed_over(s)
    own = _bound_as_given(model, net if s.fault != "mixed" else known["net"], x if s.fault == "inputs" else test, s)
    lost = handed[1] - own
    return (s.fault if lost >= max(1.0, 0.05 * total) else "none of these"), f"KL {total:.3g}; costs {lost:.3g} nats"


def _bound_as_given(model, net: Net, x: torch.Tensor, s: Stranger, draws: int = 8) -> float:
    """The ELBO with what encode returns taken for variances, and x as it is passed."""
    if s.fault == "precision":
        return -math.inf  # a stated number; nothing to measure
    if s.fault == "sigmoid":
        return -math.inf
    mean, variance = model.encode(x)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fits = torch.stack([net.log_p(x, mean + variance.sqrt() * torch.randn_like(mean)) for _ in range(draws)])
    return float((fits.mean(0) - 0.5 * (mean.square() + variance - variance.log() - 1).sum(1)).mean())


# scores -----------------------------------------------------------------------------------------


def diagnose(s: Stranger) -> dict[str, object]:
    """A row of the table of results."""
    condition, measured = certify(s)
    model, x, more, _ = handed_over(s)
    started = time.process_time()
    try:
        findings = vs.diagnose(model, x, budget=BUDGET, progress=None, **more).findings
        codes = [f.code for f in findings if f.severity != "note"]
    except vs.InputError as error:  # one line that says what is wrong with x is an answer too
        findings, codes = [], ["scale of x" if "check the scale of x" in str(error) else "refused"]
    return {
        "name": s.name, "data": s.data, "network": s.network, "likelihood": s.likelihood, "fault": s.fault,
        "declaration": s.declaration, "condition": condition, "measured": measured, "findings": codes,
        "notes": [f.code for f in findings if f.severity == "note"],
        "verdict": verdict(condition, codes), "seconds": round(time.process_time() - started, 1),
    }  # fmt: skip


def verdict(condition: str, codes: list[str]) -> str:
    """right, wrong (another cause is named first), silent, false alarm, or not scored.

    >>> verdict("healthy", []), verdict("not-converged", ["aggregate"]), verdict("mixed", [])
    ('right', 'wrong', 'silent')
    """
    if condition == "none of these":
        return "not scored"
    if condition == "healthy":
        return "false alarm" if codes else "right"
    if not codes:
        return "silent"
    return "right" if codes[0] in EXPECTED.get(condition, {condition}) else "wrong"


def summary(rows: list[dict]) -> dict[str, object]:
    """Counts of verdicts by kind of model, and shares."""
    scored = [row for row in rows if row["verdict"] != "not scored"]
    kinds = {row["condition"] for row in scored}
    table = {kind: dict(Counter(r["verdict"] for r in scored if r["condition"] == kind)) for kind in sorted(kinds)}
    faulty = [row for row in scored if row["condition"] != "healthy"]
    healthy = [row for row in scored if row["condition"] == "healthy"]

    def share(rows: list[dict], value: str) -> float | None:
        return round(sum(r["verdict"] == value for r in rows) / len(rows), 3) if rows else None

    return {
        "models": len(rows), "not_scored": len(rows) - len(scored), "healthy": len(healthy), "faulty": len(faulty),
        "healthy_with_a_warning": share(healthy, "false alarm"), "right": share(faulty, "right"),
        "wrong": share(faulty, "wrong"), "silent": share(faulty, "silent"), "by_condition": table,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=list(HALVES), default="development")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--train-only", action="store_true", help="make models and certificates, diagnose nothing")
    parser.add_argument("--out", type=Path, help="write rows and scores as JSON")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows: list[dict] = []
    for index in range(given.first, given.first + given.count):
        s = draw(given.half, index)
        what = f"{s.name} {s.data}/{s.network}/{s.likelihood}, {s.declaration}"
        if given.train_only:
            print(what, s.fault, *certify(s), f"{made(s)[1]['seconds']:.1f} s", flush=True)
            continue
        rows.append(row := diagnose(s))
        found = f"{row['findings']} {row['notes']} ({row['measured']}; {row['seconds']} s)"
        print(f"{row['verdict']:11s} {row['condition']:14s} {what}: {found}", flush=True)
    if rows:
        print(json.dumps(summary(rows), indent=1))
    if given.out and rows:
        given.out.write_text(json.dumps({"scores": summary(rows), "models": rows}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
