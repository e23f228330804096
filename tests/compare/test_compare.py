"""`vs.compare` on linear models with known answers, and its page."""

import json

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope import theory
from vaescope.cli.main import dispatch

G = torch.Generator().manual_seed(4)
W = torch.linalg.qr(torch.randn(5, 3, generator=G, dtype=torch.float64))[0] * torch.tensor([3.0, 2.0, 1.0]).double()
X = torch.randn(300, 3, generator=G, dtype=torch.float64) @ W.T + 0.2 * torch.randn(300, 5, generator=G).double()


def linear(precision=25.0, columns=W, name="model", width=1.0, beta=1.0):
    """A linear VAE with orthogonal columns and posterior variances of `width` times the exact ones."""
    variance = 1 / (1 + precision * columns.square().sum(0))
    return vs.adapters.from_callables(
        encode=lambda x: (precision * (x.double() @ columns) * variance, width * variance.expand(len(x), -1)),
        decode=lambda z: z @ columns.T.to(z),
        latent_dim=columns.shape[1],
        precision=precision,
        beta=beta,
        name=name,
    )


@pytest.fixture(scope="module")
def found():
    models = {"good": linear(), "<b>bad</b>": linear(5.0), "narrow": linear(width=0.5)}
    return vs.compare(models, X, factors=(X @ W).numpy(), progress=None)


def test_values_are_those_of_the_closed_form(found):
    good, bad, _ = found.models
    for model, precision in ((good, 25.0), (bad, 5.0)):
        expected = theory.linear.elbo(X, W, precision).numpy()
        np.testing.assert_allclose(model.elbo, expected, rtol=1e-9)
        exact = theory.linear.log_likelihood(X, W, precision)
        rows = list(model.log_marginal)
        np.testing.assert_allclose(list(model.log_marginal.values()), exact[rows].numpy(), atol=0.02)


def test_differences_are_paired_means(found):
    expected = theory.linear.log_likelihood(X, W, 25.0) - theory.linear.log_likelihood(X, W, 5.0)
    pair = found.pairwise
    assert pair["elbo_difference"][0, 1] == pytest.approx(float(expected.mean()), rel=1e-6)
    assert pair["elbo_stderr"][0, 1] == pytest.approx(float(expected.std() / len(X) ** 0.5), rel=1e-6)
    assert found.quantity == "log p(x)"
    assert set(pair) >= {"difference", "stderr", "p_value", "indistinguishable"}


def test_an_encoder_with_wrong_widths_loses_elbo_but_not_likelihood(found):
    lost = 0.5 * 3 * (0.5 - 1 - np.log(0.5))
    assert found.pairwise["elbo_difference"][0, 2] == pytest.approx(lost, rel=1e-6)
    assert abs(found.pairwise["log_marginal_difference"][0, 2]) < 0.01
    assert found.table[2]["amortization gap"] == pytest.approx(lost, abs=0.02)


def test_the_table_and_the_verdict(found):
    assert [row["model"] for row in found.table] == found.names
    assert found.table[0]["in use"] == "3 of 3"
    assert found.table[0]["c_IMA"] == pytest.approx(0, abs=1e-9)
    assert found.table[0]["MCC"] > 0.99
    assert "good" in found.candidates
    assert "<b>bad</b>" not in found.candidates
    assert "good" in repr(found)
    assert found.summary() == found.table
    assert repr(found.summary()).startswith("model")
    assert found.to_frame("arrow").num_rows == 3
    assert found.figures()[0].name == "differences"


def test_two_copies_are_indistinguishable():
    found = vs.compare([linear(), linear()], X, progress=None)
    assert found.names == ["model (1)", "model (2)"]
    assert found.pairwise["difference"].tolist() == [[0, 0], [0, 0]]
    assert found.pairwise["indistinguishable"].all()
    assert "indistinguishable" in found.verdict


def test_models_that_were_trained_with_another_beta_are_named():
    found = vs.compare([linear(), linear(5.0, beta=6.0, name="other")], X, progress=None)
    assert found.verdict.endswith("All models are compared with β = 1; other was trained with β = 6.")


def test_the_order_of_models_does_not_matter(found):
    order = [2, 0, 1]
    models = {"narrow": linear(width=0.5), "good": linear(), "<b>bad</b>": linear(5.0)}
    again = vs.compare(models, X, factors=(X @ W).numpy(), progress=None)
    for name, matrix in found.pairwise.items():
        np.testing.assert_allclose(again.pairwise[name], matrix[np.ix_(order, order)], atol=1e-9)
    assert again.best == found.best


def test_permuted_latents_are_matched(found):
    swapped = linear(columns=W[:, [1, 2, 0]], name="swapped")
    both = vs.compare([linear(name="first"), swapped], X, progress=None)
    matched = both.matched("first", "swapped")
    assert {m.first: m.second for m in matched.latents} == {0: 2, 1: 0, 2: 1}
    assert both.pairwise["indistinguishable"].all()
    assert both.failures.overlap[0, 1] == pytest.approx(1.0)
    with pytest.raises(vs.InputError, match="model"):
        found.matched("good", "nobody")


