"""Lemmas 1, 2, 3, 5, Theorem 1 (a), (b) and §3.5 of Bhowal et al. 2024, with cases on which their assumptions fail."""

import math

import pytest
import torch
from scipy.stats import ortho_group

from vaescope.core.errors import InputError
from vaescope.distributions import Normal
from vaescope.inference.geometry import contrast_of_matrix
from vaescope.orthogonality.matrices import latent_axes
from vaescope.theory import jacobian
from vaescope_papers.statistics import slope
from vaescope_papers.why_vaes_disentangle.theorems import (
    LocalDecoder,
    descent,
    linear_vaes_along_beta,
    orthogonality_of_minimum,
    polarised_kl,
    rotation_effect,
    smallest_kl,
    stochastic_loss,
)

DIMS = [1, 2, 3, 4]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rotation(d: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(ortho_group.rvs(d, random_state=seed)) if d > 1 else -torch.ones(1, 1, dtype=torch.float64)


def curved(d: int) -> LocalDecoder:
    """Outputs with different scales and centres, as a fitted local decoder has them."""
    scale, shift = 1 + draw(d + 3, seed=1).abs(), 0.5 * draw(d + 3, seed=2)
    return LocalDecoder(draw(d + 3, d), lambda y: scale * torch.tanh(y + shift))


# Lemma 1 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", DIMS)
def test_the_stochastic_loss_and_the_orders_of_its_approximations(d):
    decoder, mean, variance = curved(d), 0.3 * draw(d, seed=3), 0.1 + draw(d, seed=4).abs()
    sizes = [1e-3, 3e-4, 1e-4]
    found = [stochastic_loss(decoder, mean, size * variance) for size in sizes]
    assert slope(sizes, [abs(f.exact - f.first_order) for f in found]) == pytest.approx(2, abs=0.1)
    assert slope(sizes, [abs(f.exact - f.second_order) for f in found]) == pytest.approx(3, abs=0.1)
    # Lemma 1 drops the squared mean, which is as large as the other terms beyond first order
    assert slope(sizes, [abs(f.exact - f.lemma_1) for f in found]) == pytest.approx(2, abs=0.1)
    for f in found:
        assert f.lemma_1 + f.squared_bias == pytest.approx(f.exact, rel=1e-12)
    # the squared mean is (½ f'' v)², Lemma 6
    half = 0.5 * decoder.derivatives(decoder.matrix @ mean)[2] * (decoder.matrix.square() @ variance)
    leading = [float((size * half).square().sum()) for size in sizes]
    errors = [abs(f.squared_bias - own) for f, own in zip(found, leading, strict=True)]
    assert slope(sizes, errors) == pytest.approx(3, abs=0.1)
    epsilon = (sizes[1] * variance).sqrt() * draw(400_000, d, seed=5)
    sampled = decoder(mean + epsilon) - decoder(mean.unsqueeze(0))
    assert found[1].exact == pytest.approx(float(sampled.square().sum(1).mean()), rel=0.02)
    assert found[1].lemma_1 == pytest.approx(float(sampled.var(0).sum()), rel=0.02)


def test_an_odd_nonlinearity_around_zero_satisfies_the_assumption_and_a_square_does_not():
    M, zero, variance = draw(4, 2), torch.zeros(2, dtype=torch.float64), torch.full((2,), 0.2, dtype=torch.float64)
    assert stochastic_loss(LocalDecoder(M, torch.sinh), zero, variance).squared_bias < 1e-20
    square = stochastic_loss(LocalDecoder(M, torch.square), zero, variance)
    assert square.first_order == 0  # Theorem 1 has nothing to minimise
    assert square.squared_bias == pytest.approx(square.exact / 3)  # E[y²]² of E[y⁴] = 3 E[y²]²


@pytest.mark.parametrize("d", DIMS)
def test_columns_are_those_of_the_jacobian(d):
    decoder, mean = curved(d), 0.3 * draw(d, seed=3)
    torch.testing.assert_close(decoder.slope(mean), jacobian(decoder, mean.unsqueeze(0))[0])


def test_orthogonal_columns_of_m_are_not_the_minimum_where_outputs_have_different_slopes():
    """Theorem 1 is about diag(f') M. M itself may have orthogonal columns and a rotation still lower the loss."""
    M = torch.diag(torch.tensor([2.0, 1.0])).double() @ rotation(2, seed=1)
    M = torch.linalg.qr(M).Q * torch.tensor([2.0, 1.0]).double()  # orthogonal columns of different lengths
    steep = torch.tensor([3.0, 0.2], dtype=torch.float64)
    decoder = LocalDecoder(M, lambda y: steep * y)
    assert float(contrast_of_matrix(M)) < 1e-12
    assert float(contrast_of_matrix(decoder.slope(torch.zeros(2).double()))) > 0.1


# Lemmas 2 and 3 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("d", DIMS)
def test_a_rotation_changes_the_stochastic_loss_alone(d):
    decoder, mean, x = curved(d), 0.3 * draw(d, seed=3), draw(d + 3, seed=6)
    variance = 0.01 * (1 + torch.arange(d, dtype=torch.float64))
    effect = rotation_effect(decoder, x, mean, variance, rotation(d))
    assert effect.mean_loss[0] == pytest.approx(effect.mean_loss[1])
    assert effect.kl[0] == pytest.approx(effect.kl[1])
    assert (abs(effect.stochastic_change) > 1e-3) == (d > 1)  # one latent can only change its sign
    isotropic = rotation_effect(decoder, x, mean, torch.full_like(variance, 0.01), rotation(d))
    assert isotropic.isotropic
    assert isotropic.stochastic_change == pytest.approx(0, abs=1e-12)  # equal variances: no pressure on the columns


def test_rotations_among_latents_of_equal_variance_change_nothing_and_another_prior_breaks_lemma_3():
    decoder, mean, x = curved(3), 0.3 * draw(3, seed=3), draw(6, seed=6)
    swap = torch.eye(3, dtype=torch.float64)[[1, 0, 2]]
    same = rotation_effect(decoder, x, mean, torch.tensor([0.02, 0.02, 0.1]).double(), swap)
    block = torch.block_diag(rotation(2), torch.ones(1, 1).double())
    within = rotation_effect(decoder, x, mean, torch.tensor([0.02, 0.02, 0.1]).double(), block)
    assert within.stochastic_change == pytest.approx(0, abs=1e-12)
    other = rotation_effect(decoder, x, mean, torch.tensor([0.02, 0.05, 0.1]).double(), swap)
    assert same.stochastic_change == pytest.approx(0, abs=1e-12)
    assert abs(other.stochastic_change) > 1e-3
    prior = Normal(0.0, torch.tensor([1.0, 0.2, 3.0]).double())
    changed = rotation_effect(decoder, x, mean, torch.full((3,), 0.02).double(), rotation(3), prior=prior)
    assert abs(changed.kl[1] - changed.kl[0]) > 1e-3


def test_the_mean_loss_does_not_fix_the_decoder():
    """Lemma 2 says that fixing L^μ fixes U_D. Every invertible matrix with its inverse as encoder has L^μ = 0."""
    x = draw(5, 3)
    for seed in range(3):
        M = draw(3, 3, seed=seed)
        torch.testing.assert_close(LocalDecoder(M, lambda y: y)(x @ torch.linalg.inv(M).T), x)


def test_the_kl_of_the_polarised_regime():
    mean, variance = draw(6, 4), torch.tensor([1e-3, 1e-2, 1.0, 1.0]).double().expand(6, 4)
    mean[:, 2:] = 0
    active = torch.tensor([True, True, False, False])
    found = polarised_kl(mean, variance, active)
    parts = found.logarithm + found.means + found.constant + found.neglected
    torch.testing.assert_close(parts, found.exact)
    torch.testing.assert_close(found.neglected, torch.full((6,), 0.0055).double())  # half the active variances
    # Lemma 3 as printed has no ½: twice the term of the KL in Eq. 15
    torch.testing.assert_close(-variance[:, active].log().sum(1), 2 * found.logarithm)
    unpolarised = polarised_kl(mean, torch.full((6, 4), 0.6).double(), active)
    assert (unpolarised.neglected > unpolarised.logarithm).all()  # the lemma's premise fails, and is seen to


# Theorem 1 and Lemma 5 -----------------------------------------------------------------------------


@pytest.mark.parametrize("d", DIMS)
def test_the_loss_above_its_minimum_splits_into_statements_b_and_c(d):
    M, variance = draw(5, d + 2, d), 0.1 + draw(5, d, seed=1).abs()
    found = orthogonality_of_minimum(M, variance)
    torch.testing.assert_close(found.loss, (M.square().sum(1) * variance).sum(1))
    torch.testing.assert_close(found.loss.log() - found.minimum.log(), found.unequal + found.contrast)
    # the minimum by definition: AM-GM of the singular values
    product = torch.linalg.svdvals(M).log().sum(1) * 2 + variance.log().sum(1)
    torch.testing.assert_close(found.minimum, d * (product / d).exp())
    assert (found.unequal >= 0).all()
    assert ((found.contrast > 1e-6) == (d > 1)).all()
    inverse = orthogonality_of_minimum(M, 1 / M.square().sum(1))
    torch.testing.assert_close(inverse.unequal, torch.zeros(5).double(), atol=1e-12, rtol=0)
    for seed in range(20):  # nothing is below the minimum
        turned = orthogonality_of_minimum(
            M @ rotation(d, seed), variance.flip(0) * (variance / variance.flip(0)).log().mean(1, keepdim=True).exp()
        )
        assert (turned.loss >= found.minimum * (1 - 1e-9)).all()


@pytest.mark.parametrize("d", [2, 3, 4])
def test_every_local_minimum_is_global(d):
    M = draw(d + 2, d, seed=d)
    path = descent(M)
    assert (path.diff() <= 1e-12).all()
    assert float(path[-1]) == pytest.approx(float(torch.linalg.svdvals(M).log().sum()), abs=1e-10)
    # and wherever columns are not orthogonal, a small rotation lowers the product
    for seed in range(5):
        own = M @ rotation(d, seed)
        first = float(own.norm(dim=0).log().sum())
        assert float(descent(own, steps=100, sweeps=1)[0]) < first


@pytest.mark.parametrize(("first", "second"), [(4.0, 1.0), (1.0, 4.0), (1.05, 1.0)])
def test_a_change_of_two_factors_lowers_their_sum_only_if_the_larger_one_falls(first, second):
    """Lemma 11: a/(1+δ) and b(1+δ) have the product of a and b. Printed, their sum is smaller for every pair."""
    delta = 0.1
    saved = first + second - first / (1 + delta) - second * (1 + delta)
    assert saved == pytest.approx(delta * (first / (1 + delta) - second))
    assert (saved > 0) == (first > (1 + delta) * second)
    assert saved != pytest.approx((first + second) * delta / (1 + delta))


def test_the_scale_of_the_decoder_must_be_fixed():
    """M -> t M with μ -> μ/t keeps L^μ and the KL of Lemma 3, and L^stoch falls with t²; only ½‖μ‖² prevents it."""
    M, mean, variance = draw(5, 3), draw(1, 3, seed=1), 0.01 * (1 + draw(1, 3, seed=2).abs())
    active = torch.ones(3, dtype=torch.bool)
    before, kl = LocalDecoder(M, lambda y: y), polarised_kl(mean, variance, active)
    for t in (0.5, 0.1):
        after, changed = LocalDecoder(t * M, lambda y: y), polarised_kl(mean / t, variance, active)
        torch.testing.assert_close(after(mean / t), before(mean))  # so L^μ is that of before
        torch.testing.assert_close(changed.logarithm, kl.logarithm)
        losses = [stochastic_loss(own, m, variance[0]).exact for own, m in ((before, mean[0]), (after, mean[0] / t))]
        assert losses[1] == pytest.approx(t**2 * losses[0])
        torch.testing.assert_close(changed.means, kl.means / t**2)


def test_a_stationary_point_that_is_no_minimum():
    """Columns of equal length: the derivative of the product is zero, and every rotation lowers it (Lemma 12)."""
    M = torch.tensor([[1.0, 1.0], [0.5, -0.2]]).double()
    M = M / M.norm(dim=0)
    angle = torch.zeros((), dtype=torch.float64)

    def product(angle):
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).reshape(2, 2)
        return (M @ turn).norm(dim=0).log().sum()

    assert float(torch.func.grad(product)(angle)) == pytest.approx(0, abs=1e-12)
    for small in (-1e-2, 1e-2):
        assert float(product(angle + small)) < float(product(angle))


