"""Every model of the package is a complete `LatentModel`; a user's class needs three definitions."""

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.analysis.models import RepairedModel, as_models, drawable_shape, repair, with_normal_prior
from vaescope.core.errors import InputError
from vaescope.models import VAE, Member
from vaescope.protocol import check_model
from vaescope.regime import planted, prune

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=G)


def adapted(**change):
    known = {"encode": lambda x: (x[:, :2], 0.1 + 0 * x[:, :2]), "decode": lambda z: z.repeat(1, 2), "latent_dim": 2}
    return vs.adapters.from_callables(**known | change)


class Minimal(vs.LatentModel):
    """What a user has to write."""

    spec = vs.ModelSpec(latent_dim=2)

    def encode(self, x):
        return x[:, :2], 0.1 + 0 * x[:, :2]

    def decode(self, z):
        return z.repeat(1, 2)


class Module(torch.nn.Module, vs.LatentModel):
    """The same as a module with dropout, whose spec is set in `__init__`."""

    def __init__(self, latent_dim=2):
        super().__init__()
        self.latent_dim = latent_dim
        self.spec = vs.ModelSpec(latent_dim, "my module", precision=10.0)
        self.encoder, self.decoder = torch.nn.Linear(4, 2 * latent_dim), torch.nn.Linear(latent_dim, 4)
        self.dropout = torch.nn.Dropout(0.5)

    def encode(self, x):
        mean, log_variance = self.encoder(self.dropout(x)).chunk(2, dim=1)
        return mean, log_variance.exp()

    def decode(self, z):
        return self.decoder(z)


def member():
    model = VAE.mlp(4, 2)
    return Member(model, model.init([0]), precision=1.0)


MODELS = {
    "member": member,
    "functions": adapted,
    "arrays": lambda: vs.adapters.from_arrays(X[:, :2], 1 + 0 * X[:, :2]),
    "pruned": lambda: prune(adapted(), X, keep=[0], tolerance=10.0),
    "gated": planted.GatedModel,
    "repaired": lambda: with_normal_prior(adapted(prior=vs.Uniform(-1.0, 1.0))),
    "minimal": Minimal,
    "module": Module,
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_a_latent_model(name):
    model = MODELS[name]()
    assert isinstance(model, vs.LatentModel)
    assert check_model(model) is model
    assert isinstance(model.name, str)
    assert model.prior_at(None, like=torch.zeros(1)) is not None
    assert model.beta == 1
    assert model.has_decoder == (name != "arrays")
    assert model.auxiliary_dim == 0
    assert model.image_shape is None
    assert isinstance(model.flattens_images, bool)
    for value, kind in ((model.likelihood, str), (model.precision, float)):
        assert value is None or isinstance(value, kind)


@pytest.mark.parametrize("make", [Minimal, Module])
def test_a_users_class_works_everywhere(make, tmp_path):
    torch.manual_seed(0)
    model = make()
    x = X.numpy().astype(np.float64)
    assert vs.regime.of_model(model, x).latent_dim == 2
    assert vs.regime.advise(model, x).latents <= 2
    assert vs.regime.prune(model, x, keep=[0], tolerance=10.0).latent_dim == 1
    found = vs.diagnose(model, x)
    assert "decoder" not in found.skipped
    assert found.name == model.name
    assert len(found.summary()) == 2
    found.to_html(tmp_path / "page.html")
    session = vs.explorer.Session.of(model, x)
    assert len(session.decode(0, [0.0, 1.0])["values"]) == 4
    stable = vs.diagnose([model, make()], x)
    assert stable.evidence.stability is not None


def test_a_module_is_diagnosed_in_evaluation_mode():
    model = Module()
    first, second = (vs.diagnose(model, X).to_data() for _ in range(2))
    assert first == second
    assert model.training


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (torch.nn.Linear(2, 2), r"got Linear; .*vs\.adapters\.from_callables, or inherit from vs\.LatentModel"),
        ([adapted(), None], r"got NoneType; .*vs\.adapters\.from_callables, or inherit from vs\.LatentModel"),
        ([], "got an empty list"),
        (Module(latent_dim=2).encoder, "got Linear"),
    ],
)
def test_what_is_not_a_model_is_explained(models, message):
    with pytest.raises(InputError, match=message):
        as_models(models)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_class_without_latent_dim_is_explained():
    class Forgetful(vs.LatentModel):
        def encode(self, x):
            return x, x

        def decode(self, z):
            return z

    with pytest.raises(InputError, match=r"Forgetful has no spec; set self.spec = vs.ModelSpec\(latent_dim=\.\.\.\)"):
        as_models(Forgetful())
    model = Forgetful()
    for spec, message in (
        ({"latent_dim": 2}, "must be a vs.ModelSpec"),
        (vs.ModelSpec(2), "latent_dim of Forgetful is 3"),
    ):
        model.spec, model.latent_dim = spec, 3
        with pytest.raises(InputError, match=message):
            as_models(model)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"latent_dim": 0}, "latent_dim must be at least 1"),
        ({"likelihood": "poisson"}, "likelihood .* must be one of gaussian, bernoulli"),
        ({"precision": -1.0}, "precision must be > 0"),
        ({"precision": 1.0, "likelihood": "bernoulli"}, "a Bernoulli likelihood has no precision"),
        ({"beta": -1.0}, "beta must be at least 0"),
        ({"posterior_family": "flow"}, "posterior_family must be one of diagonal, marginals"),
        ({"image_shape": (0, 2, 2)}, "image_shape"),
        ({"prior": "normal"}, "prior must be one of vaescope's"),
    ],
)
def test_a_spec_that_cannot_be_is_explained(fields, message):
    with pytest.raises(InputError, match=message):
        vs.ModelSpec(**{"latent_dim": 2} | fields)


