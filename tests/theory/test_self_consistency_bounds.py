"""Props. 2 and 3, Eqs. 10, 11, 25 and 44 and Lemma 3 of Reizinger et al. 2022, on decoders that satisfy them or not."""

import math
from itertools import product
from math import gamma

import pytest
import torch
from torch import Tensor

from vaescope.data.mixings import OrthogonalMLP
from vaescope.distributions import DiagonalGaussian, Normal
from vaescope.distributions.quadrature import hermite_grid
from vaescope.inference import linear
from vaescope.theory import elbo, gap, jacobian, log_marginal, project
from vaescope_papers.embrace_the_gap.theorems import (
    kl_lower_bound,
    kl_upper_bound,
    kl_upper_limit,
    lipschitz_constants,
    optimum_region,
    prior_region,
    self_consistency_bound,
    taylor_bound,
)
from vaescope_papers.statistics import slope

PRECISIONS = [1.0, 1e2, 1e4]


def mixing(d: int) -> OrthogonalMLP:
    return OrthogonalMLP(d, layers=2, seed=0)  # slopes between 0.2 and 1, once: f is 1-Lipschitz, g is 5-Lipschitz


def latents(d: int, count: int = 6) -> Tensor:
    return torch.randn(count, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_constants_of_the_decoder(d):
    stretch, inverse = lipschitz_constants(mixing(d), latents(d, 200))
    assert 0.2 < stretch <= 1 + 1e-12
    assert 1 < inverse <= 5 + 1e-12


@pytest.mark.parametrize("d", [1, 3])
def test_the_bounds_of_proposition_3_hold_and_fall_with_the_precision(d):
    decoder, z = mixing(d), latents(d)
    bounds = []
    for precision in PRECISIONS:
        best = project(decoder, decoder(z), precision=precision)
        distance, variances = (best.mean - z).square().sum(1), best.variance.sum(1)
        for share in (1.0, 0.5, 0.1):  # Eq. 25
            bound = self_consistency_bound(
                latent=z, lipschitz=1.0, lipschitz_inverse=5.0, precision=precision, share=share
            )
            assert (distance + (1 - share) * variances <= bound).all()
        assert (
            variances
            <= 2
            * self_consistency_bound(latent=z, lipschitz=1.0, lipschitz_inverse=5.0, precision=precision, share=0.5)
        ).all()
        bounds.append(float(bound.mean()))
    assert slope(PRECISIONS[1:], bounds[1:]) == pytest.approx(-1, abs=0.02)
    # constants that are too small break it
    wrong = self_consistency_bound(latent=z, lipschitz=1.0, lipschitz_inverse=1.0, precision=1e4, share=0.5)
    assert (variances > 2 * wrong).any()


@pytest.mark.parametrize("d", [1, 2])
def test_equation_44_is_the_limit_of_the_upper_bound(d):
    decoder, z = mixing(d), latents(d)
    limit = kl_upper_limit(decoder, z, lipschitz=1.0)
    errors = []
    for precision in (1e3, 1e4):
        likelihood = log_marginal(decoder, decoder(z), precision=precision).value
        upper = kl_upper_bound(latent=z, log_marginal=likelihood, lipschitz=1.0, precision=precision)
        assert (likelihood - project(decoder, decoder(z), precision=precision).elbo <= limit + 1e-3).all()
        errors.append(float((upper - limit).abs().mean()))
    assert slope([1e3, 1e4], errors) == pytest.approx(-1, abs=0.05)


@pytest.mark.parametrize(("d", "precision"), [(1, 1.0), (2, 1.0), (2, 1e4), (3, 1e2)])
def test_the_optimum_is_in_the_region_of_proposition_2_and_the_kl_is_larger_outside(d, precision):
    decoder, z = mixing(d), latents(d)
    x = decoder(z)
    likelihood = log_marginal(decoder, x, precision=precision).value
    reference = DiagonalGaussian(z, torch.full_like(z, 1 / precision))
    divergence = likelihood - elbo(decoder, x, reference, precision=precision)
    best = project(decoder, x, precision=precision)
    given = {"log_marginal": likelihood, "kl": divergence, "precision": precision}
    for region in (optimum_region(latent=z, lipschitz_inverse=5.0, **given), prior_region(latents=d, **given)):
        assert region.bounded.all()
        assert region.contains(best.mean, best.variance).all()
        direction = torch.nn.functional.normalize(latents(d), dim=1)
        beyond = region.centre + 1.01 * region.radius[:, None] * direction
        for mean, deviation in (
            (beyond, best.variance.sqrt()),
            (best.mean, 1.01 * region.largest[:, None].expand_as(z)),
            (best.mean, 0.99 * region.smallest[:, None].expand_as(z)),
        ):
            other = likelihood - elbo(decoder, x, DiagonalGaussian(mean, deviation**2), precision=precision)
            assert (other > divergence).all()


@pytest.mark.parametrize("d", [1, 3])
def test_the_region_ends_where_the_lower_bound_reaches_the_reference(d):
    """Eqs. 18 and 20 with equality: one parameter at the border, the others where the bound is smallest."""
    z, precision, inverse, mode = latents(d), 20.0, 5.0, -0.5 * math.log(2 * math.pi)
    level, kl = torch.linspace(-2, 1, len(z)).double(), torch.linspace(8, 20, len(z)).double()
    region = optimum_region(latent=z, log_marginal=level, kl=kl, lipschitz_inverse=inverse, precision=precision)
    direction = torch.nn.functional.normalize(latents(d) + 2, dim=1)
    best = torch.full_like(z, inverse**2 / precision)
    for mean, deviation in (
        (z + region.radius[:, None] * direction, None),
        (z, region.smallest),
        (z, region.largest),
    ):
        variance = best.clone()
        if deviation is not None:
            variance[:, 0] = deviation**2
        bound = kl_lower_bound(
            mean, variance, latent=z, log_marginal=level, lipschitz_inverse=inverse, precision=precision
        )
        torch.testing.assert_close(bound + Normal().log_density(mean).sum(1) - d * mode, kl)


def test_a_decoder_without_a_lipschitz_inverse_is_outside_proposition_2_but_has_an_optimum():
    """tanh flattens out: no constant B. Existence follows from the prior alone."""
    z = torch.tensor([[0.5], [20.0]], dtype=torch.float64)
    assert math.isinf(lipschitz_constants(torch.tanh, z)[1])
    x = torch.tanh(z)
    likelihood = log_marginal(torch.tanh, x, precision=100.0, latent_dim=1, start=z.clamp(max=2)).value
    best = project(torch.tanh, x, precision=100.0, start=z.clamp(max=2))
    divergence = likelihood - best.elbo
    given = {"log_marginal": likelihood, "kl": divergence + 1, "precision": 100.0}
    assert not optimum_region(latent=z, lipschitz_inverse=math.inf, **given).bounded.any()
    region = prior_region(latents=1, **given)
    assert region.bounded.all()
    assert region.contains(best.mean, best.variance).all()


def quadratic(z: Tensor) -> Tensor:
    """Every second derivative of every output is 1."""
    return (0.5 * z.sum(1, keepdim=True) ** 2).expand(-1, z.shape[1])


def taylor_error(decoder, centre: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """E‖f(z) - f(c) - J(c)(z - c)‖² by quadrature that is exact for polynomials."""
    nodes, weights = hermite_grid(mean.shape[1], 5, mean)
    z = mean + variance.sqrt() * nodes
    remainder = decoder(z) - decoder(centre) - (z - centre) @ jacobian(decoder, centre)[0].T
    return weights @ remainder.square().sum(1)


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_lemma_3_with_its_constant_corrected(d):
    variance = 0.1 + torch.rand(1, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    mean = torch.full((1, d), 0.3, dtype=torch.float64)
    error = taylor_error(quadratic, mean, mean, variance)
    exact = d * 0.75 * variance.sum().square()  # n/4 E(Σ δ)⁴
    torch.testing.assert_close(error, exact)
    bound = float(taylor_bound(variance, outputs=d, second_derivative=1.0))
    printed = d**3 / 4 * 3 * float(variance.square().sum())
    assert float(error) <= bound * (1 + 1e-12)
    # the step of the proof, E‖δ‖⁴ = 3 Σσ⁴, holds for one latent only
    nodes, weights = hermite_grid(d, 5, mean)
    fourth = float(weights @ (variance.sqrt() * nodes).square().sum(1).square())
    assert fourth == pytest.approx(bound * 4 / d**3)
    assert (fourth == pytest.approx(3 * float(variance.square().sum()))) == (d == 1)
    # as printed, for any centre: false, since the error of a displaced centre does not vanish with the variance
    displaced = float(taylor_error(quadratic, mean + 1, mean, 1e-4 * variance))
    assert displaced > 1e-8 * printed


def fourth_moment_of_the_sum(sigma: tuple[float, ...]) -> float:
    """E(Σ|δ_i|)⁴ for δ_i ~ N(0, σ_i²), from the moments of |δ|."""
    moments = {power: gamma((power + 1) / 2) * 2 ** (power / 2) / math.sqrt(math.pi) for power in range(5)}
    total = 0.0
    for powers in product(range(5), repeat=len(sigma)):
        if sum(powers) == 4:
            ways = math.factorial(4) / math.prod(math.factorial(power) for power in powers)
            total += ways * math.prod(moments[power] * s**power for power, s in zip(powers, sigma, strict=True))
    return total


@pytest.mark.parametrize(("d", "follows"), [(1, True), (2, True), (3, True), (4, False), (5, False)])
def test_lemma_3_as_printed_follows_from_its_assumption_for_three_latents_at_most(d, follows):
    """|f_l - its linear part| ≤ K/2 (Σ|δ_i|)², so d outputs have at most d K²/4 E(Σ|δ_i|)⁴; printed is 3d³/4 K² Σσ⁴."""
    equal = fourth_moment_of_the_sum((1.0,) * d) / d
    draws = torch.randn(200_000, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert float(draws.abs().sum(1).pow(4).mean()) / d == pytest.approx(equal, rel=0.02)
    assert (equal <= 3 * d**2 * (1 + 1e-12)) is follows
    for seed in range(20):  # equal variances are the worst case
        sigma = tuple(torch.rand(d, generator=torch.Generator().manual_seed(seed)).tolist())
        assert fourth_moment_of_the_sum(sigma) / sum(s**4 for s in sigma) <= equal * (1 + 1e-9)


def test_joint_training_and_the_self_consistent_elbo_have_the_same_decoder():
    """Reizinger et al. 2022 (NeurIPS), Eqs. 10 and 11: maximising over θ and φ is maximising ELBO* over θ."""
    precision = 5.0
    x = latents(2, 30) @ torch.tensor([[1.5, 0.4], [0.0, 0.7]], dtype=torch.float64)

    def decoder_matrix(theta: Tensor) -> Tensor:
        turn = torch.stack([theta[0].cos(), -theta[0].sin(), theta[0].sin(), theta[0].cos()]).reshape(2, 2)
        return torch.diag(theta[1:].exp()) @ turn

    def minimise(loss, *start: Tensor) -> list[Tensor]:
        free = [value.clone().requires_grad_() for value in start]
        optimiser = torch.optim.LBFGS(free, max_iter=500, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

        def closure():
            optimiser.zero_grad()
            value = loss(*free)
            value.backward()
            return value

        optimiser.step(closure)
        return [value.detach() for value in free]

    def joint(theta: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
        W, variance = decoder_matrix(theta), log_variance.exp()
        misfit = (x - mean @ W.T).square().sum(1) + (variance * W.square().sum(0)).sum(1)
        kl = 0.5 * (mean.square() + variance - 1 - log_variance).sum(1)
        return (0.5 * precision * misfit - math.log(precision / (2 * math.pi)) + kl).mean()

    def profiled(theta: Tensor) -> Tensor:
        W, noise = decoder_matrix(theta), torch.eye(2, dtype=torch.float64) / precision
        likelihood = torch.distributions.MultivariateNormal(torch.zeros(2).double(), W @ W.T + noise).log_prob(x)
        M = W.T @ W + noise
        return 0.5 * (M.diagonal().log().sum() - M.logdet()) - likelihood.mean()

    start = torch.tensor([0.3, 0.0, 0.0], dtype=torch.float64)
    theta, mean, log_variance = minimise(joint, start, torch.zeros_like(x), torch.zeros_like(x))
    (alone,) = minimise(profiled, start)
    torch.testing.assert_close(profiled(alone), -linear.elbo(x, decoder_matrix(alone), precision).mean())
    torch.testing.assert_close(theta, alone, rtol=1e-4, atol=1e-4)
    W = decoder_matrix(theta)
    split = gap(lambda z: z @ W.T, x, DiagonalGaussian(mean, log_variance.exp()), precision=precision)
    assert float(split.amortization.abs().max()) < 1e-6  # Eq. 10 with equality
    rough = DiagonalGaussian(mean + 0.1, 2 * log_variance.exp())
    assert (gap(lambda z: z @ W.T, x, rough, precision=precision).amortization > 1e-3).all()  # and without


def test_a_step_of_theorem_1_is_no_inequality_but_its_order_is_right():
    """|E‖a‖² - E‖b‖²| <= E‖a - b‖², used before Eq. 39, is false; the difference is O(1/γ⁴) all the same."""
    a, b = 2.0, 1.0
    assert abs(a**2 - b**2) > (a - b) ** 2
    decoder, z = mixing(2), latents(2)
    precisions, errors = [1e2, 1e3, 1e4], []
    for precision in precisions:
        best = project(decoder, decoder(z), precision=precision)
        nodes, weights = hermite_grid(2, 9, z)
        codes = best.mean.unsqueeze(1) + best.variance.sqrt().unsqueeze(1) * nodes
        outputs = decoder(codes.flatten(0, 1)).unflatten(0, codes.shape[:2])
        loss = (outputs - decoder(z).unsqueeze(1)).square().sum(2) @ weights
        linear_part = (jacobian(decoder, z).square().sum(1) * best.variance).sum(1)
        errors.append(float((loss - linear_part).abs().mean()))
    assert slope(precisions, errors) == pytest.approx(-2, abs=0.1)