def test_the_page_is_one_file_with_escaped_names(found, tmp_path):
    page = found.to_html(tmp_path / "page.html").read_text()
    assert "&lt;b&gt;bad&lt;/b&gt;" in page
    assert "<b>bad</b>" not in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "")
    assert "Which latents are the same?" in page
    assert page.count("<figure") >= 2
    data = json.loads(found.to_json(tmp_path / "page.json").read_text())
    assert data["best"] == found.best
    assert "&lt;b&gt;" in found._repr_html_()


def test_models_without_a_likelihood_are_matched_but_not_ranked(tmp_path):
    codes = np.random.default_rng(0).normal(size=(100, 2))
    bare = vs.adapters.from_callables(
        encode=lambda x: (x[:, :2], 0.01 * torch.ones(len(x), 2).to(x)), latent_dim=2, name="bare"
    )
    found = vs.compare([bare, bare], np.hstack([codes, codes]), progress=None)
    assert found.quantity is None
    assert "cannot be ranked" in found.verdict
    assert np.isnan(found.pairwise["difference"]).all()
    assert "no decoder" in found.to_html(tmp_path / "page.html").read_text()


@pytest.mark.parametrize("other", ["good", "collapsed"])
def test_a_collapsed_model_is_compared(other, tmp_path):
    """Its log p(x) is exact: the decoder ignores the codes."""
    collapsed = vs.adapters.from_callables(
        encode=lambda x: (torch.zeros(len(x), 3), torch.ones(len(x), 3)),
        decode=lambda z: 0 * z @ W.T.to(z),
        latent_dim=3,
        precision=1.0,
    )
    found = vs.compare({"good": linear() if other == "good" else collapsed, "bad": collapsed}, X, progress=None)
    assert found.quantity == "log p(x)"
    expected = -0.5 * X.square().sum(1) - 2.5 * np.log(2 * np.pi)
    rows = list(found.models[1].log_marginal)
    np.testing.assert_allclose(list(found.models[1].log_marginal.values()), expected[rows].numpy(), atol=1e-6)
    assert [row["in use"] for row in found.summary()][1] == "0 of 3"
    assert ("bad" in found.candidates) == (other == "collapsed")
    assert "0 of 3" in found.to_html(tmp_path / "page.html").read_text()


def test_mistakes_are_one_line():
    with pytest.raises(vs.InputError, match="at least two models"):
        vs.compare(linear(), X)
    with pytest.raises(vs.InputError, match="factors"):
        vs.compare([linear(), linear()], X, factors=np.zeros(3))
    with pytest.raises(vs.InputError, match="budget"):
        vs.compare([linear(), linear()], X, budget=0.0)


def test_members_of_a_fit_from_the_command_line(tmp_path, capsys):
    rows = X.float()
    vs.fit(rows, latent_dim=2, hidden=(8,), epochs=2, seeds=2, out=tmp_path / "run")
    np.save(tmp_path / "x.npy", rows.numpy())
    page = tmp_path / "page.html"
    assert dispatch(["compare", str(tmp_path / "run"), "--data", str(tmp_path / "x.npy"), "--html", str(page)]) == 0
    assert "run, member 0" in page.read_text()
    assert "ELBO" in capsys.readouterr().out
    assert json.loads(page.with_suffix(".json").read_text())["table"][0]["model"].startswith("run")


def test_log_p_of_a_network_that_was_not_put_under_no_grad():
    """A plain decoder with weights that require gradients, and a column of x that is constant."""
    torch.manual_seed(0)
    decoder = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 7))
    encoder = torch.nn.Linear(7, 5)
    x = torch.cat([torch.randn(60, 6), torch.zeros(60, 1)], dim=1)
    models = [
        vs.adapters.from_callables(
            encode=lambda v: (encoder(v), torch.full((len(v), 5), 0.1)), decode=decoder, latent_dim=5, precision=p
        )
        for p in (1.0, 2.0)
    ]
    found = vs.compare(models, x)
    assert not [what for what in found.skipped if "log p(x)" in what]
    assert all(row["log p(x)"] is not None for row in found.table)


def test_images_are_passed_in_the_layout_that_each_model_takes(tmp_path):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(60, 1, 6, 6, generator=generator)

    def of_images(x):
        assert x.ndim == 4
        return x.mean((2, 3)), torch.full((len(x), 1), 0.1)

    def of_rows(x):
        assert x.ndim == 2
        return x.mean(1, keepdim=True), torch.full((len(x), 1), 0.1)

    models = {
        "images": vs.adapters.from_callables(
            encode=of_images, decode=lambda z: z[:, :, None, None].expand(-1, 1, 6, 6), latent_dim=1
        ),
        "rows": vs.adapters.from_callables(encode=of_rows, decode=lambda z: z.expand(-1, 36), latent_dim=1),
    }
    found = vs.compare(models, images, progress=None)
    assert found.matched("images", "rows").rows()[0]["correlation"] == pytest.approx(1.0)
    np.save(tmp_path / "x.npy", images.numpy())
    stored = vs.compare(models, str(tmp_path / "x.npy"), progress=None)
    assert stored.to_data() == found.to_data()
