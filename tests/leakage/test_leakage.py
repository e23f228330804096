"""`vs.leakage` finds nats that were planted, where they are, and nothing where there is nothing."""

import json

import numpy as np
import pytest
import torch

import vaescope as vs
from tests.leakage.planted import correlated, gaussian_classes
from vaescope.cli.main import dispatch
from vaescope.core.errors import InputError
from vaescope.metrics.nats import nats_held, permutation_null, read_variable, telling_directions, without_directions

VARIANCE = 1e-4


def posteriors(mean):
    return vs.adapters.from_arrays(mean, np.full_like(mean, VARIANCE))


def measure(mean, **options):
    return vs.leakage(posteriors(mean), progress=None, **{"permutations": 99} | options)


# nats: closed forms and planted values ----------------------------------------------------------


@pytest.mark.parametrize(
    ("means", "deviations"),
    [
        ([[0, 0], [0.6, 0]], np.ones((2, 2))),
        ([[0, 0], [1.5, 0], [0, 2]], np.ones((3, 2))),
        ([[0, 0], [0, 0]], [[1, 1], [2.5, 1]]),  # classes that differ in their variance only
        (4 * np.eye(5)[:, :4], np.ones((5, 4))),  # nearly all of log 5
    ],
)
def test_nats_of_classes(means, deviations):
    inside = 0
    for seed in range(6):
        z, n, exact = gaussian_classes(means, deviations, 1500, seed)
        found = nats_held(z, read_variable(n, "n")[0], seed=seed)
        inside += found.low <= exact <= found.high
        assert abs(found.value - exact) < 0.06
    assert inside >= 4


@pytest.mark.parametrize("rho", [0.3, 0.9])
def test_nats_of_a_continuous_variable(rho):
    z, n, exact = correlated(rho, 2000, seed=0)
    found = nats_held(z, read_variable(np.exp(n), "n")[0])  # a monotone function has the same nats
    assert found.low <= exact <= found.high


def test_nats_given_what_explains_them():
    """Codes hold K, and the nuisance differs from K at random: nothing of it is held given K."""
    rng = np.random.default_rng(0)
    k = rng.integers(0, 3, 2000)
    n = np.where(rng.random(2000) < 0.7, k, rng.integers(0, 3, 2000))
    z = rng.normal(size=(2000, 2)) + np.outer(k, [2.0, 0.0])
    nuisance, keep = read_variable(n, "n")[0], read_variable(k, "k")[0]
    assert nats_held(z, nuisance).low > 0.1
    assert nats_held(z, nuisance, given=keep).low == 0
    assert permutation_null(z, nuisance, permutations=99).p_value == 0.01
    assert permutation_null(z, nuisance, given=keep, permutations=99).p_value > 0.05


def test_nothing_is_found_where_there_is_nothing():
    p = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        z, n = rng.normal(size=(200, 3)), read_variable(rng.integers(0, 3, 200), "n")[0]
        found = permutation_null(z, n, permutations=39, seed=seed)
        p.append([found.p_value, min(found.per_latent)])
    assert (np.array(p) <= 0.05).sum(0).max() <= 6  # binomial(40, 0.05) exceeds 6 with probability 0.2 %


def test_an_interaction_of_latents_is_found():
    """The sign of a product: no latent holds anything alone."""
    z = np.random.default_rng(0).normal(size=(2000, 3))
    n = read_variable((z[:, 0] * z[:, 1] > 0).astype(int), "n")[0]
    assert nats_held(z, n).value > 0.4
    assert nats_held(z[:, :1], n).high < 0.01


def test_nats_do_not_depend_on_scales_order_or_names():
    z, n, _ = gaussian_classes([[0, 0], [1, 1]], np.ones((2, 2)), 600, 0)
    expected = nats_held(z, read_variable(n, "n")[0]).value
    assert nats_held(z * [100, 0.01] + 7, read_variable(n, "n")[0]).value == pytest.approx(expected, abs=1e-3)
    assert nats_held(z[:, ::-1], read_variable(n, "n")[0]).value == pytest.approx(expected, abs=1e-3)
    assert nats_held(z, read_variable(np.array(["b", "a"])[n], "n")[0]).value == pytest.approx(expected, abs=1e-3)


