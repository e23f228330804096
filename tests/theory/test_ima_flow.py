"""Flows trained on the IMA-regularised likelihood: their objective, the stack, an ambiguity that only λ > 0 removes."""

import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope_papers.embrace_the_gap.ima_flow import (
    FlowSettings,
    FlowSpec,
    Unmixing,
    fit_ima_flow,
    fit_ima_flows,
    flow_terms,
    inverse_columns,
)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def weights(unmixing: Unmixing, seeds=(0, 1)) -> dict[str, torch.Tensor]:
    own = [unmixing.init(seed) for seed in seeds]
    return {name: torch.stack([params[name] for params in own]).double() for name in own[0]}


@pytest.mark.parametrize("prior", [vs.Normal(), vs.Uniform(-0.5, 0.5)], ids=["normal", "uniform"])
@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_the_objective_is_the_ima_likelihood_of_the_inverse(d, prior):
    unmixing, x = Unmixing(d, (7, 5)), 0.5 * draw(2, 4, d, seed=2)
    params = weights(unmixing)
    u, J = unmixing(params, x)
    terms = flow_terms(u, J, prior)
    for member in range(2):
        own = {name: value[member : member + 1] for name, value in params.items()}
        z = prior.to_support(u[member])
        J_g = vs.theory.jacobian(lambda y, own=own: prior.to_support(unmixing(own, y.unsqueeze(0))[0][0]), x[member])
        J_f = torch.linalg.inv(J_g)
        expected = prior.log_density(z).sum(1) - torch.linalg.slogdet(J_f).logabsdet
        torch.testing.assert_close(terms.log_likelihood[member], expected)
        contrast = vs.theory.contrast_of_matrix(J_f)
        torch.testing.assert_close(terms.contrast[member], contrast, rtol=1e-7, atol=1e-9)
        for strength in (0.0, 2.5):
            torch.testing.assert_close(terms.regularised(strength)[member], expected - strength * contrast)


def test_the_objective_of_a_linear_flow_is_ima_likelihood():
    W, x = torch.linalg.inv(draw(3, 3)), draw(5, 3, seed=1)
    terms = flow_terms(x @ W.T, W.expand(5, 3, 3), vs.Normal())
    for strength in (0.0, 1.0):
        expected = vs.theory.ima_likelihood(lambda z: z @ torch.linalg.inv(W).T, x, strength=strength)
        torch.testing.assert_close(terms.regularised(strength), expected)


def test_the_closed_form_in_three_dimensions():
    J = draw(6, 3, 3)
    columns, log_det = inverse_columns(J)
    torch.testing.assert_close(columns, torch.linalg.inv(J).norm(dim=1).log())
    torch.testing.assert_close(log_det, torch.linalg.slogdet(J).logabsdet)


def test_only_the_regularised_likelihood_resolves_a_rotation_of_gaussian_sources():
    """x = O D s with Gaussian s: the likelihood is the same for every rotation of s; c_IMA is zero for one."""
    sources = draw(4000, 2)
    mixing = torch.linalg.qr(draw(2, 2, seed=3)).Q * torch.tensor([1.0, 3.0]).double()
    x = sources @ mixing.T
    settings = FlowSettings(steps=300, learning_rate=3e-2, hidden=(4,))
    flows = fit_ima_flows(x.unsqueeze(0), [FlowSpec(1, 0.0), FlowSpec(1, 1.0)], settings=settings)
    found = dict(zip((0.0, 1.0), flows, strict=True))
    mcc = {s: vs.metrics.mcc(flow.encode(x), sources).score for s, flow in found.items()}
    assert mcc[1.0] > 0.98
    assert mcc[0.0] < 0.95
    likelihoods = {s: float(flow.terms(x).log_likelihood.mean()) for s, flow in found.items()}
    assert likelihoods[1.0] == pytest.approx(likelihoods[0.0], abs=0.02)
    assert float(found[1.0].terms(x).contrast.mean()) < 2e-3 < float(found[0.0].terms(x).contrast.mean())
    best = vs.theory.log_marginal(lambda z: z @ mixing.T, x[:50], precision=1.0, method="flow").value
    assert float(found[1.0].terms(x[:50]).log_likelihood.mean()) == pytest.approx(float(best.mean()), abs=0.05)
    assert found[1.0].folded(x) == 0.0


def test_a_flow_does_not_depend_on_the_others_and_not_on_units():
    x = draw(500, 2) @ torch.tensor([[1.0, 0.5], [0.0, 1.0]]).double()
    settings = FlowSettings(steps=20, hidden=(6,))
    specs = [FlowSpec(1, 0.5), FlowSpec(2, 3.0)]
    seen = []
    alone = fit_ima_flow(x, strength=3.0, seed=2, settings=settings)
    both = fit_ima_flows(
        x.unsqueeze(0), specs, settings=settings, watch=lambda step, flows: seen.append(step), watch_at=(5, 20)
    )
    torch.testing.assert_close(torch.tensor(both[1].history), torch.tensor(alone.history))
    torch.testing.assert_close(both[1].encode(x), alone.encode(x))
    assert seen == [5, 20]
    scaled = fit_ima_flow(100 * x + 7, strength=3.0, seed=2, settings=settings)
    torch.testing.assert_close(scaled.encode(100 * x + 7), alone.encode(x))
    shift = scaled.terms(100 * x + 7).log_likelihood - alone.terms(x).log_likelihood
    torch.testing.assert_close(shift, torch.full_like(shift, -2 * torch.tensor(100.0).log().item()))


def test_a_folded_map_is_reported():
    flow = fit_ima_flow(draw(200, 1), settings=FlowSettings(steps=1, hidden=(2,)))
    params = {name: torch.zeros_like(value) for name, value in flow.params.items()}
    params["unmixing.0.weight"] = torch.tensor([[[8.0], [-8.0]]]).double()  # |x|, smoothed
    params["unmixing.1.weight"] = torch.ones(1, 1, 2).double()
    folded = type(flow)(flow.unmixing, params, flow.prior, flow.centre, flow.scale, [])
    x = draw(100, 1, seed=4)
    assert folded.folded(x) == pytest.approx(
        min(float((x < 0).double().mean()), float((x > 0).double().mean())), abs=0.1
    )


def test_mistakes_are_explained(unchecked_shapes):
    with pytest.raises(InputError, match="strength"):
        FlowSpec(0, -1.0)
    with pytest.raises(InputError, match="shape"):
        fit_ima_flows(draw(5, 2), [FlowSpec(0)])
    with pytest.raises(InputError, match="steps"):
        FlowSettings(steps=0)


def test_steps_that_are_far_too_long_leave_finite_weights():
    """Determinants that pass zero have gradients of any size."""
    x = torch.rand(2, 400, 2, generator=torch.Generator().manual_seed(0))
    specs = [FlowSpec(seed, 10.0, seed) for seed in range(2)]
    flows = fit_ima_flows(x, specs, prior=vs.Uniform(-0.5, 0.5), settings=FlowSettings(200, 16, learning_rate=1.0))
    assert all(value.isfinite().all() for flow in flows for value in flow.params.values())
