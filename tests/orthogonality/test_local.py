"""Local fits of tanh and of linear decoders, the split of the loss, and the theorems."""

import pytest
import torch

from vaescope.core.errors import InputError
from vaescope.orthogonality import inverse_square, local_fit, loss_split, neighbour_distance
from vaescope.theory import jacobian

G = torch.Generator().manual_seed(0)
M = torch.randn(40, 3, generator=G, dtype=torch.float64)
POINTS = torch.randn(4, 3, generator=G, dtype=torch.float64)
SPREAD = 0.05 + torch.rand(4, 3, generator=G, dtype=torch.float64)


@pytest.mark.parametrize("strength", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tanh_decoder_is_recovered(strength, dtype):
    found = local_fit(
        lambda z: torch.tanh(strength * z @ M.to(z).T), (0 * POINTS).to(dtype), SPREAD.to(dtype), draws=1000
    )
    assert (found.nonlinear_error < 0.01 * found.linear_error).all()
    assert (found.linear_error < found.energy).all()


def test_the_matrix_of_a_tanh_is_recovered():
    found = local_fit(lambda z: torch.tanh(z @ M.T), 0 * POINTS, SPREAD)
    torch.testing.assert_close(found.matrix, M.expand(4, 40, 3), rtol=0.05, atol=0.05)
    torch.testing.assert_close(found.slope, M.expand(4, 40, 3), rtol=0.05, atol=0.05)


def test_a_linear_decoder_is_fitted_by_both():
    found = local_fit(lambda z: z @ M.T + 2, POINTS, SPREAD)
    assert (found.linear_error < 1e-20 * found.energy).all()
    assert (found.nonlinear_error >= found.linear_error).all()
    assert (found.nonlinear_error < 1e-4 * found.energy).all()
    torch.testing.assert_close(found.linear, M.expand(4, 40, 3))


def test_the_non_linear_fit_does_not_overfit_noise():
    """Only the offset of the centre can be fitted, which is half of the energy; the error is the other half."""

    def noisy(z):
        return torch.randn((len(z), 30), generator=torch.Generator().manual_seed(len(z)), dtype=z.dtype)

    found = local_fit(noisy, POINTS, SPREAD)
    assert (found.linear_error / found.energy).mean() == pytest.approx(0.5, abs=0.05)
    assert (found.nonlinear_error >= found.linear_error * 0.99).all()


def test_the_fit_of_a_small_neighbourhood_is_the_jacobian():
    def decoder(z):
        return torch.sin(z @ M.T) + (z @ M.T) ** 2

    found = local_fit(decoder, POINTS, torch.full_like(SPREAD, 1e-8))
    torch.testing.assert_close(found.linear, jacobian(decoder, POINTS), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.slope, jacobian(decoder, POINTS), rtol=1e-2, atol=1e-2)


def test_the_linearisation_uses_the_same_draws():
    """Exact for a linear decoder; for a curved one its energy is Σ σ_j² ‖J_j‖², with a larger error than a fit."""
    straight = local_fit(lambda z: z @ M.T, POINTS, SPREAD, linearise=True)
    assert (straight.jacobian_error < 1e-20 * straight.energy).all()
    torch.testing.assert_close(straight.jacobian_energy, straight.energy)

    def curved(z):
        return torch.tanh(z @ M.T)

    found = local_fit(curved, POINTS, SPREAD, draws=4000, linearise=True)
    expected = (SPREAD * jacobian(curved, POINTS).square().sum(1)).sum(1)
    torch.testing.assert_close(found.jacobian_energy, expected, rtol=0.1, atol=0)
    assert (found.jacobian_error > found.linear_error).all()
    assert local_fit(curved, POINTS, SPREAD).jacobian_error is None


def test_constant_outputs_give_finite_results():
    found = local_fit(
        lambda z: torch.cat([torch.tanh(z), torch.zeros(len(z), 5)], 1),
        torch.zeros(2, 3),
        torch.ones(2, 3),
        linearise=True,
    )
    for value in vars(found).values():
        assert value.isfinite().all()


def test_results_do_not_depend_on_units_of_the_latents():
    def decoder(z):
        return torch.tanh(z @ M.T)

    found = local_fit(decoder, POINTS, SPREAD)
    scaled = local_fit(lambda z: decoder(z / 1000), 1000 * POINTS, 1e6 * SPREAD)
    difference = (found.nonlinear_error - scaled.nonlinear_error).abs()
    # rounding may lead one of many outputs to another minimum
    assert (difference < 0.05 * found.linear_error).all()
    torch.testing.assert_close(found.linear, 1000 * scaled.linear, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variance": -SPREAD}, "variance must be > 0; pass variances, not log-variances"),
        ({"variance": SPREAD[:2]}, r"must have the same shape \(N, d\), got \(4, 3\) and \(2, 3\)"),
        ({"draws": 10}, "10 draws are too few for 3 latents; use at least 32"),
        ({"draws": 100.0}, "draws must be an integer"),
        ({"mean": POINTS[:0], "variance": SPREAD[:0]}, "mean must have at least one row and one column"),
        ({"mean": torch.full_like(POINTS, torch.nan)}, "mean must be finite"),
        ({"variance": torch.full_like(SPREAD, torch.inf)}, "variance must be finite"),
        (
            {"mean": POINTS.float() + 1, "variance": 1e-20 * SPREAD.float()},
            "narrower than the rounding error of its mean",
        ),
        ({"decoder": lambda z: torch.exp(1000 * z)}, "the decoder must return finite numbers"),
        ({"decoder": lambda z: z[:, :0]}, "the decoder must return finite numbers"),
    ],
)
def test_bad_input_is_explained(change, message, unchecked_shapes):
    with pytest.raises(InputError, match=message):
        local_fit(**{"decoder": lambda z: z, "mean": POINTS, "variance": SPREAD} | change)