@pytest.mark.parametrize("d", DIMS)
def test_orthogonal_columns_save_the_contrast_in_kl(d):
    """Lemma 5 with its amount: at a given L^stoch the smallest KL is lower by c_IMA nats."""
    M = draw(d + 2, d)
    straight = torch.linalg.svd(M, full_matrices=False).U * torch.linalg.svdvals(M)
    saved = smallest_kl(M, 0.3) - smallest_kl(straight, 0.3)
    torch.testing.assert_close(saved, contrast_of_matrix(M), atol=1e-10, rtol=1e-8)
    # the smallest KL by definition
    variance = 0.3 / (d * M.square().sum(0))
    assert float(M.square().sum(0) @ variance) == pytest.approx(0.3)
    assert float(-0.5 * variance.log().sum()) == pytest.approx(float(smallest_kl(M, 0.3)))
    for seed in range(10):
        other = variance * torch.exp(0.3 * draw(d, seed=seed))
        other = other * 0.3 / (M.square().sum(0) @ other)
        assert float(-0.5 * other.log().sum()) >= float(smallest_kl(M, 0.3)) - 1e-12
    # the bound printed in the proof is zero, not positive: a rotation keeps the singular values
    assert float(torch.linalg.svdvals(M).log().sum() - torch.linalg.svdvals(straight).log().sum()) == pytest.approx(0)


