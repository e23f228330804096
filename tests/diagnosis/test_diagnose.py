"""What a diagnosis says, leaves out and writes; the command line; names that are HTML."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope import cli
from vaescope.diagnosis import page
from vaescope.errors import InputError, RunError
from vaescope.theory.rotation import best_rotation
from vaescope.training import NoProgress, TrainSettings

G = torch.Generator().manual_seed(0)
W = torch.linalg.qr(torch.randn(5, 2, generator=G))[0] * torch.tensor([2.0, 1.0])
X = torch.randn(400, 2, generator=G) @ W.T + 0.1 * torch.randn(400, 5, generator=G)


def linear(**change):
    """The optimal linear VAE of X's own generator: γ² = 100."""
    variance = 1 / (1 + 100 * W.square().sum(0))
    known = {
        "encode": lambda x: (100 * (x @ W) * variance, variance.expand(len(x), 2)),
        "decode": lambda z: z @ W.T.to(z),
        "latent_dim": 2,
        "precision": 100.0,
    }
    return vs.adapters.from_callables(**known | change)


def test_an_optimal_model_is_as_the_theory_says():
    found = vs.diagnose(linear(), X)
    assert found.findings == []
    assert found.worst is None
    assert found.seen.noise.beta == pytest.approx(1, abs=0.02)
    assert found.seen.noise.precision == pytest.approx(100, rel=0.1)
    assert found.seen.geometry.contrast == pytest.approx(0, abs=1e-5)
    np.testing.assert_allclose(found.seen.eq12, 1, rtol=1e-4)
    assert found.seen.split.mean("amortisation")[0] == pytest.approx(0, abs=1e-3)
    assert found.seen.split.mean("family")[0] == pytest.approx(0, abs=1e-3)
    assert [row["latent"] for row in found.summary()] == [0, 1]
    assert set(found.skipped) == {"stability", "metrics"}
    assert found.as_data()["near_deterministic"] is True


def test_a_noisy_model_is_not_near_deterministic():
    variance = 1 / (1 + W.square().sum(0))
    noisy = linear(encode=lambda x: ((x @ W) * variance, variance.expand(len(x), 2)), precision=1.0)
    assert vs.diagnose(noisy, X).as_data()["near_deterministic"] is False
    assert vs.diagnose(linear(precision=None), X).as_data()["near_deterministic"] is None


def test_what_a_model_cannot_do_is_left_out_and_said():
    alone = vs.diagnose(vs.adapters.from_arrays(*(t.numpy() for t in linear().encode(X))))
    assert "decoder" in alone.skipped
    assert set(alone.summary()[0]) == {"latent", "kind", "KL", "variance ratio"}
    without = vs.diagnose(linear(decode=None), X)
    assert without.skipped["decoder"] == "the model was given without a decoder"
    unknown = vs.diagnose(linear(precision=None), X)
    assert "gap" in unknown.skipped
    assert unknown.seen.noise.beta is None
    numpy = linear(decode=lambda z: torch.from_numpy(z.detach().numpy() @ W.numpy().T.astype(z.detach().numpy().dtype)))
    by_differences = vs.diagnose(numpy, X)
    assert by_differences.seen.geometry.rank == 2
    assert "decode failed" in by_differences.skipped["gap"]


def wide(shift=0.0):
    """The optimal linear VAE with six latents, or one whose encoder is off by so many deviations."""
    generator = torch.Generator().manual_seed(1)
    V = torch.linalg.qr(torch.randn(12, 6, generator=generator))[0] * torch.linspace(1, 3, 6)
    x = torch.randn(200, 6, generator=generator) @ V.T + 0.1 * torch.randn(200, 12, generator=generator)
    variance = 1 / (1 + 100 * V.square().sum(0))
    model = vs.adapters.from_callables(
        encode=lambda x: (100 * (x @ V) * variance + shift * variance.sqrt(), variance.expand(len(x), 6)),
        decode=lambda z: z @ V.T.to(z),
        latent_dim=6,
        precision=100.0,
    )
    return model, x


