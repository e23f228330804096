"""One set of weights in every framework: the same findings, and the same ELBO to 1e-5; needs the extra `foreign`."""

import dataclasses
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vaescope as vs

pytestmark = pytest.mark.filterwarnings("ignore")
LATENTS, SIZE, HIDDEN = 4, 8, 16


@dataclasses.dataclass
class Reference:
    """A trained model in PyTorch, and what is found about it."""

    encoder: nn.Sequential
    decoder: nn.Sequential
    x: Tensor

    def __post_init__(self):
        self.model = vs.adapters.from_modules(self.encoder, self.decoder, latent_dim=LATENTS, precision=25.0)
        self.found = diagnosed(self.model, self.x, budget=8.0)

    def weights(self):
        """(name of a layer, weight with inputs first, bias) of every layer."""
        for name, network in (("encoder", self.encoder), ("decoder", self.decoder)):
            for k, layer in enumerate((network[0], network[2])):
                yield f"{name}{k}", layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy()

    def check(self, model, *, without=()):
        """The same findings, and the same ELBO of every sample."""
        found = diagnosed(model, self.x)
        assert [f.code for f in found.findings] == [f.code for f in self.found.findings]
        terms, expected = found.evidence.elbo, self.found.evidence.elbo
        torch.testing.assert_close(elbo(terms).mean(), elbo(expected).mean(), rtol=1e-5, atol=0.0)
        torch.testing.assert_close(elbo(terms), elbo(expected), rtol=1e-4, atol=1e-4)
        late = _for_time(self.found) | _for_time(found) | {"validity"}  # which needs the gap, and so time
        assert ({*self.found.skipped} | {*without}) - late == {*found.skipped} - late
        if found.evidence.gap is not None and self.found.evidence.gap is not None:
            both = [f.evidence.gap.family for f in (found, self.found)]
            shared = min(map(len, both))  # as many as there was time for, the same ones first
            torch.testing.assert_close(both[0][:shared], both[1][:shared], rtol=1e-3, atol=1e-4)
        return found


def _for_time(found):
    """Analyses that were skipped for lack of time: this machine may be busy."""
    return {name for name, reason in found.skipped.items() if "it would take" in reason or "time" in reason}


def elbo(terms):
    return -(terms.rate + terms.distortion)


def diagnosed(model, x, budget=20.0):
    return vs.diagnose(model, x, budget=budget, progress=None)


@pytest.fixture(scope="session")
def reference():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(SIZE, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2 * LATENTS))
    decoder = nn.Sequential(nn.Linear(LATENTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, SIZE))
    x = (torch.randn(2600, 2) @ torch.randn(2, SIZE)).tanh() + 0.2 * torch.randn(2600, SIZE)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 5e-3)
    for step in range(600):
        batch = x[(torch.arange(64) + 64 * step) % 2000]
        mean, log_variance = encoder(batch).chunk(2, dim=1)
        z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        kl = 0.5 * (log_variance.exp() + mean**2 - 1 - log_variance).sum(1)
        loss = (12.5 * (decoder(z) - batch).square().sum(1) + kl).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Reference(encoder.eval(), decoder.eval(), x[2000:2300])


def split(found, exp):
    return found[:, :LATENTS], exp(found[:, LATENTS:])


# JAX ------------------------------------------------------------------------------------------


def test_numpy(reference):
    w = {name: (weight, bias) for name, weight, bias in reference.weights()}

    def network(name, v):
        return np.tanh(v @ w[name + "0"][0] + w[name + "0"][1]) @ w[name + "1"][0] + w[name + "1"][1]

    model = vs.adapters.from_callables(
        encode=lambda x: split(network("encoder", x), np.exp),
        decode=lambda z: network("decoder", z),
        latent_dim=LATENTS,
        precision=25.0,
    )
    found = reference.check(model, without={"gap", "column norm"})
    assert found.skipped["gap"] == "decode computes in NumPy, which has no gradients; in JAX it has them"
    assert found.evidence.geometry is not None  # by differences


