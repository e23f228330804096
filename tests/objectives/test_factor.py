"""FactorVAE: the discriminator recovers a known total correlation, and each network ignores the other's loss."""

import math

import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.models import VAE
from vaescope.objectives import Capacity, Factor, beta_elbo
from vaescope.objectives.disentanglement import permute_latents
from vaescope.objectives.elbo import elbo
from vaescope.objectives.names import NAMES
from vaescope.training import MemberSpec, NoProgress, TrainSettings, train
from vaescope.training.step import adam_, adam_scales

MODEL = VAE(3, 2)
G = torch.Generator().manual_seed(0)


def factor_vae(seed: int = 0):
    """The objective, weights of model and discriminator, and terms as a function of the weights."""
    objective = Factor(2, hidden=(8,))
    params = MODEL.init([seed]) | objective.init([seed])
    x, noise = torch.randn(1, 20, 3, generator=G), torch.randn(1, 20, 2, generator=G)
    return objective, params, lambda p: MODEL.terms(p, x, noise, torch.ones(1))


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9])
def test_the_discriminator_recovers_the_total_correlation_of_a_gaussian(rho):
    """-½ log(1 - ρ²) in closed form."""
    objective = Factor(2, hidden=(64, 64))
    params = objective.init([0])
    moments = tuple({name: torch.zeros_like(p) for name, p in params.items()} for _ in range(2))

    def draw(size):
        first, second = torch.randn(2, 1, size, generator=G)
        return torch.stack([first, rho * first + (1 - rho**2) ** 0.5 * second], dim=-1)

    for step in range(1, 601):
        z = draw(512)
        gradient = torch.func.grad(lambda p, z=z: objective.with_weights(p).cross_entropy(z).sum())(params)
        adam_(params, gradient, moments, adam_scales(step, 3e-3, torch.device("cpu")))
    z = draw(20_000)
    found = float(objective.logit(params, z).mean())
    assert found == pytest.approx(-0.5 * math.log(1 - rho**2), abs=0.1)
    assert float(objective.with_weights(params).cross_entropy(z)) <= math.log(2) + 0.01


