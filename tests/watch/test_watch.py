"""`vs.Watch`: parity with the linear VAE, laws of measuring, planted faults, the page."""

import json
import math
import time

import numpy as np
import pytest
import torch
from benchmarks.watch import SEEDS

import vaescope as vs
from tests.watch.faults import NAMES, SCORED, _mlp, run, suitable
from tests.watch.score import outcomes
from vaescope.products.watch.probe import DataFacts, Probe
from vaescope.products.watch.watch import Clock, Line, chart

TINY = (_mlp("blobs", 8, 3),)


def _linear_vae(precision: float = 4.0):
    """A linear VAE at its optimum: everything about it has a closed form."""
    torch.manual_seed(0)
    scales = torch.tensor([2.0, 1.0, 0.7, 0.2, 0.2])
    W = torch.zeros(5, 2)
    W[0, 0], W[1, 1] = math.sqrt(4.0 - 1 / precision), math.sqrt(1.0 - 1 / precision)
    variance = 1 / (1 + precision * W.square().sum(0))
    x = torch.randn(20_000, 5) * scales
    model = vs.adapters.from_callables(
        encode=lambda v: (precision * v @ W * variance, variance.expand(len(v), 2)),
        decode=lambda z: z @ W.T,
        latent_dim=2,
        precision=precision,
    )
    return model, x, W, precision


def test_a_row_of_a_linear_vae_is_what_theory_says():
    model, x, W, precision = _linear_vae()
    row = vs.Watch(model, x, every=1, samples=20_000, show=False).update(0)
    exact = vs.theory.linear.elbo(x.double(), W.double(), precision).mean()
    assert row.elbo == pytest.approx(float(exact), abs=0.05)
    assert row.kl == pytest.approx([0.5 * math.log(4.0 * 4), 0.5 * math.log(1.0 * 4)], abs=0.05)  # ½ log λγ²
    assert row.latents.contrast == pytest.approx(0.0, abs=1e-4)
    assert row.latents.encoder_gap < 0.02  # the encoder is optimal
    assert (row.used, row.passive, row.sigma, row.effective_beta) == (2, 0, 0.5, 0.25)


def test_the_encoder_gap_is_that_of_wrong_means():
    """Means that are off by δ in a linear VAE lose ½ Σ δ²/σ² nats."""
    model, x, _, precision = _linear_vae()
    shifted = vs.adapters.from_callables(
        encode=lambda v: (model.encode(v)[0] + 0.3, model.encode(v)[1]),
        decode=model.decode,
        latent_dim=2,
        precision=precision,
    )
    row = vs.Watch(shifted, x, every=1, show=False).update(0)
    lost = float((0.5 * 0.3**2 / model.encode(x[:1])[1]).sum())
    assert row.latents.encoder_gap == pytest.approx(lost, rel=0.1)