def test_functions_take_a_spec_or_its_fields():
    spec = vs.ModelSpec(2, "mine", precision=4.0, image_shape=(1, 2, 2))
    encode, decode = (lambda x: (x[:, :2], 0.1 + 0 * x[:, :2])), (lambda z: z.repeat(1, 2))
    one = vs.adapters.from_callables(encode=encode, decode=decode, spec=spec)
    other = vs.adapters.from_callables(
        encode=encode, decode=decode, latent_dim=2, name="mine", precision=4.0, image_shape=(1, 2, 2)
    )
    for name in ("latent_dim", "name", "likelihood", "precision", "image_shape", "has_decoder"):
        assert getattr(one, name) == getattr(other, name)
    with pytest.raises(InputError, match="precision and spec= are given"):
        vs.adapters.from_callables(encode=encode, spec=spec, precision=2.0)
    with pytest.raises(InputError, match="latent_dim is required"):
        vs.adapters.from_callables(encode=encode)


# repairs --------------------------------------------------------------------------------------


def test_log_variances_are_repaired():
    found = repair(adapted(encode=lambda x: (x[:, :2], -2 + 0 * x[:, :2])), X, None, 10)
    assert found.model.scale == "log-variance"
    assert not found.zero_variance
    torch.testing.assert_close(found.sample.variance, torch.full((10, 2), -2.0).exp())
    torch.testing.assert_close(found.model.encode(X)[1], torch.full((60, 2), -2.0).exp())


def test_zero_variances_are_replaced():
    found = repair(adapted(encode=lambda x: (x[:, :2], 0 * x[:, :2])), X, None, 10)
    assert (found.model.scale, found.zero_variance) == ("variance", True)
    assert (found.sample.variance > 0).all()
    assert (found.model.encode(X)[1] > 0).all()


def test_logits_are_repaired():
    found = repair(adapted(decode=lambda z: 5 * z, likelihood="bernoulli"), X, None, 10)
    assert found.model.logits
    torch.testing.assert_close(found.sample.decoded, torch.sigmoid(5 * found.sample.mean))
    assert not repair(adapted(decode=torch.sigmoid, likelihood="bernoulli"), X, None, 10).model.logits


def test_other_priors_become_normal():
    model = with_normal_prior(adapted(prior=vs.Uniform(-1.0, 1.0)))
    assert isinstance(model.prior, vs.Normal)
    assert float(model.prior.variance) == pytest.approx(1 / 3)
    assert with_normal_prior(adapted()).normal_prior is None


def test_errors_of_a_user_become_one_line():
    class Broken(Minimal):
        def decode(self, z):
            raise KeyError("weights\nand more")

    with pytest.raises(InputError, match=r"decode failed on \(60, 4\): KeyError: 'weights"):
        RepairedModel(Broken()).decode(X)


def test_only_images_are_drawn():
    assert drawable_shape(adapted(image_shape=(1, 2, 2)), 4) == (1, 2, 2)
    assert drawable_shape(adapted(image_shape=(2, 2, 1)), 4) is None  # two channels have no colours
    assert drawable_shape(adapted(image_shape=(1, 2, 2)), 5) is None
    assert drawable_shape(adapted(), 4) is None
