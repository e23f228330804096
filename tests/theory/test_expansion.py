"""The order beyond Theorem 1: ELBO*, log p, their gap and the mean, against quadrature, by measured slopes."""

import functools

import pytest
import torch

import vaescope as vs
from tests.theory.decoders import Bent
from vaescope.data.mixings import OrthogonalMLP
from vaescope.distributions.priors import Mixture
from vaescope.inference import linear
from vaescope.inference.expansion import expand_misfit, expansion, printed_mean_offset
from vaescope.theory import ima_contrast, log_marginal, mean_offset, project
from vaescope_papers.statistics import slope

# above, remainders are rounding errors
PRECISIONS = {"normal": [1e3, 1e4], "narrow": [1e3, 1e4], "laplace": [1e3, 1e4], "beta": [1e4, 1e5]}
PRIORS = {
    "normal": vs.Normal(),
    "narrow": vs.Normal(0.5, 0.2),
    "laplace": vs.Laplace(0.3, 0.7),
    "beta": vs.Beta(2.0, 3.0, -1.0, 1.5),
}
CASES = [(d, d + extra, "normal") for d in (1, 2, 3, 4) for extra in (0, 2)]
CASES += [(1, 1, "beta"), (2, 3, "beta"), (2, 3, "narrow"), (2, 3, "laplace")]


def exact(d: int, n: int, name: str, precision: float):
    decoder, prior = Bent(d, n), PRIORS[name]
    z = prior.sample(2, d, generator=torch.Generator().manual_seed(1))
    z = z.clamp(-1.5, 1.5) if prior.bounds is None else 0.6 * z
    if name == "laplace":  # away from its kink
        z = prior.mean + (z - prior.mean).sign() * (z - prior.mean).abs().clamp_min(0.5)
    best = project(decoder, decoder(z), precision=precision, prior=prior, start=z)
    assert best.converged.all()
    likelihood = log_marginal(decoder, decoder(z), precision=precision, prior=prior, start=z).value
    return decoder, prior, z, best, likelihood


def slope_of(errors: list[torch.Tensor], name: str) -> float:
    return slope(PRECISIONS[name], [float(error.abs().mean()) for error in errors])


@pytest.mark.parametrize(("d", "n", "name"), CASES)
def test_remainders_fall_with_the_square_of_the_precision(d, n, name):
    errors = {"elbo": [], "log p": [], "gap": [], "mean": [], "printed mean": [], "first order": []}
    for precision in PRECISIONS[name]:
        decoder, prior, z, best, likelihood = exact(d, n, name, precision)
        found = expansion(decoder, z, precision=precision, prior=prior)
        moved = best.mean - z
        errors["elbo"].append(best.elbo - found.elbo)
        errors["log p"].append(likelihood - found.log_marginal)
        errors["gap"].append(likelihood - best.elbo - found.gap)
        errors["mean"].append(moved - mean_offset(decoder, z, precision=precision, prior=prior))
        errors["printed mean"].append(moved - printed_mean_offset(decoder, z, precision=precision, prior=prior))
        errors["first order"].append(likelihood - best.elbo - ima_contrast(decoder, z))
    for key in ("elbo", "log p", "gap", "mean"):
        assert slope_of(errors[key], name) == pytest.approx(-2, abs=0.05), key
    # without the next order, and with Eq. 28 as printed, the error falls only with the precision itself
    assert slope_of(errors["first order"], name) == pytest.approx(-1, abs=0.05)
    assert slope_of(errors["printed mean"], name) == pytest.approx(-1, abs=0.05)


def test_a_prior_that_is_not_log_concave_where_the_precision_makes_up_for_it():
    """Between two modes the prior's curvature is negative; the expansion holds as long as P is positive definite."""
    prior = Mixture(torch.tensor([-1.0, 1.0]).double(), torch.tensor([0.5, 0.5]).double())
    decoder, z = Bent(2, 2), torch.tensor([[0.1, -0.2], [0.05, 0.9]]).double()
    assert (prior.curvature(z)[0] < 0).all()
    errors = {"elbo": [], "log p": [], "gap": [], "mean": []}
    for precision in PRECISIONS["normal"]:
        found = expansion(decoder, z, precision=precision, prior=prior)
        best = project(decoder, decoder(z), precision=precision, prior=prior, start=z)
        likelihood = log_marginal(decoder, decoder(z), precision=precision, prior=prior, start=z).value
        errors["elbo"].append(best.elbo - found.elbo)
        errors["log p"].append(likelihood - found.log_marginal)
        errors["gap"].append(likelihood - best.elbo - found.gap)
        errors["mean"].append(best.mean - z - mean_offset(decoder, z, precision=precision, prior=prior))
    for key, values in errors.items():
        assert slope_of(values, "normal") == pytest.approx(-2, abs=0.05), key
    assert expansion(decoder, z, precision=1e-2, prior=prior).gap[0].isnan()  # P is not positive definite


