"""Models in files: weights with a class, and what is refused in one line; see tests/foreign for other frameworks."""

import json
import pickle
import re
import sys

import numpy as np
import pytest
import torch
from torch import nn

import vaescope as vs
from vaescope.cli.inputs import ModelOptions, load_models
from vaescope.cli.main import dispatch
from vaescope.data import Dataset

MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=16, latents=2):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 2 * latents))
        self.decoder = nn.Sequential(nn.Linear(latents, width), nn.Tanh(), nn.Linear(width, 8))

class Methods(Net):
    def encode(self, x):
        return self.encoder(x).chunk(2, 1)

    def decode(self, z):
        return self.decoder(z)

class Needs(Net):
    def __init__(self, width):
        super().__init__(width)

def make():
    return Needs(24)

def number():
    return 3

class Broken(nn.Module):
    def __init__(self):
        raise RuntimeError("no\\nway")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Python, data, and the same weights in every kind of file."""
    path = tmp_path_factory.mktemp("files")
    (path / "net.py").write_text(MODULE)
    sys.path.insert(0, str(path))
    import net

    torch.manual_seed(0)
    module = net.Net()
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.7)
    np.save(path / "x.npy", (module.decoder(torch.randn(300, 2)) + 0.1 * torch.randn(300, 8)).detach().numpy())
    weights = module.state_dict()
    torch.save(weights, path / "plain.pt")
    torch.save({"state_dict": weights, "hyper_parameters": {"width": 16, "lr": 0.1}, "epoch": 3}, path / "lit.ckpt")
    torch.save({"state_dict": {f"module.{k}": v for k, v in weights.items()}}, path / "parallel.ckpt")
    wide = net.make().state_dict()
    torch.save(wide, path / "wide.ckpt")
    torch.save({"state_dict": wide, "hyper_parameters": {"width": 24}}, path / "said.ckpt")
    torch.save(module, path / "whole.pt")
    torch.save({"state_dict": {}, "callbacks": Net}, path / "objects.ckpt")
    torch.save({"epoch": 3}, path / "none.ckpt")
    torch.jit.script(module.encoder).save(str(path / "script.pt"))
    (path / "broken.ckpt").write_bytes(b"not a file")
    batch = torch.export.Dim("batch", min=1)
    torch.export.save(
        torch.export.export(module.encoder, (torch.zeros(2, 8),), dynamic_shapes=({0: batch},)), path / "encoder.pt2"
    )
    from safetensors.torch import save_file

    save_file(weights, path / "safe.safetensors")
    (path / "cells").mkdir()
    torch.save({"attr_dict": {}}, path / "cells" / "model.pt")
    (path / "vae").mkdir()
    (path / "vae" / "config.json").write_text(json.dumps({"_class_name": "UNet2DModel", "_diffusers_version": "0.30"}))
    yield path
    sys.path.remove(str(path))


class Net:
    """Cannot be unpickled with weights only."""


def diagnosed(folder, capsys, *arguments):
    """The exit code, and what was printed or the line of the error."""
    try:
        code = dispatch(["diagnose", *(a.replace("DIR", str(folder)) for a in arguments), "--budget", "2"])
    except (vs.InputError, vs.RunError) as error:
        return 2, str(error)
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "made"),
    [
        ("plain.pt", "DIR/net.py:Net"),
        ("plain.pt", "net.Net"),
        ("plain.pt", "net:Methods"),
        ("lit.ckpt", "net:Net"),
        ("parallel.ckpt", "net:Net"),
        ("safe.safetensors", "net:Net"),
        ("wide.ckpt", "net:make"),
        ("said.ckpt", "net:Needs"),
    ],
)
def test_weights_with_their_class(folder, file, made):
    import net

    module = net.make() if "net:make" in made or "Needs" in made else net.Net()
    module.load_state_dict(torch.load(folder / ("wide.ckpt" if type(module) is net.Needs else "plain.pt")))
    x = torch.from_numpy(np.load(folder / "x.npy"))
    options = ModelOptions(module=made.replace("DIR", str(folder)), precision=100.0)
    (model,) = load_models(str(folder / file), options, lambda: Dataset("x", x))
    mean, log_variance = module.encoder(x).chunk(2, 1)
    torch.testing.assert_close(model.encode(x), (mean, log_variance.exp()))
    torch.testing.assert_close(model.decode(mean), module.decoder(mean))
    assert (model.latent_dim, model.precision, model.likelihood) == (2, 100.0, "gaussian")


def test_weights_are_diagnosed(folder, capsys):
    options = ["--class", "net:Net", "--data", "DIR/x.npy", "--precision", "100"]
    code, text = diagnosed(folder, capsys, "DIR/lit.ckpt", *options)
    assert (code, "lit" in text) == (0, True), text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["DIR/plain.pt"], "has weights alone: pass --class FILE.py:Module"),
        (["DIR/plain.pt", "--class", "net:Needs"], "Needs needs width, which its weights do not say; pass --class"),
        (["DIR/wide.ckpt", "--class", "net:Net"], "does not fit Net: .*size mismatch for encoder.0.weight"),
        (["DIR/plain.pt", "--class", "net:number"], "--class must name a torch module or a function"),
        (["DIR/plain.pt", "--class", "net:Broken"], "Broken cannot be made: RuntimeError: no"),
        (["DIR/plain.pt", "--class", "net:nothing"], "does not define nothing"),
        (["DIR/whole.pt", "--class", "net:Net"], "has more than weights, and nothing is unpickled"),
        (["DIR/objects.ckpt", "--class", "net:Net"], r"torch.save\(torch.load\(.*weights_only=False\)\['state_dict'\]"),
        (["DIR/none.ckpt", "--class", "net:Net"], "has no weights by name"),
        (["DIR/broken.ckpt", "--class", "net:Net"], "broken.ckpt"),
        (["DIR/script.pt", "--class", "net:Net"], "is a TorchScript program"),
        (["DIR/encoder.pt2"], "torch.export.load unpickles parts of it: where you trust it"),
        (["DIR/cells"], "saves a pickle: where you trust it, write a Python file with vae = vs.adapters.from_scvi"),
        (["DIR/x.npy"], "is not a run folder"),
        (["DIR/net.py:make", "--class", "net:Net"], "--class is for models in files"),
        (["DIR/net.py:make", "--latent-dim", "3"], "--latent-dim is for models in files"),
        (["DIR/plain.pt", "--class", "net:Net", "--scale", "tiny"], "scale must be"),
    ],
)
def test_what_cannot_be_opened_is_one_line(folder, capsys, arguments, message):
    code, text = diagnosed(folder, capsys, *arguments, "--data", "DIR/x.npy")
    assert code == 2
    assert "\n" not in text
    assert re.search(message, text), text


def test_data_are_needed_first(folder, capsys):
    code, text = diagnosed(folder, capsys, "DIR/plain.pt", "--class", "net:Net")
    assert (code, "--data is required" in text) == (2, True)


def test_no_file_is_unpickled(folder, capsys, tmp_path):
    """A pickle that would write a file when it is opened."""
    mark = tmp_path / "executed"

    class Bomb:
        def __reduce__(self):
            return (open, (str(mark), "w"))

    for name in ("bomb.ckpt", "bomb.pt", "bomb.bin", "bomb.pkl", "bomb.pt2", "bomb.h5"):
        with open(tmp_path / name, "wb") as file:
            pickle.dump({"state_dict": Bomb()}, file)
        zipped = tmp_path / f"zip-{name}"
        torch.save({"state_dict": Bomb()}, zipped)
        for path in (tmp_path / name, zipped):
            code, text = diagnosed(folder, capsys, str(path), "--class", "net:Net", "--data", "DIR/x.npy")
            assert code == 2, text
    assert not mark.exists()