@pytest.mark.parametrize("explicit", [True, False])
def test_jax(reference, explicit):
    jnp = pytest.importorskip("jax.numpy")
    params = {name: {"kernel": jnp.asarray(w), "bias": jnp.asarray(b)} for name, w, b in reference.weights()}

    def layer(p, name, v):
        return v @ p[name]["kernel"] + p[name]["bias"]

    def encode(p, x):
        return split(layer(p, "encoder1", jnp.tanh(layer(p, "encoder0", x))), jnp.exp)

    def decode(p, z):
        return layer(p, "decoder1", jnp.tanh(layer(p, "decoder0", z)))

    known = {"latent_dim": LATENTS, "precision": 25.0}
    if explicit:
        model = vs.adapters.from_jax(encode, decode, params=params, **known)
    else:  # recognised by their results
        model = vs.adapters.from_callables(
            encode=lambda x: encode(params, x), decode=lambda z: decode(params, z), **known
        )
    reference.check(model)
    z = torch.randn(5, LATENTS, dtype=torch.float64)
    exact = vs.theory.jacobian(reference.model.decode, z)
    torch.testing.assert_close(vs.theory.jacobian(model.decode, z), exact, rtol=1e-10, atol=1e-10)


def test_flax(reference):
    linen = pytest.importorskip("flax.linen")

    class Network(linen.Module):
        names: tuple[str, str]
        sizes: tuple[int, int]

        @linen.compact
        def __call__(self, v):
            v = linen.tanh(linen.Dense(self.sizes[0], name=self.names[0])(v))
            return linen.Dense(self.sizes[1], name=self.names[1])(v)

    jax = pytest.importorskip("jax")
    encoder = Network(("encoder0", "encoder1"), (HIDDEN, 2 * LATENTS))
    decoder = Network(("decoder0", "decoder1"), (HIDDEN, SIZE))
    loaded = {"params": {name: {"kernel": w, "bias": b} for name, w, b in reference.weights()}}

    def encode(p, x):
        return split(encoder.apply(p["encoder"], x), jax.numpy.exp)

    def decode(p, z):
        return decoder.apply(p["decoder"], z)

    def adapt(params):
        return vs.adapters.from_jax(encode, decode, params=params, latent_dim=LATENTS, precision=25.0)

    reference.check(adapt({"encoder": loaded, "decoder": loaded}))
    key = jax.random.key(0)
    initial = {"encoder": encoder.init(key, np.zeros((1, SIZE))), "decoder": decoder.init(key, np.zeros((1, LATENTS)))}
    found = vs.diagnose(adapt(initial), reference.x, progress=None)
    assert [f.code for f in found.findings] == ["untrained"]


def test_parameters_of_jax_are_read_at_every_call():
    jnp = pytest.importorskip("jax.numpy")
    state = {"w": jnp.ones((2, 2))}
    model = vs.adapters.from_jax(
        lambda p, x: (x @ p["w"], 0 * x + 1), lambda p, z: z @ p["w"], params=lambda: state, latent_dim=2
    )
    z = torch.ones(1, 2)
    assert float(model.decode(z)[0, 0]) == 2
    state["w"] = 2 * state["w"]
    assert float(model.decode(z)[0, 0]) == 4


def test_equinox_and_haiku(reference):
    jax = pytest.importorskip("jax")
    eqx = pytest.importorskip("equinox")
    hk = pytest.importorskip("haiku")
    w = {name: (weight, bias) for name, weight, bias in reference.weights()}
    decoder = eqx.nn.MLP(LATENTS, SIZE, HIDDEN, 1, activation=jax.numpy.tanh, key=jax.random.key(0))
    for k in range(2):
        weight, bias = w[f"decoder{k}"]
        decoder = eqx.tree_at(lambda m, k=k: (m.layers[k].weight, m.layers[k].bias), decoder, (weight.T, bias))
    encoder = hk.without_apply_rng(
        hk.transform(lambda x: hk.nets.MLP([HIDDEN, 2 * LATENTS], activation=jax.numpy.tanh)(x))
    )
    params = {f"mlp/~/linear_{k}": dict(zip("wb", w[f"encoder{k}"], strict=True)) for k in range(2)}
    model = vs.adapters.from_jax(
        lambda x: split(encoder.apply(params, x), jax.numpy.exp),
        jax.vmap(decoder),
        latent_dim=LATENTS,
        precision=25.0,
    )
    reference.check(model)


