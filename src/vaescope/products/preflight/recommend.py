"""Latents that a model will use, what common losses do to the data, and what to start training with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vaescope.inference.linear import Spectrum, explained_share, least_variance, total_kl, used_count
from vaescope.models import VAE
from vaescope.products.preflight.data import THRESHOLDS, DataKind
from vaescope.products.preflight.spectrum import IntrinsicDimension
from vaescope.regime import of_model
from vaescope.settings import TrainSettings
from vaescope.training import MemberSpec, Progress, train

Array = np.ndarray
VARIANCES = 8  # values of β/γ² of the confirmation
STEPS = 1500  # of its training


def expected_count(
    eigenvalues: Array,
    variance: float,
    latents: int | None = None,
    *,
    limit: int | None = None,
    least_kl: float | None = None,
) -> int:
    """How many latents a trained model is expected to use: `used_count`, corrected for curved data.

    With little KL a latent gains less than training resolves. One latent always counts below the collapse line, which
    holds for any decoder.

    Args:
        eigenvalues: of the covariance, in any order.
        variance: β/γ².
        latents: how many the model has; as many as there are eigenvalues if not given.
        limit: dimension of curved data (`IntrinsicDimension.limit`); None for linear ones.
        least_kl: nats that a latent must carry to count; 0.15 with a limit and 0 without, if not given.

    >>> expected_count(np.array([4.0, 1.0, 0.6]), 0.5), expected_count(np.array([4.0, 1.0, 0.6]), 0.5, limit=3)
    (3, 2)
    """
    if least_kl is not None:
        used = used_count(eigenvalues, variance * math.exp(2 * least_kl), latents)
    elif limit is None:
        used = used_count(eigenvalues, variance, latents)
    else:
        found = used_count(eigenvalues, variance * math.exp(2 * THRESHOLDS.found_kl), latents)
        used = max(found, used_count(eigenvalues, variance, 1))
    return used if limit is None else min(used, limit)


@dataclass(frozen=True)
class Convention:
    """A way to write the loss, and what it does to these data."""

    name: str
    code: str
    variance: float
    """β/γ²."""
    used: int
    """Latents that a linear VAE uses."""
    kl: float
    explained: float
    meaning: str

    @property
    def collapses(self) -> bool:
        return self.used == 0


def conventions(eigenvalues: Array, likelihood: str, columns: int, latents: int) -> list[Convention]:
    """Common ways to write the loss, with what a linear VAE does under each.

    Args:
        eigenvalues: of the covariance (Bernoulli: of the scaled one, see `data.bernoulli_scales`).
        likelihood: gaussian or bernoulli.
        columns: n.
        latents: d, of the model.

    >>> [(c.name, c.variance) for c in conventions(np.ones(10), "gaussian", 10, 2)][:2]
    [('half the sum of squares + KL', 1.0), ('sum of squares + KL', 0.5)]
    """
    if likelihood == "bernoulli":  # β/γ² is the weight of the KL relative to the log-likelihood
        error = "F.binary_cross_entropy(y, x"
        losses = [
            ("sum of cross-entropies + KL", f"{error}, reduction='sum') / len(x) + kl.sum(1).mean()", 1.0),
            ("mean cross-entropy + KL", f"{error}) + kl.sum(1).mean()", float(columns)),
            ("mean cross-entropy + mean KL", f"{error}) + kl.mean()", columns / latents),
        ]
    else:
        losses = [
            ("half the sum of squares + KL", "0.5 * ((x - y) ** 2).sum(1) + kl.sum(1)", 1.0),
            ("sum of squares + KL", "F.mse_loss(y, x, reduction='sum') / len(x) + kl.sum(1).mean()", 0.5),
            ("mean squared error + KL", "F.mse_loss(y, x) + kl.sum(1).mean()", columns / 2),
            ("mean squared error + mean KL", "F.mse_loss(y, x) + kl.mean()", columns / (2 * latents)),
        ]
    largest, scale = float(eigenvalues.max(initial=0.0)), "" if likelihood == "bernoulli" else " at precision 1"
    found = []
    for name, code, variance in losses:
        averaged = f"it averages over n = {columns} columns: " if name.startswith("mean") else ""
        verdict = "all latents collapse" if variance >= largest else "the first latents are used"
        meaning = f"β = {variance:.4g}{scale}; these data collapse from β = {largest:.3g} on: {verdict}."
        used, kl = used_count(eigenvalues, variance, latents), total_kl(eigenvalues, variance, latents)
        share = explained_share(eigenvalues, variance, latents)
        found.append(Convention(name, code, variance, used, kl, share, averaged + meaning))
    return found


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
    chosen = latent_dim or min(spectrum.columns, max(needed + 1, math.ceil(THRESHOLDS.margin * needed)))
    if kind.likelihood == "bernoulli":
        variance, precision = 1.0, None
    else:
        variance = least_variance(spectrum, chosen)
        precision = 1 / variance
    kept = float(spectrum.eigenvalues[min(needed, chosen) - 1]) / variance
    collapse = float(spectrum.eigenvalues[0]) / variance
    batch = max(size for size in (32, 64, 128, 256) if size <= max(32, rows // 50))
    steps = 10_000  # after which small VAEs have usually converged
    largest = float(spectrum.eigenvalues[0])
    scalings = {
        "none": "Leave the values as they are.",
        "pixels": "Not needed for what follows, but networks train best on values of about one: divide bytes by 255. "
        "The precision is then multiplied by 255².",
        "standardise": "Divide every column by its standard deviation, after subtracting its mean.",
        "log1p": "Model log(1 + x), standardised by one number; or use a count likelihood, as scvi-tools has.",
    }
    sentences = {
        "likelihood": f"{kind.likelihood}: {kind.reason}",
        "scaling": kind.scaling_reason + scalings["pixels" if kind.name == "pixels" else kind.scaling],
        "latents": why_needed + _latents_sentence(spectrum, chosen, needed, latent_dim),
        "precision": _precision_sentence(spectrum, variance, precision, chosen),
        "β": _beta_sentence(spectrum, kept, collapse, needed),
        "warm-up": _warmup_sentence(precision, largest),
        "batch": f"{batch} samples: at least 50 steps per epoch where there are enough samples, at most 256.",
    }
    return Recommendation(
        kind.likelihood,
        kind.scaling,
        chosen,
        needed,
        precision,
        (min(1.0, kept), max(1.0, kept)) if kept > 1 else (kept / 4, kept),
        collapse,
        steps // 10,
        batch,
        min(500, max(20, math.ceil(steps * batch / max(1, rows)))),
        sentences,
    )


def latents_needed(spectrum: Spectrum, dimension: IntrinsicDimension | None) -> tuple[int, str]:
    """How many latents the data need, and a sentence about it."""
    held = spectrum.latents_for(THRESHOLDS.share)
    if spectrum.flat:
        return held, f"No direction stands out, so {held} axes are needed for {THRESHOLDS.share:.0%} of the variance. "
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

    >>> axes_needed(Spectrum(np.array([80.0, 17.0, 2.9, 0.05, 0.05]), 100.0, 5, 1000))
    3
    """
    held, most = (spectrum.latents_for(share) for share in (THRESHOLDS.share, THRESHOLDS.large_share))
    for count in range(min(most, spectrum.rank - 1), held, -1):
        rest = spectrum.total - float(spectrum.eigenvalues[:count].sum())
        if spectrum.eigenvalues[count - 1] > THRESHOLDS.gap * rest / (spectrum.rank - count):
            held = count
            break
    return max(1, min(held, spectrum.signal))


