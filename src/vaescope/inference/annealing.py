"""Bounds on log p(x) of simulated x: annealed importance sampling from both ends (Grosse et al. 2015).

Forward chains go from a Gaussian to the posterior and give an estimate that is too low in expectation. Reverse chains
start at the z that x was simulated from, an exact sample of the posterior, and give one that is too high.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.core import randomness
from vaescope.core.budget import Budget
from vaescope.inference.joint import Gaussian, LikelihoodJoint


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
        return self.forward - 2 * self.errors[0]

    @property
    def upper(self) -> Float[Tensor, " N"]:
        """Reverse estimate plus two standard errors."""
        return self.reverse + 2 * self.errors[1]

    @property
    def crossed(self) -> Bool[Tensor, " N"]:
        """Observations whose lower bound is above their upper bound, in spite of both standard errors."""
        return self.lower > self.upper

    @property
    def crossing(self) -> float:
        """How far the mean forward estimate is above the mean reverse one, in standard errors of the difference."""
        error = float(self.errors.square().sum().sqrt()) / self.errors.shape[1]  # observations are independent
        return float((self.forward - self.reverse).mean()) / error

    @property
    def contradictory(self) -> bool:
        """Whether estimates cross by more than their errors explain; then neither bound can be relied on."""
        return self.crossing > 4 or float(self.crossed.double().mean()) > 0.1

    @property
    def width(self) -> float:
        """Mean distance between the bounds."""
        return float((self.upper - self.lower).abs().mean())

    @property
    def bounds(self) -> Float[Tensor, "N 2"]:
        return torch.stack([self.lower, self.upper], dim=1)


def bound_log_marginal(
    joint: LikelihoodJoint,
    start: Gaussian,
    exact: Float[Tensor, "N d"],
    budget: Budget,
    *,
    tolerance: float = 0.05,
    chains: int = 16,
    seed: int = 0,
    rounding: float = torch.finfo(torch.float64).eps,
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
        rounding: unit of rounding of the decoder.
    """
    path = _Path(joint, start, randomness.generator(seed, "annealing"), rounding)
    temperatures = 16
    while True:
        started = time.monotonic()
        found = path.anneal(exact, temperatures, chains)
        lasted = time.monotonic() - started
        following = next_temperatures(found, tolerance, 0.8 * budget.left / lasted)
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
    least, most = 1.5, 8.0  # factors of growth that are worth it, and safe
    needed = min(max(least, (found.width / tolerance) ** 2), most)
    growth = min(needed, affordable, 8192 / found.temperatures)
    return None if growth < least else int(growth * found.temperatures)


@dataclass(frozen=True, eq=False)
class _State:
    """Codes in standardised coordinates, with log p(x, u) + log |du/dt| and its gradient."""

    t: Float[Tensor, "C N d"]
    value: Float[Tensor, "C N"]
    slope: Float[Tensor, "C N d"]


@dataclass(frozen=True, eq=False)
class _Path:
    """Distributions between the starting Gaussian (β = 0) and the posterior (β = 1)."""

    joint: LikelihoodJoint
    start: Gaussian
    generator: torch.Generator
    rounding: float
    mixing: int = 16
    """Transitions that make reverse chains independent of each other."""

    def state(self, t: Float[Tensor, "C N d"]) -> _State:
        rows = torch.arange(len(self.joint)).repeat(len(t))
        value, slope = self.joint.with_gradient(rows, self.start.codes(t).flatten(0, 1))
        value, slope = value.reshape(t.shape[:2]), slope.reshape(t.shape)
        return _State(
            t,
            value + torch.linalg.slogdet(self.start.factor).logabsdet,
            torch.einsum("nij,cni->cnj", self.start.factor, slope),
        )

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
        unit = 16 * self.rounding
        errors = torch.hypot(torch.stack([low_error, high_error]), unit * torch.stack([low, high]).abs().clamp(min=1))
        variance = errors.square()
        pooled = ((variance + variance.mean(1, keepdim=True)) / 2).sqrt()  # each with the mean one
        return Sandwich(low, -high, pooled, temperatures, float(accepted))

    def _pilot(self, schedule: Tensor) -> Float[Tensor, "K N"]:
        """Step sizes per temperature and observation."""
        count, dim = len(self.joint), self.start.centre.shape[1]
        log_step = torch.full((count,), math.log(0.9) - 0.25 * math.log(dim), dtype=torch.float64)
        state, steps = self.state(self.noise(8, count, dim)), []
        for beta in schedule[1:]:
            steps.append(log_step.exp())
            state, accepted = self._transition(state, float(beta), steps[-1])
            log_step = (log_step + 0.4 * (accepted - 0.75)).clamp(-8, 0.5)
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
        for _ in range(self.mixing):  # leaves the posterior invariant: every chain still starts at an exact sample
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
        momentum, steps = self.noise(*state.t.shape), 4
        size = (step * (0.5 + 0.5 * self.uniform(*state.value.shape))).unsqueeze(-1)
        new, p = state, momentum + 0.5 * size * _slope(state, beta)
        for index in range(steps):
            new = self.state(new.t + size * p)
            p = p + (0.5 if index == steps - 1 else 1.0) * size * _slope(new, beta)
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