def test_permuted_latents_come_from_different_samples():
    z = torch.arange(15.0).reshape(1, 5, 3)
    permuted = permute_latents(z)
    for j in range(3):
        assert sorted(permuted[0, :, j].tolist()) == sorted(z[0, :, j].tolist())
    samples = (permuted // 3)[0]
    assert all(len(set(row.tolist())) == 3 for row in samples)


def test_each_network_is_constant_in_the_loss_of_the_other():
    objective, params, terms = factor_vae()
    beta = torch.tensor([5.0])
    both = torch.func.grad(lambda p: objective.with_weights(p)(terms(p), beta).sum())(params)

    def model_only(p):
        fixed = {name: value.detach() for name, value in params.items()}
        drawn = terms(p)
        return (-elbo(drawn) + 4 * objective.logit(fixed, drawn.u).mean(-1)).sum()

    def discriminator_only(p):
        return objective.with_weights(p).cross_entropy(terms(params).u.detach()).sum()

    wanted = torch.func.grad(model_only)(params)
    learned = torch.func.grad(discriminator_only)(params)
    for name, gradient in both.items():
        torch.testing.assert_close(gradient, learned[name] if name.startswith("objective.") else wanted[name])
    assert any(learned[name].abs().max() > 0 for name in learned if name.startswith("objective."))


def test_the_discriminators_loss_adds_no_value():
    objective, params, terms = factor_vae()
    drawn = terms(params)
    estimate = objective.logit(params, drawn.u).mean(-1)
    found = objective.with_weights(params)(drawn, torch.tensor([3.0]))
    torch.testing.assert_close(found, -elbo(drawn) + 2 * estimate)
    torch.testing.assert_close(objective.with_weights(params)(drawn, torch.ones(1)), beta_elbo(drawn, torch.ones(1)))


def test_a_trained_member_has_no_discriminator_weights_and_can_be_trained_further():
    x = torch.randn(1, 100, 3, generator=G)
    settings = TrainSettings(epochs=2, batch_size=50, compile="never")
    objective = Factor(2, hidden=(8,))
    (member,) = train(MODEL, x, x, [MemberSpec(0, beta=4.0)], settings, objective=objective, progress=NoProgress())
    assert set(member.params) == set(MODEL.init([0]))
    shown = []
    train(
        MODEL,
        x,
        x,
        [MemberSpec(0, beta=4.0)],
        settings,
        objective=objective,
        initial=lambda: member.params,
        epoch_metrics=lambda _, m: shown.append(set(m.params)) or {},
        progress=NoProgress(),
    )
    assert shown == [set(member.params)] * 2


def test_a_penalty_on_total_correlation_lowers_it():
    """Data on a ring with little noise: the codes of a VAE form a ring, a FactorVAE penalises that."""
    angle = 6.283 * torch.rand(2000, generator=G)
    x = torch.stack([angle.cos(), angle.sin()], dim=-1).unsqueeze(0)
    settings = TrainSettings(epochs=40, batch_size=200, learning_rate=3e-3, compile="never")
    model = VAE.mlp(2, 2, hidden=(16,))
    correlation = []
    for beta in (1.0, 10.0):
        specs = [MemberSpec(seed, precision=100.0, beta=beta) for seed in range(3)]
        objective = Factor(2, hidden=(32, 32))
        found = train(model, x, x, specs, settings, objective=objective, progress=NoProgress())
        codes = [vs.objectives.decomposition(*m.encode(x[0])) for m in found]
        correlation.append(sum(float(parts.total_correlation.mean()) for parts in codes) / 3)
    assert correlation[1] < 0.9 * correlation[0]


def test_a_capacity_rises_with_the_steps():
    _, params, terms = factor_vae()
    drawn = terms(params)
    beta = torch.tensor([10.0])
    losses = [Capacity(5.0, steps=100)(drawn._replace(step=torch.tensor(float(k))), beta) for k in (0, 50, 100, 900)]
    kl = drawn.kl.mean()
    for loss, capacity in zip(losses, (0.0, 2.5, 5.0, 5.0), strict=True):
        torch.testing.assert_close(loss[0], 10 * (kl - capacity).abs() - drawn.log_likelihood.mean())
    torch.testing.assert_close(Capacity(5.0, steps=100)(drawn, beta), losses[-1])


def test_a_capacity_is_reached():
    x = torch.randn(1, 1000, 3, generator=G)
    settings = TrainSettings(epochs=60, batch_size=100, learning_rate=5e-3, compile="never")
    (member,) = train(
        MODEL,
        x,
        x,
        [MemberSpec(0, precision=100.0, beta=200.0)],
        settings,
        objective=Capacity(2.0, steps=300),
        progress=NoProgress(),
    )
    mean, variance = member.encode(x[0])
    kl = vs.distributions.kl_per_latent(mean, variance, vs.Normal()).sum(-1).mean()
    assert float(kl) == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize("name", NAMES)
def test_fit_accepts_objectives_by_name(name):
    settings = TrainSettings(epochs=2, batch_size=20, compile="never")
    fitted = vs.fit(
        torch.randn(60, 3, generator=G),
        latent_dim=2,
        objective=name,
        beta=3.0,
        precision=1.0,
        settings=settings,
        progress=NoProgress(),
    )
    assert fitted.best.status == "finished"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Factor(1), "at least two latents, got 1"),
        (lambda: Capacity(1.0, steps=-1), "steps must be at least 0, got -1"),
        (
            lambda: vs.objectives.objective_by_name("tc", samples=9, latent_dim=2),
            "objective must be one of beta, beta-tc, factor",
        ),
        (lambda: Factor(2)(factor_vae()[2](factor_vae()[1]), torch.ones(1)), "its discriminator's weights"),
    ],
)
def test_bad_settings_are_explained(make, message):
    with pytest.raises(InputError, match=message):
        make()
