"""Laws of a stack: a member's result depends neither on the other members, nor on their order or divergence."""

import math

import pytest
import torch

import vaescope as vs
from vaescope.core import randomness
from vaescope.data.dataset import ArrayRows
from vaescope.models import VAE
from vaescope.objectives import beta_elbo
from vaescope.training import MemberSpec, NoProgress, TrainSettings, train
from vaescope.training.batches import Batches
from vaescope.training.compilation import compile_stacked
from vaescope.training.step import adam_scales, make_step

MODEL = VAE.mlp(3, 2, hidden=(8, 8))
SETTINGS = TrainSettings(epochs=3, batch_size=32, compile="never")
SPECS = [
    MemberSpec(seed=0, precision=10.0),
    MemberSpec(seed=1, precision=100.0, data=1),
    MemberSpec(seed=2, precision=1e3, beta=4.0),
    MemberSpec(seed=0, precision=1e4, data=1),
]


def data(sets: int = 2, rows: int = 320) -> torch.Tensor:
    return torch.randn(sets, rows, 3, generator=torch.Generator().manual_seed(9)) @ torch.diag(
        torch.tensor([1.0, 0.7, 0.1])
    )


def run(specs, settings=SETTINGS, model=MODEL, x=None, **options):
    x = data() if x is None else x
    return train(model, x[:, :256], x[:, 256:], specs, settings, **options)


def assert_same(a, b, tolerance=1e-5):
    for name in a.params:
        torch.testing.assert_close(a.params[name], b.params[name], rtol=tolerance, atol=tolerance)
    assert a.history["elbo"] == pytest.approx(b.history["elbo"], rel=1e-4)
    assert (a.status, a.best_epoch, a.diverged_at_step) == (b.status, b.best_epoch, b.diverged_at_step)


@pytest.fixture(scope="module")
def together():
    return run(SPECS)


def test_a_member_alone_equals_the_member_in_a_stack(together):
    # 24 steps: enough for every weight to move by many times the tolerance
    for spec, member in zip(SPECS, together, strict=True):
        assert_same(run([spec])[0], member)
    start = MODEL.init([0])["decoder.1.weight"]
    assert float((together[0].params["decoder.1.weight"] - start).abs().mean()) > 100 * 1e-5


def test_permuting_members_permutes_results(together):
    order = [2, 0, 3, 1]
    for index, member in zip(order, run([SPECS[i] for i in order]), strict=True):
        assert_same(member, together[index])


def test_same_seed_same_numbers(together):
    again = run(SPECS)
    for a, b in zip(together, again, strict=True):
        assert a.history == b.history
        assert all(torch.equal(a.params[name], b.params[name]) for name in a.params)


def test_other_seed_other_numbers(together):
    other = run([MemberSpec(seed=5, precision=10.0)])[0]
    assert not torch.allclose(other.params["encoder.0.weight"], together[0].params["encoder.0.weight"])


def test_a_planted_divergence_is_marked_and_does_not_affect_other_members(together):
    # the precision overflows float32 at the first step
    specs = [SPECS[0], MemberSpec(seed=7, precision=1e38), *SPECS[1:]]
    members = run(specs)
    assert members[1].status == "diverged"
    assert members[1].diverged_at_step == 1
    for member, reference in zip([members[0], *members[2:]], together, strict=True):
        assert_same(member, reference)
    assert all(math.isfinite(value) for value in members[0].history["elbo"])


def test_the_step_of_a_later_divergence_is_recorded():
    x = data()
    x[1, 40] = 1e25  # the square of this row overflows, at some step of the first epoch
    members = run([MemberSpec(seed=0), MemberSpec(seed=1, data=1)], x=x)
    order = torch.randperm(256, generator=randomness.generator(1, "batches"))
    step = int((order == 40).nonzero()) // 32 + 1
    assert (members[0].status, members[1].status) == ("finished", "diverged")
    assert members[1].diverged_at_step == step


