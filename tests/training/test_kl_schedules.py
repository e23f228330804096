"""KL schedules: their values, their losses, and members with different ones in one stack."""

import math

import pytest
import torch

import vaescope as vs
from vaescope.distributions import DiagonalGaussian, Normal
from vaescope.models import VAE, Terms
from vaescope.objectives import Capacity, beta_elbo
from vaescope.objectives.elbo import NO_TARGET, constrained_elbo
from vaescope.settings import SCHEDULES, schedule_from
from vaescope.training import MemberSpec, NoProgress, TrainSettings, train

QUICK = TrainSettings(epochs=6, batch_size=32, compile="never")
ALL = [
    "constant",
    "linear(steps=10)",
    "sigmoid(steps=10)",
    "cyclical(steps=12,cycles=2,ramp=0.5)",
    "capacity(nats=2,steps=10)",
    "free-bits(nats=0.25)",
]


@pytest.mark.parametrize("text", ALL)
def test_a_schedule_and_its_text_are_the_same(text):
    assert str(schedule_from(text)) == text
    assert set(SCHEDULES) == {text.split("(")[0] for text in ALL}


@pytest.mark.parametrize("text", ALL)
def test_every_schedule_ends_at_beta_and_never_exceeds_it(text):
    schedule = schedule_from(text)
    path = [schedule.factor(step) for step in range(1, 40)]
    assert all(0 <= value <= 1 for value in path)
    assert all(value == pytest.approx(1.0) for value in path[max(0, schedule.settled - 1) :])


def test_linear_and_sigmoid_rise_and_cycles_repeat():
    linear, sigmoid = schedule_from("linear(steps=100)"), schedule_from("sigmoid(steps=100)")
    assert [linear.factor(s) for s in (25, 50, 75)] == [0.25, 0.5, 0.75]
    assert sigmoid.factor(50) == pytest.approx(0.5)
    assert sigmoid.factor(20) < 0.2
    assert sigmoid.factor(80) > 0.8
    cyclical = schedule_from("cyclical(steps=80,cycles=4,ramp=0.5)")  # Fu et al. 2019, Eq. 6: M = 4, R = 0.5
    assert [cyclical.factor(s) for s in (0, 5, 10, 15, 20, 25, 30)] == [0.0, 0.5, 1.0, 1.0, 0.0, 0.5, 1.0]


def _terms(seed: int = 0) -> Terms:
    generator = torch.Generator().manual_seed(seed)
    mean, variance = torch.randn(3, 20, 4, generator=generator), torch.rand(3, 20, 4, generator=generator) + 0.05
    posterior = DiagonalGaussian(mean * torch.tensor([1.0, 0.1, 2.0, 0.01]), variance)
    kl = 0.5 * (posterior.mean**2 + variance - 1 - variance.log())
    fit = torch.randn(3, 20, generator=generator)
    return Terms(fit, kl.sum(-1), fit.square(), posterior, mean, prior=Normal())


def test_without_constraints_it_is_the_beta_elbo():
    terms, beta = _terms(), torch.tensor([0.5, 1.0, 4.0])
    weights = torch.stack([beta, torch.zeros(3), torch.full((3,), NO_TARGET)], dim=-1)
    torch.testing.assert_close(constrained_elbo(terms, weights), beta_elbo(terms, beta))


def test_free_bits_are_those_of_kingma_and_targets_those_of_burgess():
    terms, beta = _terms(), torch.tensor([0.5, 1.0, 4.0])
    floor = torch.tensor([0.3, 0.0, 5.0])
    found = constrained_elbo(terms, torch.stack([beta, floor, torch.full((3,), NO_TARGET)], dim=-1))
    mean, variance = terms.posterior.mean, terms.posterior.variance
    per_latent = 0.5 * (mean**2 + variance - 1 - variance.log()).mean(1)
    wanted = beta * per_latent.clamp_min(floor[:, None]).sum(-1) - terms.log_likelihood.mean(-1)
    torch.testing.assert_close(found, wanted)
    target = constrained_elbo(terms, torch.stack([beta, torch.zeros(3), torch.full((3,), 2.5)], dim=-1))
    torch.testing.assert_close(target, Capacity(2.5)(terms, beta))


def _data() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(1, 200, 3, generator=generator) @ torch.randn(3, 6, generator=generator)).float()


