"""The gap between log p(x) and the ELBO on simulated x, between two bounds, and its parts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.analysis.encoding import EncodedSample
from vaescope.analysis.models import sample_log_likelihood
from vaescope.core import randomness
from vaescope.core.errors import Skipped
from vaescope.distributions import DiagonalGaussian, Normal, Prior
from vaescope.inference.joint import matched_nodes
from vaescope.inference.marginal import sampled_gap
from vaescope.products.certify.simulate import Simulation
from vaescope.protocol import LogLikelihood
from vaescope.report.budget import Budget

NUMBERS_AT_ONCE = 2**21  # of decoded x, with their gradients


@dataclass(frozen=True, eq=False)
class Joint:
    """p(x, u) at N observations; u is (C, N, d), C codes per observation."""

    sample: EncodedSample
    prior: Prior

    @classmethod
    def of(cls, simulation: Simulation, rows: int | None = None) -> Joint:
        """The joint of all draws, or of the first ones."""
        if rows is None or rows >= len(simulation):
            return cls(simulation.encoded, simulation.prior)
        e, prior = simulation.encoded, simulation.prior
        parts = (e.x, e.mean, e.variance, e.prior_mean, e.prior_variance)
        if simulation.auxiliary is not None:
            prior = Normal(*(part[:rows].double() for part in (e.prior_mean, e.prior_variance)))
        return cls(EncodedSample(e.model, e.rows[:rows], *(part[:rows] for part in parts)), prior)

    def __len__(self) -> int:
        return len(self.sample)

    @cached_property
    def log_likelihood(self) -> LogLikelihood:
        """(x, z) -> log p(x|z)."""
        return sample_log_likelihood(self.sample)

    def log_prior(self, u: Float[Tensor, "C N d"]) -> Float[Tensor, "C N"]:
        """log p(u): the density in z times dz/du."""
        return (self.prior.log_density(self.prior.to_support(u)) + self.prior.log_derivative(u)).sum(-1)

    def __call__(self, u: Float[Tensor, "C N d"]) -> Float[Tensor, "C N"]:
        """log p(x, u), differentiable."""
        x = self.sample.observations.expand(len(u), -1, -1).flatten(0, 1)
        z = self.prior.to_support(u).flatten(0, 1)
        return self.log_likelihood(x, z).reshape(u.shape[:2]) + self.log_prior(u)

    def with_gradient(self, u: Float[Tensor, "C N d"]) -> tuple[Float[Tensor, "C N"], Float[Tensor, "C N d"]]:
        """log p(x, u) and its gradient in u, a chunk of codes at a time."""
        step = max(1, NUMBERS_AT_ONCE // max(1, len(self) * self.sample.observations.shape[1]))
        parts = [self._value_and_gradient(part) for part in u.split(step)]
        return torch.cat([value for value, _ in parts]), torch.cat([slope for _, slope in parts])

    def _value_and_gradient(self, u: Float[Tensor, "C N d"]) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            here = u.detach().requires_grad_()
            value = self(here)
            if not bool((value.detach() == value.detach()).any()):
                raise Skipped("the likelihood of simulated x is not a number")
            (slope,) = torch.autograd.grad(value.sum(), here)
        return value.detach(), slope.nan_to_num(0.0, 0.0, 0.0)

    def elbo(self, q: DiagonalGaussian, noise: Float[Tensor, "S d"]) -> Float[Tensor, " N"]:
        """E_q log p(x, u) + entropy, over the same noise for every observation."""
        total = torch.zeros(len(self), dtype=torch.float64)
        with torch.no_grad():
            for row in noise:
                total += self((q.mean + q.variance.sqrt() * row).unsqueeze(0))[0]
        return total / len(noise) + q.entropy()


STEPS = 25  # of Newton's method
FLOOR = 0.25  # smallest precision, in units of the prior's


@dataclass(frozen=True, eq=False)
class Laplace:
    """N(centre, factor factorᵀ) in u, one per observation."""

    centre: Float[Tensor, "N d"]
    factor: Float[Tensor, "N d d"]

    def codes(self, t: Float[Tensor, "C N d"]) -> Float[Tensor, "C N d"]:
        """u = centre + factor t."""
        return self.centre + torch.einsum("nij,cnj->cni", self.factor, t)

    def standardise(self, u: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
        """t of codes u."""
        return torch.linalg.solve(self.factor, (u - self.centre).unsqueeze(2)).squeeze(2)

    @property
    def log_volume(self) -> Float[Tensor, " N"]:
        """log |det factor|."""
        return torch.linalg.slogdet(self.factor).logabsdet


def laplace_at_mode(joint: Joint, q: DiagonalGaussian) -> Laplace:
    """Newton's method from the encoder's mean to a mode of p(u|x); only x is used, never the true z."""
    floor = FLOOR / joint.sample.prior_variance.double().amax(1)
    u, size = q.mean.clone(), torch.ones(len(joint), 1, dtype=torch.float64)
    value, slope, values, vectors = _quadratic(joint, u, floor)
    for _ in range(STEPS):
        direction = torch.einsum("nij,nj->ni", vectors, torch.einsum("nij,ni->nj", vectors, slope) / values)
        trial = u + size * direction
        found = _quadratic(joint, trial, floor)
        better = found[0] >= value
        size = torch.where(better[:, None], (2 * size).clamp(max=1), size / 4)
        u, value, slope, values, vectors = (
            torch.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip((trial, *found), (u, value, slope, values, vectors), strict=True)
        )
        if float(direction.abs().amax()) < 1e-6 or not bool(better.any()):
            break
    return Laplace(u, vectors / values.sqrt().unsqueeze(1))


def _quadratic(joint: Joint, u: Tensor, floor: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Value and gradient of log p(x, u), and the eigenvalues (made positive) and eigenvectors of minus its Hessian."""
    with torch.enable_grad():
        here = u.detach().requires_grad_()
        value = joint(here.unsqueeze(0))[0]
        (slope,) = torch.autograd.grad(value.sum(), here, create_graph=True)
        rows = [torch.autograd.grad(slope[:, k].sum(), here, retain_graph=True)[0] for k in range(u.shape[1])]
    precision = -torch.stack(rows, dim=1)
    symmetric = (0.5 * (precision + precision.mT)).nan_to_num(0.0, 0.0, 0.0)
    values, vectors = torch.linalg.eigh(symmetric)
    return value.detach(), slope.detach(), torch.maximum(values.abs(), floor[:, None]), vectors


