"""What the regime is for: a model's table, pruning, the advisor, and data that do not fit into memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.lib.format import open_memmap

import vaescope as vs
from vaescope.errors import InputError
from vaescope.models import VAE
from vaescope.models.mlp import smooth_leaky_relu
from vaescope.protocol import LatentModel
from vaescope.regime import advise, of_model, planted, prune
from vaescope.regime.posteriors import spread_places
from vaescope.training import MemberSpec, TrainSettings, train

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


def test_the_effect_is_the_decoders():
    """A latent whose posterior is its prior, and whose decoder would listen all the same."""

    class Listening:
        latent_dim, prior, precision = 2, vs.Normal(), 100.0

        def encode(self, x):
            return torch.stack([x[:, 0] / 10, 0 * x[:, 0]], 1), torch.tensor([0.001, 1.0]).expand(len(x), 2)

        def decode(self, z):
            return 10 * z

    x = torch.stack([10 * torch.randn(500), torch.zeros(500)], dim=1)
    regime = of_model(Listening(), x)
    assert regime.kind == ["active", "passive"]
    assert regime.effect[1] > 0.5


class Network(torch.nn.Module):
    """A foreign model: float32 weights that want gradients."""

    latent_dim, prior, precision = 3, vs.Normal(), 10.0

    def __init__(self):
        super().__init__()
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
def test_any_module_and_any_numbers_will_do(x):
    model = Network()
    regime = of_model(model, x)
    assert regime.latent_dim == 3
    assert advise(model, x, samples=20).elbo.shape == (4,)
    kept = prune(model, x, keep=[0, 1], tolerance=float("inf"))
    assert kept.decode(torch.zeros(1, 2)).shape == (1, 5)
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8:
        assert np.isfinite(regime.effect).all()


def test_images_are_taken_as_fit_takes_them():
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    rows = torch.from_numpy(np.moveaxis(images, -1, 1).reshape(60, -1).astype(np.float32) / 255)
    member = vs.fit(images, latent_dim=3, settings=TrainSettings(epochs=1), monitor=vs.training.NoProgress()).best
    np.testing.assert_allclose(of_model(member, images).kl, of_model(member, rows).kl, rtol=1e-5)
    np.testing.assert_allclose(advise(member, images).error, advise(member, rows).error, rtol=1e-5)


def test_more_samples_than_one_part_of_an_over_wide_model():
    member = vs.fit(torch.randn(100, 2), latent_dim=16, settings=TrainSettings(epochs=1)).best
    assert of_model(member, torch.randn(140_000, 2), decoder=False).samples == 140_000


def test_samples_are_not_taken_at_a_period():
    places = spread_places(9991, 1000)
    assert len(set(places % 10)) == 10
    assert len(np.unique(places)) == 1000


def test_parts_of_the_data_change_nothing(monkeypatch):
    once = of_model(MODEL, X.numpy(), decoder=False)
    monkeypatch.setattr("vaescope.regime.model.NUMBERS_AT_ONCE", 500)
    again = of_model(MODEL, X, decoder=False)
    np.testing.assert_allclose(again.kl, once.kl, rtol=1e-10)
    assert again.kind == once.kind


def test_a_prior_that_is_not_gaussian_is_refused():
    model = vs.fit(torch.randn(100, 3), latent_dim=2, prior=vs.Uniform(), settings=TrainSettings(epochs=1)).best
    with pytest.raises(InputError, match="about Gaussian priors, got Uniform"):
        of_model(model, torch.randn(10, 3))


@pytest.mark.parametrize(
    ("x", "u", "message"),
    [
        (3.0, None, "x must be an array with a row per sample"),
        (torch.empty(0, 2), None, "x must hold at least one sample"),
        (X, torch.zeros(2), "u needs a row per sample, got 2 rows for 3000 samples"),
        (X, torch.zeros(3000), "this model takes no auxiliary u"),
    ],
)
def test_bad_samples_are_explained(x, u, message):
    with pytest.raises(InputError, match=message):
        of_model(MODEL, x, auxiliary=u)


# pruning --------------------------------------------------------------------------------------


def test_pruning_drops_passive_latents_and_keeps_what_is_decoded():
    pruned = prune(MODEL, X)
    assert isinstance(pruned, LatentModel)
    assert pruned.kept == [0, 1]
    assert pruned.latent_dim == 2
    assert pruned.change == 0
    mean, variance = pruned.encode(X)
    assert mean.shape == variance.shape == (3000, 2)
    torch.testing.assert_close(pruned.decode(mean), MODEL.decode(MODEL.encode(X)[0]))
    assert of_model(pruned, X).kind == ["active", "mixed"]


def test_a_pruned_model_has_derivatives():
    pruned = prune(MODEL, X)
    J = vs.theory.jacobian(pruned.decode, torch.tensor([[1.0, 0.3]], dtype=torch.float64))
    torch.testing.assert_close(J[0], 5 * torch.eye(2, dtype=torch.float64))


def test_dropping_a_used_latent_is_refused_unless_tolerated():
    with pytest.raises(InputError, match=r"moves the decoder's outputs by 0\.3.* of their variance, more than"):
        prune(MODEL, X, keep=[0])
    assert prune(MODEL, X, keep=[0], tolerance=0.5).change == pytest.approx(1 / 3, abs=0.05)


def test_a_collapsed_model_is_not_pruned_to_nothing():
    class Collapsed(planted.GatedModel):
        def encode(self, x):
            return torch.zeros(len(x), 3), torch.ones(len(x), 3)

    with pytest.raises(InputError, match="every latent is passive: the model has collapsed"):
        prune(Collapsed(), X)
    assert of_model(Collapsed(), X, decoder=False).collapse.kind == "full"
    assert "uses none of its 3 latents: it has collapsed" in advise(Collapsed(), X).words


@pytest.mark.parametrize("keep", [[0, 0], [-1], [3], [], [True, False, True]])
def test_latents_that_do_not_exist_cannot_be_kept(keep):
    with pytest.raises(InputError, match="keep must name different latents from 0 to 2"):
        prune(MODEL, X, keep=keep)


def test_a_pruned_decoder_takes_its_own_width():
    with pytest.raises(InputError, match=r"z must have a column per kept latent, \(N, 2\), got \(4, 3\)"):
        prune(MODEL, X).decode(torch.zeros(4, 3, dtype=torch.float64))


# the advisor ----------------------------------------------------------------------------------

OBSERVED, LATENTS, MEMBERS, SAMPLES = 20, 16, 40, 2000


def embedded(dim: int, seed: int) -> torch.Tensor:
    """A curved manifold of `dim` dimensions in 20, with a tenth of noise."""
    g = torch.Generator().manual_seed(seed)

    def orthogonal(rows: int) -> torch.Tensor:
        return torch.linalg.qr(torch.randn(OBSERVED, OBSERVED, generator=g))[0][:rows]

    z = torch.randn(SAMPLES + 1000, dim, generator=g)
    x = smooth_leaky_relu(2 * z @ orthogonal(dim) * (OBSERVED / dim) ** 0.5) @ orthogonal(OBSERVED)
    x = x / x.std(0).mean()
    return x + 0.1 * torch.randn(x.shape, generator=g)


def test_the_advisor_finds_the_dimension_of_the_data():
    """2 to 8 dimensions in 20 observed ones, 16 latents, 40 members of one stack: right for at least 95 %."""
    dims = [2 + i % 7 for i in range(MEMBERS)]
    x = torch.stack([embedded(dim, seed) for seed, dim in enumerate(dims)])
    settings = TrainSettings(epochs=130, patience=130, learning_rate=5e-3, batch_size=128)
    specs = [MemberSpec(seed=i, data=i) for i in range(MEMBERS)]
    model = VAE.mlp(OBSERVED, LATENTS, hidden=(64, 64), noise="optimal")
    members = train(model, x[:, :SAMPLES], x[:, SAMPLES:], specs, settings)
    advice = [advise(member, x[i, SAMPLES:]) for i, member in enumerate(members)]
    right = [a.latents == dim for a, dim in zip(advice, dims, strict=True)]
    by_curve = [a.enough == dim for a, dim in zip(advice, dims, strict=True)]
    assert sum(right) >= 0.95 * MEMBERS
    assert sum(by_curve) >= 0.95 * MEMBERS


def test_the_truncation_curve_of_a_known_model():
    advice = advise(MODEL, X, samples=3000)
    assert advice.order == [0, 1, 2]
    assert advice.latents == advice.enough == 2
    # squared error: all of 37.5 + noise, then without the gated part, then noise alone
    assert advice.error == pytest.approx([37.5, 12.5, 0.02, 0.02], rel=0.12, abs=0.03)
    assert advice.elbo_gain[2] == 0
    assert advice.words == "The model uses 2 of its 3 latents; 2 would do."
    assert [row["latents"] for row in advice.table()] == [0, 1, 2, 3]


def test_a_pruned_bernoulli_model_keeps_its_curve():
    x = (torch.rand(200, 6) > 0.5).float()
    options = {"likelihood": "bernoulli", "settings": TrainSettings(epochs=1), "monitor": vs.training.NoProgress()}
    member = vs.fit(x, latent_dim=3, **options).best
    pruned = prune(member, x, keep=[0, 1], tolerance=100.0)
    assert advise(pruned, x).elbo is not None
    for given, message in (
        ({"likelihood": "bernouli"}, "likelihood must be one of gaussian, bernoulli"),
        ({"likelihood": "gaussian"}, "needs the model's precision"),
        ({"samples": 1}, "at least 2 samples"),
    ):
        with pytest.raises(InputError, match=message):
            advise(member, x, **given)
    with pytest.raises(InputError, match=r"needs x in \[0, 1\], got"):
        advise(member, 3 * x)


def test_the_last_elbo_of_the_curve_is_the_models_own():
    """Against a fresh estimate of E log p(x|z) - KL with other draws."""
    x = embedded(3, 0)[:1500]
    settings = TrainSettings(epochs=60, learning_rate=5e-3)
    member = vs.fit(x, latent_dim=6, settings=settings, precision=50.0, monitor=vs.training.NoProgress()).best
    advice = advise(member, x, samples=1500)
    noise = torch.randn(20, 1500, 6, generator=torch.Generator().manual_seed(1))
    fresh = [member.model.terms(member.params, x[None], n[None], torch.tensor([50.0])) for n in noise]
    elbo = torch.stack([(t.log_likelihood - t.kl).mean() for t in fresh])
    assert advice.elbo[-1] == pytest.approx(float(elbo.mean()), abs=5 * float(elbo.std()))
    assert advice.elbo[-1] > advice.elbo[0]


def test_advice_without_a_likelihood_has_errors_alone():
    class Unknown:
        latent_dim, prior, precision = 3, vs.Normal(), None
        encode, decode = staticmethod(MODEL.encode), staticmethod(MODEL.decode)

    advice = advise(Unknown(), X)
    assert advice.elbo is None
    assert advice.latents == advice.enough == 2


def test_a_model_that_uses_all_its_latents_may_be_too_narrow():
    advice = advise(prune(MODEL, X), X)
    assert "all of them: it may be too narrow" in advice.words


# larger than memory ---------------------------------------------------------------------------

ON_DISK = """
import sys
from vaescope.regime import classify
regime = classify(f"{sys.argv[1]}/mean.npy", f"{sys.argv[1]}/variance.npy")
assert regime.samples == 1_000_000
# the peak of this program alone: what getrusage gives begins with the size of the process that started it
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(len(regime.active), len(regime.passive), int(peak) // 1024)
"""


def on_disk(folder: Path, rows: int, latents: int) -> None:
    """Posteriors of eight active latents and many passive ones, written a part at a time."""
    rng, active = np.random.default_rng(0), np.arange(latents) < 8
    for name in ("mean", "variance"):
        out = open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.float32, shape=(rows, latents))
        for first in range(0, rows, 50_000):
            noise = rng.standard_normal((50_000, latents), dtype=np.float32)
            values = np.where(active, noise, 0.01 * noise) if name == "mean" else np.where(active, 0.02, 1.0)
            out[first : first + 50_000] = values


def test_a_million_posteriors_are_judged_from_disk_in_one_pass(tmp_path):
    on_disk(tmp_path, 1_000_000, 32)
    done = subprocess.run([sys.executable, "-c", ON_DISK, str(tmp_path)], capture_output=True, text=True, check=True)
    active, passive, megabytes = map(int, done.stdout.split())
    assert (active, passive) == (8, 24)
    assert megabytes < 1000
