"""Adapters: functions, modules, posteriors alone and run folders, with one-line errors."""

import numpy as np
import pytest
import torch
from torch import nn

import vaescope as vs
from vaescope.core.errors import InputError, RunError
from vaescope.protocol import LatentModel
from vaescope.runs.store import FORMAT_VERSION
from vaescope.training import NoProgress, TrainSettings

X = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))


class Encoder(nn.Module):
    def __init__(self, joined=False):
        super().__init__()
        self.layer, self.dropout, self.joined = nn.Linear(4, 4), nn.Dropout(0.5), joined

    def forward(self, x):
        h = self.dropout(self.layer(x))
        return h if self.joined else tuple(h.split(2, dim=-1))


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    ("scale", "variance"),
    [
        ("log_variance", torch.exp),
        ("variance", lambda s: s),
        ("deviation", torch.square),
        ("log_deviation", lambda s: torch.exp(2 * s)),
    ],
)
def test_modules_with_any_scale_are_called_in_evaluation_mode(joined, scale, variance):
    encoder, decoder = Encoder(joined), nn.Linear(2, 4)
    model = vs.adapters.from_modules(encoder, decoder, latent_dim=2, scale=scale, precision=3.0)
    assert isinstance(model, LatentModel)
    mean, spread = model.encode(X)
    torch.testing.assert_close(mean, encoder.layer(X)[:, :2])
    torch.testing.assert_close(spread, variance(encoder.layer(X)[:, 2:]))
    torch.testing.assert_close(model.decode(mean), decoder(mean))
    assert (model.likelihood, model.precision, model.has_decoder) == ("gaussian", 3.0, True)


def test_a_module_decodes_in_the_dtype_of_its_input():
    decoder = nn.Linear(2, 4)
    model = vs.adapters.from_modules(Encoder(), decoder, latent_dim=2)
    z = torch.randn(3, 2, dtype=torch.float64)
    assert model.decode(z).dtype == torch.float64
    torch.testing.assert_close(model.decode(z).float(), decoder(z.float()))
    assert decoder.weight.dtype == torch.float32  # unchanged


def test_images_and_spatial_latents_are_flattened():
    model = vs.adapters.from_callables(
        encode=lambda x: (x.reshape(-1, 1, 2, 2), 1 + 0 * x.reshape(-1, 1, 2, 2)),
        decode=lambda z: z.reshape(-1, 2, 2, 1),
        latent_dim=4,
    )
    assert model.encode(X)[0].shape == (50, 4)
    assert model.decode(X).shape == (50, 4)
    assert model.likelihood is None


def test_from_run_returns_the_best_member(tmp_path):
    fitted = vs.fit(
        X.repeat(4, 1),
        latent_dim=2,
        precision=1.0,
        seeds=range(3),
        settings=TrainSettings(epochs=2, compile="never"),
        progress=NoProgress(),
        out=tmp_path / "run",
    )
    before = (tmp_path / "run" / "config.json").stat().st_mtime_ns
    member = vs.adapters.from_run(tmp_path / "run")
    assert member.best_elbo == pytest.approx(fitted.best.best_elbo)
    torch.testing.assert_close(member.encode(X)[0], fitted.best.encode(X)[0])
    assert (tmp_path / "run" / "config.json").stat().st_mtime_ns == before  # reading changes nothing


