"""Priors by name, and priors as text: `normal`, `uniform(low=-1, high=1)`, `normal(mean=[0.0, 1.0], variance=1.0)`."""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.core.serialization import field_types
from vaescope.distributions.base import LOG_2PI, Number, Prior, check_positive
from vaescope.distributions.quadrature import normal_expectation


class IntervalPrior(Prior):
    """A Beta(a, b) distribution on [low, high]; a = b = 1 is uniform."""

    low: float
    high: float
    order: int = 32  # nodes of the one-dimensional quadrature

    @property
    def shape(self) -> tuple[Number, Number]:
        """The parameters (a, b)."""
        raise NotImplementedError

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def width(self) -> float:
        return self.high - self.low

    def _check_bounds(self) -> None:
        if not self.low < self.high:
            raise InputError(f"a bounded prior needs low < high, got low={self.low}, high={self.high}.")

    @property
    def _log_beta(self) -> Number:
        a, b = self.shape
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            a, b = torch.as_tensor(a), torch.as_tensor(b)
            return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

    def log_density(self, z: Tensor) -> Tensor:
        a, b = self.shape
        t = (z - self.low) / self.width
        inside = (t >= 0) & (t <= 1)
        t = t.clamp(0, 1)
        value = torch.xlogy(_like(z, a - 1), t) + torch.special.xlog1py(_like(z, b - 1), -t)
        return torch.where(inside, value - self._log_beta - math.log(self.width), -math.inf)

    def curvature(self, z: Tensor) -> Tensor:
        a, b = self.shape
        return (a - 1) / (z - self.low) ** 2 + (b - 1) / (self.high - z) ** 2

    def expected_log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        # in u the density is σ(u)^a σ(-u)^b / B(a, b), and log σ(u) = u - softplus(u)
        a, b = self.shape
        return a * mean - (a + b) * normal_expectation(F.softplus, mean, variance, order=self.order) - self._log_beta

    def to_support(self, u: Tensor) -> Tensor:
        return self.low + self.width * torch.sigmoid(u)

    def from_support(self, z: Tensor) -> Tensor:
        return torch.logit((z - self.low) / self.width)

    def log_derivative(self, u: Tensor) -> Tensor:
        return u - 2 * F.softplus(u) + math.log(self.width)

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        first = normal_expectation(torch.sigmoid, mean, variance, order=self.order)
        centred = normal_expectation(
            lambda u: (torch.sigmoid(u) - first.unsqueeze(-1)) ** 2, mean, variance, order=self.order
        )
        return self.low + self.width * first, self.width**2 * centred

    def unbounded_centre(self) -> float:
        a, b = (float(torch.as_tensor(value, dtype=torch.float64).mean()) for value in self.shape)
        return math.log(a / b)

    def mean_and_variance(self) -> tuple[Number, Number]:
        a, b = self.shape
        return self.low + self.width * a / (a + b), self.width**2 * a * b / ((a + b) ** 2 * (a + b + 1))


def _like(z: Tensor, value: Number) -> Tensor:
    """A parameter with the dtype and on the device of z."""
    return value.to(z) if isinstance(value, Tensor) else z.new_tensor(value)


@dataclass(frozen=True, eq=False)
class Uniform(IntervalPrior):
    """Constant density on [low, high].

    Args:
        low: lower bound of every latent.
        high: upper bound of every latent.

    >>> Uniform(-0.5, 0.5).log_density(torch.tensor([0.0, 0.7]))
    tensor([0., -inf])
    """

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        self._check_bounds()

    @property
    def shape(self) -> tuple[float, float]:
        return 1.0, 1.0

    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        return self.low + self.width * torch.rand(shape, generator=generator, dtype=dtype)


