"""`vs.sklearn`: scikit-learn's own checks, scores against closed forms, a search as stacks against the loop."""

import math
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import vaescope as vs
from vaescope.core.errors import InputError, RunError
from vaescope.inference import linear
from vaescope.sklearn import VAE, VAESearchCV

SHORT = {"latent_dim": 2, "epochs": 2, "hidden": (8,)}


@parametrize_with_checks([VAE(**SHORT)])  # no exceptions are declared
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return np.tanh(rng.normal(size=(150, 2)) @ rng.normal(size=(2, 5))) + 0.1 * rng.normal(size=(150, 5))


def test_it_is_the_member_that_fit_trains(rows):
    vae = VAE(**SHORT, random_state=3, precision=10.0).fit(rows)
    member = vs.fit(rows, **SHORT, seeds=(3,), precision=10.0, progress=vs.training.NoProgress()).best
    codes = torch.from_numpy(vae.transform(rows))
    assert torch.equal(codes, member.encode(torch.from_numpy(rows))[0])
    assert torch.equal(torch.from_numpy(vae.inverse_transform(codes.numpy())), member.decode(codes))
    assert (vae.precision_, vae.n_iter_) == (10.0, 2)


@pytest.mark.parametrize("precision", [5.0, "optimal", "learned"])
def test_the_score_of_a_linear_vae_is_exact(rows, precision):
    """E_q |x - Wz - b|² = |x - Wμ - b|² + tr(W diag(σ²) Wᵀ)."""
    vae = VAE(latent_dim=3, hidden=(), epochs=3, precision=precision).fit(rows)
    member, x = vae.member_, torch.from_numpy(rows)
    mean, variance = member.encode(x)
    weight = member.decode(torch.eye(3).double()) - member.decode(torch.zeros(1, 3).double())
    error = (x - member.decode(mean)).square().sum(1) + (variance @ weight.square()).sum(1)
    fit = 0.5 * 5 * math.log(vae.precision_ / (2 * math.pi)) - 0.5 * vae.precision_ * error
    kl = 0.5 * (mean.square() + variance - 1 - variance.log()).sum(1)
    np.testing.assert_allclose(vae.score_samples(rows), (fit - kl).numpy(), rtol=1e-9)
    assert vae.score(rows) == pytest.approx(float((fit - kl).mean()))
    centred = x - member.decode(torch.zeros(1, 3).double())
    assert bool((linear.log_likelihood(centred, weight.mT, precision=vae.precision_) >= fit - kl - 1e-9).all())


def test_the_score_of_a_nonlinear_vae_is_that_of_many_draws(rows):
    vae = VAE(latent_dim=2, epochs=5, precision=20.0).fit(rows)
    member, x = vae.member_, torch.from_numpy(rows)
    mean, variance = member.encode(x)
    z = mean + variance.sqrt() * torch.randn(500, *mean.shape, dtype=mean.dtype)
    error = (x - member.decode(z.flatten(0, 1)).unflatten(0, z.shape[:2])).square().sum(-1)
    draws = 2.5 * math.log(20.0 / (2 * math.pi)) - 10.0 * error
    kl = 0.5 * (mean.square() + variance - 1 - variance.log()).sum(1)
    stderr = float(draws.mean(1).std() / 500**0.5)
    assert vae.score(rows) == pytest.approx(float((draws.mean(0) - kl).mean()), abs=4 * stderr + 0.002)


def test_a_bernoulli_score_is_never_positive_and_decodes_to_probabilities(rows):
    pixels = (rows > 0).astype(float)
    vae = VAE(**SHORT, likelihood="bernoulli").fit(pixels)
    assert (vae.score_samples(pixels) < 0).all()
    decoded = vae.inverse_transform(vae.transform(pixels))
    assert ((decoded > 0) & (decoded < 1)).all()


def test_rescaling_a_column_changes_the_score_by_its_logarithm(rows):
    """log p(x) changes by the log of the Jacobian: the likelihood of all columns times s, at γ² / s², by -n log s."""
    small, large = VAE(**SHORT, precision=400.0).fit(rows), VAE(**SHORT, precision=4.0)
    large.fit(10 * rows)
    large.member_ = clone_with_scaled_networks(small.member_, 10.0)
    assert large.score(10 * rows) == pytest.approx(small.score(rows) - 5 * math.log(10.0), rel=1e-6)