def test_closed_forms_in_one_dimension():
    """f = z + 0.4 sin z: the mean moves by (n' - 3/2 f''/f') / (γ² f'²), and the gap is ¾ f''² / (γ² f'⁴)."""
    z = torch.tensor([[0.7], [-1.2], [2.0]], dtype=torch.float64)
    first, second = 1 + 0.4 * z.cos(), -0.4 * z.sin()

    def decoder(z):
        return z + 0.4 * z.sin()

    precision = 1e6
    expected = (-z - 1.5 * second / first) / (precision * first**2)
    torch.testing.assert_close(mean_offset(decoder, z, precision=precision), expected)
    found = project(decoder, decoder(z), precision=precision, start=z)
    torch.testing.assert_close(found.mean - z, expected, rtol=1e-5, atol=0)
    printed = printed_mean_offset(decoder, z, precision=precision)
    torch.testing.assert_close(printed, -z / (precision * first**2))
    assert float((printed / (found.mean - z) - 1).abs().max()) > 0.5  # Eq. 28 is far off at any precision
    gap = expansion(decoder, z, precision=precision).gap
    torch.testing.assert_close(gap * precision, (0.75 * second**2 / first**4).squeeze(1), rtol=1e-5, atol=0)


@pytest.mark.parametrize("precision", [1e-2, 1.0, 1e2])
def test_the_expansion_is_exact_for_a_linear_decoder_at_every_precision(precision):
    W = torch.tensor([[1.0, 0.5], [0.0, 1.0], [0.3, 0.0]], dtype=torch.float64)
    z = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = expansion(lambda z: z @ W.T, z, precision=precision)
    torch.testing.assert_close(found.elbo, linear.elbo(z @ W.T, W, precision))
    torch.testing.assert_close(found.log_marginal, linear.log_likelihood(z @ W.T, W, precision))
    torch.testing.assert_close(found.gap, linear.gap(W, precision).expand(3))
    assert float(found.curvature.abs().max()) < 1e-12
    assert float(found.remainder.abs().max()) < 1e-12


def test_the_prior_coefficient_is_the_limit_of_the_linear_gap():
    z = torch.zeros(2, 3, dtype=torch.float64)
    found = expansion(Bent(3, 4), z, precision=1e5)
    limit = 1e5 * (found.linear_gap - ima_contrast(Bent(3, 4), z))
    torch.testing.assert_close(found.prior_coefficient, limit, rtol=1e-4, atol=0)
    assert (found.prior_coefficient < 0).all()


def test_taylor_coefficients_against_nested_differentiation():
    decoder, z = Bent(3, 5), torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    frame = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (taylor,) = expand_misfit(decoder, z, vs.Normal())
    third, fourth = taylor.third(), taylor.fourth(frame)

    def misfit(u, target):
        return 0.5 * (decoder(u.unsqueeze(0)) - target).square().sum()

    for row in range(2):
        at = functools.partial(misfit, target=decoder(z[row : row + 1]))
        derivative = torch.func.jacfwd(torch.func.jacfwd(torch.func.jacfwd(at)))
        torch.testing.assert_close(third[row], derivative(z[row]))
        covariance = frame[row] @ frame[row].T
        expected = torch.einsum("ijkl,ij,kl->", torch.func.jacfwd(derivative)(z[row]), covariance, covariance)
        torch.testing.assert_close(fourth[row], expected)


def test_points_are_independent_and_their_order_is_kept(monkeypatch):
    decoder, z = OrthogonalMLP(2, seed=0), torch.randn(2, 2, dtype=torch.float64)
    whole = expansion(decoder, z, precision=50.0)
    monkeypatch.setattr("vaescope.inference.expansion.CHUNK_ELEMENTS", 1)  # a point at a time
    parts = expansion(decoder, z, precision=50.0)
    torch.testing.assert_close(whole.gap, parts.gap)
    torch.testing.assert_close(whole.remainder, parts.remainder)


def test_a_jacobian_of_low_rank_has_no_offset():
    offset = mean_offset(lambda z: z.sum(1, keepdim=True).expand(-1, 3), torch.zeros(2, 2), precision=10.0)
    assert offset.isinf().all()
    wide = mean_offset(lambda z: z[:, :1] + z[:, 1:], torch.zeros(2, 2), precision=10.0)  # fewer outputs than latents
    assert wide.isinf().all()