def test_members_stop_separately_and_keep_their_best_weights():
    settings = TrainSettings(epochs=40, batch_size=32, patience=2, learning_rate=3e-3, compile="never")
    together = run(SPECS, settings)
    assert len({len(m.history["elbo"]) for m in together}) > 1, "members should stop at different epochs"
    for spec, member in zip(SPECS, together, strict=True):
        elbos = member.history["elbo"]
        assert member.best_elbo == max(elbos) == elbos[member.best_epoch - 1]
        if len(elbos) < 40:
            assert len(elbos) == member.best_epoch + 2
        alone = run([spec], settings)[0]
        assert len(alone.history["elbo"]) == len(elbos)
        torch.testing.assert_close(
            alone.params["encoder.0.weight"], member.params["encoder.0.weight"], rtol=1e-3, atol=1e-4
        )


def test_best_weights_give_the_best_elbo():
    member = run([SPECS[1]], TrainSettings(epochs=12, batch_size=32, learning_rate=2e-2, compile="never"))[0]
    x = data()[1:, 256:]
    noise = torch.randn(64, 2, generator=randomness.generator(1, "validation")).unsqueeze(0)
    terms = MODEL.terms(member.params, x, noise, torch.tensor([100.0]))
    assert float((terms.log_likelihood - terms.kl).mean()) == pytest.approx(member.best_elbo, rel=1e-5)


@pytest.mark.usefixtures("unchecked_shapes")  # shape checks would be traced
def test_compiled_equals_eager(together):
    for a, b in zip(run(SPECS, TrainSettings(epochs=3, batch_size=32, compile="always")), together, strict=True):
        assert_same(a, b, tolerance=1e-4)


def test_adam_equals_torch_adam():
    params = MODEL.init([3])
    reference = {name: value.clone().requires_grad_() for name, value in params.items()}
    optimiser = torch.optim.Adam(reference.values(), lr=1e-2)
    step = make_step(MODEL, beta_elbo)
    moments = tuple({name: torch.zeros_like(p) for name, p in params.items()} for _ in range(2))
    ones = torch.ones(1)
    for k in range(5):
        generator = torch.Generator().manual_seed(k)
        x, noise = torch.randn(1, 16, 3, generator=generator), torch.randn(1, 16, 2, generator=generator)
        loss, _ = step(params, moments, adam_scales(k + 1, 1e-2, torch.device("cpu")), x, noise, ones, ones)
        optimiser.zero_grad()
        expected = beta_elbo(MODEL.terms(reference, x, noise, ones), ones).sum()
        expected.backward()
        optimiser.step()
        assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-5)
    for name in params:
        torch.testing.assert_close(params[name], reference[name].detach(), rtol=1e-4, atol=1e-5)


