"""Identifiable VAEs: what u does to encoder and prior, that stacks keep their laws, and what users may get wrong."""

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.data import nonstationary
from vaescope.errors import InputError
from vaescope.models import VAE, ConvVAE, Member
from vaescope.models.describe import describe, rebuild
from vaescope.protocol import LatentModel
from vaescope.regime import of_model, prune
from vaescope.training import MemberSpec, Silent, TrainSettings, train

QUICK = TrainSettings(epochs=3, batch_size=50, compile="never")


def member(model: VAE, seed: int = 0) -> Member:
    return Member(model, model.init([seed]), precision=1.0)


def test_a_row_is_x_and_u_behind_it():
    model = VAE(3, 2, auxiliary_dim=2)
    x, u = torch.randn(5, 3), torch.randn(5, 2)
    one = member(model)
    rows = one.rows(x, u)
    assert rows.shape == (5, model.row_dim)
    assert torch.equal(one.parted(rows)[0], x)
    assert torch.equal(one.parted(rows)[1], u)


def test_encoder_and_prior_see_u_and_the_decoder_does_not():
    one = member(VAE(3, 2, auxiliary_dim=2, prior_mean="learned"))
    x = torch.randn(4, 3)
    for a, b in zip(one.encode(x, torch.zeros(4, 2)), one.encode(x, torch.ones(4, 2)), strict=True):
        assert not torch.allclose(a, b)
    low, high = one.prior_at(torch.zeros(4, 2)), one.prior_at(torch.ones(4, 2))
    assert not torch.allclose(low.mean, high.mean)
    assert not torch.allclose(low.variance, high.variance)
    assert (low.variance > 0).all()
    assert "decoder.0.weight" in one.params
    assert one.params["decoder.0.weight"].shape[1] == 2


def test_a_fixed_prior_mean_stays_where_it_was_put():
    one = member(VAE(3, 2, auxiliary_dim=1, prior=vs.Normal(0.7)))
    assert torch.equal(one.prior_at(torch.randn(6, 1)).mean, torch.full((6, 2), 0.7))
    assert not any(name.startswith("prior.mean") for name in one.params)


def test_every_latent_may_have_a_fixed_mean_of_its_own():
    one = member(VAE(3, 2, auxiliary_dim=1, prior=vs.Normal(torch.tensor([4.0, -4.0]))))
    x, u = torch.randn(5, 3), torch.randn(5, 1)
    assert one.prior_at(u).mean.tolist() == [[4.0, -4.0]] * 5
    terms = one.model.terms(one.params, one.rows(x, u)[None], torch.zeros(1, 5, 2), torch.ones(1))
    judged = of_model(one, x, auxiliary=u, decoder=False)
    assert judged.kl.sum() == pytest.approx(float(terms.kl.mean()), rel=1e-4)
    assert describe(rebuild(describe(one.model))) == describe(one.model)


def test_a_pruned_ivae_is_a_latent_model():
    one = member(VAE(3, 2, auxiliary_dim=1))
    x, u = torch.randn(50, 3), torch.randn(50, 1)
    pruned = prune(one, x, auxiliary=u, keep=[1], tolerance=100.0)
    assert isinstance(pruned, LatentModel)
    assert pruned.prior_at(u).variance.shape == (50, 1)
    assert of_model(pruned, x, auxiliary=u).latent_dim == 1


def test_the_objective_has_the_kl_from_the_conditional_prior():
    """Parity with torch.distributions, for members with fixed and with learned means."""
    for prior_mean in ("fixed", "learned"):
        one = member(VAE(3, 2, auxiliary_dim=2, prior_mean=prior_mean))
        x, u = torch.randn(7, 3), torch.randn(7, 2)
        terms = one.model.terms(one.params, one.rows(x, u)[None], torch.zeros(1, 7, 2), torch.ones(1))
        mean, variance = one.encode(x, u)
        prior = one.prior_at(u)
        q = torch.distributions.Normal(mean, variance.sqrt())
        p = torch.distributions.Normal(prior.mean, prior.variance.sqrt())
        wanted = torch.distributions.kl_divergence(q, p).sum(-1)
        torch.testing.assert_close(terms.kl[0], wanted, rtol=1e-4, atol=1e-5)


