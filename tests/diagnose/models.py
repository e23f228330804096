"""Models with known faults, in closed form."""

import torch

import vaescope as vs

G = torch.Generator().manual_seed(0)
W = torch.linalg.qr(torch.randn(5, 2, generator=G))[0] * torch.tensor([2.0, 1.0])
X = torch.randn(400, 2, generator=G) @ W.T + 0.1 * torch.randn(400, 5, generator=G)


def linear(**change):
    """The optimal linear VAE of the distribution of X: γ² = 100."""
    variance = 1 / (1 + 100 * W.square().sum(0))
    known = {
        "encode": lambda x: (100 * (x @ W) * variance, variance.expand(len(x), 2)),
        "decode": lambda z: z @ W.T.to(z),
        "latent_dim": 2,
        "precision": 100.0,
    }
    return vs.adapters.from_callables(**known | change)


def wide(shift=0.0):
    """The optimal linear VAE with six latents, with means shifted by this many posterior deviations, and samples."""
    generator = torch.Generator().manual_seed(1)
    V = torch.linalg.qr(torch.randn(12, 6, generator=generator))[0] * torch.linspace(1, 3, 6)
    x = torch.randn(200, 6, generator=generator) @ V.T + 0.1 * torch.randn(200, 12, generator=generator)
    variance = 1 / (1 + 100 * V.square().sum(0))
    model = vs.adapters.from_callables(
        encode=lambda x: (100 * (x @ V) * variance + shift * variance.sqrt(), variance.expand(len(x), 6)),
        decode=lambda z: z @ V.T.to(z),
        latent_dim=6,
        precision=100.0,
    )
    return model, x


def pixels(turn=None, shift=0.0, beta=1.0):
    """Bernoulli pixels, half of them for each of two latents, with nearly optimal posteriors; and samples."""
    generator = torch.Generator().manual_seed(2)
    B = torch.zeros(60, 2, dtype=torch.float64)
    B[:30, 0] = 2 + torch.rand(30, generator=generator, dtype=torch.float64)
    B[30:, 1] = 1 + torch.rand(30, generator=generator, dtype=torch.float64)
    B = B * torch.where(torch.rand(60, 1, generator=generator) < 0.5, -1.0, 1.0).double()
    z = torch.randn(300, 2, generator=generator, dtype=torch.float64)
    x = torch.bernoulli(torch.sigmoid(z @ B.T), generator=generator)
    turn = torch.eye(2, dtype=torch.float64) if turn is None else turn
    A = B @ turn

    def encode(x):
        mode = torch.zeros(len(x), 2, dtype=torch.float64)
        for _ in range(20):
            p = torch.sigmoid(mode @ A.T)
            curvature = torch.eye(2, dtype=torch.float64) + torch.einsum("ni,ij,ik->njk", p * (1 - p), A, A)
            mode = mode + 0.7 * torch.linalg.solve(curvature, (x - p) @ A - mode)
        variance = beta / (beta + curvature.diagonal(dim1=1, dim2=2) - 1)
        return mode + shift * variance.sqrt(), variance

    model = vs.adapters.from_callables(
        encode=encode, decode=lambda z: torch.sigmoid(z @ A.T.to(z)), latent_dim=2, likelihood="bernoulli"
    )
    return model, x


VARIANCE = 1 / (1 + 100 * W.square().sum(0))


def codes(model, x=X, **more):
    """Findings other than notes, the most severe first."""
    return [f.code for f in vs.diagnose(model, x, progress=None, **more).findings if f.severity != "note"]
