"""Models from settings, and from the configuration of a run folder."""

import json

import pytest

import vaescope as vs
from vaescope.core.serialization import plain_fields
from vaescope.models import ConvNetworks, MLPNetworks
from vaescope.models.build import DataShape, build_model, model_from_config
from vaescope.settings import ModelSettings

IMAGES = DataShape(256, (1, 16, 16))


@pytest.mark.parametrize(
    ("network", "shape", "networks"),
    [
        ("auto", DataShape(3), MLPNetworks((8,))),
        ("mlp", IMAGES, MLPNetworks((8,))),
        ("auto", DataShape(100, (1, 10, 10)), MLPNetworks((8,))),  # sides are not multiples of 16
        ("auto", IMAGES, ConvNetworks((1, 16, 16))),
        ("conv", IMAGES, ConvNetworks((1, 16, 16))),
    ],
)
def test_the_networks_follow_settings_and_data(network, shape, networks):
    model = build_model(ModelSettings(latent_dim=2, network=network, hidden=(8,)), shape)
    assert model.networks == networks
    assert (model.observed_dim, model.latent_dim) == (shape.observed_dim, 2)


@pytest.mark.parametrize(
    ("settings", "shape", "noise"),
    [
        (
            ModelSettings(latent_dim=2, hidden=(5,), prior="uniform(low=-1, high=1)", posterior="full"),
            DataShape(3),
            "fixed",
        ),
        (ModelSettings(latent_dim=2, model="ivae", prior_mean="learned"), DataShape(3, None, 4), "learned"),
        (ModelSettings(latent_dim=2, likelihood="bernoulli", prior="beta(a=2, b=3)"), IMAGES, "optimal"),
    ],
)
def test_a_model_survives_the_configuration_of_a_run(settings, shape, noise):
    config = {"model": plain_fields(settings), "shape": plain_fields(shape), "noise": noise}
    again = model_from_config(json.loads(json.dumps(config)))
    model = build_model(settings, shape, noise=noise)
    assert repr(again) == repr(model)
    assert {k: v.shape for k, v in again.init([0]).items()} == {k: v.shape for k, v in model.init([0]).items()}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build_model(ModelSettings(network="conv"), DataShape(3)), "network='conv' needs images"),
        (lambda: model_from_config({}), "config.json must have 'model'"),
        (lambda: model_from_config({"model": {"latent_dim": "two"}}), "latent_dim must be an integer"),
    ],
)
def test_unusable_settings_are_refused(call, message):
    with pytest.raises(vs.InputError, match=message):
        call()