def _share(spectrum: Spectrum, latents: int) -> str:
    return f"{float(spectrum.eigenvalues[:latents].sum()) / spectrum.total:.0%}" if spectrum.total > 0 else "0%"


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
    if spectrum.total <= 0:
        return f"γ² = {precision:.3g} is as good as any other: the data do not vary, so all latents collapse."
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


def _warmup_sentence(precision: float | None, largest: float) -> str:
    if largest > 1:
        return (
            "not needed at this precision: the collapsed state is unstable. Otherwise over the first 10 % of the steps."
        )
    if precision is None:
        return "does not help: the latents collapse again when β reaches 1."
    return f"needed from γ² = 1, where all latents collapse (λ₁ = {largest:.3g}), but not from the start given here."


def snippets(recommended: Recommendation, columns: int) -> dict[str, str]:
    """Code by library; x is a float tensor (N, n) or (N, C, H, W) in all of them."""
    standardised = "x = (x - x.mean(0)) / x.std(0)  # leave constant columns out\n"
    scalings = {"none": "", "standardise": standardised, "log1p": "x = torch.log1p(x)\nx = (x - x.mean(0)) / x.std()\n"}
    precision, scaling = recommended.precision, scalings[recommended.scaling]
    gaussian = precision is not None
    values = {
        "columns": columns,
        "latents": recommended.latent_dim,
        "batch": recommended.batch_size,
        "epochs": recommended.epochs,
        "precision": f"{precision:.4g}" if gaussian else "",
        "loss": "mse" if gaussian else "bce",
        "beta": f"{1 / precision:.4g}" if precision is not None else "1.0",
        "why_beta": "  # pythae's squared error has precision 1, so β is the decoder variance" if gaussian else "",
        "likelihood": "" if gaussian else '\n    likelihood="bernoulli",',
        "start": "  # the precision starts as recommended and is then found in training\n" if gaussian else "",
    }
    templates = {"PyTorch": "gaussian" if gaussian else "bernoulli", "pythae": "pythae", "vs.fit": "vs.fit"}
    return {library: scaling + TEMPLATES[name].format(**values) for library, name in templates.items()}


