"""Which interventions a finding asks for, and how each is fitted: in closed form, or by gradient ascent on the ELBO."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vaescope.analysis.encoding import EncodedSample, encode_sample
from vaescope.analysis.likelihood import measure_elbo
from vaescope.analysis.models import sample_log_likelihood
from vaescope.analysis.samples import ModelInputs
from vaescope.core import randomness
from vaescope.core.calls import weight_slots, weights_in_place
from vaescope.core.errors import Skipped, first_line
from vaescope.distributions import Normal
from vaescope.distributions.likelihoods import gaussian_log_likelihood, optimal_precision
from vaescope.improvement.changes import (
    Change,
    FullCovariance,
    MixturePrior,
    NewInput,
    NewPrecision,
    NewReading,
    NewWeights,
    NewWidths,
    NormalPrior,
    Optimised,
    Removal,
    Respecified,
    Rotated,
    Rotation,
    Widened,
    as_sample,
    kl_divergence,
)
from vaescope.inference.joint import whitened
from vaescope.models.member import Member
from vaescope.products.compare.measure import elbo_of_samples
from vaescope.products.diagnose.diagnose import Diagnosis
from vaescope.protocol import LatentModel, WrappedModel


@dataclass(frozen=True)
class Limits:
    """Of what is tried, and of what is kept; read from the class."""

    samples: int = 1000
    """Of the selection part and of the held-out samples that are measured."""
    draws: int = 64
    """Of z per sample for an ELBO; fewer if decoding takes long."""
    seconds: float = 1.5
    """That one ELBO of all these samples may take."""
    same: float = 0.05
    """Nats that a change may cost that is made for another reason than the likelihood."""
    least: float = 0.01
    """Nats that a change must gain to be worth making."""
    components: tuple[int, ...] = (1, 3, 10, 30)
    """Of mixtures that are tried as priors."""
    batch: int = 64
    patience: int = 12
    """Evaluations without a better one, after which the rate is lowered."""
    decays: int = 2
    """How often the rate is lowered before training ends."""


@dataclass
class Setting:
    """What an intervention may use: never the held-out samples."""

    model: LatentModel
    diagnosis: Diagnosis
    fit: ModelInputs
    """Samples that parameters are fitted to."""
    select: ModelInputs
    """Samples that decide when training ends and what is kept."""
    seconds: float
    """That this intervention may take."""
    say: Callable[[str], object] = lambda line: None
    interrupted: bool = field(default=False, init=False)

    def sample(self, count: int = 2000) -> EncodedSample:
        """Samples of the fitting part, encoded."""
        return encode_sample(self.model, self.fit, None, count)


@torch.no_grad()
def elbo_values(model: LatentModel, x: ModelInputs, noise: Float[Tensor, "M S d"]) -> Float[Tensor, " N"]:
    """The ELBO of samples from all over x.

    Args:
        model: the model, as it is: nothing that it returns is corrected.
        x: samples.
        noise: draws of each sample, for at least as many as there are; the same for models that are compared.
    """
    sample = encode_sample(model, x, None, Limits.samples)
    if not bool((sample.variance > 0).all()):
        raise Skipped("the encoder returns variances that are not positive")
    if model.posterior_density is None and model.prior_density is None and model.has_decoder:
        return elbo_of_samples(sample, noise=noise[: len(sample)])
    return measure_elbo(sample, draws=noise.shape[1]).elbo


# closed form ----------------------------------------------------------------------------------------


def read_scale(setting: Setting) -> Change:
    scale = setting.diagnosis.evidence.scale
    if scale is None:
        raise Skipped("the scale of the encoder's second output is not known")
    return NewReading(scale=scale.name)


def read_logits(setting: Setting) -> Change:
    return NewReading(logits=True)


def rescale_input(setting: Setting) -> Change:
    """The change of x that the diagnosis found, if it is a scaling and a shift."""
    found = setting.diagnosis.evidence.reconstruction
    affine = None if found is None else _affine(found.best.formula, float(torch.as_tensor(setting.fit.x).max()))
    if affine is None or (setting.model.likelihood == "bernoulli" and abs(affine[0]) != 1):
        raise Skipped("no scaling and shift of x was found with which it is as in training")
    return NewInput(*affine)


def _affine(formula: str, largest: float) -> tuple[float, float] | None:
    """Factor and shift of a formula of x.

    >>> _affine("x / 255", 255.0), _affine("0.062 * x - 0.3", 1.0), _affine("x.log1p()", 1.0)
    ((0.00392156862745098, 0.0), (0.062, -0.3), None)
    """
    known = {
        "x / 255": (1 / 255, 0.0),
        "x * 255": (255.0, 0.0),
        "x / 127.5 - 1": (1 / 127.5, -1.0),
        "x / x.max()": (1 / max(largest, 1e-12), 0.0),
        "2 * x - 1": (2.0, -1.0),
        "(x + 1) / 2": (0.5, 0.5),
        "x.max() - x": (-1.0, largest),
    }
    number = r"-?[\d.]+(?:e[+-]\d+)?"
    found = re.fullmatch(rf"({number}) \* x ([+-]) ({number})", formula)
    if found is None:
        return known.get(formula)
    return float(found[1]), float(found[2] + found[3])


def set_precision(setting: Setting) -> Change:
    """The maximum-likelihood value for z ~ q(z|x), exact for a linear decoder: draws are mirrored and whitened."""
    model = setting.model
    if model.likelihood != "gaussian" or model.log_likelihood is not None:
        raise Skipped("the likelihood is not a Gaussian one with one variance")
    return NewPrecision(float(optimal_precision(*_squared_error(setting.sample()))))


@torch.no_grad()
def _squared_error(sample: EncodedSample, draws: int = 64) -> tuple[Tensor, int]:
    """E‖x - f(z)‖² per sample, z ~ q(z|x), and the numbers per sample."""
    x, dim = sample.observations, sample.mean.shape[1]
    draws = max(draws, 4 * dim) if dim <= 64 else draws
    mean, deviation = sample.mean.double(), sample.variance.double().sqrt()
    total, step = torch.zeros(len(sample), dtype=torch.float64), max(1, 4096 // draws)
    generator = randomness.generator(0, "squared error")
    for rows in torch.arange(len(sample)).split(step):
        half = torch.randn(len(rows), draws // 2, dim, generator=generator, dtype=torch.float64)
        noise = torch.cat([half, -half], 1)
        noise = whitened(noise) if 4 * dim <= draws else noise
        z = (mean[rows, None] + deviation[rows, None] * noise).flatten(0, 1)
        output = sample.decode(z.to(sample.mean.dtype)).double()
        error = (x[rows].repeat_interleave(draws, 0) - output).square().sum(1)
        total[rows] = error.reshape(len(rows), draws).mean(1)
    return total.mean(), x.shape[1]


def remove_latents(setting: Setting) -> Change:
    regime = setting.diagnosis.evidence.regime
    if not regime.used or not regime.passive:
        raise Skipped("no latent is unused beside used ones")
    filling = setting.sample(1).prior_mean.mean(0)
    return Removal(tuple(sorted(regime.used)), filling)


def rotate(setting: Setting) -> Change:
    geometry = setting.diagnosis.evidence.geometry
    if geometry is None or geometry.rotation is None:
        raise Skipped("no better axes are known")
    axes, latents = torch.eye(setting.model.latent_dim, dtype=torch.float64), torch.tensor(geometry.rotated)
    axes[latents[:, None], latents] = torch.from_numpy(geometry.rotation.matrix)
    try:
        widths = fit_widths(replace(setting, model=Rotated(setting.model, axes)))
    except Skipped:
        return Rotation(axes)
    return Rotation(axes, widths.factor)


def fit_prior(setting: Setting) -> Change:
    """The prior with the best density of codes of the selection part: normal, a mixture, or posteriors of samples."""
    from sklearn.mixture import GaussianMixture

    sample, held = setting.sample(5000), encode_sample(setting.model, setting.select, None, 2000)
    if len(sample) < 50:
        raise Skipped("a prior is fitted to codes of 50 samples or more")
    codes, chosen = (_codes(one, 4) for one in (sample, held))
    square = (sample.mean.double().square() + sample.variance.double()).mean(0)
    mean = sample.mean.double().mean(0)
    normal = NormalPrior(mean, square - mean.square())
    scores: list[tuple[float, Change]] = [
        (float(Normal(normal.mean, normal.variance).log_density(chosen).sum(1).mean()), normal)
    ]
    for count in Limits.components:
        if len(sample) >= 20 * count:
            mixture = GaussianMixture(count, reg_covar=1e-4, random_state=0).fit(codes.numpy())
            factor = torch.linalg.cholesky(torch.from_numpy(mixture.covariances_))
            fitted = MixturePrior(torch.from_numpy(mixture.weights_), torch.from_numpy(mixture.means_), factor)
            scores.append((float(fitted.log_prob(chosen).mean()), fitted))
    some = sample.random_subset(200)
    posteriors = MixturePrior(
        torch.full((len(some),), 1 / len(some), dtype=torch.float64),
        some.mean.double(),
        torch.diag_embed(some.variance.double().sqrt()),
    )
    scores.append((float(posteriors.log_prob(chosen).mean()), posteriors))
    return max(scores, key=lambda entry: entry[0])[1]


def _codes(sample: EncodedSample, draws: int) -> Float[Tensor, "M d"]:
    """Draws from the posteriors of all samples."""
    noise = torch.randn(draws, *sample.mean.shape, generator=randomness.generator(0, "prior"), dtype=torch.float64)
    return (sample.mean.double() + sample.variance.double().sqrt() * noise).flatten(0, 1)


# gradient ascent on the ELBO ------------------------------------------------------------------------


@dataclass(frozen=True)
class Ascent:
    """How parameters are trained."""

    rate: float = 1e-3
    warm_up: int = 0
    """Steps until the KL has its full weight."""
    most: int = 200_000
    """Steps."""


def ascend(
    setting: Setting, build: Callable[[dict[str, Tensor]], LatentModel], start: Mapping[str, Tensor], ascent: Ascent
) -> tuple[dict[str, Tensor], int]:
    """Parameters with the best ELBO of the selection part, and the steps made; Ctrl-C ends training early.

    Args:
        setting: samples, and the time that there is.
        build: from parameters to the model whose ELBO is maximised.
        start: parameters; `log_precision`, if it is among them, is that of a Gaussian decoder.
        ascent: rate and warm-up.
    """
    values = {name: nn.Parameter(value.detach().clone()) for name, value in start.items()}
    model, deadline = Respecified(build({**values}), {}), time.monotonic() + setting.seconds  # its spec is built once
    inputs = encode_sample(model, setting.fit, None, 50_000).x
    held = encode_sample(model, setting.select, None, 256)
    generator = randomness.generator(0, "ascent")
    noise = torch.randn(8, *held.mean.shape, generator=generator, dtype=held.mean.dtype)

    @torch.no_grad()
    def score() -> float:
        current = _refreshed(model, held)
        return float(torch.stack([_elbo(current, one, values.get("log_precision")) for one in noise]).mean())

    noisy = [value for name, value in values.items() if name == "log_precision"]
    others = [value for name, value in values.items() if name != "log_precision"]
    groups = [{"params": others, "lr": ascent.rate}, {"params": noisy, "lr": 10 * ascent.rate}]
    optimiser = torch.optim.Adam([group for group in groups if group["params"]])
    best, best_score = {name: value.detach().clone() for name, value in values.items()}, score()
    every = max(50, len(inputs) // Limits.batch // 2)  # steps between evaluations, each as long as about ten steps
    step, waited, decays, shown = 0, 0, 0, time.monotonic()
    try:
        while step < ascent.most and time.monotonic() < deadline:
            rows = torch.randint(len(inputs), (min(Limits.batch, len(inputs)),), generator=generator)
            x = inputs[rows]
            mean, variance = model.encode(x)
            weight = min(1.0, (step + 1) / ascent.warm_up) if ascent.warm_up else 1.0
            drawn = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
            loss = -_elbo(as_sample(model, x, mean, variance), drawn, values.get("log_precision"), weight).mean()
            for value, gradient in zip(
                values.values(), torch.autograd.grad(loss, [*values.values()], allow_unused=True), strict=False
            ):
                value.grad = gradient  # not loss.backward(), which would leave gradients in the user's networks
            finite = bool(nn.utils.clip_grad_norm_(values.values(), 1e4).isfinite())
            if finite:
                optimiser.step()
            step += 1
            if time.monotonic() - shown > 5.0:
                shown = time.monotonic()
                setting.say(f"step {step}, ELBO {best_score:.4g}, {max(0.0, deadline - shown):.0f} s left")
            if step % every and finite:
                continue
            found = score()
            waited += step > ascent.warm_up
            if found > best_score:
                best, best_score, waited = {name: value.detach().clone() for name, value in values.items()}, found, 0
            if waited > Limits.patience or not math.isfinite(found):
                if decays == Limits.decays:
                    break
                decays, waited = decays + 1, 0
                for name, value in values.items():
                    value.data.copy_(best[name])
                for group in optimiser.param_groups:
                    group["lr"] /= 4
    except KeyboardInterrupt:
        setting.interrupted = True
    return best, step


def _refreshed(model: LatentModel, sample: EncodedSample) -> EncodedSample:
    """The sample, encoded again."""
    mean, variance = model.encode(sample.x)
    return as_sample(model, sample.x, mean, variance)


def _elbo(
    sample: EncodedSample, noise: Tensor, log_precision: Tensor | None, weight: float = 1.0
) -> Float[Tensor, " N"]:
    """A differentiable estimate per sample, with one draw of z."""
    z, flat = sample.mean + sample.variance.sqrt() * noise, sample.x.flatten(1)
    if log_precision is None:
        fit = sample_log_likelihood(sample)(flat, z)
    else:
        error = (flat - sample.decode(z)).square().sum(1)
        fit = gaussian_log_likelihood(error, flat.shape[1], log_precision.exp())
    return fit - weight * kl_divergence(sample)


def _check_trainable(setting: Setting, *, weights: bool = True) -> None:
    """Raise `Skipped` unless the ELBO has gradients with respect to the latents, and to weights if they are trained."""
    model = setting.model
    if model.prior_density is not None or model.posterior_density is not None:
        raise Skipped("the prior or the posterior is given by functions, which are not trained")
    if weights and not model.trained_weights():
        raise Skipped("the weights cannot be seen, so only closed forms can be applied")
    sample = setting.sample(2)
    try:
        with torch.enable_grad():
            z = sample.mean.detach().clone().requires_grad_()
            torch.autograd.grad(sample_log_likelihood(sample)(sample.x.flatten(1), z).sum(), z)
    except (RuntimeError, ValueError) as error:
        raise Skipped(f"the decoder has no gradients ({first_line(error, 120)})") from None


def dependencies(model: LatentModel, x: Tensor) -> tuple[set[str], set[str]]:
    """Names of the weights that the encoder and the decoder depend on.

    Args:
        model: the model.
        x: a few samples as the model takes them.
    """
    values = {name: nn.Parameter(value.detach().clone()) for name, value in _floating(model).items()}
    changed = model.with_weights(values)
    with torch.enable_grad():
        mean, variance = changed.encode(x)
        decoded = changed.decode(mean.detach()) if changed.has_decoder else mean.detach()
        found: list[set[str]] = []
        for output in (mean.sum() + variance.log().sum(), decoded.sum()):
            if not output.requires_grad:
                found.append(set())
                continue
            gradients = torch.autograd.grad(output, [*values.values()], allow_unused=True, retain_graph=True)
            found.append({name for name, value in zip(values, gradients, strict=True) if value is not None})
    return found[0], found[1]


def _floating(model: LatentModel) -> dict[str, Tensor]:
    """What can be trained: parameters of modules without their buffers; of a member of a stack, all weights."""
    every = {name: value for name, value in model.trained_weights().items() if value.is_floating_point()}
    parameters: dict[str, Tensor] = {name: value for name, value in every.items() if isinstance(value, nn.Parameter)}
    return parameters or every


def fit_widths(setting: Setting) -> NewWidths:
    """A factor per latent for all posterior variances, with the best ELBO of this decoder."""
    model = setting.model
    _check_trainable(setting, weights=False)
    start = {"log_factor": torch.zeros(model.latent_dim)}
    found, _ = ascend(setting, lambda values: Widened(model, values["log_factor"]), start, Ascent(0.1, most=600))
    return NewWidths(found["log_factor"].double().exp())


def _trained(setting: Setting, what: str, start: Mapping[str, Tensor], ascent: Ascent) -> Change:
    """Weights with the best ELBO; where the decoder is trained, the variance of a Gaussian one too."""
    model = setting.model
    spec = model.spec
    learns = what != "encoder" and spec.likelihood == "gaussian" and spec.log_likelihood is None
    given = dict(start)
    if learns:
        given["log_precision"] = torch.tensor(spec.precision or 1.0).log()
    others = {name: value for name, value in model.trained_weights().items() if name not in start}
    found, steps = ascend(
        setting,
        lambda values: model.with_weights({k: v for k, v in values.items() if k != "log_precision"}),
        given,
        ascent,
    )
    precision = float(found.pop("log_precision").double().exp()) if learns else None
    return NewWeights(what, steps, ascent.rate, ascent.warm_up, precision, {**others, **found})


def train_encoder(setting: Setting) -> Change:
    _check_trainable(setting)
    encoder, decoder = dependencies(setting.model, setting.sample(4).x)
    names = encoder - decoder
    if not names:
        raise Skipped("encoder and decoder have no weights of their own")
    start = {name: value for name, value in _floating(setting.model).items() if name in names}
    return _trained(setting, "encoder", start, Ascent(1e-3))


def train_all(setting: Setting) -> Change:
    _check_trainable(setting)
    names = set().union(*dependencies(setting.model, setting.sample(4).x))
    start = {name: value for name, value in _floating(setting.model).items() if name in names}
    return _trained(setting, "model", start, Ascent(1e-3))


def restart(setting: Setting) -> Change:
    """New initial weights, and a KL that is warmed up."""
    _check_trainable(setting)
    names = set().union(*dependencies(setting.model, setting.sample(4).x))
    start = {name: value for name, value in initial_weights(setting.model).items() if name in names}
    batches = max(1, len(setting.fit) // Limits.batch)
    return _trained(setting, "model", start, Ascent(2e-3, warm_up=max(200, 10 * batches)))


def initial_weights(model: LatentModel) -> dict[str, Tensor]:
    """Weights as each layer initialises them; those of layers that cannot stay as they are.

    Args:
        model: the model, whose own weights stay as they are.
    """
    inner = model
    while isinstance(inner, WrappedModel):
        inner = inner.model
    if isinstance(inner, Member):
        return inner.model.init([1])
    values = {
        name: nn.Parameter(value.detach().clone(), requires_grad=value.is_floating_point())
        if isinstance(value, nn.Parameter)
        else value.clone()
        for name, value in model.trained_weights().items()
    }
    networks = model.trained_networks()
    with weights_in_place(weight_slots(networks), values), randomness.seeded("restart"), torch.no_grad():
        for module in (part for network in networks for part in network.modules()):
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return {name: value.detach() for name, value in values.items() if name in _floating(model)}


def optimise_posteriors(setting: Setting) -> Change:
    _check_trainable(setting, weights=False)
    return Optimised()


def widen_family(setting: Setting) -> Change:
    model = setting.model
    _check_trainable(setting, weights=False)
    if model.log_likelihood is not None or model.conditional or model.latent_dim > 32:
        raise Skipped("it needs a Gaussian or Bernoulli decoder of at most 32 latents")
    return FullCovariance()


# which and in which order ---------------------------------------------------------------------------


ALWAYS = "always tried"


@dataclass(frozen=True)
class Intervention:
    """Something that can be changed, and for which findings it is tried."""

    name: str
    title: str
    findings: tuple[str, ...]
    fitted: Callable[[Setting], Change]
    neutral: bool = False
    """It is made for another reason than the likelihood, and kept if that stays the same."""
    after: str = ""
    """An intervention that must have been tried before."""
    share: float = 0.05
    """Of the time left that it may take."""


INTERVENTIONS: tuple[Intervention, ...] = (
    Intervention("logits", "Decoder outputs as probabilities", ("logits",), read_logits),
    Intervention("scale", "Posterior variances read right", ("negative-variance", "scale-of-variance"), read_scale),
    Intervention("input", "x scaled as in training", ("reconstruction", "data-range"), rescale_input),
    Intervention("variance", "Decoder variance of maximum likelihood", ("decoder-variance", ALWAYS), set_precision),
    Intervention("axes", "Latents rotated to the decoder's axes", ("rotated",), rotate, neutral=True),
    Intervention(
        "widths",
        "Posterior variances rescaled",
        ("rotated", "decoder-variance", "not-a-vae", "beta-high", "beta-low", "wide-posteriors"),
        fit_widths,
        share=0.08,
    ),
    Intervention("prior", "Prior fitted to the codes", ("aggregate",), fit_prior),
    Intervention(
        "encoder",
        "Encoder trained for this decoder",
        ("amortization", "rotated", "wide-posteriors", "reconstruction", "decoder-variance", "overfit"),
        train_encoder,
        share=0.3,
    ),
    Intervention(
        "posteriors", "Posteriors optimised for each sample", ("amortization",), optimise_posteriors, after="encoder"
    ),
    Intervention("family", "Posteriors with full covariances", ("rotated",), widen_family, after="encoder"),
    Intervention(
        "all",
        "All weights trained with the ELBO",
        (
            "untrained",
            "not-converged",
            "decoder-variance",
            "beta-high",
            "beta-low",
            "not-a-vae",
            "reconstruction",
            "overfit",
            "unused-layer",
        ),
        train_all,
        share=0.85,
    ),
    Intervention(
        "restart",
        "Trained from new weights, with a warm-up of the KL",
        ("collapsed", "uninformative"),
        restart,
        share=0.85,
    ),
    Intervention(
        "latents", "Unused latents removed", ("too-many-latents", "dead-latent"), remove_latents, neutral=True
    ),
)
"""Cheapest first: closed forms, then what leaves the decoder as it is, then training of all weights; unused latents are
removed last, because other changes may bring them into use."""


def asked_for(diagnosis: Diagnosis) -> list[tuple[Intervention, str]]:
    """The interventions that findings ask for, in order, each with the code of the finding.

    Where they ask for none that changes weights or readings, the decoder variance is tried in any case: a smaller
    factor than that of a finding costs nats as well. Before that, errors of the encoder would count as noise.
    """
    codes = [finding.code for finding in diagnosis.findings]
    found = [
        (one, next(code for code in codes if code in one.findings))
        for one in INTERVENTIONS
        if any(code in one.findings for code in codes)
    ]
    if all(one.name in ("latents", "prior") for one, _ in found):
        found = [(one, ALWAYS) for one in INTERVENTIONS if ALWAYS in one.findings] + found
    return found
