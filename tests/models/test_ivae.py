"""iVAEs: the auxiliary input of encoder and prior, the laws of stacks, and mistakes of users."""

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.data import mixings as nonstationary
from vaescope.models import VAE, AuxiliarySettings, Member
from vaescope.protocol import LatentModel
from vaescope.regime import of_model, prune
from vaescope.training import MemberSpec, NoProgress, TrainSettings, train

QUICK = TrainSettings(epochs=3, batch_size=50, compile="never")


def member(model: VAE, seed: int = 0) -> Member:
    return Member(model, model.init([seed]), precision=1.0)


def test_a_row_is_x_followed_by_the_auxiliary_input():
    model = VAE(3, 2, auxiliary=AuxiliarySettings(2))
    x, auxiliary = torch.randn(5, 3), torch.randn(5, 2)
    one = member(model)
    rows = one.join_auxiliary(x, auxiliary)
    assert rows.shape == (5, model.row_dim)
    assert torch.equal(one.split_auxiliary(rows)[0], x)
    assert torch.equal(one.split_auxiliary(rows)[1], auxiliary)


def test_encoder_and_prior_depend_on_the_auxiliary_input_and_the_decoder_does_not():
    one = member(VAE(3, 2, auxiliary=AuxiliarySettings(2, "learned")))
    x = torch.randn(4, 3)
    for a, b in zip(one.encode(x, torch.zeros(4, 2)), one.encode(x, torch.ones(4, 2)), strict=True):
        assert not torch.allclose(a, b)
    low, high = one.prior_at(torch.zeros(4, 2)), one.prior_at(torch.ones(4, 2))
    assert not torch.allclose(low.mean, high.mean)
    assert not torch.allclose(low.variance, high.variance)
    assert (low.variance > 0).all()
    assert "decoder.0.weight" in one.params
    assert one.params["decoder.0.weight"].shape[2] == 2


def test_a_fixed_prior_mean_is_that_of_the_given_prior():
    one = member(VAE(3, 2, auxiliary=AuxiliarySettings(1), prior=vs.Normal(0.7)))
    assert torch.equal(one.prior_at(torch.randn(6, 1)).mean, torch.full((6, 2), 0.7))
    assert not any(name.startswith("prior.mean") for name in one.params)


def test_the_fixed_prior_mean_may_differ_between_latents():
    one = member(VAE(3, 2, auxiliary=AuxiliarySettings(1), prior=vs.Normal(torch.tensor([4.0, -4.0]))))
    x, auxiliary = torch.randn(5, 3), torch.randn(5, 1)
    assert one.prior_at(auxiliary).mean.tolist() == [[4.0, -4.0]] * 5
    terms = one.model.terms(one.params, one.join_auxiliary(x, auxiliary)[None], torch.zeros(1, 5, 2), torch.ones(1))
    judged = of_model(one, x, auxiliary=auxiliary, decoder=False)
    assert judged.kl.sum() == pytest.approx(float(terms.kl.mean()), rel=1e-4)


def test_a_pruned_ivae_is_a_latent_model():
    one = member(VAE(3, 2, auxiliary=AuxiliarySettings(1)))
    x, auxiliary = torch.randn(50, 3), torch.randn(50, 1)
    pruned = prune(one, x, auxiliary=auxiliary, keep=[1], tolerance=100.0)
    assert isinstance(pruned, LatentModel)
    assert pruned.prior_at(auxiliary).variance.shape == (50, 1)
    assert of_model(pruned, x, auxiliary=auxiliary).latent_dim == 1


def test_the_kl_is_that_from_the_conditional_prior():
    """Parity with torch.distributions, for fixed and learned prior means."""
    for prior_mean in ("fixed", "learned"):
        one = member(VAE(3, 2, auxiliary=AuxiliarySettings(2, prior_mean)))
        x, auxiliary = torch.randn(7, 3), torch.randn(7, 2)
        terms = one.model.terms(one.params, one.join_auxiliary(x, auxiliary)[None], torch.zeros(1, 7, 2), torch.ones(1))
        mean, variance = one.encode(x, auxiliary)
        prior = one.prior_at(auxiliary)
        q = torch.distributions.Normal(mean, variance.sqrt())
        p = torch.distributions.Normal(prior.mean, prior.variance.sqrt())
        wanted = torch.distributions.kl_divergence(q, p).sum(-1)
        torch.testing.assert_close(terms.kl[0], wanted, rtol=1e-4, atol=1e-5)


