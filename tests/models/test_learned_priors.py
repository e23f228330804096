"""Priors whose shape is learned: closed forms, planted shapes, and what is stored of them."""

import pytest
import torch
from scipy import stats

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.distributions import Beta, Laplace, Normal, Uniform, kl
from vaescope.distributions.posteriors import posterior_family
from vaescope.distributions.priors import prior_from, prior_to_text
from vaescope.models import VAE
from vaescope.models.networks import init_prior, learned_prior
from vaescope.models.vae import FixedMaps
from vaescope.settings import FitSettings, trained_settings
from vaescope.training import MemberSpec, NoProgress, TrainSettings, train

PRIORS = [Beta(2.0, 5.0, -1.0, 3.0), Normal(1.0, 4.0)]


def stack_of(priors, latents=2):
    """Learned parameters of a stack whose members start at these priors."""
    members = [init_prior(prior, latents) for prior in priors]
    return {name: torch.stack([member[name] for member in members]) for name in members[0]}


@pytest.mark.parametrize("prior", PRIORS)
def test_before_training_it_is_the_prior_itself(prior):
    u = torch.randn(3, 7, 2)
    found = learned_prior(prior, stack_of([prior] * 3))
    variance = torch.full_like(u, 0.3)
    torch.testing.assert_close(found.expected_log_density(u, variance), prior.expected_log_density(u, variance))
    torch.testing.assert_close(found.log_density(found.to_support(u)), prior.log_density(prior.to_support(u)))
    torch.testing.assert_close(found.curvature(found.to_support(u)), prior.curvature(prior.to_support(u)))


@pytest.mark.parametrize(("first", "second"), [(Beta(2.0, 5.0), Beta(0.7, 1.5)), (Normal(1.0, 4.0), Normal(1.0, 0.3))])
def test_every_member_and_latent_has_its_own(first, second):
    params = stack_of([first, second])
    params = {name: torch.stack([value[0], torch.stack([value[0, 0], value[1, 1]])]) for name, value in params.items()}
    posterior = posterior_family("diagonal").from_outputs(torch.randn(2, 5, 4, dtype=torch.float64), 2)
    found = kl(posterior, learned_prior(first, {name: value.double() for name, value in params.items()}))
    one = posterior.mean, posterior.marginal_variance
    apart = [-(0.5 * (2 * torch.pi * torch.e * one[1]).log() + p.expected_log_density(*one)) for p in (first, second)]
    torch.testing.assert_close(found[0], apart[0][0].sum(-1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[1], apart[0][1, :, 0] + apart[1][1, :, 1], rtol=1e-6, atol=1e-6)
    assert bool((found >= 0).all())


@pytest.mark.parametrize("prior", PRIORS)
def test_gradients_are_those_of_differences(prior):
    posterior = posterior_family("diagonal").from_outputs(torch.randn(1, 6, 4, dtype=torch.float64), 2)
    params = {name: value.double().requires_grad_() for name, value in stack_of([prior]).items()}
    names = list(params)

    def divergence(*values):
        return kl(posterior, learned_prior(prior, dict(zip(names, values, strict=True)))).sum()

    assert torch.autograd.gradcheck(divergence, tuple(params.values()))


def test_beta_samples_with_tensors_are_those_of_every_latent():
    both = Beta(torch.tensor([2.0, 30.0]), torch.tensor([5.0, 1.0]), -1.0, 1.0)
    z = both.sample(20_000, 2, generator=torch.Generator().manual_seed(0))
    mean, variance = both.mean_and_variance()
    torch.testing.assert_close(z.mean(0).float(), mean, atol=0.01, rtol=0.0)
    torch.testing.assert_close(z.var(0).float(), variance, atol=0.01, rtol=0.03)
    again = prior_from(prior_to_text(both))
    assert again.a.tolist() == [2.0, 30.0]
    assert again.bounds == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("prior", "planted"),
    [
        (Beta(2.0, 2.0), [stats.beta(6.0, 2.0), stats.beta(1.5, 3.0)]),
        (Normal(), [stats.norm(0.0, 3.0), stats.norm(0.0, 0.5)]),
    ],
)
def test_planted_shapes_are_found(prior, planted):
    """A decoder that shows its latents with little noise: the best prior is the distribution of the data."""
    x = torch.stack([torch.from_numpy(own.rvs(4000, random_state=k)).float() for k, own in enumerate(planted)], 1)
    maps = FixedMaps(decoder=lambda z: z, encoder_input=lambda x: prior.from_support(x))
    model = VAE.mlp(2, 2, hidden=(), prior=prior, prior_shape="learned", fixed=maps)
    settings = TrainSettings(epochs=60, batch_size=200, learning_rate=0.03, decay="cosine", patience=60)
    member = train(model, x[None], x[None, :500], [MemberSpec(0, precision=1e4)], settings)[0]
    found = member.prior
    if isinstance(prior, Normal):
        assert found.variance.tolist() == pytest.approx(x.square().mean(0).tolist(), rel=0.1)
        return
    expected = [stats.beta.fit(column.numpy(), floc=0, fscale=1)[:2] for column in x.T]
    for latent, (a, b) in enumerate(expected):
        assert (float(found.a[latent]), float(found.b[latent])) == pytest.approx((a, b), rel=0.1)