def test_conditional_functions_of_jax_with_labels():
    jnp = pytest.importorskip("jax.numpy")
    shifts, weights = np.random.default_rng(0).normal(size=(3, 8)), np.random.default_rng(1).normal(size=(2, 8))
    rng = np.random.default_rng(2)
    y = np.arange(600) % 3
    x = rng.normal(size=(600, 2)) @ weights + shifts[y] + 0.3 * rng.normal(size=(600, 8))
    back = np.linalg.pinv(weights)

    def adapt(xp, from_functions):
        return from_functions(
            encode=lambda x, y: ((x - xp.asarray(shifts)[y]) @ back, 0.05 + 0 * x[:, :2]),
            decode=lambda z, y: z @ weights + xp.asarray(shifts)[y],
            latent_dim=2,
            precision=11.0,
        )

    found = {
        name: vs.diagnose(adapt(xp, make), x, auxiliary=y, progress=None, budget=20.0)
        for name, xp, make in (("numpy", np, vs.adapters.from_callables), ("jax", jnp, vs.adapters.from_jax))
    }
    assert [f.code for f in found["jax"].findings] == [f.code for f in found["numpy"].findings]
    torch.testing.assert_close(*(elbo(f.evidence.elbo).mean() for f in found.values()), rtol=1e-5, atol=0.0)
    assert found["jax"].evidence.geometry is not None
    assert "gap" not in {*found["jax"].skipped} - _for_time(found["jax"])


# Keras: a backend is chosen when it is imported, so each has a process of its own -------------------


@pytest.fixture(scope="session")
def weights_file(reference, tmp_path_factory):
    """Weights, samples and what is found about them, for other processes."""
    folder = tmp_path_factory.mktemp("reference")
    arrays = {
        f"{name}.{part}": v for name, *values in reference.weights() for part, v in zip("wb", values, strict=True)
    }
    found = reference.found
    np.savez(folder / "reference.npz", x=reference.x.numpy(), elbo=float(elbo(found.evidence.elbo).mean()), **arrays)
    return folder / "reference.npz", [f.code for f in found.findings]