def test_a_member_does_not_depend_on_the_schedules_of_others():
    x, model = _data(), VAE.mlp(6, 3, hidden=(8,))
    specs = [MemberSpec(seed, 2.0, kl_schedule=text) for seed, text in enumerate(ALL)]
    together = train(model, x, x, specs, QUICK)
    for spec, member in zip(specs, together, strict=True):
        (alone,) = train(model, x, x, [spec], QUICK)
        assert alone.history["loss"] == pytest.approx(member.history["loss"], rel=1e-4)
        assert alone.best_epoch == member.best_epoch


def test_a_linear_rise_that_is_over_after_one_step_is_constant():
    x, model = _data(), VAE.mlp(6, 3, hidden=(8,))
    constant, risen = train(model, x, x, [MemberSpec(0, 2.0), MemberSpec(0, 2.0, kl_schedule="linear(steps=1)")], QUICK)
    assert constant.history["elbo"] == risen.history["elbo"]


def test_free_bits_and_capacities_reach_what_they_ask_for():
    """A σ at which the plain ELBO collapses; with free bits latents carry up to λ nats, with a target the KL is C."""
    x, model = _data() / 3, VAE.mlp(6, 2, hidden=(16,))
    texts = ("constant", "free-bits(nats=0.5)", "capacity(nats=3,steps=100)")
    specs = [MemberSpec(0, precision=0.02, beta=1.0, kl_schedule=text) for text in texts]
    settings = TrainSettings(epochs=50, patience=50, batch_size=50, learning_rate=1e-2, compile="never")
    plain, free, target = train(model, x, x, specs, settings)

    def kl(member) -> list[float]:
        mean, variance = member.encode(x[0])
        return (0.5 * (mean**2 + variance - 1 - variance.log())).mean(0).tolist()

    assert sum(kl(plain)) < 0.1
    assert all(value < 0.65 for value in kl(free))  # beyond λ the KL costs as much as it does without
    assert sum(kl(free)) > 0.3
    assert sum(kl(target)) == pytest.approx(3.0, abs=0.4)


def test_fit_trains_schedules_side_by_side_and_a_folder_keeps_them_apart(tmp_path):
    schedules = ["constant", "linear(steps=9)", "free-bits(nats=0.5)"]
    options = {"latent_dim": 2, "precision": 2.0, "epochs": 3, "compile": "never", "progress": NoProgress()}
    first = vs.fit(_data()[0], kl_schedule=schedules, seeds=2, out=tmp_path / "run", **options)
    again = vs.fit(_data()[0], kl_schedule=schedules, seeds=2, out=tmp_path / "run", **options)
    assert len(first) == len(again) == 6
    assert [m.best_elbo for m in first.members] == [m.best_elbo for m in again.members]
    assert len({m.history["loss"][-1] for m in first.members}) == 6
    assert vs.adapters.from_run(tmp_path / "run").best_elbo == max(m.best_elbo for m in first.members)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cosine", "kl_schedule must be one of constant, linear"),
        ("linear(speed=3)", "has no parameter 'speed'; it has steps"),
        ("linear(steps=0)", "steps must be at least 1"),
        ("linear(steps)", "kl_schedule must be one of"),
        ("cyclical(ramp=2)", "ramp must be above 0 and at most 1"),
        ("free-bits(nats=0)", "nats must be above 0|nats must be > 0"),
    ],
)
def test_bad_schedules_are_one_line(text, message):
    with pytest.raises(vs.InputError, match=message):
        vs.fit(torch.randn(20, 3), latent_dim=1, kl_schedule=text)


def test_what_free_bits_cannot_be_combined_with():
    x, model = _data(), VAE.mlp(6, 2, hidden=(8,))
    with pytest.raises(vs.InputError, match="need objective='beta'"):
        train(model, x, x, [MemberSpec(0, kl_schedule="free-bits")], QUICK, objective=Capacity(1.0))
    full = VAE.mlp(6, 2, hidden=(8,), posterior="full")
    with pytest.raises(vs.InputError, match="free bits need a KL per latent"):
        train(full, x, x, [MemberSpec(0, kl_schedule="free-bits")], QUICK)


def test_patience_waits_for_the_schedule():
    x, model = _data(), VAE.mlp(6, 2, hidden=(8,))
    settings = TrainSettings(epochs=40, patience=1, batch_size=50, learning_rate=0.3, compile="never")
    steps = 4 * math.ceil(0.8 * 25)
    early, late = train(
        model, x, x, [MemberSpec(0, 2.0), MemberSpec(0, 2.0, kl_schedule=f"linear(steps={steps})")], settings
    )
    assert len(early.history["elbo"]) < 20 <= len(late.history["elbo"])