CHAINS = 16  # per observation and direction
PILOT_CHAINS = 8  # that adapt step sizes, in a run of their own
FIRST_TEMPERATURES = 16
MAX_TEMPERATURES = 8192
MIN_GROWTH, MAX_GROWTH = 1.5, 8.0  # of the number of temperatures from one annealing to the next
AFFORDABLE = 0.8  # share of the time left that an annealing may be expected to take
LEAPFROG_STEPS = 4
MIXING = 16  # transitions that make reverse chains independent of each other
ACCEPTANCE = 0.75  # that step sizes are adapted to
RATE = 0.4  # of that adaptation
SHORTEST = 0.5  # factor of step sizes, which are drawn between this and 1
TOLERANCE = 0.05  # nats
STANDARD_ERRORS = 2.0  # by which estimates are moved outwards
ROUNDING = 16.0  # units of rounding that an estimate may be wrong by
CONTRADICTION = 4.0  # standard errors by which mean estimates may cross
MOST_CROSSED = 0.1  # share of observations whose bounds may cross


@dataclass(frozen=True, eq=False)
class Sandwich:
    """Bounds on log p(x) of each simulated x, in nats."""

    forward: Float[Tensor, " N"]
    """Estimate that is too low in expectation."""
    reverse: Float[Tensor, " N"]
    """Estimate that is too high in expectation."""
    errors: Float[Tensor, "2 N"]
    """Standard errors of both. The spread of a few weights is itself uncertain, most of all if rare weights are large.
    So each variance is averaged with the mean one, which leaves the standard error of the mean as it is."""
    temperatures: int
    """Of the last and longest annealing."""
    acceptance: float
    """Of its proposals."""

    @property
    def lower(self) -> Float[Tensor, " N"]:
        """Forward estimate minus two standard errors."""
        return self.forward - STANDARD_ERRORS * self.errors[0]

    @property
    def upper(self) -> Float[Tensor, " N"]:
        """Reverse estimate plus two standard errors."""
        return self.reverse + STANDARD_ERRORS * self.errors[1]

    @property
    def mean_errors(self) -> tuple[float, float]:
        """Standard errors of the mean forward and the mean reverse estimate, over independent observations."""
        forward, reverse = (self.errors.square().sum(1).sqrt() / self.errors.shape[1]).tolist()
        return forward, reverse

    @property
    def crossed(self) -> Bool[Tensor, " N"]:
        """Observations whose lower bound is above their upper bound, in spite of both standard errors."""
        return self.lower > self.upper

    @property
    def crossing(self) -> float:
        """How far the mean forward estimate is above the mean reverse one, in standard errors of the difference."""
        return float((self.forward - self.reverse).mean()) / math.hypot(*self.mean_errors)

    @property
    def contradictory(self) -> bool:
        """Whether estimates cross by more than their errors explain; then neither bound can be relied on."""
        return self.crossing > CONTRADICTION or float(self.crossed.double().mean()) > MOST_CROSSED

    @property
    def width(self) -> float:
        """Mean distance between the bounds."""
        return float((self.upper - self.lower).abs().mean())

    @property
    def bounds(self) -> Float[Tensor, "N 2"]:
        return torch.stack([self.lower, self.upper], dim=1)