def sheet(samples=200):
    z = torch.rand(samples, 2, generator=torch.Generator().manual_seed(0))
    return torch.stack([torch.sin(4 * z[:, 0]), torch.cos(4 * z[:, 0]), 2 * z[:, 1]], dim=1)


OPTIONS = {"latent_dim": 2, "epochs": 4, "hidden": (8,), "prior": "beta", "prior_shape": "learned", "compile": "never"}


class Stopped(NoProgress):
    def epoch(self, done, *, training, finished, diverged, elbo):
        if done == 2:
            raise KeyboardInterrupt


def test_it_is_stored_and_a_killed_run_ends_with_the_same_bits(tmp_path):
    whole = vs.fit(sheet(), seeds=2, **OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        vs.fit(sheet(), seeds=2, progress=Stopped(), out=tmp_path / "run", checkpoint_seconds=0.0, **OPTIONS)
    resumed = vs.fit(sheet(), seeds=2, out=tmp_path / "run", **OPTIONS)
    for first, second in zip(whole.members, resumed.members, strict=True):
        assert all(torch.equal(first.params[name], second.params[name]) for name in first.params)
        assert torch.equal(first.prior.a, second.prior.a)
        assert first.prior.a.tolist() != [2.0, 2.0]
    loaded = vs.adapters.from_run(tmp_path / "run")
    assert torch.equal(loaded.prior.b, resumed.best.prior.b)


@pytest.mark.parametrize("prior", ["beta", "normal"])
def test_members_have_the_prior_that_they_were_trained_with(prior):
    x = sheet()
    member = vs.fit(x, **OPTIONS | {"prior": prior, "precision": 20.0}).best
    terms = member.model.terms(member.params, x[None], torch.zeros(1, len(x), 2), torch.tensor([20.0]))
    torch.testing.assert_close(kl(member.posterior(x), member.prior), terms.kl[0])
    assert type(member.prior_at()) is type(member.build_spec().prior) is type(member.model.prior)


def test_folders_of_a_fixed_prior_are_as_before():
    assert "prior_shape" not in str(trained_settings(FitSettings()))
    learned = FitSettings().updated({"prior_shape": "learned"})
    assert trained_settings(learned)["model"]["prior_shape"] == "learned"


def test_mistakes_are_one_line():
    for prior in (Uniform(), Laplace()):
        with pytest.raises(InputError, match="needs a normal or a beta prior"):
            VAE.mlp(3, 2, prior=prior, prior_shape="learned")
    with pytest.raises(InputError, match="prior_shape must be one of"):
        vs.fit(sheet(), **OPTIONS | {"prior_shape": "free"})
    with pytest.raises(InputError, match="an iVAE learns its prior"):
        vs.fit(sheet(), model="ivae", auxiliary=[0, 1] * 100, **OPTIONS | {"prior": "normal"})
    with pytest.raises(InputError, match="low of a beta prior"):
        prior_from({"kind": "beta", "low": [0.0, 1.0]})
