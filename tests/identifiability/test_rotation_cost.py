"""Costs of rotations: the closed form of linear VAEs, and rotated decoders projected anew."""

import pytest
import torch

from vaescope import theory
from vaescope.inference.geometry import cost_curvature, plane_costs

EYE = torch.eye(2, dtype=torch.float64)


def rotation(angle: float, plane=(0, 1), dim=2):
    turn = torch.eye(dim, dtype=torch.float64)
    i, j = plane
    cos, sin = torch.tensor(angle, dtype=torch.float64).cos(), torch.tensor(angle, dtype=torch.float64).sin()
    turn[i, i] = turn[j, j] = cos
    turn[i, j], turn[j, i] = -sin, sin
    return turn


@pytest.mark.parametrize("angle", [-0.7, 0.1, 0.6])
def test_the_cost_is_the_change_of_the_gap_of_a_linear_vae(angle):
    torch.manual_seed(1)
    W, precision = torch.randn(5, 3, dtype=torch.float64), 7.0
    curvature = (precision * W.T @ W)[None]
    cost = plane_costs(curvature, torch.ones(1, 3).double(), (0, 2), torch.tensor([angle], dtype=torch.float64))[0, 0]
    turned = W @ rotation(angle, (0, 2), 3)
    expected = theory.linear.gap(turned, precision) - theory.linear.gap(W, precision)
    assert float(cost) == pytest.approx(float(expected), abs=1e-12)


def test_the_curvature_is_the_second_derivative_of_the_cost():
    torch.manual_seed(2)
    root = torch.randn(4, 3, 3, dtype=torch.float64)
    h, curvature = 1e-3, root @ root.mT
    low, middle, high = plane_costs(curvature, torch.ones(4, 3).double(), (1, 2), torch.tensor([-h, 0.0, h]).double())
    torch.testing.assert_close(
        (low + high - 2 * middle) / h**2, cost_curvature(curvature, (1, 2)), rtol=1e-4, atol=1e-6
    )


def test_a_rotation_by_90_degrees_costs_nothing():
    torch.manual_seed(3)
    root, variance = torch.randn(4, 2, 2, dtype=torch.float64), torch.rand(4, 2, dtype=torch.float64) + 0.5
    cost = plane_costs(root @ root.mT, variance, (0, 1), torch.tensor([torch.pi / 2]))
    torch.testing.assert_close(cost, torch.zeros_like(cost), atol=1e-7, rtol=0)


def test_the_cost_is_that_of_a_rotated_non_linear_decoder_projected_anew():
    """Brute force: ELBO* of f(z) minus that of f(R z); the error falls with the precision."""

    def decoder(z):
        return torch.stack(
            [2 * z[:, 0] + 0.3 * torch.sin(z[:, 1]), z[:, 1] + 0.2 * z[:, 0].tanh(), 0.5 * z[:, 0].cos()], 1
        )

    z = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x, angle, errors = decoder(z), 0.5, []
    turned = rotation(angle)
    for precision in (30.0, 3000.0):
        best = theory.project(decoder, x, precision=precision, start=z)
        start = best.mean @ turned
        again = theory.project(lambda v: decoder(v @ turned.T), x, precision=precision, start=start)
        J = theory.jacobian(decoder, best.mean)
        cost = plane_costs(precision * J.mT @ J, torch.ones_like(z), (0, 1), torch.tensor([angle]).double())[0]
        errors.append(float((best.elbo - again.elbo - cost).abs().mean()))
        assert float(cost.mean()) > 0.05
    assert errors[1] < 0.05 * errors[0]
    assert errors[1] < 1e-3
