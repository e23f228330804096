"""Other ways to train many small VAEs, for comparison with a stack: the same model, data, batch size and optimiser.

Every contestant is an object whose call trains one epoch and returns the number of model-steps. Their model has the
same sizes as the stack's; parameters are initialised by each library's own rule, which does not affect speed.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.timing import timed
from vaescope.data.dataset import ArrayRows
from vaescope.models.mlp import smooth_leaky_relu
from vaescope.training.batches import Batches
from vaescope.training.step import adam_, adam_scales

MEMBERS, BATCH, DIM, HIDDEN, SAMPLES = 100, 64, 3, 30, 6400
SHAPES = [(DIM, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 2 * DIM), (DIM, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, DIM)]


# one model at a time --------------------------------------------------------------------------


class SmoothLeakyReLU(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return 0.2 * h + 0.8 * F.softplus(h)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN),
        SmoothLeakyReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        SmoothLeakyReLU(),
        nn.Linear(HIDDEN, outputs),
    )


class PlainVAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(DIM, 2 * DIM), mlp(DIM, DIM)

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        mean, log_variance = self.encoder(x).chunk(2, dim=-1)
        noise = torch.randn_like(mean) if noise is None else noise
        z = mean + (0.5 * log_variance).exp() * noise
        error = (x - self.decoder(z)).square().sum(-1)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)
        return (0.5 * error + kl).mean()


class PlainLoop:
    """A typical PyTorch loop: nn.Module, DataLoader, torch.optim.Adam."""

    def __init__(self) -> None:
        self.model = PlainVAE()
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.loader = DataLoader(TensorDataset(torch.randn(SAMPLES, DIM)), batch_size=BATCH, shuffle=True)
        self()

    def __call__(self) -> int:
        for (x,) in self.loader:
            loss = self.model(x)
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
        return len(self.loader)


class PythaeTrainer:
    """pythae's own trainer on the same networks; its set-up before the first step is not counted."""

    def __init__(self) -> None:
        from pythae.models import VAE as PythaeVAE
        from pythae.models import VAEConfig
        from pythae.models.base.base_utils import ModelOutput
        from pythae.models.nn import BaseDecoder, BaseEncoder

        class Encoder(BaseEncoder):
            def __init__(self) -> None:
                super().__init__()
                self.net = mlp(DIM, 2 * DIM)

            def forward(self, x: Tensor) -> ModelOutput:
                mean, log_variance = self.net(x).chunk(2, dim=-1)
                return ModelOutput(embedding=mean, log_covariance=log_variance)

        class Decoder(BaseDecoder):
            def __init__(self) -> None:
                super().__init__()
                self.net = mlp(DIM, DIM)

            def forward(self, z: Tensor) -> ModelOutput:
                return ModelOutput(reconstruction=self.net(z))

        config = VAEConfig(input_dim=(DIM,), latent_dim=DIM, reconstruction_loss="mse")
        self.model = PythaeVAE(config, encoder=Encoder(), decoder=Decoder())
        self.data = torch.randn(SAMPLES, DIM)

    def timed_epoch(self) -> tuple[float, int]:
        from pythae.data.datasets import BaseDataset
        from pythae.trainers import BaseTrainer, BaseTrainerConfig

        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            settings = BaseTrainerConfig(output_dir=folder, num_epochs=1, learning_rate=1e-3, no_cuda=True)
            trainer = BaseTrainer(self.model, BaseDataset(self.data, torch.zeros(SAMPLES)), training_config=settings)
            trainer.prepare_training()

            def epoch() -> int:
                trainer.train_step(epoch=1)
                return SAMPLES // BATCH

            return timed(epoch)


# many models at once --------------------------------------------------------------------------


class _Stacked:
    """An epoch over the batches of a stack with some compiled step."""

    def __init__(self, params: dict[str, Tensor], loss: Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]) -> None:
        self.params = params
        self.moments = tuple({name: torch.zeros_like(p) for name, p in params.items()} for _ in range(2))
        data = torch.randn(1, SAMPLES, DIM)
        self.batches = Batches(
            ArrayRows(data), members=[(s, 0) for s in range(MEMBERS)], batch_size=BATCH, latent_dim=DIM
        )
        self.count = 0

        def step(params: Any, moments: Any, scales: Tensor, x: Tensor, noise: Tensor) -> Tensor:
            gradients, value = torch.func.grad_and_value(loss)(params, x, noise)
            adam_(params, gradients, moments, scales)
            return value

        self.step = torch.compile(step)
        self()

    def __call__(self) -> int:
        for x, noise in self.batches.epoch():
            self.count += 1
            scales = adam_scales(self.count, 1e-3, x.device)
            self.step(self.params, self.moments, scales, x.contiguous(), noise.contiguous())
        return self.batches.steps * MEMBERS


class BatchMajorStack(_Stacked):
    """The former layout of a stack, compiled: activations (members, batch, units), weights (members, in, out)."""

    def __init__(self) -> None:
        params = {}
        for k, (i, o) in enumerate(SHAPES):
            params[f"w{k}"], params[f"b{k}"] = torch.randn(MEMBERS, i, o) / i**0.5, torch.zeros(MEMBERS, 1, o)
        super().__init__(params, self.loss)

    @staticmethod
    def loss(params: dict[str, Tensor], x: Tensor, noise: Tensor) -> Tensor:
        def network(h: Tensor, first: int) -> Tensor:
            for k in range(first, first + 3):
                h = torch.bmm(h, params[f"w{k}"]) + params[f"b{k}"]
                h = smooth_leaky_relu(h) if k < first + 2 else h
            return h

        outputs = network(x, 0)
        mean, log_variance = outputs[..., :DIM], outputs[..., DIM:]
        error = (x - network(mean + (0.5 * log_variance).exp() * noise, 3)).square().sum(-1)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)
        return (0.5 * error + kl).mean(-1).sum()