def test_the_gap_of_many_latents_is_split_by_sampling():
    found = vs.diagnose(*wide())
    assert found.findings == []
    for part in ("family", "amortisation"):
        assert found.seen.split.mean(part)[0] == pytest.approx(0, abs=0.02)
    assert "By sampling" in found.as_data()["gap"]["note"]
    off = vs.diagnose(*wide(shift=1.0))
    assert [f.code for f in off.findings] == ["amortisation"]
    assert off.seen.split.mean("amortisation")[0] == pytest.approx(3, abs=0.1)  # six latents, half a nat each
    assert off.seen.split.mean("family")[0] == pytest.approx(0, abs=0.05)


def pixels(turn=None, shift=0.0, beta=1.0):
    """Bernoulli pixels, half of them for each of two latents, with nearly the best posteriors (one Newton step)."""
    generator = torch.Generator().manual_seed(2)
    B = torch.zeros(60, 2, dtype=torch.float64)
    B[:30, 0] = 2 + torch.rand(30, generator=generator, dtype=torch.float64)
    B[30:, 1] = 1 + torch.rand(30, generator=generator, dtype=torch.float64)
    B = B * torch.where(torch.rand(60, 1, generator=generator) < 0.5, -1.0, 1.0).double()
    z = torch.randn(300, 2, generator=generator, dtype=torch.float64)
    x = torch.bernoulli(torch.sigmoid(z @ B.T), generator=generator)
    turn = torch.eye(2, dtype=torch.float64) if turn is None else turn
    A = B @ turn

    def encode(x):
        mode = torch.zeros(len(x), 2, dtype=torch.float64)
        for _ in range(20):
            p = torch.sigmoid(mode @ A.T)
            bent = torch.eye(2, dtype=torch.float64) + torch.einsum("ni,ij,ik->njk", p * (1 - p), A, A)
            mode = mode + 0.7 * torch.linalg.solve(bent, (x - p) @ A - mode)
        variance = beta / (beta + bent.diagonal(dim1=1, dim2=2) - 1)
        return mode + shift * variance.sqrt(), variance

    model = vs.adapters.from_callables(
        encode=encode, decode=lambda z: torch.sigmoid(z @ A.T.to(z)), latent_dim=2, likelihood="bernoulli"
    )
    return model, x


def test_bernoulli_pixels_are_weighed_and_their_gap_is_split():
    found = vs.diagnose(*pixels())
    assert found.findings == []
    assert found.seen.noise.beta == pytest.approx(1, abs=0.3)
    assert found.seen.geometry.contrast == pytest.approx(0, abs=1e-9)
    assert found.seen.split.mean("amortisation")[0] < 0.1
    half = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64) / 2**0.5
    turned = vs.diagnose(*pixels(turn=half))
    assert [(f.code, f.severity) for f in turned.findings] == [("rotated", "warning")]
    assert [f.code for f in vs.diagnose(*pixels(shift=1.5)).findings] == ["amortisation"]
    assert [f.code for f in vs.diagnose(*pixels(beta=20.0)).findings] == ["beta-high"]


def test_a_beta_that_was_meant_is_no_fault():
    variance = 1 / (1 + 5 * W.square().sum(0))  # β = 20 at γ² = 100
    wide = {"encode": lambda x: (5 * (x @ W) * variance, variance.expand(len(x), 2))}
    assert [f.code for f in vs.diagnose(linear(**wide), X).findings] == ["beta-high"]
    known = vs.diagnose(linear(**wide, beta=20.0), X)
    assert [f for f in known.findings if f.severity != "note"] == []
    np.testing.assert_allclose(known.seen.eq12, 1, rtol=1e-4)
    assert "β = 20" in known.seen.split.note


@pytest.mark.parametrize("prior", [vs.Uniform(-2.0, 2.0), vs.Laplace(0.0, 0.7), vs.Beta(2.0, 3.0, low=-2.0, high=2.0)])
def test_a_prior_that_is_not_normal_leaves_out_what_needs_one(prior):
    found = vs.diagnose(linear(prior=prior), X)
    assert type(prior).__name__ in found.skipped["exact KL"]
    assert "gap" in found.skipped
    assert found.seen.regime.used == [0, 1]
    assert found.seen.geometry is not None


def test_several_seeds_are_compared():
    other = linear(
        encode=lambda x: (
            torch.randn(len(x), 2, generator=torch.Generator().manual_seed(1)),
            torch.full((len(x), 2), 0.1),
        )
    )
    assert [f.code for f in vs.diagnose([linear(), other], X).findings] == ["unstable"]
    assert vs.diagnose([linear(), linear()], X).findings == []