TEMPLATES = {
    "gaussian": """# y: decoded mean; mu, log_var: encoder; optimise log_precision with the other parameters
log_precision = torch.nn.Parameter(torch.tensor({precision}).log())

def loss(x, y, mu, log_var, beta=1.0):
    error = (x - y).flatten(1).square().sum(1)  # a sum over columns, never a mean
    n = x[0].numel()
    reconstruction = 0.5 * (log_precision.exp() * error - n * log_precision)
    kl = 0.5 * (mu.square() + log_var.exp() - 1 - log_var).sum(1)
    return (reconstruction + beta * kl).mean()
""",
    "bernoulli": """# logits: output of the decoder; mu, log_var: encoder
def loss(x, logits, mu, log_var, beta=1.0):
    reconstruction = torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none")
    kl = 0.5 * (mu.square() + log_var.exp() - 1 - log_var).sum(1)
    return (reconstruction.flatten(1).sum(1) + beta * kl).mean()  # sums over columns, never means
""",
    "pythae": """from pythae.models import BetaVAE, BetaVAEConfig

config = BetaVAEConfig(
    input_dim=({columns},),
    latent_dim={latents},
    reconstruction_loss="{loss}",
    beta={beta},{why_beta}
)
model = BetaVAE(config)
""",
    "vs.fit": """import torch
import vaescope as vs

held = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)) < len(x) // 5  # rows that are not trained on
fit = vs.fit(
    x[~held],
    latent_dim={latents},
    batch_size={batch},
    epochs={epochs},{likelihood}
){start}
vs.diagnose(fit.best, x[held], train=x[~held])
""",
}


@dataclass(frozen=True)
class Cell:
    """One trained model beside its prediction."""

    precision: float
    beta: float
    latents: int
    predicted: int
    used: int
    kl: float
    converged: bool

    @property
    def variance(self) -> float:
        """β/γ²."""
        return self.beta / self.precision