def clone_with_scaled_networks(member, scale):
    """The same VAE of x · scale: the encoder's input divided, the decoder's output multiplied."""
    params = {name: value.clone().double() for name, value in member.params.items()}
    first = next(name for name in params if name.startswith("encoder") and name.endswith("weight"))
    last = [name for name in params if name.startswith("decoder")][-2:]
    params[first] = params[first] / scale
    for name in last:
        params[name] = params[name] * scale
    return type(member)(member.model, params, member.seed, member.beta, member.precision / scale**2)


# scikit-learn ---------------------------------------------------------------------------------


def test_it_works_in_a_pipeline_with_names(rows):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows, columns=list("abcde"))
    pipeline = make_pipeline(StandardScaler(), VAE(**SHORT)).set_output(transform="pandas")
    codes = pipeline.fit_transform(frame)
    assert list(codes.columns) == ["vae0", "vae1"] == list(pipeline.get_feature_names_out())
    assert pipeline[-1].n_features_in_ == 5
    assert pipeline[:-1].inverse_transform(pipeline[-1].inverse_transform(codes.to_numpy())).shape == (150, 5)
    same = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(same.transform(frame), codes)


def test_products_take_the_fitted_member(rows):
    vae = VAE(**SHORT).fit(rows)
    assert len(vs.regime.of_model(vae.member_, rows).kind) == 2


def test_a_searched_stack_has_the_scores_of_the_loop(rows):
    """Folds of 67 and 66 rows, two latent dimensions, β, and another estimator in place of the VAE."""
    pipeline = make_pipeline(StandardScaler(), VAE(epochs=3, hidden=(8,), precision=5.0))
    grid = [
        {"vae__beta": [0.5, 2.0], "vae__precision": [1.0, 9.0], "vae__latent_dim": [1, 2]},
        {"vae": [PCA(2)]},
    ]
    cv = KFold(2, shuffle=True, random_state=0)
    loop = GridSearchCV(pipeline, grid, cv=cv).fit(rows[:133])
    stack = VAESearchCV(pipeline, grid, cv=cv, n_jobs=2).fit(rows[:133])
    np.testing.assert_allclose(stack.cv_results_["mean_test_score"], loop.cv_results_["mean_test_score"], rtol=1e-4)
    assert stack.best_params_ == loop.best_params_
    assert stack.best_estimator_.score(rows) == pytest.approx(loop.best_estimator_.score(rows), rel=1e-4)
    assert stack.n_jobs == 2
    assert clone(stack).get_params()["cv"] is not None


def test_stacks_are_what_trains_and_what_fails_alone_fails_alone(rows, monkeypatch):
    trained = []
    original = vs.fitting.train
    monkeypatch.setattr(vs.fitting, "train", lambda *a, **k: trained.append(len(a[3])) or original(*a, **k))
    grid = {"beta": [1.0, 2.0, -1.0], "latent_dim": [1, 2]}  # β below zero is refused
    with pytest.warns(FitFailedWarning, match="beta must be at least 0"), pytest.warns(match="non-finite"):
        search = VAESearchCV(VAE(epochs=1, hidden=(8,), precision=5.0), grid, cv=3).fit(rows)
    assert trained == [6, 6, 1]  # β times folds for each architecture, then the best on all rows
    assert np.isnan(search.cv_results_["mean_test_score"]).sum() == 2
    assert vs.sklearn._search.get() is None


# mistakes -------------------------------------------------------------------------------------


def test_mistakes_are_one_line(rows):
    with pytest.raises(TypeError, match="VAE has no parameter 'n_components'; it has latent_dim, "):
        VAE(n_components=2)
    with pytest.raises(InputError, match="must be one value each; use VAESearchCV"):
        VAE(**SHORT, precision=(1.0, 2.0)).fit(rows)
    vae = VAE(**SHORT).fit(rows)
    with pytest.raises(InputError, match="codes must have 2 columns, one per latent, got 5"):
        vae.inverse_transform(rows)
    with pytest.raises(RunError, match=r"training diverged at step \d+; lower learning_rate, or rescale X"):
        VAE(**SHORT, learning_rate=1e12, precision=1e8).fit(1e6 * rows)


def test_every_setting_is_an_argument_with_the_default_of_fit():
    own = VAE().get_params()
    defaults = vs.settings.flat_defaults()
    assert {name: defaults[name] for name in own if name in defaults} == {n: v for n, v in own.items() if n in defaults}
    assert {name for name in own if name not in defaults} == {"random_state", "verbose"}
    assert set(defaults) - set(own) == {
        *("network", "architecture", "mixed_precision", "accumulate"),
        *("model", "prior_mean", "seeds", "out", "checkpoint_seconds"),
    }