def test_without_auxiliary_columns_it_is_the_plain_vae():
    """Same seed, same weights."""
    plain, none = VAE(3, 2).init([4]), VAE(3, 2, auxiliary=AuxiliarySettings(0)).init([4])
    assert all(torch.equal(plain[name], none[name]) for name in plain)
    assert plain.keys() == none.keys()


@pytest.mark.parametrize("prior_mean", ["fixed", "learned"])
def test_a_member_does_not_depend_on_the_other_members(prior_mean):
    data = torch.randn(2, 200, 5)
    model = VAE(3, 2, auxiliary=AuxiliarySettings(2, prior_mean))
    specs = [MemberSpec(seed=s, data=s) for s in range(2)]
    together = train(model, data, data, specs, QUICK)
    alone = train(model, data, data, specs[1:], QUICK)[0]
    for name, value in alone.params.items():
        torch.testing.assert_close(value, together[1].params[name], rtol=1e-5, atol=1e-6)


def test_training_recovers_the_conditional_variances():
    """x is the sources themselves, so the prior must take their variances, up to the scale of each latent."""
    drawn = nonstationary.segments(2, samples=3000, segments=4, low=0.2, high=4.0, seed=1)
    settings = TrainSettings(epochs=60, learning_rate=5e-3, batch_size=128)
    fitted = vs.fit(
        drawn.sources.float(),
        model="ivae",
        auxiliary=drawn.auxiliary,
        latent_dim=2,
        precision=100.0,
        settings=settings,
        progress=NoProgress(),
    ).best
    mean, _ = fitted.encode(drawn.sources.float(), drawn.auxiliary)
    found = vs.metrics.mcc(mean, drawn.sources)
    assert found.score > 0.95
    learned = fitted.prior_at(torch.arange(4)).variance.detach().numpy()
    _, variance = fitted.encode(drawn.sources.float(), drawn.auxiliary)
    for segment in range(4):
        own = drawn.auxiliary == segment
        aggregate = (mean[own].square().mean(0) + variance[own].mean(0)).detach().numpy()
        np.testing.assert_allclose(learned[segment], aggregate, rtol=0.4)  # the best prior is the aggregate posterior
    wanted = np.stack([drawn.variance[drawn.auxiliary == s][0].numpy() for s in range(4)])
    order = np.argsort(wanted, axis=0)
    assert (np.diff(np.take_along_axis(learned[:, found.assignment], order, 0), axis=0) > -0.2).all()


def test_an_ivae_whose_posterior_equals_its_prior_has_collapsed():
    """x is a centre given by the label, plus noise: the posterior has nothing to add to the conditional prior."""
    auxiliary = torch.randint(3, (1500,), generator=torch.Generator().manual_seed(0))
    x = 4 * torch.eye(4)[auxiliary] + torch.randn(1500, 4, generator=torch.Generator().manual_seed(1))
    fitted = vs.fit(
        x,
        model="ivae",
        auxiliary=auxiliary,
        prior_mean="learned",
        latent_dim=2,
        precision=1.0,
        progress=NoProgress(),
        settings=TrainSettings(epochs=60, learning_rate=5e-3, batch_size=100),
    ).best
    judged = of_model(fitted, x, auxiliary=auxiliary)
    assert judged.kl.sum() < 0.3
    assert judged.baseline_rules.verdicts()["active units"] == ["active", "active"]  # it does not look so
    assert judged.collapse.kind == "repeats prior"