def bound_log_marginal(
    joint: Joint,
    start: Laplace,
    exact: Float[Tensor, "N d"],
    budget: Budget,
    *,
    tolerance: float = TOLERANCE,
    chains: int = CHAINS,
    seed: int = 0,
) -> Sandwich:
    """Anneal with more and more temperatures until the bounds are close or the time is over.

    Args:
        joint: p(x, u) at N simulated observations.
        start: a Gaussian per observation, made without knowledge of the exact codes.
        exact: the codes u that the observations were drawn from.
        budget: time; at least one annealing runs.
        tolerance: mean width to stop at, in nats.
        chains: per observation and direction.
        seed: of all draws.
    """
    path = _Path(joint, start, randomness.generator(seed, "annealing"))
    temperatures = FIRST_TEMPERATURES
    while True:
        started = time.monotonic()
        found = path.anneal(exact, temperatures, chains)
        lasted = time.monotonic() - started
        following = next_temperatures(found, tolerance, AFFORDABLE * budget.left / lasted)
        if following is None:
            return found
        temperatures = following
        budget.say(f"bounds on log p(x) are {found.width:.2g} nats apart; annealing with {temperatures} temperatures")


def next_temperatures(found: Sandwich, tolerance: float, affordable: float) -> int | None:
    """How many temperatures to anneal with next; None if the bounds are close, or if there is no time for many more.

    Standard errors fall with the square root of the number of temperatures and the rest of the width in proportion to
    it. So the number grows with the square of the width, and what time there is goes into one annealing, the last.

    Args:
        found: the bounds so far.
        tolerance: mean width to stop at, in nats.
        affordable: annealings as long as the last one that there is time for.
    """
    if found.width <= tolerance and not found.contradictory:
        return None
    needed = min(max(MIN_GROWTH, (found.width / tolerance) ** 2), MAX_GROWTH)
    growth = min(needed, affordable, MAX_TEMPERATURES / found.temperatures)
    return None if growth < MIN_GROWTH else int(growth * found.temperatures)


@dataclass(frozen=True, eq=False)
class _State:
    """Codes in standardised coordinates, with log p(x, u) + log |du/dt| and its gradient."""

    t: Float[Tensor, "C N d"]
    value: Float[Tensor, "C N"]
    slope: Float[Tensor, "C N d"]


