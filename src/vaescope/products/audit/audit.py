"""`vs.audit`: which objective a loss function or a training step optimises."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from vaescope.analysis.loss.call import Objective
from vaescope.analysis.loss.measure import Coefficient, Identified, Noise, Reductions, weights
from vaescope.analysis.loss.probe import Space
from vaescope.analysis.loss.reading import HasObjective, ObjectiveSpec, faults, ineffective, read_loss, read_tensor
from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.core.tables import Table
from vaescope.inference.linear import Spectrum, spectrum_of_rows, used_count
from vaescope.products.audit.rules import Facts, findings
from vaescope.protocol import LatentModel
from vaescope.report import figures
from vaescope.report.findings import Finding
from vaescope.report.page import Drawing, number, render
from vaescope.report.report import Report


@dataclass(frozen=True)
class Weight:
    """The weight of a term and how it is reduced."""

    value: float
    """Factor of the mean over samples of the sum over a sample's numbers (of the KL: over latents); nan if unknown."""
    batch: str
    """Over samples: sum, mean, or how it changes otherwise."""
    data: str
    """Over the numbers of a sample: sum or mean, or which axes are averaged; unknown if other shapes are refused."""
    latents: str
    """Over latents: sum or mean."""


@dataclass(frozen=True, eq=False)
class Audit(Report, HasObjective):
    """What a loss optimises: `loss = w_r · mean(-log p(x|y)) + w_k · mean(KL) + terms`, and what is wrong with it.

    Means are over samples, sums over the numbers of a sample and over latents, and the likelihood has unit variance or
    scale. In a Gaussian model only β/γ² = w_k / w_r has an effect on the optimum.
    """

    name: str
    """What the loss is called."""
    likelihood: str
    """gaussian, gaussian_learned (its variance is learned), gaussian_optimal (its variance is the batch's mean squared
    error), laplace, laplace_learned, huber, log_cosh, bernoulli, categorical, multinomial, poisson, negative_binomial,
    mixed; none if y is not read as a prediction of x, other if it was not recognised."""
    output: str
    """How y is read: mean, probability, logit, rate, log_rate, log_probability, tanh."""
    scale: str
    """How the encoder's second output is read: log_variance, variance, std, log_std, softplus_std, log_precision."""
    reconstruction: Weight
    """Of -log p(x|y)."""
    kl: Weight
    """Of the KL; of what is in its place, if a part of it is wrong."""
    precision: float | None
    """γ² of a Gaussian as it is written: 2 for a sum of squares, 1 for half of it; None for other likelihoods."""
    beta: float | None
    """Weight of the KL at that precision, or where the likelihood has no free variance; None if not defined."""
    terms: dict[str, dict[str, float | str]]
    """Further terms with their parameters: free_bits, capacity, mmd, total_correlation, covariance, label, …"""
    faults: tuple[str, ...]
    """Names of what is wrong; each has a finding."""
    findings: list[Finding] = field(repr=False)
    """Most severe first."""
    coefficients: dict[str, Coefficient] = field(default_factory=dict)
    """Numbers that the loss is called with, and what each changes."""
    noise: Noise | None = None
    """The noise of z, of a step."""
    schedule: list[tuple[float, float]] = field(default_factory=list)
    """Value of the scheduled argument, and β there."""
    spectrum: Spectrum | None = None
    """Of the data, if they were given and suffice."""
    latent_dim: int = 0
    """d, the number of latents of the audit."""
    recognised: bool = True
    """Whether all of the loss is explained."""
    likelihood_parameter: float | None = None
    """Threshold of a Huber loss, or a of log cosh(a (x - y)); otherwise None."""
    unit = "terms"
    legend = (
        "weight: the factor of the term, as a mean over samples of a sum over a sample's numbers (KL: over latents), "
        "with variance or scale 1 of the decoder. The other columns: how the code reduces it."
    )

    @property
    def objective_spec(self) -> ObjectiveSpec:
        """What `vs.diagnose`, `vs.certify` and `vs.compare` take from a loss."""
        ratio = None if not self.reconstruction.value else self.kl.value / self.reconstruction.value
        return ObjectiveSpec(
            self.name, self.likelihood, self.output, self.scale, self.precision, self.beta, ratio, self.latent_dim
        )

    @property
    def beta_over_precision(self) -> float | None:
        """β/γ² of a Gaussian with fixed variance; None for other likelihoods."""
        return None if self.precision is None or self.beta is None else self.beta / self.precision

    @property
    def ineffective(self) -> tuple[str, ...]:
        """Coefficients that change nothing."""
        return tuple(name for name, c in self.coefficients.items() if c.effect == "nothing")

    @property
    def active(self) -> int | None:
        """How many latents a linear VAE uses on the data at this β/γ²; None without data or for other likelihoods."""
        ratio = self.beta_over_precision
        if self.spectrum is None or ratio is None or ratio <= 0:
            return None
        return used_count(self.spectrum.eigenvalues, ratio, self.latent_dim)

    @property
    def sentence(self) -> str:
        """What the loss is, in a sentence."""
        shown = self.likelihood.replace("_", " ")
        decoder = f"{'an' if shown[0] in 'aeiou' else 'a'} {shown[0].upper() + shown[1:]} decoder"
        if self.likelihood in ("other", "none"):
            return "The reconstruction is not a known likelihood of x."
        ratio = self.beta_over_precision
        if ratio is not None and self.precision is not None:
            balance = f"β = {number(self.beta)} (β/γ² = {number(ratio)})"
            return f"Your loss is a VAE with {decoder} of precision γ² = {self.precision:g} and {balance}."
        if self.beta is not None:
            return f"Your loss is a VAE with {decoder} and β = {number(self.beta)}."
        if self.kl.value == 0:
            return f"Your loss is an autoencoder with {decoder}: nothing trains the KL."
        return f"Your loss has {decoder}."

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        ends = {"error": "It has a fault that must be repaired.", "warning": "Read the warnings."}
        return f"{self.sentence} {ends.get(self.worst or '', 'No faults found.')}"

    def assert_elbo(self, *, beta: float | None = None, precision: float | None = None) -> None:
        """Raise AssertionError unless the loss is an ELBO without faults, for a test of your own code.

        Args:
            beta: the weight that the KL should have; 1 by default where the likelihood has no free variance.
            precision: γ² that a Gaussian should have, as β/γ² = beta / precision; any by default.

        >>> def loss(y, x, mu, log_var):
        ...     kl = 0.5 * (mu**2 + log_var.exp() - 1 - log_var).sum(1)
        ...     return (0.5 * ((x - y) ** 2).sum(1) + kl).mean()
        >>> audit(loss).assert_elbo(precision=1.0)
        """
        problems = [f"{f.title} {f.evidence}" for f in self.findings if f.severity in ("warning", "error")]
        extra = set(self.terms) - {"monte_carlo_kl"}
        if extra:
            problems.append(f"It has further terms: {', '.join(sorted(extra))}.")
        if not self.recognised:
            problems.append("A part of it was not recognised.")
        ratio = self.beta_over_precision
        wanted = 1.0 if beta is None else beta
        if ratio is None and (self.beta is None or not math.isclose(self.beta, wanted, rel_tol=1e-6)):
            problems.append(f"β is {number(self.beta)}, expected {number(wanted)}.")
        if ratio is not None and precision is not None and not math.isclose(ratio, wanted / precision, rel_tol=1e-6):
            problems.append(f"β/γ² is {number(ratio)}, expected {number(wanted / precision)}.")
        if ratio is not None and precision is None and beta is not None and self.beta is not None:  # noqa: SIM102
            if not math.isclose(self.beta, wanted, rel_tol=1e-6):
                problems.append(f"β is {number(self.beta)}, expected {number(wanted)}.")
        if problems:
            raise AssertionError(" ".join([f"{self.name} is not the ELBO:", *problems]))

    def adapter(self, encoder: Callable[..., object], decoder: Callable[[Tensor], Tensor]) -> LatentModel:
        """The model as `vs.diagnose`, `vs.certify` and `vs.compare` take it, with likelihood, precision, β and scale.

        Args:
            encoder: x -> mu and the encoder's second output, or one tensor with both halves along its last axis.
            decoder: z -> y, as the loss reads it.
        """
        if not self.latent_dim:
            raise InputError("the audit does not know the number of latents; pass latent_dim= to vs.audit.")
        return self.objective_spec.model(encoder, decoder, self.latent_dim)

    def summary(self) -> Table:
        """A row per term: what it is, its weight, and how it is reduced."""
        rows: list[dict[str, object]] = [
            {
                "term": term,
                "what": what,
                "weight": None if math.isnan(weight.value) else weight.value,
                "over samples": weight.batch,
                "over numbers of a sample": weight.data,
                "over latents": weight.latents,
            }
            for term, what, weight in (
                (
                    "reconstruction",
                    f"{self.likelihood.replace('_', ' ')}, y is {self.output.replace('_', ' ')}",
                    self.reconstruction,
                ),
                ("KL", f"s is {self.scale.replace('_', ' ')}", self.kl),
            )
        ]
        for name, parameters in self.terms.items():
            shown = ", ".join(f"{key} {number(value)}" for key, value in parameters.items() if key != "weight")
            rows.append(
                {
                    **dict.fromkeys(rows[0], ""),
                    "term": name.replace("_", " "),
                    "what": shown,
                    "weight": parameters.get("weight"),
                }
            )
        return Table(rows)

    def facts(self) -> list[tuple[str, str]]:
        """Single numbers with their labels."""
        values = [
            ("likelihood", self.likelihood.replace("_", " ")),
            ("precision γ²", "" if self.precision is None else number(self.precision)),
            ("β", "" if self.beta is None else number(self.beta)),
            ("β/γ²", "" if self.beta_over_precision is None else number(self.beta_over_precision)),
            ("encoder's second output", self.scale.replace("_", " ")),
            ("latents in use on the data", "" if self.active is None else f"{self.active} of {self.latent_dim}"),
            ("noise of z", "" if self.noise is None else _noise_sentence(self.noise)),
            *((name, f"{c.value:g}: changes {c.effect}") for name, c in self.coefficients.items()),
        ]
        return [(label, value) for label, value in values if value]

    def content(self) -> dict[str, object]:
        """Everything that `to_json` writes."""
        return {
            "name": self.name,
            "sentence": self.sentence,
            "likelihood": self.likelihood,
            "output": self.output,
            "scale": self.scale,
            "reconstruction": self.reconstruction,
            "kl": self.kl,
            "precision": self.precision,
            "beta": self.beta,
            "beta_over_precision": self.beta_over_precision,
            "terms": self.terms,
            "faults": list(self.faults),
            "ineffective": list(self.ineffective),
            "coefficients": self.coefficients,
            "noise": self.noise,
            "schedule": [list(point) for point in self.schedule],
            "active": self.active,
            "latent_dim": self.latent_dim,
            "recognised": self.recognised,
            "findings": self.findings,
        }

    def figures(self) -> list[Drawing]:
        """The phase diagram of the data with this loss in it, and the schedule, as far as they are known."""
        drawn = []
        ratio = self.beta_over_precision
        if self.spectrum is not None and self.spectrum.total > 0 and ratio is not None and ratio > 0:
            panels = figures.phase_diagram(self.spectrum.eigenvalues, ratio, self.latent_dim, label="this loss")
            drawn.append(
                figures.drawing("phase", panels, "What a linear VAE does on these data; the star is this loss.")
            )
        if self.schedule:
            figure, (axis,) = figures.row_of_panels(1, width=7.0, height=3.2)
            axis.plot([v for v, _ in self.schedule], [beta for _, beta in self.schedule])
            figures.format_axis(axis, title="β over training", x="scheduled argument", y="β", log="", legend=False)
            drawn.append(figures.drawing("schedule", figure, "The weight of the KL at each value of the schedule."))
        return drawn

    def page(self) -> str:
        """The HTML page; text from users is escaped."""
        return render("report.html", **{**self.page_values(), "kind": "audit"})

    def __repr__(self) -> str:
        return "\n".join([f"Audit of {self.name}: {self.sentence}", *super().__repr__().splitlines()[1:]])


