"""`vs.preflight`: kinds of data, findings, recommendations, the page, and mistakes."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import vaescope as vs
from vaescope.cli.main import dispatch
from vaescope.core.errors import InputError
from vaescope.inference import linear
from vaescope.products.preflight.data import THRESHOLDS
from vaescope.products.preflight.recommend import conventions, expected_count

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(400, 3)) @ RNG.normal(size=(3, 6)) + 0.1 * RNG.normal(size=(400, 6))


def codes(found):
    return {finding.code for finding in found.findings}


# what the data are --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "kind", "likelihood", "scaling"),
    [
        ((RNG.random((200, 20)) < 0.3).astype(float), "binary", "bernoulli", "none"),
        (RNG.random((200, 8, 8)), "unit interval", "gaussian", "none"),
        (RNG.integers(0, 256, (200, 8, 8)).astype(np.uint8), "unit interval", "gaussian", "none"),
        (RNG.poisson(np.exp(RNG.normal(size=(200, 1)) + np.linspace(-3, 4, 9))), "counts", "gaussian", "log1p"),
        (TABLE, "continuous", "gaussian", "none"),
        (TABLE * [1, 1, 1, 1, 1, 1000], "continuous", "gaussian", "standardise"),
    ],
)
def test_kinds(x, kind, likelihood, scaling):
    found = vs.preflight(x)
    assert (found.kind.name, found.kind.likelihood, found.kind.scaling) == (kind, likelihood, scaling)


def test_planted_rank():
    found = vs.preflight(TABLE)
    assert found.recommended.needed == 3
    assert found.recommended.latent_dim > 3
    assert found.active(precision=found.recommended.precision, beta=1.0) >= 3
    assert found.active(1.0, found.collapse_variance) == 0
    assert found.active(1 / (0.99 * found.collapse_variance)) == 1
    assert found.active(4.0, 2.0) == found.active(2.0, 1.0)
    assert vs.preflight(TABLE, latent_dim=2).active(1e4) == 2
    assert "few-latents" in codes(vs.preflight(TABLE, latent_dim=2))


def test_scaling_x_scales_the_collapse_line():
    assert vs.preflight(3 * TABLE).collapse_variance == pytest.approx(9 * vs.preflight(TABLE).collapse_variance)
    assert vs.preflight(TABLE + 1e4).collapse_variance == pytest.approx(vs.preflight(TABLE).collapse_variance)


def test_binary_data_collapse_at_the_largest_eigenvalue_of_the_correlation():
    """Latent classes: the second-order expansion of the cross-entropy has the correlation matrix in it."""
    hidden = RNG.random((3000, 1)) < 0.5
    x = (RNG.random((3000, 10)) < np.where(hidden, 0.8, 0.3)).astype(float)
    largest = np.linalg.eigvalsh(np.corrcoef(x.T))[-1]
    assert vs.preflight(x).collapse_variance == pytest.approx(largest, rel=1e-6)
    assert vs.preflight(x).active(beta=1.01 * largest) == 0


# findings -----------------------------------------------------------------------------------------


def messy() -> pd.DataFrame:
    frame = pd.DataFrame(TABLE.copy(), columns=list("abcdef"))
    frame["id"] = np.arange(len(frame)) + 1000
    frame["constant"] = 7.0
    frame["copy"] = -2 * frame["a"]
    frame["colour"] = ["red", "blue"] * 200
    frame["income"] = np.exp(3 * np.random.default_rng(1).normal(size=400))
    frame.loc[3, "b"] = np.nan
    frame.loc[7, "c"] = np.inf
    return pd.concat([frame, frame[10:30]])


MESSY = {
    "missing",
    "not-numeric",
    "identifier",
    "constant-columns",
    "duplicated-columns",
    "unscaled",
    "heavy-tailed",
    "duplicates",
}


def test_a_messy_table_gets_every_finding_and_still_an_answer(tmp_path):
    found = vs.preflight(messy())
    assert codes(found) >= MESSY
    assert found.rows == 418
    assert "'b'" in next(f.evidence for f in found.findings if f.code == "missing")
    assert found.findings[0].severity == "error"
    messy().to_csv(tmp_path / "messy.csv", index=False)
    read = vs.preflight(tmp_path / "messy.csv")
    assert codes(read) == codes(found)
    assert read.collapse_variance == pytest.approx(found.collapse_variance)


def test_a_clean_table_has_no_warnings():
    assert {f.severity for f in vs.preflight(TABLE, latent_dim=4).findings} <= {"note"}


@pytest.mark.parametrize(
    ("x", "code"),
    [
        (RNG.normal(size=(1000, 8)), "isotropic"),
        (0.01 * TABLE, "collapsing-loss"),
        (np.ones((50, 3)), "constant"),
        (np.sin(RNG.uniform(-1, 1, size=(800, 2)) @ (3 * RNG.normal(size=(2, 12)))), "curved"),
        (np.vstack([TABLE, TABLE[:50] + 1e-6]), "near-duplicates"),
        (RNG.normal(size=(60, 40)), "few-samples"),
    ],
)
def test_planted_problems(x, code):
    assert code in codes(vs.preflight(x))


def test_bernoulli_for_data_that_are_not_binary():
    assert "grey-bernoulli" in codes(vs.preflight(RNG.random((200, 6)), likelihood="bernoulli"))
    assert "data-range" in codes(vs.preflight(TABLE, likelihood="bernoulli"))


def test_averaging_over_columns_is_a_beta():
    found = conventions(np.array([50.0, 1.0]), "gaussian", 784, 10)
    by_name = {c.name: c for c in found}
    assert by_name["mean squared error + KL"].variance == 392
    assert by_name["mean squared error + KL"].collapses
    assert "n = 784" in by_name["mean squared error + KL"].meaning
    assert by_name["sum of squares + KL"].used == 2


# results ------------------------------------------------------------------------------------------


def test_page_json_and_notebook(tmp_path):
    found = vs.preflight(messy(), name="<script>alert(1)</script>")
    page = found.to_html(tmp_path / "page.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    assert "https://" not in page.replace("http://www.w3.org", "")
    assert page.count("<svg") == 4
    assert found._repr_html_().startswith("<iframe srcdoc=")
    assert "<svg" not in found._repr_html_()
    data = json.loads(found.to_json(tmp_path / "page.json").read_text())
    assert data["collapse_variance"] == found.collapse_variance
    assert data["recommended"]["latent_dim"] == found.recommended.latent_dim
    assert [row["latent"] for row in found.summary()] == list(range(1, found.columns + 1))
    assert "collapse at" in repr(found)


@pytest.mark.parametrize("x", [TABLE, (TABLE > 0).astype(float), TABLE * [1, 1, 1, 1, 1, 1000]])
def test_the_code_runs(x):
    found = vs.preflight(x)
    scope = {"x": torch.from_numpy(x).float(), "torch": torch}
    exec(found.code["PyTorch"], scope)
    x = scope["x"]
    small = torch.zeros(len(x), found.recommended.latent_dim)
    assert scope["loss"](x, torch.zeros_like(x), small, small).isfinite()
    exec(found.code["vs.fit"].replace(f"epochs={found.recommended.epochs}", "epochs=1"), scope)
    assert scope["fit"].best.latent_dim == found.recommended.latent_dim


@pytest.mark.parametrize("x", [TABLE, (TABLE > 0).astype(float)])
def test_the_pythae_code_runs(x):
    pytest.importorskip("pythae")
    scope = {"x": torch.from_numpy(x).float(), "torch": torch}
    exec(vs.preflight(x).code["pythae"], scope)
    assert scope["model"].latent_dim == vs.preflight(x).recommended.latent_dim


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (TABLE[:5], {}, "x needs at least 10 samples, got 5"),
        (TABLE[:, 0], {}, "row per sample"),
        (TABLE, {"latent_dim": 0}, "latent_dim must be at least 1, got 0"),
        (TABLE, {"likelihood": "poisson"}, "likelihood must be one of gaussian, bernoulli, got 'poisson'"),
        (np.full((20, 2), np.nan), {}, "x has no column with at least half of its values"),
        (pd.DataFrame({"a": ["x"] * 20}), {}, "x has no numeric columns"),
        ("nowhere.csv", {}, "nowhere.csv does not exist"),
        (np.ones((20, 2)), {"confirm": True}, "confirm=True needs data that vary"),
    ],
)
def test_mistakes_are_one_line(x, options, message):
    with pytest.raises(vs.InputError, match=message) as caught:
        vs.preflight(x, **options)
    assert "\n" not in str(caught.value)


def test_confirm_trains_a_grid(monkeypatch):
    from vaescope.products.preflight import recommend

    monkeypatch.setattr(recommend, "STEPS", 40)
    monkeypatch.setattr(recommend, "VARIANCES", 3)
    found = vs.preflight(TABLE, latent_dim=4, confirm=True)
    assert {c.latents for c in found.confirmation.cells} == {2, 4}
    assert {c.beta for c in found.confirmation.cells} == {1.0, 4.0}
    assert "confirmed" in codes(found)
    assert found._repr_html_().count("&lt;svg") == 5


def test_the_unit_of_the_data_changes_nothing(monkeypatch):
    """Networks that are trained on small numbers would look collapsed."""
    from vaescope.products.preflight import recommend

    monkeypatch.setattr(recommend, "STEPS", 100)
    monkeypatch.setattr(recommend, "VARIANCES", 3)
    plain, small = (
        recommend.confirm(x, "gaussian", np.linalg.eigvalsh(np.cov(x.T, bias=True)), 3) for x in (TABLE, TABLE / 128)
    )
    assert [(c.latents, c.predicted, c.used) for c in small.cells] == [
        (c.latents, c.predicted, c.used) for c in plain.cells
    ]
    assert [c.variance for c in small.cells] == pytest.approx([c.variance / 128**2 for c in plain.cells])
    assert any(c.used for c in plain.cells)


@pytest.mark.parametrize("least", [0.0, 0.05, 0.5])
def test_latents_count_from_a_least_kl(least):
    found = vs.preflight(TABLE)
    for variance in np.geomspace(found.collapse_variance / 100, found.collapse_variance, 7):
        carried = linear.latent_kl(found.spectrum.eigenvalues, variance)
        limit = len(carried) if found.dimension is None or found.dimension.limit is None else found.dimension.limit
        assert found.active(1 / variance, least_kl=least) == min(limit, int((carried > least).sum()))


@pytest.mark.parametrize("limit", [None, 1, 2, 9])
def test_curved_data_use_latents_that_training_finds_and_one_below_the_collapse_line(limit):
    eigenvalues = np.array([1.0, 0.5, 0.1])
    for variance in np.geomspace(0.05, 2, 41):
        count = expected_count(eigenvalues, variance, limit=limit)
        assert (count > 0) == (variance < 1)
        least = 0.0 if limit is None else THRESHOLDS.found_kl
        found = int((linear.latent_kl(eigenvalues, variance) > least).sum())
        assert count == min(max(found, int(variance < 1)), 3 if limit is None else limit)


# the start of vs.fit ------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "latents"), [(1.0, 2), (0.1, 4)])
@pytest.mark.parametrize("precision", ["optimal", "learned"])
def test_isotropic_data_do_not_collapse(scale, latents, precision):
    x = scale * torch.randn(800, 4, generator=torch.Generator().manual_seed(0))
    member = vs.fit(x, latent_dim=latents, precision=precision, epochs=40, learning_rate=3e-3, hidden=[16]).best
    assert len(vs.regime.of_model(member, x, decoder=False).used) == latents


def test_the_command_line_chooses_an_array_of_a_file(tmp_path, capsys):
    np.savez(tmp_path / "two.npz", a=TABLE, b=TABLE[:, :2])
    with pytest.raises(vs.InputError, match="--array NAME on the command line"):
        dispatch(["preflight", str(tmp_path / "two.npz")])
    assert dispatch(["preflight", str(tmp_path / "two.npz"), "--array", "a"]) == 0
    assert "400 samples, 6 columns" in capsys.readouterr().out


@pytest.mark.parametrize("likelihood", [None, "gaussian", "bernoulli"])
@pytest.mark.parametrize("value", [0.0, 0.1, 0.5, 1.0, -3.3, 255.0, 1e-300, [0.1, 7.0, -3.3]])
@pytest.mark.parametrize("columns", [3, 3000])
def test_constant_data_have_no_variance(value, columns, likelihood):
    found = vs.preflight(np.tile(np.resize(value, columns), (60, 1)), likelihood=likelihood)
    assert found.collapse_variance == 0
    assert "constant" in [finding.code for finding in found.findings]
    assert found.recommended.precision in (None, 1.0)
    assert "All samples are the same" in found.page()


@pytest.mark.parametrize("columns", [4, 2100])
@pytest.mark.parametrize(
    ("exponent", "message"),
    [
        (-310, "a column of x must have a standard deviation of at least 1e-30, got columns that span at most "),
        (-100, "multiply x by a constant"),
        (40, "x must be between ±1e\\+30, got ±"),
        (150, "divide it by a constant"),
        (307, "divide it by a constant"),
    ],
)
def test_values_whose_powers_are_out_of_range_are_refused(exponent, message, columns):
    x = np.random.default_rng(0).normal(size=(60, columns)).clip(-3, 3)
    with pytest.raises(InputError, match=message):
        vs.preflight(x * 10.0**exponent if exponent > -300 else x * 1e-200 * 10.0 ** (exponent + 200))


@pytest.mark.parametrize("factor", [1e-20, 1e20])
def test_answers_scale_with_the_data(factor):
    x = np.random.default_rng(0).normal(size=(200, 4)) * [3, 2, 0.5, 0.5]
    plain, scaled = vs.preflight(x), vs.preflight(x * factor)
    assert scaled.collapse_variance == pytest.approx(plain.collapse_variance * factor**2)
    assert scaled.recommended.latent_dim == plain.recommended.latent_dim
    assert scaled.explained(precision=factor**-2) == pytest.approx(plain.explained())
