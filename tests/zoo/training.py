"""Train a model of the zoo once; its weights are kept outside the repository."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

VERSION = "1"  # of data, networks and training: another one when they change
FOLDER = Path(os.environ.get("VAESCOPE_ZOO", Path.home() / ".cache" / "vaescope-zoo")) / VERSION


def cached(key: str, build: Callable[[], nn.Module], train: Callable[[nn.Module], None], seed: int = 0) -> nn.Module:
    """The module with its trained weights."""
    torch.manual_seed(seed)
    network = build()
    file = FOLDER / f"{key}.safetensors"
    if not file.exists():
        train(network)
        FOLDER.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous().clone() for name, value in network.state_dict().items()}, file)
    network.load_state_dict(load_file(file))
    return network.eval()


def fit(
    network: nn.Module,
    x: torch.Tensor,
    *,
    beta: float = 1.0,
    epochs: int = 400,
    patience: int | None = 40,
    batch: int = 64,
    lr: float = 2e-3,
) -> None:
    """Adam; the weights with the best loss on held-out rows, or the last ones without patience."""
    if patience:  # in steps rather than epochs if there are few rows
        epochs, patience = max(epochs, 100_000 // len(x)), max(patience, 20_000 // len(x))
    held = x[: len(x) // 8] if patience else x[:0]
    rows = x[len(held) :]
    torch.set_flush_denormal(True)
    optimiser = torch.optim.Adam(network.parameters(), lr)
    best, best_loss, waited = copy.deepcopy(network.state_dict()), float("inf"), 0
    for _ in range(epochs):
        network.train()
        for index in torch.randperm(len(rows)).split(batch):
            loss = network.loss(rows[index], beta) / len(index)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if not patience:
            continue
        network.eval()
        with torch.no_grad():
            torch_state = torch.random.get_rng_state()
            torch.manual_seed(0)
            loss = float(sum(network.loss(held, beta) for _ in range(8)))
            torch.random.set_rng_state(torch_state)
        waited += 1
        if loss < best_loss:
            best, best_loss, waited = copy.deepcopy(network.state_dict()), loss, 0
        if waited > patience:
            break
    if patience:
        network.load_state_dict(best)