@dataclass(frozen=True, eq=False)
class _Path:
    """Distributions between the starting Gaussian (β = 0) and the posterior (β = 1)."""

    joint: Joint
    start: Laplace
    generator: torch.Generator

    def state(self, t: Float[Tensor, "C N d"]) -> _State:
        value, slope = self.joint.with_gradient(self.start.codes(t))
        return _State(t, value + self.start.log_volume, torch.einsum("nij,cni->cnj", self.start.factor, slope))

    def noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def anneal(self, exact: Float[Tensor, "N d"], temperatures: int, chains: int) -> Sandwich:
        """Both directions, with step sizes from a pilot run, so that forward and reverse transitions are the same."""
        schedule = torch.linspace(0, 1, temperatures + 1, dtype=torch.float64).square()
        steps = self._pilot(schedule)
        forward, accepted = self._forward(schedule, steps, chains)
        reverse = self._reverse(schedule, steps, chains, exact)
        (low, low_error), (high, high_error) = _log_mean_exp(forward), _log_mean_exp(-reverse)
        unit = ROUNDING * torch.finfo(self.joint.sample.mean.dtype).eps
        errors = torch.hypot(torch.stack([low_error, high_error]), unit * torch.stack([low, high]).abs().clamp(min=1))
        return Sandwich(low, -high, _pooled(errors), temperatures, float(accepted))

    def _pilot(self, schedule: Tensor) -> Float[Tensor, "K N"]:
        """Step sizes per temperature and observation."""
        count, dim = len(self.joint), self.start.centre.shape[1]
        log_step = torch.full((count,), math.log(0.9) - 0.25 * math.log(dim), dtype=torch.float64)
        state, steps = self.state(self.noise(PILOT_CHAINS, count, dim)), []
        for beta in schedule[1:]:
            steps.append(log_step.exp())
            state, accepted = self._transition(state, float(beta), steps[-1])
            log_step = (log_step + RATE * (accepted - ACCEPTANCE)).clamp(-8, 0.5)
        return torch.stack(steps)

    def _forward(self, schedule: Tensor, steps: Tensor, chains: int) -> tuple[Float[Tensor, "C N"], Tensor]:
        """Log-weights of annealing from the Gaussian to the posterior, and the mean acceptance."""
        state = self.state(self.noise(chains, *self.start.centre.shape))
        weight, accepted = torch.zeros_like(state.value), []
        for k in range(1, len(schedule)):
            weight = weight + (schedule[k] - schedule[k - 1]) * self._log_ratio(state)
            state, rate = self._transition(state, float(schedule[k]), steps[k - 1])
            accepted.append(rate.mean())
        return weight, torch.stack(accepted).mean()

    def _reverse(self, schedule: Tensor, steps: Tensor, chains: int, exact: Tensor) -> Float[Tensor, "C N"]:
        """Log-weights of the path from exact posterior samples to the Gaussian."""
        state = self.state(self.start.standardise(exact).expand(chains, -1, -1))
        for _ in range(MIXING):  # leaves the posterior invariant: every chain still starts at an exact sample
            state, _ = self._transition(state, 1.0, steps[-1])
        weight = torch.zeros_like(state.value)
        for k in range(len(schedule) - 1, 0, -1):
            state, _ = self._transition(state, float(schedule[k]), steps[k - 1])
            weight = weight + (schedule[k] - schedule[k - 1]) * self._log_ratio(state)
        return weight

    def _log_ratio(self, state: _State) -> Float[Tensor, "C N"]:
        """log of p(x, u(t)) |du/dt| over the density of the starting Gaussian."""
        return state.value - _log_normal(state.t)

    def _transition(self, state: _State, beta: float, step: Float[Tensor, " N"]) -> tuple[_State, Float[Tensor, " N"]]:
        """One Hamiltonian Monte Carlo transition, and its acceptance rate per observation.

        Step sizes are drawn, because with some of them trajectories return to where they began: four steps of √2 do so
        in a standard normal distribution.
        """
        momentum = self.noise(*state.t.shape)
        size = (step * (SHORTEST + (1 - SHORTEST) * self.uniform(*state.value.shape))).unsqueeze(-1)
        new, p = state, momentum + 0.5 * size * _slope(state, beta)
        for index in range(LEAPFROG_STEPS):
            new = self.state(new.t + size * p)
            p = p + (0.5 if index == LEAPFROG_STEPS - 1 else 1.0) * size * _slope(new, beta)
        change = _energy(new, p, beta) - _energy(state, momentum, beta)
        probability = change.nan_to_num(-math.inf).clamp(max=0).exp()
        accept = self.uniform(*probability.shape) < probability
        return _choose(accept, new, state), probability.mean(0)


