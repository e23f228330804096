"""Variational autoencoders as people write them: plain PyTorch, convolutional, recurrent and Lightning."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def kl(mu, logvar):
    return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


def gaussian(x, output, log_sigma):
    return torch.sum(0.5 * ((x - output) / log_sigma.exp()) ** 2 + log_sigma + 0.5 * math.log(2 * math.pi))


class Losses:
    """The loss of a batch, summed: a learned noise (`sigma`), half the squared error (`mse`) or a cross-entropy."""

    def reparameterize(self, mu, logvar):
        return mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)

    def loss(self, x, beta=1.0):
        mu, logvar = self.encode(x)
        z = mu if beta == 0 else self.reparameterize(mu, logvar)
        output = self.decode(z)
        if self.kind == "bce":
            error = F.binary_cross_entropy(output.clamp(1e-6, 1 - 1e-6), x, reduction="sum")
        elif self.kind == "mse":
            error = 0.5 * F.mse_loss(output, x, reduction="sum") / self.variance
        else:
            error = gaussian(x, output, self.log_sigma)
        return error + beta * kl(mu, logvar)

    def stated(self):
        """What its author would say about the likelihood."""
        if self.kind == "bce":
            return {"likelihood": "bernoulli"}
        return {
            "precision": 1 / self.variance if self.kind == "mse" else float(torch.exp(-2 * self.log_sigma.detach()))
        }

    def _noise(self, kind, variance):
        self.kind, self.variance = kind, variance
        if kind == "sigma":
            self.log_sigma = nn.Parameter(torch.zeros(()))


class ExampleVAE(nn.Module, Losses):
    """After the example of the PyTorch repository."""

    def __init__(self, inputs, latent, hidden=128, kind="bce", variance=1.0):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc21 = nn.Linear(hidden, latent)
        self.fc22 = nn.Linear(hidden, latent)
        self.fc3 = nn.Linear(latent, hidden)
        self.fc4 = nn.Linear(hidden, inputs)
        self.latent = latent
        self._noise(kind, variance)

    def encode(self, x):
        h = F.relu(self.fc1(x.flatten(1)))
        return self.fc21(h), self.fc22(h)

    def decode(self, z):
        output = self.fc4(F.relu(self.fc3(z)))
        return torch.sigmoid(output) if self.kind == "bce" else output

    def loss(self, x, beta=1.0):
        return Losses.loss(self, x.flatten(1), beta)


class DeepVAE(nn.Module, Losses):
    """Two hidden layers with normalisation and dropout in the encoder."""

    def __init__(self, inputs, latent, hidden=64, kind="sigma", variance=1.0, dropout=0.0):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(inputs, hidden), nn.LayerNorm(hidden), nn.SiLU(), nn.Dropout(dropout),
            nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 2 * latent),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, inputs)
        )
        self.latent = latent
        self._noise(kind, variance)

    def encode(self, x):
        return self.encoder(x.flatten(1)).chunk(2, dim=1)

    def decode(self, z):
        output = self.decoder(z)
        return torch.sigmoid(output) if self.kind == "bce" else output

    def loss(self, x, beta=1.0):
        return Losses.loss(self, x.flatten(1), beta)


class LinearVAE(nn.Module, Losses):
    """Probabilistic principal components, amortised; one posterior variance per latent."""

    def __init__(self, inputs, latent, kind="sigma", variance=1.0):
        super().__init__()
        self.mean, self.out = nn.Linear(inputs, latent), nn.Linear(latent, inputs)
        self.logvar = nn.Parameter(torch.zeros(latent))
        self.latent = latent
        self._noise(kind, variance)

    def encode(self, x):
        mu = self.mean(x.flatten(1))
        return mu, self.logvar.expand_as(mu)

    def decode(self, z):
        return self.out(z)


class ConvVAE(nn.Module, Losses):
    """Strided convolutions; images in, images out."""

    def __init__(self, image, latent, width=16, kind="bce", variance=1.0):
        super().__init__()
        channels, side = image[0], image[1] // 4
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.mu, self.logvar = (nn.Linear(2 * width * side * side, latent) for _ in range(2))
        self.lift = nn.Linear(latent, 2 * width * side * side)
        self.up = nn.Sequential(
            nn.ReLU(), nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(width, channels, 4, 2, 1),
        )  # fmt: skip
        self.shape, self.latent = (2 * width, side, side), latent
        self._noise(kind, variance)

    def encode(self, x):
        h = self.features(x)
        return self.mu(h), self.logvar(h)

    def decode(self, z):
        output = self.up(self.lift(z).reshape(-1, *self.shape))
        return torch.sigmoid(output) if self.kind == "bce" else output


class GRUVAE(nn.Module, Losses):
    """Sequences (N, T): a recurrent encoder, and a decoder that reads the code at every step."""

    def __init__(self, length, latent, hidden=32, kind="sigma", variance=1.0):
        super().__init__()
        self.read = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 2 * latent)
        self.write = nn.GRU(latent + 1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)
        self.length, self.latent = length, latent
        self._noise(kind, variance)

    def encode(self, x):
        _, h = self.read(x.unsqueeze(2))
        return self.head(h[-1]).chunk(2, dim=1)

    def decode(self, z):
        steps = torch.linspace(-1, 1, self.length).to(z).reshape(1, -1, 1).expand(len(z), -1, -1)
        h, _ = self.write(torch.cat([z.unsqueeze(1).expand(-1, self.length, -1), steps], dim=2))
        return self.out(h).squeeze(2)


class FullCovarianceVAE(DeepVAE):
    """q(z|x) has a full covariance; only its marginals can be given."""

    def __init__(self, inputs, latent, hidden=64, kind="sigma"):
        super().__init__(inputs, latent, hidden, kind)
        self.lower = nn.Linear(inputs, latent * latent)

    def factor(self, x, logvar):
        off = torch.tril(self.lower(x.flatten(1)).reshape(-1, self.latent, self.latent), -1)
        return off + torch.diag_embed((0.5 * logvar).exp())

    def loss(self, x, beta=1.0):
        mu, logvar = self.encode(x)
        L = self.factor(x, logvar)
        output = self.decode(mu + torch.einsum("nij,nj->ni", L, torch.randn_like(mu)))
        divergence = 0.5 * (L.square().sum() + mu.square().sum() - logvar.sum() - mu.numel())
        return gaussian(x.flatten(1), output, self.log_sigma) + beta * divergence

    def marginals(self, x):
        mu, logvar = self.encode(x)
        return mu, self.factor(x, logvar).square().sum(2)


class IWAE(DeepVAE):
    """The bound of several importance samples."""

    def loss(self, x, beta=1.0, samples=8):
        x = x.flatten(1)
        mu, logvar = self.encode(x)
        noise = torch.randn(samples, *mu.shape)
        z = mu + (0.5 * logvar).exp() * noise
        output = self.decode(z.flatten(0, 1)).reshape(samples, *x.shape)
        log_x = -(0.5 * ((x - output) / self.log_sigma.exp()) ** 2 + self.log_sigma).sum(2)
        log_w = log_x - 0.5 * z.square().sum(2) + 0.5 * (noise.square() + logvar).sum(2)
        return -torch.logsumexp(log_w, 0).sum()


def lightning_vae(*arguments, **settings):
    """A Lightning module around `DeepVAE`, trained by its own trainer."""
    import lightning

    class LitVAE(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.vae = DeepVAE(*arguments, **settings)
            self.latent = self.vae.latent

        def training_step(self, batch, _):
            return self.vae.loss(batch[0]) / len(batch[0])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    return LitVAE()
