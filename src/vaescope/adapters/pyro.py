"""A model from a model and a guide of Pyro or NumPyro, whose sites are found by tracing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Generic

import torch
from torch import Tensor

from vaescope.adapters.base import Adapted, from_callables
from vaescope.adapters.bridge import A
from vaescope.adapters.jax import from_jax
from vaescope.core import randomness
from vaescope.core.calls import networks_behind
from vaescope.core.errors import InputError, require
from vaescope.distributions import Normal

Function = Callable[..., object]
Sites = dict[str, Mapping[str, Any]]


def from_pyro(model: Function, guide: Function, x: Tensor, **known: Any) -> Adapted:
    """A model from a model and a guide of Pyro, functions of a batch x with a site per group of latents.

    Observed sites give the likelihood: by name if they are Gaussian of constant scale or Bernoulli.

    Args:
        model: x -> observed sites; latents have a normal prior that does not depend on x.
        guide: x -> the same latents.
        x: two or more samples, with which both are traced.
        known: further arguments of `from_callables`.
    """
    pyro = require("pyro", "adapting models of Pyro")

    def traced(function: Function, x: Tensor, codes: Mapping[str, Tensor]) -> Sites:
        with pyro.validation_enabled(False):
            nodes = pyro.poutine.trace(pyro.poutine.condition(function, data=codes)).get_trace(x).nodes
        return {name: site for name, site in nodes.items() if type(site.get("fn")).__name__ != "_Subsample"}

    found = _Traced(guide, model, traced, torch.cat, x)
    known.setdefault("networks", networks_behind(model, guide))
    return from_callables(encode=found.encode, decode=found.decode, **(found.spec() | known))


def from_numpyro(model: Function, guide: Function, x: object, *, params: object, **known: Any) -> Adapted:
    """A model from a model and a guide of NumPyro, functions of a batch x; see `from_pyro`.

    Args:
        model: x -> observed sites; latents have a normal prior that does not depend on x.
        guide: x -> the same latents.
        x: two or more samples, with which both are traced.
        params: of the optimiser, such as `svi.get_params(state)`.
        known: further arguments of `from_jax`.
    """
    handlers = require("numpyro", "adapting models of NumPyro").handlers
    jnp = require("jax", "adapting models of NumPyro").numpy

    def traced(params: object, function: Function, x: object, codes: Mapping[str, object]) -> Sites:
        seeded = handlers.seed(handlers.substitute(function, data=params), rng_seed=0)
        return dict(handlers.trace(handlers.condition(seeded, data=codes)).get_trace(x))

    def adapted(params: object) -> _Traced:
        return _Traced(guide, model, partial(traced, params), jnp.concatenate, jnp.asarray(x))

    spec = adapted(params).spec()
    if "log_likelihood" in spec:
        spec["log_likelihood"] = lambda params, x, z: adapted(params).log_likelihood(x, z)
        spec.pop("sample_observations")
    return from_jax(
        lambda params, x: adapted(params).encode(x),
        lambda params, z: adapted(params).decode(z),
        params=params,
        **(spec | known),
    )


@dataclass(frozen=True, eq=False)
class _Traced(Generic[A]):
    """Functions of a VAE, and what is known of it, from traces of its guide and its model."""

    guide: Function
    model: Function
    traced: Callable[[Function, A, Mapping[str, A]], Sites]
    join: Callable[[list[A], int], A]
    x: A

    @cached_property
    def latents(self) -> dict[str, tuple[int, ...]]:
        """Shape of a sample's latents at each site of the guide."""
        shapes = {name: tuple(fn.mean.shape) for name, fn in self._guided(self.x).items()}
        if not shapes or any(shape[:1] != (len(self.x),) for shape in shapes.values()):
            raise InputError("the guide must sample latents with a row for each sample of x.")
        return {name: shape[1:] for name, shape in shapes.items()}

    def _guided(self, x: A) -> dict[str, Any]:
        """Posteriors of the guide's latents."""
        sites = self.traced(self.guide, x, {}).items()
        return {name: site["fn"] for name, site in sites if site["type"] == "sample" and not site["is_observed"]}

    def _observed(self, z: A, x: A | None = None) -> list[Mapping[str, Any]]:
        """Sites of the model that are observed in x, or in any sample, given all latents."""
        x = self.join([self.x[:1]] * len(z) or [self.x[:0]], 0) if x is None else x
        codes, first = {}, 0
        for name, shape in self.latents.items():
            codes[name] = z[:, first : first + math.prod(shape)].reshape(len(z), *shape)
            first += math.prod(shape)
        sites = self.traced(self.model, x, codes).items()
        return [v for name, v in sites if v["type"] == "sample" and v["is_observed"] and name not in codes]

    def _columns(self, found: Iterable[Any], part: str, count: int) -> A:
        return self.join([getattr(fn, part).reshape(count, -1) for fn in found], 1)

    def encode(self, x: A) -> tuple[A, A]:
        found = self._guided(x).values()
        return self._columns(found, "mean", len(x)), self._columns(found, "variance", len(x))

    def decode(self, z: A) -> A:
        return self._columns((site["fn"] for site in self._observed(z)), "mean", len(z))

    def log_likelihood(self, x: A, z: A) -> A:
        return sum(site["fn"].log_prob(site["value"]).reshape(len(z), -1).sum(1) for site in self._observed(z, x))

    def sample_observations(self, z: A, generator: torch.Generator) -> Tensor:
        with randomness.seeded(generator):
            return torch.cat([site["fn"].sample().reshape(len(z), -1) for site in self._observed(z)], 1)

    def spec(self) -> dict[str, Any]:
        with torch.no_grad():
            sites, guided = self.traced(self.model, self.x, {}), self._guided(self.x)
            priors = [sites[name]["fn"] for name in self.latents if name in sites]
            if len(priors) < len(guided) or any(_kind(fn) != "Normal" for fn in priors):
                raise InputError("the model must sample the guide's latents from normal priors, by the same names.")
            found = [self._columns(priors, part, len(self.x)) for part in ("mean", "variance")]
            mean, variance = (torch.as_tensor(v.tolist(), dtype=torch.float64) for v in found)
            if any((v != v[:1]).any() for v in (mean, variance)):
                raise InputError("the prior depends on x; use from_callables with a prior of its own.")
            observed = [site["fn"] for site in self._observed(self.encode(self.x)[0], self.x)]
        if not observed:
            raise InputError("the model has no observed site: write pyro.sample('x', ..., obs=x).")
        known: dict[str, Any] = {"latent_dim": mean.shape[1], "prior": Normal(mean[0], variance[0])}
        if any(_kind(fn) != "Normal" for fn in guided.values()):
            known["posterior_family"] = "marginals"
        kinds = {_kind(fn) for fn in observed}
        spread = [fn.variance.reshape(-1) for fn in observed] if kinds == {"Normal"} else []
        if kinds == {"Bernoulli"}:
            known["likelihood"] = "bernoulli"
        elif spread and all(float(abs(v - spread[0][0]).max()) < 1e-6 * float(spread[0][0]) for v in spread):
            known["precision"] = 1 / float(spread[0][0])
        else:
            known |= {"log_likelihood": self.log_likelihood, "sample_observations": self.sample_observations}
        return known


def _kind(fn: Any) -> str:
    """Name of a distribution without what declares its batch and event axes."""
    while type(fn).__name__ in ("Independent", "ExpandedDistribution", "Expanded"):
        fn = fn.base_dist
    return type(fn).__name__
