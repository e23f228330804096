"""The linear iVAE: against quadrature, against numerical optimization, and its laws."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from vaescope.core.errors import InputError
from vaescope.inference.linear_ivae import expected_elbo, linear_ivae
from vaescope.theory import linear

F64 = torch.float64


def normal(x, mean, variance):
    return np.exp(-((x - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)


def elbo_by_quadrature(parameters, mean, variance, weights, precision, beta, learned):
    """The β-ELBO of a one-dimensional linear iVAE, by two nested quadratures: z given x, and x given u.

    Nothing is known of the optimal posterior but that it is normal; its parameters are optimised too.
    """
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(60)
    node_weights = node_weights / node_weights.sum()
    groups, total = len(mean), 0.0
    w, b, rest = parameters[0], parameters[1], parameters[2:].reshape(-1, groups)
    prior_variance, gain, shift, posterior_variance = np.exp(rest[0]), rest[1], rest[2], np.exp(rest[3])
    prior_mean = rest[4] if learned else np.zeros(groups)
    for g in range(groups):
        x = mean[g] + math.sqrt(variance[g]) * nodes
        mu = gain[g] * x + shift[g]
        z = mu[:, None] + math.sqrt(posterior_variance[g]) * nodes
        log_p = 0.5 * math.log(precision / (2 * math.pi)) - precision / 2 * (x[:, None] - w * z - b) ** 2
        ratio = posterior_variance[g] / prior_variance[g]
        kl = 0.5 * (ratio - 1 - math.log(ratio) + (mu - prior_mean[g]) ** 2 / prior_variance[g])
        total += weights[g] * float(node_weights @ (log_p @ node_weights - beta * kl))
    return total


@pytest.mark.parametrize(("prior_mean", "beta"), [("learned", 1.0), ("fixed", 1.0), ("learned", 3.0)])
def test_one_dimension_against_quadrature(prior_mean, beta):
    mean, variance = np.array([0.5, -1.0, 2.0]), np.array([2.0, 0.9, 1.5])
    weights, precision = np.array([0.5, 0.2, 0.3]), 4.0
    found = linear_ivae(
        torch.tensor(mean)[:, None],
        torch.tensor(variance)[:, None, None],
        precision=precision,
        latent_dim=1,
        beta=beta,
        prior_mean=prior_mean,
        weights=torch.tensor(weights),
    )
    learned = prior_mean == "learned"

    def loss(parameters):
        return -elbo_by_quadrature(parameters, mean, variance, weights, precision, beta, learned)

    start = np.concatenate([[1.0, float(found.offset[0])], np.zeros(3 * (5 if learned else 4))])
    best = minimize(loss, start, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
    again = minimize(loss, best.x, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14, "maxiter": 4000})
    objective = found.elbo - (beta - 1) * float(found.weights @ found.kl.sum(1))
    assert -again.fun == pytest.approx(objective, abs=1e-8)
    ratio = np.exp(again.x[2:].reshape(-1, 3)[3] - again.x[2:].reshape(-1, 3)[0])
    assert np.allclose(ratio, found.variance_ratio[:, 0], rtol=1e-3)


def groups_with_common_axes(seed=0, n=4):
    random = np.random.default_rng(seed)
    basis = torch.from_numpy(np.linalg.qr(random.normal(size=(n, n)))[0])
    # one direction that is always wide, one that is sometimes, one in which only the mean varies, one that never is
    variances = torch.tensor([[5.0, 3.0, 0.05, 0.1], [4.0, 0.1, 0.05, 0.1], [6.0, 0.2, 0.05, 0.1]], dtype=F64)
    shifts = torch.tensor([[0, 0, 1.0, 0], [0, 0, -2.0, 0], [0, 0, 0.5, 0]], dtype=F64)
    covariance = basis @ torch.diag_embed(variances) @ basis.T
    return shifts @ basis.T + 1.0, covariance, basis


def test_kinds_follow_from_where_the_conditional_variance_crosses_the_noise():
    mean, covariance, basis = groups_with_common_axes()
    weights = torch.tensor([0.2, 0.3, 0.5])
    found = linear_ivae(mean, covariance, precision=2.0, latent_dim=5, weights=weights)
    which = [int((basis.T @ found.axes[:, j]).abs().argmax()) if found.axes[:, j].any() else -1 for j in range(5)]
    kinds = dict(zip(which, found.kind, strict=True))
    assert kinds == {0: "active", 1: "mixed", 2: "passive", 3: "passive", -1: "passive"}
    assert dict(zip(which, found.passive_fraction.tolist(), strict=True))[1] == pytest.approx(0.8)
    # the direction of the means costs no KL, and the decoder still has it
    j = which.index(2)
    assert found.kl[:, j].max() == 0
    assert found.prior_mean[:, j].std() > 1
    assert found.prior_variance[:, j].max() == 0


@pytest.mark.parametrize("latents", [2, 4, 6])
def test_the_stated_elbo_is_that_of_the_stated_parameters(latents):
    mean, covariance, _ = groups_with_common_axes(1)
    found = linear_ivae(mean, covariance, precision=3.0, latent_dim=latents)
    value = expected_elbo(
        found.axes, found.offset, found.prior_mean, found.prior_variance, mean, covariance, precision=3.0
    )
    assert float(value) == pytest.approx(found.elbo, abs=1e-12)


@pytest.mark.parametrize(("latents", "seed"), [(1, 0), (2, 1), (3, 2)])
def test_no_other_linear_ivae_is_better(latents, seed):
    """Gradient ascent over all parameters, oblique decoders included, from random starts."""
    mean, covariance, _ = groups_with_common_axes(seed)
    best = linear_ivae(mean, covariance, precision=2.0, latent_dim=latents).elbo
    reached = []
    for start in range(3):
        generator = torch.Generator().manual_seed(start)
        shapes = [(4, latents), (4,), (3, latents), (3, latents)]
        parts = [torch.randn(s, generator=generator, dtype=F64).requires_grad_() for s in shapes]
        optimiser = torch.optim.LBFGS(parts, max_iter=250, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

        def closure(parts=parts, optimiser=optimiser):
            optimiser.zero_grad()
            W, b, m, log_s = parts
            loss = -expected_elbo(W, b, m, log_s.exp(), mean, covariance, precision=2.0)
            loss.backward()
            return loss

        optimiser.step(closure)
        reached.append(-float(closure().detach()))
    assert max(reached) <= best + 1e-9
    assert max(reached) == pytest.approx(best, rel=1e-4)


def test_one_group_is_the_linear_vae():
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(5, 2, generator=generator, dtype=F64)
    covariance = W @ W.T + torch.eye(5, dtype=F64) / 10
    found = linear_ivae(torch.zeros(1, 5, dtype=F64), covariance[None], precision=10.0, latent_dim=2)
    values = np.linalg.eigvalsh(covariance)[::-1]
    assert found.kl.sum() == pytest.approx(linear.total_kl(values, 0.1, 2))
    entropy = 0.5 * (5 * math.log(2 * math.pi * math.e) + float(covariance.logdet()))
    assert found.elbo == pytest.approx(-entropy)  # the model is right, so E log p is minus the entropy


def test_splitting_a_group_changes_nothing():
    mean, covariance, _ = groups_with_common_axes(3)
    whole = linear_ivae(mean, covariance, precision=2.0, latent_dim=3, weights=torch.tensor([0.5, 0.25, 0.25]))
    split = linear_ivae(mean[[0, 0, 1, 2]], covariance[[0, 0, 1, 2]], precision=2.0, latent_dim=3)
    assert split.elbo == pytest.approx(whole.elbo)
    assert torch.allclose(split.passive_fraction, whole.passive_fraction)


def test_if_the_auxiliary_input_determines_x_no_latent_is_active():
    mean = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    found = linear_ivae(mean, torch.zeros(50, 3, 3, dtype=F64), precision=100.0, latent_dim=3)
    assert found.kind == ["passive"] * 3
    assert found.prior_mean.std(0).min() > 0.5


def test_with_a_fixed_mean_the_same_data_make_a_latent_mixed():
    """Groups near the offset need no latent: the prior's variance there falls to zero."""
    mean = torch.linspace(-2, 2, 41, dtype=F64)[:, None]
    found = linear_ivae(mean, torch.zeros(41, 1, 1, dtype=F64), precision=30.0, latent_dim=1, prior_mean="fixed")
    near = (mean[:, 0] - found.offset).square() <= 1 / 30
    assert found.kind == ["mixed"]
    assert torch.equal(~found.active[:, 0], near)