def test_the_contrast_agrees_with_exact_derivatives():
    torch.manual_seed(1)
    decoder = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(), torch.nn.Linear(16, 7))
    model = vs.adapters.from_callables(
        encode=lambda v: (2 * v[:, :3], torch.full((len(v), 3), 0.1)), decode=decoder, latent_dim=3, precision=1.0
    )
    probe = Probe(model, torch.randn(50, 7), None, count=50)
    sample = probe.measure(model).sample
    exact = vs.theory.ima_contrast(decoder, sample.random_subset(8).mean).detach().mean()
    assert probe.contrast(sample, [0, 1, 2]) == pytest.approx(float(exact), rel=1e-3)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_collapse_is_stable_exactly_above_the_critical_beta(likelihood):
    """Second derivative of the ELBO along the best weak code: positive below the critical β, negative above."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(4000, 1, generator=generator)
    x = (torch.sigmoid(2 * z * torch.tensor([1.0, -1.0, 0.5, 0.1])) > torch.rand(4000, 4, generator=generator)).double()
    facts, precision = DataFacts.of(x), 3.0
    critical = facts.critical_beta(likelihood, precision)
    mean = facts.mean
    noise = mean * (1 - mean) if likelihood == "bernoulli" else torch.full((4,), 1 / precision, dtype=x.dtype)
    scaled = (x - mean) / (noise.sqrt() if likelihood == "bernoulli" else 1.0)
    w = torch.linalg.eigh(scaled.T @ scaled)[1][:, -1] / (noise.sqrt() if likelihood == "bernoulli" else 1.0)

    def elbo(size: float, beta: float) -> float:
        """Of weights `size · w` (of logits for Bernoulli) with the best Gaussian code, to second order."""
        slope = size * (x - mean) @ w * (1.0 if likelihood == "bernoulli" else precision)
        curvature = size**2 * float((w**2 * (noise if likelihood == "bernoulli" else precision)).sum())
        return float((0.5 * slope**2 / (beta + curvature)).mean()) - 0.5 * beta * math.log1p(curvature / beta)

    assert elbo(1e-3, 0.95 * critical) > 0 > elbo(1e-3, 1.05 * critical)


@pytest.mark.parametrize("beta", [1.0, 3.0, 8.0])
def test_the_learned_noise_of_a_linear_vae_maximises_its_objective(beta):
    """Against a search over σ: n/2 log σ² + error/(2σ²) + β KL, with the best linear VAE at each σ."""
    scales = torch.tensor([4.0, 2.0, 1.0, *[0.5] * 9])
    facts = DataFacts.of(torch.randn(4000, 12, generator=torch.Generator().manual_seed(0)) * scales)
    found, leading = facts.learned_variance(beta, 3), facts.eigenvalues[:3]

    def loss(noise: torch.Tensor) -> torch.Tensor:
        used = leading > beta * noise
        left = facts.eigenvalues.sum() - torch.where(used, leading - beta * noise, 0.0).sum(-1, keepdim=True)
        kl = 0.5 * (leading / (beta * noise)).log().clamp_min(0).sum(-1, keepdim=True)
        return 6 * noise.log() + left / (2 * noise) + beta * kl

    around = found * torch.linspace(0.9, 1.1, 21, dtype=torch.float64)[:, None]
    assert int(loss(around).argmin()) == 10
    kl = 0.5 * (leading / (beta * found)).log().clamp_min(0).sum()
    assert facts.linear_kl("gaussian", None, beta, 3) == pytest.approx(float(kl))
    assert facts.linear_kl("poisson", None, beta, 3) == math.inf


def test_half_of_the_units_without_gradient_are_no_fault():
    """Half is what positive inputs that are alike give with random weights; nine tenths are a fault."""
    model, x, *_ = _linear_vae()
    layer = torch.nn.Linear(4, 10)
    for dead, codes in ((5, []), (9, ["dead-units"])):
        layer.weight.grad = (torch.arange(10)[:, None] >= dead).float().expand(10, 4)
        watch = vs.Watch(model, x, parameters=layer, every=1, show=False)
        for step in range(3):
            watch.update(step)
        assert [finding.code for finding in watch.findings] == codes


@pytest.mark.parametrize("fault", list(NAMES))
def test_faults_are_named(fault):
    outcome = run(fault, suitable(fault, TINY)[0], seed=0, every=10, steps=60)
    assert outcome.right, outcome


@pytest.mark.long
@pytest.mark.parametrize("fault", list(NAMES))
def test_faults_are_named_on_data_that_rules_were_not_made_for(fault):
    wrong = [str(outcome) for outcome in outcomes(fault, SCORED, SEEDS) if not outcome.right]
    assert len(wrong) <= 1, wrong


def test_watching_changes_neither_weights_nor_random_numbers():
    ends = []
    for watched in (False, True):
        torch.manual_seed(0)
        x = torch.randn(64, 8)
        network = TINY[0].build()
        model = vs.adapters.from_callables(
            encode=lambda v, network=network: (network.encode(v)[0] + torch.randn(1), network.encode(v)[1].exp()),
            decode=network.decode,
            latent_dim=3,
            precision=1.0,
        )
        watch = vs.Watch(model, x, every=1, parameters=network, show=False) if watched else None
        optimiser = torch.optim.Adam(network.parameters(), 1e-2)
        for step in range(5):
            optimiser.zero_grad()
            (network.loss(x) / 64).backward()
            optimiser.step()
            if watch is not None:
                watch.update(step)
        ends.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
        assert network.training
    assert torch.equal(*ends)


def test_the_clock_keeps_to_its_share(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock, rows = Clock(None, 0.02), 0
    for step in range(20_000):
        now[0] += 0.001
        if clock.due(step):
            rows += 1
            now[0] += 0.004
            clock.measured(step)
            clock.charge("row", 0.004)
    assert rows > 50
    assert clock.spent <= 0.021 * clock.elapsed


def test_between_intervals_there_is_no_row():
    model, x, *_ = _linear_vae()
    watch = vs.Watch(model, x, every=10, show=False)
    assert [watch.update(step) is not None for step in (0, 1, 9, 10, 25, 26)] == [True, False, False, True, True, False]


def test_a_loss_that_is_not_finite_is_reported_at_once():
    model, x, *_ = _linear_vae()
    watch = vs.Watch(model, x, every=1000, show=False)
    watch.update(0)
    row = watch.update(1, loss=torch.tensor(math.nan))
    assert [finding.code for finding in row.findings] == ["not-finite"]
    assert "loss" in row.findings[0].evidence


def test_training_and_validation_apart():
    model, x, *_ = _linear_vae()
    drift = {"size": 0.0}

    def encode(v):
        mean, variance = model.encode(v)
        held = (v[:, 4:] > 5).float()  # validation samples carry a mark in the last column
        return mean * (1 - drift["size"] * held), variance

    moved = vs.adapters.from_callables(encode=encode, decode=model.decode, latent_dim=2, precision=4.0)
    held = x[:300].clone()
    held[:, 4] = 9.0
    watch = vs.Watch(moved, x, every=1, validation=held, show=False)
    for step in range(0, 400, 20):
        drift["size"] = max(0.0, (step - 100) / 200)
        watch.update(step)
    (found,) = [finding for finding in watch.findings if finding.code == "overfit"]
    assert 100 < found.step < 300


def test_members_of_an_ivae_are_validated_with_their_auxiliary_input():
    torch.manual_seed(0)
    u = torch.randn(120, 1)
    x = torch.cat([u + 0.5 * torch.randn(120, 1), torch.randn(120, 2)], 1)
    observer = vs.watch.WatchedMembers()
    fitted = vs.fit(x, model="ivae", auxiliary=u, latent_dim=2, epochs=2, observer=observer)
    (watch,) = observer.watches.values()
    assert math.isfinite(watch.rows[0].validation.elbo)
    own = vs.Watch(fitted.best, x, auxiliary=u, validation=x[:50], validation_auxiliary=u[:50], every=1, show=False)
    same = vs.Watch(fitted.best, x[:50], auxiliary=u[:50], every=1, show=False)
    assert own.update(0).validation.elbo == pytest.approx(same.update(0).elbo)
    with pytest.raises(vs.InputError, match="pass validation_auxiliary="):
        vs.Watch(fitted.best, x, auxiliary=u, validation=x)


def test_the_trend_says_whether_it_still_learns():
    model, x, *_ = _linear_vae()
    scale = {"value": 0.0}
    moving = vs.adapters.from_callables(
        encode=lambda v: (scale["value"] * model.encode(v)[0], model.encode(v)[1]),
        decode=model.decode,
        latent_dim=2,
        precision=4.0,
    )
    watch = vs.Watch(moving, x, every=1, show=False)
    assert watch.trend() is None
    for step in range(10):
        scale["value"] = min(1.0, step / 9)
        watch.update(step)
    assert watch.trend().improving
    for step in range(10, 40):
        watch.update(step)
    assert not watch.trend().improving


def test_the_page_is_escaped_reloads_and_ends(tmp_path):
    model, x, _, precision = _linear_vae()
    named = vs.adapters.from_callables(
        encode=model.encode, decode=model.decode, latent_dim=2, precision=precision, name="<script>alert(1)</script>"
    )
    with vs.Watch(named, 100 * x, every=1, page=tmp_path / "watch.html", show=False) as watch:
        watch.update(0)
        text = (tmp_path / "watch.html").read_text()
        assert 'http-equiv="refresh"' in text
        assert "<script>alert" not in text
        assert "x is not scaled" in text
        watch.update(1)
        assert "x is not scaled" in watch._repr_html_()
    assert 'http-equiv="refresh"' not in (tmp_path / "watch.html").read_text()


def test_charts_draw_the_last_point_and_ignore_nan():
    steps = list(range(1000))
    text = str(chart("a", [Line("b", steps, [math.nan, *np.linspace(0, 1, 999)])]))
    assert "nan" not in text
    assert "step 999" in text
    assert str(chart("a", [Line("b", [1], [math.nan])])) == ""


def test_findings_are_printed_once_and_rows_only_in_a_terminal(capsys):
    model, x, *_ = _linear_vae()
    watch = vs.Watch(model, 100 * x, every=1)
    for step in range(3):
        watch.update(step)
    assert capsys.readouterr().err.count("x is not scaled") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"every": 0}, "every must be at least 1"),
        ({"overhead": 0.0}, "overhead must be"),
        ({"validation_auxiliary": torch.zeros(3, 1)}, "validation_auxiliary belongs to validation samples"),
        ({"parameters": ["weights"]}, "parameters must be modules or tensors"),
        ({"x": torch.full((10, 5), math.nan)}, "x must"),
    ],
)
def test_mistakes_are_one_line(change, message):
    model, x, *_ = _linear_vae()
    with pytest.raises(vs.InputError, match=message):
        vs.Watch(model, **{"x": x, "show": False} | change)


def test_a_watch_is_a_report(tmp_path):
    model, x, *_ = _linear_vae()
    watch = vs.Watch(model, 100 * x, every=1, show=False)
    assert watch.verdict == "No rows yet."
    for step in range(3):
        watch.update(step)
    assert (watch.verdict, watch.worst) == ("x is not scaled.", "warning")
    assert watch.to_frame()["step"].tolist() == [0, 1, 2]
    assert [row["elbo"] for row in watch.summary()] == [row.elbo for row in watch.rows]
    written = json.loads(watch.to_json(tmp_path / "watch.json").read_text())
    assert (len(written["rows"]), written["findings"][0]["code"]) == (3, "unscaled")
