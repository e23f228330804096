"""The projection against closed forms, its optimality, and the convergence rates that theory proves."""

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vaescope as vs
from tests.theory.decoders import SMOOTH, Bent, Wide, latents
from vaescope.core import validation
from vaescope.data.mixings import OrthogonalMLP
from vaescope.distributions import FullGaussian
from vaescope.inference import linear
from vaescope.inference.joint import increasing_orders, rule
from vaescope.theory import conformal_contrast, elbo, ima_contrast, log_marginal, optimal_variance, project
from vaescope_papers.statistics import slope


def linear_case(d: int, precision: float, *, collinear: bool, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(d + 2, d, dtype=torch.float64, generator=generator)
    if collinear and d > 1:
        W[:, 1] = W[:, 0] + 1e-4 * W[:, 1]
    z = torch.randn(4, d, dtype=torch.float64, generator=generator)
    x = z @ W.T + torch.randn(4, d + 2, dtype=torch.float64, generator=generator) / math.sqrt(precision)
    return W, x


@pytest.mark.parametrize("collinear", [False, True])
@pytest.mark.parametrize("precision", [1e-1, 1e2, 1e5, 1e8])
@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 6])
def test_linear_vae_projection_quadrature_and_closed_forms_agree(d, precision, collinear):
    W, x = linear_case(d, precision, collinear=collinear)

    def decoder(z):
        return z @ W.T

    found = project(decoder, x, precision=precision, latent_dim=d)
    likelihood = log_marginal(decoder, x, precision=precision, latent_dim=d)
    assert found.converged.all()
    close = {"rtol": 1e-8, "atol": 0.0}
    torch.testing.assert_close(found.elbo, linear.elbo(x, W, precision), **close)
    torch.testing.assert_close(found.variance, linear.optimal_variance(W, precision).expand(4, d), **close)
    torch.testing.assert_close(likelihood.value, linear.log_likelihood(x, W, precision), **close)
    if not collinear:  # with collinear columns the mean itself is ill-conditioned
        torch.testing.assert_close(found.mean, linear.posterior(x, W, precision)[0], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("d", [7, 8, 9])
def test_more_latents_than_a_grid_allows_agree_with_the_closed_form(d):
    W, x = linear_case(d, 1e2, collinear=False)
    found = project(lambda z: z @ W.T, x, precision=1e2, latent_dim=d)
    assert found.converged.all()
    torch.testing.assert_close(found.elbo, linear.elbo(x, W, 1e2), rtol=1e-8, atol=0.0)


def test_hessians_in_one_pass_and_column_by_column_agree(monkeypatch):
    def decoder(z):
        return torch.cat([z.sin(), z.square(), z.prod(1, keepdim=True)], dim=1)

    x = decoder(torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    at_once = project(decoder, x, precision=1e2, latent_dim=2)
    monkeypatch.setattr("vaescope.inference.projection.CHUNK_NUMBERS", 1)
    separately = project(decoder, x, precision=1e2, latent_dim=2)
    torch.testing.assert_close(separately.elbo, at_once.elbo, rtol=1e-10, atol=0.0)
    assert torch.equal(separately.converged, at_once.converged)


@pytest.mark.parametrize("family", ["isotropic", "full"])
def test_linear_vae_other_families(family):
    W, x = linear_case(3, 50.0, collinear=False)
    found = project(lambda z: z @ W.T, x, precision=50.0, latent_dim=3, family=family)
    mean, covariance = linear.posterior(x, W, 50.0)
    torch.testing.assert_close(found.mean, mean, rtol=1e-7, atol=1e-9)
    if family == "full":
        torch.testing.assert_close(found.posterior.covariance, covariance.expand(4, 3, 3), rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(found.elbo, linear.log_likelihood(x, W, 50.0), rtol=1e-9, atol=0)
    else:
        # the best isotropic variance is the inverse of the mean posterior precision
        expected = 3 / torch.linalg.inv(covariance).trace()
        torch.testing.assert_close(found.variance, expected.expand(4, 3), rtol=1e-8, atol=0)


@pytest.mark.parametrize("name", SMOOTH)
def test_gap_mean_and_variance_reach_their_limits_at_rate_one(name):
    decoder, prior = SMOOTH[name]
    z = latents(name)
    x = decoder(z)
    precisions = [1e3, 1e4, 1e5, 1e6]
    contrast, gaps, means, variances = ima_contrast(decoder, z), [], [], []
    for precision in precisions:
        found = project(decoder, x, precision=precision, prior=prior, start=z)
        likelihood = log_marginal(decoder, x, precision=precision, prior=prior, start=z)
        assert found.converged.all()
        assert float(found.gradient_norm.max()) <= 1e-8
        assert (found.elbo <= likelihood.value + 1e-9).all()
        gaps.append(float((likelihood.value - found.elbo - contrast).abs().mean()))
        means.append(float((found.mean - z).abs().mean()))
        predicted = optimal_variance(decoder, z, precision=precision, prior=prior)
        variances.append(float((found.variance / predicted - 1).abs().mean()))
    assert slope(precisions, means) == pytest.approx(-1, abs=0.05)
    assert slope(precisions, variances) == pytest.approx(-1, abs=0.05)
    if decoder.dim > 1:  # one latent has no contrast, and its gap falls faster
        assert slope(precisions, gaps) == pytest.approx(-1, abs=0.05)
    else:
        assert slope(precisions, gaps) < -0.9


@pytest.mark.parametrize("family", ["isotropic", "full"])
def test_gaps_of_other_families_reach_their_limits_at_rate_one(family):
    """The conformal contrast for isotropic posteriors, 0 for full covariances."""
    decoder, z = Bent(2, 3), latents("wide, n > d", 5)
    limit = conformal_contrast(decoder, z) if family == "isotropic" else torch.zeros(5, dtype=torch.float64)
    precisions, errors = [1e3, 1e4], []
    for precision in precisions:
        best = project(decoder, decoder(z), precision=precision, start=z, family=family).elbo
        likelihood = log_marginal(decoder, decoder(z), precision=precision, start=z).value
        errors.append(float((likelihood - best - limit).abs().mean()))
    assert slope(precisions, errors) == pytest.approx(-1, abs=0.05)


def test_the_measured_values_of_the_two_dimensional_case():
    # gap - c_IMA at 1e2, 1e4, 1e6 is of order 1e-2, 1e-4, 1e-6
    decoder, _ = SMOOTH["orthogonal, d=2"]
    z = torch.randn(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for precision, order in ((1e2, 1e-2), (1e4, 1e-4), (1e6, 1e-6)):
        found = project(decoder, decoder(z), precision=precision)
        likelihood = log_marginal(decoder, decoder(z), precision=precision)
        miss = float((likelihood.value - found.elbo - ima_contrast(decoder, z)).abs().mean())
        assert 1 < miss / order < 10


@functools.cache
def projected(name, precision):
    decoder, prior = SMOOTH[name]
    z = latents(name, 3)
    return decoder(z), project(decoder, decoder(z), precision=precision, prior=prior, start=z)


@settings(max_examples=20)
@given(
    name=st.sampled_from(sorted(SMOOTH)),
    precision=st.sampled_from([1.0, 30.0, 1e3, 1e5]),
    seed=st.integers(0, 10_000),
    size=st.floats(1e-3, 2.0),
)
def test_no_other_gaussian_has_a_higher_elbo(name, precision, seed, size):
    decoder, prior = SMOOTH[name]
    x, best = projected(name, precision)
    generator = torch.Generator().manual_seed(seed)
    sd = best.posterior.marginal_variance.sqrt()
    shift = size * sd * torch.randn(sd.shape, dtype=torch.float64, generator=generator)
    scale = sd * torch.exp(size * torch.randn(sd.shape, dtype=torch.float64, generator=generator))
    other = FullGaussian(best.posterior.mean + shift, torch.diag_embed(scale))
    value = elbo(decoder, x, other, precision=precision, prior=prior)
    assert (value[best.converged] <= best.elbo[best.converged] + 1e-7).all()


@pytest.mark.parametrize("name", ["orthogonal, d=2", "wide, n > d", "moebius and linear, uniform"])
def test_the_result_does_not_need_a_start(name):
    decoder, prior = SMOOTH[name]
    z = latents(name)
    x = decoder(z)
    informed = project(decoder, x, precision=1e4, prior=prior, start=z)
    blind = project(lambda p: decoder(p), x, precision=1e4, prior=prior, latent_dim=2)
    assert (blind.elbo >= informed.elbo - 1e-6)[blind.converged].all()
    assert float(blind.converged.double().mean()) > 0.9


def test_families_are_nested():
    decoder, _ = SMOOTH["orthogonal, d=3"]
    x = decoder(latents("orthogonal, d=3", 10))
    values = [project(decoder, x, precision=1e3, family=f).elbo for f in ("isotropic", "diagonal", "full")]
    likelihood = log_marginal(decoder, x, precision=1e3).value
    for smaller, larger in zip(values, [*values[1:], likelihood], strict=True):
        assert (smaller <= larger + 1e-9).all()


def test_points_that_do_not_converge_are_marked(monkeypatch):
    monkeypatch.setattr("vaescope.inference.projection.MAX_STEPS", 0)
    decoder, _ = SMOOTH["triangular"]
    found = project(decoder, decoder(latents("triangular")), precision=1e2)
    assert not found.converged.any()


def test_results_do_not_depend_on_chunks(monkeypatch):
    decoder, x = Wide(), Wide()(latents("wide, n > d", 9))
    at_once = project(decoder, x, precision=1e2)
    monkeypatch.setattr("vaescope.inference.joint.CHUNK_NUMBERS", 1000)
    parts = project(decoder, x, precision=1e2)
    torch.testing.assert_close(parts.elbo, at_once.elbo, rtol=1e-12, atol=0)


def test_images_are_flattened_and_float32_is_kept():
    decoder = Wide()
    z = latents("wide, n > d", 6)
    flat = project(decoder, decoder(z), precision=1e2)
    image = project(lambda p: decoder(p).unflatten(1, (5, 1)), decoder(z).unflatten(1, (5, 1)), precision=1e2, start=z)
    torch.testing.assert_close(image.elbo, flat.elbo, rtol=1e-9, atol=0)
    single = project(lambda p: decoder(p), decoder(z).float(), precision=1e2, start=z.float())
    assert single.mean.dtype == torch.float32


@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 9])
def test_rules_integrate_quadratics_exactly(dim):
    like = torch.zeros((), dtype=torch.float64)
    for order in increasing_orders(dim):
        nodes, weights = rule(dim, order, like)
        torch.testing.assert_close(weights.sum(), like + 1)
        torch.testing.assert_close(
            nodes.T @ (weights[:, None] * nodes), torch.eye(dim, dtype=torch.float64), atol=1e-10, rtol=0
        )
        assert float((weights @ nodes).abs().max()) < 1e-12


def test_quasi_random_rule_agrees_with_a_grid(monkeypatch):
    decoder = OrthogonalMLP(3, seed=2)
    x = decoder(torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    grid = project(decoder, x, precision=1e3)
    monkeypatch.setattr("vaescope.inference.joint.LARGEST_GRID", 30)
    random = project(decoder, x, precision=1e3)
    torch.testing.assert_close(random.elbo, grid.elbo, atol=2e-3, rtol=0)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"precision": 0.0}, "precision must be > 0"),
        ({"precision": -2.0}, "precision must be > 0"),
        ({"decoder": lambda z: z.sum()}, "decoder must map"),
        ({"decoder": lambda z: z[:, :1]}, "decoder gives 1 outputs per point, but x has 2"),
        ({"decoder": lambda z: z * torch.nan}, "decoder returned NaN"),
        ({"x": torch.full((2, 2), torch.nan)}, "x must be finite"),
        ({"x": torch.zeros(2)}, "x must be a floating-point tensor"),
        ({"start": torch.zeros(2, 2, dtype=torch.int64)}, "start must be a floating-point tensor"),
        (
            {"prior": vs.Uniform(0.0, 1.0), "start": torch.full((2, 2), 2.0)},
            r"start must be inside the prior's support \(0.0, 1.0\)",
        ),
        ({"family": "banana"}, "family must be"),
        ({"latent_dim": None, "decoder": lambda z: z * torch.ones(2)}, "takes 1, 2 latents; pass latent_dim"),
        ({"latent_dim": None, "decoder": lambda z: z[:, :1]}, "no number up to 64 fits x; pass latent_dim"),
        ({"latent_dim": None, "x": torch.zeros(2)}, "x must be a floating-point tensor"),
    ],
)
def test_errors_name_the_argument(change, message):
    call = {"decoder": lambda z: z, "x": torch.zeros(2, 2), "precision": 1.0, "latent_dim": 2} | change
    with pytest.raises(vs.InputError, match=message):
        project(call.pop("decoder"), call.pop("x"), **call)


