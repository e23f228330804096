"""What people keep samples in, images in any layout, labels, tokens and conditional models."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import vaescope as vs
from tests.diagnose.models import W, X, linear
from vaescope import cli
from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.training import NoProgress, TrainSettings

QUICK = {"progress": None, "budget": 1e-3}


class Cells:
    """What `diagnose` uses of AnnData."""

    def __init__(self, x):
        self.X, self.obs, self.var = x, None, None


class Dictionaries(torch.utils.data.Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return {"image": X[index], "label": 3}


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield X[0], 0


CONTAINERS = {
    "data frame": lambda: pd.DataFrame(X.numpy(), columns=list("abcde")),
    "data frame of nullable numbers": lambda: pd.DataFrame(X.numpy(), columns=list("abcde")).convert_dtypes(),
    "sparse matrix": lambda: sparse.csr_matrix(X.numpy()),
    "sparse tensor": lambda: X.to_sparse(),
    "AnnData": lambda: Cells(sparse.csc_matrix(X.numpy())),
    "data set": lambda: TensorDataset(X, torch.zeros(len(X))),
    "data set of dictionaries": Dictionaries,
    "loader": lambda: DataLoader(TensorDataset(X, torch.zeros(len(X))), batch_size=64),
    "loader of dictionaries": lambda: DataLoader(Dictionaries(), batch_size=64),
    "list of tensors": lambda: list(X),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_samples_in_anything_that_holds_them(kind):
    found = vs.diagnose(linear(), CONTAINERS[kind](), **QUICK)
    assert found.samples == len(X)
    np.testing.assert_allclose(
        [row["KL"] for row in found.summary()],
        [row["KL"] for row in vs.diagnose(linear(), X, **QUICK).summary()],
        rtol=1e-5,
    )


def test_an_endless_data_set_is_read_in_part(monkeypatch):
    monkeypatch.setattr("vaescope.core.containers.SAMPLES", 50)
    assert validation.rows(Endless(), "x").shape == (50, 5)
    assert validation.rows(DataLoader(Endless(), batch_size=20), "x").shape == (50, 5)
    assert validation.rows(TensorDataset(X), "x").shape == (50, 5)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            pd.DataFrame({"a": [1.0, 2.0], "species": ["cat", "dog"]}),
            r"columns that are not numbers: species; drop them, as in x.drop\(columns=\['species'\]\)",
        ),
        (pd.DataFrame({"a": [1, None]}, dtype="Int64"), "NaN or infinity at sample 1"),
        (sparse.csr_matrix((10**6, 10**4)), r"is sparse and would need 75 GB .* some of its rows, such as x\[:10000\]"),
        ([{"a": X[0], "b": X[0]}], "must be an array of numbers"),
        (
            DataLoader([{"a": X[0], "b": X[0]}], batch_size=1),
            r"dictionaries with a, b; write \[item\[KEY\] for item in data\]",
        ),
        (DataLoader(["text", "text"], batch_size=None), "must be tensors, or tuples that start with one, got str"),
    ],
)  # fmt: skip
def test_containers_that_cannot_be_read_are_explained(x, message):
    with pytest.raises(InputError, match=message):
        vs.diagnose(linear(encode=lambda x: (x[:, :1], x[:, :1]), latent_dim=1), x, **QUICK)


# files ----------------------------------------------------------------------------------------


def test_csv_files(tmp_path):
    table = pd.DataFrame(X.numpy(), columns=list("abcde")).assign(species=np.where(X[:, 0] > 0, "cat", "dog"))
    table.to_csv(tmp_path / "x.csv", index=False)
    np.savetxt(tmp_path / "bare.csv", X.numpy(), delimiter=",")
    named = vs.diagnose(linear(), tmp_path / "x.csv", **QUICK)
    bare = vs.diagnose(linear(), str(tmp_path / "bare.csv"), **QUICK)
    assert named.samples == bare.samples == 400
    assert bare.summary()[0]["KL"] == pytest.approx(vs.diagnose(linear(), X, **QUICK).summary()[0]["KL"], rel=1e-4)
    loaded = vs.data.files.load(tmp_path / "x.csv", factors="species")
    assert loaded.columns == 5
    assert set(loaded.factors[:, 0].tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,place\nann,rome\n", "no numeric columns"),
        ("a,b\n1,2\n3\n", "cannot be read as a table"),
        ("", "is empty"),
    ],
)
def test_csv_files_that_cannot_be_read(tmp_path, text, message):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        vs.diagnose(linear(), tmp_path / "x.csv", **QUICK)


@pytest.mark.parametrize("labels", [np.arange(400) % 3, np.where(X[:, 0] > 0, "cat", "dog"), X[:, :1].numpy()])
def test_labels_of_any_kind(labels):
    assert vs.diagnose(linear(), X, factors=labels, **QUICK).evidence.evaluation is not None
    assert vs.diagnose(linear(), X, factors=pd.Series(list(labels[:, 0] if labels.ndim > 1 else labels)), **QUICK)


def test_one_dimensional_labels_in_a_file(tmp_path):
    np.savez(tmp_path / "x.npz", x=X.numpy(), labels=np.arange(400) % 3)
    assert vs.data.files.load(tmp_path / "x.npz").factors.shape == (400, 1)


# images ---------------------------------------------------------------------------------------

IMAGES = torch.rand(60, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def of_images(flat: bool):
    mix = torch.randn(192, 2, generator=torch.Generator().manual_seed(1)) / 14

    def encode(x):
        if (x.ndim == 2) != flat or (not flat and x.shape[1:] != (3, 8, 8)):
            raise RuntimeError("wrong layout")
        return x.flatten(1) @ mix.to(x), torch.full((len(x), 2), 0.5)

    return vs.adapters.from_callables(encode=encode, decode=lambda z: z @ mix.T.to(z), latent_dim=2)


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_images_in_any_layout_stay_images(flat, last, tmp_path):
    x = IMAGES.movedim(1, -1) if last else IMAGES
    found = vs.diagnose(of_images(flat), x, **QUICK)
    assert found.sample.model.image_shape == (3, 8, 8)
    torch.testing.assert_close(found.sample.observations[0], IMAGES[int(found.sample.rows[0])].flatten().double())
    assert found.to_html(tmp_path / "page.html").read_text().count("<image") >= 14
    session = vs.explorer.Session.of(of_images(flat), x.numpy())
    assert session.image_shape == (3, 8, 8)


def test_images_of_a_run_with_mlps_are_shown_as_images_on_the_command_line(tmp_path):
    x = IMAGES[:, :, :6, :6].numpy()  # sides that convolutional networks do not take
    np.save(tmp_path / "x.npy", x)
    vs.fit(
        x,
        latent_dim=2,
        settings=TrainSettings(epochs=2, compile="never"),
        progress=NoProgress(),
        out=tmp_path / "run",
    )
    page = tmp_path / "page.html"
    arguments = ["--data", str(tmp_path / "x.npy"), "--html", str(page), "--budget", "0.01"]
    assert cli.dispatch(["diagnose", str(tmp_path / "run"), *arguments]) == 0
    assert page.read_text().count("<image") >= 14


def test_the_error_is_that_of_the_layout_that_was_given():
    with pytest.raises(InputError, match=r"encode failed on \(9, 7\)"):
        vs.diagnose(linear(), torch.zeros(9, 7), **QUICK)


# tokens and conditional models ----------------------------------------------------------------


class Words(nn.Module):
    """A bag of tokens with a decoder of probabilities of words."""

    def __init__(self, words=11):
        super().__init__()
        self.embedding, self.output = nn.EmbeddingBag(words, 4), nn.Linear(2, words)

    def encode(self, x):
        mean, log_variance = self.embedding(x).chunk(2, dim=1)
        return mean, log_variance.exp()

    def decode(self, z):
        return self.output(z).softmax(1)

    def log_likelihood(self, x, z):
        return self.output(z).log_softmax(1).gather(1, x).sum(1)


def test_integer_tokens():
    torch.manual_seed(0)
    words = Words()
    tokens = torch.randint(0, 11, (200, 6))
    model = vs.adapters.from_callables(
        encode=words.encode, decode=words.decode, log_likelihood=words.log_likelihood, latent_dim=2
    )
    found = vs.diagnose(model, tokens, progress=None)
    assert len(found.summary()) == 2
    assert found.evidence.gap is not None or "gap" in found.skipped
    sample = found.sample
    expected = words.log_likelihood(sample.x.long(), sample.mean).detach()
    from vaescope.analysis.models import sample_log_likelihood

    torch.testing.assert_close(sample_log_likelihood(sample)(sample.x, sample.mean), expected)


def conditional(**change):
    """x = W z + shift of the class + noise: the optimal model subtracts the shift of the class."""
    shifts = 5 * torch.randn(3, 5, generator=torch.Generator().manual_seed(7))
    variance = 1 / (1 + 100 * W.square().sum(0))
    known = {
        "encode": lambda x, y: (100 * ((x - shifts[y].to(x)) @ W.to(x)) * variance, variance.expand(len(x), 2)),
        "decode": lambda z, y: z @ W.T.to(z) + shifts[y].to(z),
        "latent_dim": 2,
        "precision": 100.0,
    }
    y = torch.arange(400) % 3
    return vs.adapters.from_callables(**known | change), X + shifts[y], y


def test_conditional_models_are_as_their_unconditional_equivalents():
    model, x, y = conditional()
    found, plain = vs.diagnose(model, x, auxiliary=y, progress=None), vs.diagnose(linear(), X, progress=None)
    assert [f.code for f in found.findings] == [f.code for f in plain.findings] == []
    np.testing.assert_allclose(
        [row["KL"] for row in found.summary()], [row["KL"] for row in plain.summary()], rtol=1e-4
    )
    assert found.evidence.geometry.contrast == pytest.approx(plain.evidence.geometry.contrast, abs=1e-4)
    assert found.evidence.noise.beta == pytest.approx(1, abs=0.05)
    assert found.summary()[0]["column norm"] == pytest.approx(plain.summary()[0]["column norm"], rel=1e-4)
    log_p = [d.evidence.gap.mean("log_marginal")[0] for d in (found, plain)]
    assert log_p[0] == pytest.approx(log_p[1], abs=0.1)
    assert found.evidence.gap.mean("amortization")[0] == pytest.approx(0, abs=0.05)


def test_the_wrong_condition_is_found():
    model, x, y = conditional()
    assert vs.diagnose(model, x, auxiliary=(y + 1) % 3, progress=None).findings[0].code == "reconstruction"


def test_a_conditional_model_needs_its_labels(tmp_path):
    model, x, y = conditional()
    with pytest.raises(InputError, match="this model is conditional: pass auxiliary="):
        vs.diagnose(model, x, progress=None)
    with pytest.raises(InputError, match="x has 400, auxiliary has 3"):
        vs.diagnose(model, x, auxiliary=y[:3], progress=None)
    found = vs.diagnose(model, x, auxiliary=y, train=(x[:100], y[:100]), **QUICK)
    assert found.evidence.generalisation is not None
    assert found.to_html(tmp_path / "page.html").exists()


def test_a_decoder_alone_may_be_conditional():
    model, x, y = conditional(encode=lambda x: (100 * (x @ W.to(x)) / 401, torch.full((len(x), 2), 0.0025)))
    assert len(vs.diagnose(model, x, auxiliary=y, **QUICK).summary()) == 2


# the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_a_device_that_is_not_there(command, tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    (tmp_path / "sweep.yaml").write_text(f"data: {tmp_path}/x.npy\nlatent_dim: 2\nout: {tmp_path}/out\ngrid: {{}}\n")
    what = [str(tmp_path / ("x.npy" if command == "train" else "sweep.yaml"))]
    more = ["--out", str(tmp_path / "run"), "--latent-dim", "2"] if command == "train" else []
    with pytest.raises(InputError, match="device 'cuda' is not available here; use cpu"):
        cli.dispatch([command, *what, *more, "--device", "cuda"])


def test_print_shows_evidence_and_what_was_left_out():
    found = vs.diagnose(linear(precision=1.0), X, **QUICK)
    text = repr(found)
    assert found.findings[0].evidence in text
    assert found.findings[0].advice in text
    assert "left out: gap" in text
    assert {"gap", "identifiability"} <= found.skipped.keys()
    table = repr(found.summary())
    assert table.splitlines()[0].split()[:3] == ["latent", "kind", "KL"]
    assert len(table.splitlines()) == 4  # names, two latents, and what was judged
