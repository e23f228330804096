"""Each change against its closed form, and the original model, which must stay as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import vaescope as vs
from vaescope.analysis.encoding import encode_sample
from vaescope.analysis.models import RepairedModel
from vaescope.analysis.samples import read_samples
from vaescope.improvement import changes, interventions
from vaescope.improvement.improve import Gain
from vaescope.products.compare.measure import elbo_of_samples, mirrored_noise
from vaescope.regime.model import regime_of
from vaescope.report.findings import Finding


def draws(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = draws(0, 400, 5) @ torch.diag(torch.tensor([3.0, 2.0, 1.0, 0.5, 0.4], dtype=torch.float64)) @ draws(1, 5, 5)
X = X - X.mean(0)


def principal_components(latents: int) -> tuple[torch.Tensor, float]:
    """Weights and variance of maximum likelihood (Tipping & Bishop 1999)."""
    values, vectors = torch.linalg.eigh(X.mT @ X / len(X))
    values, vectors = values.flip(0), vectors.flip(1)
    noise = float(values[latents:].mean())
    return vectors[:, :latents] * (values[:latents] - noise).sqrt(), noise


def linear_vae(W: torch.Tensor, variance: float, declared: float, posterior_factor: float = 1.0) -> vs.LatentModel:
    """Posteriors of p(z|x) under `variance`, their covariance diagonal because columns are orthogonal."""
    precision = (W.mT @ W).diagonal() / variance + 1
    return vs.adapters.from_callables(
        encode=lambda x: (x @ W / variance / precision, posterior_factor / precision.expand(len(x), -1)),
        decode=lambda z: z @ W.mT,
        latent_dim=W.shape[1],
        precision=1 / declared,
    )


def setting(model: vs.LatentModel, x: torch.Tensor, seconds: float = 5.0) -> interventions.Setting:
    found = vs.diagnose(model, x, progress=None, budget=5.0)
    given = read_samples(model, x)
    return interventions.Setting(model, found, given, given, seconds)


def test_the_variance_is_that_of_maximum_likelihood():
    W, variance = principal_components(2)
    found = interventions.set_precision(setting(linear_vae(W, variance, 25 * variance), X))
    assert 1 / found.precision == pytest.approx(variance, rel=1e-6)
    assert found.apply(linear_vae(W, variance, 25 * variance)).precision == found.precision


def test_widths_reach_the_optimum():
    """Posterior variances that are four times too large, with everything else at its optimum."""
    W, variance = principal_components(2)
    model = RepairedModel(linear_vae(W, variance, variance, 4.0))
    found = interventions.fit_widths(setting(model, X, seconds=20.0))
    assert found.factor.tolist() == pytest.approx([0.25, 0.25], rel=0.05)


def test_a_rotation_keeps_log_p_of_x():
    mix = draws(2, 2, 4)

    def decode(z: torch.Tensor) -> torch.Tensor:
        return torch.sin(z @ mix.to(z)) + z @ mix.to(z)

    model = vs.adapters.from_callables(
        encode=lambda x: (x[:, :2], 0.1 + 0 * x[:, :2]), decode=decode, latent_dim=2, precision=20.0
    )
    axes = torch.linalg.qr(draws(3, 2, 2))[0]
    rotated = changes.Rotation(axes).apply(model)
    x = decode(draws(4, 12, 2)) + 0.2 * draws(5, 12, 4)
    before, after = (
        vs.theory.log_marginal(one.decode, x, precision=20.0, prior=vs.Normal(), method="quadrature").value
        for one in (model, rotated)
    )
    assert torch.allclose(before, after, rtol=1e-6)
    mean, back = model.encode(x)[0], rotated.encode(x)[0] @ axes.mT
    assert torch.allclose(mean, back)


def test_removal_saves_what_the_regime_predicts():
    W, variance = principal_components(2)

    def encode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        precision = (W.mT @ W).diagonal() / variance + 1
        mean, width = x @ W / variance / precision, 1 / precision.expand(len(x), -1)
        return torch.cat([mean, 0.02 * torch.sin(7 * x[:, :2])], 1), torch.cat([width, 0.99 + 0 * x[:, :2]], 1)

    model = vs.adapters.from_callables(
        encode=encode, decode=lambda z: z[:, :2] @ W.mT, latent_dim=4, precision=1 / variance
    )
    change = interventions.remove_latents(setting(model, X))
    assert change.kept == (0, 1)
    before, after = (encode_sample(one, X, None, 400) for one in (model, change.apply(model)))
    noise = mirrored_noise(400, 4, 64)
    gain = elbo_of_samples(after, noise=noise[:, :, :2]) - elbo_of_samples(before, noise=noise)
    regime = regime_of([before])
    assert float(gain.mean()) == pytest.approx(float(np.sum(regime.kl[regime.passive])), rel=1e-6)


def test_the_normal_prior_is_that_of_the_aggregate_posterior():
    """Codes at a distance from N(0, 1), of one component: the fitted prior has their mean and covariance."""
    model = vs.adapters.from_callables(
        encode=lambda x: (x[:, :2] + 3, 0.01 + 0 * x[:, :2]), decode=lambda z: z, latent_dim=2, precision=1.0
    )
    x = draws(6, 800, 2) * torch.tensor([2.0, 0.5], dtype=torch.float64)
    prior = interventions.fit_prior(setting(model, x)).apply(model).spec.prior
    mean, variance = (torch.as_tensor(value) for value in prior.mean_and_variance())
    assert torch.allclose(mean, x.mean(0) + 3, atol=0.1)
    assert torch.allclose(variance, x.var(0) + 0.01, rtol=0.1)


def test_a_mixture_as_the_prior_has_the_density_of_scipy():
    from scipy.stats import multivariate_normal

    weight = torch.tensor([0.3, 0.7], dtype=torch.float64)
    mean, factor = draws(7, 2, 3), torch.linalg.cholesky(torch.eye(3) + 0.2 * torch.ones(3, 3)).double().repeat(2, 1, 1)
    prior, z = changes.MixturePrior(weight, mean, factor), draws(8, 6, 3)
    expected = sum(
        float(w) * multivariate_normal(m.numpy(), (L @ L.mT).numpy()).pdf(z.numpy())
        for w, m, L in zip(weight, mean, factor, strict=True)
    )
    assert np.allclose(prior.log_prob(z), np.log(expected))
    drawn = prior.sample(40_000)
    assert torch.allclose(drawn.mean(0), weight @ mean, atol=0.05)


def test_full_covariances_are_exact_for_a_linear_decoder():
    """Two columns that are not orthogonal: the posterior is exact, so the ELBO is log p(x)."""
    W = torch.tensor([[1.0, 0.8], [0.0, 0.6], [0.2, 0.1]], dtype=torch.float64)
    posterior = torch.linalg.inv(torch.eye(2) + 4 * W.mT @ W)
    model = vs.adapters.from_callables(
        encode=lambda x: (4 * x @ W @ posterior, posterior.diagonal().expand(len(x), 2)),
        decode=lambda z: z @ W.mT,
        latent_dim=2,
        precision=4.0,
    )
    x = draws(9, 30, 2) @ W.mT + 0.5 * draws(10, 30, 3)
    changed = changes.FullCovariance().apply(model)
    elbo = interventions.elbo_values(changed, read_samples(changed, x), mirrored_noise(30, 2, 16))
    assert torch.allclose(elbo, vs.theory.linear.log_likelihood(x, W, 4.0))


def test_optimised_posteriors_are_those_of_the_linear_vae():
    W, variance = principal_components(2)
    poor = vs.adapters.from_callables(
        encode=lambda x: (0 * x[:, :2], 1 + 0 * x[:, :2]),
        decode=lambda z: z @ W.mT,
        latent_dim=2,
        precision=1 / variance,
    )
    best = linear_vae(W, variance, variance)
    found = changes.Optimised(steps=400).apply(poor).encode(X[:20])
    for one, other in zip(found, best.encode(X[:20]), strict=True):
        assert torch.allclose(one, other, rtol=0.05, atol=0.05)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(5, 4), nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 5))
        self.norm = nn.BatchNorm1d(5)

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_variance = self.encoder(self.norm(x)).chunk(2, dim=1)
        return mean, log_variance.exp()


def small(kind: str) -> tuple[nn.Module, vs.LatentModel]:
    torch.manual_seed(0)
    network = Small()
    if kind == "modules":
        made = vs.adapters.from_callables(
            encode=network.encode, decode=network.decoder, latent_dim=2, precision=1.0, networks=[network]
        )
    else:
        made = vs.adapters.from_callables(
            encode=network.encode, decode=lambda z: network.decoder(z), latent_dim=2, precision=1.0
        )
    return network, made


@pytest.mark.parametrize("kind", ["modules", "functions"])
def test_weights_are_trained_in_a_copy(kind: str):
    network, model = small(kind)
    own = {name: value.clone() for name, value in network.state_dict().items()}
    modes = [part.training for part in network.modules()]
    given = setting(model, X.float(), seconds=2.0)
    change = interventions.train_encoder(given)
    assert {
        name for name in change.weights if not torch.equal(change.weights[name], model.trained_weights()[name])
    } <= {
        "0.encoder.weight",
        "0.encoder.bias",
        "0.norm.weight",
        "0.norm.bias",
    }
    changed = change.apply(model)
    assert not torch.equal(changed.encode(X.float())[0], model.encode(X.float())[0])
    z = draws(11, 3, 2).float()
    assert torch.equal(changed.decode(z), model.decode(z))
    interventions.train_all(given)
    interventions.restart(given)
    assert all(torch.equal(value, own[name]) for name, value in network.state_dict().items())
    assert [part.training for part in network.modules()] == modes
    assert all(value.grad is None for value in network.parameters())


def test_a_model_that_is_a_module_computes_in_float64_with_other_weights():
    class Mine(nn.Module, vs.LatentModel):
        def __init__(self) -> None:
            super().__init__()
            self.spec = vs.ModelSpec(latent_dim=2, precision=1.0)
            self.inner = Small()

        def encode(self, x, auxiliary=None):
            return self.inner.encode(x)

        def decode(self, z):
            return self.inner.decoder(z)

    torch.manual_seed(0)
    model = Mine().eval()
    weights = {name: value + 0.1 for name, value in model.trained_weights().items() if value.is_floating_point()}
    changed, z = model.with_weights(weights), draws(12, 3, 2)
    expected = model.with_weights(weights).decode(z.float()).double()
    assert changed.decode(z).dtype == torch.float64
    assert torch.allclose(changed.decode(z), expected, atol=1e-5)
    assert next(model.parameters()).dtype == torch.float32


def test_weights_of_recurrent_networks_and_shared_weights_are_replaced():
    torch.manual_seed(0)
    read, lift = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 4)
    model = vs.adapters.from_callables(
        encode=lambda x: lift(read(x.unsqueeze(2))[1][-1]).chunk(2, 1),
        decode=lambda z: z @ lift.weight[:2],
        latent_dim=2,
    )
    x, own = torch.rand(3, 6), model.encode(torch.rand(1, 6))
    weights = {name: torch.zeros_like(value) for name, value in model.trained_weights().items()}
    assert len(weights) == 6
    changed = model.with_weights(weights)
    assert not changed.encode(x)[0].any()
    assert not changed.decode(torch.ones(1, 2)).any()
    assert model.encode(x)[0].any()
    assert model.decode(torch.ones(1, 2)).any()
    assert own[0].any()


def test_a_member_of_a_fit_takes_other_weights():
    x = X.float()
    member = vs.fit(x, latent_dim=2, epochs=1, precision=1.0).members[0]
    own = {name: value.clone() for name, value in member.trained_weights().items()}
    new = interventions.initial_weights(member)
    changed = member.with_weights(new)
    assert not torch.equal(changed.encode(x[:4])[0], member.encode(x[:4])[0])
    assert torch.equal(changed.with_weights(own).encode(x[:4])[0], member.encode(x[:4])[0])
    assert all(torch.equal(value, own[name]) for name, value in member.trained_weights().items())


@pytest.mark.parametrize(
    "change",
    [
        changes.NewReading("log-variance"),
        changes.NewPrecision(3.0),
        changes.NewInput(0.5, -1.0),
        changes.Rotation(torch.eye(2), torch.ones(2)),
        changes.Removal((1,), torch.zeros(2)),
        changes.NewWidths(torch.ones(2)),
        changes.NormalPrior(torch.zeros(2), torch.ones(2)),
        changes.MixturePrior(torch.ones(1), torch.zeros(1, 2), torch.eye(2)[None]),
        changes.Optimised(),
        changes.FullCovariance(),
        changes.NewWeights("encoder", 5, 1e-3, 0, None, {"0.encoder.bias": torch.zeros(4)}),
    ],
    ids=lambda change: type(change).__name__,
)
def test_a_change_survives_being_stored(change: changes.Change):
    again = changes.restored(type(change).__name__, change.numbers(), change.tensors())
    x = X[:4].float()
    model = small("functions")[1]
    for one, other in zip(*(c.apply(model).encode(x) for c in (change, again)), strict=True):
        assert torch.equal(one, other)
    assert change.code(model)


def test_a_scaled_input_has_the_likelihood_of_x():
    """log p(x) = log p(y) + n log |a| for y = a x + b."""
    W, variance = principal_components(2)
    model, y = linear_vae(W, variance, variance), X * 0.25 + 2
    change = changes.NewInput(4.0, -8.0)
    elbos = [
        interventions.elbo_values(one, read_samples(one, x), mirrored_noise(400, 2, 16))
        for one, x in ((model, X), (change.apply(model), y))
    ]
    assert torch.allclose(elbos[1], elbos[0] + 5 * np.log(4.0))


def test_gains_are_paired():
    base = draws(13, 200) * 100
    found = Gain.between(base, base + 1 + 0.1 * draws(14, 200))
    assert found.value == pytest.approx(1, abs=0.03)
    assert found.half_width < 0.02
    assert found.low > 0


@pytest.mark.parametrize(
    ("codes", "names"),
    [
        ([], ["variance"]),
        (["too-many-latents"], ["variance", "latents"]),
        (["amortization"], ["encoder", "posteriors"]),
        (["decoder-variance"], ["variance", "widths", "encoder", "all"]),
    ],
)
def test_errors_of_a_poor_encoder_do_not_count_as_noise(codes: list[str], names: list[str]):
    """The variance is tried without a finding only where nothing else is wrong."""
    W, variance = principal_components(2)
    found = vs.diagnose(linear_vae(W, variance, variance), X, progress=None, budget=5.0)
    changed = replace(found, findings=[Finding(code, "warning", "", "", "") for code in codes])
    assert [one.name for one, _ in interventions.asked_for(changed)] == names