def test_without_u_nothing_has_changed():
    """Same seed, same weights: an auxiliary of width zero is the plain VAE."""
    plain, none = VAE(3, 2).init([4]), VAE(3, 2, auxiliary_dim=0).init([4])
    assert all(torch.equal(plain[name], none[name]) for name in plain)
    assert plain.keys() == none.keys()


@pytest.mark.parametrize("prior_mean", ["fixed", "learned"])
def test_a_member_does_not_depend_on_the_others(prior_mean):
    data = torch.randn(2, 200, 5)
    model = VAE(3, 2, auxiliary_dim=2, prior_mean=prior_mean)
    specs = [MemberSpec(seed=s, data=s) for s in range(2)]
    together = train(model, data, data, specs, QUICK)
    alone = train(model, data, data, specs[1:], QUICK)[0]
    for name, value in alone.params.items():
        torch.testing.assert_close(value, together[1].params[name], rtol=1e-5, atol=1e-6)


def test_training_finds_variances_that_depend_on_u():
    """Planted: x is the sources themselves, so p(z|u) must take their variances, up to the scale of each latent."""
    drawn = nonstationary.segments(2, samples=6000, segments=4, low=0.2, high=4.0, seed=1)
    settings = TrainSettings(epochs=60, learning_rate=5e-3, batch_size=128)
    fitted = vs.fit(
        drawn.sources.float(), model="ivae", auxiliary=drawn.auxiliary, latent_dim=2, precision=100.0,
        settings=settings, monitor=Silent(),
    ).best  # fmt: skip
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


def test_an_ivae_whose_posterior_repeats_its_prior_is_called_collapsed():
    """x is a centre that u names, and noise: p(z|u) says all there is to say."""
    u = torch.randint(3, (1500,), generator=torch.Generator().manual_seed(0))
    x = 4 * torch.eye(4)[u] + torch.randn(1500, 4, generator=torch.Generator().manual_seed(1))
    fitted = vs.fit(
        x, model="ivae", auxiliary=u, prior_mean="learned", latent_dim=2, precision=1.0, monitor=Silent(),
        settings=TrainSettings(epochs=60, learning_rate=5e-3, batch_size=100),
    ).best  # fmt: skip
    judged = of_model(fitted, x, auxiliary=u)
    assert judged.kl.sum() < 0.3
    assert judged.rivals.active_units == ["active", "active"]  # it does not look so
    assert judged.collapse.kind == "repeats prior"


def test_convolutional_ivaes_have_the_published_shape():
    """Bonheme & Grzes 2023, Tab. 1: 256 + 5 hidden numbers, 30 latents, prior variance from two layers of 50."""
    model = ConvVAE.of((1, 64, 64), latent_dim=30, architecture="regime", likelihood="bernoulli", auxiliary_dim=5)
    params = model.init([0])
    assert params["encoder.4.weight"].shape == (1, 261, 1024 + 5)
    assert params["encoder.5.weight"].shape == (1, 60, 261)
    assert [params[f"prior.log_variance.{k}.weight"].shape[1:] for k in range(3)] == [(5, 50), (50, 50), (50, 30)]
    one = Member(model, params)
    x = torch.rand(2, 4096)
    a, b = (one.encode(x, u)[0] for u in (torch.zeros(2, 5), torch.ones(2, 5)))
    assert a.shape == (2, 30)
    assert not torch.allclose(a, b)
    assert one.decode(a).shape == (2, 4096)


def test_convolutional_ivaes_with_batch_norm_settle():
    model = ConvVAE.of((1, 16, 16), latent_dim=3, architecture="orthogonality-shapes", auxiliary_dim=2)
    one = train(model, torch.rand(1, 60, 258), torch.rand(1, 20, 258), [MemberSpec(0)], QUICK)[0]
    x, u = torch.rand(8, 256), torch.rand(8, 2)
    torch.testing.assert_close(one.encode(x, u)[0][:1], one.encode(x[:1], u[:1])[0], rtol=1e-4, atol=1e-5)