def test_arrays_and_decoders_of_another_dtype_are_accepted():
    found = local_fit(lambda z: torch.tanh(z.double()), POINTS.float().numpy(), SPREAD.float().numpy())
    assert found.matrix.dtype == torch.float32


@pytest.mark.parametrize("variance", [1.0, 0.01])
@pytest.mark.parametrize("bend", [0.0, 0.5, 1.5, 3.0])
def test_a_tanh_with_any_centre_is_recovered(variance, bend):
    """With a scale, at 20 points."""
    Q = torch.linalg.qr(M)[0] * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    zero = torch.zeros(20, 3, dtype=torch.float64)
    found = local_fit(lambda z: 7 * torch.tanh(z @ Q.T + bend), zero, torch.full_like(zero, variance))
    assert (found.nonlinear_error / found.linear_error).median() < 0.01
    slope = 7 * (1 - torch.tanh(torch.tensor(bend)) ** 2) * Q
    torch.testing.assert_close(found.slope.median(0).values, slope, rtol=0.05, atol=0.02 * float(slope.abs().max()))
    if variance == 1 and bend < 3:  # otherwise the scale is not determined
        torch.testing.assert_close(found.matrix.median(0).values, 7 * Q, rtol=0.05, atol=0.05)


def test_energies_of_the_fits():
    """For a linear decoder all are Σ σ_j² ‖m_j‖²; for a saturated one that of the linear fit is smaller."""
    straight = local_fit(lambda z: z @ M.T, POINTS, SPREAD, draws=4000)
    expected = SPREAD @ M.square().sum(0)
    for energy in (straight.energy, straight.linear_energy, straight.nonlinear_energy):
        torch.testing.assert_close(energy, expected, rtol=0.1, atol=0)
    saturated = local_fit(lambda z: torch.tanh(3 * z @ M.T), 0 * POINTS, SPREAD)
    torch.testing.assert_close(saturated.nonlinear_energy, saturated.energy, rtol=1e-3, atol=0)
    assert (saturated.linear_energy < 0.98 * saturated.energy).all()


