"""Loss functions in the style of public VAE code, each with what it optimises, derived by hand.

The cases lie in five files. Rules were written with `development.py` alone, and `scored.py` measured them; these
halves were drawn at random within each kind (names sorted, shuffled with `random.Random(43)`, every second one) before
any rule existed. `blind.py`, `third.py` and `fourth.py` were written after the rules, without knowledge of them, and
measured them again, each after what the one before had shown was repaired. Every function is own code after the formula
of its source; a source without a repository says "public code" (read, but without a repository's name) or "after the
usual form" (known, not read).

A loss is written as

    loss = w_r * mean_i[-log p(x_i | y_i)] + w_k * mean_i[KL_i] + extra terms + a constant,

with the mean over the N samples, sums over the n numbers of a sample and over the d latents, and a *unit* likelihood:
variance 1 for "gaussian", scale 1 for "laplace", and for "huber" ½ t² below its threshold. `reconstruction` and `kl`
are w_r and w_k as code in N, n and d, at the default arguments or at `Inputs.kwargs`. Then beta/precision of a Gaussian
of fixed variance is w_k / w_r, and where the likelihood fixes the scale, beta = w_k / w_r and overall = w_r.

For free bits and capacity, w_k is the factor of the KL where it exceeds the threshold. For a detached term the weight
is that of its gradient, 0. Where only one term's form is wrong (see `Fault`), w_k multiplies the wrong form, with the ½
of the correct formula: ½ Σ (μ² + σ² - 1 - log σ²) with the wrong part replaced.

Reductions that differ (a mean in one term, a sum in the other) are a fault where neither term has an explicit weight,
and arguable where one has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

Likelihood = Literal[
    "gaussian",  # fixed variance
    "gaussian_learned",  # variance from the decoder or a parameter
    "gaussian_optimal",  # variance set to the mean squared error of the batch
    "laplace",  # fixed scale
    "laplace_learned",
    "huber",  # ½ t² up to |t| = threshold, then linear
    "log_cosh",  # log cosh(a (x - y)), a the likelihood_parameter
    "bernoulli",
    "categorical",
    "multinomial",
    "poisson",
    "negative_binomial",
    "mixed",  # continuous columns with learned variance and one categorical column
    "none",  # y is not read as the parameter of a distribution of x
    "other",  # not in this list: only the KL is identified
]
Scale = Literal["log_variance", "variance", "std", "log_std", "softplus_std", "log_precision"]
Output = Literal["mean", "probability", "logit", "rate", "log_rate", "log_probability"]
Kind = Literal["elbo", "weighted", "term", "fault"]
Half = Literal["development", "scored", "blind", "third", "fourth"]
Term = Literal[
    "capacity",  # |KL - C|
    "free_bits",  # max(KL, level)
    "mmd",
    "total_correlation",
    "covariance",  # of the encoder's means, off the identity (DIP-VAE)
    "mean_penalty",  # squared means
    "mean_sparsity",  # absolute means
    "label",  # cross-entropy of a classifier
    "monte_carlo_kl",  # the KL from the sample z, not in closed form
]
Fault = Literal[
    "kl_missing_half",
    "kl_wrong_sign",
    "kl_log_std_as_log_variance",  # log σ in the place of log σ²
    "kl_exp_of_exp",  # exp(σ²) in the place of σ²
    "kl_missing_mean",  # no μ²
    "kl_sign_of_mean",  # -μ² in the place of μ²
    "kl_mean_not_squared",  # μ in the place of μ²
    "kl_sign_of_variance",  # -σ² in the place of σ²
    "kl_entropy_only",  # neither μ² nor σ²
    "kl_detached",
    "kl_absent",  # computed or asked for, and not in the loss
    "kl_averaged_over_batch",  # the KL alone
    "kl_averaged_over_latents",
    "kl_divided_by_pixels",  # the KL alone
    "reconstruction_averaged_over_batch",  # the reconstruction alone
    "reconstruction_averaged_over_pixels",
    "reconstruction_detached",
    "coefficient_without_effect",  # named in `Truth.ineffective`
    "sigmoid_twice",
    "softmax_twice",
    "arguments_swapped",  # x as the prediction and y as the target
    "noise_not_std",  # the sample's noise is not scaled by the σ of the KL
    "noise_not_normal",
    "noise_shared",  # one draw for all samples
    "depends_on_batch_size",  # w_k / w_r changes with N
]


@dataclass(frozen=True)
class Inputs:
    """What the loss is called with.

    Args:
        roles: of the positional arguments in order: x, y, mu, s (the encoder's second output), z (a sample), y_scale
            (the decoder's log-variance), dispersion, labels, label_logits, discriminator (two logits per sample), batch
            (x and labels), index, or a name in `packs`.
        samples, data, outputs, latents: N and the shapes of one sample of x, of y (default: as x) and of mu.
        x: "real", "unit" (in 0..1), "binary", "counts", "tokens" (class numbers below the last size of outputs) or
            "table" (two columns in 0..1 and one class of three, one-hot).
        y: what the user's decoder returns: "mean", "probability", "logit", "rate", "log_rate" or "log_probability".
        kwargs: keyword arguments at which the truth holds; without them the defaults.
        method: of a module; without it the object is called.
        total: the part of the returned value that is minimised (index, key or attribute; "sum": all parts).
        submodules: of a module with a training step: what each submodule returns, by role ("mu s" for both).
        packs: arguments that are objects made of tensors.
    """

    roles: tuple[str, ...]
    samples: int = 8
    data: tuple[int, ...] = (12,)
    outputs: tuple[int, ...] = (12,)
    latents: tuple[int, ...] = (3,)
    x: str = "real"
    y: Output = "mean"
    kwargs: Mapping[str, object] = field(default_factory=dict)
    method: str | None = None
    total: int | str | None = None
    submodules: Mapping[str, str] = field(default_factory=dict)
    packs: Mapping[str, Callable[[dict[str, Tensor]], object]] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """N, n and d."""
        return self.samples, math.prod(self.data), math.prod(self.latents)


@dataclass(frozen=True)
class Truth:
    """What the loss optimises, at the shapes of its inputs (see the module's text for the definitions).

    Args:
        likelihood, output: of the loss; output is how the loss reads y, which may differ from what y is.
        scale: how the KL reads the encoder's second output.
        reconstruction, kl: the weights w_r and w_k as code in N, n, d.
        beta_over_precision: for the fixed-variance Gaussian, otherwise None.
        beta, overall: where the likelihood fixes the scale, otherwise None.
        terms: extra terms with their parameters; "weight" is the factor of the term's batch mean.
        faults: must be found.
        arguable: may be reported or not.
        ineffective: keyword arguments that change nothing.
        is_elbo: c * (-log p + KL) for some fixed variance or scale of the decoder. Reductions that differ only move the
            variance of a Gaussian, so such a loss is an ELBO and may have faults.
        likelihood_parameter: of "huber" (threshold) and "log_cosh" (a).
    """

    likelihood: Likelihood
    output: Output
    scale: Scale
    reconstruction: str
    kl: str
    terms: Mapping[Term, Mapping[str, float | str]]
    faults: tuple[Fault, ...]
    arguable: tuple[Fault, ...]
    ineffective: tuple[str, ...]
    likelihood_parameter: float
    beta_over_precision: float | None = None
    beta: float | None = None
    overall: float | None = None
    is_elbo: bool = False

    def weights(self, inputs: Inputs) -> tuple[float, float]:
        """w_r and w_k for other shapes."""
        sizes = dict(zip("Nnd", inputs.sizes, strict=True))
        return float(eval(self.reconstruction, dict(sizes))), float(eval(self.kl, dict(sizes)))


@dataclass(frozen=True)
class Case:
    name: str
    source: str
    loss: Callable[..., object] | nn.Module
    truth: Truth
    half: Half
    kind: Kind
    inputs: Inputs

    def inputs_for(self, samples: int | None) -> Inputs:
        return self.inputs if samples is None else replace(self.inputs, samples=samples)

    def draw(self, seed: int = 0, samples: int | None = None) -> dict[str, Tensor]:
        """Every tensor that the loss may ask for, by role, in float64; s > 0 for a variance or deviation."""
        inputs = self.inputs_for(samples)
        random = torch.Generator().manual_seed(seed)
        n_samples, latents, outputs = inputs.samples, inputs.latents, inputs.outputs

        def normal(*shape: int) -> Tensor:
            return torch.randn(n_samples, *shape, generator=random, dtype=torch.float64)

        def uniform(*shape: int) -> Tensor:
            return 0.05 + 0.9 * torch.rand(n_samples, *shape, generator=random, dtype=torch.float64)

        x = {
            "real": lambda: normal(*inputs.data),
            "unit": lambda: uniform(*inputs.data),
            "binary": lambda: (normal(*inputs.data) > 0).double(),
            "counts": lambda: torch.poisson(4 * uniform(*inputs.data), generator=random),
            "tokens": lambda: torch.randint(outputs[-1], (n_samples, *inputs.data), generator=random),
            "table": lambda: torch.cat([uniform(2), torch.eye(3, dtype=torch.float64)[uniform(3).argmax(1)]], 1),
        }[inputs.x]()
        y = {"probability": uniform, "rate": uniform}.get(inputs.y, normal)(*outputs)
        if inputs.y == "probability" and self.truth.likelihood == "categorical":
            y = normal(*outputs).softmax(-1)
        elif inputs.y == "log_probability":
            y = y.log_softmax(-1)
        mu = normal(*latents)
        positive = self.truth.scale in ("variance", "std")
        return {
            "x": x,
            "y": y,
            "mu": mu,
            "s": 0.5 + uniform(*latents) if positive else 0.5 * normal(*latents),
            "z": mu + 0.7 * normal(*latents),
            "y_scale": 0.3 * normal(*outputs),
            "dispersion": 1 + uniform(*outputs)[0],
            "labels": torch.randint(3, (n_samples,), generator=random),
            "label_logits": normal(3),
            "discriminator": normal(2),
        }

    def value(self, tensors: dict[str, Tensor], **kwargs: object) -> Tensor:
        """The minimised number; a training step gets its encoder's and decoder's outputs from the tensors."""
        inputs, loss = self.inputs, self.loss
        if isinstance(loss, nn.Module):
            loss = loss.double()
        for name, roles in inputs.submodules.items():
            setattr(loss, name, Recorded(*(tensors[role] for role in roles.split())))
        arguments = [self._argument(role, tensors) for role in inputs.roles]
        returned = (getattr(loss, inputs.method) if inputs.method else loss)(*arguments, **{**inputs.kwargs, **kwargs})
        if inputs.total == "sum":
            return sum(returned)
        if isinstance(inputs.total, str) and not isinstance(returned, dict):
            return getattr(returned, inputs.total)
        return returned if inputs.total is None else returned[inputs.total]

    def _argument(self, role: str, tensors: dict[str, Tensor]) -> object:
        if role in self.inputs.packs:
            return self.inputs.packs[role](tensors)
        return (
            {"batch": (tensors["x"], tensors["labels"]), "index": 0}[role]
            if role in ("batch", "index")
            else tensors[role]
        )


class Recorded(nn.Module):
    """Returns fixed tensors and keeps what it was called with."""

    def __init__(self, *outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs
        self.received: Tensor | None = None

    def forward(self, received: Tensor) -> Tensor | tuple[Tensor, ...]:
        self.received = received
        return self.outputs if len(self.outputs) > 1 else self.outputs[0]


def case_adder(cases: list[Case], half: Half) -> Callable[..., Callable[[object], object]]:
    """A decorator that adds a loss (a function, or a module's class, which is instantiated) to the cases of a half."""

    def add(
        name: str,
        source: str,
        kind: Kind,
        roles: str,
        *,
        likelihood: Likelihood,
        reconstruction: str,
        kl: str,
        scale: Scale = "log_variance",
        output: Output = "mean",
        y: Output | None = None,
        outputs: tuple[int, ...] | None = None,
        data: tuple[int, ...] = (12,),
        terms: Mapping[Term, Mapping[str, float | str]] | None = None,
        faults: tuple[Fault, ...] = (),
        arguable: tuple[Fault, ...] = (),
        ineffective: tuple[str, ...] = (),
        likelihood_parameter: float = 1.0,
        **inputs: object,
    ) -> Callable[[object], object]:
        terms = dict(terms or {})
        unknown = {*faults, *arguable} - set(get_args(Fault)) | set(terms) - set(get_args(Term))
        assert not unknown, f"{name}: not in the vocabulary: {unknown}"
        called_with = Inputs(tuple(roles.split()), data=data, outputs=outputs or data, y=y or output, **inputs)
        truth = Truth(
            likelihood=likelihood,
            output=output,
            scale=scale,
            reconstruction=reconstruction,
            kl=kl,
            terms=terms,
            faults=faults,
            arguable=arguable,
            ineffective=ineffective,
            likelihood_parameter=likelihood_parameter,
        )
        w_r, w_k = truth.weights(called_with)
        ratio = None if w_r == 0 else w_k / w_r
        fixes_scale = likelihood not in ("gaussian", "laplace", "huber", "log_cosh", "none", "other")
        only_reductions = all("averaged" in fault or "divided" in fault or "coefficient" in fault for fault in faults)
        truth = replace(
            truth,
            beta_over_precision=ratio if likelihood == "gaussian" else None,
            beta=ratio if fixes_scale else None,
            overall=w_r if fixes_scale else None,
            arguable=arguable + (() if _constant_in_samples(truth, called_with) else ("depends_on_batch_size",)),
            is_elbo=ratio is not None
            and not set(terms) - {"monte_carlo_kl"}
            and only_reductions
            and (abs(ratio - 1) < 1e-12 if fixes_scale else ratio > 0),
        )

        def decorate(loss: object) -> object:
            made = loss() if isinstance(loss, type) else loss
            cases.append(Case(name, source, made, truth, half, kind, called_with))
            return loss

        return decorate

    return add


def _constant_in_samples(truth: Truth, inputs: Inputs) -> bool:
    (r, k), (r_double, k_double) = truth.weights(inputs), truth.weights(replace(inputs, samples=2 * inputs.samples))
    return math.isclose(k * r_double, k_double * r)