def test_factors_are_scored():
    found = vs.diagnose(linear(), X, factors=X @ W)
    assert {row["metric"] for row in found.as_data()["metrics"]} >= {"MCC", "MIG"}


def test_the_page_and_its_data(tmp_path):
    found = vs.diagnose(linear(), X, factors=X @ W, name="<script>alert(1)</script>")
    page = found.to_html(tmp_path / "page.html").read_text()
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("<svg") >= 4
    assert "http://" not in page.replace("http://www.w3.org", "")
    data = json.loads(found.to_json(tmp_path / "page.json").read_text())
    assert data["latents"][0]["kind"] == "active"
    assert data["gap"]["family"]["mean"] == pytest.approx(0, abs=1e-3)


def test_images_are_shown_as_images(tmp_path):
    W8 = torch.linalg.qr(torch.randn(64, 2, generator=G))[0]
    model = vs.adapters.from_callables(
        encode=lambda x: (x.flatten(1) @ W8, torch.full((len(x), 2), 0.1)),
        decode=lambda z: (z @ W8.T.to(z)).reshape(-1, 1, 8, 8),
        latent_dim=2,
        image_shape=(1, 8, 8),
    )
    x = (torch.randn(100, 2, generator=G) @ W8.T).reshape(-1, 1, 8, 8)
    assert vs.diagnose(model, x).to_html(tmp_path / "page.html").read_text().count("<image") >= 14


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vs.diagnose(linear()), "diagnose needs samples x"),
        (lambda: vs.diagnose(torch.nn.Linear(2, 2), X), "this needs a model"),
        (lambda: vs.diagnose([], X), "this needs a model"),
        (lambda: vs.diagnose(linear(encode=lambda x: (x[:, :2] * torch.nan, x[:, :2])), X), "NaN or infinity"),
        (lambda: vs.diagnose(linear(), X[0]), "x must be an array with a row per sample"),
    ],
)
def test_mistakes_are_explained(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_the_best_rotation_is_found():
    """Planted: curved columns, orthogonal in turned axes."""
    lengths = torch.rand(40, 1, 4, generator=G).double() + torch.tensor([0.5, 1.0, 2.0, 4.0])
    frames = torch.linalg.qr(torch.randn(40, 9, 4, generator=G).double())[0]
    turn = torch.linalg.qr(torch.randn(4, 4, generator=G).double())[0]
    found = best_rotation(frames * lengths @ turn.T)
    assert found.before > 0.2
    assert found.after == pytest.approx(0, abs=1e-6)
    close = np.abs(found.matrix.T @ turn.numpy())
    np.testing.assert_allclose(np.sort(close.max(0)), 1, atol=1e-3)
    straight = best_rotation(frames * lengths)
    assert straight.gained == pytest.approx(0, abs=1e-9)
    assert straight.turned == pytest.approx(0, abs=1e-3)


# what people give it, and what it must not be fooled by -----------------------------------------


def test_posteriors_alone_of_any_number():
    generator = torch.Generator().manual_seed(0)
    arrays = [torch.rand(9000, 3, generator=generator, dtype=torch.float64) for _ in range(2)]
    alone = vs.adapters.from_arrays(*arrays)
    assert vs.diagnose(alone).samples == 9000
    two = vs.diagnose([alone, vs.adapters.from_arrays(*arrays)])
    assert two.seen.stability.score == pytest.approx(1)


@pytest.mark.parametrize("kind", ["float64", "float16", "list", "uint8"])
def test_samples_of_any_kind_of_number(kind):
    network = torch.nn.Linear(5, 4)
    model = vs.adapters.from_modules(network, torch.nn.Linear(2, 5), latent_dim=2, precision=1.0)
    x = X[:40].tolist() if kind == "list" else X[:40].abs().numpy().astype(kind)
    assert len(vs.diagnose(model, x).summary()) == 2


@pytest.mark.parametrize("hidden", [lambda t: t.detach(), lambda t: t.data])
def test_a_decoder_that_detaches_is_differentiated_by_differences(hidden):
    found = vs.diagnose(linear(decode=lambda z: hidden(z @ W.T.to(z))), X)
    assert found.seen.geometry.contrast == pytest.approx(0, abs=1e-4)
    assert found.seen.geometry.rank == 2
    assert "detaches its output" in found.skipped["gap"]
    assert found.findings == []


@pytest.mark.parametrize(
    ("change", "x", "message"),
    [
        ({}, X[:, :3], r"encode failed on \(400, 3\)|encode failed on \(256, 3\)"),
        ({"encode": lambda x: {}["w"]}, X, "encode failed"),
        ({}, [["a", "b"]], "expected an array of numbers, got list"),
        ({}, [[1.0], [1.0, 2.0]], "expected an array of numbers, got list"),
        ({}, iter([X]), "collect its batches into one array first"),
        ({}, X[:, :0], "one number of each"),
        ({}, torch.where(torch.arange(400)[:, None] == 399, torch.inf, X), "NaN or infinity at sample 399"),
        (
            {"prior": vs.Normal(torch.zeros(3), torch.ones(3))},
            X,
            r"prior is for latents of shape \(3,\), the model has 2",
        ),
    ],
)
def test_what_a_user_gets_wrong_is_one_line(change, x, message):
    with pytest.raises(InputError, match=message):
        vs.diagnose(linear(**change), x)


def test_an_auxiliary_for_a_plain_model_is_one_line():
    with pytest.raises(InputError, match="takes no auxiliary u"):
        vs.diagnose(linear(), X, auxiliary=np.zeros(400, dtype=int))


@pytest.mark.parametrize("decode", [lambda z: {}["w"], lambda z: z @ W, lambda z: torch.nan * (z @ W.T.to(z))])
def test_a_decoder_that_fails_is_left_out(decode):
    found = vs.diagnose(linear(decode=decode), X)
    assert set(found.skipped) >= {"geometry", "noise", "gap"}
    assert found.findings == []


def test_another_model_that_cannot_encode_costs_the_comparison_alone():
    found = vs.diagnose([linear(), linear(encode=lambda x: {}["w"])], X)
    assert "encode failed" in found.skipped["stability"]
    assert found.findings == []


@pytest.mark.parametrize("shift", [0.2, 0.5, 1.0])
def test_an_encoder_that_is_far_off_is_not_taken_for_noise(shift):
    variance = 1 / (1 + 100 * W.square().sum(0))
    off = linear(encode=lambda x: (100 * (x @ W) * variance + shift, variance.expand(len(x), 2)))
    assert [f.code for f in vs.diagnose(off, X).findings if f.severity != "note"] == ["amortisation"]


def test_the_climb_finds_the_best_posterior_from_afar():
    found = vs.diagnose(*wide(shift=40.0)).seen.split
    assert found.mean("family")[0] == pytest.approx(0, abs=0.1)
    assert found.mean("amortisation")[0] == pytest.approx(0.5 * 6 * 40**2, rel=0.01)
    assert found.pareto_k < 0.7


def test_effective_beta_under_a_wide_prior():
    """Units of the latents are nobody's fault: N(0, 1e4) and codes a hundred times as long."""
    variance = 1e4 / (1 + 5 * W.square().sum(0))  # β = 20 at γ² = 100
    model = linear(
        encode=lambda x: (5 * (x @ W) * variance / 100, variance.expand(len(x), 2)),
        decode=lambda z: z @ W.T.to(z) / 100,
        prior=vs.Normal(0.0, 1e4),
    )
    found = vs.diagnose(model, X)
    assert [f.code for f in found.findings] == ["beta-high"]
    assert found.seen.noise.beta == pytest.approx(20, rel=1e-3)


def test_variances_of_zero_are_no_log_variances():
    variance = 1 / (1 + 100 * W.square().sum(0))

    def encode(x):
        spread = variance.expand(len(x), 2).clone()
        spread[-1, 0] = 0.0
        return 100 * (x @ W) * variance, spread

    found = vs.diagnose(linear(encode=encode), X)
    assert "zero-variance" in [f.code for f in found.findings]
    assert "log-variance" not in [f.code for f in found.findings]
    assert found.summary()[0]["variance ratio"] < 0.02


def test_logits_are_no_probabilities():
    model, x = pixels()
    inner = model.decode
    logits = vs.adapters.from_callables(
        encode=model.encode, decode=lambda z: torch.logit(inner(z)), latent_dim=2, likelihood="bernoulli"
    )
    found = vs.diagnose(logits, x)
    assert [(f.code, f.severity) for f in found.findings] == [("logits", "error")]
    assert found.seen.noise.beta == pytest.approx(1, abs=0.3)


def test_of_a_fit_the_best_finished_member_is_diagnosed():
    settings = TrainSettings(epochs=4, compile="never")
    fitted = vs.fit(X, latent_dim=2, precision=100.0, seeds=range(4), settings=settings, progress=NoProgress())
    found = vs.diagnose(fitted, X)
    best = vs.diagnose(fitted.best, X)
    assert found.summary() == best.summary()
    diverged = vs.fitting.Fit([replace(member, status="diverged") for member in fitted.members])
    with pytest.raises(RunError, match="no member of this fit has finished"):
        vs.diagnose(diverged, X)


def test_images_that_a_model_was_trained_on():
    x = torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    settings = TrainSettings(epochs=2, compile="never")
    fitted = vs.fit(x, latent_dim=2, settings=settings, progress=NoProgress())
    assert len(vs.diagnose(fitted, x).summary()) == 2
    assert len(vs.diagnose(fitted, (255 * x).byte().numpy()).summary()) == 2


def test_columns_that_depend_on_each_other_are_reported():
    half = linear(decode=lambda z: torch.where(z[:, :1] > 0, z[:, :1] @ W[:, :1].T.to(z), z @ W.T.to(z)))
    geometry = vs.diagnose(half, X).seen.geometry
    assert 0.2 < geometry.singular < 0.8
    everywhere = linear(decode=lambda z: (z @ torch.ones(2, 1).to(z)) @ W[:, :1].T.to(z))
    found = vs.diagnose(everywhere, X)
    assert found.seen.geometry.singular == 1
    assert "infinite at all codes" in page.html(found)


def test_many_latents_are_rotated_in_a_moment():
    """The time is that of the pairs: 32 latents took 15 s by whole matrices."""
    J = torch.randn(64, 200, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    straight = torch.linalg.qr(J)[0][:, :, :32] * torch.linspace(1, 9, 32, dtype=torch.float64)
    assert best_rotation(straight @ turn).after < 0.1 * best_rotation(straight @ turn).before


def test_one_sample_is_enough_for_a_page(tmp_path):
    found = vs.diagnose(linear(), X[:1])
    text = found.to_html(tmp_path / "page.html").read_text()
    assert ">nan" not in text
    assert "NaN" not in found.to_json(tmp_path / "page.json").read_text()
    assert found.as_data()["near_deterministic"] is None


def test_the_better_axes_are_in_the_json():
    half = torch.tensor([[1.0, -1.0], [1.0, 1.0]]) / 2**0.5
    variance = 1 / (1 + 100 * W.square().sum(0) @ half.T**2)
    turned = linear(
        encode=lambda x: (100 * (x @ W) @ half.T * variance, variance.expand(len(x), 2)),
        decode=lambda z: z @ half.to(z) @ W.T.to(z),
    )
    found = vs.diagnose(turned, X).as_data()["geometry"]
    axes = torch.tensor(found["axes"], dtype=torch.float64)
    assert sorted(found["latents"]) == [0, 1]
    gram = axes.T @ (W @ half.T)[:, found["latents"]].T.double() @ (W @ half.T)[:, found["latents"]].double() @ axes
    assert float(gram[0, 1].abs()) < 1e-3


# the command line -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diagnosis")
    np.save(folder / "x.npy", X.numpy())
    settings = TrainSettings(epochs=30, learning_rate=5e-3, compile="never")
    vs.fit(
        X, latent_dim=5, precision=100.0, seeds=range(2), settings=settings, progress=NoProgress(), out=folder / "run"
    )
    return folder


def test_a_run_is_diagnosed(run, capsys):
    page = run / "page.html"
    assert cli.dispatch(["diagnose", str(run / "run"), "--data", str(run / "x.npy"), "--html", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "What to do" in printed
    assert "passive" in printed
    assert "left out: metrics" in printed
    assert page.exists()
    assert json.loads(page.with_suffix(".json").read_text())["worst"] == "warning"
    arguments = ["diagnose", str(run / "run"), "--data", str(run / "x.npy"), "--fail-on"]
    assert cli.dispatch([*arguments, "warning"]) == 1
    assert cli.dispatch([*arguments, "error"]) == 0


def test_posteriors_on_disk_are_diagnosed(run, capsys):
    np.savez(run / "posteriors.npz", mean=np.zeros((50, 3)), variance=np.ones((50, 3)))
    assert cli.dispatch(["diagnose", str(run / "posteriors.npz"), "--fail-on", "error"]) == 1
    assert "collapsed" in capsys.readouterr().out


MODEL = """
import torch, vaescope as vs
W = torch.linalg.qr(torch.randn(5, 2, generator=torch.Generator().manual_seed(0)))[0] * torch.tensor([2.0, 1.0])
v = 1 / (1 + 100 * W.square().sum(0))
def vae():
    return vs.adapters.from_callables(encode=lambda x: (100 * (x @ W) * v, v.expand(len(x), 2)),
                                      decode=lambda z: z @ W.T.to(z), latent_dim=2, precision=100.0)
several = [vae(), vae()]
def broken():
    raise KeyError("weights")
number = 3
"""


def test_a_model_from_somebodys_own_python(run, capsys, monkeypatch):
    (run / "own_model.py").write_text(MODEL)
    data = ["--data", str(run / "x.npy")]
    assert cli.dispatch(["diagnose", f"{run}/own_model.py:vae", *data, "--fail-on", "note"]) == 0
    assert "Nothing to complain of" in capsys.readouterr().out
    monkeypatch.syspath_prepend(str(run))
    assert cli.dispatch(["diagnose", "own_model:several", *data]) == 0
    assert "left out: stability" not in capsys.readouterr().out
    for name, message in (
        ("nothing", "nothing called nothing"),
        ("broken", "failed: KeyError: 'weights'"),
        ("number", "must be a model from vs.adapters"),
    ):
        with pytest.raises(InputError, match=message):
            cli.dispatch(["diagnose", f"{run}/own_model.py:{name}", *data])
    (run / "bad.py").write_text("import nonsense_that_is_not_there")
    with pytest.raises(InputError, match="cannot be imported: ModuleNotFoundError"):
        cli.dispatch(["diagnose", f"{run}/bad.py:vae", *data])


def test_an_ivae_is_diagnosed_with_its_u(tmp_path, capsys):
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 4, (300,), generator=generator)
    z = torch.randn(300, 2, generator=generator) * (0.3 + 0.6 * torch.rand(4, 2, generator=generator))[labels]
    np.save(tmp_path / "x.npy", (z @ W.T + 0.1 * torch.randn(300, 5, generator=generator)).numpy())
    np.save(tmp_path / "u.npy", labels.numpy())
    data = ["--data", str(tmp_path / "x.npy")]
    settings = TrainSettings(epochs=10, learning_rate=5e-3, compile="never")
    vs.fit(
        np.load(tmp_path / "x.npy"),
        model="ivae",
        auxiliary=labels,
        latent_dim=2,
        precision=100.0,
        settings=settings,
        progress=NoProgress(),
        out=tmp_path / "run",
    )
    with pytest.raises(InputError, match="this is an iVAE: say its u by --auxiliary"):
        cli.dispatch(["diagnose", str(tmp_path / "run"), *data])
    html = tmp_path / "page.html"
    u = ["--auxiliary", str(tmp_path / "u.npy")]
    assert cli.dispatch(["diagnose", str(tmp_path / "run"), *data, *u, "--html", str(html)]) == 0
    found = json.loads(html.with_suffix(".json").read_text())
    assert found["gap"]["family"]["mean"] > -0.5
    assert "KL" in capsys.readouterr().out
    members = vs.adapters.run.members_of(tmp_path / "run")
    session = vs.explorer.Session.of(members, np.load(tmp_path / "x.npy"), auxiliary=labels)
    assert len(session.decode(0, [0.0, 0.0])["values"]) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["{run}/run", "--data", "{run}/x.npy", "--auxiliary", "{run}/x.npy"], "takes no auxiliary u"),
        (["{run}/run"], "--data is needed"),
        (["{run}"], "is not a run folder"),
        (["{run}/run", "--data", "{run}/x.npy", "--html", "{run}/out.json"], "would hide the numbers beside it"),
        (["{run}/run", "--fail-on", "all"], "--fail-on must be one of note, warning, error"),
    ],
)
def test_mistakes_on_the_command_line(run, arguments, message):
    with pytest.raises(InputError, match=message):
        cli.dispatch(["diagnose", *(a.format(run=run) for a in arguments)])