def _noise_sentence(noise: Noise) -> str:
    if noise.kind == "none":
        return "none"
    scale = "σ" if noise.scale == "std" else noise.scale
    shared = f", the same for all {noise.shared}" if noise.shared else ", one for each sample and latent"
    evaluation = "also in evaluation mode" if noise.evaluation else "none in evaluation mode"
    return f"{noise.kind.replace('_', ' ')}, times {scale}{shared}; {evaluation}"


def _weight(value: float, reductions: Reductions, space: Space) -> Weight:
    names = {1: "sum", 0: "mean", None: "unknown"}
    averaged = [k for k, power in enumerate(reductions.data) if power == -1]
    data = "sum" if set(reductions.data) == {0} else "unknown"
    if averaged:
        data = (
            "mean"
            if len(averaged) == len(reductions.data)
            else f"mean over axes {', '.join(str(k + 1) for k in averaged)}"
        )
    batch = names.get(reductions.batch, f"∝ N^{reductions.batch}")
    return Weight(value, batch, data, {0: "sum", -1: "mean"}.get(reductions.latents or 0, "unknown"))


def audit(
    loss: object,
    *,
    x: object | None = None,
    y: object | None = None,
    latent_dim: int | None = None,
    arguments: str | Mapping[str, str] | None = None,
    keywords: Mapping[str, object] | None = None,
    total: int | str | None = None,
    others: Mapping[str, Tensor] | None = None,
    model: nn.Module | None = None,
    batch: Callable[[Tensor], object] | None = None,
    encoder: str | None = None,
    decoder: str | None = None,
    schedule: Mapping[str, Sequence[int | float]] | None = None,
    name: str | None = None,
) -> Audit:
    """Find out which objective a loss really is: likelihood, β, reductions, further terms, and faults.

    The loss is evaluated in float64 at chosen points. Its derivatives identify every term exactly, as coefficients of
    known terms; nothing is trained, and models are copied.

    Args:
        loss: a function of x, y (the decoder's output), mu and s (the encoder's second output) in any order; a module
            with `training_step`, `loss_function` or `loss`; or, with `model=`, a step(model, batch).
        x: samples as the loss takes them; some numbers in 0..1 if not given. With enough of them the audit says what
            the loss leaves of the latents.
        y: an output of the decoder for some samples, if its shape is not that of x; also finds a sigmoid applied twice.
        latent_dim: d, the number of latents.
        arguments: the role of each positional argument where names do not show it: "x y mu s", or by name. Roles: x,
            y, mu, s, z (a sample), y_scale, dispersion, labels, label_logits, discriminator, and for both encoder
            outputs in one argument pair, moments (along axis 1), last_moments or normal.
        keywords: keyword arguments to call the loss with.
        total: which part of what it returns is minimised: index, key, attribute, or "sum".
        others: tensors for arguments other than x, y, mu and s, by role.
        model: what a step is called with; a copy is used.
        batch: makes the batch of a step from x; by default (x, labels), x and dictionaries are tried.
        encoder: name of the model's part that returns mu and s, where it is not recognised.
        decoder: name of the part that returns y.
        schedule: values of one keyword argument over training, to see how β changes: {"step": range(0, 10_000, 100)}.
        name: what the report calls the loss.

    >>> import torch.nn.functional as F
    >>> def loss(recon_x, x, mu, log_var):
    ...     return F.mse_loss(recon_x, x) - 0.5 * (1 + log_var - mu**2 - log_var.exp()).sum(1).mean()
    >>> found = audit(loss, latent_dim=2)
    >>> found.faults, round(found.beta, 6), round(found.beta_over_precision, 6)
    (('reconstruction_averaged_over_pixels',), 12.0, 6.0)
    """
    if latent_dim is not None:
        validation.integer("latent_dim", latent_dim)
    samples = None if x is None else read_tensor(x, "x")
    read = read_loss(
        loss,
        x=samples,
        y=None if y is None else read_tensor(y, "y"),
        latent_dim=latent_dim,
        arguments=arguments,
        keywords=keywords,
        total=total,
        others=others,
        model=model,
        batch=batch,
        encoder=encoder,
        decoder=decoder,
    )
    objective, found, spec = read.objective, read.found, read.spec
    with torch.inference_mode(False), torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of user code at values that it was not written for
        betas = _over_training(objective, found, schedule or {})
    spectrum = _spectrum(samples)
    known = faults(found, read.y)
    betas = [(v, ratio if found.fixes_scale else ratio * read.precision) for v, ratio in betas]
    facts = Facts(read, known, ineffective(found), spectrum, betas)
    return Audit(
        name=name or spec.name,
        likelihood=spec.likelihood,
        output=spec.output,
        scale=spec.scale,
        reconstruction=_weight(_trained(found, "reconstruction"), found.reductions["reconstruction"], found.space),
        kl=_weight(_trained(found, "kl"), found.reductions["kl"], found.space),
        precision=spec.precision,
        beta=spec.beta,
        terms=found.terms,
        likelihood_parameter=found.reconstruction.parameter
        if found.reconstruction.likelihood in ("huber", "log_cosh")
        else None,
        faults=known,
        findings=findings(facts),
        coefficients=_shown_coefficients(found),
        noise=found.noise,
        schedule=betas,
        spectrum=spectrum,
        latent_dim=spec.latent_dim,
        recognised=found.divergence.recognised and found.reconstruction.likelihood != "other" and not found.unknown,
    )