def test_it_can_be_kept_and_opened():
    for model in (VAE(3, 2, auxiliary_dim=4, prior_mean="learned"), ConvVAE.of((1, 16, 16), latent_dim=2)):
        assert describe(rebuild(describe(model))) == describe(model)


def test_a_run_folder_keeps_an_ivae(tmp_path):
    x, u = torch.randn(200, 3), torch.randint(2, (200,))
    options = {"model": "ivae", "auxiliary": u, "latent_dim": 2, "settings": QUICK, "monitor": Silent()}
    first = vs.fit(x, out=tmp_path / "run", **options).best
    again = vs.fit(x, out=tmp_path / "run", **options).best
    assert torch.equal(first.encode(x, u)[0], again.encode(x, u)[0])


# u, right and wrong ---------------------------------------------------------------------------


def test_labels_and_their_columns_are_the_same_u():
    one = member(VAE(3, 2, auxiliary_dim=3))
    x, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 2])
    columns = torch.nn.functional.one_hot(labels, 3).float()
    for u in (labels.tolist(), labels.numpy(), columns, columns.numpy()):
        assert torch.equal(one.encode(x, u)[0], one.encode(x, labels)[0])


@pytest.mark.parametrize(
    ("u", "message"),
    [
        (None, r"an iVAE needs its auxiliary u with every x: labels 0 to 2, or an \(N, 3\) array"),
        (torch.tensor([0, 1, 3, 0]), "labels in u must be 0 to 2, got 0 to 3"),
        (torch.zeros(4, 2), r"u must have 3 columns, got shape \(4, 2\)"),
        (torch.zeros(5, 3), "u needs a row per sample, got 5 rows for 4 samples"),
        (torch.full((4, 3), float("nan")), "u must be finite"),
    ],
)
def test_a_wrong_u_is_explained(u, message):
    with pytest.raises(InputError, match=message):
        member(VAE(3, 2, auxiliary_dim=3)).encode(torch.randn(4, 3), u)


@pytest.mark.parametrize(
    "u",
    [
        np.array([2, 1, 0, 2])[::-1],
        np.array([2, 1, 0, 2], ">i4"),
        np.array([2, 1, 0, 2], np.uint16),
        torch.tensor([2, 1, 0, 2], dtype=torch.uint8),
        torch.eye(3)[[2, 1, 0, 2]].requires_grad_(),
    ],
    ids=["reversed", "big-endian", "uint16", "uint8", "with gradient"],
)
def test_labels_come_in_many_forms(u):
    one = member(VAE(3, 2, auxiliary_dim=3))
    labels = np.array([2, 0, 1, 2]) if isinstance(u, np.ndarray) and u.strides[0] < 0 else np.array([2, 1, 0, 2])
    x = torch.randn(4, 3)
    assert torch.equal(one.encode(x, u)[0], one.encode(x, labels)[0])


@pytest.mark.parametrize(
    ("u", "message"),
    [
        (["a", "b", "c", "d"], "number the classes from 0"),
        ([None] * 4, "number the classes from 0"),
        ([[1.0], [1.0, 2.0]], "rows of different lengths"),
        (3, "a label or a row of real numbers"),
        (np.zeros((4, 0)), r"got shape \(4, 0\)"),
        (np.arange(4) * 10**9, "more than 10000 classes: number them from 0"),
    ],
)
def test_what_is_no_u_is_explained(u, message):
    with pytest.raises(InputError, match=message):
        vs.fit(torch.randn(4, 3), model="ivae", auxiliary=u, latent_dim=2, settings=QUICK, monitor=Silent())


def test_a_missing_u_is_explained_by_every_analysis():
    one = member(VAE(3, 2, auxiliary_dim=3))
    for ask in (of_model, vs.regime.prune, vs.regime.advise):
        with pytest.raises(InputError, match="an iVAE needs its auxiliary u"):
            ask(one, torch.randn(4, 3))