def test_convolutional_ivaes_have_the_published_shapes():
    """Bonheme & Grzes 2023, Tab. 1: 256 + 5 hidden units, 30 latents, prior variance from two layers of 50."""
    model = VAE.conv(
        (1, 64, 64), latent_dim=30, architecture="regime", likelihood="bernoulli", auxiliary=AuxiliarySettings(5)
    )
    params = model.init([0])
    assert params["encoder.4.weight"].shape == (1, 261, 1024 + 5)
    assert params["encoder.5.weight"].shape == (1, 60, 261)
    assert [params[f"prior.log_variance.{k}.weight"].shape[1:] for k in range(3)] == [(50, 5), (50, 50), (30, 50)]
    one = Member(model, params)
    x = torch.rand(2, 4096)
    a, b = (one.encode(x, auxiliary)[0] for auxiliary in (torch.zeros(2, 5), torch.ones(2, 5)))
    assert a.shape == (2, 30)
    assert not torch.allclose(a, b)
    assert one.decode(a).shape == (2, 4096)


def test_convolutional_ivaes_freeze_their_batch_norm():
    model = VAE.conv((1, 16, 16), latent_dim=3, architecture="orthogonality-shapes", auxiliary=AuxiliarySettings(2))
    one = train(model, torch.rand(1, 60, 258), torch.rand(1, 20, 258), [MemberSpec(0)], QUICK)[0]
    x, auxiliary = torch.rand(8, 256), torch.rand(8, 2)
    torch.testing.assert_close(
        one.encode(x, auxiliary)[0][:1], one.encode(x[:1], auxiliary[:1])[0], rtol=1e-4, atol=1e-5
    )


def test_a_run_folder_stores_an_ivae(tmp_path):
    x, auxiliary = torch.randn(200, 3), torch.randint(2, (200,))
    options = {"model": "ivae", "auxiliary": auxiliary, "latent_dim": 2, "settings": QUICK, "progress": NoProgress()}
    first = vs.fit(x, out=tmp_path / "run", **options).best
    again = vs.fit(x, out=tmp_path / "run", **options).best
    assert torch.equal(first.encode(x, auxiliary)[0], again.encode(x, auxiliary)[0])


# auxiliary inputs, valid and invalid ------------------------------------------------------------


def test_labels_equal_their_one_hot_columns():
    one = member(VAE(3, 2, auxiliary=AuxiliarySettings(3)))
    x, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 2])
    columns = torch.nn.functional.one_hot(labels, 3).float()
    for auxiliary in (labels.tolist(), labels.numpy(), columns, columns.numpy()):
        assert torch.equal(one.encode(x, auxiliary)[0], one.encode(x, labels)[0])


@pytest.mark.parametrize(
    ("auxiliary", "message"),
    [
        (None, r"needs its auxiliary input: labels 0 to 2, or an \(N, 3\) array"),
        (torch.tensor([0, 1, 3, 0]), "auxiliary labels must be 0 to 2, got 0 to 3"),
        (torch.zeros(4, 2), r"auxiliary must have 3 columns, got shape \(4, 2\)"),
        (torch.zeros(5, 3), "auxiliary needs a row per sample, got 5 rows for 4 samples"),
        (torch.full((4, 3), float("nan")), "auxiliary must be finite"),
    ],
)
def test_a_wrong_auxiliary_input_is_explained(auxiliary, message):
    with pytest.raises(InputError, match=message):
        member(VAE(3, 2, auxiliary=AuxiliarySettings(3))).encode(torch.randn(4, 3), auxiliary)


@pytest.mark.parametrize(
    "auxiliary",
    [
        np.array([2, 1, 0, 2])[::-1],
        np.array([2, 1, 0, 2], ">i4"),
        np.array([2, 1, 0, 2], np.uint16),
        torch.tensor([2, 1, 0, 2], dtype=torch.uint8),
        torch.eye(3)[[2, 1, 0, 2]].requires_grad_(),
    ],
    ids=["reversed", "big-endian", "uint16", "uint8", "with gradient"],
)
def test_labels_may_have_any_integer_type(auxiliary):
    one = member(VAE(3, 2, auxiliary=AuxiliarySettings(3)))
    reversed_view = isinstance(auxiliary, np.ndarray) and auxiliary.strides[0] < 0
    labels = np.array([2, 0, 1, 2]) if reversed_view else np.array([2, 1, 0, 2])
    x = torch.randn(4, 3)
    assert torch.equal(one.encode(x, auxiliary)[0], one.encode(x, labels)[0])