def test_a_fixed_mean_is_optimal_among_offsets():
    mean, covariance = torch.tensor([[0.0], [0.1], [3.0]], dtype=F64), torch.full((3, 1, 1), 1e-3, dtype=F64)
    found = linear_ivae(mean, covariance, precision=1e3, latent_dim=1, prior_mean="fixed")
    zeros = torch.zeros(3, 1, dtype=F64)
    values = []
    for b in torch.linspace(-1, 4, 2001, dtype=F64):
        variance = (covariance[:, :, 0] + (mean - b).square() - 1e-3).clamp(min=0)
        values.append(
            float(expected_elbo(torch.ones(1, 1, dtype=F64), b[None], zeros, variance, mean, covariance, precision=1e3))
        )
    assert found.elbo >= max(values) - 1e-12
    assert found.elbo == pytest.approx(max(values), abs=1e-3)


def test_rotating_and_shifting_x_moves_the_axes_and_nothing_else():
    mean, covariance, _ = groups_with_common_axes(4)
    turn = torch.from_numpy(np.linalg.qr(np.random.default_rng(9).normal(size=(4, 4)))[0])
    first = linear_ivae(mean, covariance, precision=2.0, latent_dim=3)
    second = linear_ivae(mean @ turn.T + 7.0, turn @ covariance @ turn.T, precision=2.0, latent_dim=3)
    assert second.elbo == pytest.approx(first.elbo)
    assert torch.allclose(second.kl, first.kl)
    assert torch.allclose((turn @ first.axes).abs(), second.axes.abs(), atol=1e-8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"precision": 0.0}, "precision"),
        ({"prior_mean": "free"}, "prior_mean"),
        ({"weights": torch.tensor([1.0, -1.0, 1.0])}, "not negative"),
        ({"covariance": -torch.eye(4, dtype=F64).expand(3, 4, 4)}, "negative eigenvalue"),
        ({"prior_mean": "fixed", "mean": torch.eye(3, 4, dtype=F64)}, "share their principal axes|one common axis"),
    ],
)
def test_input_outside_the_assumptions_is_refused(change, message):
    mean, covariance, _ = groups_with_common_axes()
    given = {"mean": mean, "covariance": covariance, "precision": 2.0, "latent_dim": 2} | change
    with pytest.raises(InputError, match=message):
        linear_ivae(given.pop("mean"), given.pop("covariance"), **given)


def test_covariances_without_common_axes_are_refused():
    random = np.random.default_rng(0)
    parts = [torch.from_numpy(a @ a.T) for a in random.normal(size=(3, 4, 4))]
    with pytest.raises(InputError, match="share their principal axes"):
        linear_ivae(torch.zeros(3, 4, dtype=F64), torch.stack(parts), precision=1.0, latent_dim=2)