def test_the_sum_of_logarithms_does_not_determine_how_samples_share_the_kl():
    """Eq. 10 minimises Σ log L^stoch. Moving KL from one sample to another changes Σ L and not Σ log L."""
    lengths = torch.tensor([[1.0, 2.0], [3.0, 0.5]]).double()
    shared = 0.1 / lengths**2
    moved = shared * torch.tensor([[2.0], [0.5]]).double()
    assert float(shared.log().sum()) == pytest.approx(float(moved.log().sum()))  # the same KL in total
    losses = [(lengths**2 * variance).sum(1) for variance in (shared, moved)]
    assert float(losses[0].log().sum()) == pytest.approx(float(losses[1].log().sum()))
    assert float(losses[1].sum()) > 1.2 * float(losses[0].sum())


# §3.5 -----------------------------------------------------------------------------------------------


def test_long_columns_have_small_variances_and_contribute_most_to_the_kl():
    lengths = torch.tensor([3.0, 1.0, 2.0, 0.5]).double()
    M = torch.linalg.qr(draw(50, 9, 4)).Q * lengths * (1 + 0.2 * draw(50, 1, 1, seed=1).abs())
    variance = 1 / (1 + M.square().sum(1))
    found = latent_axes(M, draw(50, 4, seed=2) * (1 - variance).sqrt(), variance)
    assert found.length_variance == pytest.approx(-1)
    assert found.length_kl == pytest.approx(1)
    assert (found.inverse_square > 1 / found.length**2).all()  # Jensen; the paper has equality
    mixed = latent_axes(M, draw(50, 4, seed=2), variance.flip(1))
    assert mixed.length_variance > -0.5
    with pytest.raises(InputError, match="at least three latents"):
        latent_axes(M[:, :, :2], draw(50, 2), variance[:, :2])
    assert math.isfinite(found.length_kl)