def _slope(state: _State, beta: float) -> Tensor:
    return beta * state.slope - (1 - beta) * state.t


def _energy(state: _State, momentum: Tensor, beta: float) -> Tensor:
    """log-density of code and momentum at β."""
    return beta * state.value + (1 - beta) * _log_normal(state.t) - 0.5 * momentum.square().sum(-1)


def _choose(accept: Tensor, new: _State, old: _State) -> _State:
    rows = accept.unsqueeze(-1)
    return _State(
        torch.where(rows, new.t, old.t),
        torch.where(accept, new.value, old.value),
        torch.where(rows, new.slope, old.slope),
    )


def _log_normal(t: Float[Tensor, "C N d"]) -> Float[Tensor, "C N"]:
    return -0.5 * t.square().sum(-1) - 0.5 * t.shape[-1] * math.log(2 * math.pi)


def _log_mean_exp(weights: Float[Tensor, "C N"]) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Log of the mean weight over chains, and its standard error."""
    value = torch.logsumexp(weights, dim=0) - math.log(len(weights))
    relative = (weights - value).exp()
    return value, relative.std(0) / math.sqrt(len(weights))


def _pooled(errors: Float[Tensor, "2 N"]) -> Float[Tensor, "2 N"]:
    """Standard errors whose variances are averaged with the mean one."""
    variance = errors.square()
    return ((variance + variance.mean(1, keepdim=True)) / 2).sqrt()


POINTS = 48  # simulated x whose log p(x) is bounded
ELBO_NODES = 256
LARGEST_DIM = 64


@dataclass(frozen=True, eq=False)
class GapBounds:
    """Bounds on log p(x), and the ELBOs of the encoder and of the best posterior of its family."""

    sandwich: Sandwich
    elbo: Float[Tensor, " N"] | None
    """Of the encoder; None if `encode` returns only marginals of q."""
    best_elbo: Float[Tensor, " N"] | None
    """Of the best diagonal Gaussian that gradient ascent found; None without time left or with another prior."""

    @property
    def gap(self) -> tuple[float, float] | None:
        """Mean log p(x) - ELBO: at least and at most."""
        if self.elbo is None:
            return None
        return float((self.sandwich.lower - self.elbo).mean()), float((self.sandwich.upper - self.elbo).mean())

    @property
    def amortisation(self) -> float | None:
        """Mean loss of the encoder against the best posterior of its family; a lower bound."""
        return None if self.best_elbo is None or self.elbo is None else float((self.best_elbo - self.elbo).mean())


def bound_gap(simulation: Simulation, budget: Budget, *, points: int = POINTS, seed: int = 0) -> GapBounds:
    """Bound log p(x) of some simulated x from both sides, and compare with the ELBO."""
    joint = Joint.of(simulation, points)
    q = simulation.posterior
    q = DiagonalGaussian(q.mean[:points], q.variance[:points])
    sandwich = bound_log_marginal(joint, laplace_at_mode(joint, q), simulation.u[:points], budget, seed=seed)
    if joint.sample.model.posterior_family != "diagonal":
        return GapBounds(sandwich, None, None)
    nodes = matched_nodes(q.mean.shape[1], max(ELBO_NODES, 4 * q.mean.shape[1]))
    elbo = joint.elbo(q, nodes)
    return GapBounds(sandwich, elbo, _best_elbo(joint, q, elbo) if budget.left > 0 else None)


def _best_elbo(joint: Joint, q: DiagonalGaussian, elbo: Float[Tensor, " N"]) -> Float[Tensor, " N"] | None:
    if not isinstance(joint.prior, Normal):
        return None
    sample, x = joint.sample, joint.sample.observations
    prior = Normal(sample.prior_mean.double(), sample.prior_variance.double())
    found = sampled_gap(lambda rows, z: joint.log_likelihood(x[rows], z), q, prior)
    return torch.maximum(found.best_elbo.double(), elbo)