def test_a_plain_vae_takes_no_u():
    with pytest.raises(InputError, match="plain VAE and takes no auxiliary u"):
        member(VAE(3, 2)).encode(torch.randn(4, 3), torch.zeros(4, 1))


def test_the_prior_of_an_ivae_is_asked_for_with_u():
    one = member(VAE(3, 2, auxiliary_dim=3))
    assert isinstance(one, LatentModel)
    z = torch.zeros(2, 2)
    for ask in (
        lambda: one.prior.log_density(z),
        lambda: one.prior.curvature(z),
        lambda: one.prior.expected_log_density(z, z),
        lambda: one.prior.sample(2, generator=torch.Generator()),
        lambda: vs.theory.optimal_variance(one.decode, z, precision=1.0, prior=one.prior),
    ):
        with pytest.raises(InputError, match=r"depends on u: ask prior_at\(u\)"):
            ask()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "gan"}, "model must be one of vae, ivae, got 'gan'"),
        ({"model": "ivae"}, "an iVAE needs auxiliary=u"),
        ({"auxiliary": [0, 1]}, "say model='ivae' to use it"),
        ({"model": "ivae", "auxiliary": [0, 1]}, "auxiliary u needs a row per sample, got 2 rows for 20 samples"),
        ({"model": "ivae", "auxiliary": [0] * 20, "prior": vs.Uniform()}, "an iVAE's prior is normal given u"),
        ({"model": "ivae", "auxiliary": [0] * 20, "prior_mean": "free"}, "prior_mean must be one of fixed, learned"),
        ({"model": "ivae", "auxiliary": [-1] * 20}, "labels in u must be"),
        ({"prior_mean": "learned"}, "prior_mean='learned' is for an iVAE"),
        ({"model": "ivae", "auxiliary": [0] * 20, "prior": vs.Normal(0.0, 25.0)}, "prior is learned; give vs.Normal"),
    ],
)
def test_fit_explains_what_is_missing(options, message):
    with pytest.raises(InputError, match=message):
        vs.fit(torch.randn(20, 3), latent_dim=2, settings=QUICK, monitor=Silent(), **options)


def test_seeds_may_come_one_by_one():
    assert (
        len(vs.fit(torch.randn(20, 3), latent_dim=2, settings=QUICK, seeds=iter(range(2)), precision=[1.0, 2.0])) == 4
    )


def test_a_width_below_zero_is_refused():
    with pytest.raises(InputError, match="auxiliary_dim must be at least 0"):
        VAE(3, 2, auxiliary_dim=-1)


def test_rows_of_the_wrong_width_are_explained():
    with pytest.raises(InputError, match=r"\(data sets, samples, 5 \(3 of x, then 2 of u\)\), got \(1, 9, 3\)"):
        train(VAE(3, 2, auxiliary_dim=2), torch.randn(1, 9, 3), torch.randn(1, 9, 3), [MemberSpec(0)], QUICK)


# sources --------------------------------------------------------------------------------------


def test_sources_have_the_variances_they_say():
    for drawn in (
        nonstationary.segments(3, samples=40_000, segments=4, seed=0),
        nonstationary.drift(3, samples=40_000, strength=2.0, seed=0),
    ):
        scaled = drawn.sources / drawn.variance.sqrt()
        torch.testing.assert_close(scaled.var(0), torch.ones(3, dtype=torch.float64), rtol=0.05, atol=0)
        assert abs(float(torch.corrcoef(scaled.T)[0, 1])) < 0.02
        assert float(drawn.variance.log().std(0).min()) > 0.2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nonstationary.segments(0, samples=10, seed=0), "at least 1 dimension and 2 samples"),
        (lambda: nonstationary.segments(2, samples=10, segments=11, seed=0), "2 to 10 segments"),
        (lambda: nonstationary.segments(2, samples=10, segments=5, low=3.0, high=1.0, seed=0), "0 < low < high"),
        (lambda: nonstationary.drift(2, samples=1, seed=0), "at least 1 dimension and 2 samples"),
    ],
)
def test_impossible_sources_are_explained(call, message):
    with pytest.raises(InputError, match=message):
        call()
