"""What to start training with: scaling, likelihood, number of latents, precision, β, warm-up, batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vaescope.inference.linear import Spectrum, explained_share, least_variance, used_count
from vaescope.products.preflight.data import DataKind
from vaescope.products.preflight.spectrum import IntrinsicDimension

SHARE, LARGE_SHARE = 0.95, 0.99  # of the variance that principal axes have to hold; with a clear gap after them
GAP = 10.0  # an eigenvalue over the mean of the smaller ones, from which the gap is clear
LARGEST_EPOCHS = 500
MARGIN = 1.25  # latents beyond those needed: a VAE switches off what it does not need
STEPS = 10_000  # optimisation steps after which small VAEs have usually converged
BATCHES = (32, 64, 128, 256)


@dataclass(frozen=True)
class Recommendation:
    """Settings to start with. All numbers refer to the data after the recommended scaling."""

    likelihood: str
    scaling: str
    """none, standardise or log1p."""
    latent_dim: int
    needed: int
    """Latents that the data need; `latent_dim` has a margin."""
    precision: float | None
    """γ² to start with, learned from there; None under a Bernoulli likelihood."""
    beta: tuple[float, float]
    """From the plain ELBO to the largest β that keeps all needed latents, at this precision."""
    collapse_beta: float
    """β from which all latents collapse, at this precision."""
    warmup_steps: int
    batch_size: int
    epochs: int
    sentences: dict[str, str]
    """Why, by setting."""


def recommend(
    kind: DataKind, spectrum: Spectrum, dimension: IntrinsicDimension | None, rows: int, latent_dim: int | None
) -> Recommendation:
    """Settings for these data.

    Args:
        kind: what the data are.
        spectrum: of the data after the recommended scaling.
        dimension: intrinsic dimension, if there were enough samples.
        rows: number of samples.
        latent_dim: the number of latents, if it was given.
    """
    needed, why_needed = latents_needed(spectrum, dimension)
    chosen = latent_dim or min(spectrum.columns, max(needed + 1, math.ceil(MARGIN * needed)))
    if kind.likelihood == "bernoulli":
        variance, precision = 1.0, None
    else:
        variance = least_variance(spectrum, chosen)
        precision = 1 / variance
    kept = float(spectrum.eigenvalues[min(needed, chosen) - 1]) / variance
    collapse = float(spectrum.eigenvalues[0]) / variance
    batch = max((size for size in BATCHES if size <= max(32, rows // 50)), default=32)
    sentences = {
        "likelihood": f"{kind.likelihood}: {kind.reason}",
        "scaling": kind.scaling_reason + _SCALING["pixels" if kind.name == "pixels" else kind.scaling],
        "latents": why_needed + _latents_sentence(spectrum, chosen, needed, latent_dim),
        "precision": _precision_sentence(spectrum, variance, precision, chosen),
        "β": _beta_sentence(spectrum, kept, collapse, needed),
        "warm-up": _warmup_sentence(variance, precision, spectrum),
        "batch": f"{batch} samples: at least 50 steps per epoch where there are enough samples, at most {BATCHES[-1]}.",
    }
    return Recommendation(
        kind.likelihood,
        kind.scaling,
        chosen,
        needed,
        precision,
        (min(1.0, kept), max(1.0, kept)) if kept > 1 else (kept / 4, kept),
        collapse,
        STEPS // 10,
        batch,
        min(LARGEST_EPOCHS, max(20, math.ceil(STEPS * batch / max(1, rows)))),
        sentences,
    )


def latents_needed(spectrum: Spectrum, dimension: IntrinsicDimension | None) -> tuple[int, str]:
    """How many latents the data need, and a sentence about it."""
    held = spectrum.latents_for(SHARE)
    if spectrum.flat:
        return held, f"No direction stands out, so {held} axes are needed for {SHARE:.0%} of the variance. "
    linear = axes_needed(spectrum)
    sentence = f"{linear} principal axes hold {_share(spectrum, linear)} of the variance"
    if dimension is None or not dimension.curved:
        return linear, f"{sentence}, and nothing suggests that fewer curved latents would do. "
    curved = max(1, math.ceil(dimension.value - 0.25))
    if curved >= linear:
        return linear, f"{sentence}. "
    low, high = math.floor(dimension.low), math.ceil(dimension.high)
    return curved, f"{sentence}, but the data are curved with about {curved} dimensions ({low} to {high}). "


def axes_needed(spectrum: Spectrum) -> int:
    """Principal axes that hold 95 % of the variance, or up to 99 % if a clear gap follows; no more than stand out.

    >>> import numpy as np
    >>> axes_needed(Spectrum(np.array([80.0, 17.0, 2.9, 0.05, 0.05]), 100.0, 5, 1000))
    3
    """
    held, most = spectrum.latents_for(SHARE), spectrum.latents_for(LARGE_SHARE)
    for count in range(min(most, spectrum.rank - 1), held, -1):
        rest = spectrum.total - float(spectrum.eigenvalues[:count].sum())
        if spectrum.eigenvalues[count - 1] > GAP * rest / (spectrum.rank - count):
            held = count
            break
    return max(1, min(held, spectrum.signal))


def _share(spectrum: Spectrum, latents: int) -> str:
    return f"{float(spectrum.eigenvalues[:latents].sum()) / spectrum.total:.0%}" if spectrum.total > 0 else "0%"


_SCALING = {
    "none": "Leave the values as they are.",
    "pixels": "Not needed for what follows, but networks train best on values of about one: divide bytes by 255. The "
    "precision is then multiplied by 255².",
    "standardise": "Divide every column by its standard deviation, after subtracting its mean.",
    "log1p": "Model log(1 + x), standardised by one number; or use a count likelihood, as scvi-tools has.",
}


def _latents_sentence(spectrum: Spectrum, chosen: int, needed: int, given: int | None) -> str:
    if given is None:
        return f"Use {chosen}: latents that are not needed stay at their prior and cost little."
    if given < needed:
        held = _share(spectrum, given)
        return f"You have {given}: {needed - given} fewer than needed; principal axes would hold {held}."
    return (
        f"You have {given}: enough; {given - needed} of them may stay at their prior."
        if given > needed
        else "You have as many."
    )


def _precision_sentence(spectrum: Spectrum, variance: float, precision: float | None, latents: int) -> str:
    if precision is None:
        return "a Bernoulli likelihood has no precision: the balance is set by β alone."
    used = used_count(spectrum.eigenvalues, variance, latents)
    share = explained_share(spectrum.eigenvalues, variance, latents)
    return (
        f"start at γ² = {precision:.3g} (decoder variance {variance:.3g}), where a linear VAE uses {used} latents and "
        f"explains {share:.0%}, and learn it from there. Below γ² = {1 / float(spectrum.eigenvalues[0]):.3g} all "
        "latents collapse."
    )


def _beta_sentence(spectrum: Spectrum, kept: float, collapse: float, needed: int) -> str:
    if collapse <= 1:
        return f"β = 1 collapses these data; use β below {collapse:.2g}, or give the reconstruction more weight."
    if kept <= 1:
        some = used_count(spectrum.eigenvalues, 1.0)
        limits = f"β below {kept:.2g} keeps {needed}; from {collapse:.3g} on all collapse"
        return f"at β = 1 about {some} latents are used; {limits}."
    return f"1 is the ELBO; up to {kept:.3g} keeps {needed} latents, and from {collapse:.3g} on all collapse."


def _warmup_sentence(variance: float, precision: float | None, spectrum: Spectrum) -> str:
    largest = float(spectrum.eigenvalues[0])
    if precision is not None and largest <= 1:
        return (
            f"needed from γ² = 1, where all latents collapse (λ₁ = {largest:.3g}), but not from the start given here."
        )
    if precision is None and largest <= 1:
        return "does not help: the latents collapse again when β reaches 1."
    return "not needed at this precision: the collapsed state is unstable. Otherwise over the first 10 % of the steps."


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
