"""Model-steps per second: a stack of 100 against other training loops and against its own matrix products.

One model-step is one optimisation step of one model: batch size 64, three observed and three latent dimensions, two
hidden layers of 30 units, Adam. Every contestant runs several rounds on this machine; its best round counts, because
other load only slows a round down.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.timing import ROUNDS, best_rate, timed
from vaescope.models import VAE
from vaescope.objectives import beta_elbo
from vaescope.training.batches import Batches
from vaescope.training.compilation import compile_stacked
from vaescope.training.step import adam_scales, make_step

MEMBERS, BATCH, DIM, HIDDEN, SAMPLES = 100, 64, 3, 30, 6400
SHAPES = [(DIM, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 2 * DIM), (DIM, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, DIM)]


class StackEpoch:
    """An epoch of the training loop: shuffling, noise, compiled step."""

    def __init__(self) -> None:
        model = VAE.mlp(DIM, DIM, hidden=(HIDDEN, HIDDEN))
        seeds = list(range(MEMBERS))
        data = torch.randn(1, SAMPLES, DIM)
        self.params = model.init(seeds)
        self.moments = tuple({name: torch.zeros_like(p) for name, p in self.params.items()} for _ in range(2))
        self.count = 0
        self.ones = torch.ones(MEMBERS)
        self.batches = Batches(data, members=[(s, 0) for s in seeds], batch_size=BATCH, latent_dim=DIM)
        self.step = compile_stacked(make_step(model, beta_elbo))
        self()

    def __call__(self) -> int:
        for x, noise in self.batches.epoch():
            self.count += 1
            scales = adam_scales(self.count, 1e-3, x.device)
            self.step(self.params, self.moments, scales, x, noise, self.ones, self.ones)
        return self.batches.steps * MEMBERS


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

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encoder(x).chunk(2, dim=-1)
        z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        error = (x - self.decoder(z)).square().sum(-1)
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1)
        return (0.5 * error + kl).mean()


class PlainEpoch:
    """A plain PyTorch loop: nn.Module, DataLoader, torch.optim.Adam."""

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


class PythaeEpochs:
    """pythae's trainer on the same networks, without its set-up before the first step."""

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

    def __call__(self) -> tuple[float, int]:
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


class Products:
    """Only the batched matrix products of a step: forward, input gradients, weight gradients."""

    def __init__(self) -> None:
        self.inputs = [torch.randn(MEMBERS, BATCH, i) for i, _ in SHAPES]
        self.weights = [torch.randn(MEMBERS, i, o) for i, o in SHAPES]
        self.gradients = [torch.randn(MEMBERS, BATCH, o) for _, o in SHAPES]

    def __call__(self) -> int:
        for _ in range(50):
            for a, w, g in zip(self.inputs, self.weights, self.gradients, strict=True):
                torch.bmm(a, w)
                torch.bmm(g, w.mT)
                torch.bmm(a.mT, g)
        return 50 * MEMBERS


def time_by_kind(epoch: StackEpoch) -> Table:
    """Shares of an epoch's time by kind of operation, from the profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as record:
        epoch()
    kinds = {
        "matrix products": 0.0,
        "random numbers and shuffling": 0.0,
        "gathering batches": 0.0,
        "compiled kernels": 0.0,
    }
    total = 0.0
    for event in record.key_averages():
        seconds = event.self_cpu_time_total
        total += seconds
        name = event.key
        if "bmm" in name:
            kinds["matrix products"] += seconds
        elif name in ("aten::randn", "aten::normal_", "aten::randperm"):
            kinds["random numbers and shuffling"] += seconds
        elif name in ("aten::index", "aten::stack", "aten::cat", "aten::copy_"):
            kinds["gathering batches"] += seconds
        elif "Compiled" in name or "Torch-Compiled" in name or name.startswith(("cpp_fused", "graph")):
            kinds["compiled kernels"] += seconds
    kinds["other: allocation, dispatch, guards"] = total - sum(kinds.values())
    table = Table("operation", "share of an epoch", box=None)
    for kind, seconds in kinds.items():
        table.add_row(kind, f"{100 * seconds / total:.0f} %")
    return table


def main() -> None:
    logging.disable(logging.WARNING)
    stack, plain, pythae, products = StackEpoch(), PlainEpoch(), PythaeEpochs(), Products()
    speed = {
        f"stack of {MEMBERS}, compiled": best_rate(lambda: timed(stack)),
        "plain PyTorch loop": best_rate(lambda: timed(plain)),
        "pythae's trainer": best_rate(pythae),
        "matrix products only": best_rate(lambda: timed(products)),
    }
    stack_speed = next(iter(speed.values()))
    table = Table("what", "model-steps/s", "ms per model-step", "stack is", box=None)
    for name, value in speed.items():
        table.add_row(name, f"{value:,.0f}", f"{1e3 / value:.4f}", f"{stack_speed / value:.2f}x as fast")
    console = Console(width=110)
    console.print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, best of {ROUNDS} rounds")
    console.print(table)
    console.print(f"stack / matrix products, time: {speed['matrix products only'] / stack_speed:.2f}")
    console.print(time_by_kind(stack))


if __name__ == "__main__":
    main()