def test_assumptions_that_fail_are_said_to_fail():
    M = torch.eye(3, 2, dtype=torch.float64)
    with pytest.raises(InputError, match="separately"):
        LocalDecoder(M, lambda y: y.softmax(-1))
    ones, local = torch.ones(2, dtype=torch.float64), LocalDecoder(M, torch.tanh)
    with pytest.raises(InputError, match="orthogonal matrix"):
        rotation_effect(local, torch.zeros(3).double(), ones, ones, 2 * torch.eye(2).double())
    with pytest.raises(InputError, match="full rank"):
        descent(torch.ones(3, 2))
    with pytest.raises(InputError, match="loss"):
        smallest_kl(M, 0.0)


def test_neighbours_of_linear_vaes_along_beta():
    """Theorem 2 (b) with all latents in use: the KL falls, means move together, and draws move apart."""
    steps = linear_vaes_along_beta()
    kls, draws, means = ([getattr(step, name) for step in steps] for name in ("kl", "draws", "means"))
    assert kls == sorted(kls, reverse=True)
    assert means == sorted(means, reverse=True)
    assert draws == sorted(draws)
    spectrum = torch.tensor([9.0, 4.0, 1.0], dtype=torch.float64)
    betas = torch.tensor([0.03, 0.1, 0.3, 0.6], dtype=torch.float64)
    spread = 2 * (betas.unsqueeze(1) / spectrum).sum(1)  # σ_k² = β/λ_k for probabilistic PCA
    torch.testing.assert_close(torch.tensor(draws).double() - torch.tensor(means).double(), spread)