def test_codes_are_decoded_in_chunks(monkeypatch):
    monkeypatch.setattr("vaescope.orthogonality.local.ROWS_AT_ONCE", 1000)
    rows = []

    def decoder(z):
        rows.append(len(z))
        return z[:, :2]

    local_fit(decoder, torch.zeros(20, 3), torch.ones(20, 3), draws=300)
    assert max(rows) == 900  # three points at a time


# the loss in parts ----------------------------------------------------------------------------


def test_the_parts_of_the_loss_add_up():
    x = torch.randn(4, 40, generator=G, dtype=torch.float64)
    split = loss_split(lambda z: torch.tanh(z @ M.T), x, POINTS, SPREAD)
    torch.testing.assert_close(split.mean + split.stochastic - split.cross, split.total)


def test_the_loss_of_a_linear_decoder_has_a_closed_form():
    """L^stoch = Σ σ_j² ‖m_j‖², and no cross term in expectation."""
    x = torch.randn(4, 40, generator=G, dtype=torch.float64)
    split = loss_split(lambda z: z @ M.T, x, POINTS, SPREAD, draws=4000)
    torch.testing.assert_close(split.stochastic, SPREAD @ M.square().sum(0), rtol=0.1, atol=0)
    assert abs(split.cross_share) < 0.05
    assert (split.cross.abs() < 0.1 * split.total).all()


def test_a_curved_decoder_has_a_cross_term():
    x = torch.full((4, 3), 9.0, dtype=torch.float64)
    split = loss_split(lambda z: z**2, x, 0 * POINTS, SPREAD)
    assert split.cross_share > 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(3, 40)}, "x has 3, mean has 4"),
        ({"variance": 0 * SPREAD}, "variance must be > 0"),
        ({"draws": 0}, "draws must be at least 1"),
    ],
)
def test_bad_arguments_of_the_split_are_explained(change, message, unchecked_shapes):
    given = {"x": torch.zeros(4, 40, dtype=torch.float64), "mean": POINTS, "variance": SPREAD} | change
    with pytest.raises(InputError, match=message):
        loss_split(lambda z: z @ M.T, **given)


# theorems -------------------------------------------------------------------------------------


def test_the_slope_is_minus_one_at_the_optimum_only():
    norms = torch.rand(200, 5, generator=G) + 0.1
    own = torch.rand(200, 1, generator=G) + 0.5  # the intercept of each sample
    noise = torch.exp(0.1 * torch.randn(200, 5, generator=G))
    found = inverse_square(own * noise / norms**2, norms)
    assert found.low < -1 < found.high
    assert found.r2 > 0.9
    other = inverse_square(own * noise / norms, norms)
    assert other.low > -1


def test_neighbours_in_data_space_are_near_in_codes_that_depend_on_the_data():
    x = torch.randn(300, 2, generator=G)
    following = neighbour_distance(x, 5 * x)
    shuffled = neighbour_distance(x, x[torch.randperm(300, generator=G)])
    assert following.mean() < 0.2
    assert shuffled.mean() == pytest.approx(0.9, abs=0.15)
    torch.testing.assert_close(following, neighbour_distance(x, 0.1 * x))


def test_duplicates_are_neighbours():
    x = torch.tensor([[0.0], [0.0], [3.0]])
    assert neighbour_distance(x, x)[:2].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inverse_square(torch.ones(5, 1), torch.ones(5, 1)), "at least two latents"),
        (lambda: inverse_square(torch.ones(5, 2), torch.zeros(5, 2)), "must be > 0"),
        (lambda: inverse_square(torch.ones(5, 2), torch.ones(5, 2)), "all columns have the same length"),
        (lambda: neighbour_distance(torch.zeros(2, 2), torch.zeros(2, 2)), "needs at least 3 samples"),
    ],
)
def test_undefined_results_are_explained(call, message, unchecked_shapes):
    with pytest.raises(InputError, match=message):
        call()