@dataclass(frozen=True)
class Confirmation:
    """Trained models beside their predictions, and the correction that they suggest."""

    cells: Sequence[Cell]
    collapse_variance: float
    """λ_1, of what was trained on."""

    @property
    def converged(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.converged]

    @property
    def within_one(self) -> float:
        """Share of converged cells in which as many latents are used as predicted, or one more or less."""
        return float(np.mean([abs(c.used - c.predicted) <= 1 for c in self.converged])) if self.converged else math.nan

    @property
    def factor(self) -> float:
        """Latents used over latents predicted, in all converged cells that predict any."""
        predicted = sum(c.predicted for c in self.converged)
        return sum(c.used for c in self.converged if c.predicted) / predicted if predicted else 1.0

    @property
    def boundary(self) -> float:
        """β/γ² between the last cell that uses a latent and the first that does not; infinite if all do."""
        ordered = sorted({c.variance for c in self.converged})
        using = [v for v in ordered if any(c.used for c in self.converged if c.variance == v)]
        above = [v for v in ordered if not using or v > using[-1]]
        if not using or not above:
            return math.inf if using else 0.0
        return math.sqrt(using[-1] * above[0])

    def corrected(self, predicted: int) -> int:
        """A predicted count with the correction.

        >>> Confirmation([Cell(1.0, 1.0, 4, 4, 2, 1.0, True)], 5.0).corrected(4)
        2
        """
        return min(predicted, max(int(predicted > 0), round(self.factor * predicted)))

    @property
    def sentence(self) -> str:
        """The comparison in words."""
        right = f"In {self.within_one:.0%} of {len(self.converged)} converged models the count is right to one"
        change = f"{self.factor:.2f} times as many latents are used as predicted"
        if not 0 < self.boundary < math.inf:
            return f"{right}; {change}."
        line = f"Latents collapse around β/γ² = {self.boundary:.3g}; predicted: {self.collapse_variance:.3g}."
        return f"{right}; {change}. {line}"


def confirm(
    sample: Array,
    likelihood: str,
    eigenvalues: Array,
    latents: int,
    *,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Confirmation:
    """Train small VAEs over a grid of (γ², β, d), to compare what they use with what the linear theory predicts.

    A Gaussian decoder sees the leading principal axes of a random sample of rows: a rotation changes nothing for an
    MLP, and axes below all decoder variances of the grid are not used by anybody. They are trained in units of λ₁: what
    is used depends on λ_i γ²/β alone, but networks learn slowly from numbers far from one.

    Args:
        sample: random rows, scaled as recommended; at most 3000 are used, and a fifth of them is held out.
        likelihood: gaussian or bernoulli.
        eigenvalues: of the covariance, as the prediction uses them.
        latents: the largest d.
        limit: dimension of curved data; None for linear ones.
        progress: where progress is reported.
    """
    leading = np.sort(eigenvalues)[::-1][:40]
    unit = 1.0 if likelihood == "bernoulli" else float(leading[0])
    columns = sample[:3000]
    if likelihood != "bernoulli":  # scores on the leading principal axes
        centred = columns - columns.mean(0)
        columns = centred @ np.linalg.svd(centred, full_matrices=False)[2][: len(leading)].T
    rows = torch.from_numpy(columns / math.sqrt(unit)).float()
    held_out = max(1, len(rows) // 5)
    scaled, batch = leading / unit, min(100, len(rows) - held_out)
    last = float(scaled[min(latents, len(scaled)) - 1])  # from below the last latent to above the collapse line
    specs = []
    for k, variance in enumerate(
        np.geomspace(max(last / 4, float(scaled[0]) * 1e-4), 2 * float(scaled[0]), VARIANCES).tolist()
    ):
        if likelihood == "bernoulli":  # which has β alone
            specs.append(MemberSpec(seed=k, beta=variance))
        else:  # alternating β, so that it is tested too that β/γ² is all that matters
            beta = (1.0, 4.0)[k % 2]
            specs.append(MemberSpec(seed=k, precision=beta / variance, beta=beta))
    epochs = max(10, math.ceil(STEPS * batch / (len(rows) - held_out)))
    settings = TrainSettings(epochs=epochs, batch_size=batch, learning_rate=3e-3, decay="cosine", patience=epochs)
    cells: list[Cell] = []
    for d in sorted({max(1, latents // 2), latents}):
        model = VAE.mlp(rows.shape[1], d, hidden=(48, 48), likelihood=likelihood)
        parts = rows[held_out:].unsqueeze(0), rows[:held_out].unsqueeze(0)
        for spec, member in zip(specs, train(model, *parts, specs, settings, progress=progress), strict=True):
            regime = of_model(member, rows[:held_out], decoder=False)
            predicted = expected_count(scaled, spec.beta / spec.precision, d, limit=limit)
            done = member.status == "finished" and bool(member.converged)
            used, kl = len(regime.used), float(sum(regime.kl))
            cells.append(Cell(spec.precision / unit, spec.beta, d, predicted, used, kl, done))
    return Confirmation(cells, float(leading[0]))