def _trained(found: Identified, term: str) -> float:
    """The weight of the gradient: 0 for a detached term."""
    part = found.reconstruction if term == "reconstruction" else found.divergence
    return 0.0 if part.detached else part.weight


def _shown_coefficients(found: Identified) -> dict[str, Coefficient]:
    """Without counters that change nothing, such as an index of the batch."""
    without = {*ineffective(found)}
    return {n: c for n, c in found.coefficients.items() if c.effect != "nothing" or n in without}


def _spectrum(samples: Tensor | None, largest: int = 5000) -> Spectrum | None:
    """Of data with more samples than a batch has."""
    if samples is None or len(samples) <= 64:
        return None
    rows = samples[:largest].flatten(1).double().numpy()
    return spectrum_of_rows(rows) if bool(np.isfinite(rows).all()) else None


def _over_training(
    objective: Objective, found: Identified, schedule: Mapping[str, Sequence[int | float]]
) -> list[tuple[float, float]]:
    """The scheduled argument, and the ratio of the weights."""
    if not schedule:
        return []
    if len(schedule) > 1:
        raise InputError(f"schedule= takes one keyword argument, got {', '.join(schedule)}.")
    ((name, values),) = schedule.items()
    if name not in {**objective.keywords, **objective.attributes}:
        options = ", ".join({**objective.keywords, **objective.attributes}) or "none"
        raise InputError(f"schedule= names {name}, which {objective.title} does not take; it takes {options}.")
    kept = list(values)[:: max(1, len(list(values)) // 100)]
    kept += [list(values)[-1]] if kept and kept[-1] != list(values)[-1] else []
    at = []
    for value in kept:
        w_r, w_k = weights(objective, found, found.space, {name: value})
        at.append((float(value), w_k / w_r if w_r else math.nan))
    return at
