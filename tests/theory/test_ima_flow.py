"""The flow trained on the IMA-regularised likelihood: its objective, and an ambiguity that only λ > 0 removes."""

import pytest
import torch

import vaescope as vs
from vaescope.errors import InputError
from vaescope.theory.ima_flow import IMAFlow, Unmixing, fit_ima_flow, regularised_likelihood


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("prior", [vs.Normal(), vs.Uniform(-0.5, 0.5)], ids=["normal", "uniform"])
@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_the_objective_is_the_ima_likelihood_of_the_inverse(d, prior):
    unmixing = Unmixing(torch.eye(d).double() + 0.3 * draw(3, d, d), 0.2 * draw(3, d, seed=1))
    x = 0.5 * draw(4, d, seed=2)
    u, J = unmixing.with_jacobian(x)
    torch.testing.assert_close(J, vs.theory.jacobian(unmixing, x))

    def inverse(z):  # Newton's method; differentiable at the solution by one more step
        target, y = prior.from_support(z), x.clone()
        for _ in range(3):
            value, slope = unmixing.with_jacobian(y)
            y = y - torch.linalg.solve(slope.detach(), (value - target).unsqueeze(2)).squeeze(2)
        return y

    z = prior.to_support(u)
    J_f = torch.linalg.inv(vs.theory.jacobian(lambda y: prior.to_support(unmixing(y)), x))
    expected = prior.log_density(z).sum(1) - torch.linalg.slogdet(J_f).logabsdet
    torch.testing.assert_close(inverse(z), x)
    for strength in (0.0, 1.0, 2.5):
        found = regularised_likelihood(unmixing, x, strength=strength, prior=prior)
        torch.testing.assert_close(found, expected - strength * vs.theory.contrast_of_matrix(J_f), rtol=1e-8, atol=1e-9)


def test_only_the_regularised_likelihood_resolves_a_rotation_of_gaussian_sources():
    """x = O D s with Gaussian s: the likelihood is the same for every rotation of s; c_IMA is zero for one."""
    sources = draw(4000, 2)
    mixing = torch.linalg.qr(draw(2, 2, seed=3)).Q * torch.tensor([1.0, 3.0]).double()
    x = sources @ mixing.T
    found = {s: fit_ima_flow(x, strength=s, layers=1, steps=250, learning_rate=3e-2, seed=0) for s in (0.0, 1.0)}
    mcc = {s: vs.metrics.mcc(flow.encode(x), sources).score for s, flow in found.items()}
    assert mcc[1.0] > 0.98
    assert mcc[0.0] < 0.95
    likelihoods = {s: float(flow.log_likelihood(x).mean()) for s, flow in found.items()}
    assert likelihoods[1.0] == pytest.approx(likelihoods[0.0], abs=0.02)
    assert float(found[1.0].contrast(x).mean()) < 1e-3 < float(found[0.0].contrast(x).mean())
    best = vs.theory.log_marginal(lambda z: z @ mixing.T, x[:50], precision=1.0, method="flow").value
    assert float(found[1.0].log_likelihood(x[:50]).mean()) == pytest.approx(float(best.mean()), abs=0.05)


def test_results_do_not_depend_on_units_and_are_reproducible():
    x = draw(500, 2) @ torch.tensor([[1.0, 0.5], [0.0, 1.0]]).double()
    first, again = (fit_ima_flow(x, steps=20, layers=2, seed=1) for _ in range(2))
    assert first.history == again.history
    scaled = fit_ima_flow(100 * x + 7, steps=20, layers=2, seed=1)
    torch.testing.assert_close(scaled.encode(100 * x + 7), first.encode(x))
    assert isinstance(first, IMAFlow)
    with pytest.raises(InputError, match="strength"):
        fit_ima_flow(x, strength=-1.0)