@dataclass(frozen=True, eq=False)
class Beta(IntervalPrior):
    """A Beta(a, b) distribution, rescaled from [0, 1] to [low, high]. Tensors a and b give every latent its own.

    Args:
        a: first shape parameter, > 0; a larger one moves mass towards `high`.
        b: second shape parameter, > 0; a larger one moves mass towards `low`.
        low: lower bound of every latent.
        high: upper bound of every latent.
    """

    a: Number = 2.0
    b: Number = 2.0
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        self._check_bounds()
        check_positive("a", self.a, "beta")
        check_positive("b", self.b, "beta")

    @property
    def shape(self) -> tuple[Number, Number]:
        return self.a, self.b

    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        full = [torch.as_tensor(value, dtype=dtype).expand(shape).contiguous() for value in self.shape]
        a, b = (torch._standard_gamma(own, generator=generator) for own in full)
        return self.low + self.width * a / (a + b)


@dataclass(frozen=True, eq=False)
class Normal(Prior):
    """N(mean, variance). Tensor parameters give every latent, or every sample, its own distribution.

    Args:
        mean: a number, or a tensor that broadcasts against z.
        variance: the same, > 0.

    >>> Normal().log_density(torch.zeros(1, dtype=torch.float64))
    tensor([-0.9189], dtype=torch.float64)
    """

    mean: Number = 0.0
    variance: Number = 1.0

    def __post_init__(self) -> None:
        check_positive("variance", self.variance, "normal")

    def _log_variance(self) -> Number:
        return torch.log(self.variance) if isinstance(self.variance, Tensor) else math.log(self.variance)

    def log_density(self, z: Tensor) -> Tensor:
        return -0.5 * ((z - self.mean) ** 2 / self.variance + self._log_variance() + LOG_2PI)

    def curvature(self, z: Tensor) -> Tensor:
        return torch.ones_like(z) / self.variance

    def expected_log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        second_moment = (mean - self.mean) ** 2 + variance
        return -0.5 * (second_moment / self.variance + self._log_variance() + LOG_2PI)

    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        noise = torch.randn(shape, generator=generator, dtype=dtype)
        return self.mean + torch.as_tensor(self.variance, dtype=dtype).sqrt() * noise

    def unbounded_centre(self) -> float:
        return _centre(self.mean)

    def mean_and_variance(self) -> tuple[Number, Number]:
        return self.mean, self.variance


