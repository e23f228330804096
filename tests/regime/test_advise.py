"""The advisor: known truncation curves, and the dimension of data of known dimension."""

import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.models import VAE
from vaescope.models.mlp import smooth_leaky_relu
from vaescope.regime import advise, planted, prune
from vaescope.training import MemberSpec, NoProgress, TrainSettings, train

MODEL = planted.GatedModel(share=0.5)
X = MODEL.observe(3000, seed=0)
OBSERVED, LATENTS, SAMPLES = 20, 16, 2000


def embedded(dim: int, seed: int) -> torch.Tensor:
    """A curved manifold of `dim` dimensions in 20, with noise of a tenth of its deviation."""
    g = torch.Generator().manual_seed(seed)

    def orthogonal(rows: int) -> torch.Tensor:
        return torch.linalg.qr(torch.randn(OBSERVED, OBSERVED, generator=g))[0][:rows]

    z = torch.randn(SAMPLES + 1000, dim, generator=g)
    x = smooth_leaky_relu(2 * z @ orthogonal(dim) * (OBSERVED / dim) ** 0.5) @ orthogonal(OBSERVED)
    x = x / x.std(0).mean()
    return x + 0.1 * torch.randn(x.shape, generator=g)


def shares_right(members: int, epochs: int) -> list[float]:
    """Shares of models for which the dimension is found: by verdicts, and by the ELBO. One stack, 2 to 8 dimensions."""
    dims = [2 + i % 7 for i in range(members)]
    x = torch.stack([embedded(dim, seed) for seed, dim in enumerate(dims)])
    settings = TrainSettings(epochs=epochs, patience=epochs, learning_rate=5e-3, batch_size=128, compile="never")
    specs = [MemberSpec(seed=i, data=i) for i in range(members)]
    model = VAE.mlp(OBSERVED, LATENTS, hidden=(64, 64), noise="optimal")
    trained = train(model, x[:, :SAMPLES], x[:, SAMPLES:], specs, settings, progress=NoProgress())
    advice = [advise(member, x[i, SAMPLES:]) for i, member in enumerate(trained)]
    pairs = list(zip(advice, dims, strict=True))
    right = [sum(a.latents == d for a, d in pairs), sum(a.latents_by_elbo == d for a, d in pairs)]
    return [count / members for count in right]


def test_the_dimension_of_the_data_is_found():
    assert shares_right(members=7, epochs=80) == [1, 1]


@pytest.mark.long
def test_the_dimension_of_the_data_is_found_by_95_percent_of_models():
    assert min(shares_right(members=40, epochs=130)) >= 0.95


def test_the_truncation_curve_of_a_known_model():
    advice = advise(MODEL, X, samples=3000)
    assert advice.order == [0, 1, 2]
    assert advice.latents == advice.latents_by_elbo == 2
    # squared error: all of 37.5 + noise, then without the gated part, then noise alone
    assert advice.error == pytest.approx([37.5, 12.5, 0.02, 0.02], rel=0.12, abs=0.03)
    assert advice.elbo_gain[2] == 0
    assert advice.recommendation == "The model uses 2 of its 3 latents; 2 are enough."
    assert [row["latents"] for row in advice.table()] == [0, 1, 2, 3]


def test_a_pruned_bernoulli_model_has_a_curve():
    x = (torch.rand(200, 6) > 0.5).float()
    settings = TrainSettings(epochs=1, compile="never")
    member = vs.fit(x, latent_dim=3, likelihood="bernoulli", settings=settings, progress=NoProgress()).best
    pruned = prune(member, x, keep=[0, 1], tolerance=100.0)
    assert advise(pruned, x).elbo is not None
    for given, message in (
        ({"likelihood": "bernouli"}, "likelihood must be one of gaussian, bernoulli"),
        ({"likelihood": "gaussian"}, "needs the model's precision"),
        ({"samples": 1}, "at least 2 samples"),
        ({"samples": 0}, "samples must be at least 1"),
    ):
        with pytest.raises(InputError, match=message):
            advise(member, x, **given)
    with pytest.raises(InputError, match=r"needs x in \[0, 1\], got"):
        advise(member, 3 * x)


def test_the_elbo_of_all_latents_is_that_of_the_model():
    """Against a fresh estimate of E log p(x|z) - KL with other draws."""
    x = embedded(3, 0)[:1500]
    settings = TrainSettings(epochs=20, learning_rate=1e-2, compile="never")
    member = vs.fit(x, latent_dim=6, settings=settings, precision=50.0, progress=NoProgress()).best
    advice = advise(member, x, samples=1500)
    noise = torch.randn(20, 1500, 6, generator=torch.Generator().manual_seed(1))
    fresh = [member.model.terms(member.params, x[None], n[None], torch.tensor([50.0])) for n in noise]
    elbo = torch.stack([(t.log_likelihood - t.kl).mean() for t in fresh])
    assert advice.elbo[-1] == pytest.approx(float(elbo.mean()), abs=5 * float(elbo.std()))
    assert advice.elbo[-1] > advice.elbo[0]


def test_without_a_likelihood_there_are_errors_alone():
    unknown = vs.adapters.from_callables(encode=MODEL.encode, decode=MODEL.decode, latent_dim=3)
    advice = advise(unknown, X)
    assert advice.elbo is None
    assert advice.latents == advice.latents_by_elbo == 2
