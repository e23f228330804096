"""Images per second of the renderers, and a convolutional member against a plain compiled PyTorch loop."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping

import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.timing import best_rate, timed
from vaescope.data.rendering import DSprites, Renderer, Shapes3D, Sprites
from vaescope.models import VAE
from vaescope.objectives import beta_elbo
from vaescope.training.compilation import compile_stacked, has_bfloat16, keep_freed_memory
from vaescope.training.step import adam_scales, make_step

IMAGE, LATENTS, BATCH = (3, 64, 64), 4, 64


def streamed(data: Renderer, images: int) -> int:
    """Stream this many images of the grid in order."""
    done = 0
    for batch in data.stream(1024):
        done += len(batch)
        if done >= images:
            break
    return done


class PlainVAE(nn.Module):
    """The sprites network in plain PyTorch, with channels last."""

    def __init__(self) -> None:
        super().__init__()
        down = [(3, 32), (32, 32), (32, 64), (64, 64)]
        up = [(64, 64), (64, 32), (32, 32), (32, 3)]
        encoder: list[nn.Module] = [m for a, b in down for m in (nn.Conv2d(a, b, 4, 2, 1), nn.ReLU())]
        encoder += [nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
        self.encoder = nn.Sequential(*encoder, nn.Linear(256, 2 * LATENTS))
        decoder: list[nn.Module] = [nn.Linear(LATENTS, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
        decoder += [nn.Linear(256, 1024), nn.ReLU(), nn.Unflatten(1, (64, 4, 4))]
        decoder += [m for a, b in up for m in (nn.ConvTranspose2d(a, b, 4, 2, 1), nn.ReLU())]
        self.decoder = nn.Sequential(*decoder[:-1])

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        output = self.decoder(mean + noise * (log_variance / 2).exp())
        kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
        return (0.5 * (x - output).square().sum((1, 2, 3)) + kl).mean()


def plain_step(*, bfloat16: bool) -> Callable[[], object]:
    net = PlainVAE().to(memory_format=torch.channels_last)
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    loss = torch.compile(net)
    x = torch.rand(BATCH, *IMAGE).to(memory_format=torch.channels_last)
    noise = torch.randn(BATCH, LATENTS)

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            value = loss(x, noise)
        value.backward()
        optimiser.step()

    return step


def member_step(*, bfloat16: bool) -> Callable[[], object]:
    model = VAE.conv(IMAGE, latent_dim=LATENTS)
    params = model.init([0])
    moments = tuple({name: torch.zeros_like(p) for name, p in params.items()} for _ in range(2))
    step = compile_stacked(make_step(model, beta_elbo, autocast="cpu" if bfloat16 else None))
    x, noise = torch.rand(1, BATCH, model.observed_dim), torch.randn(1, BATCH, LATENTS)
    scales = adam_scales(1, 1e-3, torch.device("cpu"))
    return lambda: step(params, moments, scales, x, noise, torch.ones(1), torch.ones(1))


def alternating(steps: Mapping[str, Callable[[], object]], rounds: int = 25) -> dict[str, float]:
    """Best seconds of each, measured in turn, so that other load slows all of them."""
    best = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for name, work in steps.items():
            begin = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - begin)
    return best


def main() -> None:
    warnings.filterwarnings("ignore")
    console = Console(width=110)
    sprites = Sprites()
    values = sprites.values_at(torch.randint(len(sprites), (4096,)))
    rates = {
        "sprites, 64 x 64 RGB": best_rate(lambda: timed(lambda: len(sprites.render(values)))),
        "dSprites structure, streamed in order": best_rate(lambda: timed(lambda: streamed(DSprites(), 16_384))),
    }
    shapes = Shapes3D()
    rates["3DShapes structure, streamed, the first time"] = best_rate(lambda: timed(lambda: streamed(shapes, 8_192)), 1)
    rates["3DShapes structure, streamed again"] = best_rate(lambda: timed(lambda: streamed(shapes, 8_192)))
    for name, rate in rates.items():
        console.print(f"{name}: {rate:,.0f} images/s")
    steps = {
        "member, float32": member_step(bfloat16=False),
        "member, bfloat16": member_step(bfloat16=True),
        "plain compiled loop, float32": plain_step(bfloat16=False),
        "plain compiled loop, bfloat16": plain_step(bfloat16=True),
    }
    default = alternating(steps)
    with keep_freed_memory():
        seconds = alternating(steps)
    console.print(f"sprites network, batch of {BATCH} at 64 x 64 x 3, {torch.get_num_threads()} threads")
    for name, value in seconds.items():
        console.print(f"{name}: {1e3 * value:.1f} ms per step, {1e3 * default[name]:.1f} without keeping freed memory")
    console.print(f"bfloat16 / float32: {seconds['member, bfloat16'] / seconds['member, float32']:.2f}")
    console.print(f"chosen automatically on this machine: {has_bfloat16(torch.device('cpu'))}")


if __name__ == "__main__":
    main()
