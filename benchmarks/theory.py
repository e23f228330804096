"""Speed of the theory: Jacobians of an image decoder, and the exact projection of ten thousand points."""

from __future__ import annotations

import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.timing import best_seconds
from vaescope.data.mixings import OrthogonalMLP
from vaescope.models import VAE, Member
from vaescope.theory import ima_contrast, jacobian, project

SAMPLES, LATENTS, OUTPUTS_TRIED = 64, 4, 24


def conv_decoder() -> nn.Module:
    """Four latents to 3 x 64 x 64, the size of the sprites network."""
    torch.manual_seed(0)
    widths = (64, 64, 32, 32)
    layers: list[nn.Module] = [nn.Linear(LATENTS, 256), nn.ReLU(), nn.Linear(256, 64 * 16), nn.Unflatten(1, (64, 4, 4))]
    for inputs, outputs in zip(widths, (*widths[1:], 3), strict=True):
        layers += [nn.ReLU(), nn.ConvTranspose2d(inputs, outputs, 4, 2, 1)]
    return nn.Sequential(*layers)


def backward_per_output(decoder: nn.Module, z: Tensor, outputs: int) -> None:
    """The usual way: one backward pass per output, here for the first few only."""
    z = z.clone().requires_grad_()
    flat = decoder(z).flatten(1)
    for index in range(outputs):
        torch.autograd.grad(flat[:, index].sum(), z, retain_graph=True)


def main() -> None:
    console = Console(width=110)
    decoder, z = conv_decoder(), torch.randn(SAMPLES, LATENTS)
    outputs = decoder(z).flatten(1).shape[1]
    seconds = best_seconds(lambda: ima_contrast(decoder, z), rounds=3)
    few = best_seconds(lambda: backward_per_output(decoder, z, OUTPUTS_TRIED), rounds=2)
    backward = few / OUTPUTS_TRIED * outputs
    console.print(f"Jacobian + c_IMA, {SAMPLES} samples, {LATENTS} latents, {outputs} outputs: {seconds:.3f} s")
    console.print(f"one backward pass per output: {backward:.1f} s, {backward / seconds:.0f}x slower")
    J = jacobian(decoder, z[:2])
    reference = torch.vmap(torch.func.jacrev(lambda p: decoder(p[None]).flatten()))(z[:2])
    console.print(f"largest difference from reverse mode: {float((J - reference).detach().abs().max()):.1e}")

    points = torch.randn(10_000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mixing, vae = OrthogonalMLP(2, seed=0), VAE.mlp(2, 2, hidden=(30, 30))
    member = Member(vae, vae.init([0]), precision=1.0)
    for name, decode, z0 in (("mixing", mixing, points), ("MLP of width 30", member.decode, points)):
        x = decode(z0)
        for precision in (1e1, 1e3, 1e5):
            seconds = best_seconds(lambda: project(decode, x, precision=precision, start=z0), rounds=1)  # noqa: B023
            console.print(f"exact projection, 10,000 points, d = 2, {name}, γ² = {precision:.0e}: {seconds:.1f} s")


if __name__ == "__main__":
    main()
