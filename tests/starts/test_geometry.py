"""Starts from the geometry of the data: planted latents, closed forms, and what must not depend on what."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.data import Dataset
from vaescope.data.dataset import ArrayRows
from vaescope.data.files import loading
from vaescope.distributions import Beta, Normal, Uniform
from vaescope.inference.geometry import contrast_of_matrix
from vaescope.models import VAE
from vaescope.objectives import beta_elbo
from vaescope.starts import better_members, geometry
from vaescope.starts.geometry import (
    GeometricStart,
    GeometryTrials,
    Targets,
    at_ranks,
    fit_to_latents,
    forgotten_latents,
    lost_latents,
    prior_samples,
    unmixed_targets,
    unmixing_map,
)
from vaescope.training import MemberSpec, NoProgress, TrainSettings
from vaescope.training.step import Problem

SHORT = {"latent_dim": 2, "epochs": 4, "hidden": (16,), "start": "geometry", "compile": "never"}


def curve(samples=300):
    """A curved sheet in four dimensions, and its coordinates."""
    z = torch.rand(samples, 2, generator=torch.Generator().manual_seed(0))
    x = torch.stack([torch.sin(4 * z[:, 0]), torch.cos(4 * z[:, 0]), 2 * z[:, 1], z[:, 1] ** 2], dim=1)
    return x, z


def same_weights(first, second):
    return all(
        torch.equal(a.params[name], b.params[name])
        for a, b in zip(first.members, second.members, strict=True)
        for name in a.params
    )


# ranks and fits -------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [Normal(2.0, 4.0), Uniform(-1.0, 3.0), Beta(2.0, 5.0)])
def test_ranks_follow_the_prior_whatever_the_values_are(prior):
    values = torch.rand(5000, 2, dtype=torch.float64).exp() ** 9
    z = prior.to_support(at_ranks(values, prior_samples(prior, 2)))
    mean, variance = prior.mean_and_variance()
    assert torch.allclose(z.mean(0), torch.tensor(float(mean)), atol=0.03)
    assert torch.allclose(z.var(0), torch.tensor(float(variance)), rtol=0.03)
    assert bool((z.gather(0, values.argsort(0)).diff(dim=0) >= 0).all())


def test_encoder_and_decoder_are_fitted_to_the_used_latents_and_the_others_keep_the_prior():
    x, z = curve()
    model = VAE.mlp(4, 3, hidden=(32,), prior=Normal(1.0, 9.0))
    ordered = prior_samples(model.prior, 3)
    used = torch.tensor([True, False, True])
    u = at_ranks(torch.stack([z[:, 0], torch.zeros(300), -z[:, 1]], dim=1), ordered)
    params = fit_to_latents(model, x, Targets(u, used, torch.full((3,), 0.5)), 0, steps=1500, learning_rate=3e-3)
    posterior = model.encode(params, x[None]).member(0)
    assert (posterior.mean - u)[:, used].square().mean() < 0.9  # a tenth of the prior's variance
    assert posterior.marginal_variance[:, used].log().mean().exp() == pytest.approx(0.5, rel=0.2)
    assert posterior.mean[:, 1].mean() == pytest.approx(1.0, abs=0.3)
    assert posterior.marginal_variance[:, 1].mean() == pytest.approx(9.0, rel=0.2)
    decoded = model.decoder_output(params, u[None])[0]
    assert (decoded - x).square().sum(1).mean() < 0.05 * x.var(0).sum()
    moved = model.decoder_output(params, (u + torch.tensor([0.0, 3.0, 0.0]))[None])[0]
    assert (moved - decoded).square().sum(1).mean() < 0.05 * x.var(0).sum()


# unmixing -------------------------------------------------------------------------------------


def test_the_unmixing_map_finds_the_inverse_of_any_mixing():
    generator = torch.Generator().manual_seed(1)
    mixing = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    lengths = torch.rand(50, 3, generator=generator, dtype=torch.float64) + 0.1
    columns = torch.linalg.qr(torch.randn(50, 6, 3, generator=generator, dtype=torch.float64)).Q
    J = columns * lengths[:, None] @ mixing
    codes = torch.linalg.inv(mixing).numpy()  # of latents that are uncorrelated after unmixing
    found = torch.from_numpy(unmixing_map(J.mT @ J, codes @ codes.T))
    assert float(contrast_of_matrix(J).mean()) > 0.1
    assert float(contrast_of_matrix(J @ found).mean()) < 1e-6
    product = (mixing @ found).abs()
    assert torch.allclose(product.max(1).values, product.sum(1), rtol=1e-4)  # one latent each


def test_the_unmixing_map_is_the_minimum_of_contrast_and_total_correlation():
    """Where the two disagree: against a search over both directions."""
    generator = torch.Generator().manual_seed(2)
    J = torch.randn(40, 5, 2, generator=generator, dtype=torch.float64)
    covariance = np.array([[1.0, 0.4], [0.4, 2.0]])

    def loss(A):
        inverse = np.linalg.inv(A)
        new = inverse @ covariance @ inverse.T
        dependence = 0.5 * (np.log(np.diag(new)).sum() - np.linalg.slogdet(new)[1])
        return float(contrast_of_matrix(J @ torch.from_numpy(A)).mean()) + dependence

    def from_angles(angles):
        return np.array([np.cos(angles), np.sin(angles)])

    grid = np.linspace(0, np.pi, 61)[:-1]
    searched = min(loss(from_angles(np.array([a, b]))) for a in grid for b in grid if abs(np.sin(a - b)) > 0.05)
    found = loss(unmixing_map(J.mT @ J, covariance))
    assert searched - 5e-3 < found < searched + 1e-6
    assert loss(np.eye(2)) > found + 0.01


def test_latents_of_a_member_are_unmixed():
    """A decoder in the IMA class after a shear: the codes become the latents before the shear."""
    x, z = curve(600)
    model = VAE.mlp(4, 2, hidden=(32, 32))
    ordered = prior_samples(model.prior, 2)
    true = at_ranks(z, ordered)
    sheared = at_ranks(torch.stack([true[:, 0] + 0.7 * true[:, 1], true[:, 1]], dim=1), ordered)
    targets = Targets(sheared, torch.tensor([True, True]), torch.full((2,), 0.05))
    params = fit_to_latents(model, x, targets, 0, steps=1500, learning_rate=3e-3)
    member = vs.models.Member(model, params, precision=100.0)
    found = unmixed_targets(member, x)
    assert found is not None
    before, after = (vs.metrics.mcc(codes, z).score for codes in (sheared, found.u))
    assert before < 0.93
    assert after > 0.97


def test_latents_that_do_not_follow_their_coordinate_are_lost():
    x, z = curve()
    model = VAE.mlp(4, 3, hidden=(32,))
    u = at_ranks(torch.cat([z, torch.zeros(300, 1)], dim=1), prior_samples(model.prior, 3))
    targets = Targets(u, torch.tensor([True, True, False]), torch.full((3,), 0.05))
    member = vs.models.Member(model, fit_to_latents(model, x, targets, 0, steps=600))
    assert lost_latents(member, x, targets).tolist() == [False, False, False]
    shuffled = torch.stack([u[:, 0], u[torch.randperm(300), 1], u[:, 2]], dim=1)
    assert lost_latents(member, x, replace(targets, u=shuffled)).tolist() == [False, True, False]
    silent = replace(member, params={name: torch.zeros_like(value) for name, value in member.params.items()})
    assert lost_latents(silent, x, targets).tolist() == [True, True, False]
    diverged = replace(member, training=replace(member.training, status="diverged"))
    assert not lost_latents(diverged, x, targets).any()


def test_a_member_that_lost_a_latent_is_fitted_for_longer_and_no_other(monkeypatch):
    rows, settings = ArrayRows(curve()[0][None]), TrainSettings(epochs=4, compile="never")
    problem = Problem(VAE.mlp(4, 2, hidden=(8,)), beta_elbo, rows, rows, [MemberSpec(0), MemberSpec(1)], settings)
    start, shown, asked = GeometricStart(fit_steps=2, longer_fit_steps=6), Recorded(), []

    def planted(member, rows, targets):
        asked.append(member.seed)
        return torch.full_like(targets.used, member.seed == 1)

    monkeypatch.setattr(geometry, "lost_latents", lambda member, rows, targets: torch.zeros_like(targets.used))
    plain = GeometryTrials(problem, start=start).weights()
    monkeypatch.setattr(geometry, "lost_latents", planted)
    found = GeometryTrials(problem, shown, start=start).weights()
    assert sum("1 of 2 members lost a latent" in event for event in shown.events) == 2  # once for every embedding
    assert sum("fitted for longer: ELBO" in event for event in shown.events) == 2
    assert asked == [0, 1, 0, 1]
    assert all(torch.equal(found[name][0], plain[name][0]) for name in plain)
    assert not all(torch.equal(found[name][1], plain[name][1]) for name in plain)
    shown = Recorded()
    GeometryTrials(problem, shown, start=replace(start, longer_fit_steps=2)).weights()
    assert "lost" not in str(shown.events)


def test_members_that_lose_a_latent_while_they_are_trained_on_are_not_kept(monkeypatch):
    """The one that lost it keeps its weights of before, the other goes on."""
    rows, settings = ArrayRows(curve()[0][None]), TrainSettings(epochs=4, compile="never")
    problem = Problem(VAE.mlp(4, 2, hidden=(8,)), beta_elbo, rows, rows, [MemberSpec(0), MemberSpec(1)], settings)
    shown = Recorded()
    trials = GeometryTrials(problem, shown, start=GeometricStart(fit_steps=2))
    before = trials._trained("random weights", problem.model.init(problem.seeds), 2)

    def planted(before, after, rows):
        return torch.tensor([False, after.seed == 1])

    monkeypatch.setattr(geometry, "forgotten_latents", planted)
    after = trials._trained_on("longer", before, trials._weights_of(before))
    assert after[0] is not before[0]
    assert after[1] is before[1]
    assert sum("1 of 2 members lost a latent: not kept" in event for event in shown.events) == 1


def test_latents_that_other_codes_do_not_have_are_forgotten():
    """A rotation forgets nothing; codes of one coordinate forget the other; latents that were not used cannot be."""
    x, z = curve()
    model = VAE.mlp(4, 3, hidden=(32,))

    def member(first, second):
        u = at_ranks(torch.stack([first, second, 0 * first], dim=1), prior_samples(model.prior, 3))
        targets = Targets(u, torch.tensor([True, True, False]), torch.full((3,), 0.05))
        own = vs.models.Member(model, fit_to_latents(model, x, targets, 0, steps=600))
        assert own.status == "finished"
        return own

    both, turned = member(z[:, 0], z[:, 1]), member(z[:, 0] + z[:, 1], z[:, 0] - z[:, 1])
    one = member(z[:, 0], z[:, 0])
    assert not forgotten_latents(both, turned, x).any()
    assert not forgotten_latents(turned, both, x).any()
    assert forgotten_latents(both, one, x).tolist() == [False, True, False]
    assert not forgotten_latents(one, both, x).any()
    diverged = replace(both, training=replace(both.training, status="diverged"))
    assert not forgotten_latents(diverged, both, x).any()
    assert not forgotten_latents(both, diverged, x).any()


# fits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"prior": "uniform(low=-1, high=1)", "seeds": 2},
        {"prior": "laplace", "latent_dim": 6, "posterior": "full"},
        {"precision": (10.0, 100.0), "precision_warmup": 5, "objective": "beta-tc"},
        {"precision": "learned-full", "kl_schedule": "linear(steps=10)"},
    ],
)
def test_models_of_every_kind_start_from_the_geometry(options):
    fit = vs.fit(curve()[0], **SHORT | options)
    assert all(member.status == "finished" for member in fit.members)


def test_images_and_auxiliary_inputs_start_from_the_geometry():
    images = (torch.rand(60, 16, 16, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    fit = vs.fit(images, latent_dim=2, epochs=2, likelihood="bernoulli", start="geometry", compile="never")
    assert fit.best.status == "finished"
    x, z = curve(100)
    fit = vs.fit(x, model="ivae", auxiliary=(z[:, 0] > 0.5).long(), **SHORT)
    assert fit.best.status == "finished"


def test_bytes_that_are_read_while_training_start_from_the_geometry(tmp_path, monkeypatch):
    images = np.random.default_rng(0).integers(0, 255, (60, 16, 16)).astype(np.uint8)
    np.save(tmp_path / "x.npy", images)
    options = {"latent_dim": 2, "epochs": 2, "start": "geometry", "compile": "never"}
    in_memory = vs.fit(tmp_path / "x.npy", **options)
    monkeypatch.setattr(loading, "STREAMED_BYTES", 100)
    streamed = vs.fit(tmp_path / "x.npy", **options)
    assert streamed.best.status == in_memory.best.status == "finished"


@pytest.mark.parametrize("samples", [13, 20])
def test_few_samples_and_many_latents(samples):
    x = torch.randn(samples, 3, generator=torch.Generator().manual_seed(0))
    fit = vs.fit(x, **SHORT | {"latent_dim": 30})
    assert math.isfinite(fit.best.best_elbo)


def test_weights_that_are_not_finite_lose_against_any_other():
    x, _ = curve(100)
    member = vs.fit(x, latent_dim=2, epochs=1, compile="never").best
    diverged = replace(member, training=replace(member.training, status="diverged", elbo=None))
    assert better_members([diverged], [member]) == better_members([member], [diverged]) == [member]


def test_a_better_start_than_random_weights_is_kept_and_no_worse_one():
    """The start is the best of its trials, so a short training from it is above one from random weights."""
    x, _ = curve(1000)

    def run(start):
        return vs.fit(x, **SHORT | {"start": start, "epochs": 20}).best.best_elbo

    found = {start: run(start) for start in ("random", "geometry")}
    assert found["geometry"] > found["random"] + 0.5


def test_factors_do_not_enter():
    x, z = curve()
    data = [Dataset("own", x, factors=factors) for factors in (None, z, z[torch.randperm(300)])]
    first, *others = (vs.fit(own, **SHORT) for own in data)
    assert all(same_weights(first, other) for other in others)


class Recorded(NoProgress):
    """What was shown, in order; stops with an error at the given one of the epochs, those of the trials included."""

    def __init__(self, stop_at=None):
        self.events, self.stop_at = [], stop_at

    def begin(self, members, epochs):
        self.events.append("begin")

    def step(self, done, total):
        assert 0 <= done <= total
        self.events.append("step")

    def epoch(self, done, *, training, finished, diverged, elbo):
        self.events.append("epoch")
        if self.events.count("epoch") == self.stop_at:
            raise KeyboardInterrupt

    def message(self, text):
        self.events.append(text)


@pytest.mark.parametrize("stop_at", [3, 9, 12])
def test_a_run_that_was_killed_ends_with_the_same_bits(tmp_path, stop_at):
    """In a trial, after unmixing, and in the training that follows the start, which continues from its checkpoint."""
    x, _ = curve()
    whole = vs.fit(x, **SHORT)
    options = SHORT | {"out": tmp_path / "run", "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        vs.fit(x, progress=Recorded(stop_at), **options)
    again = Recorded()
    resumed = vs.fit(x, progress=again, **options)
    assert again.events.count("epoch") == (3 if stop_at == 12 else 5 * 2 + 4)
    assert same_weights(whole, resumed)
    assert vs.adapters.from_run(tmp_path / "run")


def test_progress_is_shown_in_every_part_of_a_start():
    shown = Recorded()
    vs.fit(curve()[0], progress=shown, **SHORT)
    lines = [index for index, event in enumerate(shown.events) if event not in ("begin", "step", "epoch")]
    assert len(lines) == 2 + 5  # two embeddings, five trials
    for first, last in zip([-1, *lines], lines, strict=False):
        between = shown.events[first + 1 : last]
        is_embedding = "embedding" in shown.events[last]
        assert is_embedding or {"begin", "step", "epoch"} <= set(between)
    fits = [shown.events[first:].index("begin") for first in lines if "embedding" in shown.events[first]]
    assert fits == [1, 1]  # an embedding is followed by a bar at once


def test_the_number_of_members_changes_nothing():
    x, _ = curve()
    both, alone = vs.fit(x, seeds=(0, 5), **SHORT), vs.fit(x, seeds=(5,), **SHORT)
    for name, value in alone.best.params.items():
        torch.testing.assert_close(both.members[1].params[name], value, rtol=1e-3, atol=1e-4)


def test_mistakes_are_one_line():
    with pytest.raises(InputError, match="start must be"):
        vs.fit(curve()[0], **SHORT | {"start": "isomap"})
    with pytest.raises(InputError, match="at least 10 training samples"):
        vs.fit(torch.randn(8, 3), **SHORT)


def test_constant_data_have_nothing_to_embed():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 1e-3 + torch.tensor([0.0, 5.0, 0.0])
    x[:, 1] = 5.0
    fit = vs.fit(x, precision=1.0, **SHORT)
    assert math.isfinite(fit.best.best_elbo)


def test_decoders_without_a_usable_derivative_are_not_unmixed():
    dead = torch.zeros(5, 2, 2)
    broken = torch.full((5, 2, 2), float("nan"))
    for gram in (dead, broken):
        assert (unmixing_map(gram, np.eye(2)) == [[1.0, 0.0], [0.0, 1.0]]).all()
    mixing = torch.tensor([[1.0, 0.5], [0.0, 1.0]])
    gram = torch.stack([mixing.T @ torch.diag(torch.tensor([a, 1.0])) @ mixing for a in (1.0, 4.0)])
    expected = unmixing_map(gram, np.eye(2))
    assert unmixing_map(torch.cat([gram, dead, broken]), np.eye(2)) == pytest.approx(expected, abs=1e-6)