class ModuleVmap(_Stacked):
    """`torch.func.vmap` over the parameters of an nn.Module, compiled."""

    def __init__(self) -> None:
        models = [PlainVAE() for _ in range(MEMBERS)]
        params, _ = torch.func.stack_module_state(models)  # type: ignore[arg-type]
        base = PlainVAE()

        def one(own: dict[str, Tensor], x: Tensor, noise: Tensor) -> Tensor:
            value: Tensor = torch.func.functional_call(base, own, (x, noise))
            return value

        detached = {name: value.detach().clone() for name, value in params.items()}
        super().__init__(detached, lambda p, x, n: torch.func.vmap(one)(p, x, n).sum())


class JaxVmap:
    """JAX: `vmap` over members, `scan` over the steps of an epoch, everything in one jitted function."""

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        self.jax = jax
        key = jax.random.PRNGKey(0)
        keys = jax.random.split(key, MEMBERS)

        def init(key: Any) -> list[Any]:
            parts = jax.random.split(key, len(SHAPES))
            return [
                (jax.random.normal(k, (i, o)) / i**0.5, jnp.zeros(o)) for k, (i, o) in zip(parts, SHAPES, strict=True)
            ]

        def activation(h: Any) -> Any:
            return 0.2 * h + 0.8 * jax.nn.softplus(h)

        def network(layers: Any, h: Any) -> Any:
            for k, (w, b) in enumerate(layers):
                h = h @ w + b
                h = activation(h) if k < len(layers) - 1 else h
            return h

        def loss(params: Any, x: Any, noise: Any) -> Any:
            outputs = network(params[:3], x)
            mean, log_variance = outputs[:, :DIM], outputs[:, DIM:]
            error = ((x - network(params[3:], mean + jnp.exp(0.5 * log_variance) * noise)) ** 2).sum(-1)
            kl = 0.5 * (mean**2 + jnp.exp(log_variance) - 1 - log_variance).sum(-1)
            return (0.5 * error + kl).mean()

        def adam(value: Any, gradient: Any, first: Any, second: Any, step: Any) -> Any:
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            scaled = first / (1 - 0.9**step) / (jnp.sqrt(second / (1 - 0.999**step)) + 1e-8)
            return value - 1e-3 * scaled, first, second

        def one_step(state: Any, data: Any) -> Any:
            params, first, second, step = state
            gradients = jax.grad(loss)(params, *data)
            moved = jax.tree.map(partial(adam, step=step), params, gradients, first, second)
            is_leaf = lambda v: isinstance(v, tuple) and len(v) == 3  # noqa: E731
            parts = [jax.tree.map(lambda v, k=k: v[k], moved, is_leaf=is_leaf) for k in range(3)]
            return (*parts, step + 1), None

        def epoch(state: Any, key: Any, data: Any) -> Any:
            order, draw = jax.random.split(key)
            rows = jax.random.permutation(order, SAMPLES).reshape(-1, BATCH)
            noise = jax.random.normal(draw, (len(rows), BATCH, DIM))
            return jax.lax.scan(one_step, state, (data[rows], noise))[0]

        params = jax.vmap(init)(keys)
        zeros = jax.tree.map(jnp.zeros_like, params)
        self.state = (params, zeros, zeros, jnp.ones(MEMBERS))
        self.data = jax.random.normal(key, (SAMPLES, DIM))
        self.epoch = jax.jit(jax.vmap(epoch, in_axes=(0, 0, None)))
        self.keys = keys
        self()

    def __call__(self) -> int:
        self.state = self.jax.block_until_ready(self.epoch(self.state, self.keys, self.data))
        self.keys = self.jax.vmap(lambda k: self.jax.random.split(k)[0])(self.keys)
        return SAMPLES // BATCH * MEMBERS


class MatrixProducts:
    """The matrix products of one step alone: forward, input gradients, weight gradients.

    Args:
        batch_innermost: products of (out, in) weights with (in, batch) activations, as in a stack.
    """

    def __init__(self, *, batch_innermost: bool) -> None:
        self.innermost = batch_innermost
        self.inputs, self.weights, self.gradients = [], [], []
        for i, o in SHAPES:
            x, w, g = torch.randn(MEMBERS, BATCH, i), torch.randn(MEMBERS, i, o), torch.randn(MEMBERS, BATCH, o)
            tensors = (t.mT.contiguous() if batch_innermost else t for t in (x, w, g))
            for group, tensor in zip((self.inputs, self.weights, self.gradients), tensors, strict=True):
                group.append(tensor)

    def __call__(self) -> int:
        for _ in range(50):
            for a, w, g in zip(self.inputs, self.weights, self.gradients, strict=True):
                if self.innermost:
                    torch.bmm(w, a)
                    torch.bmm(w.mT, g)
                    torch.bmm(g, a.mT)
                else:
                    torch.bmm(a, w)
                    torch.bmm(g, w.mT)
                    torch.bmm(a.mT, g)
        return 50 * MEMBERS