@dataclass(frozen=True, eq=False)
class Laplace(Prior):
    """Density exp(-|z - mean| / scale) / (2 scale); its curvature is zero except at the mean.

    Args:
        mean: a number, or a tensor that broadcasts against z.
        scale: the same, > 0; the variance is 2 scale².
    """

    mean: Number = 0.0
    scale: Number = 1.0

    def __post_init__(self) -> None:
        check_positive("scale", self.scale, "laplace")

    def _log_normaliser(self) -> Number:
        return torch.log(2 * self.scale) if isinstance(self.scale, Tensor) else math.log(2 * self.scale)

    def log_density(self, z: Tensor) -> Tensor:
        return -(z - self.mean).abs() / self.scale - self._log_normaliser()

    def curvature(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    def expected_log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        # the mean of a folded normal distribution, in closed form
        centre, sd = mean - self.mean, variance.sqrt()
        folded = sd * math.sqrt(2 / math.pi) * torch.exp(-0.5 * centre**2 / variance)
        folded = folded + centre * torch.erf(centre / (sd * math.sqrt(2)))
        return -folded / self.scale - self._log_normaliser()

    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        uniform = torch.rand(shape, generator=generator, dtype=dtype) - 0.5
        magnitude = -torch.log1p(-2 * uniform.abs())
        return self.mean + self.scale * uniform.sign() * magnitude

    def unbounded_centre(self) -> float:
        return _centre(self.mean)

    def mean_and_variance(self) -> tuple[Number, Number]:
        return self.mean, 2 * self.scale**2


def _centre(mean: Number) -> float:
    """A start for optimisers: the mean, if all latents share one."""
    return float(mean) if isinstance(mean, float | int) else 0.0


PRIORS: dict[str, type[Prior]] = {"normal": Normal, "uniform": Uniform, "beta": Beta, "laplace": Laplace}


def prior_from(value: object) -> Prior:
    """A prior from a prior, its text or a mapping with the key `kind`.

    Args:
        value: a prior, which is returned as it is; text such as `normal` or `uniform(low=-1, high=1)`; or a mapping
            with the `kind` (`normal`, `laplace`, `uniform` or `beta`) and its parameters. Parameters that are left out
            have their defaults.

    >>> prior_from({"kind": "uniform", "low": -1, "high": 1})
    Uniform(low=-1.0, high=1.0)
    """
    if isinstance(value, Prior):
        return value
    if isinstance(value, str):
        return prior_from_text(value)
    if isinstance(value, Mapping):
        return _build(value.get("kind"), {name: entry for name, entry in value.items() if name != "kind"})
    raise _invalid(value)


def prior_from_text(text: str) -> Prior:
    """Parse a prior: a name for its default parameters, or a name with parameters; lists become tensors (float32).

    >>> prior_from_text("normal")
    Normal(mean=0.0, variance=1.0)
    >>> prior_from_text("uniform(low=-1, high=1)")
    Uniform(low=-1.0, high=1.0)
    """
    try:
        with warnings.catch_warnings():  # Python warns about odd literals before it rejects them
            warnings.simplefilter("ignore")
            node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _invalid(text) from None
    if isinstance(node, ast.Name):
        return _build(node.id, {})
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise _invalid(text)
    try:
        parameters = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise _invalid(text) from None
    return _build(node.func.id, parameters)


def prior_to_text(prior: Prior) -> str:
    """The text that `prior_from` reads.

    Args:
        prior: a `Normal`, `Laplace`, `Uniform` or `Beta`.

    >>> prior_to_text(Normal(torch.tensor([0.0, 1.0])))
    'normal(mean=[0.0, 1.0], variance=1.0)'
    """
    kind = next((name for name, cls in PRIORS.items() if type(prior) is cls), None)
    if kind is None:
        raise InputError(f"only {', '.join(PRIORS)} priors have a text form, got {type(prior).__name__}.")
    values = {name: getattr(prior, name) for name in field_types(PRIORS[kind])}
    plain = {name: value.tolist() if isinstance(value, Tensor) else float(value) for name, value in values.items()}
    return f"{kind}({', '.join(f'{name}={value}' for name, value in plain.items())})"


def _build(kind: object, parameters: Mapping[str, object]) -> Prior:
    name = kind.lower() if isinstance(kind, str) else ""
    if name not in PRIORS:
        raise _invalid(kind)
    known = [*field_types(PRIORS[name])]
    unknown = [parameter for parameter in parameters if parameter not in known]
    if unknown:
        raise InputError(f"a {name} prior has the parameters {', '.join(known)}, got {validation.shown(unknown[0])}.")
    bounded = issubclass(PRIORS[name], IntervalPrior)
    read = {
        key: _parameter(f"{key} of a {name} prior", value, tensors=not (bounded and key in ("low", "high")))
        for key, value in parameters.items()
    }
    return PRIORS[name](**read)


def _parameter(name: str, value: object, *, tensors: bool) -> Number:
    """Check a parameter: a finite number, or a list of finite numbers where a tensor is possible."""
    if not tensors or not isinstance(value, list):
        return validation.number(name, value)
    found = torch.from_numpy(validation.array(value, name)).to(torch.get_default_dtype())
    if not bool(found.isfinite().all()) or not found.numel():
        raise InputError(f"{name} must be finite numbers, got {validation.shown(value)}.")
    return found


def _invalid(value: object) -> InputError:
    return InputError(
        f"prior must be one of {', '.join(PRIORS)}, e.g. 'uniform(low=-1, high=1)', got {validation.shown(value)}."
    )


NUMBERS_AT_ONCE = 2**24  # nodes times components in memory at a time


@dataclass(frozen=True, eq=False)
class Mixture(Prior):
    """Σ_k w_k N(mean_k, variance_k), the components along the last axis.

    A leading axis gives every latent its own mixture. It is not log-concave, so outside Assumption 1 of Reizinger et
    al. 2022.

    >>> two = Mixture(torch.tensor([-2.0, 2.0]), torch.tensor([0.1, 0.1]))
    >>> round(float(two.log_density(torch.tensor([2.0])).exp()), 4)  # half of the density of one mode
    0.6308
    """

    mean: Float[Tensor, "*d K"]
    variance: Float[Tensor, "*d K"]
    weight: Float[Tensor, "*d K"] | None = None
    """Equal by default."""

    def __post_init__(self) -> None:
        shapes = {tuple(part.shape) for part in (self.mean, self.variance, self.weight) if part is not None}
        if len(shapes) > 1:
            raise InputError(f"mean, variance and weight of a mixture must have one shape, got {sorted(shapes)}.")
        if not bool((self.variance > 0).all()):
            raise InputError("variance of a mixture must be > 0.")
        if self.weight is not None and not bool((self.weight > 0).all()):
            raise InputError("weight of a mixture must be > 0.")

    @property
    def _log_weight(self) -> Tensor:
        weight = torch.ones_like(self.mean) if self.weight is None else self.weight
        return weight.log() - weight.sum(-1, keepdim=True).log()

    def log_density(self, z: Tensor) -> Tensor:
        mean, variance, log_weight = (part.to(z) for part in (self.mean, self.variance, self._log_weight))
        squares = (z.unsqueeze(-1) - mean) ** 2 / variance
        return torch.logsumexp(log_weight - 0.5 * (squares + variance.log() + LOG_2PI), dim=-1)

    def curvature(self, z: Tensor) -> Tensor:
        mean, variance, log_weight = (part.to(z) for part in (self.mean, self.variance, self._log_weight))
        slope = (mean - z.unsqueeze(-1)) / variance
        share = torch.softmax(log_weight - 0.5 * (variance * slope**2 + variance.log()), dim=-1)
        average = (share * slope).sum(-1)
        return (share * (1 / variance - slope**2)).sum(-1) + average**2

    def expected_log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        def density(u: Tensor) -> Tensor:  # nodes last; latents are the axis before them
            return self.log_density(u.movedim(-1, 0)).movedim(0, -1)

        # the log-density bends sharply between modes; so many nodes resolve components that are 20 times narrower than
        # the normal distribution
        nodes = 601
        if mean.ndim < 2:
            return normal_expectation(density, mean, variance, order=nodes, even=True)
        rows = max(1, NUMBERS_AT_ONCE // (nodes * self.mean.shape[-1] * mean[0].numel()))
        chunks = zip(mean.split(rows), variance.expand_as(mean).split(rows), strict=True)
        return torch.cat([normal_expectation(density, m, v, order=nodes, even=True) for m, v in chunks])

    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        components = self.mean.expand(*shape, self.mean.shape[-1]).to(dtype)
        weight = self._log_weight.exp().expand_as(components).reshape(-1, components.shape[-1])
        chosen = torch.multinomial(weight, 1, generator=generator).reshape(*shape, 1)
        spread = self.variance.expand_as(components).to(dtype).gather(-1, chosen).squeeze(-1).sqrt()
        noise = torch.randn(shape, generator=generator, dtype=dtype)
        return components.gather(-1, chosen).squeeze(-1) + spread * noise

    def mean_and_variance(self) -> tuple[Number, Number]:
        weight = self._log_weight.exp()
        mean = (weight * self.mean).sum(-1)
        return mean, (weight * (self.variance + self.mean**2)).sum(-1) - mean**2


def mixture_of_posteriors(mean: Float[Tensor, "K d"], variance: Float[Tensor, "K d"]) -> Mixture:
    """The marginals of a VampPrior: for every latent, the posteriors of K pseudo-inputs with equal weights."""
    return Mixture(mean.mT, variance.mT)