@pytest.mark.parametrize(
    ("auxiliary", "message"),
    [
        (["a", "b", "c", "d"], "got text; encode categories as integers"),
        ([None] * 4, "auxiliary must be finite"),
        ([[1.0], [1.0, 2.0]], "rows of different lengths"),
        (3, "must hold a label or a row of numbers per sample, got 3"),
        (np.zeros((4, 0)), r"got shape \(4, 0\)"),
        (np.arange(4) * 10**9, "expected at most 10000 classes; renumber them from 0"),
    ],
)
def test_unusable_auxiliary_inputs_are_explained(auxiliary, message):
    with pytest.raises(InputError, match=message):
        vs.fit(
            torch.randn(4, 3), model="ivae", auxiliary=auxiliary, latent_dim=2, settings=QUICK, progress=NoProgress()
        )


def test_a_missing_auxiliary_input_is_explained_by_every_analysis():
    one = member(VAE(3, 2, auxiliary=AuxiliarySettings(3)))
    for analyse in (of_model, vs.regime.prune, vs.regime.advise):
        with pytest.raises(InputError, match="needs its auxiliary input"):
            analyse(one, torch.randn(4, 3))


def test_a_plain_vae_takes_no_auxiliary_input():
    with pytest.raises(InputError, match="plain VAE and takes no auxiliary input"):
        member(VAE(3, 2)).encode(torch.randn(4, 3), torch.zeros(4, 1))


def test_the_prior_of_an_ivae_needs_the_auxiliary_input():
    one = member(VAE(3, 2, auxiliary=AuxiliarySettings(3)))
    assert isinstance(one, LatentModel)
    z = torch.zeros(2, 2)
    for use in (
        lambda: one.prior.log_density(z),
        lambda: one.prior.curvature(z),
        lambda: one.prior.expected_log_density(z, z),
        lambda: one.prior.sample(2, generator=torch.Generator()),
        lambda: vs.theory.optimal_variance(one.decode, z, precision=1.0, prior=one.prior),
    ):
        with pytest.raises(InputError, match=r"depends on its auxiliary input; use prior_at\(auxiliary\)"):
            use()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "gan"}, "model must be one of vae, ivae, got 'gan'"),
        ({"model": "ivae"}, "an iVAE needs auxiliary="),
        ({"auxiliary": [0, 1]}, "a plain VAE takes no auxiliary input; use model='ivae'"),
        (
            {"model": "ivae", "auxiliary": [0, 1]},
            "needs a row per sample, got 2 rows for 20 samples",
        ),
        ({"model": "ivae", "auxiliary": [0] * 20, "prior": vs.Uniform()}, "an iVAE needs a normal prior"),
        ({"model": "ivae", "auxiliary": [0] * 20, "prior_mean": "free"}, "prior_mean must be one of fixed, learned"),
        ({"model": "ivae", "auxiliary": [-1] * 20}, "auxiliary labels must be"),
        ({"prior_mean": "learned"}, "prior_mean='learned' needs model='ivae'"),
        (
            {"model": "ivae", "auxiliary": [0] * 20, "prior": vs.Normal(0.0, 25.0)},
            "learns the variance of its prior; use vs.Normal",
        ),
    ],
)
def test_fit_explains_what_is_missing(options, message):
    with pytest.raises(InputError, match=message):
        vs.fit(torch.randn(20, 3), latent_dim=2, settings=QUICK, progress=NoProgress(), **options)


def test_seeds_may_come_one_by_one():
    assert (
        len(vs.fit(torch.randn(20, 3), latent_dim=2, settings=QUICK, seeds=iter(range(2)), precision=[1.0, 2.0])) == 4
    )


def test_data_with_the_wrong_number_of_columns_are_explained():
    with pytest.raises(InputError, match=r"\(data sets, samples, 5 \(3 of x, then 2 auxiliary\)\), got \(1, 9, 3\)"):
        train(
            VAE(3, 2, auxiliary=AuxiliarySettings(2)),
            torch.randn(1, 9, 3),
            torch.randn(1, 9, 3),
            [MemberSpec(0)],
            QUICK,
        )