KERAS = """
import sys
import keras
import numpy as np
import torch
import vaescope as vs
from keras import layers

stored = np.load(sys.argv[1])
latents, hidden, size = 4, 16, 8
encoder = keras.Sequential([layers.Input((size,)), layers.Dense(hidden, "tanh"), layers.Dense(2 * latents)])
decoder = keras.Sequential([layers.Input((latents,)), layers.Dense(hidden, "tanh"), layers.Dense(size)])


def codes(model, budget):
    found = vs.diagnose(model, stored["x"], budget=budget, progress=None)
    return found, [f.code for f in found.findings]


initial = codes(vs.adapters.from_keras(encoder, decoder, precision=25.0), 5.0)
assert initial[1] == ["untrained"], initial
for name, network in (("encoder", encoder), ("decoder", decoder)):
    network.set_weights([stored[f"{name}{k}.{part}"] for k in range(2) for part in "wb"])
folder = sys.argv[1].rpartition("/")[0]
encoder.save(f"{folder}/encoder.keras")
decoder.save(f"{folder}/decoder.keras")
model = vs.adapters.from_keras(f"{folder}/encoder.keras", f"{folder}/decoder.keras", precision=25.0)
found, listed = codes(model, 20.0)
terms = found.evidence.elbo
assert abs(float(-(terms.rate + terms.distortion).mean()) / float(stored["elbo"]) - 1) < 1e-5
assert listed == sys.argv[2].split(","), listed
assert found.evidence.geometry is not None and found.evidence.regime.column_norm is not None, found.skipped

# images with channels last, an encoder that also returns a draw, and a model with both parts
given = keras.Input((6, 5, 3))
hidden = layers.Conv2D(4, 3, activation="relu")(given)
mean = layers.Dense(latents, name="mean")(layers.Flatten()(hidden))
log_variance = layers.Dense(latents, name="log_variance")(layers.Flatten()(hidden))
encoder = keras.Model(given, [mean, log_variance, mean + 0.0])
decoder = keras.Sequential([layers.Input((latents,)), layers.Dense(90), layers.Reshape((6, 5, 3))])


class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder


images = np.random.default_rng(0).random((40, 6, 5, 3)).astype("float32")
model = vs.adapters.from_keras(VAE(), precision=10.0)
first = torch.from_numpy(images).movedim(-1, 1)
expected = keras.ops.convert_to_numpy(encoder(images, training=False)[0])
np.testing.assert_allclose(model.encode(first)[0].detach(), expected, atol=1e-5)
z = torch.randn(4, latents)
flat = keras.ops.convert_to_numpy(decoder(z.numpy(), training=False)).transpose(0, 3, 1, 2).reshape(4, -1)
np.testing.assert_allclose(model.decode(z).detach(), flat, atol=1e-5)
found = vs.diagnose(model, images, progress=None, budget=5.0)  # in either layout
np.testing.assert_allclose(found.sample.mean, expected, atol=1e-5)
assert [f.code for f in found.findings] == ["untrained"], found.findings

for wrong, message in (("m.h5", "expected a .keras file"), (sys.argv[1], "expected a .keras file"), (7, "built Keras")):
    try:
        vs.adapters.from_keras(wrong)
    except vs.InputError as error:
        assert message in str(error), error
    else:
        raise AssertionError(wrong)
"""


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras(backend, weights_file):
    if not all(map(importlib.util.find_spec, ("keras", backend))):  # importing Keras would choose its backend
        pytest.skip("needs Keras")
    file, codes = weights_file
    settings = {**os.environ, "KERAS_BACKEND": backend, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", KERAS, str(file), ",".join(codes)], env=settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


# Pyro and NumPyro -----------------------------------------------------------------------------


class PyroVAE(nn.Module):
    def __init__(self, reference):
        super().__init__()
        self.encoder, self.decoder = reference.encoder, reference.decoder

    def model(self, x):
        pyro = pytest.importorskip("pyro")
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", pyro.distributions.Normal(x.new_zeros(len(x), LATENTS), 1.0).to_event(1))
            pyro.sample("x", pyro.distributions.Normal(self.decoder(z), 0.2).to_event(1), obs=x)

    def guide(self, x):
        pyro = pytest.importorskip("pyro")
        with pyro.plate("data", len(x)):
            mean, log_variance = self.encoder(x).chunk(2, dim=1)
            pyro.sample("z", pyro.distributions.Normal(mean, (log_variance / 2).exp()).to_event(1))


def test_pyro(reference):
    pytest.importorskip("pyro")
    vae = PyroVAE(reference)
    model = vs.adapters.from_pyro(vae.model, vae.guide, reference.x[:4])
    assert (model.latent_dim, model.likelihood) == (LATENTS, "gaussian")
    assert model.precision == pytest.approx(25.0, rel=1e-6)
    reference.check(model)


def test_numpyro(reference):
    numpyro = pytest.importorskip("numpyro")
    jnp = pytest.importorskip("jax.numpy")
    dist = numpyro.distributions
    params = {f"{name}.{part}": v for name, *both in reference.weights() for part, v in zip("wb", both, strict=True)}

    def network(name, v):
        w = {key: numpyro.param(key, jnp.zeros_like(params[key])) for key in params if key.startswith(name)}
        return jnp.tanh(v @ w[f"{name}0.w"] + w[f"{name}0.b"]) @ w[f"{name}1.w"] + w[f"{name}1.b"]

    def model(x):
        with numpyro.plate("data", len(x)):
            z = numpyro.sample("z", dist.Normal(jnp.zeros((len(x), LATENTS)), 1.0).to_event(1))
            numpyro.sample("x", dist.Normal(network("decoder", z), 0.2).to_event(1), obs=x)

    def guide(x):
        with numpyro.plate("data", len(x)):
            mean, variance = split(network("encoder", x), jnp.exp)
            numpyro.sample("z", dist.Normal(mean, jnp.sqrt(variance)).to_event(1))

    adapted = vs.adapters.from_numpyro(model, guide, reference.x[:4].numpy(), params=params)
    assert adapted.precision == pytest.approx(25.0, rel=1e-6)
    reference.check(adapted)
    with pytest.raises(vs.InputError, match="the prior depends on x"):
        vs.adapters.from_numpyro(guide, guide, reference.x[:4].numpy(), params=params)


def test_likelihoods_of_pyro_without_a_name():
    pyro = pytest.importorskip("pyro")

    def model(x):
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", pyro.distributions.Normal(x.new_zeros(len(x), 2), 1.0).to_event(1))
            pyro.sample("x", pyro.distributions.Laplace(torch.cat([z, -z], 1), 0.5).to_event(1), obs=x)

    def guide(x):
        with pyro.plate("data", len(x)):
            pyro.sample("z", pyro.distributions.Normal(x[:, :2] / 2, 0.3).to_event(1))

    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    adapted = vs.adapters.from_pyro(model, guide, x[:3])
    z = torch.randn(200, 2)
    expected = torch.distributions.Laplace(torch.cat([z, -z], 1), 0.5).log_prob(x).sum(1)
    torch.testing.assert_close(adapted.log_likelihood(x, z), expected)
    assert adapted.likelihood is None
    assert vs.diagnose(adapted, x, progress=None, budget=3.0).evidence.elbo is not None


# graphs of PyTorch, and ONNX --------------------------------------------------------------------


def test_torchscript_and_exported_programs(reference):
    batch = torch.export.Dim("batch", min=1)
    parts = ((reference.encoder, torch.zeros(2, SIZE)), (reference.decoder, torch.zeros(2, LATENTS)))
    exported = [torch.export.export(p, (v,), dynamic_shapes=({0: batch},)).module() for p, v in parts]
    for networks in ([torch.jit.script(part) for part, _ in parts], exported):
        model = vs.adapters.from_modules(*networks, latent_dim=LATENTS, precision=25.0)
        reference.check(model)


@pytest.mark.parametrize("export", [torch.jit.script, torch.jit.trace])
def test_untrained_scripted_models_are_recognised(export):
    torch.manual_seed(0)
    parts = ((nn.Sequential(nn.Linear(SIZE, 32), nn.Tanh(), nn.Linear(32, 4)), torch.zeros(2, SIZE)),)
    parts += ((nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, SIZE)), torch.zeros(2, 2)),)
    networks = [export(part) if export is torch.jit.script else export(part, v) for part, v in parts]
    model = vs.adapters.from_modules(*networks, latent_dim=2, precision=25.0)
    found = vs.diagnose(model, 3 + torch.randn(200, SIZE), progress=None, budget=5.0)
    assert [f.code for f in found.findings] == ["untrained"]


def test_onnx(reference, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    batch = torch.export.Dim("batch", min=1)
    sessions = []
    for k, (part, v) in enumerate(
        ((reference.encoder, torch.zeros(2, SIZE)), (reference.decoder, torch.zeros(2, LATENTS)))
    ):
        file = str(tmp_path / f"{k}.onnx")
        torch.onnx.export(part, (v,), file, dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
        sessions.append(onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]))

    def run(session, v):
        return session.run(None, {session.get_inputs()[0].name: np.asarray(v, dtype="float32")})[0]

    model = vs.adapters.from_callables(
        encode=lambda x: split(run(sessions[0], x), np.exp),
        decode=lambda z: run(sessions[1], z),
        latent_dim=LATENTS,
        precision=25.0,
    )
    reference.check(model, without={"gap", "column norm"})
