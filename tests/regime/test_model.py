"""The regime of a model: any `LatentModel`, any kind of samples, with or without its decoder."""

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.regime import advise, of_model, planted, prune
from vaescope.training import NoProgress, TrainSettings

MODEL = planted.GatedModel(share=0.5)
X = MODEL.observe(3000, seed=0)


def test_a_model_is_judged_with_its_decoder():
    regime = of_model(MODEL, X)
    assert regime.kind == ["active", "mixed", "passive"]
    assert regime.samples == 3000
    assert regime.column_norm == pytest.approx([5, 5 * 0.5**0.5, 0], rel=0.1)
    # of a variance of 25 + 12.5, a drawn second latent spoils its own 12.5 twice: once lost, once wrong
    assert regime.effect[0] > 1.3
    assert regime.effect[1] == pytest.approx(2 / 3, abs=0.08)
    assert regime.effect[2] == 0
    assert "column norm" in regime.table()[0]


def test_the_effect_shows_a_decoder_that_depends_on_a_passive_latent():
    class Listening(vs.LatentModel):
        spec = vs.ModelSpec(latent_dim=2, precision=100.0)

        def encode(self, x):
            return torch.stack([x[:, 0] / 10, 0 * x[:, 0]], 1), torch.tensor([0.001, 1.0]).expand(len(x), 2)

        def decode(self, z):
            return 10 * z

    x = torch.stack([10 * torch.randn(500), torch.zeros(500)], dim=1)
    regime = of_model(Listening(), x)
    assert regime.kind == ["active", "passive"]
    assert regime.effect[1] > 0.5


class Network(torch.nn.Module, vs.LatentModel):
    """A user's module: float32 weights that require gradients."""

    def __init__(self):
        super().__init__()
        self.spec = vs.ModelSpec(latent_dim=3, precision=10.0)
        self.into, self.back = torch.nn.Linear(5, 6), torch.nn.Linear(3, 5)

    def encode(self, x):
        mean, log_variance = self.into(x.flatten(1)).chunk(2, 1)
        return mean, log_variance.exp()

    def decode(self, z):
        return self.back(z)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(50, 5),
        np.random.default_rng(0).normal(size=(50, 5)),
        torch.randint(5, (50, 5)),
        np.ones((50, 5), np.uint8),
        np.random.default_rng(0).normal(size=(50, 5)).tolist(),
    ],
    ids=["float32", "float64 array", "integers", "constant bytes", "list"],
)
def test_any_module_and_any_numbers_are_accepted(x):
    model = Network()
    regime = of_model(model, x)
    assert regime.latent_dim == 3
    assert advise(model, x, samples=20).elbo.shape == (4,)
    kept = prune(model, x, keep=[0, 1], tolerance=float("inf"))
    assert kept.decode(torch.zeros(1, 2)).shape == (1, 5)
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8:
        assert np.isfinite(regime.effect).all()


def test_images_are_converted_as_in_fit():
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    rows = torch.from_numpy(np.moveaxis(images, -1, 1).reshape(60, -1).astype(np.float32) / 255)
    settings = TrainSettings(epochs=1, compile="never")
    member = vs.fit(images, latent_dim=3, settings=settings, progress=NoProgress()).best
    np.testing.assert_allclose(of_model(member, images).kl, of_model(member, rows).kl, rtol=1e-5)
    np.testing.assert_allclose(advise(member, images).error, advise(member, rows).error, rtol=1e-5)


def test_more_samples_than_a_chunk():
    settings = TrainSettings(epochs=1, compile="never")
    member = vs.fit(torch.randn(100, 2), latent_dim=16, settings=settings, progress=NoProgress()).best
    assert of_model(member, torch.randn(140_000, 2), decoder=False).samples == 140_000


@pytest.mark.parametrize("decoder", [True, False])
def test_verdicts_do_not_depend_on_chunks(monkeypatch, decoder):
    once = of_model(MODEL, X.numpy(), decoder=decoder)
    monkeypatch.setattr("vaescope.analysis.encoding.NUMBERS_AT_ONCE", 500)
    again = of_model(MODEL, X, decoder=decoder)
    np.testing.assert_allclose(again.kl, once.kl, rtol=1e-10)
    assert again.kind == once.kind
    assert again.samples == once.samples == 3000


def test_a_prior_that_is_not_gaussian_is_refused():
    model = vs.adapters.from_callables(encode=lambda x: (x, 1 + 0 * x), latent_dim=3, prior=vs.Uniform())
    with pytest.raises(InputError, match="needs a Gaussian prior, got Uniform"):
        of_model(model, torch.randn(10, 3), decoder=False)


@pytest.mark.parametrize(
    ("x", "auxiliary", "message"),
    [
        (3.0, None, r"x must have a row per sample, shape \(N, n\), got shape \(\)"),
        (torch.empty(0, 2), None, "x must have at least one row and one column"),
        (X, torch.zeros(2), "x has 3000, auxiliary has 2"),
        (X, torch.zeros(3000), "this model takes no auxiliary input"),
        (X, 3, "auxiliary must have a label or a row of numbers per sample"),
        (X, ["a"] * 3000, "auxiliary must be an array of numbers, got text"),
    ],
)
def test_bad_samples_are_explained(x, auxiliary, message):
    with pytest.raises(InputError, match=message):
        of_model(MODEL, x, auxiliary=auxiliary)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("analyse", [of_model, prune, advise])
def test_what_is_not_a_model_is_explained(analyse):
    class Incomplete:
        latent_dim = 3
        encode, decode = staticmethod(MODEL.encode), staticmethod(MODEL.decode)

    for model in (Incomplete(), torch.nn.Linear(2, 2), None):
        with pytest.raises(InputError, match=r"vs\.adapters\.from_callables, or inherit from vs\.LatentModel"):
            analyse(model, X)