def good(x):
    return x[:, :2], torch.ones(len(x), 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vs.adapters.from_callables(encode=good, latent_dim=0), "latent_dim must be at least 1, got 0"),
        (lambda: vs.adapters.from_callables(encode=good, latent_dim=3).encode(X), r"of shape \(50, 3\), got \(50, 2\)"),
        (lambda: vs.adapters.from_callables(encode=lambda x: x, latent_dim=2).encode(X), "a mean and a variance"),
        (lambda: vs.adapters.from_callables(encode=lambda x: (1, 2), latent_dim=2).encode(X), "mean must be a tensor"),
        (lambda: vs.adapters.from_callables(encode=good, latent_dim=2).decode(X[:, :2]), "this model has no decoder"),
        (lambda: vs.adapters.from_callables(encode=good, latent_dim=2, likelihood="poisson"), "gaussian, bernoulli"),
        (lambda: vs.adapters.from_callables(encode=good, latent_dim=2, precision=-1.0), "precision must be > 0"),
        (lambda: vs.adapters.from_callables(encode=good, latent_dim=2, beta=0.0), "beta must be > 0, got 0"),
        (
            lambda: vs.adapters.from_callables(encode=good, latent_dim=2, prcision=1.0),
            "from_callables has no keyword 'prc",
        ),
        (lambda: vs.adapters.from_callables(encode=good, latent_dim=2).encode(X, X), "takes no auxiliary input"),
        (lambda: vs.adapters.from_modules(Encoder(), latent_dim=2, scale="sd"), "scale must be one of variance"),
        (lambda: vs.adapters.from_modules(Encoder(joined=True), latent_dim=3).encode(X), "needs 6 columns"),
        (lambda: vs.adapters.from_arrays(np.ones((3, 2)), np.ones((3, 1))), r"must have the same shape \(N, d\)"),
        (
            lambda: vs.adapters.from_arrays(np.ones((3, 3)), np.ones((3, 3))).encode(X),
            "only rows of their own samples",
        ),
        (lambda: vs.adapters.from_arrays("a", "b"), "mean must be an array of numbers, got text"),
        (lambda: vs.adapters.from_arrays([[np.nan]], [[1.0]]), "mean must be finite"),
        (lambda: vs.adapters.from_callables(encode=good, latent_dim="3"), "latent_dim must be an integer, got '3'"),
        (
            lambda: vs.adapters.from_callables(encode=good, latent_dim=2, precision=torch.ones(4)),
            "precision must be a number",
        ),
        (lambda: vs.adapters.from_callables(encode=good, latent_dim=2, beta="4"), "beta must be a number, got '4'"),
        (
            lambda: vs.adapters.from_callables(encode=good, latent_dim=2, image_shape=(4, 2)),
            r"image_shape must be \(channels, height, width\)",
        ),
        (
            lambda: vs.adapters.from_callables(encode=good, latent_dim=2, likelihood="bernoulli", precision=7.0),
            "a Bernoulli likelihood has no precision",
        ),
        (
            lambda: vs.adapters.from_callables(encode=lambda x: {}["w"], latent_dim=2).encode(X),
            r"encode failed on \(50, 4\): KeyError: 'w'",
        ),
        (
            lambda: vs.adapters.from_pythae(nn.Linear(1, 1)),
            "from_pythae needs a model with encoder, decoder and latent_dim",
        ),
        (lambda: vs.adapters.from_scvi(nn.Linear(1, 1)), "needs an scvi-tools model"),
        (lambda: vs.adapters.from_diffusers(nn.Linear(1, 1), image_shape=(3, 8, 8)), "needs an autoencoder"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_mistakes_are_explained(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_folders_without_a_run_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not a run folder: it has no config\.json"):
        vs.adapters.from_run(tmp_path)
    (tmp_path / "config.json").write_text(f'{{"version": {FORMAT_VERSION}, "experiment": "sprites", "settings": {{}}}}')
    with pytest.raises(RunError, match="is a run of 'sprites'; only runs of fit contain models to open"):
        vs.adapters.from_run(tmp_path)


class Noisy(nn.Module):
    """Dropout and running averages, which an analysis must not use or change."""

    def __init__(self):
        super().__init__()
        self.norm, self.dropout, self.layer, self.back = (
            nn.BatchNorm1d(4),
            nn.Dropout(0.5),
            nn.Linear(4, 4),
            nn.Linear(2, 4),
        )

    def encode(self, x):
        mean, scale = self.layer(self.dropout(self.norm(x))).split(2, dim=1)
        return mean, scale.exp()

    def decode(self, z):
        return self.back(z)


@pytest.mark.parametrize("kind", ["methods", "closures", "globals"])
def test_networks_are_called_in_evaluation_mode_and_restored(kind):
    network = Noisy()
    network.dropout.eval()  # a part in evaluation mode stays in it
    network.train(True)
    network.back.eval()
    averages = network.norm.running_mean.clone()
    if kind == "methods":
        functions = {"encode": network.encode, "decode": network.decode}
    elif kind == "closures":
        functions = {"encode": lambda x: network.encode(x), "decode": lambda z: network.decode(z)}
    else:
        names = {"network": network}
        exec("def encode(x): return network.encode(x)\ndef decode(z): return network.decode(z)", names)
        functions = {"encode": names["encode"], "decode": names["decode"]}
    model = vs.adapters.from_callables(**functions, latent_dim=2)
    first, second = (model.encode(X)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(network.norm.running_mean, averages)
    assert network.training
    assert network.norm.training
    assert not network.back.training


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.float32])
def test_samples_are_converted_to_the_dtype_of_the_networks(dtype):
    network = Noisy()
    for model in (
        vs.adapters.from_callables(encode=network.encode, latent_dim=2),
        vs.adapters.from_callables(encode=network.encode, latent_dim=2, networks=[]),  # unknown networks
    ):
        assert model.encode(X.to(dtype))[0].dtype == torch.float32


def test_a_copy_in_another_dtype_follows_the_weights():
    decoder = nn.Linear(2, 4)
    model = vs.adapters.from_modules(Encoder(), decoder, latent_dim=2)
    z = torch.ones(1, 2, dtype=torch.float64)
    before = model.decode(z)
    with torch.no_grad():
        decoder.weight.add_(1.0)
    torch.testing.assert_close(model.decode(z), before + 2)
    decoder.weight = nn.Parameter(torch.zeros(4, 2))
    torch.testing.assert_close(model.decode(z), decoder.bias.double()[None].detach(), check_dtype=False)