def test_beta_and_precision_are_redundant():
    """Reizinger et al. 2022, appendix: (β, γ²) has the gradients of (1, γ²/β) times β."""
    params = {name: value.double() for name, value in MODEL.init([0, 1]).items()}
    x, noise = torch.randn(2, 16, 3, dtype=torch.float64), torch.randn(2, 16, 2, dtype=torch.float64)

    def gradients(beta: float, precision: float):
        def loss(params):
            full = torch.full((2,), precision, dtype=torch.float64)
            return beta_elbo(MODEL.terms(params, x, noise, full), torch.full((2,), beta, dtype=torch.float64)).sum()

        return torch.func.grad(loss)(params)

    left, right = gradients(5.0, 100.0), gradients(1.0, 20.0)
    for name in left:
        torch.testing.assert_close(left[name], 5.0 * right[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("noise", ["learned", "optimal"])
def test_the_precision_recovers_the_noise_of_linear_data(noise):
    generator = torch.Generator().manual_seed(0)
    clean = torch.randn(1, 2000, 2, generator=generator) @ torch.randn(2, 6, generator=generator)
    x = clean + 0.2 * torch.randn(clean.shape, generator=generator)
    model = VAE.mlp(6, 2, hidden=(), noise=noise)
    member = train(
        model,
        x[:, :1600],
        x[:, 1600:],
        [MemberSpec(seed=0)],
        TrainSettings(epochs=60, learning_rate=2e-2, patience=60, compile="never"),
    )[0]
    assert member.precision == pytest.approx(25.0, rel=0.2)


def test_a_bernoulli_likelihood_trains_and_decodes_probabilities():
    x = (data(1).clamp(-0.5, 0.5) + 0.5).round()
    member = run(
        [MemberSpec(seed=0)],
        TrainSettings(epochs=5, compile="never"),
        VAE.mlp(3, 2, hidden=(8,), likelihood="bernoulli"),
        x=x,
    )[0]
    probabilities = member.decode(torch.randn(10, 2))
    assert ((probabilities > 0) & (probabilities < 1)).all()
    assert member.precision is None
    assert member.history["elbo"][-1] > member.history["elbo"][0]


@pytest.mark.parametrize("posterior", ["diagonal", "isotropic", "full"])
@pytest.mark.parametrize("prior", [vs.Normal(), vs.Uniform(-1.0, 1.0), vs.Laplace()], ids=lambda p: type(p).__name__)
def test_every_prior_and_posterior_trains(posterior, prior):
    model = VAE.mlp(3, 2, hidden=(8,), prior=prior, posterior=posterior, split_encoder=posterior == "full")
    member = run(
        [MemberSpec(seed=0, precision=10.0)], TrainSettings(epochs=6, learning_rate=1e-2, compile="never"), model
    )[0]
    assert member.history["elbo"][-1] > member.history["elbo"][0]
    z = member.sample(data()[0, :20], torch.Generator().manual_seed(0))
    if prior.bounds:
        assert ((z > -1) & (z < 1)).all()


def test_an_epoch_visits_every_row_once():
    x = torch.arange(40.0).reshape(1, 40, 1)
    batches = Batches(ArrayRows(x), members=[(0, 0), (1, 0)], batch_size=10, latent_dim=2)
    seen = torch.cat([rows for rows, _ in batches.epoch()], dim=1)
    assert torch.equal(seen.sort(dim=1).values, x.expand(2, 40, 1))
    assert not torch.equal(seen[0], seen[1])


def test_a_function_is_compiled_once_for_any_number_of_members():
    torch._dynamo.utils.counters.clear()
    function = compile_stacked(lambda values: values * 2)
    for members in (4, 3, 7, 2):
        assert torch.equal(function(torch.ones(members, 2)), torch.full((members, 2), 2.0))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


class RecordingProgress(NoProgress):
    def __init__(self):
        self.messages, self.epochs = [], []

    def epoch(self, done, **state):
        self.epochs.append((done, state))

    def message(self, text):
        self.messages.append(text)


def test_a_missing_compiler_is_reported_once(monkeypatch):
    monkeypatch.setattr("vaescope.training.compilation.has_compiler", lambda: False)
    progress = RecordingProgress()
    run([SPECS[0]], TrainSettings(epochs=2, compile="always"), progress=progress)
    assert len(progress.messages) == 1
    assert "compiler" in progress.messages[0]
    assert [done for done, _ in progress.epochs] == [1, 2]
    assert progress.epochs[-1][1]["finished"] == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: run([]), "at least one member"),
        (lambda: run([MemberSpec(seed=0, data=5)]), "uses data set 5, but there are 2"),
        (lambda: run([SPECS[0]], x=torch.zeros(1, 300, 4)), r"shape \(data sets, samples, 3\)"),
        (lambda: MemberSpec(seed=0, precision=-1.0), "precision must be > 0, got -1.0; it is 1 / decoder variance"),
        (lambda: MemberSpec(seed=0, beta=-1.0), "beta must be at least 0, got -1.0"),
        (lambda: TrainSettings(epochs=0), "epochs must be at least 1"),
        (lambda: TrainSettings(learning_rate=0.0), "learning_rate must be > 0"),
        (lambda: TrainSettings(compile="maybe"), "compile must be one of auto, always, never"),
        (lambda: VAE(3, 0), "latent_dim must be at least 1, got 0"),
        (lambda: VAE(3, 2, likelihood="cauchy"), "likelihood must be one of"),
        (lambda: VAE(3, 2, noise="loud"), "noise must be one of"),
        (lambda: VAE(3, 2, posterior="banana"), "posterior must be one of"),
        (lambda: VAE.mlp(3, 2, hidden=(8, 0)), "hidden layers must have at least 1 unit"),
        (lambda: VAE.mlp(3, 2, activation="swish"), "activation must be one of"),
    ],
)
def test_bad_settings_are_refused(call, message):
    with pytest.raises(vs.InputError, match=message):
        call()