@pytest.mark.parametrize("latents", [1, 2, 5])
def test_the_number_of_latents_is_found_from_any_decoder(latents):
    decoder = torch.nn.Sequential(torch.nn.Linear(latents, 7), torch.nn.Tanh(), torch.nn.Linear(7, 6)).double()
    x = decoder(torch.randn(3, latents, dtype=torch.float64)).detach()
    assert project(decoder, x, precision=10.0).mean.shape == (3, latents)


@pytest.mark.parametrize("prior", [vs.Normal(), vs.Uniform(-1.0, 1.0)])
def test_a_precision_for_every_point_is_one_call_for_all(prior):
    mixing = OrthogonalMLP(2, layers=2, seed=0)
    z = prior.sample(6, 2, generator=torch.Generator().manual_seed(0))
    x, precisions = mixing(z), torch.tensor([1e1, 1e2, 1e3, 1e4, 1e6, 1e8], dtype=torch.float64)
    together = project(mixing, x, precision=precisions, prior=prior, start=z)
    likelihood = log_marginal(mixing, x, precision=precisions, prior=prior, start=z)
    reached = elbo(mixing, x, together.posterior, precision=precisions, prior=prior)
    torch.testing.assert_close(reached, together.elbo, rtol=1e-12, atol=1e-12)
    for i, precision in enumerate(precisions.tolist()):
        rows = slice(i, i + 1)
        alone = project(mixing, x[rows], precision=precision, prior=prior, start=z[rows])
        torch.testing.assert_close(together.elbo[rows], alone.elbo, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(together.variance[rows], alone.variance, rtol=1e-8, atol=0.0)
        other = log_marginal(mixing, x[rows], precision=precision, prior=prior, start=z[rows])
        torch.testing.assert_close(likelihood.value[rows], other.value, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("given", "points"),
    [
        (100, 2),
        ([100.0], 1),
        (np.float32(100), 2),
        (torch.tensor(100.0), 2),
        (np.full(4, 100)[::-2], 2),
        (np.broadcast_to(100.0, 2), 2),
        ([torch.tensor(100.0, requires_grad=True)] * 2, 2),
    ],
)
def test_precisions_of_any_container(given, points):
    assert validation.precisions(given, points).tolist() == [100.0] * points


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        (torch.tensor([1.0, 2.0, 3.0]), r"one for each of the 2 points, got shape \(3,\)"),
        (torch.tensor([1.0, 0.0]), "precision must be > 0, got 0"),
        (torch.tensor([math.inf, 1.0]), "precision must be > 0, got inf"),
        (-1.0, "precision must be > 0, got -1"),
        ([[1.0, 2.0], [3.0]], "precision"),
    ],
)
def test_precisions_that_cannot_be(precision, message):
    with pytest.raises(vs.InputError, match=message):
        validation.precisions(precision, points=2)


def test_a_start_with_another_number_of_rows_is_refused():
    with pytest.raises(Exception, match="start"):  # a shape check where those are on
        vs.theory.project(lambda z: z, torch.zeros(5, 2), precision=1.0, start=torch.zeros(3, 2))
