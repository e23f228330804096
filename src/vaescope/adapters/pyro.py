"""A model from a model and a guide of Pyro or NumPyro, whose sites are found by tracing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from vaescope.adapters.base import Adapted, from_callables
from vaescope.adapters.jax import from_jax
from vaescope.core.calls import networks_behind
from vaescope.core.errors import InputError, require
from vaescope.distributions import Normal

A = TypeVar("A", bound="Array")


@runtime_checkable
class Array(Protocol):
    """What tensors and arrays of JAX have in common."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self: A, index: Any) -> A: ...

    def reshape(self: A, *shape: int) -> A: ...

    def tolist(self) -> object: ...


Site = Mapping[str, Any]
Sites = dict[str, Site]


def from_pyro(model: Callable[..., object], guide: Callable[..., object], x: Tensor, **known: Any) -> Adapted:
    """A model from a model and a guide of Pyro, functions of a batch x with a site per group of latents.

    Observed sites give the likelihood: by name if they are Gaussian of constant scale or Bernoulli.

    Args:
        model: x -> observed sites; latents have a normal prior that does not depend on x.
        guide: x -> the same latents.
        x: two or more samples, with which both are traced.
        known: further arguments of `from_callables`.
    """
    pyro = require("pyro", "adapting models of Pyro")

    def traced(function: Callable[..., object], x: Tensor, codes: Mapping[str, Tensor]) -> Sites:
        with pyro.validation_enabled(False):
            nodes = pyro.poutine.trace(pyro.poutine.condition(function, data=codes)).get_trace(x).nodes
        return {name: site for name, site in nodes.items() if type(site.get("fn")).__name__ != "_Subsample"}

    found = _Traced(guide, model, traced, torch.cat, x)
    known.setdefault("networks", networks_behind(model, guide))
    return from_callables(encode=found.encode, decode=found.decode, **(found.spec() | known))


def from_numpyro(
    model: Callable[..., object], guide: Callable[..., object], x: object, *, params: object, **known: Any
) -> Adapted:
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

    def adapted(params: object) -> _Traced:
        def traced(function: Callable[..., object], x: object, codes: Mapping[str, object]) -> Sites:
            seeded = handlers.seed(handlers.substitute(function, data=params), rng_seed=0)
            found: Sites = handlers.trace(handlers.condition(seeded, data=codes)).get_trace(x)
            return found

        return _Traced(guide, model, traced, jnp.concatenate, jnp.asarray(x))

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


class _Traced(Generic[A]):
    """Functions of a VAE, and what is known of it, from traces of its guide and its model."""

    def __init__(
        self,
        guide: Callable[..., object],
        model: Callable[..., object],
        traced: Callable[[Callable[..., object], A, Mapping[str, A]], Sites],
        join: Callable[[list[A], int], A],
        x: A,
    ) -> None:
        self.guide, self.model, self.traced, self.join, self.x = guide, model, traced, join, x
        self.latents = {name: site["fn"].mean for name, site in self._samples(traced(guide, x, {}), observed=False)}
        if not self.latents or any(len(mean) != len(x) for mean in self.latents.values()):
            raise InputError("the guide must sample latents with a row for each sample of x.")

    def _samples(self, sites: Sites, *, observed: bool) -> Iterator[tuple[str, Site]]:
        for name, site in sites.items():
            if site["type"] == "sample" and bool(site["is_observed"]) == observed and name not in ("_INPUT", "_RETURN"):
                yield name, site

    def encode(self, x: A) -> tuple[A, A]:
        sites = [site["fn"] for _, site in self._samples(self.traced(self.guide, x, {}), observed=False)]
        return self._columns(sites, "mean", x), self._columns(sites, "variance", x)

    def _columns(self, sites: list[object], part: str, x: A) -> A:
        return self.join([getattr(fn, part).reshape(len(x), -1) for fn in sites], 1)

    def _observed(self, x: A, z: A) -> list[Site]:
        codes, first = {}, 0
        for name, mean in self.latents.items():
            size = mean[0].reshape(-1).shape[0]
            codes[name] = z[:, first : first + size].reshape(len(z), *mean.shape[1:])
            first += size
        sites = self.traced(self.model, x, codes)
        return [site for name, site in self._samples(sites, observed=True) if name not in codes]

    def _like(self, z: A) -> A:
        return self.join([self.x[:1]] * len(z), 0) if len(z) else self.x[:0]

    def decode(self, z: A) -> A:
        return self._columns([site["fn"] for site in self._observed(self._like(z), z)], "mean", z)

    def log_likelihood(self, x: A, z: A) -> A:
        found = self._observed(x, z)
        return sum(site["fn"].log_prob(site["value"]).reshape(len(z), -1).sum(1) for site in found)

    def sample_observations(self, z: A, generator: torch.Generator) -> Tensor:
        with torch.random.fork_rng(devices=[]):  # distributions draw from the global generator
            torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
            drawn = [site["fn"].sample().reshape(len(z), -1) for site in self._observed(self._like(z), z)]
        return torch.cat(drawn, 1)

    def spec(self) -> dict[str, Any]:
        with torch.no_grad():
            mean = self.encode(self.x)[0]
            sites = self.traced(self.model, self.x, {})
            priors = [sites[name]["fn"] if name in sites else None for name in self.latents]
            if any(fn is None or _kind(fn) != "Normal" for fn in priors):
                raise InputError(
                    "the model must sample the latents of the guide from normal priors, by the same names."
                )
            found = [self._columns(priors, part, self.x) for part in ("mean", "variance")]
            moments = [torch.as_tensor(v.tolist(), dtype=torch.float64) for v in found]
            if any((v != v[:1]).any() for v in moments):
                raise InputError("the prior depends on x; use from_callables with a prior of its own.")
            observed = self._observed(self.x, mean)
        if not observed:
            raise InputError("the model has no observed site: write pyro.sample('x', ..., obs=x).")
        known: dict[str, Any] = {"latent_dim": int(mean.shape[1]), "prior": Normal(moments[0][0], moments[1][0])}
        guides = [site["fn"] for _, site in self._samples(self.traced(self.guide, self.x, {}), observed=False)]
        if any(_kind(fn) != "Normal" for fn in guides):
            known["posterior_family"] = "marginals"
        kinds = {_kind(site["fn"]) for site in observed}
        spread = [site["fn"].variance.reshape(-1) for site in observed] if kinds == {"Normal"} else []
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
