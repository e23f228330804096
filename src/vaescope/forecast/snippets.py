"""Code to paste: the recommended settings in plain PyTorch, in pythae and in `vs.fit`."""

from __future__ import annotations

from vaescope.forecast.recommend import Recommendation

SCALING = {
    "none": "",
    "standardise": "x = (x - x.mean(0)) / x.std(0)  # leave constant columns out\n",
    "log1p": "x = torch.log1p(x)\nx = (x - x.mean(0)) / x.std()\n",
}


def snippets(recommended: Recommendation, columns: int) -> dict[str, str]:
    """Code by library; x is a float tensor (N, n) or (N, C, H, W) in all of them."""
    scaling = SCALING[recommended.scaling]
    return {
        "PyTorch": scaling + (_bernoulli() if recommended.precision is None else _gaussian(recommended)),
        "pythae": scaling + _pythae(recommended, columns),
        "vs.fit": scaling + _fit(recommended),
    }


def _gaussian(recommended: Recommendation) -> str:
    return f"""# y: decoded mean; mu, log_var: encoder; optimise log_precision with the other parameters
log_precision = torch.nn.Parameter(torch.tensor({recommended.precision:.4g}).log())

def loss(x, y, mu, log_var, beta=1.0):
    error = (x - y).flatten(1).square().sum(1)  # a sum over columns, never a mean
    n = x[0].numel()
    reconstruction = 0.5 * (log_precision.exp() * error - n * log_precision)
    kl = 0.5 * (mu.square() + log_var.exp() - 1 - log_var).sum(1)
    return (reconstruction + beta * kl).mean()
"""


def _bernoulli() -> str:
    return """# logits: output of the decoder; mu, log_var: encoder
def loss(x, logits, mu, log_var, beta=1.0):
    reconstruction = torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none")
    kl = 0.5 * (mu.square() + log_var.exp() - 1 - log_var).sum(1)
    return (reconstruction.flatten(1).sum(1) + beta * kl).mean()  # sums over columns, never means
"""


def _pythae(recommended: Recommendation, columns: int) -> str:
    bernoulli = recommended.precision is None
    beta = "1.0" if recommended.precision is None else f"{1 / recommended.precision:.4g}"
    reason = "" if bernoulli else "  # pythae's squared error has precision 1, so β is the decoder variance"
    return f"""from pythae.models import BetaVAE, BetaVAEConfig

config = BetaVAEConfig(
    input_dim=({columns},),
    latent_dim={recommended.latent_dim},
    reconstruction_loss="{"bce" if bernoulli else "mse"}",
    beta={beta},{reason}
)
model = BetaVAE(config)
"""


def _fit(recommended: Recommendation) -> str:
    likelihood = '\n    likelihood="bernoulli",' if recommended.precision is None else ""
    start = (
        ""
        if recommended.precision is None
        else "  # the precision starts as recommended and is then found in training\n"
    )
    return f"""import vaescope as vs

fit = vs.fit(
    x,
    latent_dim={recommended.latent_dim},
    batch_size={recommended.batch_size},
    epochs={recommended.epochs},{likelihood}
){start}
vs.diagnose(fit.best, x)
"""
