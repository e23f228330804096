"""Every product reads samples the same way, from anything that holds them, and reads them once."""

import functools
import importlib

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import vaescope as vs

ROWS = np.random.default_rng(0).normal(size=(300, 48))
IMAGES = ROWS.reshape(300, 3, 4, 4)
LABELS = np.arange(300) % 2
WEIGHTS = torch.linalg.qr(torch.randn(48, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
SHIFTS = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)


class AnnData:
    """Just what makes an object one."""

    X, obs, var = ROWS, None, None


class Frame:
    """A data frame of a library that may not be installed here."""

    columns = tuple(f"pixel {k}" for k in range(48))

    def __len__(self):
        return 300

    def __getitem__(self, column):
        return ROWS[:, self.columns.index(column)]

    def to_numpy(self):
        return ROWS


def file(folder):
    np.save(folder / "x.npy", ROWS)
    return folder / "x.npy"


def sparse(folder):
    scipy = importlib.import_module("scipy.sparse")
    return scipy.csr_matrix(ROWS)


FORMS = {
    "tensor": lambda folder: torch.from_numpy(ROWS),
    "path": file,
    "string": lambda folder: str(file(folder)),
    "list": lambda folder: ROWS.tolist(),
    "frame": lambda folder: Frame(),
    "sparse": sparse,
    "NHWC": lambda folder: np.ascontiguousarray(IMAGES.transpose(0, 2, 3, 1)),
    "NHWC tensor": lambda folder: torch.from_numpy(IMAGES).movedim(1, -1),
    "data set": lambda folder: TensorDataset(torch.from_numpy(ROWS)),
    "loader": lambda folder: DataLoader(TensorDataset(torch.from_numpy(ROWS)), batch_size=64),
    "AnnData": lambda folder: AnnData(),
}


def encode(x, y=None):
    if x.ndim != 2:
        raise ValueError("rows are needed")
    shift = 0 if y is None else SHIFTS[y.long()]
    mean = 0.9 * (x.double() - shift) @ WEIGHTS  # float64 also where files are read as float32
    return mean, torch.full_like(mean, 0.1)


def model(takes=""):
    """A linear VAE; `both` its functions take the auxiliary input, or its `encoder` alone."""
    plain, given = (lambda z: z @ WEIGHTS.T.to(z)), (lambda z, y: (z @ WEIGHTS.T.to(z)) + SHIFTS[y.long()].to(z))
    return vs.adapters.from_callables(
        encode=(lambda x, y: encode(x, y)) if takes else (lambda x: encode(x)),
        decode=given if takes == "both" else plain,
        latent_dim=3,
        precision=9.0,
    )


def diagnose(vae, x, **more):
    found = vs.diagnose(vae, x, progress=None, **more)
    return [found.evidence.regime.kl, found.evidence.regime.effect, [finding.code for finding in found.findings]]


def compare(vae, x, **more):
    found = vs.compare([vae, model("both" if vae.conditional else "")], x, progress=None, **more)
    return [found.pairwise["difference"], *(one.elbo for one in found.models)]


def certify(vae, x, **more):
    found = vs.certify(vae, x, simulations=200, progress=None, **more)
    return [found.ranks, found.width_ratio, found.transfers]


def identifiability(vae, x, **more):
    found = vs.identifiability(vae, x, **more)
    return [found.kind, found.score]


def anomaly_scores(vae, x, **more):
    found = vs.anomaly_scores(vae, x, reference=x, draws=100, **more)
    return [found.log_marginal, found.typicality]


def watch(vae, x, **more):
    row = vs.Watch(vae, x, every=1, show=False, **more).update(0)
    return [row.bound.per_sample, row.latents.kl]


def regime(vae, x, **more):
    found = vs.regime.of_model(vae, x, **more)
    return [found.kl, found.effect, found.column_norm]


PRODUCTS = [diagnose, compare, certify, identifiability, anomaly_scores, watch, regime]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, list | str | bool | None):
            assert one == other
        else:
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-6)


@functools.cache
def expected(product):
    return product(model(), ROWS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: product.__name__)
def test_every_product_reads_every_form_of_x(product, form, tmp_path):
    assert_same(product(model(), FORMS[form](tmp_path)), expected(product))


@pytest.mark.parametrize("product", [p for p in PRODUCTS if p is not anomaly_scores], ids=lambda p: p.__name__)
def test_every_product_takes_the_auxiliary_input_in_every_form(product):
    vae = model("both")
    x = ROWS + SHIFTS[LABELS].numpy()
    first = product(vae, x, auxiliary=LABELS)
    assert_same(product(vae, x, auxiliary=torch.from_numpy(LABELS)), first)
    assert_same(product(vae, torch.from_numpy(x), auxiliary=LABELS.tolist()), first)


@pytest.mark.parametrize("several", [False, True])
def test_x_is_read_once(several, monkeypatch):
    calls = {"unwrap": 0, "check_samples": 0}

    def counted(name, function):
        def call(*arguments):
            calls[name] += 1
            return function(*arguments)

        return call

    samples, validation = (importlib.import_module(f"vaescope.{m}") for m in ("analysis.samples", "core.validation"))
    for module, name in ((samples, "unwrap"), (validation, "unwrap"), (samples, "check_samples")):
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    vs.diagnose([model(), model()] if several else model(), np.tile(ROWS, (2, 1)), progress=None)
    assert calls["check_samples"] == 1
    assert calls["unwrap"] <= 4
