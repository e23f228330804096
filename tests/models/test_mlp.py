"""Activations of MLPs."""

import torch

from vaescope.models.mlp import MLP, _training_smooth_leaky_relu, smooth_leaky_relu


def test_the_activation_of_training_has_the_value_and_the_slope_of_the_plain_one():
    h = torch.cat([torch.linspace(-100, 100, 20_001), torch.linspace(-3, 3, 20_001), torch.tensor([0.0, -0.0])])
    exact = smooth_leaky_relu(h.double())
    bound = 2e-7 * (1 + h.abs())  # a few units in the last place of the largest term
    assert ((_training_smooth_leaky_relu(h) - exact).abs() <= bound).all()

    def slope(function, at):
        return torch.func.grad(lambda v: function(v).sum())(at)

    torch.testing.assert_close(
        slope(_training_smooth_leaky_relu, h), slope(smooth_leaky_relu, h.double()).float(), rtol=1e-6, atol=1e-7
    )


def test_analysis_keeps_second_derivatives():
    """Only compiled functions use the activation of training: it has no second derivative."""
    network = MLP("net", (2, 5, 1))
    params = {name: p.unsqueeze(0) for name, p in network.init(torch.Generator().manual_seed(0)).items()}

    def output(z):
        return network(params, z[None, None])[0, 0, 0]

    curvature = torch.func.hessian(output)(torch.tensor([0.3, -0.2]))
    assert curvature.abs().max() > 1e-3