def test_removing_the_direction_that_holds_it_removes_it():
    z, n, exact = gaussian_classes([[0, 0, 0], [1, 1, 0]], np.ones((2, 3)), 2000, 0)
    target = read_variable(n, "n")[0]
    every = np.arange(2000)
    directions = telling_directions(z, target)
    assert nats_held(without_directions(z, directions[:, :1], every), target).value < 0.01
    assert nats_held(z @ directions[:, :1], target).value == pytest.approx(exact, abs=0.04)


# the report -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted():
    """Batch in latent 0, type in latent 1, and batch associated with type."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, 1500)
    batch = np.where(rng.random(1500) < 0.4, kind % 2, rng.integers(0, 2, 1500))
    mean = rng.normal(size=(1500, 3))
    mean[:, 0] += 1.5 * batch
    mean[:, 1] += 2.0 * kind
    return mean, batch, np.array(["B", "T", "NK"])[kind]


@pytest.fixture(scope="module")
def found(planted):
    mean, batch, kind = planted
    return measure(mean, nuisance={"batch": batch}, keep={"cell type": kind})


def test_a_report(found, tmp_path):
    assert [f.code for f in found.findings] == ["leaks"]
    leak = found.leak("batch")
    assert np.argmax([nats.value for nats in leak.latents]) == 0
    assert leak.null.per_latent[0] == 0.01
    assert leak.removal is not None
    assert leak.removal.directions == 1
    assert leak.removal.nuisance.value < 0.02
    assert leak.removal.keep["cell type"].value > 0.8 * found.kept[0].held.value
    assert len(found.summary()) == 3
    assert "batch" in found.verdict
    assert json.loads(found.to_json(tmp_path / "found.json").read_text())["leaks"][0]["held"]["value"] > 0.1
    page = found.to_html(tmp_path / "found.html").read_text()
    assert "The latents hold batch." in page.replace('<a class="term" href="#term-latent">latents</a>', "latents")
    assert 'id="removal"' in page


def test_a_nuisance_that_is_explained_by_what_is_kept(planted):
    mean, _, kind = planted
    rng = np.random.default_rng(1)
    batch = np.where(rng.random(1500) < 0.7, kind == "T", rng.random(1500) < 0.5)
    report = measure(mean[:, 1:], nuisance=batch, keep=kind)
    assert [f.code for f in report.findings] == ["confounded"]


def test_no_leak_has_no_finding(planted):
    mean, batch, _ = planted
    report = measure(mean[:, 2:], nuisance=np.random.default_rng(3).permutation(batch))
    assert report.findings == []
    assert report.verdict.startswith("No nuisance was found")


def test_wide_posteriors_hide_what_their_means_hold(planted):
    mean, batch, _ = planted
    wide = vs.adapters.from_arrays(mean, np.full_like(mean, 100.0))
    draws = vs.leakage(wide, nuisance=batch, permutations=19, progress=None)
    means = vs.leakage(wide, nuisance=batch, permutations=19, codes="means", progress=None)
    assert draws.nats["nuisance"] < 0.02 < 0.1 < means.nats["nuisance"]


# conditional models -----------------------------------------------------------------------------


def conditional(shift, *, encoder_knows=True):
    """x = z W + y shift + noise, of which the exact posterior given y is known; or of a decoder that ignores y."""
    W = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
    S = torch.linalg.inv(torch.eye(2, dtype=torch.float64) + 4 * W @ W.T)
    used = shift if encoder_knows else torch.zeros(4, dtype=torch.float64)

    def encode(x, y):
        centred = x.double() - y.double().reshape(-1, 1) * used
        return 4 * centred @ W.T @ S, S.diagonal().expand(len(x), -1)

    model = vs.adapters.from_callables(
        encode=encode,
        decode=lambda z, y: z.double() @ W + y.double().reshape(-1, 1) * used,
        latent_dim=2,
        precision=4.0,
    )
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (1200,), generator=generator).double()
    z = torch.randn(1200, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(1200, 4, generator=generator, dtype=torch.float64) / 2
    return model, z @ W + y[:, None] * shift + noise, y


SHIFT = torch.tensor([2.0, 0.0, 1.0, 0.0], dtype=torch.float64)


def test_a_conditional_model_that_uses_its_condition_has_no_finding():
    model, x, y = conditional(SHIFT)
    report = vs.leakage(model, x, auxiliary=y, permutations=99, progress=None)
    assert report.findings == []
    assert report.condition is not None
    assert not report.condition.ignored


def test_a_conditional_decoder_that_ignores_its_condition_is_named():
    model, x, y = conditional(SHIFT, encoder_knows=False)
    report = vs.leakage(model, x, auxiliary=y, permutations=99, progress=None)
    assert [f.code for f in report.findings] == ["leaks"]
    assert "ignores its condition" in report.findings[0].advice
    assert report.condition is not None
    assert report.condition.gain == 0


def test_overcorrection_is_named():
    """The condition is a copy of the class but for a few samples; what x holds of the class, the latents have lost."""
    model, x, y = conditional(SHIFT)
    kind = torch.where(torch.rand(1200, generator=torch.Generator().manual_seed(1)) < 0.05, 1 - y, y)
    report = vs.leakage(model, x, auxiliary=y, keep={"class": kind}, permutations=99, progress=None)
    assert [f.code for f in report.findings] == ["overcorrected"]


# input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nuisance is required"),
        ({"nuisance": [0, 1]}, "must have a label or a number for each of 1500 samples, got 2"),
        ({"nuisance": np.zeros(1500)}, "at least two classes with 10 samples each, got 1"),
        ({"nuisance": "batch"}, "is no column of x.obs"),
        ({"nuisance": np.arange(1500) % 2, "codes": "mean"}, "codes must be one of draws, means"),
    ],
)
def test_wrong_input_is_refused(planted, options, message):
    with pytest.raises(InputError, match=message):
        measure(planted[0], **options)


def test_rare_classes_are_left_out_and_named(planted):
    mean, batch, _ = planted
    labels = np.where(np.arange(1500) < 3, "rare", batch.astype(str))
    report = measure(mean, nuisance=labels)
    assert report.leaks[0].held.value > 0.1
    assert "3 samples" in report.skipped["rare classes of nuisance"]


def test_columns_of_data_frames_and_of_anndata(planted):
    pd, anndata = pytest.importorskip("pandas"), pytest.importorskip("anndata")
    mean, batch, kind = planted
    table = pd.DataFrame({"batch": batch, "kind": kind}, index=[str(i) for i in range(1500)])
    half = vs.adapters.from_callables(
        encode=lambda x: (x[:, :2], 0.01 + 0 * x[:, :2]), decode=lambda z: z, latent_dim=2, precision=1.0
    )
    data = anndata.AnnData(mean.astype("float32"), obs=table)
    named = vs.leakage(half, data, nuisance="batch", keep="kind", permutations=19, progress=None)
    frame = vs.leakage(
        half, mean.astype("float32"), nuisance=table[["batch"]], keep=table["kind"], permutations=19, progress=None
    )
    assert named.leaks[0].name == frame.leaks[0].name == "batch"
    assert named.kept[0].name == frame.kept[0].name == "kind"
    assert named.nats["batch"] == pytest.approx(frame.nats["batch"], abs=1e-3)


MODEL = """
import vaescope as vs
model = vs.adapters.from_callables(
    encode=lambda x: (x[:, :2], 0.01 + 0 * x[:, :2]), decode=lambda z: z, latent_dim=2, precision=1.0)
"""


def test_the_command(planted, tmp_path, monkeypatch, capsys):
    mean, batch, kind = planted
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODEL)
    np.save("x.npy", mean.astype("float32"))
    np.save("batch.npy", batch)
    np.savez("data.npz", x=mean.astype("float32"), factors=np.stack([batch, kind == "T"], 1).astype("float32"))
    command = ["leakage", "mine.py:model", "--samples", "800"]
    assert dispatch([*command, "--data", "x.npy", "--nuisance", "batch.npy", "--html", "page.html"]) == 0
    assert (tmp_path / "page.html").exists()
    assert "nats of batch" in capsys.readouterr().out
    data = ["--data", "data.npz", "--nuisance", "factor 0", "--keep", "factor 1", "--fail-on", "warning"]
    assert dispatch([*command, *data]) == 1
    with pytest.raises(InputError, match="no factor of the data"):
        dispatch([*command, "--data", "data.npz", "--nuisance", "pose"])
